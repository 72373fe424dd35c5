// A bit that flips in an old file of a real node: nobody notices before somebody reads it. Then it is in the log and in
// /health/ready, the events beside it are delivered, and after a restart it is all still so.

import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { suite } from "uvu";
import * as assert from "uvu/assert";
import { eventually } from "../support/deadline.ts";
import { dataFolder, startNode } from "../support/node-process.ts";
import { PlainClient } from "../support/plain-client.ts";

const test = suite("power: damage that is found by reading");

interface Ready {
  readonly damage?: readonly { stream?: number; from?: number; to?: number }[];
}

const readyOf = async (http: string) => (await (await fetch(`${http}/health/ready`)).json()) as Ready;

test("damage that a read finds is logged and shown, now and after a restart", async () => {
  const data = dataFolder();
  const env = { WORKERS: "1", LOG_LEVEL: "warn", CONN_RATE: "off", TOPIC_RATE: "off" };
  let node = await startNode({ data: data.path, env });
  let client = await PlainClient.open(node.wsUrl);
  for (let n = 0; n < 3; n++) await client.publish("orders", `needle-${n}`);
  // The next start has another segment, so that these are in an older one, which is given a footer or copied.
  await client.close();
  assert.is(await node.kill("SIGTERM"), 0);
  node = await startNode({ data: data.path, env });
  const folder = join(data.path, "shard-0");
  const path = readdirSync(folder)
    .map((name) => join(folder, name))
    .filter((path) => /\d\.log$/.test(path))
    .find((path) => readFileSync(path).includes("needle-1"))!;
  const bytes = readFileSync(path);
  bytes[bytes.indexOf("needle-1") + 7] ^= 1;
  // In place: the node has it open.
  writeFileSync(path, bytes, { flag: "r+" });
  assert.equal((await readyOf(node.http)).damage, undefined);
  for (const start of [1, 2]) {
    client = await PlainClient.open(node.wsUrl);
    await client.subscribe("orders", `group-${start}`, { from: "earliest" });
    const [first, second] = await client.nextMany(2);
    assert.equal([first.event.payload, second.event.payload], ["needle-0", "needle-2"]);
    assert.equal([first.event.offset, second.event.offset], [0, 2]);
    const damage = await eventually(5000, "the damage is shown", async () => (await readyOf(node.http)).damage);
    assert.equal([damage[0].from, damage[0].to], [1, 2]);
    await eventually(5000, "the damage is logged", () =>
      /"msg":"a stretch of the log is damaged".*\.log \d+/.test(node.out()),
    );
    await client.close();
    assert.is(await node.kill("SIGTERM"), 0);
    if (start === 1) node = await startNode({ data: data.path, env });
  }
  data.remove();
});

test.run();
