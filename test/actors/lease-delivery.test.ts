// What members get and when: credits, turns, frames, events delivered alone, filters and order by key.

import { test } from "uvu";
import * as assert from "uvu/assert";
import { decodeServerBatch } from "../../src/protocol/batch.ts";
import { parseLease } from "../../src/protocol/lease.ts";
import { deadRecord, type Got, LeaseHarness } from "../support/lease-harness.ts";

function pairs(got: readonly Got[]): [number, number][] {
  return got.map(({ offset, attempt }): [number, number] => [offset, attempt]).sort((a, b) => a[0] - b[0]);
}

function wants(h: LeaseHarness): unknown[] {
  return h.takeSignals("want").map(({ member, slots, tokens, bytes }) => [member, slots, tokens, bytes]);
}

// --------------------------------------------------------------------------------------------------------------- credits

test("nothing is delivered before the first grant, and the table says what it wants, once", () => {
  const h = new LeaseHarness();
  h.join(1);
  assert.equal(wants(h), []);
  h.publishMany(2);
  h.publishMany(2);
  assert.equal(h.offsets(), []);
  assert.equal(wants(h), [[1, true, true, true]]);
});

test("slots bound the leases at a time, and a settled event frees its slot in place", () => {
  const h = new LeaseHarness();
  h.member(1, { slots: 2 });
  h.publishMany(5);
  const got = h.take();
  assert.equal(
    got.map(({ offset }) => offset),
    [0, 1],
  );
  h.ack(got[1]);
  assert.equal(h.offsets(), [2]);
  h.nack(got[0], { delayMs: 100 });
  assert.equal(h.offsets(), [3]);
});

test("tokens bound the deliveries and are used up, whatever is settled", () => {
  const h = new LeaseHarness();
  h.member(1, { tokens: 3 });
  h.publishMany(5);
  for (const got of h.take()) h.ack(got);
  assert.equal(h.offsets(), []);
  assert.equal(wants(h), [[1, false, true, false]]);
  h.grant(1, 0, 0.5, 0);
  assert.equal(h.offsets(), []);
  assert.equal(wants(h), [[1, false, true, false]]);
  h.grant(1, 0, 0.5, 0);
  assert.equal(h.offsets(), [3]);
});

test("bytes bound the frames; the last event may overdraw them", () => {
  for (const format of ["json", "batch"] as const) {
    const h = new LeaseHarness();
    h.member(1, { bytes: 2500, format });
    h.publishMany(10, () => ({ payload: "x".repeat(1000) }));
    const got = h.take();
    assert.ok(got.length === 2 || got.length === 3, `${got.length} events in ${format}`);
    if (format === "batch") assert.equal([got.length, h.frames[0].frames], [3, 1]);
    const spent = h.frames.reduce((sum, { bytes }) => sum + bytes, 0);
    assert.ok(spent >= 2500 && spent < 3800, `${spent} bytes`);
    h.ack(got[0]);
    assert.equal(h.offsets(), []);
    assert.equal(wants(h), [[1, false, false, true]]);
    h.grant(1, 0, 0, spent - 2500 + 1);
    assert.is(h.offsets().length, 1, format);
  }
});

test("one event larger than all credit is delivered", () => {
  for (const format of ["json", "batch"] as const) {
    const h = new LeaseHarness();
    h.member(1, { bytes: 1, format });
    h.publish({ payload: "x".repeat(100_000) }, {});
    assert.equal(h.offsets(), [0]);
  }
});

test("a credit that runs out after another was asked for is asked for as well", () => {
  const h = new LeaseHarness();
  h.member(1, { slots: 2, tokens: 3 });
  h.publishMany(9);
  assert.equal(wants(h), [[1, true, false, false]]);
  const got = h.take();
  h.ack(got[0]);
  assert.equal([h.offsets(), wants(h)], [[2], [[1, true, true, false]]]);
  h.ack(got[1]);
  assert.equal([h.offsets(), wants(h)], [[], []]);
  h.grant(1, 0, 0, 1);
  assert.equal(wants(h), [[1, false, true, false]]);
});

test("a paused member gets nothing new and asks for nothing, its leases keep running", () => {
  const h = new LeaseHarness();
  h.member(1, { slots: 1 });
  h.publishMany(2);
  h.takeSignals("want");
  const [got] = h.take();
  h.tell({ type: "flow", member: 1, open: false, stalled: false, written: 1 });
  h.ack(got);
  h.publish({});
  assert.equal([h.offsets(), wants(h)], [[], []]);
  h.tell({ type: "flow", member: 1, open: true, stalled: false, written: 1 });
  assert.equal(h.offsets(), [1]);
});

test("recalled slots are given back, free ones at once and held ones as they become free", () => {
  const h = new LeaseHarness();
  h.member(1, { slots: 4 });
  h.publishMany(3);
  const got = h.take();
  h.tell({ type: "recall", member: 1, slots: 3 });
  const released = () => h.takeSignals("release").map(({ member, slots }) => [member, slots]);
  assert.equal(released(), [[1, 1]]);
  h.publishMany(5);
  h.ack(got[0]);
  assert.equal([released(), h.offsets()], [[[1, 1]], []]);
  h.nack(got[1]);
  assert.equal([released(), h.offsets()], [[[1, 1]], []]);
  h.ack(got[2]);
  assert.equal([released(), h.offsets()], [[], [1]]);
});

// ----------------------------------------------------------------------------------------------------------------- turns

test("members take turns of batchSize events", () => {
  const h = new LeaseHarness();
  h.member(1, { batchSize: 2, slots: 6 });
  h.member(2, { batchSize: 3, slots: 6 });
  h.publishMany(10);
  assert.equal(
    [h.offsets(1), h.offsets(2)],
    [
      [0, 1, 5, 6],
      [2, 3, 4, 7, 8, 9],
    ],
  );
});

test("single events go around", () => {
  const h = new LeaseHarness();
  for (const n of [1, 2, 3]) h.member(n);
  for (let i = 0; i < 6; i++) h.publish({});
  assert.equal(
    [h.offsets(1), h.offsets(2), h.offsets(3)].map((offsets) => offsets.length),
    [2, 2, 2],
  );
});

test("a member without credit is passed over and does not hold the others up", () => {
  const h = new LeaseHarness();
  h.member(1, { slots: 1, batchSize: 10 });
  h.member(2, { batchSize: 10 });
  h.publishMany(50);
  assert.is(h.offsets(2).length, 49);
});

// ---------------------------------------------------------------------------------------------------------------- frames

test("a text frame is the EVENT of the seeds with its context", () => {
  const h = new LeaseHarness();
  h.member(1, { ackTimeoutMs: 30_000, group: { maxAttempts: 4 } });
  h.publish({ payload: { ä: "☃" }, key: "ké", meta: '{"headers":{"a":"é"},"tags":["t"]}', ts: 77 });
  const [signal] = h.takeSignals("events");
  const [got] = h.take();
  assert.is(signal.binary, false);
  assert.equal(JSON.parse(new TextDecoder().decode(signal.frames)), {
    op: "EVENT",
    topic: "orders",
    group: "g",
    event: {
      id: h.idOf(0),
      ts: 77,
      topic: "orders",
      partition: 3,
      offset: 0,
      key: "ké",
      headers: { a: "é" },
      tags: ["t"],
      payload: { ä: "☃" },
    },
    ctx: { attempt: 1, max_attempts: 4, ack_deadline_ms: 30_000, lease: got.lease },
  });
  assert.equal(parseLease(got.lease), { epoch: h.epoch, token: got.token });
});

test("a batch frame is one run: one block, consecutive offsets and tokens, one attempt, at most batchSize events", () => {
  const h = new LeaseHarness();
  h.append({}, {}, {}, {}, {});
  h.append({}, {});
  h.tell({ type: "advanced", end: 7 });
  h.member(1, { format: "batch", batchSize: 3 });
  const [signal] = h.takeSignals("events");
  const runs: unknown[] = [];
  let from = 0;
  for (const to of signal.ends) {
    const frame = decodeServerBatch(signal.frames.subarray(from, to));
    if ("code" in frame || frame.op !== "EVENTS") throw new Error("not EVENTS");
    runs.push([frame.firstOffset, frame.pack.count, frame.attempt, frame.maxAttempts, frame.ackDeadlineMs]);
    from = to;
  }
  assert.equal([signal.count, signal.ends.length], [7, runs.length]);
  assert.equal(runs, [
    [0, 3, 1, 5, 1000],
    [3, 2, 1, 5, 1000],
    [5, 1, 1, 5, 1000],
    [6, 1, 1, 5, 1000],
  ]);
  assert.equal(
    h.take().map(({ payload }) => payload),
    [0, 1, 2, 3, 4, 5, 6].map((n) => ({ n })),
  );
});

test("events that come again with other attempts are not in one run", () => {
  const h = new LeaseHarness();
  h.member(1, { format: "batch" });
  h.publishMany(4);
  h.nack(h.take()[1]);
  h.take();
  h.leave(1, "disconnect");
  h.member(2, { format: "batch" });
  const got = h.take();
  assert.equal(pairs(got), [
    [0, 2],
    [1, 3],
    [2, 2],
    [3, 2],
  ]);
  assert.is(h.frames.at(-1)?.frames, 3);
});

test("all frames of one member in one turn are one signal", () => {
  const h = new LeaseHarness();
  h.member(1, { batchSize: 1 });
  h.member(2, { batchSize: 1, format: "batch" });
  h.publishMany(6);
  assert.equal(
    h.takeSignals("events").map(({ member, count, ends }) => [member, count, ends.length]),
    [
      [1, 3, 3],
      [2, 3, 3],
    ],
  );
});

test("no more is read than members can take", () => {
  const h = new LeaseHarness();
  h.delayReads = true;
  h.member(1, { slots: 1 });
  h.publishMany(50, () => ({ payload: "x".repeat(1000) }));
  assert.is(h.reads.length, 1);
  assert.ok(h.reads[0].bytesMax <= 4096, `${h.reads[0].bytesMax}`);
  h.answerReads();
  assert.is(h.reads.length, 0);
  h.leave(1);
  h.join(2);
  assert.is(h.reads.length, 0);
  h.grant(2, 1000);
  const reads = () => h.reads.map(({ from, bytesMax }) => [from, bytesMax > 4096]);
  assert.equal(reads(), [[0, false]], "what comes again goes first");
  h.answerReads();
  assert.equal(reads(), [[1, true]]);
});

// ----------------------------------------------------------------------------------------------------------------- alone

/** Events 0, 1, 2 lost two of three leases by disconnect. */
function suspects(): LeaseHarness {
  const h = new LeaseHarness();
  h.member(1, { group: { maxAttempts: 3 } });
  h.publishMany(3);
  h.leave(1);
  h.member(2);
  h.leave(2);
  h.take();
  return h;
}

test("G6: after disconnects the last attempt is delivered alone, one event at a time", () => {
  const h = suspects();
  h.publishMany(2);
  h.member(3);
  const alone = h.take();
  assert.equal(pairs(alone), [[0, 3]]);
  h.publish({});
  assert.equal(h.offsets(), []);
  h.ack(alone[0]);
  const next = h.take();
  assert.equal(pairs(next), [[1, 3]]);
  h.ack(next[0]);
  h.ack(h.take()[0]);
  assert.equal(pairs(h.take()), [
    [3, 1],
    [4, 1],
    [5, 1],
  ]);
});

test("G6: a poison event that takes every member down goes to the dead letters without its neighbours", () => {
  const h = suspects();
  h.member(3);
  assert.equal(pairs(h.take()), [[0, 3]]);
  h.leave(3);
  assert.is(h.buried.length, 1);
  h.member(4);
  const [harmless] = h.take();
  assert.equal([harmless.offset, harmless.attempt], [1, 3]);
  h.ack(harmless);
  h.ack(h.take()[0]);
  assert.is(h.cursor().floor, 3);
  assert.is(h.total("events_dead_lettered_total"), 1);
});

/** Event 0 must be delivered alone; members 2 and 3 hold three and two others. */
function busy(): { h: LeaseHarness; held: Got[] } {
  const h = new LeaseHarness();
  h.member(1, { group: { maxAttempts: 2 } });
  h.publish({});
  h.take();
  h.tell({ type: "flow", member: 1, open: false, stalled: false, written: 1 });
  h.member(2, { batchSize: 1 });
  h.member(3, { batchSize: 1 });
  h.publishMany(5);
  const held = h.take();
  assert.equal(held.map(({ member }) => member).sort(), [2, 2, 2, 3, 3]);
  h.leave(1);
  return { h, held };
}

test("G6: the least busy member is emptied first and then gets the event alone, while others go on", () => {
  const { h, held } = busy();
  h.publishMany(4);
  assert.equal(
    h.take().map(({ member }) => member),
    [2, 2, 2, 2],
  );
  const [first, second] = held.filter(({ member }) => member === 3);
  h.ack(first);
  h.publish({});
  assert.equal(
    h.take().map(({ member }) => member),
    [2],
  );
  h.ack(second);
  assert.equal(
    h.take().map(({ member, offset, attempt }) => [member, offset, attempt]),
    [[3, 0, 2]],
  );
});

test("G6: a member that is idle need not wait for a busy one to be emptied", () => {
  const { h } = busy();
  assert.equal(h.take(), []);
  h.member(4);
  assert.equal(
    h.take().map(({ member, offset, attempt }) => [member, offset, attempt]),
    [[4, 0, 2]],
  );
});

test("G6: an event to be delivered alone is not given to a busy member when the idle one leaves meanwhile", () => {
  const { h } = busy();
  h.delayReads = true;
  h.member(4);
  assert.is(h.reads.length, 1);
  h.leave(4);
  h.answerReads();
  assert.equal(h.take(), []);
});

test("G6: attempts that ended otherwise are not delivered alone", () => {
  const h = new LeaseHarness();
  h.member(1, { group: { maxAttempts: 2 } });
  h.publishMany(3);
  h.pass(1000);
  assert.equal(pairs(h.take()).slice(-3), [
    [1, 2],
    [2, 1],
    [2, 2],
  ]);
});

test("G6: whether attempts ended by disconnect survives a restart", () => {
  const h = suspects();
  h.restart();
  h.member(5);
  assert.equal(pairs(h.take()), [[0, 3]]);
});

test("a member that should get an event alone and pauses is replaced", () => {
  const h = suspects();
  h.join(3);
  h.tell({ type: "flow", member: 3, open: false, stalled: false, written: 0 });
  h.member(4);
  assert.equal(
    h.take().map(({ member, offset }) => [member, offset]),
    [[4, 0]],
  );
});

// ---------------------------------------------------------------------------------------------------------------- filter

test("what a filter does not match settles silently and is counted, and the floor moves", () => {
  const h = new LeaseHarness();
  h.member(1, { group: { filter: { key: "a" } } });
  h.publishMany(3, () => ({ key: "b" }));
  assert.equal([h.offsets(), h.cursor().floor], [[], 3]);
  h.publish({ key: "b" }, { key: "a" }, {}, { key: "a" });
  const got = h.take();
  assert.equal(
    got.map(({ offset }) => offset),
    [4, 6],
  );
  assert.is(h.total("events_filtered_total"), 5);
  h.restart();
  assert.equal([h.cursor().floor, h.cursor().ranges], [4, [[5, 6]]]);
});

test("a filter by prefix, tags, headers and sid takes what has all of it", () => {
  const meta = (value: object) => ({ meta: JSON.stringify(value) });
  const events = [
    { key: "user-1", ...meta({ sid: "s", headers: { a: "1", b: "2" }, tags: ["x", "y"] }) },
    { key: "user-2", ...meta({ headers: { a: "1" }, tags: ["x"] }) },
    { key: "order-1", ...meta({ sid: "s", tags: ["y", "x", "z"] }) },
    {},
  ];
  const matching = (filter: object) => {
    const h = new LeaseHarness();
    h.member(1, { group: { filter } });
    h.publish(...events);
    return h.offsets();
  };
  assert.equal(matching({ keyPrefix: "user" }), [0, 1]);
  assert.equal(matching({ tags: ["x", "y"] }), [0, 2]);
  assert.equal(matching({ headers: { a: "1", b: "2" } }), [0]);
  assert.equal(matching({ sid: "s" }), [0, 2]);
  assert.equal(matching({ sid: "s", keyPrefix: "order" }), [2]);
  assert.equal(matching({ headers: { toString: "x" } }), []);
});

test("a backlog that is filtered out is walked one read at a time", () => {
  const h = new LeaseHarness();
  h.delayReads = true;
  for (let i = 0; i < 5; i++)
    h.append(...Array.from({ length: 10 }, () => ({ key: "b", payload: "x".repeat(30_000) })));
  h.tell({ type: "advanced", end: 50 });
  h.member(1, { group: { filter: { key: "a" } } });
  const floors: number[] = [];
  while (h.reads.length > 0) {
    assert.is(h.reads.length, 1);
    h.answerReads();
    floors.push(50 - h.total("group_lag"));
  }
  assert.is(floors.at(-1), 50);
  assert.ok(floors.length > 2, `${floors}`);
});

// ----------------------------------------------------------------------------------------------------------------- order

test("ordering by key: one unsettled event of a key is out, the next follows when it is settled", () => {
  const h = new LeaseHarness();
  h.member(1, { group: { ordering: "key" } });
  h.publish({ key: "a" }, { key: "a" }, { key: "b" }, {}, { key: "a" }, {}, { key: "b" });
  const first = h.take();
  assert.equal(pairs(first), [
    [0, 1],
    [2, 1],
    [3, 1],
    [5, 1],
  ]);
  h.ack(first[0]);
  const second = h.take();
  assert.equal(pairs(second), [[1, 1]]);
  h.ack(second[0]);
  assert.equal(h.offsets(), [4]);
  h.ack(first[1]);
  assert.equal(h.offsets(), [6]);
});

test("ordering by key: what did not fit into the bytes is delivered later, not taken for blocked", () => {
  const h = new LeaseHarness();
  h.member(1, { group: { ordering: "key" }, bytes: 10, format: "batch" });
  h.publish({ key: "a" }, { key: "b" }, { key: "c" });
  assert.equal(h.offsets(), [0]);
  h.grant(1);
  assert.equal(h.offsets(), [1, 2]);
});

test("ordering by key: backoff and dying hold the key up", () => {
  const h = new LeaseHarness();
  h.deadLetterAnswer = undefined;
  h.member(1, { group: { ordering: "key", maxAttempts: 2 } });
  h.publish({ key: "a" }, { key: "a" });
  h.nack(h.take()[0], { delayMs: 300 });
  assert.equal(h.offsets(), []);
  h.pass(300);
  const [again] = h.take();
  assert.equal([again.offset, again.attempt], [0, 2]);
  h.nack(again);
  assert.equal(h.offsets(), []);
  h.tell({ type: "answer", tag: h.asks[0].tag, answer: deadRecord });
  assert.equal(h.offsets(), [1]);
});

test("ordering by key holds over a restart", () => {
  const h = new LeaseHarness();
  h.member(1, { group: { ordering: "key" } });
  h.publish({ key: "a" }, { key: "b" }, { key: "a" }, { key: "b" });
  const [a, b] = h.take();
  h.nack(a, { delayMs: 10_000 });
  h.ack(b);
  assert.equal(h.offsets(), [3]);
  h.restart({ downMs: 4000 });
  h.member(2, { ackTimeoutMs: 60_000 });
  assert.equal(pairs(h.take()), [[3, 1]]);
  h.pass(5999);
  assert.equal(h.take(), []);
  h.pass(1);
  const [again] = h.take();
  assert.equal([again.offset, again.attempt], [0, 2]);
  h.ack(again);
  assert.equal(pairs(h.take()), [[2, 1]]);
});

test("ordering by key: what retention takes from the front of a line lets the next one go", () => {
  const h = new LeaseHarness();
  h.member(1, { group: { ordering: "key" } });
  for (let i = 0; i < 4; i++) h.publish({ key: "a" });
  assert.equal(h.offsets(), [0]);
  h.trim(2);
  assert.equal(h.offsets(), [2]);
});

test("ordering by key: blocked events are bounded by the most unsettled ones", () => {
  const h = new LeaseHarness({ limits: { unsettledMax: 5 } });
  h.member(1, { group: { ordering: "key" } });
  h.publishMany(20, (n) => ({ key: n < 10 ? "a" : `k${n}` }));
  assert.equal(h.offsets(), [0]);
  assert.is(h.total("group_waiting"), 4);
});

test("ordering by key can be taken up and given up while nobody is there", () => {
  const h = new LeaseHarness();
  h.member(1, { group: { ordering: "key" } });
  h.publishMany(3, () => ({ key: "a" }));
  assert.equal(h.offsets(), [0]);
  h.leave(1, "unsubscribe", 0);
  h.member(2, { group: { ordering: "none" } });
  assert.equal(h.offsets(), [0, 1, 2]);
  h.leave(2, "unsubscribe", 0);
  h.member(3, { group: { ordering: "key" } });
  assert.equal(h.offsets(), [0]);
});

test.run();
