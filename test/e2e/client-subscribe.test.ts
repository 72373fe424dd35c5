// The consuming half of the client against real nodes: over restarts, stopped processes and lost connections.

import { type ChildProcess, spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { test } from "uvu";
import * as assert from "uvu/assert";
import type { Context, EventRecord, SubscribeOptions } from "../../src/bus/event-bus.ts";
import type { NarthexError } from "../../src/client/errors.ts";
import { BatchClient, fill } from "../support/batch-client.ts";
import { type ConsumerHere, openConsumer } from "../support/consumer.ts";
import { eventually, pause, within } from "../support/deadline.ts";
import { httpTopics } from "../support/http-topics.ts";
import { startHere } from "../support/node-here.ts";
import { dataFolder, type NodeProcess, startNode } from "../support/node-process.ts";
import { PlainClient } from "../support/plain-client.ts";

const data = dataFolder();
const rates = { CONN_RATE: "off", TOPIC_RATE: "off" };
let node: NodeProcess;
let publisher: PlainClient;
const consumers: ConsumerHere[] = [];

test.before(async () => {
  node = await startNode({ data: data.path, env: rates });
  publisher = await PlainClient.open(node.wsUrl);
});

test.after.each(() => {
  for (const consumer of consumers.splice(0)) consumer.destroy();
});

test.after(async () => {
  await publisher.close();
  await node.kill("SIGKILL");
  data.remove();
});

async function consumer(): Promise<ConsumerHere> {
  const made = await openConsumer(node.wsUrl);
  consumers.push(made);
  return made;
}

/** kill -9, and again on the same port. */
async function restart(while_: () => Promise<void> = async () => undefined): Promise<void> {
  await node.kill("SIGKILL");
  await while_();
  node = await startNode({ data: data.path, env: { ...rates, WS_PORT: String(node.ports.ws) } });
  publisher = await PlainClient.open(node.wsUrl);
}

async function lag(topic: string, group: string): Promise<number> {
  return (await publisher.ok({ op: "CURSOR", topic, group })).lag as number;
}

const settled = (topic: string, group: string) =>
  eventually(10_000, `${group} has settled ${topic}`, async () => (await lag(topic, group)) === 0);

interface Run {
  readonly event: EventRecord<unknown>;
  readonly ctx: Context;
  readonly end: () => void;
}

/** A handler whose runs end when the test wants it. */
function gated() {
  const runs: Run[] = [];
  const handler = (event: EventRecord<unknown>, ctx: Context) =>
    new Promise<void>((resolve) => void runs.push({ event, ctx, end: () => resolve() }));
  return { runs, handler };
}

async function exported(topic: string): Promise<EventRecord[]> {
  const text = await (await fetch(`${node.http}/export?topic=${topic}`)).text();
  return text
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => JSON.parse(line) as EventRecord);
}

test("every event arrives as it is stored, once, and is settled", async () => {
  await httpTopics(node.http).makeTopic("identity", 3);
  const filler = await BatchClient.open(node.wsUrl);
  const payload = (n: number) => (n % 7 === 0 ? `"ünï ${n}"` : `{"n":${n}}`);
  await fill(filler, "identity", { count: 3000, payload, key: (n) => `k${n % 50}` });
  filler.close();
  await publisher.publish(
    "identity",
    { own: true },
    { id: "own:1", ts: 17, key: "k1", headers: { h: "v" }, tags: ["eu"], caused_by: ["x:1"], sid: "s" },
  );
  const seen = new Map<string, EventRecord<unknown>>();
  let twice = 0;
  const { subscriber } = await consumer();
  const stop = await subscriber.subscribe(
    ["identity"],
    "g",
    async (event) => {
      if (seen.has(event.id)) twice++;
      seen.set(event.id, event);
    },
    { from: "earliest", maxInflight: 500 },
  );
  await eventually(10_000, "all came", () => seen.size === 3001);
  await settled("identity", "g");
  await stop();
  const stored = await exported("identity");
  assert.equal(
    stored.map(({ id }) => seen.get(id)),
    stored,
  );
  assert.is(twice, 0);
});

test("a nacked event comes again, and becomes a dead letter with the handler's words", async () => {
  const { subscriber } = await consumer();
  const attempts: [number, number][] = [];
  const errors: string[] = [];
  const letters: EventRecord<unknown>[] = [];
  await subscriber.subscribe(
    ["poison"],
    "g",
    async (event, ctx) => {
      attempts.push([event.payload as number, ctx.attempt]);
      if (event.payload === 13) throw new Error(`no luck with attempt ${ctx.attempt}`);
    },
    { from: "earliest", maxAttempts: 3, onError: (error) => void errors.push(error.message) },
  );
  await subscriber.subscribe(["poison.dlq.g"], "morgue", (event) => void letters.push(event), { from: "earliest" });
  for (const n of [12, 13, 14]) await publisher.publish("poison", n);
  await eventually(10_000, "a dead letter", () => letters.length === 1);
  await settled("poison", "g");
  assert.equal(attempts.toSorted(), [
    [12, 1],
    [13, 1],
    [13, 2],
    [13, 3],
    [14, 1],
  ]);
  assert.is(letters[0].payload, 13);
  assert.is(letters[0].headers?.["x-dlq-reason"], "no luck with attempt 3");
  assert.equal(errors, ["no luck with attempt 1", "no luck with attempt 2", "no luck with attempt 3"]);
});

test("a handler of ten times ackTimeoutMs keeps its lease, and so does what waits behind it", async () => {
  const options: SubscribeOptions = { from: "earliest", ackTimeoutMs: 300, concurrency: 1 };
  const one = await consumer();
  const { runs, handler } = gated();
  await one.subscriber.subscribe(["slow"], "g", handler, options);
  for (const n of [1, 2, 3]) await publisher.publish("slow", n);
  await eventually(5000, "it began", () => runs.length === 1);
  const other = await consumer();
  const stolen: unknown[] = [];
  await other.subscriber.subscribe(["slow"], "g", (event) => void stolen.push(event.payload), options);
  await pause(3000);
  assert.equal(stolen, []);
  assert.not(runs[0].ctx.signal.aborted);
  for (const n of [0, 1, 2]) {
    await eventually(5000, "the next begins", () => runs.length > n);
    runs[n].end();
  }
  await settled("slow", "g");
  assert.equal(
    runs.map(({ event, ctx }) => [event.payload, ctx.attempt]),
    [
      [1, 1],
      [2, 1],
      [3, 1],
    ],
  );
  assert.equal([...one.errors, ...other.errors], []);
});

test("a handler that runs while the node is killed and started again runs once, and its event is acked", async () => {
  const { subscriber, errors } = await consumer();
  const { runs, handler } = gated();
  await subscriber.subscribe(["restart"], "g", handler, { from: "earliest" });
  for (const n of [1, 2, 3]) await publisher.publish("restart", n);
  await eventually(5000, "all began", () => runs.length === 3);
  const leases = runs.map(({ ctx }) => ctx.lease);
  // One ends while there is no node, one when it is back, under its new lease.
  await restart(async () => runs[0].end());
  await eventually(10_000, "the leases are new", () => runs[1].ctx.lease !== leases[1]);
  runs[1].end();
  const result = await runs[2].ctx.ack();
  assert.equal(result, { id: runs[2].event.id, ok: true });
  runs[2].end();
  await settled("restart", "g");
  assert.is(runs.length, 3);
  assert.equal(errors, []);
});

test("a worker that dies takes the leases along, not the handlers", async () => {
  const folder = dataFolder();
  const here = await startHere({ store: "log", dataPath: folder.path, workers: 1 }, { testing: true });
  const client = await PlainClient.open(here.ws);
  const { subscriber, destroy } = await openConsumer(here.ws);
  const { runs, handler } = gated();
  await subscriber.subscribe(["crash"], "g", handler, { from: "earliest" });
  await client.publish("crash", 1);
  await eventually(5000, "it began", () => runs.length === 1);
  const { lease } = runs[0].ctx;
  here.node.system.crash(0, "throw");
  await eventually(10_000, "the lease is new", () => runs[0].ctx.lease !== lease);
  runs[0].end();
  await eventually(5000, "it is settled", async () => {
    return (await client.ok({ op: "CURSOR", topic: "crash", group: "g" })).lag === 0;
  });
  assert.is(runs.length, 1);
  destroy();
  await client.close();
  await here.node.destroy();
  folder.remove();
});

// ------------------------------------------------------------------------------------------------------------ processes

interface Line {
  readonly ready?: true;
  readonly started?: string;
  readonly attempt?: number;
  readonly aborted?: string;
  readonly acked?: { readonly ok: boolean; readonly err?: string };
}

function stoppable(topic: string, group: string, ackTimeoutMs: number) {
  const program = fileURLToPath(new URL("./e2e-stopped-consumer.entry.js", import.meta.url));
  const child: ChildProcess = spawn(process.execPath, [program, node.wsUrl, topic, group, String(ackTimeoutMs)], {
    stdio: ["pipe", "pipe", "inherit"],
  });
  const lines: Line[] = [];
  createInterface(child.stdout as NodeJS.ReadableStream).on("line", (line) => lines.push(JSON.parse(line) as Line));
  const said = async <Name extends keyof Line>(name: Name): Promise<NonNullable<Line[Name]>> => {
    const line = await eventually(10_000, `it says ${name}`, () => lines.find((one) => one[name] !== undefined));
    return line[name] as NonNullable<Line[Name]>;
  };
  return { child, said };
}

test("a stopped process loses its lease to another member, and its late ack is lease_lost", async () => {
  const { child, said } = stoppable("stop", "g", 500);
  try {
    await said("ready");
    const { id } = await publisher.publish("stop", { n: 1 });
    assert.is(await said("started"), id);
    child.kill("SIGSTOP");
    const { subscriber } = await consumer();
    const { runs, handler } = gated();
    await subscriber.subscribe(["stop"], "g", handler, { from: "earliest" });
    await eventually(10_000, "the event moves", () => runs.length === 1);
    assert.is(runs[0].event.id, id);
    // Before it came here it may have gone to the stopped one again, which is still a member.
    assert.ok(runs[0].ctx.attempt >= 2);
    child.kill("SIGCONT");
    assert.is(await said("aborted"), id);
    child.stdin?.write("ack\n");
    const { ok, err } = await said("acked");
    assert.equal([ok, err], [false, "lease_lost"]);
    assert.is(await lag("stop", "g"), 1);
    runs[0].end();
    await settled("stop", "g");
  } finally {
    child.kill("SIGKILL");
  }
});

// ------------------------------------------------------------------------------------------------------------- steering

test("pause and resume", async () => {
  const { subscriber, cut } = await consumer();
  const seen: unknown[] = [];
  const subscription = await subscriber.subscribe(["paused"], "g", (event) => void seen.push(event.payload), {});
  await publisher.publish("paused", 1);
  await eventually(5000, "the first came", () => seen.length === 1);
  await subscription.pause();
  await publisher.publish("paused", 2);
  cut();
  const { subscriber: other } = await consumer();
  const control: unknown[] = [];
  await other.subscribe(["paused"], "control", (event) => void control.push(event.payload), { from: "earliest" });
  await eventually(5000, "others go on", () => control.length === 2);
  assert.equal(seen, [1]);
  await subscription.resume();
  await eventually(5000, "it goes on", () => seen.length === 2);
  assert.equal(seen, [1, 2]);
});

test("with ordering by key the events of a key come one after the other, retries included", async () => {
  const { subscriber } = await consumer();
  const running = new Map<string, number>();
  const done = new Map<string, number[]>();
  let overlaps = 0;
  await subscriber.subscribe(
    ["keys"],
    "g",
    async (event, ctx) => {
      const key = event.key as string;
      if ((running.get(key) ?? 0) > 0) overlaps++;
      running.set(key, (running.get(key) ?? 0) + 1);
      await new Promise((resolve) => setImmediate(resolve));
      running.set(key, (running.get(key) ?? 0) - 1);
      const n = event.payload as number;
      if (n % 10 === 3 && ctx.attempt === 1) throw new Error("the first time");
      done.set(key, [...(done.get(key) ?? []), n]);
    },
    { from: "earliest", ordering: "key", onError: () => undefined },
  );
  const filler = await BatchClient.open(node.wsUrl);
  await fill(filler, "keys", { count: 400, payload: String, key: (n) => `k${n % 4}` });
  filler.close();
  await settled("keys", "g");
  assert.is(overlaps, 0);
  for (const [k, list] of done) {
    const key = Number(k.slice(1));
    assert.equal(
      list,
      Array.from({ length: 100 }, (_, i) => 4 * i + key),
    );
  }
});

for (const how of ["a lost connection", "a restart of the node"]) {
  test(`an ephemeral group loses nothing over ${how}`, async () => {
    const topic = `ephemeral-${how.length}`;
    for (const n of [1, 2, 3]) await publisher.publish(topic, n);
    const one = await consumer();
    const seen: unknown[] = [];
    let open = (): void => undefined;
    const gate = new Promise<void>((resolve) => {
      open = resolve;
    });
    await one.subscriber.subscribe(
      [topic],
      "g",
      async (event) => {
        // The second is still out when the others are settled.
        if (event.payload === 5) await gate;
        seen.push(event.payload);
      },
      { ephemeral: true },
    );
    for (const n of [4, 5, 6]) await publisher.publish(topic, n);
    await eventually(5000, "two are done", () => seen.length === 2);
    await eventually(5000, "and acked", async () => (await lag(topic, "g")) === 1);
    if (how === "a lost connection") {
      // The group is gone while nobody is there, and something is published in between.
      one.cut();
      await publisher.publish(topic, 7);
    } else {
      await restart();
      await publisher.publish(topic, 7);
    }
    await publisher.publish(topic, 8);
    await eventually(10_000, "it goes on", () => seen.includes(8));
    open();
    await eventually(5000, "all came", () => seen.length >= 5);
    await settled(topic, "g");
    assert.equal([...new Set(seen)].sort(), [4, 5, 6, 7, 8]);
    assert.is(seen.filter((n) => n === 5).length, 1);
  });
}

// ----------------------------------------------------------------------------------------------------------- the context

test("ctx.signal aborts when a seek takes the lease away, and the event is handled again", async () => {
  const { subscriber } = await consumer();
  const { runs, handler } = gated();
  const told: [string, unknown][] = [];
  await subscriber.subscribe(["seek"], "g", handler, {
    from: "earliest",
    ackTimeoutMs: 300,
    onError: (error, event) => void told.push([(error as NarthexError).code, event?.payload]),
  });
  await publisher.publish("seek", "x");
  await eventually(5000, "it began", () => runs.length === 1);
  const { signal } = runs[0].ctx;
  await publisher.ok({ op: "CURSOR", topic: "seek", group: "g", set: "earliest" });
  await eventually(5000, "the signal", () => signal.aborted);
  assert.is(runs.length, 1, "one handler at a time");
  runs[0].end();
  await eventually(5000, "it came again", () => runs.length === 2);
  await eventually(5000, "it was told", () => told.length === 1);
  assert.equal(told, [["lease_lost", "x"]]);
  runs[1].end();
  await settled("seek", "g");
});

test("a loop over real events, left by break", async () => {
  const { subscriber } = await consumer();
  for (const n of [1, 2, 3]) await publisher.publish("loop", n);
  const seen: unknown[] = [];
  const subscription = await subscriber.subscribe(["loop"], "g", undefined, { from: "earliest" });
  for await (const { event } of subscription) {
    seen.push(event.payload);
    if (event.payload === 2) break;
  }
  assert.equal(seen, [1, 2]);
  assert.is(await lag("loop", "g"), 2, "the event at hand and the one behind it went back");
});

test("a consumer that closes gives back what it never began with, uncounted", async () => {
  const options = { from: "earliest", maxAttempts: 1, maxInflight: 100, concurrency: 1 } as const;
  const all = Array.from({ length: 100 }, (_, n) => n);
  for (const n of all) await publisher.publish("handover", n);
  const first = gated();
  const stop = await (await consumer()).subscriber.subscribe(["handover"], "g", first.handler, options);
  await eventually(5000, "the first runs and the rest is prefetched", async () => {
    const explained = await (await fetch(`${node.http}/explain?topic=handover&group=g`)).json();
    const [{ leased }] = (explained as { readonly partitions: readonly { readonly leased: number }[] }).partitions;
    return first.runs.length === 1 && leased === 100;
  });
  const seen: [unknown, number][] = [];
  await (await consumer()).subscriber.subscribe(
    ["handover"],
    "g",
    (event, ctx) => void seen.push([event.payload, ctx.attempt]),
    options,
  );
  const stopped = stop();
  await eventually(10_000, "the second has the rest while the first runs", () => seen.length === 99);
  first.runs[0].end();
  await within(5000, "the first is closed", stopped);
  await settled("handover", "g");
  assert.equal(
    seen,
    all.slice(1).map((n) => [n, 1]),
    "each, in order, as its first attempt",
  );
  assert.equal(
    first.runs.map(({ event }) => event.payload),
    [0],
  );
  const dead = await fetch(`${node.http}/export?topic=handover.dlq.g`);
  assert.is(dead.status, 404, "no dead letter was ever made");
});

test("a topic that is deleted ends its subscription", async () => {
  const { subscriber, errors } = await consumer();
  const subscription = await subscriber.subscribe(["deleted"], "g", () => undefined, {});
  await httpTopics(node.http).deleteTopic("deleted");
  let code: string | undefined;
  await within(
    5000,
    "it ends",
    subscription.closed.catch((error: NarthexError) => {
      code = error.code;
    }),
  );
  assert.is(code, "unknown_topic");
  assert.equal(
    errors.map((error) => (error as NarthexError).code),
    ["unknown_topic"],
  );
});

test.run();
