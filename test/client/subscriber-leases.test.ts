// Leases: kept alive while an event waits or is worked on, lost by their end or with the connection, and what is done about it.

import { test } from "uvu";
import * as assert from "uvu/assert";
import type { SubscribeOptions } from "../../src/bus/event-bus.ts";
import type { NarthexError } from "../../src/client/errors.ts";
import { type FakeConnection, raw, runsText, SubscriberStage } from "../support/fake-connection.ts";

const leaseMs = 3000;

async function staged(options: SubscribeOptions = {}) {
  const stage = new SubscriberStage();
  const connection = stage.connect();
  const subscription = await stage.subscribe(undefined, options);
  return { stage, connection, subscription };
}

function lostRun(offset: number, token: number, count = 1) {
  return { partition: 0, offset, count, epoch: 1, token };
}

/** Answers every extension that is open and gives what they named. */
function extensions(connection: FakeConnection): string[] {
  const open = connection.open.filter(({ op }) => op === "extend");
  for (const question of open) {
    assert.is(question.settle?.ms, leaseMs);
    connection.ok(question);
  }
  return open.flatMap(runsText);
}

// --------------------------------------------------------------------------------------------------------------- extending

test("leases of what waits and of what runs are extended in runs, for ten times their length", async () => {
  const { stage, connection } = await staged({ concurrency: 1 });
  connection.events([1, 2, 3], { ackDeadlineMs: leaseMs });
  const seen: string[][] = [];
  for (let ms = 0; ms < 10 * leaseMs; ms += leaseMs / 3) {
    stage.clock.advance(leaseMs / 3);
    await stage.turns();
    seen.push(extensions(connection));
  }
  assert.ok(
    seen.every((runs) => runs.join() === "0:0+3 1-1"),
    JSON.stringify(seen),
  );
  assert.is(seen.length, 30);
  assert.not(stage.runs[0].ctx.signal.aborted);
  stage.runs[0].end();
  await stage.turns();
  assert.equal(runsText(connection.question("ack")), ["0:0+1 1-1"]);
  stage.clock.advance(leaseMs / 3);
  await stage.turns();
  assert.equal(extensions(connection), ["0:1+2 1-2"], "not what is being acked");
});

test("what came a moment ago is left alone until it has less than two thirds", async () => {
  const { stage, connection } = await staged();
  connection.events([1], { ackDeadlineMs: leaseMs });
  stage.clock.advance(leaseMs / 3 - 10);
  connection.events([2], { offset: 1, ackDeadlineMs: leaseMs });
  stage.clock.advance(10);
  await stage.turns();
  assert.equal(extensions(connection), ["0:0+1 1-1"]);
  stage.clock.advance(leaseMs / 3);
  await stage.turns();
  assert.equal(extensions(connection), ["0:0+2 1-1"]);
});

test("no timer is left when nothing is out", async () => {
  const { stage, connection } = await staged();
  connection.events([1], { ackDeadlineMs: leaseMs });
  stage.runs[0].end();
  await stage.turns();
  connection.ok("ack");
  stage.clock.advance(leaseMs / 3);
  assert.is(stage.clock.timerCount, 0);
  assert.equal(connection.asked, ["SUBSCRIBE", "ack"]);
});

test("autoExtend: false leaves leases to themselves", async () => {
  const { stage, connection } = await staged({ autoExtend: false });
  connection.events([1], { ackDeadlineMs: leaseMs });
  stage.clock.advance(5 * leaseMs);
  await stage.turns();
  assert.equal(connection.asked, ["SUBSCRIBE"]);
});

test("with manualAck a lease is extended until the handler returned, and is forgotten when it must be over", async () => {
  const { stage, connection } = await staged({ manualAck: true });
  connection.events([1], { ackDeadlineMs: leaseMs });
  stage.clock.advance(leaseMs / 3);
  await stage.turns();
  assert.equal(extensions(connection), ["0:0+1 1-1"]);
  stage.runs[0].end();
  await stage.turns();
  stage.clock.advance(3 * leaseMs);
  await stage.turns();
  assert.equal(extensions(connection), []);
  assert.is(stage.clock.timerCount, 0);
  // By its context it can still be tried.
  const acked = stage.runs[0].ctx.ack();
  await stage.turns();
  connection.ok("ack", { lost: [lostRun(0, 1)] });
  assert.is((await acked).err, "lease_lost");
});

test("a longer extension of the handler's own is not cut short", async () => {
  const { stage, connection } = await staged();
  connection.events([1], { ackDeadlineMs: leaseMs });
  const extended = stage.runs[0].ctx.extend(10 * leaseMs);
  await stage.turns();
  assert.is(connection.question("extend").settle?.ms, 10 * leaseMs);
  connection.ok("extend");
  assert.ok((await extended).ok);
  stage.clock.advance(9 * leaseMs);
  await stage.turns();
  assert.equal(extensions(connection), []);
  stage.clock.advance(leaseMs / 2);
  await stage.turns();
  assert.equal(extensions(connection), ["0:0+1 1-1"]);
});

test("an extension that was refused changes nothing: the next one is made in time", async () => {
  const { stage, connection } = await staged();
  connection.events([1], { ackDeadlineMs: leaseMs });
  assert.is((await stage.runs[0].ctx.extend(Number.NaN)).err, "bad_option");
  stage.clock.advance(leaseMs / 3);
  await stage.turns();
  connection.refuse("extend", "internal");
  stage.clock.advance(leaseMs / 3);
  await stage.turns();
  assert.equal(extensions(connection), ["0:0+1 1-1"]);
});

test("a lease found lost aborts the handler; what had not begun is dropped without a word", async () => {
  const told: [string, unknown][] = [];
  const { stage, connection } = await staged({
    concurrency: 1,
    onError: (error, event) => void told.push([(error as NarthexError).code, event?.payload]),
  });
  connection.events([1, 2, 3], { ackDeadlineMs: leaseMs });
  const { signal } = stage.runs[0].ctx;
  // As after a SIGSTOP: the timer fires, much too late.
  stage.clock.advance(leaseMs / 3);
  await stage.turns();
  connection.ok("extend", { lost: [lostRun(0, 1, 2)] });
  assert.ok(signal.aborted);
  assert.is((signal.reason as NarthexError).code, "lease_lost");
  assert.is((await stage.runs[0].ctx.ack()).err, "lease_lost");
  stage.runs[0].end();
  await stage.turns();
  assert.equal(stage.payloads(), [1, 3]);
  assert.equal(told, [["lease_lost", 1]]);
  assert.not(connection.asked.includes("ack"), "it is known to be lost");
});

test("an extension that is refused for now is tried again", async () => {
  const { stage, connection } = await staged();
  connection.events([1], { ackDeadlineMs: leaseMs });
  stage.clock.advance(leaseMs / 3);
  await stage.turns();
  connection.refuse("extend", "unavailable");
  stage.clock.advance(100);
  assert.equal(extensions(connection), ["0:0+1 1-1"]);
  assert.not(stage.runs[0].ctx.signal.aborted);
});

// ---------------------------------------------------------------------------------------------------------------- retrying

test("an ack that is refused for now is said again while the lease can be ours, then told", async () => {
  const told: [string, unknown][] = [];
  const { stage, connection } = await staged({
    onError: (error, event) => void told.push([(error as NarthexError).code, event?.payload]),
  });
  connection.events([1, 2], { ackDeadlineMs: leaseMs });
  stage.runs[0].end();
  await stage.turns();
  connection.refuse("ack", "ack_failed");
  stage.clock.advance(100);
  assert.equal(runsText(connection.question("ack")), ["0:0+1 1-1"]);
  connection.refuse("ack", "overloaded", 500);
  stage.clock.advance(400);
  assert.not(connection.open.some(({ op }) => op === "ack"));
  stage.clock.advance(200);
  connection.ok("ack");
  assert.equal(told, []);

  stage.runs[1].end();
  await stage.turns();
  const started = stage.clock.mono();
  while (told.length === 0 && stage.clock.mono() < started + 10 * leaseMs) {
    if (connection.open.some(({ op }) => op === "ack")) connection.refuse("ack", "shutting_down");
    stage.clock.advance(100);
  }
  const waited = stage.clock.mono() - started;
  assert.ok(waited > leaseMs && waited < 4 * leaseMs, `${waited} ms`);
  assert.equal(told, [["shutting_down", 2]]);
});

test("an ack that is refused for good is told at once, and ctx says the code", async () => {
  const { stage, connection } = await staged();
  connection.events([1, 2]);
  stage.runs[0].end();
  const acked = stage.runs[1].ctx.ack();
  await stage.turns();
  connection.refuse("ack", "not_subscribed");
  assert.is((await acked).err, "not_subscribed");
  assert.equal(
    stage.errors.map((error) => (error as NarthexError).code),
    ["not_subscribed"],
  );
});

// ------------------------------------------------------------------------------------------------------- a lost connection

test("after a lost connection what had not begun is dropped, and comes again as it is delivered", async () => {
  const { stage, connection } = await staged({ concurrency: 1 });
  connection.events([1, 2, 3]);
  stage.lose();
  assert.is(stage.clock.timerCount, 0);
  stage.runs[0].end();
  await stage.turns();
  assert.equal(stage.payloads(), [1]);
  const next = stage.connect();
  next.events([1, 2, 3], { token: 50, attempt: 2 });
  await stage.turns();
  assert.equal(stage.payloads(), [1, 2], "the first was handled");
  assert.equal(runsText(next.question("ack")), ["0:0+1 1-50"]);
  assert.is(stage.runs[1].ctx.attempt, 2);
});

test("a handler that runs on gets the new lease of its event, and no second handler is started", async () => {
  const { stage, connection } = await staged();
  connection.events([1, raw("2", { id: "own:2" })], { ackDeadlineMs: leaseMs });
  const { signal } = stage.runs[0].ctx;
  stage.lose();
  assert.not(signal.aborted);
  const again = stage.connect();
  again.events([1, raw("2", { id: "own:2" })], { token: 50, epoch: 2, attempt: 2, ackDeadlineMs: leaseMs });
  assert.is(stage.runs.length, 2);
  assert.is(stage.runs[0].ctx.lease, "2-50");
  stage.clock.advance(leaseMs / 3);
  await stage.turns();
  assert.equal(extensions(again), ["0:0+2 2-50"]);
  for (const run of stage.runs) run.end();
  await stage.turns();
  assert.equal(runsText(again.question("ack")), ["0:0+2 2-50"]);
});

test("another event in the same place is another event", async () => {
  const { stage, connection } = await staged();
  connection.events([1]);
  stage.lose();
  stage.connect().events(["new"], { salt: 8, epoch: 2, token: 9 });
  assert.equal(stage.payloads(), [1, "new"]);
});

test("a shard that was opened anew takes its leases along, on a connection that lives", async () => {
  const { stage, connection } = await staged({ concurrency: 2 });
  connection.events([1, 2, 3]);
  connection.events([1, 2, 3], { epoch: 2, token: 60 });
  assert.equal(stage.payloads(), [1, 2]);
  stage.runs[0].end();
  stage.runs[1].end();
  await stage.turns();
  assert.equal(stage.payloads(), [1, 2, 3]);
  assert.equal(runsText(connection.question("ack")), ["0:0+2 2-60"]);
  stage.runs[2].end();
  await stage.turns();
  assert.is(stage.runs.length, 3, "what waited under the old lease is not started as well");
});

// ---------------------------------------------------------------------------------------------------------- lapsed leases

test("an event that is given out again has one handler here, which goes on under the newest lease", async () => {
  const { stage, connection } = await staged({ concurrency: 1 });
  connection.events([1, 2], { ackDeadlineMs: leaseMs });
  // As after a loop that was blocked: all of them were in the socket.
  for (const attempt of [2, 3]) {
    connection.events([1, 2], { token: 10 * attempt, attempt, ackDeadlineMs: leaseMs });
  }
  stage.runs[0].end();
  await stage.turns();
  stage.runs[1].end();
  await stage.turns();
  assert.equal(stage.payloads(), [1, 2]);
  assert.is(stage.runs[1].ctx.attempt, 3);
  assert.equal(connection.open.flatMap(runsText), ["0:0+1 1-30", "0:1+1 1-31"]);
});

test("a handler whose lease was found lost gets the next one all the same", async () => {
  const { stage, connection } = await staged();
  connection.events([1], { ackDeadlineMs: leaseMs });
  const { signal } = stage.runs[0].ctx;
  stage.clock.advance(leaseMs / 3);
  await stage.turns();
  connection.ok("extend", { lost: [lostRun(0, 1)] });
  assert.ok(signal.aborted);
  connection.events([1], { token: 9, attempt: 2, ackDeadlineMs: leaseMs });
  stage.runs[0].end();
  await stage.turns();
  assert.equal(stage.payloads(), [1]);
  assert.equal(runsText(connection.question("ack")), ["0:0+1 1-9"]);
  assert.equal(stage.errors, []);
});

test("an extension of the lease before does not count for the new one", async () => {
  const { stage, connection } = await staged();
  connection.events([1], { ackDeadlineMs: leaseMs });
  void stage.runs[0].ctx.extend(100 * leaseMs);
  await stage.turns();
  connection.events([1], { token: 9, attempt: 2, ackDeadlineMs: leaseMs });
  connection.ok("extend", { lost: [lostRun(0, 1)] });
  assert.not(stage.runs[0].ctx.signal.aborted);
  stage.clock.advance(leaseMs / 3);
  await stage.turns();
  assert.equal(extensions(connection), ["0:0+1 1-9"]);
});

test("what comes as its next attempt while its ack is under way is acked again, not handled", async () => {
  const { stage, connection } = await staged();
  connection.events([1]);
  stage.runs[0].end();
  await stage.turns();
  connection.events([1], { token: 9, attempt: 2 });
  await stage.turns();
  assert.equal(stage.payloads(), [1]);
  assert.equal(connection.open.flatMap(runsText), ["0:0+1 1-1", "0:0+1 1-9"]);
});

test("what is being acked by its id before it began, and comes as its next attempt, is acked again", async () => {
  const { stage, connection } = await staged({ concurrency: 1 });
  connection.events([1, raw("2", { id: "own:2" })]);
  const acked = stage.subscriber.settle("ack", "orders", "billing", "own:2");
  await stage.turns();
  connection.events([raw("2", { id: "own:2" })], { offset: 1, token: 9, attempt: 2 });
  await stage.turns();
  assert.equal(connection.open.flatMap(runsText), ["0:1+1 1-2", "0:1+1 1-9"]);
  connection.ok("ack", { lost: [lostRun(1, 2)] });
  assert.is((await acked).err, "lease_lost");
  stage.runs[0].end();
  await stage.turns();
  assert.equal(stage.payloads(), [1]);
});

test("a group that is moved back hands out its events again, to a handler that still runs when it has ended", async () => {
  const { stage, connection } = await staged();
  connection.events([1, 2, 3], { ackDeadlineMs: leaseMs });
  stage.runs[0].end();
  await stage.turns();
  // Attempts begin anew.
  connection.events([1, 2, 3], { token: 9, ackDeadlineMs: leaseMs });
  assert.equal(stage.payloads(), [1, 2, 3, 1]);
  for (const run of stage.runs.slice(1, 3)) assert.ok(run.ctx.signal.aborted);
  connection.events([1, 2, 3], { token: 20, attempt: 2, ackDeadlineMs: leaseMs });
  stage.clock.advance(leaseMs / 3);
  await stage.turns();
  assert.equal(extensions(connection), ["0:0+3 1-20"]);
  stage.runs[1].end();
  stage.runs[2].fail(new Error("no"));
  await stage.turns();
  assert.equal(stage.payloads(), [1, 2, 3, 1, 2, 3]);
  assert.equal(
    stage.errors.map((error) => (error as NarthexError).code),
    ["lease_lost", undefined],
  );
  assert.is(stage.runs[5].ctx.lease, "1-22");
});

test("with manualAck what returned and was not settled is handled again when it comes again", async () => {
  const { stage, connection } = await staged({ manualAck: true });
  connection.events([1]);
  stage.runs[0].end();
  await stage.turns();
  connection.events([1], { token: 9, attempt: 2 });
  assert.equal(stage.payloads(), [1, 1]);
});

test("what was handled while there was no connection is acked when it comes again, within a minute", async () => {
  const { stage, connection } = await staged();
  connection.events([1, 2, 3, 4]);
  stage.runs[0].end();
  await stage.turns();
  assert.equal(runsText(connection.question("ack")), ["0:0+1 1-1"], "under way when the connection goes");
  stage.lose();
  stage.runs[1].end();
  stage.runs[2].fail(new Error("no"));
  await stage.turns();
  const again = stage.connect();
  again.events([1, 2, 3], { token: 50, attempt: 2 });
  await stage.turns();
  assert.equal(runsText(again.question("ack")), ["0:0+2 1-50"]);
  assert.equal(stage.payloads(), [1, 2, 3, 4, 3], "what had failed is tried again");

  stage.lose();
  stage.runs[3].end();
  await stage.turns();
  stage.clock.advance(61_000);
  stage.connect().events([4], { offset: 3, token: 60, attempt: 3 });
  assert.equal(stage.payloads().slice(5), [4], "too long ago");
  assert.equal(
    stage.errors.map(({ message }) => message),
    ["no"],
  );
});

/** Handled, and the answer to the ack was lost with the connection. */
async function handledAndLost(position: string) {
  const { stage, connection } = await staged();
  connection.events([1, 2]);
  stage.runs[1].end();
  await stage.turns();
  stage.lose();
  const again = stage.connect(false);
  again.subscribed("SUBSCRIBE", { position });
  return { stage, again };
}

test("what the cursor has passed by the next connection was acked: if it comes again it is handled again", async () => {
  const passed = await handledAndLost("0:2");
  passed.again.events([2], { offset: 1, token: 50 });
  assert.equal(passed.stage.payloads(), [1, 2, 2]);
  const open = await handledAndLost("0:1");
  open.again.events([2], { offset: 1, token: 50 });
  assert.equal(open.stage.payloads(), [1, 2]);
});

test("when this client moves its group nothing counts as handled", async () => {
  const { stage, again } = await handledAndLost("0:0");
  stage.subscriber.sought("orders", "billing");
  stage.subscriber.sought("orders", "nobody");
  again.events([1, 2], { token: 50 });
  assert.equal(stage.payloads(), [1, 2, 2], "the first has its handler still");
  stage.runs[0].end();
  await stage.turns();
  assert.equal(stage.payloads(), [1, 2, 2, 1]);
});

test("ctx.ack without a connection says so; the event is acked with the handler's end, once it came again", async () => {
  const { stage, connection } = await staged();
  connection.events([1]);
  const { ctx, event } = stage.runs[0];
  const underWay = ctx.ack();
  await stage.turns();
  stage.lose();
  const lost = { id: event.id, ok: false, err: "connection_lost" };
  assert.equal(await underWay, lost);
  assert.equal(await ctx.ack(), lost);
  assert.equal(await ctx.extend(1000), lost);
  const again = stage.connect();
  again.events([1], { token: 9, attempt: 2 });
  assert.is(stage.runs.length, 1);
  stage.runs[0].end();
  await stage.turns();
  assert.equal(runsText(again.question("ack")), ["0:0+1 1-9"]);
});

test("with manualAck an event whose handler returned is delivered again", async () => {
  const { stage, connection } = await staged({ manualAck: true });
  connection.events([1, 2]);
  stage.runs[0].end();
  await stage.turns();
  stage.lose();
  stage.runs[1].end();
  await stage.turns();
  assert.is((await stage.runs[0].ctx.ack()).err, "connection_lost");
  stage.connect().events([1, 2], { token: 9, attempt: 2 });
  assert.equal(stage.payloads(), [1, 2, 1, 2]);
});

test("acks that wait to be said again are given up with the connection, and made up for later", async () => {
  const { stage, connection } = await staged();
  connection.events([1, 2]);
  stage.runs[0].end();
  const asked = stage.runs[1].ctx.ack();
  await stage.turns();
  connection.refuse("ack", "unavailable");
  stage.lose();
  assert.is(stage.clock.timerCount, 0);
  assert.is((await asked).err, "connection_lost");
  const again = stage.connect();
  again.events([1, 2], { token: 9 });
  await stage.turns();
  assert.equal(runsText(again.question("ack")), ["0:0+1 1-9"]);
  assert.is(stage.runs.length, 2);
});

test("a loop keeps its event over a lost connection", async () => {
  const stage = new SubscriberStage();
  const connection = stage.connect();
  const subscription = await stage.loop();
  const iterator = subscription[Symbol.asyncIterator]();
  connection.events([1, 2]);
  assert.is((await iterator.next()).value.event.payload, 1);
  stage.lose();
  const again = stage.connect();
  again.events([1, 2], { token: 9, attempt: 2 });
  assert.is((await iterator.next()).value.event.payload, 2);
  await stage.turns();
  assert.equal(runsText(again.question("ack")), ["0:0+1 1-9"]);
});

// ---------------------------------------------------------------------------------------------------------- resubscribing

test("resubscribing says the same options again, and waits out refusals that pass", async () => {
  const stage = new SubscriberStage();
  stage.connect();
  await stage.subscribe(undefined, { from: "afterId", afterId: "x", maxAttempts: 3 });
  stage.lose();
  const connection = stage.connect(false);
  const opts = { from: "afterId", afterId: "x", maxAttempts: 3 };
  assert.equal(connection.question("SUBSCRIBE").frame.opts, opts);
  for (const code of ["shutting_down", "unavailable"] as const) {
    connection.refuse("SUBSCRIBE", code);
    stage.clock.advance(200);
  }
  // On the next connection it begins anew.
  connection.refuse("SUBSCRIBE", "unavailable");
  stage.lose();
  const third = stage.connect();
  stage.clock.advance(10_000);
  assert.equal(third.asked, ["SUBSCRIBE"]);
  third.events([1]);
  assert.equal(stage.payloads(), [1]);
});

test("an ephemeral group goes on at the lowest event that is not settled, in each partition", async () => {
  const stage = new SubscriberStage();
  const first = stage.connect(false);
  const subscribed = stage.subscribe(undefined, { ephemeral: true, from: "ts", ts: 5, maxAttempts: 2 });
  await stage.turns();
  first.subscribed("SUBSCRIBE", { position: "0:10,1:20,2:30" });
  await subscribed;
  first.events([0, 1, 2, 3], { offset: 10, partition: 0 });
  first.events([4, 5], { offset: 20, partition: 1, attempt: 2, maxAttempts: 2 });
  for (const i of [0, 1, 3, 4]) stage.runs[i].end();
  stage.runs[2].fail(new Error("goes back"));
  stage.runs[5].fail(new Error("dead letter"));
  await stage.turns();
  first.ok("ack");
  first.ok("NACK");
  first.ok("NACK");
  stage.lose();
  const second = stage.connect();
  assert.equal(second.asked, ["SUBSCRIBE"]);
  stage.lose();
  const third = stage.connect(false);
  assert.equal(third.question("SUBSCRIBE").frame.opts, {
    ephemeral: true,
    maxAttempts: 2,
    from: "offsets",
    offsets: "0:12,1:22,2:30",
  });
});

test("an ephemeral group of which nothing came begins where it began", async () => {
  const stage = new SubscriberStage();
  const first = stage.connect(false);
  const subscribed = stage.subscribe(undefined, { ephemeral: true });
  await stage.turns();
  first.subscribed("SUBSCRIBE", { position: "0:7" });
  await subscribed;
  stage.lose();
  const opts = stage.connect(false).question("SUBSCRIBE").frame.opts;
  assert.equal(opts, { ephemeral: true, from: "offsets", offsets: "0:7" });
});

test.run();
