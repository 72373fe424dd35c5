// A consumer that is stopped and woken by a test. It says in lines of JSON what it sees, and acks when it is told to.
//
//   node e2e-stopped-consumer.entry.js <url> <topic> <group> <ackTimeoutMs>

import { createInterface } from "node:readline";
import { openConsumer } from "../support/consumer.ts";

const [url, topic, group, ackTimeoutMs] = process.argv.slice(2);
const say = (line: object) => void process.stdout.write(`${JSON.stringify(line)}\n`);
const told = new Promise<void>((resolve) => createInterface(process.stdin).once("line", () => resolve()));

const { subscriber } = await openConsumer(url);
await subscriber.subscribe(
  [topic],
  group,
  async (event, ctx) => {
    say({ started: event.id, attempt: ctx.attempt });
    ctx.signal.addEventListener("abort", () => say({ aborted: event.id }));
    await told;
    say({ acked: await ctx.ack() });
  },
  { from: "earliest", ackTimeoutMs: Number(ackTimeoutMs) },
);
say({ ready: true });
