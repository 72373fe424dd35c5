// What a lease table says of itself: the facts behind /explain, and what became of one event, behind /history.

import { test } from "uvu";
import * as assert from "uvu/assert";
import type { EventFacts, GroupFacts, Holding, LeaseRun } from "../../src/actors/messages.ts";
import { failure } from "../../src/protocol/failure.ts";
import { LeaseHarness } from "../support/lease-harness.ts";

function facts(h: LeaseHarness): GroupFacts {
  return h.ask<GroupFacts>({ type: "explain" });
}

function history(h: LeaseHarness, offset: number): EventFacts {
  return h.ask<EventFacts>({ type: "history", offset });
}

/** Holdings as short as they can be read: who, attempt, when from and until relative to `zero`, outcome, reason. */
function told(holdings: readonly Holding[], zero: number): string[] {
  return holdings.map(({ who, attempt, counted, from, until, outcome, reason }) =>
    [`${who} #${attempt} ${from - zero}..${until - zero} ${outcome}`, counted ? [] : "uncounted", reason ?? []]
      .flat()
      .join(", "),
  );
}

// ------------------------------------------------------------------------------------------------------------------ group

test("a group that does not exist says so, and its cell ends", () => {
  const h = new LeaseHarness();
  h.publishMany(3);
  const { exists, options, lag, members, end } = facts(h);
  assert.equal([exists, options, lag, members, end], [false, null, 0, [], 3]);
  assert.ok(h.stopped > 0);
});

test("every unsettled event is counted once, by what it waits for", () => {
  const h = new LeaseHarness({ limits: { unsettledMax: 20 } });
  h.publish(...Array.from({ length: 8 }, (_, n) => (n < 3 ? { key: "a" } : { key: `b${n}` })));
  h.member(1, { group: { ordering: "key", maxAttempts: 2, backoffMs: 400 }, slots: 5, from: { kind: "earliest" } });
  h.deadLetterAnswer = undefined;
  const got = h.take();
  assert.equal(
    got.map(({ offset }) => offset),
    [0, 3, 4, 5, 6],
  );
  const { counts, lag } = facts(h);
  assert.equal(counts, { leased: 5, ready: 0, alone: 0, backoff: 0, blocked: 2, dying: 0, fresh: 1 });
  assert.is(lag, 8);

  h.ack(got[1]);
  h.nack(got[2]);
  assert.equal(h.offsets(), [7], "a freed slot takes the fresh one");
  assert.equal(facts(h).counts, { leased: 4, ready: 0, alone: 0, backoff: 1, blocked: 2, dying: 0, fresh: 0 });
  h.pass(400);
  const again = h.take();
  assert.equal(
    again.map(({ offset, attempt }) => [offset, attempt]),
    [[4, 2]],
  );
  h.nack(again[0], { reason: "broken" });
  const { counts: after, totals, room, unsettledMax } = facts(h);
  assert.equal(after, { leased: 4, ready: 0, alone: 0, backoff: 0, blocked: 2, dying: 1, fresh: 0 });
  assert.equal([totals.acked, totals.nacked, totals.delivered, totals.redelivered], [1, 2, 7, 1]);
  assert.equal([room, unsettledMax], [13, 20]);
});

test("what was dying before a restart is counted as that, also before the walk comes to it", () => {
  const h = new LeaseHarness();
  h.deadLetterAnswer = undefined;
  h.publishMany(3);
  h.member(1, { group: { maxAttempts: 1 } });
  h.nack(h.take()[1]);
  h.restart();
  assert.equal(facts(h).counts, { leased: 0, ready: 0, alone: 0, backoff: 0, blocked: 0, dying: 1, fresh: 2 });
  assert.is(history(h, 1).state, "dying");
});

test("the oldest lease is told with its holder, its age and its end, extensions included", () => {
  const h = new LeaseHarness();
  h.member(1, { slots: 1, ackTimeoutMs: 1000 });
  h.member(2, { slots: 1, ackTimeoutMs: 5000 });
  h.publish({ id: "own-id" });
  h.pass(300);
  h.publish({});
  const [first] = h.take();
  assert.equal(facts(h).oldestLease, {
    offset: 0,
    id: "own-id",
    member: first.member,
    who: `client ${first.member}`,
    attempt: 1,
    heldMs: 300,
    endsInMs: 700,
  });
  h.extend(first, 9000);
  h.pass(50);
  assert.equal([facts(h).oldestLease?.heldMs, facts(h).oldestLease?.endsInMs], [350, 8950]);
  h.ack(first);
  const { oldestLease, deliveredMsAgo } = facts(h);
  assert.equal([oldestLease?.offset, oldestLease?.id, oldestLease?.heldMs], [1, h.idOf(1), 50]);
  assert.is(deliveredMsAgo, 50);
});

test("the key with the most behind it is told, and what its first event waits for", () => {
  const h = new LeaseHarness();
  h.member(1, { group: { ordering: "key", backoffMs: 2000 } });
  h.publish({ key: "a" }, { key: "b" }, { key: "a" }, { key: "b" }, { key: "b" });
  const [, b] = h.take();
  const { keyWait } = facts(h);
  assert.equal(
    [keyWait?.key, keyWait?.waiting, keyWait?.offset, keyWait?.id, keyWait?.state, keyWait?.lease?.who],
    ["b", 2, 1, h.idOf(1), "leased", "client 1"],
  );
  assert.equal(history(h, 4).behind, { key: "b", offset: 1, id: h.idOf(1) });
  assert.is(history(h, 4).state, "blocked");
  h.nack(b);
  h.pass(500);
  const backing = facts(h);
  assert.equal(
    [backing.keyWait?.state, backing.keyWait?.backoffEndsInMs, backing.backoffEndsInMs],
    ["backoff", 1500, 1500],
  );
});

test("members are told with what they may still take", () => {
  const h = new LeaseHarness();
  h.member(1, { slots: 3, tokens: 5, bytes: 5000 });
  h.member(2, { slots: 0, who: "client 2 as anna" });
  h.tell({ type: "flow", member: 2, open: false, stalled: true, written: 0 });
  h.publishMany(2);
  const [first, second] = facts(h).members;
  assert.ok(first.bytes < 5000 && first.bytes > 3000, `${first.bytes}`);
  assert.equal(
    { ...first, bytes: 0 },
    {
      member: 1,
      who: "client 1",
      open: true,
      stalled: false,
      slots: 1,
      tokens: 3,
      bytes: 0,
      leases: 2,
      reserved: false,
    },
  );
  assert.equal([second.who, second.open, second.stalled, second.slots], ["client 2 as anna", false, true, 0]);
});

test("an event that must be delivered alone is told, first while it waits and then with its holder", () => {
  const h = new LeaseHarness();
  h.member(1, { group: { maxAttempts: 2 }, slots: 1 });
  h.publishMany(1);
  h.member(2);
  h.publishMany(1);
  h.leave(1);
  const waits = facts(h);
  assert.equal([waits.counts.alone, waits.nextAlone], [1, { offset: 0, id: h.idOf(0) }]);
  assert.is(waits.members[0].reserved, true);
  const [, other] = h.take();
  h.ack(other);
  const [member] = facts(h).members;
  assert.equal([member.alone?.offset, member.alone?.attempt, member.alone?.who], [0, 2, "client 2"]);
  assert.is(facts(h).nextAlone, undefined);
});

test("events that the filter kept out are counted since the last delivery", () => {
  const h = new LeaseHarness();
  h.member(1, { group: { filter: { keyPrefix: "a" } } });
  h.publish({ key: "b" }, { key: "b" }, { key: "a" }, { key: "c" });
  assert.equal([facts(h).filteredInRow, facts(h).totals.filtered], [1, 3]);
  h.publish({ key: "b" }, { key: "a" });
  assert.is(facts(h).filteredInRow, 0);
  h.publish({ key: "b" });
  assert.is(facts(h).filteredInRow, 1);
  assert.equal(
    [0, 2, 3, 6].map((offset) => history(h, offset).state),
    ["filtered", "leased", "filtered", "filtered"],
  );
});

test("reads that fail and a burial that fails say when they are tried again", () => {
  const h = new LeaseHarness();
  h.member(1, { group: { maxAttempts: 1 } });
  h.failRead();
  h.publishMany(1);
  assert.is(facts(h).readRetryInMs, 100);
  h.pass(100);
  h.deadLetterAnswer = failure("unavailable", "not now");
  h.nack(h.take()[0]);
  h.pass(250);
  assert.equal([facts(h).readRetryInMs, facts(h).burialRetryInMs], [undefined, 750]);
});

// ------------------------------------------------------------------------------------------------------------------ event

test("an event tells every lease it had, by whom, how each ended, and where it is now", () => {
  const h = new LeaseHarness();
  const zero = h.wall;
  h.member(1, { ackTimeoutMs: 1000 });
  h.publishMany(1);
  h.pass(10);
  h.nack(h.take()[0], { reason: "no stock", delayMs: 500 });
  assert.equal(history(h, 0), {
    exists: true,
    state: "backoff",
    attempts: 1,
    until: zero + 510,
    holdings: [
      {
        who: "client 1",
        attempt: 1,
        counted: true,
        from: zero,
        until: zero + 10,
        outcome: "nacked",
        reason: "no stock",
      },
    ],
  });
  h.pass(500);
  h.pass(1000);
  h.pass(20);
  h.leave(1);
  h.member(2);
  h.pass(30);
  h.leave(2, "unsubscribe");
  const { state, attempts, holdings } = history(h, 0);
  assert.equal([state, attempts], ["ready", 4]);
  assert.equal(told(holdings, zero), [
    "client 1 #1 0..10 nacked, no stock",
    "client 1 #2 510..1510 expired",
    "client 1 #3 1510..1530 disconnected",
    "client 2 #4 1530..1560 unsubscribed",
  ]);
  h.member(3);
  const live = history(h, 0);
  assert.equal([live.state, live.attempts, live.until], ["leased", 5, zero + 1560 + 1000]);
  assert.equal(told(live.holdings.slice(4), zero), ["client 3 #5 1560..2560 leased"]);
  h.pass(5);
  h.ack(h.take(3)[0]);
  const done = history(h, 0);
  assert.equal([done.state, done.attempts, done.at], ["acked", 5, zero + 1565]);
  assert.equal(told(done.holdings.slice(4), zero), ["client 3 #5 1560..1565 acked"]);
});

test("a nack without a reason has none; an ack after the deadline stands beside the end of the lease", () => {
  const h = new LeaseHarness();
  const zero = h.wall;
  h.member(1, { ackTimeoutMs: 100, slots: 1, group: { backoffMs: 1000 } });
  h.publishMany(1);
  h.nack(h.take()[0], { delayMs: 0 });
  const [late] = h.take();
  h.pass(150);
  h.leave(1);
  assert.is(h.ack(late, { member: 7 }), null);
  const { state, attempts, holdings } = history(h, 0);
  assert.equal([state, attempts], ["acked", 2]);
  assert.equal(told(holdings, zero), [
    "client 1 #1 0..0 nacked",
    "client 1 #2 0..100 expired",
    "client 1 #2 0..150 acked",
  ]);
});

test("what was not written to the socket is told and does not count", () => {
  const h = new LeaseHarness();
  h.member(1);
  h.publishMany(2);
  h.leave(1, "disconnect", 1);
  assert.equal(
    [0, 1].map((offset) => told(history(h, offset).holdings, h.wall)),
    [["client 1 #1 0..0 disconnected"], ["client 1 #1 0..0 disconnected, uncounted"]],
  );
  assert.equal([history(h, 0).attempts, history(h, 1).attempts], [1, 0]);
});

test("a dead letter says when it became one and why", () => {
  const h = new LeaseHarness();
  h.member(1, { group: { maxAttempts: 2 } });
  h.publishMany(1);
  h.nack(h.take()[0], { reason: "first" });
  h.pass(20);
  h.nack(h.take()[0], { reason: "second" });
  const { state, attempts, reason, at, holdings } = history(h, 0);
  assert.equal([state, attempts, reason, at], ["dead_lettered", 2, "second", h.wall]);
  assert.equal(told(holdings, h.wall - 20), ["client 1 #1 0..0 nacked, first", "client 1 #2 0..20 nacked, second"]);
});

test("a seek ends leases, and what lies below the floor is settled for reasons that nobody knows", () => {
  const h = new LeaseHarness();
  h.member(1);
  h.publishMany(3);
  const got = h.take();
  h.ack(got[0]);
  h.ask({ type: "seek", to: { kind: "latest" } });
  assert.equal(
    [0, 1].map((offset) => [history(h, offset).state, ...told(history(h, offset).holdings, h.wall)]),
    [
      ["acked", "client 1 #1 0..0 acked"],
      ["settled", "client 1 #1 0..0 seek, uncounted"],
    ],
  );
  h.ask({ type: "seek", to: { kind: "earliest" } });
  assert.equal(
    history(h, 0).holdings.map(({ outcome }) => outcome),
    ["acked", "leased"],
    "what comes again after a seek keeps its past",
  );
});

test("what nobody has looked at yet is not reached; after a restart only the attempts are known", () => {
  const h = new LeaseHarness();
  h.member(1, { slots: 1 });
  h.publishMany(2);
  assert.equal(history(h, 1), { exists: true, state: "not_reached", attempts: 0, holdings: [] });
  h.nack(h.take()[0], { delayMs: 5000 });
  h.restart();
  assert.equal(history(h, 0), { exists: true, state: "not_reached", attempts: 1, holdings: [] });
  h.take();
  h.member(1);
  h.ack(h.take()[0]);
  assert.equal([history(h, 0).state, history(h, 1).state], ["backoff", "acked"]);
});

test("the story of an event that fails, or did once, is not pushed out by many that go well", () => {
  const h = new LeaseHarness();
  h.member(1, { slots: 2 });
  h.publishMany(2);
  const [one, other] = h.take();
  h.nack(one, { reason: "the one", delayMs: 1_000_000 });
  h.nack(other, { reason: "the other" });
  h.ack(h.take()[0]);
  for (let n = 2; n <= 2000; n++) {
    h.publishMany(1);
    h.pass(1);
    h.ack(h.take()[0]);
  }
  assert.equal(
    history(h, 0).holdings.map(({ reason }) => reason),
    ["the one"],
  );
  assert.equal(
    history(h, 1).holdings.map(({ outcome }) => outcome),
    ["nacked", "acked"],
  );
  assert.equal(
    [history(h, 2).state, history(h, 2000).state],
    ["settled", "acked"],
    "the oldest that went well is forgotten",
  );
  const remembered = Array.from({ length: 1999 }, (_, i) => history(h, i + 2)).filter(({ state }) => state === "acked");
  assert.is(remembered.length, 512);
});

test("what was acked together and leased apart is told apart: by time, and by holder", () => {
  const h = new LeaseHarness();
  const zero = h.wall;
  h.member(1, { batchSize: 1 });
  h.publishMany(1);
  h.pass(10);
  h.member(2, { batchSize: 1 });
  h.publishMany(2);
  const got = h.take();
  assert.equal(new Set(got.map(({ member }) => member)), new Set([1, 2]));
  h.settle(1, ...got.map(({ id, lease }) => ({ id, lease, ack: true })));
  assert.equal(
    got.map(({ offset }) => told(history(h, offset).holdings, zero)),
    got.map(({ member, at }) => [`client ${member} #1 ${at - (h.mono - 10)}..10 acked`]),
  );
});

test("neighbours that were leased and acked together take one place, whatever is acked between them", () => {
  const h = new LeaseHarness();
  h.member(1, { format: "batch", slots: 1000, batchSize: 1000 });
  for (let round = 0; round < 600; round++) {
    h.publishMany(20);
    const got = h.take();
    const run = ({ offset, epoch, token }: (typeof got)[0], count: number): LeaseRun => ({
      offset,
      count,
      epoch,
      token,
    });
    h.ask({ type: "settleRuns", member: 1, verb: "ack", runs: [run(got[0], 20)] });
    h.pass(1);
  }
  const states = Array.from({ length: 600 * 20 }, (_, offset) => history(h, offset).state);
  assert.is(states.filter((state) => state === "acked").length, 512 * 20);
  assert.is(states.indexOf("acked"), 88 * 20);
});

test.run();
