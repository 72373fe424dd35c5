// Dead letters of a topic that was made anew somewhere else: their topic gets another partition under those who are subscribed to it.

import { test } from "uvu";
import * as assert from "uvu/assert";
import { startHere } from "../support/node-here.ts";
import { PlainClient } from "../support/plain-client.ts";

const once = { from: "earliest", maxAttempts: 1 };

test("who is subscribed to dead letters gets those of a partition that came later, and keeps what it holds", async () => {
  const { node, ws, http } = await startHere({ store: "memory", workers: 2, connRate: "off", topicRate: "off" });
  try {
    const client = await PlainClient.open(ws);
    const mourner = await PlainClient.open(ws);
    const die = async (payload: string) => {
      await client.subscribe("t", "g", once);
      await client.publish("t", payload);
      const event = await client.next();
      await client.ok({ op: "NACK", topic: "t", group: "g", id: event.event.id });
      await client.ok({ op: "UNSUBSCRIBE", topic: "t", group: "g" });
    };
    await mourner.subscribe("t.dlq.g", "d", { ...once, maxInflight: 2 });
    await die("first");
    const first = await mourner.next();
    assert.equal([first.event.payload, first.event.partition], ["first", 0]);

    assert.is((await fetch(`${http}/topics/t`, { method: "DELETE" })).status, 204);
    // The numbers of topics decide where they lie: the next one would be where the first one was.
    await client.publish("between", 0);
    await die("second");
    const second = await mourner.next();
    assert.equal([second.event.payload, second.event.partition], ["second", 1]);
    await mourner.ack(first, { lease: first.ctx.lease });
    await mourner.ack(second, { lease: second.ctx.lease });
    // The window goes round among both partitions.
    for (const payload of ["third", "fourth", "fifth"]) {
      await die(payload);
      const event = await mourner.next();
      assert.is(event.event.payload, payload);
      await mourner.ack(event, { lease: event.ctx.lease });
    }
    const cursor = await mourner.ok({ op: "CURSOR", topic: "t.dlq.g", group: "d" });
    assert.is(cursor.lag, 0);
  } finally {
    await node.close();
  }
});

test.run();
