// The life of a client over connections that come and go, against a node that the test plays.

import { test } from "uvu";
import * as assert from "uvu/assert";
import { type ClientOptions, EventClient, type NarthexError } from "../../src/client/client.ts";
import { clientClockOf, fakeDial, ManualClock, settle } from "../support/fake-dial.ts";

function stage(options: ClientOptions = {}) {
  const clock = new ManualClock();
  const node = fakeDial();
  const statuses: string[] = [];
  const client = new EventClient("ws://node", {
    ...options,
    dial: node.dial,
    clock: clientClockOf(clock),
    onStatus: (status) => void statuses.push(status),
  });
  const pass = async (ms = 0) => {
    await settle();
    clock.advance(ms);
    clock.turn();
    await settle();
  };
  return { clock, node, client, statuses, pass };
}

async function open(options: ClientOptions = {}) {
  const parts = stage(options);
  await parts.pass();
  parts.node.last().admit();
  await parts.client.ready();
  await parts.pass();
  return parts;
}

/** What became of the promise, as far as it is known now. */
function watch(promise: Promise<unknown>): () => string {
  let state = "pending";
  promise.then(
    () => (state = "resolved"),
    (error: NarthexError) => (state = error.code),
  );
  return () => state;
}

test("a first connection that cannot be had is tried again until its time is over", async () => {
  const { node, client, pass } = stage({ connectTimeoutMs: 1000 });
  const ready = watch(client.ready());
  await pass();
  node.last().drop(1006, "ECONNREFUSED");
  await pass(60);
  assert.is(node.wires.length, 2);
  for (let i = 0; i < 30; i++) {
    node.last().drop(1006, "ECONNREFUSED");
    await pass(100);
  }
  assert.is(ready(), "connect_failed");
  assert.is(client.status, "closed");
});

test("a token that is text and refused ends it, one of a function is asked for anew", async () => {
  const fixed = stage({ token: "old" });
  const ready = watch(fixed.client.ready());
  await fixed.pass();
  fixed.node.last().events.opened();
  fixed.node.last().refuse("AUTH", "bad_token");
  await fixed.pass();
  assert.is(ready(), "bad_token");

  const tokens = ["old", "new"];
  const asked = stage({ token: async () => tokens.shift() as string });
  await asked.pass();
  asked.node.last().events.opened();
  asked.node.last().refuse("AUTH", "bad_token");
  await asked.pass(100);
  asked.node.last().events.opened();
  assert.is(asked.node.last().last("AUTH").token, "new");
});

test("a token that never comes is a connection that cannot be had", async () => {
  const { client, pass, node } = stage({ token: () => new Promise(() => undefined), connectTimeoutMs: 1000 });
  const ready = watch(client.ready());
  await pass(1000);
  await pass(1000);
  assert.is(ready(), "connect_failed");
  assert.is(node.wires.length, 0);
});

test("a token that is refused without a reason is tried again, and destroy ends the wait for one", async () => {
  const nothing = stage({ token: () => Promise.reject(undefined), connectTimeoutMs: 1000 });
  const ready = watch(nothing.client.ready());
  for (let i = 0; i < 20; i++) await nothing.pass(100);
  assert.is(ready(), "connect_failed");
  const hanging = stage({ token: () => new Promise(() => undefined) });
  await hanging.pass();
  hanging.client.destroy();
  await hanging.pass();
  assert.is(hanging.clock.timerCount, 0);
});

test("reauthenticate ends in its own time", async () => {
  let hangs = false;
  const token = () => (hangs ? new Promise<string>(() => undefined) : "token");
  const { client, pass, node } = await open({ token, requestTimeoutMs: 500 });
  const unanswered = watch(client.reauthenticate());
  await pass(500);
  assert.is(unanswered(), "timeout");
  assert.is(node.last().texts.filter(({ op }) => op === "AUTH").length, 2);
  hangs = true;
  const without = watch(client.reauthenticate());
  await pass(500);
  assert.is(without(), "timeout");
});

test("a lost connection is made again, and what was asked meanwhile is asked then", async () => {
  const { client, node, pass, statuses } = await open();
  node.last().drop();
  const cursor = client.getCursor("orders", "billing");
  await pass(100);
  assert.is(node.wires.length, 2);
  node.last().admit();
  await pass();
  node.last().answer("CURSOR", { exists: true, lag: 3, partitions: [] });
  assert.equal(await cursor, { topic: "orders", group: "billing", lag: 3, partitions: [] });
  assert.equal(statuses, ["open", "reconnecting", "open"]);
});

test("pauses grow while connections end at once, and begin anew after one that lived", async () => {
  const { node, pass, clock } = await open();
  const pauses: number[] = [];
  for (let i = 0; i < 8; i++) {
    node.last().drop();
    const before = clock.mono();
    const count = node.wires.length;
    while (node.wires.length === count) await pass(10);
    pauses.push(clock.mono() - before);
    node.last().admit();
    await pass();
  }
  assert.ok(pauses[7] >= 1600 && pauses[7] > 10 * pauses[0], pauses.join(" "));
  await pass(1000);
  node.last().drop();
  const count = node.wires.length;
  await pass(60);
  assert.is(node.wires.length, count + 1);
});

test("a connection that ends in the turn of its AUTH is made again", async () => {
  const { node, client, pass } = stage();
  await pass();
  node.last().admit();
  node.last().drop();
  await pass(100);
  assert.is(node.wires.length, 2);
  node.last().admit();
  await client.ready();
  assert.is(client.status, "open");
});

test("a question that is not answered ends in its own time", async () => {
  const { client, node, pass } = await open({ requestTimeoutMs: 2000 });
  const cursor = watch(client.getCursor("orders", "billing"));
  await pass(1999);
  assert.is(cursor(), "pending");
  await pass(1);
  assert.is(cursor(), "timeout");
  assert.is(node.wires.length, 1);
});

test("what cannot be written as JSON is refused and disturbs nothing", async () => {
  const { client, node, pass } = await open();
  const latest = watch(client.latestByKey("orders", [1n as unknown as string]));
  const filter: Record<string, unknown> = {};
  filter.headers = filter;
  const subscribed = watch(client.subscribe("orders", "billing", () => undefined, { filter }));
  await pass();
  assert.equal([latest(), subscribed()], ["bad_option", "bad_option"]);
  const again = watch(client.subscribe("orders", "billing", () => undefined));
  await pass();
  node.last().answer("SUBSCRIBE", { resumed: false, position: "0:0", handle: 1 });
  await pass();
  assert.is(again(), "resolved");
  node.last().drop();
  await pass(100);
  node.last().admit();
  await pass(1000);
  assert.is(node.wires.length, 2);
});

test("destroy settles everything and leaves neither a timer nor a connection", async () => {
  const { client, clock, node, pass } = await open();
  const publish = watch(client.publish("orders", 1));
  const cursor = watch(client.getCursor("orders", "billing"));
  const subscribed = watch(client.subscribe("orders", "billing", () => undefined));
  await pass();
  client.destroy();
  await pass();
  assert.equal([publish(), cursor(), subscribed()], ["closed", "closed", "closed"]);
  assert.is(node.last().closed, true);
  assert.is(clock.timerCount, 0);
  assert.is(watch(client.ready())(), "pending");
  await pass();
  assert.is(client.status, "closed");
});

test("destroy while connecting ends the connection that is being made", async () => {
  const { client, clock, node, pass } = stage();
  const ready = watch(client.ready());
  await pass();
  node.last().events.opened();
  client.destroy();
  await pass();
  assert.is(ready(), "closed");
  assert.is(node.last().closed, true);
  assert.is(clock.timerCount, 0);
});

test("without reconnecting a lost connection is the end", async () => {
  const { client, node, pass } = await open({ reconnect: false });
  const cursor = watch(client.getCursor("orders", "billing"));
  const publish = watch(client.publish("orders", 1));
  await pass();
  node.last().drop();
  await pass();
  assert.equal([cursor(), publish()], ["connection_lost", "connection_lost"]);
  assert.is(client.status, "closed");
});

test("addresses and options that mean nothing are refused by name", () => {
  const code = (make: () => unknown) => {
    try {
      make();
    } catch (error) {
      return (error as NarthexError).code;
    }
    return "made";
  };
  const { dial } = fakeDial();
  for (const url of ["", "node", "ftp://node", "ws://user:secret@node"]) {
    assert.is(
      code(() => new EventClient(url)),
      "bad_option",
    );
  }
  assert.is(
    code(() => new EventClient("ws://node", { dial, requestTimeout: 5 } as ClientOptions)),
    "bad_option",
  );
  assert.is(
    code(() => new EventClient("ws://node", { dial, maxPending: 0 })),
    "bad_option",
  );
});

test.run();
