// N events into TOPIC through the client's publisher, each call by itself, a window of them under way: what batching, keeping order and
// a promise for each event cost on top of bench/publish.ts. Latency: from a call to its answer.

import { clientClock } from "../src/client/clock.ts";
import { Connection } from "../src/client/connection.ts";
import { dial } from "../src/client/dial-node.ts";
import { Publisher } from "../src/client/publisher.ts";
import { durabilityOf, measure, report, settings, withNode } from "./support/run.ts";

const set = settings();

await withNode(set, async (node) => {
  const clock = clientClock();
  const publisher = new Publisher({ clock, publishTimeoutMs: 60_000, pendingEventsMax: 1e6, pendingBytesMax: 1e9 });
  const connection = await new Connection({
    dial,
    url: node.wsUrl,
    token: undefined,
    clock,
    openMs: 5000,
    silentMs: 20_000,
    answerMs: 30_000,
    onLost: () => undefined,
    onEnded: () => undefined,
  }).opened;
  publisher.connected(connection);
  // About so many bytes as JSON.
  const pad = "x".repeat(Math.max(0, set.payloadBytes - 40));
  const latencies = new Float64Array(set.n);
  let called = 0;
  const caller = async (): Promise<void> => {
    while (called < set.n) {
      const n = called++;
      const t0 = performance.now();
      await publisher.publish(set.topic, { i: n, t0: Math.round(t0), pad });
      latencies[n] = performance.now() - t0;
    }
  };
  const measured = await measure(node, async () => {
    await Promise.all(Array.from({ length: set.window }, caller));
  });
  report("client-publish", { ...set, batch: 0 }, await durabilityOf(node), set.n, measured, latencies);
  connection.close();
});
