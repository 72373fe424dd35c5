// Threads that stand still: the front, a worker, the whole process. And a worker that loops for ever, which is ended.

import { test } from "uvu";
import * as assert from "uvu/assert";
import { eventually, pause } from "../support/deadline.ts";
import { Load } from "../support/fault-load.ts";
import { compare, type Hurt, hurtTest, longTest } from "../support/hurt-node.ts";
import { busyFor, Inspector } from "../support/inspector.ts";
import { type NodeProcess, runNode } from "../support/node-process.ts";
import { type EventFrame, PlainClient } from "../support/plain-client.ts";
import { metric, readiness, untilReady } from "../support/watch-node.ts";

const topics = ["left", "right"];

/** With an inspector on a port that the system picks. */
async function inspected(hurt: Hurt): Promise<{ node: NodeProcess; inspector: Inspector }> {
  const node = await hurt.start({ healthy: true, env: { NODE_OPTIONS: "--inspect=127.0.0.1:0" } });
  return { node, inspector: await Inspector.open(node, 2) };
}

hurtTest(
  "G4: a front that is busy for 5 s loses no lease and no connection, and its folder is not taken",
  async (hurt) => {
    const { node, inspector } = await inspected(hurt);
    const load = new Load({ topics, ackTimeoutMs: 2000 });
    await load.start(node.wsUrl);
    await load.progress(20, 10_000, "load before");
    inspector.inMain(busyFor(5000));
    const began = performance.now();
    const second = await runNode(hurt.options({ healthy: true }));
    assert.is(second.code, 1);
    assert.match(second.out, /is in use by process \d+/);
    const answered = await fetch(`${node.http}/health/live`);
    assert.is(answered.status, 200);
    assert.ok(performance.now() - began > 3000, "the front was busy");
    const lag = await metric(node.http, "loop_lag_ms");
    assert.ok(
      [...lag].some(([labels, ms]) => labels.includes("front") && ms > 3000),
      "and says so",
    );
    await load.progress(20, 5000, "load goes on on the same connections");
    assert.is((await readiness(node.http)).status, 200);
    for (const code of load.codes()) assert.match(code, /^n?ack lease_lost$/);
    inspector.close();
    await compare(hurt, node, load);
  },
);

longTest(
  "G4: a worker that is busy for 5 s stops its own shard only, and nothing is delivered twice at a time",
  async (hurt) => {
    const { node, inspector } = await inspected(hurt);
    const load = new Load({ topics, ackTimeoutMs: 2000 });
    await load.start(node.wsUrl);
    await load.progress(20, 10_000, "load before");
    const before = topics.map((topic) => load.count(topic));
    inspector.inWorker(0, busyFor(5000));
    await pause(3000);
    const grown = topics.map((topic, i) => load.count(topic) - before[i]).sort((a, b) => a - b);
    assert.ok(grown[0] <= 4 && grown[1] > 10, `the other shard goes on: ${grown}`);
    await load.progress(20, 8000, "both go on");
    for (const code of load.codes()) assert.match(code, /^n?ack lease_lost$/);
    inspector.close();
    await compare(hurt, node, load);
  },
);

hurtTest(
  "G10: a worker that loops for ever is ended and started again, while the others go on",
  async (hurt) => {
    const { node, inspector } = await inspected(hurt);
    const load = new Load({ topics });
    await load.start(node.wsUrl);
    await load.progress(20, 10_000, "load before");
    const before = topics.map((topic) => load.count(topic));
    inspector.inWorker(0, "for (;;);");
    await eventually(10_000, "the worker is ended", async () => {
      const restarts = await metric(node.http, "worker_restarts_total");
      return [...restarts.values()].some((count) => count === 1);
    });
    assert.ok(
      topics.some((topic, i) => load.count(topic) > before[i] + 10),
      "the other shard went on",
    );
    await untilReady(node.http, 8000);
    await load.progress(20, 8000, "both go on");
    assert.match(node.out(), /it gave no sign of life for 3000 ms/);
    for (const code of load.codes())
      assert.match(code, /^(publish (unavailable|publish_failed)|n?ack (unavailable|ack_failed|lease_lost))$/);
    inspector.close();
    await compare(hurt, node, load);
  },
  { workerStuckMs: 3000 },
);

longTest(
  "G10: a worker that hangs in a call of the kernel is given up, and started again only when the call has returned",
  async (hurt) => {
    const node = await hurt.start();
    const load = new Load({ topics });
    await load.start(node.wsUrl);
    await load.progress(20, 10_000, "load before");
    const placed = hurt.kernel.add({ calls: ["write"], path: "/shard-1/", delayMs: 7000, times: 1 });
    await eventually(5000, "it hangs", () => placed.hits() === 1);
    const began = performance.now();
    await eventually(5000, "it is given up", async () => (await readiness(node.http)).status === 503);
    await load.turn(2000);
    assert.ok(load.codes().includes("publish unavailable"), "nobody waits for it");
    await untilReady(node.http, 15_000);
    assert.ok(performance.now() - began > 5500, "two never write to one shard");
    await load.progress(20, 8000, "both go on");
    await compare(hurt, node, load);
  },
  { workerStuckMs: 2000 },
);

hurtTest(
  "G7: a node that was stopped for longer than its leases: the first to ask decides, no event is leased twice at a time",
  async (hurt) => {
    const node = await hurt.start({ healthy: true });
    const pid = node.child.pid as number;
    const client = await PlainClient.open(node.wsUrl);
    await client.subscribe("t", "g", { from: "earliest", ackTimeoutMs: 4000, maxInflight: 10 });
    for (let n = 0; n < 10; n++) await client.publish("t", n);
    const held = await client.nextMany(10);
    process.kill(pid, "SIGSTOP");
    await pause(6000);
    // Written while nobody reads: what the node finds in its sockets when it wakes up.
    const acks = held.slice(0, 5).map((event) => client.ack(event, { lease: event.ctx.lease }));
    process.kill(pid, "SIGCONT");
    const answers = await Promise.all(acks);
    const lost = new Set<unknown>();
    for (const [i, { op, code }] of answers.entries()) {
      if (op === "OK") continue;
      assert.is(code, "lease_lost");
      lost.add(held[i].event.payload);
    }
    const again: EventFrame[] = [];
    await eventually(6000, "what was not acked comes again", () => {
      again.push(...client.events.splice(0));
      return again.length >= 5 + lost.size;
    });
    await pause(500);
    again.push(...client.events.splice(0));
    const expected = [...lost, 5, 6, 7, 8, 9].sort();
    assert.equal(again.map(({ event }) => event.payload).sort(), expected, "each once, and nothing that was acked");
    for (const event of again) {
      assert.is(event.ctx.attempt, 2, "the stop has cost one attempt, not more");
      assert.is((await client.ack(event, { lease: event.ctx.lease })).op, "OK");
    }
    assert.is((await client.ok({ op: "CURSOR", topic: "t", group: "g" })).lag, 0);
    assert.is(client.socket.readyState, client.socket.OPEN);
  },
  // No worker is taken for stuck because the process was.
  { workerStuckMs: 3000 },
);

longTest(
  "G10: a node that was stopped under load goes on with the same connections and the same workers",
  async (hurt) => {
    const node = await hurt.start({ healthy: true });
    const pid = node.child.pid as number;
    const load = new Load({ topics, ackTimeoutMs: 1500 });
    await load.start(node.wsUrl);
    for (let round = 0; round < 2; round++) {
      await load.progress(20, 10_000, "load before");
      process.kill(pid, "SIGSTOP");
      await pause(4000);
      process.kill(pid, "SIGCONT");
    }
    await load.progress(20, 8000, "load after");
    assert.is((await readiness(node.http)).status, 200);
    assert.equal([...(await metric(node.http, "worker_restarts_total")).values()], [0, 0]);
    for (const code of load.codes()) assert.match(code, /^n?ack lease_lost$/);
    await compare(hurt, node, load);
  },
  { workerStuckMs: 3000 },
);

test.run();
