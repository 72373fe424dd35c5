// A work queue: two workers share the jobs, a job that fails is tried again after a pause, and one that never works ends as a
// dead letter with the reason. Run it: node examples/work-queue.mjs (it starts a node of its own, in memory).

import { createNode } from "narthex";
import { connect } from "narthex/client";

const node = await createNode({ store: "memory", wsPort: 0, httpPort: "off", opsPort: "off", replayPort: "off" });
const url = `ws://127.0.0.1:${node.listening[0].port}`;

const failures = new Map([
  ["job-3", 1], // works at the second attempt
  ["job-4", Number.POSITIVE_INFINITY], // never works
]);

async function worker() {
  const client = await connect(url);
  await client.subscribe(
    "jobs",
    "workers",
    (event, ctx) => {
      const left = failures.get(event.key) ?? 0;
      if (left > 0) {
        failures.set(event.key, left - 1);
        throw new Error("the printer is on fire");
      }
      console.log(`${event.key} done at attempt ${ctx.attempt}`);
    },
    { from: "earliest", maxAttempts: 3, backoffMs: [20, 40], maxInflight: 1, onError: () => {} },
  );
  return client;
}

const workers = [await worker(), await worker()];
const publisher = await connect(url);
for (let n = 1; n <= 5; n++) await publisher.publish("jobs", { n }, { key: `job-${n}` });

const letters = await publisher.subscribe("jobs.dlq.workers", "repair", { from: "earliest" });
for await (const { event } of letters) {
  const { headers } = event;
  console.log(`${event.key} is a dead letter after ${headers["x-dlq-attempts"]} attempts: ${headers["x-dlq-reason"]}`);
  break;
}

for (;;) {
  const cursor = await publisher.getCursor("jobs", "workers");
  if (cursor.lag === 0) break;
  await new Promise((resolve) => setTimeout(resolve, 20));
}
await Promise.all([...workers, publisher].map((client) => client.close()));
await node.close();
console.log("every job is settled");
