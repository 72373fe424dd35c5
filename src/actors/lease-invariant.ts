// What must hold of the books of a lease table between two messages, as a function. Tests call it after every step.

import type { LeaseLedger } from "./lease-ledger.ts";
import { leaseState } from "./lease-ring.ts";
import type { Members } from "./members.ts";

export function checkLedger(ledger: LeaseLedger, members: Members, unsettledMax: number): void {
  const { ring, settled, again, floor } = ledger;
  const unsettled = ring.unsettledBelow(ring.next, floor);
  claim(floor <= ring.next, `floor ${floor} is above next ${ring.next}`);
  claim(settled.first > floor, `the range at ${settled.first} should have moved the floor ${floor}`);
  claim(ring.unsettled <= unsettledMax, `${ring.unsettled} events are unsettled`);
  claim(
    unsettled.length + settled.countIn(floor, ring.next) === ring.next - floor,
    `floor ${floor} to next ${ring.next}: ${unsettled.length} unsettled, ${settled.countIn(floor, ring.next)} settled`,
  );

  const counts = [0, 0, 0, 0, 0];
  const leases = new Map<number, number>();
  const tokens = new Set<number>();
  const timed = new Set(ledger.deadlines.live());
  const backing = new Set(again.backoffs.live());
  for (const offset of unsettled) {
    const slot = ring.slotOf(offset);
    const state = ring.state[slot];
    claim(slot >= 0 && ring.owner[slot] === offset, `${offset} has no place`);
    claim(!settled.has(offset), `${offset} is settled and in state ${state}`);
    counts[state]++;
    const ready = again.ready.has(offset);
    const solo = again.solo.filter((entry) => entry === offset).length;
    const limbo = again.limbo.waiting.has(offset);
    const places = (ready ? 1 : 0) + (limbo ? 1 : 0) + solo + (backing.has(offset) ? 1 : 0);
    claim(places === (state === leaseState.waiting ? 1 : 0), `${offset} in state ${state} waits in ${places} places`);
    claim(again.dying.has(offset) === (state === leaseState.dying), `${offset} in state ${state} and dying differ`);
    const undurable = again.limbo.has(offset);
    claim(undurable || !limbo, `${offset} waits for a commit that is over`);
    claim(!undurable || !(ready || solo > 0), `${offset} is up for delivery and its last attempt is not durable`);
    claim(!undurable || state !== leaseState.leased, `${offset} is leased and its last attempt is not durable`);
    claim(timed.has(offset) === (state === leaseState.leased), `${offset} in state ${state} and its deadline differ`);
    if (state !== leaseState.leased) continue;
    leases.set(ring.holder[slot], (leases.get(ring.holder[slot]) ?? 0) + 1);
    claim(ring.token[slot] > 0 && !tokens.has(ring.token[slot]), `${offset} has no token of its own`);
    tokens.add(ring.token[slot]);
    claim(ring.alarm[slot] <= ring.until[slot], `${offset} would be looked at after its deadline`);
  }
  claim(JSON.stringify(counts) === JSON.stringify(ring.counts), `counted ${counts}, kept ${ring.counts}`);
  const offered = again.ready.size + again.limbo.waiting.size + again.solo.length;
  claim(offered <= counts[leaseState.waiting], "more is ready than waits");
  claim(again.dying.countIn(0, ring.next) === counts[leaseState.dying], "more is dying than that");
  const ahead = again.dying.nextIn(ring.next);
  claim(!settled.has(ahead) && (ahead === Number.POSITIVE_INFINITY || again.isSpent(ahead)), `${ahead} should live`);

  let held = 0;
  for (const member of members.all()) {
    const own = leases.get(member.number) ?? 0;
    claim(own === member.leases, `member ${member.number} has ${own} leases, and counts ${member.leases}`);
    claim(member.alone < 0 || ring.stateAt(member.alone) === leaseState.leased, "alone with an event it does not hold");
    held += own;
  }
  claim(held === counts[leaseState.leased], "a lease without a member");

  for (const line of ledger.keys.all()) {
    for (const [place, offset] of line.entries()) {
      const state = ring.stateAt(offset);
      claim(state !== leaseState.settled, `${offset} is settled and in the line of its key`);
      claim(
        (state === leaseState.blocked) === place > 0,
        `${offset} at place ${place} of its key is in state ${state}`,
      );
      claim(place === 0 || line[place - 1] < offset, "the line of a key is out of order");
    }
  }
  claim(counts[leaseState.blocked] <= ledger.keys.size, "blocked without a key");
}

function claim(holds: boolean, otherwise: string): void {
  if (!holds) throw new Error(`broken invariant: ${otherwise}`);
}
