// Subscribing, steering and ending, on simulated time and a connection that the test plays.

import { getEventListeners } from "node:events";
import { test } from "uvu";
import * as assert from "uvu/assert";
import type { SubscribeOptions, Subscription } from "../../src/bus/event-bus.ts";
import type { Connection } from "../../src/client/connection.ts";
import { ClosedError, type NarthexError, RefusedError, TimeoutError } from "../../src/client/errors.ts";
import { Subscriber } from "../../src/client/subscriber.ts";
import type { Code } from "../../src/protocol/failure.ts";
import { FakeConnection, raw, runsText, SubscriberStage, turns } from "../support/fake-connection.ts";
import { clientClockOf, ManualClock } from "../support/fake-dial.ts";

type Fate = { value: unknown } | { error: NarthexError } | undefined;

/** What has become of a promise by now. */
function fateOf(promise: Promise<unknown>): () => Fate {
  let fate: Fate;
  promise.then(
    (value) => {
      fate = { value };
    },
    (error: NarthexError) => {
      fate = { error };
    },
  );
  return () => fate;
}

async function rejection(promise: Promise<unknown>): Promise<NarthexError> {
  try {
    await promise;
  } catch (error) {
    return error as NarthexError;
  }
  throw new Error("it resolved");
}

// ------------------------------------------------------------------------------------------------------------ subscribing

test("subscribe waits for a connection, sends the options of the node and resolves with its OK", async () => {
  const stage = new SubscriberStage();
  const options: SubscribeOptions = {
    from: "earliest",
    maxInflight: 7,
    ordering: "key",
    filter: { key: "a" },
    concurrency: 2,
    manualAck: true,
    autoExtend: false,
    onError: () => undefined,
  };
  const subscribed = fateOf(stage.subscribe(undefined, options));
  await stage.turns();
  assert.is(subscribed(), undefined);
  const connection = stage.connect();
  await stage.turns();
  assert.equal(connection.asked, ["SUBSCRIBE"]);
  const { value } = subscribed() as { value: Subscription };
  assert.equal(value.topics, ["orders"]);
  assert.is(value.group, "billing");
  assert.is(value.resumed, false);
});

test("only what the node is to know goes to it", async () => {
  const stage = new SubscriberStage();
  const connection = stage.connect();
  connection.obliging = false;
  fateOf(
    stage.subscribe(undefined, {
      from: "ts",
      ts: 5,
      filter: () => true,
      concurrency: 3,
      topics: ["orders"],
      signal: new AbortController().signal,
    }),
  );
  await stage.turns();
  const { frame } = connection.question("SUBSCRIBE");
  assert.equal(frame, { op: "SUBSCRIBE", topic: "orders", group: "billing", opts: { from: "ts", ts: 5 } });
});

test("an option that does not exist is refused by its name, before anything is sent", async () => {
  const stage = new SubscriberStage();
  const connection = stage.connect();
  const error = await rejection(stage.subscribe(undefined, { maxAtempts: 3 } as SubscribeOptions));
  assert.instance(error, RefusedError);
  assert.is(error.code, "bad_option");
  assert.match(error.message, /maxAtempts/);
  const concurrency = await rejection(stage.subscribe(undefined, { concurrency: 0 }));
  assert.is(concurrency.code, "bad_option");
  assert.is((await rejection(stage.subscriber.subscribe([], "g", undefined, {}))).code, "bad_topic");
  assert.equal(connection.asked, []);
});

test("what a caller without types may give is refused with a code, and takes no seat", async () => {
  const stage = new SubscriberStage();
  const connection = stage.connect();
  const cyclic: { self?: unknown } = {};
  cyclic.self = cyclic;
  const cases: [string, string[], unknown, object][] = [
    ["bad_option", ["orders"], "billing", { filter: { headers: cyclic } }],
    ["bad_option", ["orders"], "billing", { ts: 5n }],
    ["bad_option", ["orders"], "billing", { signal: "x" }],
    ["bad_option", ["orders"], "billing", { signal: null }],
    ["bad_option", ["orders"], "billing", { concurrency: "2" }],
    ["bad_option", ["orders"], "billing", { topics: 5 }],
    ["bad_option", ["orders"], "billing", { topics: "abc" }],
    ["bad_topic", ["orders"], "billing", { topics: [5] }],
    ["bad_topic", undefined as never, "billing", {}],
    ["bad_topic", [Symbol("t")] as never, "billing", {}],
    ["bad_group", ["orders"], undefined, {}],
  ];
  for (const [code, topics, group, options] of cases) {
    const error = await rejection(stage.subscriber.subscribe(topics, group as string, stage.handler, options));
    assert.instance(error, RefusedError);
    assert.is(error.code, code);
  }
  assert.equal(connection.asked, []);
  await stage.subscribe();
});

test("the options are taken as they are when it is called", async () => {
  const stage = new SubscriberStage();
  stage.connect();
  const headers: Record<string, string> = { a: "1" };
  await stage.subscribe(undefined, { filter: { headers } });
  (headers as Record<string, unknown>).self = headers;
  stage.lose();
  assert.equal(stage.connect(false).question("SUBSCRIBE").frame.opts, { filter: { headers: { a: "1" } } });
});

test("nothing is subscribed to once it was left", async () => {
  const stage = new SubscriberStage();
  const connection = stage.connect(false);
  const refusedBefore = new AbortController();
  const first = fateOf(stage.subscribe(undefined, { signal: refusedBefore.signal }));
  await stage.turns();
  connection.refuse("SUBSCRIBE", "overloaded", 50);
  refusedBefore.abort();
  await stage.turns();
  stage.clock.advance(100);
  connection.refuse("UNSUBSCRIBE", "not_subscribed");
  await stage.turns();
  assert.ok(first());

  const refusedBehind = new AbortController();
  const second = fateOf(stage.subscribe(undefined, { signal: refusedBehind.signal }));
  await stage.turns();
  refusedBehind.abort();
  await stage.turns();
  connection.refuse("SUBSCRIBE", "overloaded", 50);
  stage.clock.advance(100);
  assert.equal(connection.asked, ["SUBSCRIBE", "UNSUBSCRIBE", "SUBSCRIBE", "UNSUBSCRIBE"]);
  connection.refuse("UNSUBSCRIBE", "not_subscribed");
  await stage.turns();
  assert.ok(second());
  assert.is(stage.clock.timerCount, 0);
});

test("a topic and a group can be subscribed to once", async () => {
  const stage = new SubscriberStage();
  stage.connect();
  const first = stage.subscribe();
  assert.is((await rejection(stage.subscribe())).code, "already_subscribed");
  const stop = await first;
  assert.is((await rejection(stage.subscribe())).code, "already_subscribed");
  await stop();
  await stage.subscribe();
});

test("a refusal that passes is waited out, in growing pauses and as long as the node says", async () => {
  const stage = new SubscriberStage();
  const connection = stage.connect();
  connection.obliging = false;
  const subscribed = fateOf(stage.subscribe());
  await stage.turns();
  connection.refuse("SUBSCRIBE", "unavailable");
  stage.clock.advance(20);
  assert.is(connection.open.length, 0);
  stage.clock.advance(40);
  connection.refuse("SUBSCRIBE", "overloaded", 700);
  stage.clock.advance(690);
  assert.is(connection.open.length, 0);
  stage.clock.advance(20);
  connection.subscribed();
  await stage.turns();
  assert.ok(subscribed());
  assert.is(stage.clock.timerCount, 0);
});

test("subscribe gives up after requestTimeoutMs, with and without a connection", async () => {
  const stage = new SubscriberStage();
  const without = fateOf(stage.subscribe());
  stage.clock.advance(5000);
  await stage.turns();
  const { error } = without() as { error: NarthexError };
  assert.instance(error, TimeoutError);

  const connection = stage.connect();
  connection.obliging = false;
  const refused = fateOf(stage.subscribe());
  for (let i = 0; i < 20 && refused() === undefined; i++) {
    await stage.turns();
    if (connection.open.some(({ op }) => op === "SUBSCRIBE")) connection.refuse("SUBSCRIBE", "unavailable");
    stage.clock.advance(500);
  }
  await stage.turns();
  assert.instance((refused() as { error: NarthexError }).error, TimeoutError);
  connection.refuse("UNSUBSCRIBE", "not_subscribed");
  await stage.turns();
  assert.is(stage.clock.timerCount, 0);
});

test("a SUBSCRIBE that is given up before its answer is followed by an UNSUBSCRIBE", async () => {
  const stage = new SubscriberStage();
  const connection = stage.connect();
  connection.obliging = false;
  const subscribed = fateOf(stage.subscribe());
  stage.clock.advance(5000);
  await stage.turns();
  assert.ok(subscribed());
  assert.equal(connection.asked, ["SUBSCRIBE", "UNSUBSCRIBE"]);
  connection.subscribed();
  connection.events([1]);
  connection.ok("UNSUBSCRIBE");
  await stage.turns();
  assert.equal(stage.runs, []);
  connection.obliging = true;
  await stage.subscribe();
});

test("if one of several topics is refused the others are given back and no handler was called", async () => {
  const stage = new SubscriberStage();
  const connection = stage.connect();
  connection.obliging = false;
  const subscribed = fateOf(stage.subscriber.subscribe(["a", "b"], "g", stage.handler, { topics: ["c"] }));
  await stage.turns();
  connection.subscribed();
  connection.events([1]);
  connection.subscribed();
  connection.refuse("SUBSCRIBE", "forbidden");
  await stage.turns();
  const asked = () => connection.open.map(({ op, frame }) => `${op} ${frame.topic ?? ""}`);
  assert.equal(asked(), ["PAUSE a", "PAUSE b", "release "]);
  for (const op of ["PAUSE", "PAUSE", "release"]) connection.ok(op);
  await stage.turns();
  assert.equal(asked(), ["UNSUBSCRIBE a", "UNSUBSCRIBE b"]);
  connection.ok("UNSUBSCRIBE");
  connection.ok("UNSUBSCRIBE");
  await stage.turns();
  assert.is((subscribed() as { error: NarthexError }).error.code, "forbidden");
  assert.equal(stage.runs, []);
  connection.obliging = true;
  await stage.subscriber.subscribe(["a", "b", "c"], "g", stage.handler, {});
});

test("a subscription can be called, closed and disposed of, each of which ends it", async () => {
  for (const how of ["call", "close", "dispose"] as const) {
    const stage = new SubscriberStage();
    const connection = stage.connect();
    const subscription = await stage.subscribe();
    const closed = fateOf(subscription.closed);
    if (how === "call") await subscription();
    else if (how === "close") await subscription.close();
    else await subscription[Symbol.asyncDispose]();
    assert.equal(connection.asked, ["SUBSCRIBE", "PAUSE", "UNSUBSCRIBE"]);
    await stage.turns();
    assert.equal(closed(), { value: undefined });
    await subscription();
    assert.is(connection.asked.length, 3, "once");
  }
});

test("an AbortSignal ends the subscription, also one that is not there yet, or was never begun", async () => {
  const stage = new SubscriberStage();
  const early = new AbortController();
  early.abort();
  assert.is((await rejection(stage.subscribe(undefined, { signal: early.signal }))).code, "closed");
  await stage.turns();

  const waiting = new AbortController();
  const subscribed = fateOf(stage.subscribe(undefined, { signal: waiting.signal }));
  waiting.abort();
  await stage.turns();
  assert.is((subscribed() as { error: NarthexError }).error.code, "closed");

  const connection = stage.connect();
  const live = new AbortController();
  const subscription = await stage.subscribe(undefined, { signal: live.signal });
  live.abort();
  await subscription.closed;
  assert.equal(connection.asked, ["SUBSCRIBE", "PAUSE", "UNSUBSCRIBE"]);
  assert.is(stage.clock.timerCount, 0);
  for (const { signal } of [early, waiting, live]) assert.equal(getEventListeners(signal, "abort"), []);
});

// ---------------------------------------------------------------------------------------------------------------- steering

test("pause holds back what has not begun, resume lets it go on", async () => {
  const stage = new SubscriberStage();
  const connection = stage.connect();
  const subscription = await stage.subscribe(undefined, { concurrency: 1 });
  connection.events([1, 2, 3]);
  await subscription.pause();
  stage.runs[0].end();
  await stage.turns();
  connection.events([4], { offset: 3 });
  assert.equal(stage.payloads(), [1]);
  await subscription.resume();
  assert.equal(stage.payloads(), [1, 2]);
  stage.runs[1].end();
  await stage.turns();
  assert.equal(stage.payloads(), [1, 2, 3]);
  assert.equal(
    connection.asked.filter((op) => op === op.toUpperCase()),
    ["SUBSCRIBE", "PAUSE", "RESUME"],
  );
});

test("a pause is remembered over a lost connection", async () => {
  const stage = new SubscriberStage();
  stage.connect();
  const subscription = await stage.subscribe();
  await subscription.pause();
  stage.lose();
  const connection = stage.connect();
  assert.equal(connection.asked, ["SUBSCRIBE", "PAUSE"]);
  connection.events([1]);
  assert.equal(stage.runs, []);
  stage.lose();
  await subscription.resume();
  assert.equal(stage.connect().asked, ["SUBSCRIBE"]);
});

test("a pause that is refused for now is said again, unless it was taken back", async () => {
  const stage = new SubscriberStage();
  const connection = stage.connect();
  const subscription = await stage.subscribe();
  connection.obliging = false;
  const paused = fateOf(subscription.pause());
  connection.refuse("PAUSE", "overloaded");
  await stage.turns();
  assert.is(paused(), undefined);
  const resumed = fateOf(subscription.resume());
  connection.ok("RESUME");
  stage.clock.advance(100);
  connection.ok("RESUME");
  await stage.turns();
  assert.ok(paused() && resumed());
});

test("a pause that is not answered times out, and holds here", async () => {
  const stage = new SubscriberStage();
  const connection = stage.connect();
  const subscription = await stage.subscribe();
  connection.obliging = false;
  const paused = fateOf(subscription.pause());
  stage.clock.advance(5000);
  await stage.turns();
  assert.instance((paused() as { error: NarthexError }).error, TimeoutError);
  connection.events([1]);
  assert.equal(stage.payloads(), []);
  connection.ok("PAUSE");
  const resumed = subscription.resume();
  connection.ok("RESUME");
  await resumed;
  assert.equal(stage.payloads(), [1]);
});

test("one topic of several can be steered by its name", async () => {
  const stage = new SubscriberStage();
  const connection = stage.connect();
  await stage.subscriber.subscribe(["a", "b"], "g", stage.handler, {});
  await stage.subscriber.steer("PAUSE", "a", "g");
  connection.events([1], { handle: 1 });
  connection.events([2], { handle: 2 });
  assert.equal(stage.payloads(), [2]);
  await stage.subscriber.steer("RESUME", "a", "g");
  assert.equal(stage.payloads(), [2, 1]);
  assert.is((await rejection(stage.subscriber.steer("PAUSE", "c", "g"))).code, "not_subscribed");
});

// ------------------------------------------------------------------------------------------------------------------ ending

test("close lets nothing begin, releases the rest, waits for what runs, flushes its acks, then unsubscribes", async () => {
  const stage = new SubscriberStage();
  const connection = stage.connect();
  const subscription = await stage.subscribe(undefined, { concurrency: 2 });
  connection.events([1, 2, 3, 4]);
  const closing = fateOf(subscription.close());
  await stage.turns();
  assert.equal(connection.asked, ["SUBSCRIBE", "PAUSE", "release"]);
  assert.equal(runsText(connection.question("release")), ["0:2+2 1-3"]);
  connection.ok("release");
  stage.runs[0].end();
  await stage.turns();
  assert.equal(stage.payloads(), [1, 2]);
  connection.ok("ack");
  stage.runs[1].end();
  await stage.turns();
  assert.equal(connection.asked, ["SUBSCRIBE", "PAUSE", "release", "ack", "ack"]);
  connection.ok("ack");
  await stage.turns();
  assert.equal(connection.asked, ["SUBSCRIBE", "PAUSE", "release", "ack", "ack", "UNSUBSCRIBE"]);
  assert.ok(closing());
  assert.is(stage.clock.timerCount, 0);
});

test("what comes before the PAUSE is answered is released too, and left is only after that", async () => {
  const stage = new SubscriberStage();
  const connection = stage.connect();
  const subscription = await stage.subscribe();
  connection.obliging = false;
  const closing = fateOf(subscription.close());
  connection.events([1, 2]);
  await stage.turns();
  assert.equal(runsText(connection.question("release")), ["0:0+2 1-1"]);
  connection.ok("release");
  await stage.turns();
  connection.events([3], { offset: 2 });
  connection.ok("PAUSE");
  await stage.turns();
  assert.equal(connection.asked, ["SUBSCRIBE", "PAUSE", "release", "release"]);
  connection.ok("release", { lost: [{ partition: 0, offset: 2, count: 1, epoch: 1, token: 3 }] });
  await stage.turns();
  connection.ok("UNSUBSCRIBE");
  await stage.turns();
  assert.ok(closing());
  assert.equal([stage.runs, stage.errors, stage.clock.timerCount], [[], [], 0]);
});

test("an event that comes again while its handler runs is not released by closing, but acked", async () => {
  const stage = new SubscriberStage();
  const connection = stage.connect();
  const subscription = await stage.subscribe();
  connection.events([1]);
  const closing = fateOf(subscription.close());
  connection.events([1], { epoch: 2, token: 9 });
  stage.runs[0].end();
  await stage.turns();
  assert.equal(runsText(connection.question("ack")), ["0:0+1 2-9"]);
  connection.ok("ack");
  await stage.turns();
  assert.ok(closing());
  assert.equal(connection.asked, ["SUBSCRIBE", "PAUSE", "ack", "UNSUBSCRIBE"]);
});

test("what is being acked by its id before it began is not released", async () => {
  const stage = new SubscriberStage();
  const connection = stage.connect();
  const subscription = await stage.subscribe();
  await subscription.pause();
  connection.events([raw("1", { id: "own:1" }), 2]);
  const acked = stage.subscriber.settle("ack", "orders", "billing", "own:1");
  const closing = subscription.close();
  await stage.turns();
  assert.equal(runsText(connection.question("release")), ["0:1+1 1-2"]);
  connection.ok("release");
  connection.ok("ack");
  assert.is((await acked).ok, true);
  await closing;
});

test("a handler that ends the subscription in its first breath is waited for, and acked", async () => {
  const stage = new SubscriberStage();
  const connection = stage.connect();
  let over = false;
  const subscription: Subscription = await stage.subscribe((event, ctx) => {
    void subscription.close().then(() => {
      over = true;
    });
    return stage.handler(event, ctx);
  });
  connection.events([1]);
  await stage.turns();
  assert.equal(connection.asked, ["SUBSCRIBE", "PAUSE"]);
  stage.runs[0].end();
  await stage.turns();
  connection.ok("ack");
  await stage.turns();
  assert.equal(connection.asked, ["SUBSCRIBE", "PAUSE", "ack", "UNSUBSCRIBE"]);
  assert.ok(over);
});

test("a handler that ends the subscription and returns is acked as well", async () => {
  const stage = new SubscriberStage();
  const connection = stage.connect();
  const subscription: Subscription = await stage.subscribe(() => void subscription.close());
  connection.events([1, 2]);
  await stage.turns();
  connection.ok("release");
  connection.ok("ack");
  await subscription.closed;
  assert.equal(connection.asked, ["SUBSCRIBE", "PAUSE", "release", "ack", "UNSUBSCRIBE"]);
});

test("a signal that cannot be unheard breaks nothing", async () => {
  const stage = new SubscriberStage();
  stage.connect();
  const signal = { aborted: false, addEventListener: () => undefined } as unknown as AbortSignal;
  const subscription = await stage.subscribe(undefined, { signal });
  stage.subscriber.fail(new ClosedError("closed", "the client was closed"));
  await subscription.closed;
});

test("a client's onError that rejects is nobody's unhandled rejection", async () => {
  const clock = new ManualClock();
  const subscriber = new Subscriber({
    clock: clientClockOf(clock),
    requestTimeoutMs: 5000,
    onError: () => Promise.reject(new Error("again")),
  });
  const connection = new FakeConnection();
  subscriber.connected(connection as unknown as Connection);
  await subscriber.subscribe(["orders"], "billing", () => Promise.reject(new Error("first")), {});
  const wild: unknown[] = [];
  const onWild = (error: unknown) => void wild.push(error);
  process.on("unhandledRejection", onWild);
  connection.events([1]);
  await turns(clock);
  process.off("unhandledRejection", onWild);
  assert.equal(wild, []);
  assert.equal(connection.asked, ["SUBSCRIBE", "NACK"]);
});

test("closing the subscriber closes every subscription, and refuses new ones", async () => {
  const stage = new SubscriberStage();
  const connection = stage.connect();
  await stage.subscribe();
  await stage.subscriber.subscribe(["a", "b"], "g", stage.handler, {});
  await stage.subscriber.close();
  const three = (op: string) => [op, op, op];
  assert.equal(connection.asked.slice(3).sort(), [...three("PAUSE"), ...three("UNSUBSCRIBE")]);
  assert.is((await rejection(stage.subscribe())).code, "closed");
});

test("close ends too when the connection is lost meanwhile", async () => {
  const stage = new SubscriberStage();
  stage.connect();
  const subscription = await stage.subscribe();
  stage.connection.events([1]);
  const closing = fateOf(subscription.close());
  stage.lose();
  const connection = stage.connect();
  await stage.turns();
  assert.equal(connection.asked, [], "what is being closed is not subscribed to again");
  assert.is(closing(), undefined);
  stage.runs[0].end();
  await stage.turns();
  assert.ok(closing());
  assert.is(stage.clock.timerCount, 0);
});

test("fail settles everything at once and aborts what runs", async () => {
  const stage = new SubscriberStage();
  const connection = stage.connect();
  const handled = await stage.subscribe();
  const loop = await stage.subscriber.subscribe(["loop"], "g", undefined, {});
  const next = fateOf(loop[Symbol.asyncIterator]().next());
  connection.obliging = false;
  const begun = fateOf(stage.subscriber.subscribe(["late"], "g", stage.handler, {}));
  connection.events([1, 2]);
  const paused = fateOf(handled.pause());
  const { signal } = stage.runs[0].ctx;
  const acked = fateOf(stage.runs[0].ctx.ack());
  await stage.turns();
  const closing = fateOf(handled.close());
  const closed = [fateOf(handled.closed), fateOf(loop.closed)];
  stage.subscriber.fail(new ClosedError("closed", "destroyed"));
  await stage.turns();
  assert.is((begun() as { error: NarthexError }).error.code, "closed");
  assert.is((paused() as { error: NarthexError }).error.code, "closed");
  assert.equal((next() as { value: unknown }).value, { done: true, value: undefined });
  assert.equal((acked() as { value: { err?: string } }).value.err, "closed");
  assert.equal(closing(), { value: undefined });
  for (const fate of closed) assert.equal(fate(), { value: undefined });
  assert.ok(signal.aborted);
  assert.ok(stage.runs[1].ctx.signal.aborted);
  assert.is(stage.clock.timerCount, 0);
  assert.equal((await stage.runs[1].ctx.ack()).err, "closed");
  assert.equal((await stage.subscriber.settle("ack", "orders", "billing", "x")).err, "closed");
  // What is left of the old world changes nothing.
  stage.runs[0].end();
  stage.runs[1].fail(new Error("too late"));
  connection.end();
  await stage.turns();
  assert.equal(stage.errors, []);
});

test("fail for another reason than closing says it to loops and in `closed`", async () => {
  const stage = new SubscriberStage();
  stage.connect();
  const loop = await stage.loop();
  const next = fateOf(loop[Symbol.asyncIterator]().next());
  const closed = fateOf(loop.closed);
  stage.lose();
  stage.subscriber.fail(new RefusedError("bad_token", "not any more"));
  await stage.turns();
  assert.is((next() as { error: NarthexError }).error.code, "bad_token");
  assert.is((closed() as { error: NarthexError }).error.code, "bad_token");
});

for (const code of ["unknown_topic", "forbidden"] as const satisfies Code[]) {
  test(`a subscription that the node ends as ${code} rejects, tells onError and frees its other topics`, async () => {
    const stage = new SubscriberStage();
    const connection = stage.connect();
    const told: Error[] = [];
    const onError = (error: Error) => void told.push(error);
    const subscription = await stage.subscriber.subscribe(["a", "b"], "g", stage.handler, { onError });
    connection.events([1], { handle: 1 });
    connection.events([2], { handle: 2 });
    const closed = fateOf(subscription.closed);
    stage.subscriber.ended("a", "g", { code, msg: "over" });
    await stage.turns();
    assert.is((closed() as { error: NarthexError }).error.code, code);
    assert.equal(
      told.map((error) => (error as NarthexError).code),
      [code],
    );
    assert.ok(stage.runs[0].ctx.signal.aborted);
    assert.not(stage.runs[1].ctx.signal.aborted);
    assert.is((await stage.runs[0].ctx.ack()).err, code);
    stage.runs[0].end();
    stage.runs[1].end();
    await stage.turns();
    connection.ok("ack");
    await stage.turns();
    const last = connection.asked.slice(-2);
    assert.equal(last, ["ack", "UNSUBSCRIBE"], "only of the topic that is left");
    assert.is(told.length, 1);
  });
}

test("nobody has to look at `closed`", async () => {
  const stage = new SubscriberStage();
  stage.connect();
  const unhandled: unknown[] = [];
  const note = (error: unknown) => void unhandled.push(error);
  process.on("unhandledRejection", note);
  await stage.subscribe();
  stage.subscriber.ended("orders", "billing", { code: "unknown_topic", msg: "over" });
  await stage.turns();
  process.off("unhandledRejection", note);
  assert.equal(unhandled, []);
});

test("a refusal for good at resubscribing ends the subscription and its loops", async () => {
  const stage = new SubscriberStage();
  stage.connect();
  const loop = await stage.loop();
  const iterator = loop[Symbol.asyncIterator]();
  const next = fateOf(iterator.next());
  const closed = fateOf(loop.closed);
  stage.lose();
  const connection = stage.connect(false);
  connection.refuse("SUBSCRIBE", "unavailable");
  stage.clock.advance(100);
  await stage.turns();
  assert.is(closed(), undefined);
  connection.refuse("SUBSCRIBE", "group_conflict");
  await stage.turns();
  assert.is((next() as { error: NarthexError }).error.code, "group_conflict");
  assert.is((await rejection(iterator.next())).code, "group_conflict");
  assert.is((closed() as { error: NarthexError }).error.code, "group_conflict");
  assert.equal(
    stage.errors.map((error) => (error as NarthexError).code),
    ["group_conflict"],
  );
  assert.equal(connection.asked, ["SUBSCRIBE", "SUBSCRIBE"], "there is nothing to unsubscribe from");
  await loop.close();
  assert.is(stage.clock.timerCount, 0);
});

test.run();
