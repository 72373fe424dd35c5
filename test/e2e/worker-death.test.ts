// A worker thread that throws, is ended or runs out of memory under load: every request is answered within a second, delivery goes
// on, nothing acknowledged is lost, and the partitions of the other workers do not stall.

import { test } from "uvu";
import * as assert from "uvu/assert";
import { workerOf } from "../../src/runtime/placement.ts";
import { eventually, pause } from "../support/deadline.ts";
import { startHere } from "../support/node-here.ts";
import { dataFolder } from "../support/node-process.ts";
import { type EventFrame, PlainClient } from "../support/plain-client.ts";

for (const how of ["throw", "exit", "oom"] as const) {
  test(`G10: a worker that dies by ${how} under load`, async () => {
    const data = dataFolder();
    const settings = { workers: 2, dataPath: data.path, limits: { workerHeapMb: 128 } };
    const { node, http, ws: url } = await startHere(settings, { testing: true });
    const admin = await PlainClient.open(url);
    // Topics are spread over the shards in the order they are made: one lies on each worker.
    await admin.publish("left", -1);
    await admin.publish("right", -1);
    const workers = ["left", "right"].map((topic) => {
      const shard = node.front.router.peek(topic)?.partitions[0].shard as number;
      return workerOf(shard, settings.workers);
    });
    assert.equal(new Set(workers).size, 2, "on different workers");

    const stop = { now: false };
    const acked: Record<string, number[]> = { left: [], right: [] };
    const slowest: Record<string, number> = { left: 0, right: 0 };
    const codes = new Set<string>();
    const publishers = ["left", "right"].map(async (topic) => {
      const client = await PlainClient.open(url);
      for (let n = 0; !stop.now; n++) {
        const started = performance.now();
        const answer = await client.request({ op: "PUBLISH", topic, payload: n, opts: { id: `${topic}-${n}` } });
        slowest[topic] = Math.max(slowest[topic], performance.now() - started);
        if (answer.op === "OK") acked[topic].push(n);
        else codes.add(String(answer.code));
      }
    });
    const seen: Record<string, Set<unknown>> = { left: new Set(), right: new Set() };
    const consumer = await PlainClient.open(url);
    const subscriptions = ["left", "right"].map((topic) =>
      consumer.subscribe(topic, "g", { from: "earliest", maxInflight: 50, ackTimeoutMs: 2000 }),
    );
    await Promise.all(subscriptions);
    const done = { now: false };
    const consuming = (async () => {
      while (!done.now) {
        const event: EventFrame | undefined = consumer.events.shift();
        if (event === undefined) {
          await pause(1);
          continue;
        }
        seen[event.topic].add(event.event.payload);
        void consumer.ack(event);
      }
    })();

    await eventually(10_000, "load", () => acked.left.length > 50 && acked.right.length > 50);
    const before = { left: acked.left.length, right: acked.right.length };
    node.system.crash(workers[0], how);
    await eventually(10_000, "the left side goes on", () => acked.left.length > before.left + 50);
    stop.now = true;
    await Promise.all(publishers);

    assert.ok(slowest.left < 5000, `an answer took ${slowest.left} ms`);
    assert.ok(slowest.right < 5000, `the other worker's partition stalled for ${slowest.right} ms`);
    for (const code of codes) assert.ok(["unavailable", "publish_failed"].includes(code), code);
    assert.ok(acked.right.length > before.right);
    await eventually(15_000, "everything acknowledged is delivered", () => {
      return ["left", "right"].every((topic) => acked[topic].every((n) => seen[topic].has(n)));
    });
    for (const topic of ["left", "right"]) {
      const body = await (await fetch(`${http}/export?topic=${topic}`)).text();
      const stored = body
        .split("\n")
        .filter(Boolean)
        .map((line) => JSON.parse(line).payload as number);
      assert.equal(stored, [...new Set(stored)], "nothing is stored twice");
      const set = new Set(stored);
      assert.equal(
        acked[topic].filter((n) => !set.has(n)),
        [],
        "nothing acknowledged is lost",
      );
    }
    console.log(
      `measured: worker death by ${how}: slowest answer ${slowest.left.toFixed(0)} ms, on the other worker ${slowest.right.toFixed(0)} ms, codes ${[...codes].join(" ") || "none"}`,
    );
    done.now = true;
    await consuming;
    await node.destroy();
    data.remove();
  });
}

test.run();
