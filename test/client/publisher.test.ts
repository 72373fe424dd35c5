// What a client publishes, against a node that the test plays: which batches leave, under which names, and what becomes of each call.

import { test } from "uvu";
import * as assert from "uvu/assert";
import type { PublishOptions } from "../../src/bus/event-bus.ts";
import { ClosedError, NarthexError } from "../../src/client/errors.ts";
import { Publisher, type PublisherOptions } from "../../src/client/publisher.ts";
import type { Code } from "../../src/protocol/failure.ts";
import { makeId } from "../../src/protocol/ids.ts";
import { jumpHash } from "../../src/protocol/jump-hash.ts";
import { clientClockOf, ManualClock, settle } from "../support/fake-dial.ts";
import { type Asked, FakeLink } from "../support/fake-link.ts";

/** What became of a call: pending, `partition:offset`, or a code. */
type Fate = { now: string };

function stage(options: Partial<PublisherOptions> = {}) {
  const clock = new ManualClock();
  const publisher = new Publisher({
    clock: clientClockOf(clock),
    publishTimeoutMs: 60_000,
    pendingEventsMax: 10_000,
    pendingBytesMax: 10_000_000,
    ...options,
  });
  const link = new FakeLink();
  publisher.connected(link);
  const call = (payload: unknown, more: PublishOptions = {}, topic = "t"): Fate => {
    const fate = { now: "pending" };
    publisher.publish(topic, payload, more).then(
      ({ partition, offset }) => {
        fate.now = `${partition}:${offset}`;
      },
      (error: NarthexError) => {
        fate.now = error.code;
      },
    );
    return fate;
  };
  /** Calls with these payloads, in one turn. */
  const turn = (...payloads: unknown[]): Fate[] => {
    const fates = payloads.map((payload) => call(payload));
    clock.turn();
    return fates;
  };
  const reconnect = (partitions = 1): FakeLink => {
    publisher.lost();
    const next = new FakeLink();
    publisher.connected(next);
    for (const open of next.opens) open.ok(partitions);
    return next;
  };
  return { clock, publisher, link, call, turn, reconnect };
}

/** With the topic `t` open. */
function opened(partitions = 1, options: Partial<PublisherOptions> = {}) {
  const parts = stage(options);
  parts.turn("first");
  parts.link.opens[0].ok(partitions);
  parts.link.batches[0].store(0);
  parts.link.batches.length = 0;
  return parts;
}

async function fatesOf(fates: readonly Fate[]): Promise<string[]> {
  await settle();
  return fates.map(({ now }) => now);
}

function sent(batches: readonly Asked[]): [string, unknown[]][] {
  return batches.map(({ name, payloads }) => [name, [...payloads]]);
}

async function errorOf(promise: Promise<unknown>): Promise<NarthexError> {
  return promise.then(
    () => assert.unreachable("it resolved") as never,
    (error: NarthexError) => error,
  );
}

// ------------------------------------------------------------------------------------------------------------- what leaves

test("calls wait for the topic to be opened, those of one turn are one batch, and the next one is chained to it", async () => {
  const { link, turn } = stage();
  const fates = [...turn(1, 2), ...turn(3)];
  assert.equal([link.opens.map(({ topic }) => topic), link.batches.length], [["t"], 0]);
  link.opens[0].ok();
  fates.push(...turn(4), ...turn(5));
  assert.equal(sent(link.batches), [
    ["0", [1, 2, 3]],
    ["1+", [4]],
    ["2+", [5]],
  ]);
  for (const [i, asked] of link.batches.entries()) asked.store(10 * i);
  assert.equal(await fatesOf(fates), ["0:0", "0:1", "0:2", "0:10", "0:20"]);
  turn(6);
  assert.equal(link.batches[3].name, "3", "nothing is before it, so it is chained to nothing");
  assert.is(link.opens.length, 1);
});

test("the result is the event as it is stored", async () => {
  const { publisher, link, clock } = opened(4);
  const payload = { n: 1 };
  const results = [
    publisher.publish("t", payload, { key: "k", sid: "s", headers: { a: "b" }, tags: [], caused_by: ["x"], ts: 7 }),
    publisher.publish("t", "é", { key: "k", timeoutMs: 500 }),
  ];
  clock.turn();
  const partition = jumpHash("k", 4);
  assert.is(link.batches[0].batch.batch?.partition, partition);
  link.batches[0].store(5);
  const [first, second] = await Promise.all(results);
  assert.equal(first, {
    id: makeId(1000, 5, partition, 1),
    ts: 7,
    topic: "t",
    partition,
    offset: 5,
    key: "k",
    sid: "s",
    headers: { a: "b" },
    caused_by: ["x"],
    payload: { n: 1 },
    durability: "fsync",
  });
  assert.is(first.payload, payload);
  assert.equal([second.ts, second.offset, second.id], [1000, 6, makeId(1000, 6, partition, 1)]);
  const { pack } = link.batches[0].batch;
  assert.equal(pack.extension(0), { key: "k", ts: 7, meta: '{"sid":"s","headers":{"a":"b"},"caused_by":["x"]}' });
});

test("an id of one's own that was stored before is a duplicate with the ts of the first; a batch sent again is not", async () => {
  const { publisher, link, clock, reconnect } = opened();
  const own = publisher.publish("t", 1, { id: "order:1", ts: 5 });
  clock.turn();
  link.batches[0].store(3, { status: "duplicate", storedAt: 4 });
  const { id, ts, offset, duplicate } = await own;
  assert.equal([id, ts, offset, duplicate], ["order:1", 4, 3, true]);
  const again = publisher.publish("t", 2);
  clock.turn();
  link.drop();
  const next = reconnect();
  next.batches[0].store(4, { status: "duplicate" });
  assert.equal(Object.keys(await again), ["id", "ts", "topic", "partition", "offset", "payload", "durability"]);
});

test("at most four batches are under way, the rest gathers until one is answered", async () => {
  const { link, turn } = opened();
  for (let n = 0; n < 10; n++) turn(n);
  assert.equal(
    sent(link.batches).map(([, payloads]) => payloads),
    [[0], [1], [2], [3]],
  );
  link.batches[0].store(1);
  assert.equal(sent(link.batches).at(-1), ["5+", [4, 5, 6, 7, 8, 9]]);
});

test("while a slow socket has much to send, one batch is under way", () => {
  const { link, turn } = opened();
  link.unsent = 2_000_000;
  turn(1);
  turn(2);
  assert.equal(sent(link.batches), [["1", [1]]]);
  link.batches[0].store(1);
  assert.equal(sent(link.batches.slice(1)), [["2", [2]]]);
  link.unsent = 0;
  turn(3);
  assert.equal(sent(link.batches.slice(2)), [["3+", [3]]]);
});

test("a batch is cut at 1000 events, at 256 KiB, below the frame of the node, and where ids begin or end", () => {
  const sizes = (link: FakeLink) => link.batches.map(({ payloads }) => payloads.length);
  const many = opened();
  many.turn(...Array.from({ length: 2500 }, (_, n) => n));
  assert.equal(sizes(many.link), [1000, 1000, 500]);
  const large = opened();
  large.turn(...Array.from({ length: 5 }, () => "x".repeat(100 * 1024)));
  large.turn("y".repeat(1024 * 1024 - 2));
  assert.equal(sizes(large.link), [2, 2, 1, 1]);
  const narrow = opened();
  narrow.link.maxFrame = 40_000;
  narrow.turn(...Array.from({ length: 5 }, () => "é".repeat(4000)));
  assert.equal(sizes(narrow.link), [2, 2, 1]);
  for (const { bytes } of narrow.link.batches) assert.ok(bytes.length <= 40_000);
  // Ids count, and what is a little too large all the same goes in halves.
  const longIds = opened();
  longIds.link.maxFrame = 8000;
  const ids = Array.from({ length: 40 }, (_, n) => `${n}`.padStart(120, "a"));
  for (const id of ids) longIds.call(1, { id });
  longIds.clock.turn();
  assert.equal(sizes(longIds.link), [16, 16, 8]);
  const tiny = opened();
  tiny.link.maxFrame = 400;
  const digits = Array.from({ length: 100 }, (_, n) => n % 10);
  tiny.turn(...digits);
  assert.equal(sizes(tiny.link), [50, 50]);
  assert.equal(
    tiny.link.batches.flatMap(({ payloads }) => payloads),
    digits,
  );
  const named = opened();
  for (const id of ["a", "b", undefined, "c"]) named.call(id ?? "none", id === undefined ? {} : { id });
  named.clock.turn();
  assert.equal(sent(named.link.batches), [
    ["1", ["a", "b"]],
    ["2+", ["none"]],
    ["3+", ["c"]],
  ]);
});

test("a key or an id decides the lane, others take turns, and each lane has a producer of its own", () => {
  const { link, call, clock } = opened(4);
  const keys = Array.from({ length: 20 }, (_, n) => `key-${n}`);
  for (const key of keys) call(key, { key });
  for (const id of keys) call(id, { id });
  clock.turn();
  const producers = new Map<number, string>();
  for (const { batch, payloads } of link.batches) {
    const { partition, producer } = batch.batch ?? { producer: "" };
    assert.is(producers.get(partition as number) ?? producer, producer);
    producers.set(partition as number, producer);
    for (const key of payloads) assert.is(jumpHash(key as string, 4), partition);
    assert.is(link.batches.flatMap(({ payloads: all }) => all).length, 40);
  }
  assert.is(new Set(producers.values()).size, 4);
  for (const asked of [...link.batches]) asked.store(0);
  link.batches.length = 0;
  for (let n = 0; n < 4; n++) {
    call(n);
    call(-n);
    clock.turn();
  }
  assert.equal(link.batches.map(({ batch }) => batch.batch?.partition).sort(), [0, 1, 2, 3]);
  assert.equal(
    link.batches.map(({ payloads }) => payloads.length),
    [2, 2, 2, 2],
  );
});

// ---------------------------------------------------------------------------------------------------------- what is wrong

test("what is wrong with a call is said at once, by a rejection with its code", async () => {
  const { publisher, link } = opened();
  const cyclic: { self?: unknown } = {};
  cyclic.self = cyclic;
  let deep: unknown = 1;
  for (let n = 0; n < 65; n++) deep = [deep];
  const cases: [Code, RegExp, unknown[]][] = [
    ["bad_topic", /string/, [7, 1]],
    ["bad_topic", /200 characters/, ["t".repeat(201), 1]],
    ["bad_json", /undefined/, ["t", undefined]],
    ["bad_json", /function/, ["t", () => 1]],
    ["bad_json", /circular/, ["t", cyclic]],
    ["bad_json", /BigInt/, ["t", 1n]],
    ["bad_json", /deeper than 64/, ["t", deep]],
    ["bad_option", /key/, ["t", 1, { key: 7 }]],
    ["bad_option", /key/, ["t", 1, { key: "\ud800" }]],
    ["bad_option", /key/, ["t", 1, { key: "é".repeat(32_768) }]],
    ["bad_option", /id/, ["t", 1, { id: null }]],
    ["bad_option", /id/, ["t", 1, { id: "i".repeat(256) }]],
    ["bad_option", /ts/, ["t", 1, { ts: "1" }]],
    ["bad_option", /circular/, ["t", 1, { headers: cyclic }]],
    ["bad_option", /timeoutMs/, ["t", 1, { timeoutMs: 0 }]],
    ["bad_option", /timeoutMs/, ["t", 1, { timeoutMs: "5s" }]],
    ["bad_option", /timeoutMs/, ["t", 1, { timeoutMs: "50" }]],
    ["too_large", /1048576/, ["t", "x".repeat(1024 * 1024 - 1)]],
  ];
  for (const [code, text, args] of cases) {
    const error = await errorOf(publisher.publish(...(args as [string, unknown, PublishOptions])));
    assert.equal([error.code, error.name, error.retryable], [code, "RefusedError", false], String(text));
    assert.match(error.message, text);
  }
  assert.is(link.batches.length, 0);
  await publisher.idle();
});

test("what a node can read is for the node to refuse, and nobody beside it notices", async () => {
  const { link, call, clock } = opened();
  const wrong = [
    { kye: "k" },
    { key: "" },
    { id: "a b" },
    { ts: -1 },
    { headers: { a: 1 } },
    { headers: 0 },
    { tags: null },
  ];
  for (const options of wrong) {
    const fates = [call(1), call(2, options as unknown as PublishOptions), call(3)];
    clock.turn();
    for (let n = 0; n < 4; n++) {
      for (const batch of link.batches.splice(0)) batch.store(batch.payloads[0] as number);
      clock.advance(100);
    }
    assert.equal(await fatesOf(fates), ["0:1", "bad_option", "0:3"], JSON.stringify(options));
  }
  const elsewhere = call(1, {}, "t.dlq.g");
  clock.turn();
  link.opens[1].refuse("bad_topic");
  assert.equal(await fatesOf([elsewhere]), ["bad_topic"]);
});

test("options that are undefined are not given", async () => {
  const { publisher, link, clock } = opened();
  const given = { key: undefined, id: undefined, timeoutMs: undefined } as unknown as PublishOptions;
  const published = publisher.publish("t", 1, given);
  clock.turn();
  link.batches[0].store(1);
  assert.is((await published).offset, 1);
});

test("a payload that turns out to be too large in UTF-8 goes alone, and the others go on", async () => {
  const { link, turn } = opened();
  link.maxPayload = 100;
  const fates = turn(1, "é".repeat(50), 2);
  assert.equal(sent(link.batches), [["1", [1, 2]]]);
  link.batches[0].store(1);
  assert.equal(await fatesOf(fates), ["0:1", "too_large", "0:2"]);
});

test("an event that fits into no frame is refused and not sent", async () => {
  const { link, call, clock } = opened();
  link.maxFrame = 2000;
  const fates = [call("x".repeat(1970)), call(1)];
  clock.turn();
  link.batches[0].store(1);
  assert.equal([await fatesOf(fates), sent(link.batches)], [["too_large", "0:1"], [["1", [1]]]]);
});

test("more than may wait is refused, room says when to go on, and idle when all is answered", async () => {
  const { publisher, link, turn } = opened(1, { pendingEventsMax: 4 });
  await publisher.room();
  const fates = turn(1, 2, 3, 4, 5);
  const order: string[] = [];
  void publisher.room().then(() => order.push("room"));
  void publisher.idle().then(() => order.push("idle"));
  link.batches[0].store(1);
  assert.equal(await fatesOf(fates), ["0:1", "0:2", "0:3", "0:4", "client_full"]);
  assert.equal(order, ["room", "idle"]);
  const bytes = opened(1, { pendingBytesMax: 10 });
  const rest = bytes.turn("123456789", 2);
  const waits = bytes.publisher.room();
  assert.equal(await fatesOf(rest), ["pending", "client_full"]);
  bytes.link.batches[0].store(1);
  await waits;
  const named = opened(1, { pendingBytesMax: 10 });
  assert.equal(await fatesOf([named.call(1, { key: "a key of its own" }), named.call(2)]), ["pending", "client_full"]);
});

// -------------------------------------------------------------------------------------------------------------- refusals

for (const code of ["rate_limited", "overloaded", "publish_failed", "shutting_down"] as const) {
  test(`after ${code} everything comes again in order, once all under way is answered and the time is over`, async () => {
    const { link, turn, clock } = opened();
    const fates = [...turn(1), ...turn(2), ...turn(3)];
    link.batches[1].refuse("publish_failed");
    link.batches[0].refuse(code, 40);
    fates.push(...turn(4));
    clock.advance(1000);
    assert.is(link.batches.length, 3, "one is still under way");
    link.batches[2].refuse("publish_failed");
    clock.advance(39);
    assert.is(link.batches.length, 3, "it is not time yet");
    clock.advance(1);
    assert.equal(sent(link.batches.slice(3)), [["4", [1, 2, 3, 4]]]);
    link.batches[3].store(1);
    assert.equal(await fatesOf(fates), ["0:1", "0:2", "0:3", "0:4"]);
  });
}

test("without a time the pauses double, with chance in them, until something is stored", () => {
  const { link, turn, clock } = opened();
  const pauses: number[] = [];
  turn(1);
  for (let n = 0; n < 9; n++) {
    link.batches[n].refuse("overloaded");
    const began = clock.mono();
    while (link.batches.length === n + 1) clock.advance(1);
    pauses.push(clock.mono() - began);
  }
  for (const [n, pause] of pauses.entries()) {
    const most = Math.min(2000, 50 * 2 ** n);
    assert.ok(pause >= most / 2 && pause <= most, `${n}: ${pause}`);
  }
  link.batches[9].store(1);
  turn(2);
  link.batches[10].refuse("overloaded");
  clock.advance(50);
  assert.is(link.batches.length, 12);
});

test("what stands behind a refused batch but is stored stays stored, and what is new waits for the doubtful one", async () => {
  const { link, turn, clock } = opened();
  const fates = [...turn(1), ...turn(2), ...turn(3)];
  link.batches[0].refuse("unavailable");
  link.batches[1].store(2);
  fates.push(...turn(4));
  link.batches[2].store(3);
  clock.advance(50);
  assert.equal(sent(link.batches.slice(3)), [["1", [1]]], "under its name, and nothing can be chained to it");
  assert.equal(link.batches[3].bytes.subarray(8), link.batches[0].bytes.subarray(8));
  fates.push(...turn(5));
  link.batches[3].store(1, { status: "duplicate" });
  assert.equal(sent(link.batches.slice(4)), [["4", [4, 5]]]);
  link.batches[4].store(4);
  assert.equal(await fatesOf(fates), ["0:1", "0:2", "0:3", "0:4", "0:5"]);
});

test("unavailable: it may be stored, so it comes again under its name and with its bytes", async () => {
  const { link, turn, clock } = opened();
  const fates = [...turn(1, 2), ...turn(3)];
  for (const asked of link.batches) asked.refuse("unavailable");
  turn("behind");
  clock.advance(50);
  assert.equal(sent(link.batches.slice(2)), [
    ["1", [1, 2]],
    ["2+", [3]],
    ["3+", ["behind"]],
  ]);
  link.batches[2].store(1, { status: "duplicate" });
  link.batches[3].store(3);
  assert.equal(await fatesOf(fates), ["0:1", "0:2", "0:3"]);
});

test("of a batch that is refused for what is in it, each event goes alone and only the culprit is refused", async () => {
  const { link, turn, clock } = opened();
  const fates = [...turn(1, "bad", 3), ...turn(4)];
  link.batches[0].refuse("bad_json");
  link.batches[1].refuse("publish_failed");
  clock.advance(0);
  assert.equal(sent(link.batches.slice(2)), [
    ["3", [1]],
    ["4+", ["bad"]],
    ["5+", [3]],
    ["6+", [4]],
  ]);
  link.batches[2].store(1);
  link.batches[3].refuse("bad_json");
  link.batches[4].refuse("publish_failed");
  link.batches[5].refuse("publish_failed");
  clock.advance(50);
  assert.equal(sent(link.batches.slice(6)), [
    ["7", [3]],
    ["8+", [4]],
  ]);
  link.batches[6].store(2);
  link.batches[7].store(3);
  assert.equal(await fatesOf(fates), ["0:1", "bad_json", "0:2", "0:3"]);
});

test("a refusal for good rejects its batch, and those behind it come again", async () => {
  const { link, turn, clock } = opened();
  const fates = [...turn(1, 2), ...turn(3), ...turn(4)];
  link.batches[0].refuse("forbidden");
  link.batches[1].refuse("publish_failed");
  link.batches[2].refuse("publish_failed");
  clock.advance(50);
  assert.equal(sent(link.batches.slice(3)), [["4", [3, 4]]]);
  link.batches[3].store(1);
  assert.equal(await fatesOf(fates), ["forbidden", "forbidden", "0:1", "0:2"]);
});

test("what may be stored is not refused: a refusal of its second copy leaves its outcome unknown", async () => {
  for (const code of ["forbidden", "bad_json", "internal"] as const) {
    const { link, turn, reconnect } = opened();
    const fates = turn(1, 2);
    link.drop();
    reconnect().batches[0].refuse(code);
    assert.equal(await fatesOf(fates), ["unknown_outcome", "unknown_outcome"], code);
  }
});

// ----------------------------------------------------------------------------------------------------- lost connections

test("after a lost connection the same batches come first, in order, then what was called meanwhile", async () => {
  const { publisher, link, turn } = opened();
  const fates = [...turn(1), ...turn(2), ...turn(3)];
  link.batches[0].store(1);
  link.drop();
  publisher.lost();
  fates.push(...turn(4));
  const next = new FakeLink();
  publisher.connected(next);
  fates.push(...turn(5));
  assert.equal([next.batches.length, next.opens.length], [0, 1], "the topic is opened first");
  next.opens[0].ok(1, 9);
  assert.equal(sent(next.batches), [
    ["2", [2]],
    ["3+", [3]],
    ["4+", [4, 5]],
  ]);
  for (const [i, { batch, bytes }] of next.batches.slice(0, 2).entries()) {
    assert.is(batch.handle, 9);
    assert.equal(bytes.subarray(8), link.batches[i + 1].bytes.subarray(8), "not a byte of it has changed");
  }
  next.batches[0].store(2, { status: "duplicate" });
  next.batches[1].store(3);
  next.batches[2].store(4);
  assert.equal(await fatesOf(fates), ["0:1", "0:2", "0:3", "0:4", "0:5"]);
});

test("a connection that is lost while refusals are waited out", async () => {
  const { link, turn, reconnect, clock } = opened();
  const fates = [...turn(1), ...turn(2), ...turn(3)];
  link.batches[0].refuse("unavailable");
  link.batches[1].refuse("rate_limited", 5000);
  link.drop();
  const next = reconnect();
  assert.equal(sent(next.batches), [["1", [1]]], "only the first may be stored");
  next.batches[0].store(1);
  assert.equal(sent(next.batches.slice(1)), [["4", [2, 3]]]);
  next.batches[1].store(2);
  clock.advance(10_000);
  assert.equal([await fatesOf(fates), next.batches.length], [["0:1", "0:2", "0:3"], 2]);
});

test("a socket that dies at once, again and again", async () => {
  const { publisher, link, turn, reconnect } = opened();
  const fates = turn(1);
  link.drop();
  for (let n = 0; n < 5; n++) {
    publisher.lost();
    const dead = new FakeLink();
    dead.live = false;
    publisher.connected(dead);
  }
  const next = reconnect();
  assert.equal(sent(next.batches), [["1", [1]]]);
  next.batches[0].store(1);
  assert.equal(await fatesOf(fates), ["0:1"]);
});

// ----------------------------------------------------------------------------------------------------------------- topics

test("a topic that cannot be opened just now is tried again; one that cannot be opened rejects what waits for it", async () => {
  const { link, turn, clock } = stage();
  const fates = turn(1, 2);
  link.opens[0].refuse("overloaded", 30);
  clock.advance(30);
  link.opens[1].refuse("unavailable");
  clock.advance(100);
  link.opens[2].refuse("unknown_topic");
  assert.equal(await fatesOf(fates), ["unknown_topic", "unknown_topic"]);
  const later = turn(3);
  link.opens[3].ok();
  link.batches[0].store(0);
  assert.equal(await fatesOf(later), ["0:0"]);
});

test("unknown_topic: the topic is opened again once all is quiet, and everything goes on in its order", async () => {
  const { link, turn, clock } = opened();
  const fates = [...turn(1), ...turn(2)];
  link.batches[0].refuse("unknown_topic");
  fates.push(...turn(3));
  assert.is(link.opens.length, 1, "one is under way");
  link.batches[1].refuse("publish_failed");
  assert.is(link.opens.length, 2);
  link.opens[1].ok();
  assert.equal(sent(link.batches.slice(2)), [["3", [1, 2, 3]]]);
  link.batches[2].refuse("unknown_topic");
  clock.advance(0);
  assert.equal(await fatesOf(fates), ["unknown_topic", "unknown_topic", "unknown_topic"], "twice at once is enough");
  const later = turn(4);
  link.batches[3].store(0);
  const again = turn(5);
  link.batches[4].refuse("unknown_topic");
  link.opens[2].ok();
  link.batches[5].store(1);
  assert.equal(await fatesOf([...later, ...again]), ["0:0", "0:1"], "but later it may be opened again");
});

test("a topic with other partitions than before: what is not stored is laid out anew, what may be is not known", async () => {
  const { publisher, link, call, clock } = opened();
  const lost = call("in doubt", { key: "k0" });
  clock.turn();
  link.batches[0].refuse("unavailable");
  const fates = Array.from({ length: 12 }, (_, n) => call(n, { key: `k${n % 3}` }));
  clock.turn();
  link.drop();
  publisher.lost();
  const next = new FakeLink();
  publisher.connected(next);
  next.opens[0].ok(4);
  assert.equal(await fatesOf([lost]), ["unknown_outcome"]);
  const seen = new Map<number, unknown[]>();
  for (const { batch, payloads } of next.batches) {
    for (const n of payloads) assert.is(jumpHash(`k${(n as number) % 3}`, 4), batch.batch?.partition);
    seen.set(batch.batch?.partition as number, [...payloads]);
    assert.is(batch.batch?.seq, 0);
  }
  for (const payloads of seen.values())
    assert.equal(
      payloads,
      payloads.toSorted((a, b) => Number(a) - Number(b)),
    );
  assert.equal([...seen.values()].flat().length, 12);
  for (const asked of next.batches) asked.store(0);
  for (const fate of await fatesOf(fates)) assert.match(fate, /^\d:\d+$/);
});

test("unknown_topic on one lane waits for the others", async () => {
  const { link, call, clock } = opened(2);
  const keys = [0, 1].map((lane) => ["a", "b", "c", "d"].find((key) => jumpHash(key, 2) === lane) as string);
  const fates = keys.map((key) => call(key, { key }));
  clock.turn();
  const [first, second] = link.batches;
  first.refuse("unknown_topic");
  assert.is(link.opens.length, 1);
  second.store(7);
  assert.is(link.opens.length, 2);
  link.opens[1].ok(1);
  assert.equal(sent(link.batches.slice(2)), [["0", [...first.payloads]]], "only what was not stored comes again");
  link.batches[2].store(0);
  const partition = second.batch.batch?.partition;
  assert.equal((await fatesOf(fates)).sort(), ["0:0", `${partition}:7`].sort());
});

// ------------------------------------------------------------------------------------------------------------------- time

test("an event that was not sent in time, or surely not stored, times out; of one under way nobody knows", async () => {
  const { publisher, link, turn, clock } = opened();
  const flying = turn("flying");
  clock.advance(59_999);
  assert.equal(await fatesOf(flying), ["pending"]);
  clock.advance(1);
  assert.equal(await fatesOf(flying), ["unknown_outcome"]);
  const refused = turn("refused");
  assert.equal(sent(link.batches), [
    ["1", ["flying"]],
    ["2+", ["refused"]],
  ]);
  link.batches[0].refuse("rate_limited", 1);
  link.batches[1].refuse("publish_failed");
  clock.advance(1);
  assert.equal(sent(link.batches.slice(2)), [["3", ["refused"]]], "what has its answer is not sent again");
  link.batches[2].refuse("rate_limited", 100_000);
  clock.advance(60_000);
  assert.equal(await fatesOf(refused), ["timeout"]);
  publisher.lost();
  const unsent = turn("unsent");
  clock.advance(60_000);
  assert.equal(await fatesOf(unsent), ["timeout"]);
  await publisher.idle();
});

test("each call may have its own time, and one timer sees to all of them", async () => {
  const { publisher, call, clock } = stage();
  publisher.lost();
  const fates = [300, 100, 200].map((timeoutMs) => call(timeoutMs, { timeoutMs }));
  clock.turn();
  assert.is(clock.timerCount, 1);
  const seen: string[][] = [];
  for (let n = 0; n < 3; n++) {
    clock.advance(100);
    seen.push(await fatesOf(fates));
  }
  assert.equal(seen, [
    ["pending", "timeout", "pending"],
    ["pending", "timeout", "timeout"],
    ["timeout", "timeout", "timeout"],
  ]);
  assert.is(clock.timerCount, 0);
});

test("what was first sent 100 s ago is not sent again", async () => {
  const { link, call, clock, reconnect } = opened();
  const old = call("old", { timeoutMs: 1_000_000 });
  clock.turn();
  link.drop();
  clock.advance(50_000);
  const second = reconnect();
  assert.equal(sent(second.batches), [["1", ["old"]]]);
  const young = call("young", { timeoutMs: 1_000_000 });
  clock.turn();
  second.drop();
  clock.advance(50_000);
  const third = reconnect();
  assert.equal(sent(third.batches), [["2", ["young"]]]);
  third.batches[0].store(1);
  assert.equal(await fatesOf([old, young]), ["unknown_outcome", "0:1"]);
});

test("a closed client rejects everything, sent or not, and every call from then on", async () => {
  const { publisher, link, turn, call, clock } = opened();
  const fates = [...turn(1), ...turn(2), ...turn(3), ...turn(4), ...turn(5), call(6, {}, "other")];
  const idle = publisher.idle();
  publisher.fail(new ClosedError("closed", "closed"));
  link.drop();
  assert.equal(
    await fatesOf(fates),
    fates.map(() => "closed"),
  );
  await idle;
  assert.equal(await fatesOf([call(7)]), ["closed"]);
  clock.turn();
  assert.is(clock.timerCount, 0);
  assert.ok((await errorOf(publisher.publish("t", 1))) instanceof NarthexError);
});

test.run();
