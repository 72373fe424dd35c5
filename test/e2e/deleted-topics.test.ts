// Topics may come and go for years: what a node keeps of one that is gone adds up.

import { test } from "uvu";
import * as assert from "uvu/assert";
import { eventually } from "../support/deadline.ts";
import { startHere } from "../support/node-here.ts";
import { PlainClient } from "../support/plain-client.ts";

const rounds = 10;

test("no actor of a deleted topic stays, but for its partition, which goes after a minute", async () => {
  const { node, ws, http } = await startHere({
    store: "memory",
    workers: 1,
    topicRate: { burst: 1000, perSec: 1000 },
  });
  try {
    const cells = async () => (await node.system.samples()).find(({ name }) => name === "cells")?.value;
    const before = Number(await cells());
    for (let round = 0; round < rounds; round++) {
      const client = await PlainClient.open(ws);
      await client.subscribe(`t${round}`, "g", { from: "earliest" });
      await client.publish(`t${round}`, { round });
      const event = await client.next();
      await client.ack(event, { lease: event.ctx.lease });
      await client.close();
      const { status } = await fetch(`${http}/topics/t${round}`, { method: "DELETE" });
      assert.is(status, 204);
    }
    const partitions = before + rounds;
    await eventually(2000, "lease tables and buckets are gone", async () => (await cells()) === partitions).catch(
      async () => assert.is(await cells(), partitions, `${rounds} topics were made and deleted`),
    );
    const series = node.front.stats().filter(({ labels }) => /^t\d/.test(labels.topic ?? ""));
    assert.equal(series, [], "nothing is said of deleted topics any more");
  } finally {
    await node.close();
  }
});

test.run();
