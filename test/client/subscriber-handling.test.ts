// From EVENTS frames to handlers and loops, and from their end to acks.

import { test } from "uvu";
import * as assert from "uvu/assert";
import type { Context, Delivery, EventRecord, Subscription } from "../../src/bus/event-bus.ts";
import { LeaseLostError, type NarthexError } from "../../src/client/errors.ts";
import { makeId } from "../../src/protocol/ids.ts";
import { raw, runsText, SubscriberStage } from "../support/fake-connection.ts";

const storedAt = 1_760_000_000_000;

async function staged(options: Parameters<SubscriberStage["subscribe"]>[1] = {}) {
  const stage = new SubscriberStage();
  const connection = stage.connect();
  const subscription = await stage.subscribe(undefined, options);
  return { stage, connection, subscription };
}

async function looping(options: Parameters<SubscriberStage["loop"]>[0] = {}) {
  const stage = new SubscriberStage();
  const connection = stage.connect();
  const subscription = await stage.loop(options);
  return { stage, connection, subscription };
}

// ------------------------------------------------------------------------------------------------------------------ events

test("an event has all that was published with it, and a context", async () => {
  const { stage, connection } = await staged();
  const meta = '{"sid":"s1","headers":{"h":"v"},"tags":["eu"],"caused_by":["x:1"]}';
  connection.events([{ n: 1 }, raw('"é"', { key: "k", id: "own:1", ts: 17, meta }), raw("7", { key: "k2" })], {
    offset: 5,
    partition: 3,
    attempt: 2,
    maxAttempts: 9,
    epoch: 4,
    token: 100,
    ackDeadlineMs: 1234,
  });
  const position = { topic: "orders", partition: 3 };
  assert.equal(
    stage.runs.map(({ event }) => event),
    [
      { id: makeId(storedAt, 5, 3, 7), ts: storedAt, ...position, offset: 5, payload: { n: 1 } },
      {
        id: "own:1",
        ts: 17,
        ...position,
        offset: 6,
        key: "k",
        sid: "s1",
        headers: { h: "v" },
        tags: ["eu"],
        caused_by: ["x:1"],
        payload: "é",
      },
      { id: makeId(storedAt, 7, 3, 7), ts: storedAt, ...position, offset: 7, key: "k2", payload: 7 },
    ],
  );
  const { topic, group, attempt, maxAttempts, ackDeadlineMs, lease, signal } = stage.runs[1].ctx;
  assert.equal(
    { topic, group, attempt, maxAttempts, ackDeadlineMs, lease },
    { topic: "orders", group: "billing", attempt: 2, maxAttempts: 9, ackDeadlineMs: 1234, lease: "4-101" },
  );
  assert.not(signal.aborted);
});

test("a payload that looks like two does not shift its neighbours, and one that is none is nacked and told", async () => {
  const { stage, connection } = await staged();
  connection.events([raw("1"), raw("7,8"), raw("2")]);
  assert.equal(stage.payloads(), [1, 2]);
  await stage.turns();
  const { frame } = connection.question("NACK");
  assert.is(frame.id, makeId(storedAt, 1, 0, 7));
  assert.is(frame.lease, "1-2");
  assert.is(stage.errors.length, 1);
  assert.instance(stage.errors[0], SyntaxError);
});

test("a payload is read when its handler starts, not before", async () => {
  const { stage, connection } = await staged({ concurrency: 1 });
  connection.events([raw("1"), raw("nonsense"), raw("2")]);
  assert.equal(stage.errors, []);
  stage.runs[0].end();
  await stage.turns();
  assert.is(stage.errors.length, 1);
  assert.equal(stage.payloads(), [1, 2]);
});

// ---------------------------------------------------------------------------------------------------------------- handlers

test("what handlers resolve or return is acked, of one turn in one frame and in runs", async () => {
  const { stage, connection } = await staged();
  connection.events([0, 1, 2, 3], { offset: 10 });
  connection.events([4, 5], { offset: 14, token: 50 });
  connection.events([6], { offset: 9, token: 51, attempt: 2 });
  connection.events([7], { offset: 16, token: 52, epoch: 2, partition: 2 });
  connection.events([8], { offset: 0, token: 9, partition: 1 });
  for (const i of [3, 0, 1, 5, 4, 6, 8]) stage.runs[i].end();
  await stage.turns();
  assert.equal(connection.asked, ["SUBSCRIBE", "ack"]);
  assert.equal(runsText(connection.question("ack")), [
    "0:9+1 1-51",
    "0:10+2 1-11",
    "0:13+1 1-14",
    "0:14+2 1-50",
    "1:0+1 1-9",
  ]);
  connection.ok("ack");
  stage.runs[7].end();
  await stage.turns();
  assert.equal(runsText(connection.question("ack")), ["2:16+1 2-52"]);
});

test("a handler that returns no promise is acked as well", async () => {
  const stage = new SubscriberStage();
  const connection = stage.connect();
  const seen: unknown[] = [];
  await stage.subscribe((event) => void seen.push(event.payload));
  connection.events([1, 2, 3]);
  assert.equal(seen, [1, 2, 3]);
  await stage.turns();
  assert.equal(runsText(connection.question("ack")), ["0:0+3 1-1"]);
});

test("handlers that take their time without a promise let acks and extensions out in between", async () => {
  const stage = new SubscriberStage();
  const connection = stage.connect();
  const seen: unknown[] = [];
  await stage.subscribe((event) => {
    seen.push(event.payload);
    stage.clock.monoMs += 15;
  });
  connection.events([1, 2, 3, 4, 5]);
  assert.equal(seen, [1, 2]);
  stage.clock.turn();
  assert.equal(runsText(connection.question("ack")), ["0:0+2 1-1"]);
  await stage.turns();
  assert.equal(seen, [1, 2, 3, 4, 5]);
});

test("leases of two epochs are two runs, however they are numbered", async () => {
  const { stage, connection } = await staged();
  connection.events([0], { token: 5 });
  stage.runs[0].end();
  await Promise.resolve();
  connection.events([1], { offset: 1, token: 6, epoch: 2 });
  stage.runs[1].end();
  await stage.turns();
  assert.equal(connection.open.flatMap(runsText), ["0:0+1 1-5", "0:1+1 2-6"]);
});

test("one SETTLE has at most 10,000 leases", async () => {
  const stage = new SubscriberStage();
  const connection = stage.connect();
  await stage.subscribe(() => undefined);
  connection.events(
    Array.from({ length: 10_001 }, (_, i) => i),
    { offset: 0 },
  );
  await stage.turns();
  const counts = connection.open.map((question) => runsText(question));
  assert.equal(counts, [["0:0+10000 1-1"], ["0:10000+1 1-10001"]]);
});

test("one SETTLE fits into a frame of the node, also if each lease stands alone", async () => {
  const { stage, connection } = await staged();
  connection.maxFrame = 16 + 3 * 32;
  connection.events([0, 1, 2, 3, 4, 5, 6, 7, 8]);
  for (const i of [0, 2, 4, 6, 8]) stage.runs[i].end();
  await stage.turns();
  assert.equal(
    connection.open.map((question) => runsText(question)),
    [
      ["0:0+1 1-1", "0:2+1 1-3", "0:4+1 1-5"],
      ["0:6+1 1-7", "0:8+1 1-9"],
    ],
  );
});

test("whatever is thrown becomes the text of a reason, and the handler has ended", async () => {
  const { stage, connection, subscription } = await staged();
  const silent = {
    get message() {
      throw new Error("not even that");
    },
  };
  const thrown = [{ message: 5 }, null, undefined, "text", Object.assign(new Error(), { message: { a: 1 } }), silent];
  connection.events(thrown.map((_, i) => i));
  for (const [i, one] of thrown.entries()) stage.runs[i].fail(one);
  await stage.turns();
  assert.equal(
    connection.open.map(({ frame }) => frame.reason),
    ["5", "null", "undefined", "text", "[object Object]", "an error that has no text"],
  );
  for (const question of connection.open) connection.ok(question);
  await subscription.close();
});

test("a reason that is no text is made one, and a time that has no place in a frame is refused", async () => {
  const { stage, connection } = await staged({ manualAck: true });
  connection.events([1, 2, 3]);
  const [one, two, three] = stage.runs.map(({ ctx }) => ctx);
  void one.nack(new Error("no stock") as never);
  void two.nack(5n as never);
  assert.is((await three.nack(undefined, 2 ** 32 + 5)).err, "bad_option");
  assert.is((await three.nack(undefined, 5n as never)).err, "bad_option");
  void three.nack(null as never, 5);
  const { subscriber } = stage;
  assert.is((await subscriber.settle("nack", "orders", "billing", "x", { ms: -1 })).err, "bad_option");
  assert.is((await subscriber.settle("ack", "orders", "billing", 5n as never)).err, "bad_option");
  void subscriber.settle("nack", "orders", "billing", "x", { reason: 6n as never });
  await stage.turns();
  assert.equal(
    connection.open.map(({ op, frame, settle }) => [op, frame.reason ?? settle?.ms]),
    [
      ["NACK", "no stock"],
      ["NACK", "5"],
      ["NACK", "6"],
      ["nack", 5],
    ],
  );
});

test("what a handler throws or rejects with is the reason of a nack, and told with the event", async () => {
  const stage = new SubscriberStage();
  const connection = stage.connect();
  const told: [string, unknown][] = [];
  const thrown = [new Error("no stock"), "plain", Object.create(null) as object, new Error("x".repeat(5000))];
  await stage.subscribe(
    (event) => {
      const error = thrown[event.payload as number];
      if (event.payload === 0) throw error;
      return Promise.reject(error);
    },
    { onError: (error, event) => void told.push([error.message, event?.payload]) },
  );
  connection.events([0, 1, 2, 3]);
  await stage.turns();
  const nacks = connection.open.map(({ op, frame }) => [op, frame.lease, String(frame.reason).length]);
  assert.equal(nacks, [
    ["NACK", "1-1", "no stock".length],
    ["NACK", "1-2", "plain".length],
    ["NACK", "1-3", told[2][0].length],
    ["NACK", "1-4", 1024],
  ]);
  assert.equal(
    told.map(([, payload]) => payload),
    [0, 1, 2, 3],
  );
  assert.is(told[0][0], "no stock");
});

test("an error without words is nacked in a SETTLE", async () => {
  const { stage, connection } = await staged();
  connection.events([1, 2]);
  for (const run of stage.runs) run.fail(new Error(""));
  await stage.turns();
  assert.equal(runsText(connection.question("nack")), ["0:0+2 1-1"]);
  assert.is(connection.question("nack").settle?.ms, undefined);
});

for (const [how, onError] of Object.entries({
  throws: () => {
    throw new Error("again");
  },
  rejects: () => Promise.reject(new Error("again")),
})) {
  test(`an onError that ${how} breaks nothing`, async () => {
    const { stage, connection } = await staged({ onError });
    connection.events([1, 2]);
    stage.runs[0].fail(new Error("first"));
    stage.runs[1].end();
    await stage.turns();
    assert.equal(connection.asked, ["SUBSCRIBE", "NACK", "ack"]);
  });
}

test("at most `concurrency` handlers run at a time, in the order of the log", async () => {
  const { stage, connection } = await staged({ concurrency: 2 });
  connection.events([1, 2, 3]);
  connection.events([4], { offset: 3 });
  assert.equal(stage.payloads(), [1, 2]);
  stage.runs[1].end();
  await stage.turns();
  assert.equal(stage.payloads(), [1, 2, 3]);
  stage.runs[0].fail(new Error("no"));
  await stage.turns();
  assert.equal(stage.payloads(), [1, 2, 3, 4]);
});

test("a handler or a filter that resumes its subscription starts no other beside it", async () => {
  const stage = new SubscriberStage();
  const connection = stage.connect();
  const again = () => void stage.subscriber.steer("RESUME", "orders", "billing");
  const handler = (event: EventRecord<unknown>, ctx: Context) => {
    again();
    return stage.handler(event, ctx);
  };
  await stage.subscribe(handler, {
    concurrency: 1,
    filter: () => {
      again();
      return true;
    },
  });
  connection.events([1, 2, 3]);
  assert.equal(stage.payloads(), [1]);
  stage.runs[0].end();
  await stage.turns();
  assert.equal(stage.payloads(), [1, 2]);
});

test("ten thousand handlers that resume and return are no tower", async () => {
  const stage = new SubscriberStage();
  const connection = stage.connect();
  await stage.subscribe(() => void stage.subscriber.steer("RESUME", "orders", "billing"));
  connection.events(Array.from({ length: 10_000 }, (_, i) => i));
  await stage.turns();
  assert.equal(stage.errors, []);
  assert.equal(connection.open.filter(({ op }) => op === "ack").flatMap(runsText), ["0:0+10000 1-1"]);
});

test("several topics share the concurrency, and each keeps its order", async () => {
  const stage = new SubscriberStage();
  const connection = stage.connect();
  await stage.subscriber.subscribe(["a", "b"], "g", stage.handler, { concurrency: 1 });
  connection.events(["a1", "a2", "a3"], { handle: 1 });
  connection.events(["b1", "b2"], { handle: 2 });
  for (let i = 0; i < 5; i++) {
    stage.runs[i].end();
    await stage.turns();
  }
  assert.equal(
    stage.payloads().filter((payload) => String(payload).startsWith("a")),
    ["a1", "a2", "a3"],
  );
  assert.equal(
    stage.payloads().filter((payload) => String(payload).startsWith("b")),
    ["b1", "b2"],
  );
  assert.ok(stage.payloads().indexOf("b1") < 3, "topics take turns");
});

test("a function as filter is asked when an event is about to start; what it leaves out is acked", async () => {
  const stage = new SubscriberStage();
  const connection = stage.connect();
  const asked: unknown[] = [];
  const filter = (event: EventRecord<unknown>) => {
    asked.push(event.payload);
    if (event.payload === 3) throw new Error("bad filter");
    return event.payload !== 1;
  };
  await stage.subscribe(undefined, { filter, concurrency: 1, manualAck: true });
  connection.events([0, 1, 2, 3]);
  assert.equal(asked, [0]);
  stage.runs[0].end();
  await stage.turns();
  assert.equal(stage.payloads(), [0, 2]);
  assert.equal(runsText(connection.question("ack")), ["0:1+1 1-2"]);
  stage.runs[1].end();
  await stage.turns();
  assert.is(connection.question("NACK").frame.reason, "bad filter");
  assert.equal(
    stage.errors.map(({ message }) => message),
    ["bad filter"],
  );
});

// ------------------------------------------------------------------------------------------------------------ the context

test("what ctx settled the end of the handler does not settle again", async () => {
  const { stage, connection } = await staged();
  connection.events([1, 2, 3]);
  const acked = stage.runs[0].ctx.ack();
  const nacked = stage.runs[1].ctx.nack("later", 500);
  const { nack } = stage.runs[2].ctx;
  const plain = nack(undefined, 70);
  await stage.turns();
  for (const run of stage.runs) run.end();
  await stage.turns();
  assert.equal(connection.asked, ["SUBSCRIBE", "NACK", "ack", "nack"]);
  const { reason, delay_ms, lease, topic, group } = connection.question("NACK").frame;
  assert.equal(
    { reason, delay_ms, lease, topic, group },
    { reason: "later", delay_ms: 500, lease: "1-2", topic: "orders", group: "billing" },
  );
  assert.is(connection.question("nack").settle?.ms, 70);
  connection.ok("ack");
  connection.ok("NACK", { stale: true });
  connection.ok("nack", { lost: [{ partition: 0, offset: 2, count: 1, epoch: 1, token: 3 }] });
  const ids = stage.runs.map(({ event }) => event.id);
  assert.equal(await acked, { id: ids[0], ok: true });
  assert.equal(await nacked, { id: ids[1], ok: true, stale: true });
  assert.equal(await plain, { id: ids[2], ok: false, err: "lease_lost" });
  assert.equal(await stage.runs[0].ctx.ack(), { id: ids[0], ok: true, stale: true });
});

test("asked twice before the answer, the second hears the same and that it was stale", async () => {
  const { stage, connection } = await staged();
  connection.events([1, 2]);
  const [one, two] = stage.runs.map(({ ctx }) => ctx);
  const results = [one.ack(), one.nack("no"), two.ack(), two.ack()];
  await stage.turns();
  connection.ok("ack", { lost: [{ partition: 0, offset: 1, count: 1, epoch: 1, token: 2 }] });
  assert.equal(
    (await Promise.all(results)).map(({ ok, stale, err }) => [ok, stale, err]),
    [
      [true, undefined, undefined],
      [true, true, undefined],
      [false, undefined, "lease_lost"],
      [false, undefined, "lease_lost"],
    ],
  );
});

test("with manualAck the end of a handler settles nothing", async () => {
  const { stage, connection } = await staged({ manualAck: true });
  connection.events([1, 2, 3]);
  stage.runs[0].end();
  stage.runs[1].fail(new Error("no"));
  await stage.turns();
  assert.equal(connection.asked, ["SUBSCRIBE"]);
  assert.equal(
    stage.errors.map(({ message }) => message),
    ["no"],
  );
  const late = stage.runs[0].ctx.ack();
  await stage.turns();
  assert.equal(runsText(connection.question("ack")), ["0:0+1 1-1"]);
  connection.ok("ack");
  assert.ok((await late).ok);
});

test("ack, nack and modAck by id find what is held here, and ask the node about the rest", async () => {
  const { stage, connection } = await staged({ manualAck: true });
  const { subscriber } = stage;
  connection.events([1, raw("2", { id: "own:2" }), 3]);
  const ids = stage.runs.map(({ event }) => event.id);
  const results = [
    subscriber.settle("ack", "orders", "billing", ids[0]),
    subscriber.settle("nack", "orders", "billing", "own:2", { reason: "why", ms: 9 }),
    subscriber.settle("extend", "orders", "billing", ids[2], { ms: 60_000 }),
    subscriber.settle("ack", "orders", "billing", "elsewhere"),
    subscriber.settle("nack", "orders", "billing", "elsewhere", { reason: "why", ms: 8 }),
    subscriber.settle("extend", "orders", "billing", "elsewhere", { ms: 7 }),
    subscriber.settle("ack", "orders", "nobody", ids[0]),
  ];
  await stage.turns();
  assert.equal(runsText(connection.question("ack")), ["0:0+1 1-1"]);
  assert.equal(runsText(connection.question("extend")), ["0:2+1 1-3"]);
  assert.is(connection.question("extend").settle?.ms, 60_000);
  connection.ok("ack");
  connection.ok("extend");
  const own = connection.question("NACK");
  assert.equal([own.frame.id, own.frame.lease, own.frame.delay_ms], ["own:2", "1-2", 9]);
  connection.ok(own);
  assert.equal(connection.question("ACK").frame, { op: "ACK", id: "elsewhere", topic: "orders", group: "billing" });
  connection.ok("ACK", { stale: true });
  assert.equal([connection.question("NACK").frame.delay_ms, connection.question("NACK").frame.lease], [8, undefined]);
  connection.ok("NACK");
  assert.is(connection.question("MODACK").frame.extend_ms, 7);
  connection.refuse("MODACK", "unknown_id");
  assert.equal(
    (await Promise.all(results)).map(({ id, ok, stale, err }) => [id, ok, stale ?? err]),
    [
      [ids[0], true, undefined],
      ["own:2", true, undefined],
      [ids[2], true, undefined],
      ["elsewhere", true, true],
      ["elsewhere", true, undefined],
      ["elsewhere", false, "unknown_id"],
      [ids[0], false, "not_subscribed"],
    ],
  );
});

test("a time that is none is refused here", async () => {
  const { stage, connection } = await staged();
  connection.events([1]);
  const { ctx, event } = stage.runs[0];
  for (const ms of [Number.NaN, -1, 1.5]) {
    assert.equal(await ctx.extend(ms), { id: event.id, ok: false, err: "bad_option" });
    assert.equal(await ctx.nack("x", ms), { id: event.id, ok: false, err: "bad_option" });
  }
  stage.runs[0].end();
  await stage.turns();
  assert.equal(connection.asked, ["SUBSCRIBE", "ack"]);
});

test("exactly the events whose leases were lost are told so", async () => {
  const told: unknown[] = [];
  const { stage, connection } = await staged({
    onError: (error, event) => void told.push([error.constructor, event?.payload]),
  });
  connection.events([0, 1, 2, 3, 4]);
  const { signal } = stage.runs[3].ctx;
  for (const run of stage.runs) run.end();
  await stage.turns();
  connection.ok("ack", {
    lost: [
      { partition: 0, offset: 1, count: 1, epoch: 1, token: 2 },
      { partition: 0, offset: 3, count: 2, epoch: 1, token: 4 },
    ],
  });
  assert.equal(told, [
    [LeaseLostError, 1],
    [LeaseLostError, 3],
    [LeaseLostError, 4],
  ]);
  assert.ok(signal.aborted);
});

// ------------------------------------------------------------------------------------------------------------------- loops

async function collect(subscription: Subscription, into: unknown[], until: (delivery: Delivery) => boolean) {
  for await (const delivery of subscription) {
    into.push(delivery.event.payload);
    if (until(delivery)) break;
  }
}

test("a loop gets one event after the other, and acks each when it asks for the next", async () => {
  const { stage, connection, subscription } = await looping();
  const iterator = subscription[Symbol.asyncIterator]();
  const first = iterator.next();
  connection.events([1, 2]);
  const { value } = await first;
  assert.is(value.event.payload, 1);
  assert.is(value.ctx.attempt, 1);
  await stage.turns();
  assert.equal(connection.asked, ["SUBSCRIBE"]);
  assert.is((await iterator.next()).value.event.payload, 2);
  await stage.turns();
  assert.equal(runsText(connection.question("ack")), ["0:0+1 1-1"]);
});

test("a loop that is left by break ends the subscription: the event at hand goes back with it, the rest is released", async () => {
  const { stage, connection, subscription } = await looping();
  const seen: unknown[] = [];
  const done = collect(subscription, seen, ({ event }) => event.payload === 2);
  connection.events([1, 2, 3]);
  await stage.turns();
  connection.ok("ack");
  await stage.turns();
  assert.equal(runsText(connection.question("release")), ["0:2+1 1-3"]);
  connection.ok("release");
  await done;
  assert.equal(seen, [1, 2]);
  assert.equal(connection.asked, ["SUBSCRIBE", "PAUSE", "ack", "release", "UNSUBSCRIBE"]);
  assert.is(stage.clock.timerCount, 0);
});

test("a loop that is left by a throw gives its event back and throws on", async () => {
  const { connection, subscription } = await looping();
  let error: Error | undefined;
  const done = collect(subscription, [], () => {
    throw new Error("mine");
  }).catch((thrown: Error) => {
    error = thrown;
  });
  connection.events([1]);
  await done;
  assert.is(error?.message, "mine");
  assert.equal(connection.asked, ["SUBSCRIBE", "PAUSE", "UNSUBSCRIBE"]);
});

test("two loops share the events; closing lets both come to their end", async () => {
  const { stage, connection, subscription } = await looping();
  const seen: unknown[][] = [[], []];
  const loops = seen.map((list) => collect(subscription, list, () => false));
  connection.events([1, 2, 3, 4]);
  await stage.turns();
  assert.equal(seen.flat().sort(), [1, 2, 3, 4]);
  assert.ok(seen[0].length > 0 && seen[1].length > 0);
  const closing = subscription.close();
  await stage.turns();
  connection.ok("ack");
  await Promise.all([...loops, closing, subscription.closed]);
  assert.is(connection.asked.at(-1), "UNSUBSCRIBE");
});

test("a loop can close its own subscription and wait for it; its event is acked when it asks for the next", async () => {
  const { stage, connection, subscription } = await looping();
  const iterator = subscription[Symbol.asyncIterator]();
  connection.events([1, 2]);
  await iterator.next();
  let over = false;
  void subscription.closed.then(() => {
    over = true;
  });
  await subscription.close();
  await stage.turns();
  assert.equal(connection.asked, ["SUBSCRIBE", "PAUSE", "release"]);
  assert.equal(runsText(connection.question("release")), ["0:1+1 1-2"]);
  connection.ok("release");
  assert.equal(await iterator.next(), { done: true, value: undefined });
  await stage.turns();
  assert.equal(runsText(connection.question("ack")), ["0:0+1 1-1"]);
  assert.not(over);
  connection.ok("ack");
  await subscription.close();
  assert.equal(connection.asked, ["SUBSCRIBE", "PAUSE", "release", "ack", "UNSUBSCRIBE"]);
  await stage.turns();
  assert.ok(over);
  assert.equal(await iterator.next(), { done: true, value: undefined });
});

test("closing the client waits for the body of a loop", async () => {
  const { stage, connection, subscription } = await looping();
  const iterator = subscription[Symbol.asyncIterator]();
  connection.events([1]);
  await iterator.next();
  let closed = false;
  const closing = stage.subscriber.close().then(() => {
    closed = true;
  });
  await stage.turns();
  assert.not(closed);
  assert.ok(stage.subscriber.looping);
  assert.ok((await iterator.next()).done);
  assert.not(stage.subscriber.looping);
  await stage.turns();
  connection.ok("ack");
  await closing;
});

test("with manualAck a loop acks nothing by itself", async () => {
  const { stage, connection, subscription } = await looping({ manualAck: true });
  const iterator = subscription[Symbol.asyncIterator]();
  connection.events([1, 2]);
  const { value } = await iterator.next();
  await iterator.next();
  await stage.turns();
  assert.equal(connection.asked, ["SUBSCRIBE"]);
  const result = value.ctx.ack();
  await stage.turns();
  connection.ok("ack");
  assert.ok((await result).ok);
});

test("several `next` at once get several events, and the next after them acks all", async () => {
  const { stage, connection, subscription } = await looping();
  const iterator = subscription[Symbol.asyncIterator]();
  const both = [iterator.next(), iterator.next()];
  connection.events([1, 2, 3]);
  assert.equal(
    (await Promise.all(both)).map(({ value }) => value.event.payload),
    [1, 2],
  );
  assert.is((await iterator.next()).value.event.payload, 3);
  await stage.turns();
  assert.equal(runsText(connection.question("ack")), ["0:0+2 1-1"]);
});

test("a loop skips what its filter leaves out and what cannot be read", async () => {
  const { stage, connection, subscription } = await looping({ filter: ({ payload }) => payload !== 1 });
  const iterator = subscription[Symbol.asyncIterator]();
  connection.events([raw("nonsense"), 1, 2]);
  assert.is((await iterator.next()).value.event.payload, 2);
  await stage.turns();
  assert.equal(connection.asked, ["SUBSCRIBE", "NACK", "ack"]);
});

test("a subscription that has a handler cannot be iterated", async () => {
  const { subscription } = await staged();
  let code: string | undefined;
  try {
    for await (const _ of subscription) assert.unreachable();
  } catch (error) {
    code = (error as NarthexError).code;
  }
  assert.is(code, "bad_option");
});

test.run();
