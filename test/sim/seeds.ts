// Seeds that once failed by a fault of the node. They are run again each time, although a seed means another run whenever what a run
// is made of changes; each fault has a test of its own beside the code that was wrong.

export const seeds: readonly { readonly seed: number; readonly fault: string }[] = [
  { seed: 183, fault: "a dead letter was stored in a stream of which nothing said whose it is" },
  { seed: 100, fault: "a clock that was set forth ended the dedupe window, and a batch sent again was stored twice" },
  {
    seed: 20169,
    fault: "an ACK that a lease table failed on was answered lease_lost by the tables of other partitions",
  },
  {
    seed: 5002196,
    fault: "a topic was said to be gone before that was stored, and after a failed commit nobody finished its deletion",
  },
  { seed: 5014783, fault: "dead letters got a second partition, and their subscriber never heard of it" },
  {
    seed: 5031973,
    fault: "an ACK settled an event of the same id in another partition, whose lease had the same name",
  },
  {
    seed: 20013622,
    fault: "whoever was joining a group while it was deleted left members behind, and one was to get an event alone",
  },
  { seed: 90006440, fault: "after a PAUSE was answered, events came that had been posted while the front stood still" },
];
