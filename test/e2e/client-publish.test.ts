// The publishing half of the client against real nodes: rate limits, dying workers, kill -9, ids, a topic made anew.

import { test } from "uvu";
import * as assert from "uvu/assert";
import type { Published, PublishOptions } from "../../src/bus/event-bus.ts";
import { clientClock } from "../../src/client/clock.ts";
import { Connection } from "../../src/client/connection.ts";
import { dial } from "../../src/client/dial-node.ts";
import { ClosedError, type NarthexError } from "../../src/client/errors.ts";
import { Publisher } from "../../src/client/publisher.ts";
import type { PublishedBatch } from "../../src/protocol/batch.ts";
import { encodePack } from "../../src/protocol/pack.ts";
import { BatchClient } from "../support/batch-client.ts";
import { pause, within } from "../support/deadline.ts";
import { startHere } from "../support/node-here.ts";
import { dataFolder, startNode } from "../support/node-process.ts";

interface Event {
  readonly id: string;
  readonly partition: number;
  readonly offset: number;
  readonly key?: string;
  readonly payload: { readonly n: number };
}

/** A publisher that gets a new connection whenever it has none, as EventClient does. */
class Client {
  readonly publisher: Publisher;
  readonly clock = clientClock();
  lost = 0;
  private connection: Connection | undefined;
  private closed = false;
  private readonly url: string;

  constructor(url: string) {
    this.url = url;
    const { clock } = this;
    const limits = { publishTimeoutMs: 60_000, pendingEventsMax: 100_000, pendingBytesMax: 1e9 };
    this.publisher = new Publisher({ clock, ...limits });
    void this.connect();
  }

  publish(topic: string, n: number, options?: PublishOptions): Promise<Published> {
    return this.publisher.publish(topic, { n }, options);
  }

  close(): void {
    this.closed = true;
    this.publisher.fail(new ClosedError("closed", "the test is over"));
    this.connection?.close();
  }

  private async connect(): Promise<void> {
    const { url, clock } = this;
    const times = { openMs: 2000, silentMs: 5000, answerMs: 15_000 };
    while (!this.closed && this.connection === undefined) {
      try {
        this.connection = await new Connection({
          dial,
          url,
          token: undefined,
          clock,
          ...times,
          onEnded: () => undefined,
          onLost: () => {
            this.lost++;
            this.connection = undefined;
            this.publisher.lost();
            void this.connect();
          },
        }).opened;
        this.publisher.connected(this.connection);
      } catch {
        await pause(20);
      }
    }
  }
}

async function stored(http: string, topic: string): Promise<Event[]> {
  const body = await (await fetch(`${http}/export?topic=${topic}`)).text();
  return body
    .split("\n")
    .filter(Boolean)
    .map((line) => JSON.parse(line) as Event);
}

async function make(http: string, topic: string, partitions: number): Promise<void> {
  const headers = { "content-type": "application/json" };
  const answer = await fetch(`${http}/topics/${topic}`, {
    method: "PUT",
    headers,
    body: JSON.stringify({ partitions }),
  });
  assert.is(answer.status, 201);
}

/** That what resolved is stored where it was said to be, nothing twice, and each key in the order of its calls. */
function check(events: readonly Event[], results: readonly Published[]): void {
  const byId = new Map(events.map((event) => [event.id, event]));
  for (const { id, partition, offset, payload } of results) {
    const event = byId.get(id);
    assert.equal([event?.partition, event?.offset, event?.payload], [partition, offset, payload]);
  }
  const numbers = events.map(({ payload }) => payload.n);
  assert.is(new Set(numbers).size, numbers.length, "nothing is stored twice");
  const last = new Map<string, number>();
  for (const { key, partition, payload } of events.toSorted(
    (a, b) => a.partition - b.partition || a.offset - b.offset,
  )) {
    const line = key ?? `partition ${partition}`;
    assert.ok((last.get(line) ?? -1) < payload.n, `${payload.n} stands behind ${last.get(line)} in ${line}`);
    last.set(line, payload.n);
  }
}

test("under the rates of a fresh node a thousand publishes all resolve, in order", async () => {
  const data = dataFolder();
  const node = await startNode({ data: data.path });
  const client = new Client(node.wsUrl);
  const results: Promise<Published>[] = [];
  for (let n = 0; n < 1000; n++) {
    results.push(client.publish("burst", n));
    if (n % 10 === 9) await pause(1);
  }
  const published = await within(30_000, "all are stored", Promise.all(results));
  const events = await stored(node.http, "burst");
  assert.equal(
    events.map(({ payload }) => payload.n),
    results.map((_, n) => n),
  );
  check(events, published);
  const { durability } = published[0];
  assert.is(durability, "fsync");
  client.close();
  await node.kill("SIGKILL");
  data.remove();
});

test("a batch that is chained to one the budget refused is not stored, though the budget would take it", async () => {
  const { node, ws, http } = await startHere({ store: "memory", workers: 1, connRate: { burst: 5, perSec: 20 } });
  const client = await BatchClient.open(ws);
  const handle = await client.handle("t");
  const producer = "0123456789abcdef0123456789abcdef";
  const send = (seq: number, chained: boolean, count = 1): Promise<PublishedBatch | string> => {
    const entries = Array.from({ length: count }, (_, i) => ({
      payload: new TextEncoder().encode(JSON.stringify({ n: 10 * seq + i })),
    }));
    const name = { producer, seq, partition: 0, ...(chained ? { chained: true as const } : {}) };
    return client.publish(handle, encodePack(entries), name).catch((error: Error) => JSON.parse(error.message).code);
  };
  await send(0, false, 9);
  assert.is(await send(1, true), "rate_limited");
  let answer: PublishedBatch | string = "rate_limited";
  while (answer === "rate_limited") {
    await pause(10);
    answer = await send(2, true);
  }
  assert.is(answer, "publish_failed", "the budget has let it through, the partition has not");
  while (typeof (await send(1, false)) === "string") await pause(10);
  while (typeof (await send(2, true)) === "string") await pause(10);
  assert.equal(
    (await stored(http, "t")).map(({ payload }) => payload.n),
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 20],
  );
  client.close();
  await node.destroy();
});

for (const how of ["throw", "exit"] as const) {
  test(`workers that die by ${how} while a client publishes: everything resolves, once and in the order of its key`, async () => {
    const data = dataFolder();
    const { node, ws, http } = await startHere({ workers: 2, dataPath: data.path }, { testing: true });
    await make(http, "orders", 4);
    const client = new Client(ws);
    const results: Promise<Published>[] = [];
    for (let n = 0; n < 6000; n++) {
      const key = `customer-${n % 7}`;
      results.push(client.publish("orders", n, n % 3 === 0 ? { key, id: `order:${n}` } : { key }));
      if (n % 20 === 19) await pause(1);
      if (n === 2000 || n === 4000) node.system.crash(n === 2000 ? 0 : 1, how);
    }
    const published = await within(30_000, "all are stored", Promise.all(results));
    const events = await stored(http, "orders");
    assert.is(events.length, 6000);
    check(events, published);
    assert.is(client.lost, 0, "all over one connection");
    client.close();
    await node.destroy();
    data.remove();
  });
}

test("kill -9 of the node while a client publishes: everything resolves, once and in the order of the calls", async () => {
  const data = dataFolder();
  const env = { CONN_RATE: "off", TOPIC_RATE: "off" };
  let node = await startNode({ data: data.path, env });
  const port = String(node.ports.ws);
  const client = new Client(node.wsUrl);
  const results: Promise<Published>[] = [];
  let calling = true;
  const calls = (async () => {
    for (let n = 0; calling; n++) {
      results.push(client.publish("calls", n));
      if (n % 5 === 4) await pause(1);
    }
  })();
  for (let kill = 0; kill < 3; kill++) {
    await pause(300);
    await node.kill("SIGKILL");
    node = await startNode({ data: data.path, env: { ...env, WS_PORT: port } });
  }
  await pause(200);
  calling = false;
  await calls;
  const published = await within(30_000, "all are stored", Promise.all(results));
  assert.is(client.lost, 3);
  const events = await stored(node.http, "calls");
  assert.equal(
    events.map(({ payload }) => payload.n),
    results.map((_, n) => n),
  );
  check(events, published);
  client.close();
  await node.kill("SIGKILL");
  data.remove();
});

test("the same ids from two clients are stored once, and the second hears which they are", async () => {
  const { node, ws, http } = await startHere({ store: "memory", workers: 2 });
  await make(http, "named", 3);
  const clients = [new Client(ws), new Client(ws)];
  const results = await Promise.all(
    clients.map((client) =>
      Promise.all(Array.from({ length: 2500 }, (_, n) => client.publish("named", n, { id: `event:${n}` }))),
    ),
  );
  const events = await stored(http, "named");
  assert.equal(
    events.map(({ payload }) => payload.n).sort((a, b) => a - b),
    [...results[0].keys()],
  );
  for (const [n, first] of results[0].entries()) {
    const second = results[1][n];
    assert.equal([first.partition, first.offset, first.ts], [second.partition, second.offset, second.ts]);
    assert.equal([first.duplicate, second.duplicate].filter(Boolean), [true], `event ${n} is new to one of them`);
  }
  // All of it again, by one who has published before: nothing is stored.
  const again = await Promise.all(results[0].map((_, n) => clients[0].publish("named", n, { id: `event:${n}` })));
  assert.ok(again.every(({ duplicate }) => duplicate));
  assert.is((await stored(http, "named")).length, 2500);
  for (const client of clients) client.close();
  await node.destroy();
});

test("a topic that is deleted and made anew with other partitions: the client opens it again and goes on in order", async () => {
  const { node, ws, http } = await startHere({ store: "memory", workers: 2 });
  await make(http, "anew", 1);
  const client = new Client(ws);
  const fates: { n: number; error?: NarthexError }[] = [];
  const all: Promise<unknown>[] = [];
  let n = 0;
  let calling = true;
  const calls = (async () => {
    while (calling) {
      const fate: (typeof fates)[number] = { n };
      fates.push(fate);
      all.push(
        client.publish("anew", n, { key: `key-${n % 9}` }).catch((error: NarthexError) => {
          fate.error = error;
        }),
      );
      if (++n % 5 === 0) await pause(1);
    }
  })();
  await pause(100);
  await fetch(`${http}/topics/anew`, { method: "DELETE" });
  // The client may have made it by now.
  await fetch(`${http}/topics/anew`, { method: "DELETE" });
  await fetch(`${http}/topics/anew`, {
    method: "PUT",
    headers: { "content-type": "application/json" },
    body: '{"partitions":4}',
  });
  await pause(200);
  calling = false;
  await calls;
  await within(20_000, "all have their answer", Promise.all(all));
  const events = await stored(http, "anew");
  check(events, []);
  assert.ok(events.length > 0 && events.length < fates.length, `${events.length} of ${fates.length} in the new one`);
  const present = new Set(events.map(({ payload }) => payload.n));
  for (const { n: number, error } of fates) {
    if (error !== undefined) assert.is(error.code, "unknown_outcome");
    else if (!present.has(number)) {
      // It is gone with the topic that it was stored in, so everything of its key in the new one was called later.
      const first = events.find(({ key }) => key === `key-${number % 9}`);
      assert.ok(first !== undefined && first.payload.n > number, `${number} is missing`);
    }
  }
  client.close();
  await node.destroy();
});

test.run();
