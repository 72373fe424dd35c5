// The promises of DESIGN §5 that a lease table keeps, G3 to G7, and the life of a group: joins, options, seek, removal.

import { test } from "uvu";
import * as assert from "uvu/assert";
import { entryKeys, entryValue } from "../../src/actors/entries.ts";
import type { CursorState, GroupOptions, Joined } from "../../src/actors/messages.ts";
import type { Failure } from "../../src/protocol/failure.ts";
import { makeId } from "../../src/protocol/ids.ts";
import { leaseText } from "../../src/protocol/lease.ts";
import { partitionOf } from "../../src/protocol/stream.ts";
import { LeaseHarness, stream } from "../support/lease-harness.ts";

const groupKey = entryKeys.group(stream, "g");
const cursorKey = entryKeys.cursor(stream, "g");

function code(value: unknown): string | undefined {
  return (value as Failure | null)?.code;
}

// ----------------------------------------------------------------------------------------------------------------- G1, G3

test("G1: nothing is delivered before its commit is announced, though the block could be read", () => {
  const h = new LeaseHarness();
  h.member(1);
  h.append({}, {});
  h.tell({ type: "advanced", end: 1 });
  assert.equal(h.offsets(), [0]);
  h.tell({ type: "advanced", end: 2 });
  assert.equal(h.offsets(), [1]);
});

test("G3: a group gets every event from its start position, in order", () => {
  const h = new LeaseHarness();
  h.publishMany(10);
  h.member(1);
  h.publishMany(5);
  assert.equal(h.offsets(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
});

test("G3: what retention removes is skipped and counted, its leases are void, the floor jumps", () => {
  const h = new LeaseHarness();
  for (let i = 0; i < 8; i++) h.publish({});
  h.member(1, { slots: 6 });
  const got = h.take();
  h.ack(got[1]);
  h.nack(got[2], { delayMs: 500 });
  h.trim(5);
  assert.is(h.cursor().floor, 5);
  assert.is(h.total("events_skipped_total"), 4);
  assert.is(code(h.ack(got[0])), "lease_lost");
  assert.is(h.ack(got[0], { named: false }), "stale");
  assert.is(h.ack(got[5]), null);
  // The slots of the void leases are free again.
  assert.equal(h.offsets(), [6, 7]);
  h.restart();
  assert.is(h.cursor().floor, 6);
});

test("G3: a table that starts after retention went past its floor skips what is gone", () => {
  const h = new LeaseHarness();
  for (let i = 0; i < 5; i++) h.publish({});
  h.member(1, { slots: 1 });
  h.start = 3;
  h.restart();
  assert.is(h.cursor().floor, 3);
  assert.is(h.total("events_skipped_total"), 3);
  h.member(1);
  assert.equal(
    h
      .take()
      .map(({ offset }) => offset)
      .slice(-2),
    [3, 4],
  );
});

test("G3: a damaged stretch is skipped and counted, and delivery goes on behind it", () => {
  const h = new LeaseHarness();
  for (let i = 0; i < 5; i++) h.append({}, {});
  h.damage(4);
  h.tell({ type: "advanced", end: 10 });
  h.member(1);
  assert.equal(h.offsets(), [0, 1, 2, 3, 6, 7, 8, 9]);
  assert.is(h.total("events_skipped_total"), 2);
});

test("G3: an event whose bytes are gone when it comes again is skipped and counted", () => {
  const h = new LeaseHarness();
  for (let i = 0; i < 3; i++) h.publish({});
  h.member(1);
  const got = h.take();
  h.damage(1);
  h.nack(got[1]);
  assert.equal(h.offsets(), []);
  assert.is(h.total("events_skipped_total"), 1);
  h.ack(got[0]);
  assert.is(h.cursor().floor, 2);
});

test("G3: damage at the very end of a stream is skipped too", () => {
  const h = new LeaseHarness();
  for (let i = 0; i < 3; i++) h.append({});
  h.damage(2);
  h.tell({ type: "advanced", end: 3 });
  h.member(1);
  const got = h.take();
  assert.equal(
    got.map(({ offset }) => offset),
    [0, 1],
  );
  h.damage(1);
  h.nack(got[1]);
  h.ack(got[0]);
  assert.equal([h.cursor().floor, h.total("events_skipped_total")], [3, 2]);
});

test("G3: when the first of several that come again is gone, the others still come", () => {
  const h = new LeaseHarness();
  for (let i = 0; i < 3; i++) h.publish({});
  h.member(1);
  h.damage(0);
  h.pass(1000);
  assert.equal(h.offsets(), [0, 1, 2, 1, 2]);
  assert.equal([h.cursor().floor, h.total("events_skipped_total")], [1, 1]);
});

test("a read that fails is tried again later", () => {
  const h = new LeaseHarness();
  h.publish({});
  h.failRead();
  h.member(1);
  assert.equal(h.offsets(), []);
  h.pass(99);
  assert.equal(h.offsets(), []);
  h.pass(1);
  assert.equal(h.offsets(), [0]);
});

// -------------------------------------------------------------------------------------------------------------------- G4

test("G4: an event is leased to one member at a time", () => {
  const h = new LeaseHarness();
  h.member(1, { batchSize: 1 });
  h.member(2, { batchSize: 1 });
  h.publishMany(6);
  const first = h.offsets(1);
  const second = h.offsets(2);
  assert.equal([...first, ...second].sort(), [0, 1, 2, 3, 4, 5]);
  assert.is(first.length, 3);
});

test("G4: blocks that arrive after their credit has gone are dropped and read again", () => {
  const h = new LeaseHarness();
  h.member(1);
  h.delayReads = true;
  h.publishMany(3);
  h.leave(1);
  h.answerReads();
  assert.equal(h.offsets(), []);
  h.member(2);
  h.answerReads();
  assert.equal(
    h.take().map(({ member, offset }) => [member, offset]),
    [
      [2, 0],
      [2, 1],
      [2, 2],
    ],
  );
});

// -------------------------------------------------------------------------------------------------------------------- G5

test("G5: out-of-order acks are kept, the floor moves only over settled events", () => {
  const h = new LeaseHarness();
  h.member(1);
  h.publishMany(6);
  const got = h.take();
  h.ack(got[3]);
  h.ack(got[1]);
  h.ack(got[4]);
  assert.is(h.cursor().floor, 0);
  assert.equal(h.cursor().ranges, [
    [1, 2],
    [3, 5],
  ]);
  h.ack(got[0]);
  assert.is(h.cursor().floor, 2);
  h.ack(got[2]);
  assert.is(h.cursor().floor, 5);
  assert.equal(h.cursor().ranges, []);
});

test("G5: floor and ranges survive a restart, and only the rest is delivered", () => {
  const h = new LeaseHarness();
  h.member(1);
  h.publishMany(8);
  const got = h.take();
  for (const n of [0, 2, 3, 6]) h.ack(got[n]);
  h.restart();
  assert.equal(h.cursor().ranges, [
    [2, 4],
    [6, 7],
  ]);
  h.member(1);
  const again = h.take();
  assert.equal(
    again.map(({ offset }) => offset),
    [1, 4, 5, 7],
  );
  assert.equal(
    again.map(({ attempt }) => attempt),
    [1, 1, 1, 1],
  );
  h.ack(again[0]);
  assert.is(h.cursor().floor, 4);
  h.ack(again[2]);
  h.ack(again[1]);
  assert.is(h.cursor().floor, 7);
});

test("G5: an OK to an ack leaves after the commit that holds it, and a crash before it takes the ack back", () => {
  const h = new LeaseHarness();
  h.member(1);
  h.publishMany(2);
  const [first] = h.take();
  h.holdCommits = true;
  const ref = h.send({ type: "settle", member: 1, entries: [{ id: first.id, ack: true, lease: first.lease }] });
  assert.is(h.answers.has(ref), false);
  h.restart();
  h.holdCommits = false;
  assert.is(h.answers.has(ref), false);
  h.member(1);
  assert.equal(h.offsets(), [0, 1]);
  h.restart();
  assert.is(h.cursor().floor, 0);
});

test("G5: what CURSOR says is durable: an ack that is on its way to the store is in no answer that could be taken back", () => {
  const h = new LeaseHarness();
  h.member(1);
  h.publishMany(2);
  const [first] = h.take();
  h.holdCommits = true;
  h.send({ type: "settle", member: 1, entries: [{ id: first.id, ack: true, lease: first.lease }] });
  const ref = h.send({ type: "cursor" });
  assert.is(h.answers.has(ref), false);
  h.commit();
  assert.is((h.answers.get(ref) as CursorState).floor, 1);
});

test("G5: at the most unsettled events delivery waits, and goes on when some are settled", () => {
  const h = new LeaseHarness({ limits: { unsettledMax: 4 } });
  h.member(1);
  h.publishMany(10);
  const got = h.take();
  assert.equal(
    got.map(({ offset }) => offset),
    [0, 1, 2, 3],
  );
  assert.is(h.total("group_full"), 1);
  h.ack(got[2]);
  assert.equal(h.offsets(), [4]);
  h.ack(got[0]);
  assert.equal(h.offsets(), [5]);
});

test("G5: one event that waits long lets thousands settle above it", () => {
  const h = new LeaseHarness({ limits: { unsettledMax: 300 } });
  h.member(1, { format: "batch" });
  h.publishMany(1);
  h.nack(h.take()[0], { delayMs: 1e6 });
  for (let round = 0; round < 30; round++) {
    h.publishMany(90);
    for (const got of h.take()) h.ack(got);
  }
  assert.equal(h.cursor().ranges, [[1, 2701]]);
  h.pass(1e6);
  const [late] = h.take();
  assert.equal([late.offset, late.attempt], [0, 2]);
  h.ack(late);
  assert.is(h.cursor().floor, 2701);
});

// -------------------------------------------------------------------------------------------------------------------- G6

test("G6: a lease that runs out is delivered again with the next attempt, to anyone, and nothing else is touched", () => {
  const h = new LeaseHarness();
  h.member(1, { slots: 1 });
  h.publish({});
  h.pass(500);
  h.member(2);
  h.publish({});
  h.take();
  h.tell({ type: "flow", member: 1, open: false, stalled: false, written: 1 });
  h.pass(499);
  assert.equal(h.take(), []);
  h.pass(1);
  assert.equal(
    h.take().map(({ member, offset, attempt }) => [member, offset, attempt]),
    [[2, 0, 2]],
  );
  assert.is(h.total("events_expired_total"), 1);
  assert.is(h.total("events_redelivered_total"), 1);
});

test("G6: attempts that ended survive a restart, one cut short by a crash does not count", () => {
  const h = new LeaseHarness();
  h.member(1);
  h.publishMany(3);
  const got = h.take();
  h.nack(got[0]);
  h.take();
  h.nack(got[2], { delayMs: 10_000 });
  h.restart({ downMs: 10_000 });
  h.member(1);
  assert.equal(
    h
      .take()
      .map(({ offset, attempt }) => [offset, attempt])
      .sort(),
    [
      [0, 2],
      [1, 1],
      [2, 2],
    ],
  );
});

test("G6: a backoff waits after a restart at most what was left of it", () => {
  const h = new LeaseHarness();
  h.member(1, { group: { backoffMs: 10_000 } });
  h.publish({});
  h.nack(h.take()[0]);
  h.restart({ downMs: 4000 });
  h.member(1);
  h.pass(5999);
  assert.equal(h.offsets(), []);
  h.pass(1);
  assert.equal(h.offsets(), [0]);
});

test("G6: the backoff follows the attempts, the last entry repeats, delay_ms overrides it", () => {
  const h = new LeaseHarness();
  h.member(1, { group: { backoffMs: [100, 300], maxAttempts: 10 } });
  h.publish({});
  const waits: number[] = [];
  for (const more of [{}, {}, {}, { delayMs: 50 }, { delayMs: 0 }]) {
    h.nack(h.take()[0], more);
    let waited = 0;
    while (h.got.length === 0) {
      h.pass(50);
      waited += 50;
    }
    waits.push(waited);
  }
  assert.equal(waits, [100, 300, 300, 50, 0]);
});

test("G6: a disconnect counts what was written to the socket and gives the rest back as it was", () => {
  const h = new LeaseHarness();
  h.member(1);
  h.publishMany(4);
  h.take();
  h.leave(1, "disconnect", 2);
  h.member(2);
  assert.equal(
    h
      .take()
      .map(({ offset, attempt }) => [offset, attempt])
      .sort(),
    [
      [0, 2],
      [1, 2],
      [2, 1],
      [3, 1],
    ],
  );
  h.restart();
  h.member(3);
  assert.equal(
    h
      .take()
      .map(({ offset, attempt }) => [offset, attempt])
      .sort(),
    [
      [0, 2],
      [1, 2],
      [2, 1],
      [3, 1],
    ],
  );
});

test("G6: an unsubscribe gives leases back at once, counting what was written", () => {
  const h = new LeaseHarness();
  h.member(1, { group: { backoffMs: 5000 } });
  h.member(2, { slots: 0 });
  h.publishMany(2);
  h.take();
  h.leave(1, "unsubscribe", 1);
  h.grant(2);
  assert.equal(
    h
      .take()
      .map(({ offset, attempt }) => [offset, attempt])
      .sort(),
    [
      [0, 2],
      [1, 1],
    ],
  );
});

test("G6: at a shutdown leases go back uncounted", () => {
  const h = new LeaseHarness();
  h.member(1);
  h.publish({});
  h.take();
  h.leave(1, "shutdown");
  h.restart();
  h.member(1);
  assert.is(h.take()[0].attempt, 1);
});

test("G6: what a stalled socket has not taken runs out without counting", () => {
  const h = new LeaseHarness();
  h.member(1);
  h.publishMany(3);
  h.take();
  h.tell({ type: "flow", member: 1, open: false, stalled: true, written: 1 });
  h.pass(1000);
  h.member(2);
  assert.equal(
    h
      .take(2)
      .map(({ offset, attempt }) => [offset, attempt])
      .sort(),
    [
      [0, 2],
      [1, 1],
      [2, 1],
    ],
  );
});

test("G6: a slow answer of the front does not count as stalled", () => {
  const h = new LeaseHarness();
  h.member(1);
  h.publish({});
  h.take();
  h.pass(1000);
  assert.is(h.take()[0].attempt, 2);
});

// -------------------------------------------------------------------------------------------------------------------- G7

test("G7: a lease is named by epoch and token, and no name comes twice", () => {
  const h = new LeaseHarness();
  h.member(1);
  h.publishMany(5);
  const leases = h.take().map(({ lease }) => lease);
  h.pass(1000);
  leases.push(...h.take().map(({ lease }) => lease));
  h.restart();
  h.member(1);
  leases.push(...h.take().map(({ lease }) => lease));
  assert.is(new Set(leases).size, 15);
});

test("G7: an ack, nack or extension that names a lost lease is refused and changes nothing", () => {
  const h = new LeaseHarness();
  h.member(1, { slots: 1 });
  h.publish({});
  const [lost] = h.take();
  h.pass(1000);
  const [now] = h.take();
  assert.is(code(h.ack(lost)), "lease_lost");
  assert.is(code(h.nack(lost, { delayMs: 9999 })), "lease_lost");
  assert.is(code(h.extend(lost, 60_000)), "lease_lost");
  assert.is(h.cursor().floor, 0);
  h.pass(999);
  assert.equal(h.take(), []);
  h.pass(1);
  assert.is(h.take()[0].attempt, 3);
  assert.is(code(h.ack(now)), "lease_lost");
});

test("G7: a lease past its deadline counts until the event is leased again", () => {
  const h = new LeaseHarness();
  h.member(1, { group: { backoffMs: 5000 } });
  h.publishMany(3);
  const got = h.take();
  h.pass(1000);
  assert.is(h.ack(got[0]), null);
  assert.is(h.ack(got[1], { named: false }), null);
  assert.is(h.cursor().floor, 2);
  h.pass(5000);
  assert.equal(
    h.take().map(({ offset, attempt }) => [offset, attempt]),
    [[2, 2]],
  );
  assert.is(code(h.ack(got[2])), "lease_lost");
});

test("G7: a nack past the deadline sets the wait and counts no second attempt", () => {
  const h = new LeaseHarness();
  h.member(1, { group: { backoffMs: 5000 } });
  h.publish({});
  const [got] = h.take();
  h.pass(1000);
  assert.is(h.nack(got, { delayMs: 100 }), null);
  h.pass(99);
  assert.equal(h.take(), []);
  h.pass(1);
  assert.is(h.take()[0].attempt, 2);
});

test("G7: an extension past the deadline takes the attempt back, and the lease goes on", () => {
  const h = new LeaseHarness();
  h.member(1, { slots: 1, group: { backoffMs: 5000 } });
  h.publishMany(2);
  const [got] = h.take();
  h.pass(1000);
  assert.equal(h.offsets(), [1]);
  assert.is(h.extend(got, 2000), null);
  h.pass(1999);
  h.publish({});
  assert.equal(h.offsets(), []);
  h.pass(1);
  h.pass(5000);
  assert.is(h.take().find(({ offset }) => offset === 0)?.attempt, 2);
});

test("G7: an ack without a lease counts for the member that holds the event, for others it is stale", () => {
  const h = new LeaseHarness();
  h.member(1);
  h.member(2);
  h.publish({});
  const [got] = h.take();
  const other = got.member === 1 ? 2 : 1;
  assert.is(h.ack(got, { member: other, named: false }), "stale");
  assert.is(h.cursor().floor, 0);
  assert.is(h.ack(got, { named: false }), null);
  assert.is(h.cursor().floor, 1);
});

test("G7: a repeated ack is stale, with its lease and without", () => {
  const h = new LeaseHarness();
  h.member(1);
  h.publishMany(3);
  const got = h.take();
  h.ack(got[0]);
  h.ack(got[2]);
  assert.equal([h.ack(got[0]), h.ack(got[2]), h.ack(got[0], { named: false })], ["stale", "stale", "stale"]);
  assert.is(h.total("events_acked_total"), 2);
  assert.is(code(h.ack({ ...got[0], lease: leaseText(h.epoch, 999) })), "lease_lost");
});

test("G7: a repeated ack waits for the commit of the first", () => {
  const h = new LeaseHarness();
  h.member(1);
  h.publish({});
  const [got] = h.take();
  h.holdCommits = true;
  const entries = [{ id: got.id, ack: true, lease: got.lease }];
  const refs = [h.send({ type: "settle", member: 1, entries }), h.send({ type: "settle", member: 1, entries })];
  assert.equal(
    refs.map((ref) => h.answers.has(ref)),
    [false, false],
  );
  h.commit();
  assert.equal(
    refs.map((ref) => h.answers.get(ref)),
    [{ results: null }, { results: ["stale"] }],
  );
});

test("G7: a lease that was nacked or given up is over", () => {
  const h = new LeaseHarness();
  h.member(1, { group: { backoffMs: 5000 } });
  h.publishMany(2);
  const got = h.take();
  h.nack(got[0]);
  assert.is(code(h.ack(got[0])), "lease_lost");
  assert.is(h.ack(got[0], { named: false }), "stale");
  h.leave(1);
  assert.is(code(h.ack(got[1])), "lease_lost");
});

test("G7: an id counts only if the record at its place has it", () => {
  const h = new LeaseHarness();
  h.member(1);
  h.publish({}, { id: "mine" });
  const [made, own] = h.take();
  assert.is(made.id, h.idOf(0));
  const { storedAt, salt } = h.blocks[0];
  const forged = [
    makeId(storedAt + 1, 0, partitionOf(stream), salt),
    makeId(storedAt, 0, partitionOf(stream) + 1, salt),
    makeId(storedAt, 0, partitionOf(stream), salt + 1),
    makeId(storedAt, 1, partitionOf(stream), salt),
    makeId(storedAt, 77, partitionOf(stream), salt),
    "nobody's",
  ];
  for (const id of forged) {
    const result = h.ack({ ...made, id }, { named: false });
    // The place of `mine` also makes an id, and it names the same record.
    if (id === forged[3]) assert.is(result, null);
    else assert.is(result, "stale");
  }
  assert.is(h.ack({ ...made, id: forged[0] }) && code(h.ack({ ...made, id: forged[0] })), "lease_lost");
  assert.is(h.cursor().floor, 0);
  assert.is(h.ack(own, { named: false }), "stale");
});

test("G7: an event under an id of the publisher's own is acked by it", () => {
  const h = new LeaseHarness();
  h.member(1, { format: "batch" });
  h.publish({ id: "a" }, { id: "b", key: "k" }, { key: "k" });
  const got = h.take();
  assert.equal(got.map(({ id }) => id).slice(0, 2), ["a", "b"]);
  assert.is(h.ack(got[1], { named: false }), null);
  assert.is(h.nack(got[0]), null);
  assert.is(h.ack(got[1]), "stale");
  assert.equal(h.cursor().ranges, [[1, 2]]);
  assert.is(h.take()[0].id, "a");
});

test("G7: of two events under one id, stored a dedupe window apart, the one that the lease is on is settled", () => {
  const h = new LeaseHarness();
  h.member(1);
  h.publish({ id: "a" }, {}, { id: "a" });
  const [first, , second] = h.take();
  assert.is(h.ack(first), null);
  assert.is(h.cursor().floor, 1);
  assert.is(h.ack(second), null);
  assert.equal(h.cursor().ranges, [[2, 3]]);
  assert.is(h.ack(first), "stale");
});

test("G7: without a lease, of two events under one id the one that the member holds is settled", () => {
  const h = new LeaseHarness();
  h.member(1, { slots: 1 });
  h.member(2, { slots: 1 });
  h.publish({ id: "a" }, { id: "a" });
  const [first, second] = h.take();
  assert.equal([first.member, second.member], [1, 2]);
  assert.is(h.extend(first, 5000, false), null);
  assert.is(h.ack(first, { named: false }), null);
  assert.is(h.cursor().floor, 1);
  assert.is(h.ack(second, { named: false }), null);
  assert.is(h.cursor().floor, 2);
});

test("G7: without a lease, all events under one id that the member holds are meant", () => {
  const h = new LeaseHarness();
  h.member(1, { slots: 2 });
  h.member(2, { slots: 2 });
  h.publish({ id: "a" }, { id: "a" }, { id: "b" }, { id: "a" });
  const [first, second] = h.take();
  h.pass(900);
  assert.is(h.extend(second, 500, false), null);
  h.pass(499);
  // The two that were extended live on, the others have come again.
  const [, foreign] = h.take();
  assert.equal([first.member, second.member, foreign.member, foreign.offset], [1, 1, 2, 3]);
  assert.is(h.ack(second, { named: false }), null);
  assert.is(h.cursor().floor, 2);
  assert.is(h.ack(first, { named: false }), "stale");
  assert.is(h.ack(foreign, { named: false }), null);
  assert.equal(h.cursor().ranges, [[3, 4]]);
});

test("G7: a lease of before a crash never counts after it", () => {
  const h = new LeaseHarness();
  h.member(1);
  h.publish({});
  const [before] = h.take();
  h.restart();
  h.member(1);
  const [after] = h.take();
  assert.is(before.token, after.token);
  assert.is(code(h.ack(before)), "lease_lost");
  assert.is(h.ack(after), null);
});

test("MODACK extends from now, never redelivers, and says what it does not know", () => {
  const h = new LeaseHarness();
  h.member(1);
  h.publish({});
  const [got] = h.take();
  h.pass(900);
  assert.is(h.extend(got, 500), null);
  h.pass(499);
  assert.equal(h.take(), []);
  assert.is(h.extend(got, 100, false), null);
  h.pass(99);
  assert.equal(h.take(), []);
  h.pass(1);
  assert.is(h.take()[0].attempt, 2);
  assert.is(code(h.extend({ ...got, id: "unknown" }, 100)), "unknown_id");
  assert.is(code(h.extend(got, 100, false, 77)), "unknown_id");
});

test("MODACK can shorten a lease", () => {
  const h = new LeaseHarness();
  h.member(1);
  h.publish({});
  h.extend(h.take()[0], 10);
  h.pass(10);
  assert.is(h.take()[0].attempt, 2);
});

test("MODACK again and again leaves one timer entry", () => {
  const h = new LeaseHarness();
  h.member(1);
  h.publishMany(2);
  const got = h.take();
  for (let i = 0; i < 2000; i++) h.extend(got[i % 2], 100_000 - i * 7);
  const { deadlines } = (h.actor as unknown as { ledger: { deadlines: { entryCount: number } } }).ledger;
  assert.ok(deadlines.entryCount < 150, `${deadlines.entryCount} entries for two leases`);
});

// ------------------------------------------------------------------------------------------------------------------ runs

test("runs settle what they name and report the rest cut to what was lost", () => {
  const h = new LeaseHarness();
  h.member(1, { format: "batch", slots: 10 });
  h.publishMany(10);
  const got = h.take();
  h.nack(got[4]);
  h.take();
  const run = { offset: 0, count: 10, epoch: h.epoch, token: got[0].token };
  const settle = { type: "settleRuns", member: 1, verb: "ack", runs: [run] } as const;
  assert.equal(h.ask(settle), { lost: [{ offset: 4, count: 1, epoch: h.epoch, token: got[4].token }] });
  assert.is(h.cursor().floor, 4);
  assert.equal(h.cursor().ranges, [[5, 10]]);
  // Again: what these leases settled is no news, what was lost still is.
  assert.equal(h.ask(settle), { lost: [{ offset: 4, count: 1, epoch: h.epoch, token: got[4].token }] });
  const wrong = { ...run, epoch: h.epoch + 1 };
  assert.equal(h.ask({ ...settle, runs: [wrong] }), { lost: [wrong] });
  assert.equal(h.ask({ ...settle, runs: [{ ...run, offset: 50, token: 0 }] }), {
    lost: [{ ...run, offset: 50, token: 0 }],
  });
});

test("a run under token 0 settles nothing, whatever waits there", () => {
  const h = new LeaseHarness();
  h.member(1, { slots: 1 });
  h.publish({});
  h.nack(h.take()[0], { delayMs: 5000 });
  const run = { offset: 0, count: 1, epoch: h.epoch, token: 0 };
  assert.equal(h.ask({ type: "settleRuns", member: 1, verb: "ack", runs: [run] }), { lost: [run] });
  assert.equal(h.ask({ type: "extendRuns", member: 1, extendMs: 5, runs: [run] }), { lost: [run] });
  assert.is(code(h.settle(1, { id: h.idOf(0), ack: true, lease: leaseText(h.epoch, 0) })[0]), "lease_lost");
  assert.is(h.cursor().floor, 0);
});

test("runs of acks in any order move the floor over all that is settled", () => {
  const h = new LeaseHarness();
  h.member(1, { format: "batch" });
  h.publishMany(10);
  const token = h.take()[0].token;
  const runs = [
    [6, 2],
    [0, 3],
    [5, 1],
    [3, 2],
  ].map(([offset, count]) => ({ offset, count, epoch: h.epoch, token: token + offset }));
  assert.equal(h.ask({ type: "settleRuns", member: 1, verb: "ack", runs }), { lost: [] });
  assert.is(h.cursor().floor, 8);
  assert.equal(h.cursor().ranges, []);
});

test("runs of nacks come again after the delay, runs of extensions last longer", () => {
  const h = new LeaseHarness();
  h.member(1, { format: "batch" });
  h.publishMany(6);
  const token = h.take()[0].token;
  const run = (offset: number, count: number) => ({ offset, count, epoch: h.epoch, token: token + offset });
  h.ask({ type: "settleRuns", member: 1, verb: "nack", delayMs: 100, runs: [run(0, 2)] });
  h.ask({ type: "extendRuns", member: 1, extendMs: 3000, runs: [run(4, 2)] });
  h.pass(100);
  assert.equal(
    h.take().map(({ offset, attempt }) => [offset, attempt]),
    [
      [0, 2],
      [1, 2],
    ],
  );
  h.pass(900);
  assert.equal(h.offsets(), [2, 3]);
  h.pass(2000);
  assert.ok(h.offsets().includes(4));
});

// ------------------------------------------------------------------------------------------------------------------ joins

test("the start position counts only for a group without a cursor", () => {
  const at = (from: Parameters<LeaseHarness["join"]>[1]) => {
    const h = new LeaseHarness();
    for (let i = 0; i < 6; i++) {
      h.publish({});
      h.pass(10);
    }
    h.trim(2);
    const { resumed, floor, end } = h.join(1, from);
    assert.equal([resumed, end], [false, 6]);
    h.leave(1);
    const again = h.join(2, { from: { kind: "earliest" } });
    assert.equal([again.resumed, again.floor], [true, floor]);
    h.restart();
    const restarted = h.join(3, { from: { kind: "latest" } });
    assert.equal([restarted.resumed, restarted.floor], [true, floor]);
    return floor;
  };
  assert.is(at({ from: { kind: "latest" } }), 6);
  assert.is(at({ from: { kind: "earliest" } }), 2);
  assert.is(at({ from: { kind: "offset", offset: 4 } }), 4);
  assert.is(at({ from: { kind: "offset", offset: 1 } }), 2);
  assert.is(at({ from: { kind: "offset", offset: 99 } }), 6);
  assert.is(at({ from: { kind: "ts", ts: 1_700_000_000_035 } }), 4);
  assert.is(at({ from: { kind: "ts", ts: 1_800_000_000_000 } }), 6);
});

test("a start position is durable before its OK", () => {
  const h = new LeaseHarness();
  h.publish({});
  h.holdCommits = true;
  const ref = h.send(h.joinMessage(1));
  assert.is(h.answers.has(ref), false);
  h.commit();
  assert.is((h.answers.get(ref) as Joined).floor, 0);
  assert.ok(h.entries.has(groupKey) && h.entries.has(cursorKey));
});

test("joins that wait for a time are answered when it is found, and the first decides", () => {
  const h = new LeaseHarness();
  h.publish({});
  h.pass(10);
  h.publish({});
  h.delayReads = true;
  const refs = [1, 2].map((n) => h.send(h.joinMessage(n, { from: { kind: "ts", ts: h.wall - (n === 1 ? 0 : 1e6) } })));
  const finds = h.finds.splice(0);
  assert.is(finds.length, 2);
  assert.equal(
    refs.map((ref) => h.answers.has(ref)),
    [false, false],
  );
  for (const find of finds) h.answerFind(find);
  const joined = refs.map((ref) => h.answers.get(ref) as Joined);
  assert.equal(
    joined.map(({ resumed, floor }) => [resumed, floor]),
    [
      [false, 1],
      [true, 1],
    ],
  );
});

test("a member that leaves while its join waits is not there afterwards", () => {
  const h = new LeaseHarness();
  h.publish({});
  h.delayReads = true;
  const ref = h.send(h.joinMessage(1, { from: { kind: "ts", ts: 0 } }));
  const [find] = h.finds;
  h.leave(1);
  assert.is(code(h.answers.get(ref)), "not_subscribed");
  h.answerFind(find);
  assert.is(h.entries.has(groupKey), false);
});

test("a time that cannot be looked up fails the join", () => {
  const h = new LeaseHarness();
  h.delayReads = true;
  const ref = h.send(h.joinMessage(1, { from: { kind: "ts", ts: 0 } }));
  h.tell({ type: "readFailed", tag: h.finds[0].tag, failure: { code: "unavailable", msg: "no disk" } });
  assert.is(code(h.answers.get(ref)), "unavailable");
});

test("options: omitted ones inherit, explicit attempts and backoff replace", () => {
  const h = new LeaseHarness();
  const first = h.join(1, { group: { maxAttempts: 3, filter: { key: "a" } } });
  assert.equal(first.options, {
    maxAttempts: 3,
    backoffMs: 0,
    ordering: "none",
    filter: { key: "a" },
    ephemeral: false,
  } satisfies GroupOptions);
  assert.equal(h.join(2).options, first.options);
  assert.equal(h.join(3, { group: { maxAttempts: 7, backoffMs: [1, 2] } }).options, {
    ...first.options,
    maxAttempts: 7,
    backoffMs: [1, 2],
  });
  h.restart();
  assert.equal(h.join(4).options, { ...first.options, maxAttempts: 7, backoffMs: [1, 2] });
});

test("options: attempts default to the topic's setting, then the node's", () => {
  assert.is(new LeaseHarness().join(1).options.maxAttempts, 5);
  const settings = { maxAttempts: 9 };
  const topic = { id: 7, name: "orders", shards: [0, 0, 0, 2], settings, status: "live", createdAt: 0 } as const;
  assert.is(new LeaseHarness({ record: topic }).join(1).options.maxAttempts, 9);
});

test("options: another filter or ordering conflicts while others are live, and replaces when nobody is", () => {
  const h = new LeaseHarness();
  h.join(1, { group: { filter: { tags: ["b", "a"] } } });
  assert.is(code(h.join(2, { group: { filter: { key: "x" } } })), "group_conflict");
  assert.is(code(h.join(2, { group: { filter: null } })), "group_conflict");
  assert.is(code(h.join(2, { group: { ordering: "key" } })), "group_conflict");
  assert.is(code(h.join(2, { group: { filter: { tags: ["a", "b"] }, ordering: "none" } })), undefined);
  h.leave(2);
  assert.is(h.join(1, { group: { ordering: "key" } }).options.ordering, "key");
  h.leave(1);
  assert.equal(h.join(3, { group: { filter: { key: "x" } } }).options.filter, { key: "x" });
});

test("options: a rejoin takes them as stored and never conflicts", () => {
  const h = new LeaseHarness();
  h.join(1, { group: { filter: { key: "a" }, maxAttempts: 2 } });
  const again = h.join(2, { rejoin: true, group: { filter: { key: "b" }, maxAttempts: 9 } });
  assert.equal([again.options.filter, again.options.maxAttempts], [{ key: "a" }, 2]);
});

test("a replaced filter looks at what was not settled, not at what was", () => {
  const h = new LeaseHarness();
  h.member(1, { group: { filter: { key: "a" } } });
  h.publishMany(4, (n) => ({ key: n % 2 === 0 ? "a" : "b" }));
  assert.equal(h.offsets(), [0, 2]);
  h.leave(1, "unsubscribe", 0);
  h.publishMany(2, () => ({ key: "b" }));
  h.member(2, { group: { filter: null } });
  assert.equal(h.offsets(), [0, 2, 4, 5]);
});

test("a replaced filter while something is being read loses nothing", () => {
  const h = new LeaseHarness();
  h.publish({});
  h.publish({});
  h.member(1, { slots: 3 });
  h.delayReads = true;
  h.publish({});
  const old = h.reads.splice(0);
  assert.equal(
    old.map(({ from }) => from),
    [2],
  );
  h.leave(1, "unsubscribe", 0);
  h.take();
  h.member(2, { group: { ordering: "key" } });
  h.reads.unshift(...old);
  h.answerReads();
  assert.equal(h.offsets(), [0, 1, 2]);
  assert.is(h.total("events_skipped_total"), 0);
});

test("a repeated join of the same member replaces it", () => {
  const h = new LeaseHarness();
  h.member(1, { slots: 3 });
  h.publishMany(5);
  assert.equal(h.offsets(), [0, 1, 2]);
  h.tell({ type: "flow", member: 1, open: true, stalled: false, written: 1 });
  h.join(1);
  assert.equal(h.offsets(), []);
  h.grant(1);
  assert.equal(
    h
      .take()
      .map(({ offset, attempt }) => [offset, attempt])
      .sort(),
    [
      [0, 2],
      [1, 1],
      [2, 1],
      [3, 1],
      [4, 1],
    ],
  );
  assert.is(h.cursor().members, 1);
});

test("past the most groups a topic may have, a join is refused", () => {
  const h = new LeaseHarness({ limits: { groupsPerTopicMax: 2 } });
  for (const group of ["a", "b"]) h.entries.set(entryKeys.group(stream, group), new Uint8Array(2));
  assert.is(code(h.join(1)), "limit");
  h.entries.delete(entryKeys.group(stream, "a"));
  assert.is(h.join(1).resumed, false);
});

test("a group of a topic that is not known here answers so", () => {
  const h = new LeaseHarness({ record: null });
  assert.is(code(h.join(1)), "unknown_topic");
});

// ------------------------------------------------------------------------------------------------------------- ephemeral

test("an ephemeral group dies with its last member", () => {
  const h = new LeaseHarness();
  h.member(1, { group: { ephemeral: true } });
  h.member(2);
  h.publish({});
  h.leave(1);
  assert.ok(h.entries.has(groupKey));
  h.leave(2, "unsubscribe");
  assert.equal([h.entries.has(groupKey), h.entries.has(cursorKey), h.stopped], [false, false, 1]);
});

test("an ephemeral group outlives a shutdown for 30 s, time for its members to come back", () => {
  for (const comesBack of [true, false]) {
    const h = new LeaseHarness();
    h.publish({});
    h.member(1, { group: { ephemeral: true } });
    h.leave(1, "shutdown");
    h.restart();
    h.pass(29_999);
    assert.ok(h.entries.has(groupKey));
    if (comesBack) {
      assert.is(h.join(2, { rejoin: true }).resumed, true);
      h.leave(2, "shutdown");
    }
    h.pass(10);
    assert.is(h.entries.has(groupKey), comesBack);
  }
});

test("a durable group stays when everybody leaves, and nobody can make it ephemeral", () => {
  const h = new LeaseHarness();
  h.publish({});
  h.member(1);
  assert.is(h.join(2, { group: { ephemeral: true } }).options.ephemeral, false);
  h.leave(1);
  h.leave(2);
  h.pass(60_000);
  assert.ok(h.entries.has(groupKey));
});

// ---------------------------------------------------------------------------------------------------- cursor, seek, removal

test("the cursor names the event below the floor and what is open", () => {
  const h = new LeaseHarness();
  assert.is(h.cursor().exists, false);
  h.publish({}, { id: "mine", ts: 1234 }, {}, {}, {}, {});
  h.member(1, { slots: 4, group: { backoffMs: 500 } });
  const got = h.take();
  for (const n of [0, 1, 3]) h.ack(got[n]);
  h.nack(got[2]);
  assert.equal(h.cursor(), {
    exists: true,
    floor: 2,
    ranges: [[3, 4]],
    start: 0,
    end: 6,
    lag: 3,
    leased: 2,
    waiting: 1,
    members: 1,
    lastId: "mine",
    lastTs: 1234,
  } satisfies CursorState);
});

test("a cursor whose event cannot be read is answered without it", () => {
  const h = new LeaseHarness();
  h.publish({});
  h.member(1);
  h.ack(h.take()[0]);
  h.failRead();
  assert.equal([h.cursor().floor, h.cursor().lastId === undefined], [1, false]);
  h.failRead();
  assert.is(h.cursor().lastId, undefined);
});

test("a seek replaces the floor, clears attempts and ranges, and voids leases, durably before its OK", () => {
  const h = new LeaseHarness();
  h.member(1, { slots: 5 });
  h.publishMany(5);
  const got = h.take();
  h.nack(got[0], { delayMs: 0 });
  h.take();
  h.ack(got[1]);
  h.ack(got[3]);
  h.holdCommits = true;
  const ref = h.send({ type: "seek", to: { kind: "offset", offset: 1 } });
  assert.is(h.answers.has(ref), false);
  h.commit();
  const state = h.answers.get(ref) as CursorState;
  assert.equal([state.floor, state.ranges], [1, []]);
  assert.is(code(h.ack(got[2])), "lease_lost");
  h.commit();
  const again = h.take();
  assert.equal(
    again.map(({ offset, attempt }) => [offset, attempt]),
    [
      [1, 1],
      [2, 1],
      [3, 1],
      [4, 1],
    ],
  );
  h.holdCommits = false;
  h.restart();
  assert.is(h.cursor().floor, 1);
});

test("a seek to earliest, latest and a time", () => {
  const h = new LeaseHarness();
  for (let i = 0; i < 4; i++) {
    h.publish({});
    h.pass(10);
  }
  h.member(1);
  const seek = (to: Parameters<LeaseHarness["joinMessage"]>[1] & object) =>
    h.ask<CursorState>({ type: "seek", to: to.from! }).floor;
  assert.is(seek({ from: { kind: "latest" } }), 4);
  assert.is(seek({ from: { kind: "earliest" } }), 0);
  assert.is(seek({ from: { kind: "ts", ts: 1_700_000_000_020 } }), 2);
});

test("a seek while something is being read does not deliver what was read for the old position", () => {
  const h = new LeaseHarness();
  h.publishMany(4);
  h.delayReads = true;
  h.member(1);
  const old = h.reads.splice(0);
  h.ask({ type: "seek", to: { kind: "latest" } });
  h.reads.push(...old);
  h.answerReads();
  assert.equal(h.offsets(), []);
  h.delayReads = false;
  assert.is(h.cursor().lag, 0);
});

test("a seek on a group that is not there makes it", () => {
  const h = new LeaseHarness();
  h.publishMany(3);
  assert.is(h.ask<CursorState>({ type: "seek", to: { kind: "offset", offset: 2 } }).exists, true);
  assert.equal(entryValue<{ floor: number }>(h.entries.get(cursorKey)!), { floor: 2 });
  h.member(1);
  assert.equal(h.offsets(), [2]);
});

test("a removed group tells its members, is gone durably, and can be made anew", () => {
  const h = new LeaseHarness();
  h.member(1);
  h.publishMany(2);
  h.ack(h.take()[0]);
  assert.is(h.ask({ type: "dropGroup" }), null);
  assert.equal(
    h.takeSignals("ended").map(({ member, failure }) => [member, failure.code]),
    [[1, "unknown_topic"]],
  );
  assert.equal([h.entries.has(groupKey), h.entries.has(cursorKey), h.stopped], [false, false, 1]);
  assert.is(h.join(2).resumed, false);
});

test("a group is not made behind the end of its partition", () => {
  const h = new LeaseHarness();
  h.publishMany(2);
  h.delayReads = true;
  const joining = h.send(h.joinMessage(1, { from: { kind: "ts", ts: 0 } }));
  h.entries.delete(entryKeys.partition(stream));
  h.answerFind(h.finds[0]);
  assert.is(code(h.answers.get(joining)), "unknown_topic");
  assert.equal([h.entries.has(groupKey), h.entries.has(cursorKey)], [false, false]);
});

test("a cell that was only asked about a group that is not there stops", () => {
  const h = new LeaseHarness();
  h.cursor();
  h.tell({ type: "grant", member: 1, slots: 1, tokens: 1, bytes: 1 });
  assert.is(h.stopped, 2);
});

// ----------------------------------------------------------------------------------------------------------------- timers

test("the timer is set when the earliest time becomes earlier, not with every lease", () => {
  const h = new LeaseHarness();
  h.member(1);
  h.wakes.length = 0;
  for (let i = 0; i < 50; i++) {
    h.publish({});
    h.ack(h.take()[0]);
    h.pass(10);
  }
  assert.equal(h.wakes, [11_000]);
  h.publish({});
  h.extend(h.take()[0], 5);
  assert.equal(h.wakes.slice(1), [h.mono + 5]);
});

test("an idle group has no timer", () => {
  const h = new LeaseHarness();
  h.member(1);
  h.publish({});
  h.ack(h.take()[0]);
  h.pass(5000);
  assert.is(h.wakeAt, undefined);
});

test("numbers for the operator", () => {
  const h = new LeaseHarness();
  h.publish({ meta: '{"headers":{"t0":"1699999999000"}}' }, {}, {}, {});
  h.member(1, { slots: 3, group: { backoffMs: 100_000 } });
  const got = h.take();
  h.pass(30);
  h.ack(got[0]);
  h.ack(got[1]);
  h.nack(got[2]);
  h.pass(5);
  const totals = ["delivered", "acked", "nacked", "redelivered", "expired", "dead_lettered", "filtered", "skipped"];
  assert.equal(
    totals.map((name) => h.total(`events_${name}_total`)),
    [4, 2, 1, 0, 0, 0, 0, 0],
  );
  assert.equal(
    ["ws_inflight", "group_lag", "group_waiting", "group_members", "oldest_lease_ms", "group_full"].map((name) =>
      h.total(name),
    ),
    [1, 2, 1, 1, 5, 0],
  );
  const { bounds, counts, sum } = h.sample("delivery_latency_ms").value as {
    bounds: number[];
    counts: number[];
    sum: number;
  };
  assert.is(bounds.length, counts.length - 1);
  assert.equal([counts[bounds.indexOf(50)], counts[bounds.indexOf(2500)], sum], [1, 1, 30 + 1030]);
  assert.equal(h.sample("ws_inflight").labels, { topic: "orders", group: "g" });
});

test.run();
