// The wall clock of a running node is set forward and back by an hour, as an operator or a wrong time server does it.

import { test } from "uvu";
import * as assert from "uvu/assert";
import { eventually, pause } from "../support/deadline.ts";
import { hurtTest, longTest } from "../support/hurt-node.ts";
import { PlainClient } from "../support/plain-client.ts";

const hourMs = 3_600_000;
const steps = [hourMs, 0, -hourMs, 0, -hourMs, hourMs];

interface Stored {
  readonly id: string;
  readonly ts: number;
  readonly offset: number;
}

hurtTest(
  "G2: over steps of the wall clock ts never falls within a partition, and ids rise and stay unique",
  async (hurt) => {
    let node = await hurt.start();
    let client = await PlainClient.open(node.wsUrl);
    const stored: Stored[] = [];
    const publish = async () => {
      const { id, ts, offset } = await client.publish("t", stored.length);
      stored.push({ id, ts, offset } as Stored);
    };
    for (const step of steps) {
      hurt.kernel.setWall(step);
      for (let i = 0; i < 5; i++) await publish();
      if (step === hourMs)
        assert.ok(Math.abs(stored.at(-1)!.ts - Date.now() - hourMs) < 5000, "the node does see the step");
    }
    // Into the past while nobody looks.
    await node.kill("SIGKILL");
    hurt.kernel.setWall(-hourMs);
    node = await hurt.start();
    client = await PlainClient.open(node.wsUrl);
    for (let i = 0; i < 5; i++) await publish();
    for (const [i, { id, ts, offset }] of stored.entries()) {
      assert.is(offset, i);
      if (i === 0) continue;
      assert.ok(ts >= stored[i - 1].ts, `ts ${ts} after ${stored[i - 1].ts}`);
      assert.ok(id > stored[i - 1].id, `id ${id} after ${stored[i - 1].id}`);
    }
    for (const { id, offset } of stored.slice(0, -1)) {
      const response = await fetch(`${node.http}/replay?topic=t&from=afterId&afterId=${id}&limit=1`);
      const { events } = (await response.json()) as { events: Stored[] };
      assert.is(events[0].offset, offset + 1, "each id still leads to its place");
    }
  },
);

for (const step of [hourMs, -hourMs]) {
  const way = step > 0 ? "forward" : "back";
  (step > 0 ? hurtTest : longTest)(
    `leases, backoff and delays run on when the wall clock is set ${way} by an hour`,
    async (hurt) => {
      const node = await hurt.start();
      const client = await PlainClient.open(node.wsUrl);
      await client.subscribe("t", "g", { from: "earliest", ackTimeoutMs: 4000, backoffMs: 1500 });
      const published = performance.now();
      for (const n of [0, 1, 2]) await client.publish("t", n);
      const [held, nacked, delayed] = await client.nextMany(3);
      const began = performance.now();
      assert.is((await client.nack(nacked)).op, "OK");
      assert.is((await client.nack(delayed, { delay_ms: 2500 })).op, "OK");
      hurt.kernel.setWall(step);
      const came = new Map<unknown, number>();
      for (let i = 0; i < 3; i++) {
        const event = await client.next();
        assert.is(event.ctx.attempt, 2);
        came.set(event.event.payload, performance.now());
        await client.ack(event);
      }
      // The lease first runs out, then its backoff passes.
      for (const [event, since, ms] of [
        [nacked, began, 1500],
        [delayed, began, 2500],
        [held, published, 5500],
      ] as const) {
        const after = (came.get(event.event.payload) as number) - since;
        assert.ok(after > ms - 200, `${event.event.payload} came after ${Math.round(after)} ms`);
      }
    },
  );
}

longTest(
  "a delay waits at most what was left of it when the node starts again with its clock an hour back",
  async (hurt) => {
    let node = await hurt.start();
    let client = await PlainClient.open(node.wsUrl);
    await client.subscribe("t", "g", { from: "earliest" });
    await client.publish("t", "later");
    await client.nack(await client.next(), { delay_ms: 2000 });
    await node.kill("SIGKILL");
    hurt.kernel.setWall(-hourMs);
    node = await hurt.start();
    const began = performance.now();
    client = await PlainClient.open(node.wsUrl);
    await client.subscribe("t", "g", {});
    const event = await client.next();
    assert.is(event.ctx.attempt, 2);
    assert.ok(performance.now() - began < 8000);
  },
);

hurtTest("rates are what they were when the wall clock is set forward by an hour", async (hurt) => {
  const node = await hurt.start({ env: { CONN_RATE: "20/5" } });
  const client = await PlainClient.open(node.wsUrl);
  const publish = async () => (await client.request({ op: "PUBLISH", topic: "t", payload: 1 })).op === "OK";
  await eventually(5000, "the burst is used", async () => !(await publish()));
  hurt.kernel.setWall(hourMs);
  const began = performance.now();
  let taken = 0;
  let passed = 0;
  for (; passed < 1000; passed = performance.now() - began) if (await publish()) taken++;
  const allowed = (5 * passed) / 1000;
  assert.ok(
    taken >= 1 && taken <= allowed + 3,
    `${taken} in ${Math.round(passed)} ms, ${allowed.toFixed(1)} are allowed`,
  );
});

for (const step of [hourMs, -hourMs]) {
  (step > 0 ? hurtTest : longTest)(
    `an id published again is the same event when the clock was set by ${step} ms in between`,
    async (hurt) => {
      const node = await hurt.start();
      const client = await PlainClient.open(node.wsUrl);
      const first = await client.publish("t", "once", { id: "x" });
      hurt.kernel.setWall(step);
      // What is forgotten is forgotten with the next commit.
      await client.publish("t", "between");
      const again = await client.publish("t", "once", { id: "x" });
      assert.equal([again.duplicate, again.offset], [true, first.offset]);
      hurt.kernel.setWall(0);
      await client.publish("t", "between");
      assert.is((await client.publish("t", "once", { id: "x" })).duplicate, true);
      const lines = (await (await fetch(`${node.http}/export?topic=t`)).text()).split("\n").filter(Boolean);
      assert.is(lines.length, 3);
    },
  );
}

hurtTest(
  "retention deletes nothing early when the clock is an hour ahead for a while, and goes on when it is right again",
  async (hurt) => {
    const node = await hurt.start();
    const client = await PlainClient.open(node.wsUrl);
    const put = async (topic: string, ageMs: number) => {
      const body = JSON.stringify({ retention: { ageMs } });
      const headers = { "content-type": "application/json" };
      assert.ok((await fetch(`${node.http}/topics/${topic}`, { method: "PUT", headers, body })).ok);
    };
    const count = async (topic: string) =>
      (await (await fetch(`${node.http}/export?topic=${topic}`)).text()).split("\n").filter(Boolean).length;
    await put("half-an-hour", hourMs / 2);
    await put("seconds", 10_000);
    for (const topic of ["half-an-hour", "seconds"]) await client.publish(topic, 1);
    hurt.kernel.setWall(hourMs);
    await pause(1500);
    assert.equal(
      [await count("half-an-hour"), await count("seconds")],
      [1, 1],
      "the right clock has passed a few seconds at most",
    );
    hurt.kernel.setWall(0);
    await eventually(12_000, "what is old enough goes", async () => (await count("seconds")) === 0);
    assert.is(await count("half-an-hour"), 1);
  },
  { pruneEveryMs: 200 },
);

test.run();
