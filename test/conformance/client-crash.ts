// kill -9 of the node, again and again, under a publishing and a consuming client that have no code for it.

import { test } from "uvu";
import * as assert from "uvu/assert";
import { connect, type EventRecord, type NarthexError } from "../../src/client/client.ts";
import { eventually } from "../support/deadline.ts";
import type { NodeProcess } from "../support/node-process.ts";

const keys = Array.from({ length: 8 }, (_, i) => `customer-${i}`);
const window = 200;
const eventsPerLife = 400;

interface Order {
  readonly n: number;
}

async function exported(node: NodeProcess, topic: string): Promise<EventRecord<Order>[]> {
  const text = await (await fetch(`${node.http}/export?topic=${topic}`)).text();
  return text
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => JSON.parse(line) as EventRecord<Order>);
}

export interface ClientCrashHarness {
  readonly kills: number;
  /** Starts a node on the store of this test, over and over again. */
  start(env: Record<string, string>): Promise<NodeProcess>;
  end(): Promise<void>;
}

/** Adds its test; the caller runs it. */
export function clientCrash({ kills, start: startStore, end }: ClientCrashHarness): void {
  test(`kill -9 ${kills} times: what resolved is stored once, in the order of its key, and consumed`, async () => {
    const start = (port: string, life: number) =>
      startStore({ WS_PORT: port, WORKERS: String(1 + (life % 3)), CONN_RATE: "off", TOPIC_RATE: "off" });
    let node = await start("0", 0);
    const port = String(node.ports.ws);
    const made = await fetch(`${node.http}/topics/orders`, {
      method: "PUT",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ partitions: 3 }),
    });
    assert.is(made.status, 201);

    const publisher = await connect<{ orders: Order; plain: Order }>(node.wsUrl);
    const consumer = await connect<{ orders: Order; plain: Order }>(node.wsUrl);
    const handled = new Map<string, string>();
    await consumer.subscribe(
      ["orders", "plain"],
      "billing",
      (event) => void handled.set(event.id, `${event.topic} ${event.key ?? "-"} ${event.payload.n}`),
      { from: "earliest", maxInflight: 500 },
    );

    const resolved: EventRecord<Order>[] = [];
    const refused: NarthexError[] = [];
    let called = 0;
    let running = true;
    let underWay = 0;
    let wake: () => void = () => undefined;
    const publishing = (async () => {
      while (running) {
        const n = called++;
        underWay++;
        // Every third event goes to a topic of one partition without a key: its order holds as well.
        const call =
          n % 3 === 0
            ? publisher.publish("plain", { n })
            : publisher.publish("orders", { n }, { key: keys[n % keys.length] });
        call
          .then(
            (event) => void resolved.push(event),
            (error: NarthexError) => void refused.push(error),
          )
          .finally(() => {
            underWay--;
            wake();
          });
        if (underWay >= window) await new Promise<void>((resolve) => (wake = resolve));
      }
    })();
    const more = (when: string) => {
      const wanted = resolved.length + eventsPerLife;
      return eventually(30_000, `${eventsPerLife} events ${when}`, () => resolved.length >= wanted);
    };

    for (let life = 1; life <= kills; life++) {
      await more(`in life ${life}`);
      await node.kill("SIGKILL");
      node = await start(port, life);
    }
    await more("after the last kill");
    running = false;
    wake();
    await publishing;
    await eventually(60_000, "the last publishes", () => underWay === 0);

    assert.equal(refused, []);
    assert.is(resolved.length, called);
    const log = [...(await exported(node, "orders")), ...(await exported(node, "plain"))];
    const name = ({ topic, key, payload, id, partition, offset }: EventRecord<Order>) =>
      `${topic} ${key ?? "-"} ${payload.n} ${id} ${partition}:${offset}`;
    // Each call is in the log exactly once, at the place that its promise named.
    assert.equal(log.map(name).sort(), resolved.map(name).sort());
    const last = new Map<string, number>();
    for (const { topic, key, payload } of log) {
      const line = `${topic} ${key ?? ""}`;
      assert.ok((last.get(line) ?? -1) < payload.n, `${line}: ${payload.n} is stored behind ${last.get(line)}`);
      last.set(line, payload.n);
    }
    await eventually(40_000, "the consumer has seen everything", () => log.every(({ id }) => handled.has(id)));
    for (const event of log) {
      assert.is(handled.get(event.id), `${event.topic} ${event.key ?? "-"} ${event.payload.n}`);
    }
    await publisher.close();
    await consumer.close();
    await node.kill("SIGTERM");
    await end();
    console.log(`measured: ${log.length} events over ${kills} kills, none lost, none doubled`);
  });
}
