// One window over several partitions, with real lease tables: never more than maxInflight is out, and no partition starves.

import { test } from "uvu";
import * as assert from "uvu/assert";
import type { Overrides } from "../../src/config.ts";
import { startHere } from "../support/node-here.ts";
import { PlainClient } from "../support/plain-client.ts";

async function withNode(overrides: Overrides, run: (url: string) => Promise<void>): Promise<void> {
  const { node, ws } = await startHere({ store: "memory", workers: 2, partitions: 4, ...overrides });
  try {
    await run(ws);
  } finally {
    await node.destroy();
  }
}

async function drain(client: PlainClient, count: number, maxInflight: number): Promise<number[]> {
  const order: number[] = [];
  let out = 0;
  for (let i = 0; i < count; i++) {
    const event = await client.next(5000);
    out++;
    order.push(event.event.partition);
    assert.ok(client.events.length + out <= maxInflight, `${client.events.length + out} events are out`);
    // As soon as it is sent the table may count it as settled, so it is not ours any more.
    out--;
    assert.is((await client.ack(event, { lease: event.ctx.lease })).op, "OK");
  }
  return order;
}

for (const maxInflight of [1, 3, 20]) {
  test(`maxInflight ${maxInflight} over four partitions`, () =>
    withNode({}, async (url) => {
      const client = await PlainClient.open(url);
      const count = 200;
      for (let n = 0; n < count; n++) await client.publish("t", n, { key: `k${n}` });
      await client.subscribe("t", "g", { from: "earliest", maxInflight });
      const order = await drain(client, count, maxInflight);
      // Every partition is heard of early: a quarter of the way in, none has been left out.
      assert.equal(new Set(order.slice(0, 50)).size, 4);
      assert.is((await client.ok({ op: "CURSOR", topic: "t", group: "g" })).lag, 0);
      await client.close();
    }));
}

test("a delivery rate over four partitions with one slot comes to its end", () =>
  withNode({ connRate: { burst: 10, perSec: 100 } }, async (url) => {
    const publishers = await Promise.all([1, 2, 3, 4, 5].map(() => PlainClient.open(url)));
    const count = 45;
    for (let n = 0; n < count; n++) await publishers[n % 5].publish("t", n, { key: `k${n}` });
    const client = await PlainClient.open(url);
    await client.subscribe("t", "g", { from: "earliest", maxInflight: 1 });
    const started = performance.now();
    await drain(client, count, 1);
    const tookMs = performance.now() - started;
    assert.ok(tookMs >= 250, `${count} events at 100/s after a burst of 10 took ${tookMs} ms`);
    for (const one of [client, ...publishers]) await one.close();
  }));

test.run();
