// N events through TOPIC, published, leased, received and acked over real sockets. Latency: from making an event to receiving it.

import { BatchClient } from "../test/support/batch-client.ts";
import { within } from "../test/support/deadline.ts";
import { durabilityOf, measure, packOf, report, settings, withNode } from "./support/run.ts";

const decoder = new TextDecoder();
const set = settings();

await withNode(set, async (node) => {
  const publisher = await BatchClient.open(node.wsUrl);
  const consumer = await BatchClient.open(node.wsUrl);
  const handle = await publisher.handle(set.topic);
  const latencies = new Float64Array(set.n);
  const acks: Promise<unknown>[] = [];
  let seen = 0;
  let finish: () => void = () => undefined;
  const all = new Promise<void>((resolve) => {
    finish = resolve;
  });
  consumer.onEvents = (batch) => {
    const now = performance.now();
    for (let i = 0; i < batch.pack.count; i++) {
      const { i: number, t0 } = JSON.parse(decoder.decode(batch.pack.payload(i))) as { i: number; t0: number };
      if (number !== seen) throw new Error(`event ${number} came where ${seen} was due`);
      latencies[seen++] = now - t0;
    }
    acks.push(consumer.ack(batch));
    if (seen >= set.n) finish();
  };
  await consumer.subscribe(set.topic, "bench", {
    from: "earliest",
    batchSize: 1000,
    maxInflight: Math.max(set.window, 1000),
  });
  const measured = await measure(node, async () => {
    let sent = 0;
    const lane = async (): Promise<void> => {
      while (sent < set.n) {
        const from = sent;
        const length = Math.min(set.batch, set.n - from);
        sent += length;
        const t0 = performance.now();
        await publisher.publish(handle, packOf(set, from, length, t0));
      }
    };
    await Promise.all(Array.from({ length: Math.max(1, Math.floor(set.window / set.batch)) }, lane));
    await within(60_000, "every event is received", all);
    await within(60_000, "every ack is durable", Promise.all(acks));
  });
  report("subscribe", set, await durabilityOf(node), set.n, measured, latencies);
  publisher.close();
  consumer.close();
});
