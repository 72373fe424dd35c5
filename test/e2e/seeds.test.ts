// What the user's own documents show must work as it stands there: the client, the frames, the ports and the URLs.

import { test } from "uvu";
import * as assert from "uvu/assert";
import { EventClient } from "../fixtures/seed-event-client.ts";
import { eventually, within } from "../support/deadline.ts";
import { dataFolder, type NodeProcess, startNode } from "../support/node-process.ts";
import { PlainClient } from "../support/plain-client.ts";

const data = dataFolder();
const token = "devtoken";
const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
let node: NodeProcess;

test.before(async () => {
  node = await startNode({ data: data.path, env: { WS_TOKEN: token } });
});

test.after(async () => {
  await node.kill("SIGKILL");
  data.remove();
});

interface SeedEvent {
  readonly id: string;
  readonly payload: unknown;
}

/** The seeds' client leaves a timer behind for each request; they must not keep this process alive. */
function withoutTimersLeft(): void {
  const start = globalThis.setTimeout;
  globalThis.setTimeout = ((run: () => void, ms: number) => start(run, ms).unref()) as unknown as typeof setTimeout;
}

test("the EventClient of the seeds, unchanged, subscribes, publishes 10 events and acks them all", async () => {
  withoutTimersLeft();
  const client = new EventClient(node.wsUrl, token);
  const socket = (client as unknown as { ws: WebSocket }).ws;
  await within(5000, "open", new Promise((resolve) => socket.addEventListener("open", resolve)));
  const seen: SeedEvent[] = [];
  await client.subscribe("seeds.topic", "smoke", (event: SeedEvent) => void seen.push(event), { from: "earliest" });
  const ids: string[] = [];
  for (let i = 0; i < 10; i++) ids.push((await client.publish("seeds.topic", { i })).id);
  await eventually(5000, "all ten events", () => seen.length >= 10);
  assert.equal(
    seen.map(({ id }) => id),
    ids,
  );
  assert.equal(
    seen.map(({ payload }) => payload),
    ids.map((_, i) => ({ i })),
  );
  const watcher = await PlainClient.open(node.wsUrl, token);
  const cursor = await eventually(5000, "all acked", async () => {
    const answer = await watcher.ok({ op: "CURSOR", topic: "seeds.topic", group: "smoke" });
    return answer.lag === 0 && answer;
  });
  assert.is(cursor.lastId, ids[9]);
  await watcher.close();
  socket.close();
});

test("the HTTP publisher answers on HTTP_PORT with the id", async () => {
  const url = `http://127.0.0.1:${node.ports.http}/publish/heartbeat.received`;
  const response = await fetch(url, { method: "POST", headers, body: JSON.stringify({ pid: 1, name: "stt" }) });
  assert.is(response.status, 200);
  const { id } = (await response.json()) as { id: string };
  assert.match(id, /^[0-9a-f]{8}-[0-9a-f]{4}-7/);
});

test("replay and export answer on REPLAY_PORT", async () => {
  const base = `http://127.0.0.1:${node.ports.replay}`;
  for (const query of ["from=earliest", "from=ts&ts=0", "from=earliest&limit=1000"]) {
    const response = await fetch(`${base}/replay?topic=heartbeat.received&${query}`, { headers });
    assert.is(response.status, 200, query);
    const body = (await response.json()) as { topic: string; count: number; events: { payload: unknown }[] };
    assert.equal([body.topic, body.count, body.events[0].payload], ["heartbeat.received", 1, { pid: 1, name: "stt" }]);
  }
  const lines = await (await fetch(`${base}/export?topic=heartbeat.received&ndjson=1`, { headers })).text();
  assert.equal(JSON.parse(lines).payload, { pid: 1, name: "stt" });
  const array = await (await fetch(`${base}/export?topic=heartbeat.received&ndjson=0`, { headers })).json();
  assert.is((array as unknown[]).length, 1);
});

test("metrics, cursors, lag and latest-by-key answer on OPS_PORT", async () => {
  const base = `http://127.0.0.1:${node.ports.ops}`;
  const metrics = await (await fetch(`${base}/metrics`, { headers })).text();
  assert.match(metrics, /^events_published_total\{topic="seeds\.topic"\} 10$/m);
  assert.match(metrics, /^events_delivered_total\{topic="seeds\.topic",group="smoke"\} 10$/m);
  assert.match(metrics, /^events_acked_total\{topic="seeds\.topic",group="smoke"\} 10$/m);
  assert.match(metrics, /^delivery_latency_ms_count\{topic="seeds\.topic",group="smoke"\} 10$/m);
  assert.match(metrics, /^ws_inflight\{topic="seeds\.topic",group="smoke"\} 0$/m);
  const publisher = await PlainClient.open(node.wsUrl, token);
  await publisher.publish("process.state", { status: "alive" }, { key: "a" });
  await publisher.close();
  for (const path of [
    "/cursors?topic=seeds.topic",
    "/lag?topic=seeds.topic&group=smoke",
    "/latest-by-key?topic=process.state&key=a",
  ]) {
    const response = await fetch(`${base}${path}`, { headers });
    assert.is(response.status, 200, path);
  }
});

test("every URL answers on the WS port too", async () => {
  for (const path of [
    "/replay?topic=seeds.topic",
    "/export?topic=seeds.topic",
    "/metrics",
    "/health/live",
    "/health/ready",
  ]) {
    const response = await fetch(`${node.http}${path}`, { headers });
    assert.is(response.status, 200, path);
    await response.text();
  }
});

test.run();
