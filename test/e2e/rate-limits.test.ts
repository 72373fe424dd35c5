// G9 on a real node with the defaults of the seeds.

import { test } from "uvu";
import * as assert from "uvu/assert";
import { pause } from "../support/deadline.ts";
import { dataFolder, type NodeProcess, startNode } from "../support/node-process.ts";
import { PlainClient } from "../support/plain-client.ts";

const data = dataFolder();
let node: NodeProcess;

test.before(async () => {
  node = await startNode({ data: data.path });
});

test.after(async () => {
  await node.kill("SIGKILL");
  data.remove();
});

test("G9: of 300 single PUBLISH frames at once about 200 are stored, the rest are told how long to wait, and that is right", async () => {
  const client = await PlainClient.open(node.wsUrl);
  const started = performance.now();
  const answers = await Promise.all(
    Array.from({ length: 300 }, (_, i) => client.request({ op: "PUBLISH", topic: "burst", payload: i })),
  );
  const tookMs = performance.now() - started;
  const stored = answers.flatMap(({ op }, i) => (op === "OK" ? [i] : []));
  const refused = answers.filter(({ op }) => op === "ERR");
  // The bucket refills while the frames are on their way: 200 a second.
  assert.ok(stored.length >= 200, `${stored.length}`);
  assert.ok(stored.length <= 200 + Math.ceil(tookMs / 5) + 1, `${stored.length} in ${tookMs} ms`);
  for (const answer of refused) {
    assert.is(answer.code, "rate_limited");
    assert.match(String(answer.msg), "CONN_RATE");
    assert.ok(Number(answer.retry_after_ms) >= 1 && Number(answer.retry_after_ms) <= 1000, `${answer.retry_after_ms}`);
  }
  const longest = Math.max(...refused.map(({ retry_after_ms }) => Number(retry_after_ms)));
  await pause(longest);
  const again = await client.request({ op: "PUBLISH", topic: "burst", payload: "again" });
  assert.is(again.op, "OK", "waiting as long as told is enough");
  const body = (await (await fetch(`${node.http}/replay?topic=burst`)).json()) as { events: { payload: unknown }[] };
  assert.equal(
    body.events.map(({ payload }) => payload),
    [...stored, "again"],
    "what was refused is not stored, what was not is, in order",
  );
  await client.close();
});

test("G9: delivery over the budget waits and loses nothing", async () => {
  await fetch(`${node.http}/topics/flood`, {
    method: "PUT",
    headers: { "content-type": "application/json" },
    body: '{"rate":"off"}',
  });
  for (let part = 0; part < 2; part++) {
    const publisher = await PlainClient.open(node.wsUrl);
    for (let i = 0; i < 150; i++) await publisher.publish("flood", part * 150 + i);
    await publisher.close();
  }
  const client = await PlainClient.open(node.wsUrl);
  const started = performance.now();
  await client.subscribe("flood", "g", { from: "earliest", maxInflight: 1000 });
  const events = await client.nextMany(300);
  const tookMs = performance.now() - started;
  assert.equal(
    events.map(({ event }) => event.payload),
    events.map((_, i) => i),
  );
  // 200 at once, the other 100 at 200 a second.
  assert.ok(tookMs >= 450, `${tookMs} ms`);
  assert.ok(tookMs < 8000, `${tookMs} ms`);
  await client.close();
});

test("G9: a projector's own publishes do not starve while it is being delivered to", async () => {
  const client = await PlainClient.open(node.wsUrl);
  await client.subscribe("flood", "projector", { from: "earliest", maxInflight: 1000 });
  await client.nextMany(150);
  assert.is((await client.request({ op: "PUBLISH", topic: "projected", payload: 1 })).op, "OK");
  await client.close();
});

test("G9: over HTTP the rate of a topic is 429 with Retry-After", async () => {
  const headers = { "content-type": "application/json" };
  await fetch(`${node.http}/topics/slow`, { method: "PUT", headers, body: '{"rate":"2/1"}' });
  const statuses: number[] = [];
  const publish = async (): Promise<Response> => {
    const response = await fetch(`${node.http}/publish/slow`, { method: "POST", headers, body: "1" });
    statuses.push(response.status);
    return response;
  };
  await publish();
  await publish();
  const last = await publish();
  assert.equal(statuses, [200, 200, 429]);
  assert.is(last.headers.get("retry-after"), "1");
  assert.is(((await last.json()) as { code: string }).code, "rate_limited");
});

test.run();
