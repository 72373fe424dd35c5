// What the types of the bus allow and what they refuse. Nothing here is run: each line below an expectation must not compile, all
// others must. test/client/types.test.ts compiles this file with the expectations and without.

import { connect, EventClient, type EventRecord } from "../../src/client/client.ts";
import { createNode } from "../../src/narthex.ts";

interface Order {
  readonly n: number;
  readonly note?: string;
}
interface Heartbeat {
  readonly host: string;
}
type Topics = { orders: Order; "heartbeat.received": Heartbeat };

type Equal<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;
function same<A, B>(_equal: Equal<A, B>): void {}

export async function typed(): Promise<void> {
  const client = await connect<Topics>("ws://127.0.0.1:8090");

  const stored = await client.publish("orders", { n: 1 }, { key: "customer-7" });
  same<typeof stored.payload, Order>(true);
  await client.publishMany("orders", [{ payload: { n: 1 } }, { payload: { n: 2 }, options: { tags: ["eu"] } }]);

  // @ts-expect-error a topic that is not in the map
  await client.publish("order", { n: 1 });
  // @ts-expect-error a payload of another type
  await client.publish("orders", { n: "1" });
  // @ts-expect-error a payload that lacks a member
  await client.publish("heartbeat.received", {});
  // @ts-expect-error an option that does not exist
  await client.publish("orders", { n: 1 }, { keys: "customer-7" });
  // @ts-expect-error dead letters are the node's to publish
  await client.publish("orders.dlq.billing", { n: 1 });
  // @ts-expect-error one of many is wrong
  await client.publishMany("orders", [{ payload: { n: 1 } }, { payload: { host: "a" } }]);

  await client.subscribe("orders", "billing", (event, ctx) => {
    same<typeof event.payload, Order>(true);
    same<typeof ctx.attempt, number>(true);
    // @ts-expect-error the payload has no such member
    event.payload.host;
    // @ts-expect-error an event is not to be changed
    event.id = "another";
  });
  await client.subscribe(["orders", "heartbeat.received"], "audit", (event) => {
    same<typeof event.payload, Order | Heartbeat>(true);
  });
  await client.subscribe("orders.dlq.billing", "repair", (event) => {
    same<typeof event.payload, Order>(true);
  });
  const subscription = await client.subscribe("heartbeat.received", "watch", { from: "earliest" });
  for await (const { event, ctx } of subscription) {
    same<typeof event.payload, Heartbeat>(true);
    await ctx.ack();
  }
  await subscription();

  // @ts-expect-error a topic that is not in the map
  await client.subscribe("payments", "billing", () => undefined);
  // @ts-expect-error dead letters of a topic that is not in the map
  await client.subscribe("payments.dlq.billing", "repair", () => undefined);
  // @ts-expect-error an option that does not exist
  await client.subscribe("orders", "billing", () => undefined, { ackTimeout: 5 });
  // @ts-expect-error a beginning that does not exist
  await client.subscribe("orders", "billing", { from: "start" });
  // @ts-expect-error a handler of another payload
  await client.subscribe("orders", "billing", (event: EventRecord<Heartbeat>) => event.payload.host);
  // @ts-expect-error a filter over another payload
  await client.subscribe("orders", "billing", () => undefined, { filter: (event) => event.payload.host === "a" });

  const latest = await client.latestByKey("orders", ["customer-7"]);
  same<(typeof latest)[string]["payload"], Order>(true);
  // @ts-expect-error a topic that is not in the map
  await client.latestByKey("payments");
  // @ts-expect-error a place that does not exist
  await client.setCursor("orders", "billing", "beginning");
}

export async function untyped(): Promise<void> {
  const client = new EventClient("ws://127.0.0.1:8090", "token");
  const stored = await client.publish("anything", new Map());
  same<typeof stored.payload, unknown>(true);
  await client.subscribe("anything", "billing", (event) => {
    same<typeof event.payload, unknown>(true);
    // @ts-expect-error nothing is known of the payload
    event.payload.n;
  });
  // @ts-expect-error a token is text, or a function that gives one
  new EventClient("ws://127.0.0.1:8090", 5);
}

export async function inProcess(): Promise<void> {
  const node = await createNode<Topics>({ store: "memory" });
  await node.bus.publish("orders", { n: 1 });
  // @ts-expect-error a payload of another type
  await node.bus.publish("orders", { host: "a" });
  const more = { topics: ["heartbeat.received"] } as const;
  await node.bus.subscribe("orders", "audit", (event) => same<typeof event.payload, Order | Heartbeat>(true), more);
  // @ts-expect-error one more topic, that is not in the map
  await node.bus.subscribe("orders", "audit", () => undefined, { topics: ["payments"] });
  // @ts-expect-error a setting that does not exist
  await createNode({ stores: "memory" });
  const plain = await createNode();
  await plain.bus.subscribe("anything", "billing", (event) => {
    same<typeof event.payload, unknown>(true);
  });
}
