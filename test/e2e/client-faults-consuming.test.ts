// What once broke the consuming half of the client, against a real node: answers that are lost, leases that lapse behind a blocked
// loop, and frames that are small.

import { createServer, type Socket, connect as tcp } from "node:net";
import { test } from "uvu";
import * as assert from "uvu/assert";
import type { Context } from "../../src/bus/event-bus.ts";
import { connect } from "../../src/client/client.ts";
import { eventually, pause, within } from "../support/deadline.ts";
import { startHere } from "../support/node-here.ts";
import { dataFolder, startNode } from "../support/node-process.ts";

const small = { store: "memory", maxFrame: 65_536, maxPayload: 32_768 } as const;

/** A way to the node on which its answers can be lost. */
async function deafProxy(url: string) {
  const near = new Set<Socket>();
  const state = { deaf: false };
  const server = createServer((client) => {
    const node = tcp(Number(new URL(url).port), "127.0.0.1");
    near.add(client);
    client.on("data", (bytes) => node.write(bytes));
    node.on("data", (bytes) => state.deaf || client.write(bytes));
    for (const socket of [client, node]) {
      // `close` follows.
      socket.on("error", () => undefined);
      socket.on("close", () => {
        client.destroy();
        node.destroy();
        near.delete(client);
      });
    }
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const cut = () => {
    for (const socket of near) socket.destroy();
  };
  const { port } = server.address() as { port: number };
  return { url: `ws://127.0.0.1:${port}`, state, cut, close: () => void server.close(cut) };
}

test("a group that is moved back after an ack's answer was lost hands its events to the handler again", async () => {
  const here = await startHere({ store: "memory" });
  const proxy = await deafProxy(here.ws);
  const statuses: string[] = [];
  const client = await connect(proxy.url, { reconnectMinMs: 5, onStatus: (status) => void statuses.push(status) });
  const other = await connect(here.ws);
  const lag = async () => (await other.getCursor("t", "g"))?.lag;
  const seen: unknown[] = [];
  await client.subscribe("t", "g", async ({ payload }) => {
    seen.push(payload);
    proxy.state.deaf = seen.length === 1;
  });
  await other.publish("t", 1);
  await eventually(5000, "the ack is stored", async () => seen.length === 1 && (await lag()) === 0);
  proxy.cut();
  proxy.state.deaf = false;
  await eventually(5000, "connected again", () => statuses.at(-1) === "open" && statuses.includes("reconnecting"));
  // Behind the SUBSCRIBE that was sent with it.
  await client.getCursor("t", "g");
  await other.setCursor("t", "g", "earliest");
  await eventually(5000, "handled again", async () => seen.length === 2 && (await lag()) === 0);
  assert.equal(seen, [1, 1]);
  client.destroy();
  other.destroy();
  proxy.close();
  await here.node.destroy();
});

test("a loop that was blocked for longer than its lease runs one handler for the event, and the event is acked", async () => {
  const data = dataFolder();
  const node = await startNode({ data: data.path });
  const client = await connect(node.wsUrl);
  const attempts: number[] = [];
  const handler = async (_: unknown, { attempt }: Context) => {
    attempts.push(attempt);
    await pause(20);
    for (const until = performance.now() + 1000; performance.now() < until; );
    await pause(100);
  };
  await client.subscribe("t", "g", handler, { ackTimeoutMs: 300 });
  await client.publish("t", 1);
  await eventually(10_000, "acked", async () => (await client.getCursor("t", "g"))?.lag === 0);
  const dead = await (await fetch(`${node.http}/replay?topic=t.dlq.g&from=earliest`)).json();
  client.destroy();
  await node.kill("SIGKILL");
  data.remove();
  assert.equal(attempts, [1]);
  assert.is((dead as { count?: number }).count ?? 0, 0);
});

test("events with long ids fit themselves into small frames", async () => {
  const here = await startHere(small);
  const client = await connect(here.ws);
  const ids = Array.from({ length: 1000 }, (_, n) => `${n}`.padStart(120, "a"));
  const stored = await within(10_000, "stored", Promise.all(ids.map((id) => client.publish("t", 1, { id }))));
  client.destroy();
  await here.node.destroy();
  assert.equal(
    stored.map(({ id }) => id),
    ids,
  );
});

test("many single acks at once fit themselves into small frames", async () => {
  const here = await startHere(small);
  const client = await connect(here.ws);
  const other = await connect(here.ws);
  await other.publishMany(
    "t",
    Array.from({ length: 6000 }, (_, n) => ({ payload: n })),
  );
  const even: Context[] = [];
  let count = 0;
  const handler = ({ offset }: { offset: number }, ctx: Context) => {
    count++;
    if (offset % 2 === 0) even.push(ctx);
  };
  await client.subscribe("t", "g", handler, { from: "earliest", maxInflight: 10_000, manualAck: true });
  await eventually(10_000, "all came", () => count === 6000);
  const results = await within(10_000, "answered", Promise.all(even.map((ctx) => ctx.ack())));
  client.destroy();
  other.destroy();
  await here.node.destroy();
  assert.equal(
    results.filter(({ ok }) => !ok),
    [],
  );
  assert.is(results.length, 3000);
});

test("client.close() in the body of a loop does not wait for itself, and the event is acked", async () => {
  const node = await startHere({ store: "memory" });
  try {
    const client = await connect(node.ws);
    await client.publish("orders", 1);
    const loop = async () => {
      for await (const _ of await client.subscribe("orders", "billing", { from: "earliest" })) await client.close();
    };
    await within(3000, "the loop ends", loop());
    await eventually(3000, "the client is closed", () => client.status === "closed");
    const other = await connect(node.ws);
    assert.is((await other.getCursor("orders", "billing"))?.lag, 0);
    await other.close();
  } finally {
    await node.node.close();
  }
});

test("an event that came again is acked by its id, although its first handler returned without settling it", async () => {
  const here = await startHere({ store: "memory" });
  const client = await connect(here.ws);
  try {
    const results: unknown[] = [];
    await client.subscribe(
      "orders",
      "billing",
      async ({ id }, { attempt }) => {
        if (attempt > 1) results.push([attempt, await client.ack("orders", "billing", id)]);
      },
      { from: "earliest", manualAck: true, ackTimeoutMs: 300 },
    );
    const { id } = await client.publish("orders", 1);
    await eventually(5000, "the second attempt", () => results.length > 0);
    assert.equal(results, [[2, { id, ok: true }]]);
    assert.is((await client.getCursor("orders", "billing"))?.lag, 0);
  } finally {
    await client.close();
    await here.node.close();
  }
});

test("a group that is moved while a handler runs handles the event anew, also over a lost connection", async () => {
  const here = await startHere({ store: "memory" });
  const proxy = await deafProxy(here.ws);
  const client = await connect(proxy.url, { reconnectMinMs: 5 });
  try {
    const begun: number[] = [];
    let finish: () => void = () => undefined;
    const first = new Promise<void>((resolve) => (finish = resolve));
    await client.subscribe(
      "orders",
      "billing",
      ({ payload }) => {
        begun.push(payload as number);
        return begun.length === 1 ? first : undefined;
      },
      { from: "earliest", onError: () => undefined },
    );
    await client.publish("orders", 1);
    await eventually(5000, "the handler runs", () => begun.length === 1);
    await client.setCursor("orders", "billing", "earliest");
    proxy.cut();
    await eventually(5000, "connected again", () => client.status === "open");
    await client.getCursor("orders", "billing");
    await pause(100);
    finish();
    await eventually(5000, "the second run", () => begun.length === 2);
    await eventually(5000, "acked", async () => (await client.getCursor("orders", "billing"))?.lag === 0);
    assert.equal(begun, [1, 1]);
  } finally {
    await client.close();
    proxy.close();
    await here.node.close();
  }
});

test.run();
