// N events into TOPIC over a real socket, in batches, a window of them under way. Latency: from sending a batch to its answer.

import { BatchClient } from "../test/support/batch-client.ts";
import { durabilityOf, measure, packOf, report, settings, withNode } from "./support/run.ts";

const set = settings();

await withNode(set, async (node) => {
  const client = await BatchClient.open(node.wsUrl);
  const handle = await client.handle(set.topic);
  const latencies = new Float64Array(Math.ceil(set.n / set.batch));
  let sent = 0;
  let batches = 0;
  const lane = async (): Promise<void> => {
    while (sent < set.n) {
      const from = sent;
      const length = Math.min(set.batch, set.n - from);
      sent += length;
      const slot = batches++;
      const t0 = performance.now();
      const pack = packOf(set, from, length, t0);
      const { runs } = await client.publish(handle, pack);
      if (runs.some(({ status }) => status !== "stored"))
        throw new Error(`a batch was answered ${JSON.stringify(runs)}`);
      latencies[slot] = performance.now() - t0;
    }
  };
  const lanes = Math.max(1, Math.floor(set.window / set.batch));
  const measured = await measure(node, async () => {
    await Promise.all(Array.from({ length: lanes }, lane));
  });
  report("publish", set, await durabilityOf(node), set.n, measured, latencies);
  client.close();
});
