// G1 to G7 and G10, one by one, against a real node process with real sockets, threads and a real store. What each store needs for a
// node of its own stands with the test that calls this.

import { test } from "uvu";
import * as assert from "uvu/assert";
import { eventually, pause } from "../support/deadline.ts";
import type { NodeProcess } from "../support/node-process.ts";
import { type EventFrame, PlainClient } from "../support/plain-client.ts";

export interface GuaranteesHarness {
  readonly durability: string;
  /** Starts a node on the store of this suite, over and over again. */
  start(env: Record<string, string>): Promise<NodeProcess>;
  /** After the last test. */
  end(): Promise<void>;
}

const rates = { CONN_RATE: "off", TOPIC_RATE: "off" };

const payloads = (events: readonly EventFrame[]) => events.map(({ event }) => event.payload);

/** Adds its tests; the caller runs them. */
export function guarantees({ durability, start, end }: GuaranteesHarness): void {
  let node: NodeProcess;

  test.before(async () => {
    node = await start(rates);
  });

  test.after(async () => {
    await node.kill("SIGKILL");
    await end();
  });

  async function crash(env: Record<string, string> = {}): Promise<void> {
    await node.kill("SIGKILL");
    node = await start({ ...rates, ...env });
  }

  test("G1: an OK says how durable it is, and the event is there after kill -9 at that moment", async () => {
    const client = await PlainClient.open(node.wsUrl);
    const ok = await client.publish("g1", { n: 1 });
    await node.kill("SIGKILL");
    assert.is(ok.durability, durability);
    node = await start(rates);
    const body = await (await fetch(`${node.http}/replay?topic=g1`)).json();
    const { events } = body as { events: { id: string; payload: unknown }[] };
    assert.equal(
      events.map(({ id, payload }) => [id, payload]),
      [[ok.id, { n: 1 }]],
    );
  });

  test("G2: offsets of a partition are dense and readers see log order, over restarts", async () => {
    let client = await PlainClient.open(node.wsUrl);
    const offsets: unknown[] = [];
    for (let i = 0; i < 5; i++) offsets.push((await client.publish("g2", i)).offset);
    await crash();
    client = await PlainClient.open(node.wsUrl);
    for (let i = 5; i < 10; i++) offsets.push((await client.publish("g2", i)).offset);
    assert.equal(offsets, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    await client.subscribe("g2", "all", { from: "earliest" });
    assert.equal(payloads(await client.nextMany(10)), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    await client.close();
  });

  test("G2: what one client pipelines for one topic is stored in the order it was sent", async () => {
    const client = await PlainClient.open(node.wsUrl);
    const answers = await Promise.all(Array.from({ length: 500 }, (_, i) => client.publish("g2.pipe", i)));
    assert.equal(
      answers.map(({ offset }) => offset),
      answers.map((_, i) => i),
    );
    await client.subscribe("g2.pipe", "all", { from: "earliest", maxInflight: 1000 });
    assert.equal(
      payloads(await client.nextMany(500)),
      answers.map((_, i) => i),
    );
    await client.close();
  });

  test("G3: each group gets every event from its start position; a new one starts at latest unless it says otherwise", async () => {
    const client = await PlainClient.open(node.wsUrl);
    await client.publish("g3", "before");
    await client.subscribe("g3", "a", { from: "earliest" });
    await client.subscribe("g3", "b");
    await client.publish("g3", "after");
    const events = await client.nextMany(3);
    const of = (group: string) => payloads(events.filter((event) => event.group === group));
    assert.equal(of("a"), ["before", "after"]);
    assert.equal(of("b"), ["after"]);
    await client.close();
  });

  test("G4: two members of a group never hold the same event", async () => {
    const [one, two] = await Promise.all([PlainClient.open(node.wsUrl), PlainClient.open(node.wsUrl)]);
    await one.subscribe("g4", "work", { from: "earliest", maxInflight: 5 });
    await two.subscribe("g4", "work", { maxInflight: 5 });
    const publisher = await PlainClient.open(node.wsUrl);
    for (let i = 0; i < 30; i++) await publisher.publish("g4", i);
    const held = new Map<unknown, string>();
    const work = async (client: PlainClient, name: string) => {
      while (held.size < 30) {
        const event = client.events.shift();
        if (event === undefined) {
          await pause(2);
          continue;
        }
        assert.not(held.has(event.event.payload), `${event.event.payload} is held by ${held.get(event.event.payload)}`);
        held.set(event.event.payload, name);
        await client.ack(event);
      }
    };
    await Promise.all([work(one, "one"), work(two, "two")]);
    assert.ok([...held.values()].includes("one") && [...held.values()].includes("two"), "both got some");
    await Promise.all([one.close(), two.close(), publisher.close()]);
  });

  test("G5 and G10: acks 3, 2, 5 of 1 to 5, kill -9, another WORKERS: exactly 1 and 4 come again", async () => {
    const client = await PlainClient.open(node.wsUrl);
    await client.subscribe("g5", "g", { from: "earliest" });
    for (let i = 1; i <= 5; i++) await client.publish("g5", i);
    const events = await client.nextMany(5);
    for (const n of [3, 2, 5]) assert.equal((await client.ack(events[n - 1])).op, "OK");
    await crash({ WORKERS: "3" });
    const again = await PlainClient.open(node.wsUrl);
    assert.is((await again.subscribe("g5", "g")).resumed, true);
    const back = await again.nextMany(2);
    assert.equal(payloads(back), [1, 4]);
    await again.publish("g5", 6);
    const sixth = await again.next();
    assert.is(sixth.event.payload, 6, "and nothing else in between");
    const cursor = await again.ok({ op: "CURSOR", topic: "g5", group: "g" });
    assert.equal(cursor.partitions, [
      {
        floor: 0,
        ranges: [
          [1, 3],
          [4, 5],
        ],
        end: 6,
      },
    ]);
    await again.close();
  });

  test("G6: a lease that runs out is redelivered with the next attempt, and attempts survive kill -9", async () => {
    const client = await PlainClient.open(node.wsUrl);
    await client.subscribe("g6", "g", { from: "earliest", ackTimeoutMs: 200, maxAttempts: 5 });
    await client.publish("g6", "x");
    assert.is((await client.next()).ctx.attempt, 1);
    const second = await client.next();
    assert.is(second.ctx.attempt, 2);
    assert.is((await client.nack(second, { reason: "no" })).op, "OK");
    assert.is((await client.next()).ctx.attempt, 3);
    await crash();
    const again = await PlainClient.open(node.wsUrl);
    await again.subscribe("g6", "g");
    const back = await again.next();
    assert.is(back.ctx.attempt, 3, "the attempt that the crash cut short does not count");
    await again.ack(back);
    await again.close();
  });

  test("G6: after maxAttempts the event moves to the dead-letter topic with origin and reason, and only it", async () => {
    const client = await PlainClient.open(node.wsUrl);
    await client.subscribe("g6.dead", "g", { from: "earliest", maxAttempts: 2 });
    const poison = await client.publish("g6.dead", { poison: true }, { key: "k", tags: ["t"], headers: { a: "b" } });
    await client.publish("g6.dead", "fine");
    const first = await client.nextMany(2);
    await client.nack(first[0], { reason: "one" });
    const again = await client.next();
    assert.equal([again.event.id, again.ctx.attempt, again.ctx.max_attempts], [poison.id, 2, 2]);
    await client.nack(again, { reason: "two" });
    await client.ack(first[1]);
    const dead = await eventually(5000, "the dead letter", async () => {
      const response = await fetch(`${node.http}/replay?topic=g6.dead.dlq.g`);
      const body = (await response.json()) as { events?: EventFrame["event"][] };
      return body.events !== undefined && body.events.length > 0 && body.events;
    });
    assert.is(dead.length, 1);
    const [{ id, payload, key, tags, headers, caused_by }] = dead;
    assert.is.not(id, poison.id);
    assert.equal([payload, key, tags, caused_by], [{ poison: true }, "k", ["t"], [poison.id]]);
    assert.is(headers?.a, "b");
    assert.equal(
      ["topic", "group", "id", "partition", "offset", "attempts", "reason"].map((name) => headers?.[`x-dlq-${name}`]),
      ["g6.dead", "g", poison.id, "0", "0", "2", "two"],
    );
    assert.ok(Number(headers?.["x-dlq-ts"]) > 0);
    const cursor = await client.ok({ op: "CURSOR", topic: "g6.dead", group: "g" });
    assert.equal(cursor.lag, 0);
    await crash();
    const reader = await PlainClient.open(node.wsUrl);
    await reader.subscribe("g6.dead.dlq.g", "watch", { from: "earliest" });
    assert.is((await reader.next()).event.id, id, "a dead-letter topic can be read like any other, after a crash too");
    await reader.close();
  });

  test("G6: a delay given with NACK is kept, and waits at most what was left of it after kill -9", async () => {
    const client = await PlainClient.open(node.wsUrl);
    await client.subscribe("g6.delay", "g", { from: "earliest" });
    await client.publish("g6.delay", 1);
    await client.nack(await client.next(), { delay_ms: 700 });
    const nackedAt = performance.now();
    await crash();
    const again = await PlainClient.open(node.wsUrl);
    await again.subscribe("g6.delay", "g");
    const back = await again.next();
    const waited = performance.now() - nackedAt;
    assert.is(back.ctx.attempt, 2);
    assert.ok(waited >= 600, `${waited} ms`);
    assert.ok(waited < 4000, `${waited} ms`);
    await again.close();
  });

  test("G7: a late ACK that names its lease is refused and changes nothing; one that names none is stale", async () => {
    const [late, other] = await Promise.all([PlainClient.open(node.wsUrl), PlainClient.open(node.wsUrl)]);
    await late.subscribe("g7", "g", { from: "earliest", ackTimeoutMs: 150 });
    await late.publish("g7", 1);
    const held = await late.next();
    await late.ok({ op: "PAUSE", topic: "g7", group: "g" });
    await other.subscribe("g7", "g", { ackTimeoutMs: 60_000 });
    const taken = await other.next();
    assert.is.not(taken.ctx.lease, held.ctx.lease);
    assert.is((await late.ack(held, { lease: held.ctx.lease })).code, "lease_lost");
    const stale = await late.ack(held);
    assert.equal([stale.op, stale.stale], ["OK", true]);
    assert.is((await other.ok({ op: "CURSOR", topic: "g7", group: "g" })).lag, 1, "still unsettled");
    const ok = await other.ack(taken, { lease: taken.ctx.lease });
    assert.equal([ok.op, ok.stale], ["OK", undefined]);
    await Promise.all([late.close(), other.close()]);
  });

  test("G7: a lease of before a crash never counts after it", async () => {
    const client = await PlainClient.open(node.wsUrl);
    await client.subscribe("g7.crash", "g", { from: "earliest" });
    await client.publish("g7.crash", 1);
    const held = await client.next();
    await crash();
    const again = await PlainClient.open(node.wsUrl);
    await again.subscribe("g7.crash", "g");
    const back = await again.next();
    assert.is.not(back.ctx.lease, held.ctx.lease);
    assert.is((await again.ack(held, { lease: held.ctx.lease })).code, "lease_lost");
    assert.is((await again.ack(back, { lease: back.ctx.lease })).op, "OK");
    await again.close();
  });

  test("G10: an id published again after kill -9 is known, within the window", async () => {
    const client = await PlainClient.open(node.wsUrl);
    const first = await client.publish("g10", 1, { id: "order-1", key: "a" });
    await crash({ WORKERS: "2" });
    const again = await PlainClient.open(node.wsUrl);
    const second = await again.publish("g10", 2, { id: "order-1", key: "a" });
    assert.equal([second.id, second.offset, second.ts, second.duplicate], ["order-1", first.offset, first.ts, true]);
    const body = await (await fetch(`${node.http}/replay?topic=g10`)).json();
    assert.is((body as { count: number }).count, 1);
    await again.close();
  });

  test("ordering by key: at most one unsettled event per key is out", async () => {
    const client = await PlainClient.open(node.wsUrl);
    await client.subscribe("keyed", "g", { from: "earliest", ordering: "key" });
    for (const [key, n] of [
      ["a", 1],
      ["a", 2],
      ["b", 3],
      ["a", 4],
    ] as const)
      await client.publish("keyed", n, { key });
    const first = await client.nextMany(2);
    assert.equal(payloads(first), [1, 3]);
    await client.nack(first[0]);
    const again = await client.next();
    assert.equal([again.event.payload, again.ctx.attempt], [1, 2]);
    await client.ack(again);
    const second = await client.next();
    assert.is(second.event.payload, 2);
    await client.ack(second);
    assert.is((await client.next()).event.payload, 4);
    await client.close();
  });

  test("a filter lets through what matches and settles the rest silently", async () => {
    const client = await PlainClient.open(node.wsUrl);
    await client.subscribe("filtered", "g", { from: "earliest", filter: { keyPrefix: "a", tags: ["x"] } });
    await client.publish("filtered", 1, { key: "a1", tags: ["x", "y"] });
    await client.publish("filtered", 2, { key: "a1" });
    await client.publish("filtered", 3, { key: "b1", tags: ["x"] });
    await client.publish("filtered", 4, { key: "a2", tags: ["x"] });
    const events = await client.nextMany(2);
    assert.equal(payloads(events), [1, 4]);
    for (const event of events) await client.ack(event);
    await eventually(
      5000,
      "nothing is left",
      async () => (await client.ok({ op: "CURSOR", topic: "filtered", group: "g" })).lag === 0,
    );
    await client.close();
  });

  test("a topic with several partitions keeps the order of each key, and maxInflight 1 means one event", async () => {
    const put = await fetch(`${node.http}/topics/parted`, {
      method: "PUT",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ partitions: 4 }),
    });
    assert.is(put.status, 201);
    const client = await PlainClient.open(node.wsUrl);
    for (let i = 0; i < 40; i++) await client.publish("parted", i, { key: `k${i % 10}` });
    await client.subscribe("parted", "one", { from: "earliest", maxInflight: 1 });
    const seen: EventFrame[] = [];
    for (let i = 0; i < 40; i++) {
      const event = await client.next();
      await client.settle();
      assert.is(client.events.length, 0, "only one at a time");
      seen.push(event);
      await client.ack(event);
    }
    assert.equal(new Set(seen.map(({ event }) => event.partition)).size > 1, true);
    assert.equal(
      payloads(seen).sort((a, b) => Number(a) - Number(b)),
      Array.from({ length: 40 }, (_, i) => i),
    );
    for (let k = 0; k < 10; k++) {
      const ofKey = payloads(seen.filter(({ event }) => event.key === `k${k}`));
      assert.equal(ofKey, [k, k + 10, k + 20, k + 30]);
    }
    await client.close();
  });
}
