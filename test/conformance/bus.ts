// What every bus promises (src/bus/event-bus.ts), sentence by sentence. Nothing here knows whether there is a socket in between.

import { suite } from "uvu";
import * as assert from "uvu/assert";
import type {
  Context,
  Delivery,
  EventBus,
  EventRecord,
  Outgoing,
  Published,
  PublishOptions,
  SubscribeOptions,
  Subscription,
} from "../../src/bus/event-bus.ts";
import { NarthexError } from "../../src/client/errors.ts";
import { eventually, pause, within } from "../support/deadline.ts";

/** A bus that its owner can end. */
export type OwnBus = EventBus & { close(): Promise<void> };

/** A node, and ways to it. */
export interface BusStage {
  /** Another bus to the same node. */
  open(): Promise<OwnBus>;
  makeTopic(topic: string, partitions: number): Promise<void>;
  deleteTopic(topic: string): Promise<void>;
  close(): Promise<void>;
}

export interface BusHarness {
  readonly durability: string;
  start(): Promise<BusStage>;
}

const waitMs = 10_000;

/** What one subscription got, in order. */
class Taken {
  readonly deliveries: Delivery[] = [];
  private wakers: (() => void)[] = [];

  add(event: EventRecord<unknown>, ctx: Context): void {
    this.deliveries.push({ event, ctx });
    for (const wake of this.wakers.splice(0)) wake();
  }

  get events(): EventRecord<unknown>[] {
    return this.deliveries.map(({ event }) => event);
  }

  get ids(): string[] {
    return this.events.map(({ id }) => id);
  }

  get payloads(): unknown[] {
    return this.events.map(({ payload }) => payload);
  }

  /** The first `count`, once they have come. */
  async first(count: number): Promise<Delivery[]> {
    const enough = async () => {
      while (this.deliveries.length < count) await new Promise<void>((resolve) => this.wakers.push(resolve));
    };
    await within(waitMs, `${count} events`, enough()).catch((error: Error) => {
      const came = JSON.stringify(this.payloads).slice(0, 200);
      throw new Error(`${error.message}, but ${this.deliveries.length} came: ${came}`);
    });
    return this.deliveries.slice(0, count);
  }

  async nth(n: number): Promise<Delivery> {
    return (await this.first(n + 1))[n];
  }
}

interface Gate {
  readonly passed: Promise<void>;
  open(): void;
}

function gate(): Gate {
  let open: () => void = () => undefined;
  const passed = new Promise<void>((resolve) => {
    open = resolve;
  });
  return { passed, open: () => open() };
}

/** What a promise was rejected with. Never rejects itself, so that it can be asked for later. */
function outcome(promise: Promise<unknown>): Promise<unknown> {
  const ended = promise.then(
    (value) => new Error(`it was not refused: ${JSON.stringify(value)}`),
    (error: unknown) => error,
  );
  return within(waitMs, "a refusal", ended).catch((error: Error) => error);
}

async function refusal(promise: Promise<unknown>): Promise<NarthexError> {
  const error = await outcome(promise);
  assert.instance(error, NarthexError, String(error));
  return error as NarthexError;
}

/** The event of a publish as consumers see it. */
function record({ durability: _, duplicate: __, ...event }: Published): EventRecord<unknown> {
  return event;
}

const ids = (events: readonly { readonly id: string }[]) => events.map(({ id }) => id);
const numbered = (count: number): Outgoing[] => Array.from({ length: count }, (_, n) => ({ payload: { n } }));
const uuid = /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/;

export function busConformance(name: string, harness: BusHarness): void {
  const test = suite(`${name}: conformance`);
  let stage: BusStage;
  let bus: OwnBus;
  let made = 0;

  test.before(async () => {
    stage = await harness.start();
    bus = await stage.open();
  });

  test.after(async () => {
    await bus.close();
    await stage.close();
  });

  /** Each test has a topic of its own. */
  const promise = (title: string, body: (topic: string) => Promise<void>, partitions = 1) =>
    test(title, async () => {
      const topic = `conformance.${++made}`;
      if (partitions > 1) await stage.makeTopic(topic, partitions);
      await within(60_000, title, body(topic));
    });

  /** Subscribes, from the earliest unless told otherwise, and keeps what comes. */
  const take = async (
    topic: string | readonly string[],
    group: string,
    options: SubscribeOptions = {},
    on: OwnBus = bus,
  ): Promise<{ readonly taken: Taken; readonly subscription: Subscription }> => {
    const taken = new Taken();
    const all = { from: "earliest", ...options } as SubscribeOptions;
    const subscription = await on.subscribe(topic, group, (event, ctx) => taken.add(event, ctx), all);
    return { taken, subscription };
  };

  const settled = (topic: string, group: string, lag = 0) =>
    eventually(waitMs, `${group} has ${lag} to settle on ${topic}`, async () => {
      const cursor = await bus.getCursor(topic, group);
      return cursor?.lag === lag && cursor;
    });

  // ----------------------------------------------------------------------------------------------------------- publishing

  promise("publish resolves with the event as it is stored", async (topic) => {
    const before = Date.now();
    const first = await bus.publish(topic, { n: 1 });
    assert.equal(Object.keys(first).sort(), ["durability", "id", "offset", "partition", "payload", "topic", "ts"]);
    assert.equal([first.topic, first.partition, first.offset], [topic, 0, 0]);
    assert.equal(first.payload, { n: 1 });
    assert.is(first.durability, harness.durability);
    assert.match(first.id, uuid);
    assert.ok(first.ts >= before - 1000 && first.ts <= Date.now() + 1000);
    const second = await bus.publish(topic, { n: 2 });
    assert.is(second.offset, 1);
    assert.is.not(second.id, first.id);
    const { taken, subscription } = await take(topic, "g");
    await taken.first(2);
    assert.equal(taken.events, [record(first), record(second)]);
    await subscription();
  });

  promise("every option comes back from publish and to every consumer", async (topic) => {
    const options: PublishOptions = {
      key: "customer-7 ü",
      id: "order:1",
      ts: 1_234_567_890_123,
      headers: { traceparent: "00-abc", "x-empty": "", "x-ü": "\u2028" },
      tags: ["eu", "späť"],
      caused_by: ["import:1", "import:2"],
      sid: "boot-1",
    };
    const stored = await bus.publish(topic, "payload", options);
    assert.equal(record(stored), { ...options, topic, partition: 0, offset: 0, payload: "payload" });
    for (const one of ["key", "id", "ts", "headers", "tags", "caused_by", "sid"] as const) {
      const given = one === "id" ? "order:2" : options[one];
      const only = await bus.publish(topic, one, { [one]: given });
      assert.equal(only[one], given, one);
    }
    const { taken, subscription } = await take(topic, "g");
    const [{ event }] = await taken.first(8);
    assert.equal(event, record(stored));
    const byPayload = new Map(taken.events.map((one) => [one.payload, one]));
    for (const one of ["key", "id", "ts", "headers", "tags", "caused_by", "sid"] as const) {
      assert.equal(byPayload.get(one)?.[one], one === "id" ? "order:2" : options[one], one);
    }
    await subscription();
  });

  promise("an option that is undefined, an empty list and an empty object are as none", async (topic) => {
    const empty = { key: undefined, headers: {}, tags: [], caused_by: [] } as unknown as PublishOptions;
    const stored = await bus.publish(topic, 1, empty);
    const { taken, subscription } = await take(topic, "g");
    const { event } = await taken.nth(0);
    assert.equal(event, { id: stored.id, ts: stored.ts, topic, partition: 0, offset: 0, payload: 1 });
    await subscription();
  });

  promise("an id published again is stored once and says duplicate", async (topic) => {
    const first = await bus.publish(topic, 1, { id: "same", key: "k" });
    assert.is(first.duplicate, undefined);
    const again = await bus.publish(topic, 1, { id: "same", key: "k" });
    assert.is(again.duplicate, true);
    assert.equal([again.id, again.ts, again.partition, again.offset], ["same", first.ts, 0, first.offset]);
    const other = await bus.publish(topic, 2, { id: "another", key: "k" });
    assert.equal([other.duplicate, other.offset], [undefined, 1]);
    // In one turn as well.
    const [a, b] = await Promise.all([bus.publish(topic, 3, { id: "twin" }), bus.publish(topic, 3, { id: "twin" })]);
    assert.equal([a.duplicate, b.duplicate, b.offset], [undefined, true, a.offset]);
    const last = await bus.publish(topic, "last");
    assert.is(last.offset, 3);
    const { taken, subscription } = await take(topic, "g");
    await taken.first(4);
    assert.equal(taken.payloads, [1, 2, 3, "last"]);
    await subscription();
  });

  promise("what is published without waiting is stored in the order of the calls", async (topic) => {
    const stored = await Promise.all(Array.from({ length: 500 }, (_, n) => bus.publish(topic, n)));
    assert.equal(
      stored.map(({ offset }) => offset),
      stored.map((_, n) => n),
    );
    assert.is(new Set(ids(stored)).size, 500);
    const { taken, subscription } = await take(topic, "g", { maxInflight: 500 });
    await taken.first(500);
    assert.equal(taken.ids, ids(stored));
    assert.equal(
      taken.payloads,
      stored.map((_, n) => n),
    );
    await subscription();
  });

  promise(
    "the order of each key holds over partitions",
    async (topic) => {
      const keys = ["a", "b", "c", "d", "e", "f", "g"];
      const calls = Array.from({ length: 350 }, (_, n) => ({ key: keys[n % keys.length], n }));
      const stored = await Promise.all(calls.map(({ key, n }) => bus.publish(topic, n, { key })));
      const places = new Map<string, Published[]>();
      for (const event of stored) places.set(event.key as string, [...(places.get(event.key as string) ?? []), event]);
      for (const [key, events] of places) {
        assert.is(new Set(events.map(({ partition }) => partition)).size, 1, key);
        const offsets = events.map(({ offset }) => offset);
        assert.equal(
          offsets,
          [...offsets].sort((a, b) => a - b),
          key,
        );
      }
      assert.ok(new Set(stored.map(({ partition }) => partition)).size > 1);
      const { taken, subscription } = await take(topic, "g");
      await taken.first(350);
      for (const key of keys) {
        const got = taken.events.filter((event) => event.key === key);
        assert.equal(ids(got), ids(places.get(key) ?? []), key);
      }
      assert.equal(taken.ids.sort(), ids(stored).sort());
      await subscription();
    },
    3,
  );

  promise("publishMany takes a list, a generator and an async generator, and keeps their order", async (topic) => {
    const outgoing: Outgoing[] = Array.from({ length: 250 }, (_, n) => ({
      payload: n,
      ...(n % 2 === 0 ? { options: { key: `k${n % 3}`, tags: ["even"] } } : {}),
    }));
    function* lazily() {
      yield* outgoing;
    }
    async function* slowly() {
      for (const one of outgoing) {
        if ((one.payload as number) % 100 === 0) await pause(1);
        yield one;
      }
    }
    const results = [
      await bus.publishMany(topic, outgoing),
      await bus.publishMany(topic, lazily()),
      await bus.publishMany(topic, slowly()),
    ];
    const all = results.flat();
    assert.equal(
      all.map(({ offset, payload }) => [offset, payload]),
      all.map((_, i) => [i, i % 250]),
    );
    assert.equal([all[2].key, all[2].tags, all[3].tags], ["k2", ["even"], undefined]);
    assert.equal(await bus.publishMany(topic, []), []);
    const { taken, subscription } = await take(topic, "g", { maxInflight: 1000 });
    await taken.first(750);
    assert.equal(taken.events, all.map(record));
    await subscription();
  });

  promise("publishMany refuses a key that stands beside the payload instead of losing it", async (topic) => {
    const flat = [{ payload: 1, key: "customer-7" }];
    assert.is((await refusal(bus.publishMany(topic, flat))).code, "bad_option");
  });

  promise("publishMany rejects with the first that was refused, and what stood before it is stored", async (topic) => {
    let asked = 0;
    function* some() {
      for (const n of [0, 1, 2]) {
        asked++;
        yield { payload: n, ...(n === 1 ? { options: { key: "" } } : {}) };
      }
    }
    assert.is((await refusal(bus.publishMany(topic, some()))).code, "bad_option");
    assert.ok(asked >= 2);
    const { taken, subscription } = await take(topic, "g");
    assert.is((await taken.nth(0)).event.payload, 0);
    await subscription();
    const source = new Error("the source broke");
    async function* broken() {
      yield { payload: "before" };
      throw source;
    }
    const thrown = await bus.publishMany(topic, broken()).catch((error: Error) => error);
    assert.is(thrown, source);
  });

  promise("payloads of every kind come back as they were", async (topic) => {
    let deep: unknown = "bottom";
    for (let i = 0; i < 60; i++) deep = i % 2 === 0 ? [deep] : { deeper: deep };
    const payloads: unknown[] = [
      null,
      0,
      -1.5e-7,
      Number.MAX_SAFE_INTEGER,
      true,
      false,
      "",
      'line\u2028and\u2029paragraph, \u0000 \u001f \\ " \n',
      "emoji 👩‍👩‍👧 and 𝕊",
      "\ud800 half a pair",
      [],
      {},
      { "": { __proto__: null, "a b": [1, [2, [3]]] }, ключ: "значение" },
      deep,
      { big: "x".repeat(900_000) },
      "ü".repeat(450_000),
    ];
    const plain = (value: unknown) => JSON.parse(JSON.stringify(value)) as unknown;
    const stored = await Promise.all(payloads.map((payload) => bus.publish(topic, payload)));
    const { taken, subscription } = await take(topic, "g");
    await taken.first(payloads.length);
    for (let i = 0; i < payloads.length; i++) {
      const { id, payload } = taken.events[i];
      assert.is(id, stored[i].id);
      assert.equal(payload, plain(payloads[i]), `payload ${i}`);
    }
    await subscription();
  });

  promise("what cannot be published is refused by name, and disturbs nobody in the same turn", async (topic) => {
    const circular: { self?: unknown } = {};
    circular.self = circular;
    let tooDeep: unknown = 1;
    for (let i = 0; i < 70; i++) tooDeep = [tooDeep];
    const options: [Record<string, unknown>, RegExp][] = [
      [{ key: "" }, /key/],
      [{ key: "k".repeat(1025) }, /key/],
      [{ key: "\ud800" }, /key/],
      [{ key: 7 }, /key/],
      [{ id: "" }, /id/],
      [{ id: "a b" }, /id/],
      [{ id: "i".repeat(129) }, /id/],
      [{ ts: -1 }, /ts/],
      [{ ts: 1.5 }, /ts/],
      [{ ts: Number.NaN }, /ts/],
      [{ ts: "now" }, /ts/],
      [{ headers: ["a"] }, /headers/],
      [{ headers: { a: 1 } }, /headers/],
      [{ headers: { "": "a" } }, /headers/],
      [{ headers: { a: "v".repeat(4097) } }, /headers/],
      [{ tags: "eu" }, /tags/],
      [{ tags: [""] }, /tags/],
      [{ tags: Array.from({ length: 65 }, () => "t") }, /tags/],
      [{ caused_by: ["a b"] }, /caused_by/],
      [{ caused_by: "a" }, /caused_by/],
      [{ sid: "" }, /sid/],
      [{ sid: "s".repeat(129) }, /sid/],
      [{ colour: "red" }, /colour/],
    ];
    const neighbours: Promise<Published>[] = [];
    const verdicts = options.map(([bad]) => {
      neighbours.push(bus.publish(topic, `beside ${neighbours.length}`));
      return outcome(bus.publish(topic, 1, bad as PublishOptions));
    });
    const others: [string, unknown, string][] = [
      ["a b", 1, "bad_topic"],
      ["", 1, "bad_topic"],
      ["a..b", 1, "bad_topic"],
      ["t".repeat(201), 1, "bad_topic"],
      ["$sys", 1, "bad_topic"],
      [`${topic}.dlq.g`, 1, "bad_topic"],
      [topic, "x".repeat(1_100_000), "too_large"],
      [topic, undefined, "bad_json"],
      [topic, () => 1, "bad_json"],
      [topic, circular, "bad_json"],
      [topic, 1n, "bad_json"],
      [topic, tooDeep, "bad_json"],
    ];
    const otherVerdicts = others.map(([where, payload]) => outcome(bus.publish(where, payload)));
    neighbours.push(bus.publish(topic, "the last"));
    for (let i = 0; i < options.length; i++) {
      const [bad, named] = options[i];
      const error = (await verdicts[i]) as NarthexError;
      assert.instance(error, NarthexError, `${JSON.stringify(bad).slice(0, 80)}: ${error}`);
      assert.equal([error.code, error.retryable], ["bad_option", false], JSON.stringify(bad).slice(0, 80));
      assert.match(error.message, named);
    }
    for (let i = 0; i < others.length; i++) {
      const error = (await otherVerdicts[i]) as NarthexError;
      assert.instance(error, NarthexError, `${others[i][0].slice(0, 40)} ${i}: ${error}`);
      assert.equal([error.code, error.retryable], [others[i][2], false], `${others[i][0].slice(0, 40)} ${i}`);
    }
    const stored = await Promise.all(neighbours);
    assert.equal(
      stored.map(({ offset }) => offset),
      stored.map((_, n) => n),
    );
  });

  promise("a refusal is an Error with a code, whether trying again helps, and a sentence", async (topic) => {
    const error = await refusal(bus.publish("a b", topic));
    assert.instance(error, Error);
    assert.equal([error.code, error.retryable, error.retryAfterMs], ["bad_topic", false, undefined]);
    assert.ok(error.message.length > 5 && !error.message.includes("\n"));
    assert.match(error.name, /Error$/);
    assert.match(error.stack ?? "", /Error/);
  });

  // ------------------------------------------------------------------------------------------------------------ consuming

  promise("a handler gets the event and what it needs to know of its lease, and its end is the ack", async (topic) => {
    const stored = await bus.publish(topic, { n: 1 });
    const { taken, subscription } = await take(topic, "g", { ackTimeoutMs: 20_000, maxAttempts: 7 });
    assert.equal([subscription.topics, subscription.group, subscription.resumed], [[topic], "g", false]);
    const { event, ctx } = await taken.nth(0);
    assert.equal(event, record(stored));
    assert.equal([ctx.topic, ctx.group, ctx.attempt, ctx.maxAttempts], [topic, "g", 1, 7]);
    assert.is(ctx.ackDeadlineMs, 20_000);
    assert.ok(ctx.lease.length > 0);
    assert.is(ctx.signal.aborted, false);
    const cursor = await settled(topic, "g");
    assert.is(cursor.lastId, stored.id);
    await subscription();
    await within(waitMs, "the end", subscription.closed);
    const again = await take(topic, "g");
    assert.is(again.subscription.resumed, true);
    const next = await bus.publish(topic, { n: 2 });
    assert.is((await again.taken.nth(0)).event.id, next.id);
    assert.is(again.taken.deliveries.length, 1);
    await again.subscription();
  });

  promise("ending a subscription waits for the handlers that run, whose acks count", async (topic) => {
    const [first, second] = await bus.publishMany(topic, numbered(2));
    const began = gate();
    const finish = gate();
    const seen: string[] = [];
    const stop = await bus.subscribe(
      topic,
      "g",
      async (event) => {
        seen.push(event.id);
        began.open();
        await finish.passed;
      },
      { from: "earliest", maxInflight: 1 },
    );
    await within(waitMs, "the handler runs", began.passed);
    let stopped = false;
    const stopping = stop().then(() => {
      stopped = true;
    });
    await bus.getCursor(topic, "g");
    assert.is(stopped, false);
    finish.open();
    await within(waitMs, "it has ended", stopping);
    assert.equal(seen, [first.id]);
    const { taken, subscription } = await take(topic, "g");
    assert.is((await taken.nth(0)).event.id, second.id);
    assert.is((await taken.nth(0)).ctx.attempt, 1);
    await settled(topic, "g");
    assert.equal(taken.ids, [second.id]);
    await subscription();
    // Again and by the other names it does nothing.
    await Promise.all([stop(), stop.close(), stop[Symbol.asyncDispose]()]);
  });

  promise("an iterator gives one after the other and acks each when the next is asked for", async (topic) => {
    const stored = await bus.publishMany(topic, numbered(3));
    const subscription = await bus.subscribe(topic, "g", { from: "earliest", maxInflight: 1 });
    const seen: string[] = [];
    for await (const { event, ctx } of subscription) {
      seen.push(event.id);
      assert.equal([ctx.topic, ctx.group, ctx.attempt], [topic, "g", 1]);
      if (seen.length === 2) await settled(topic, "g", 2);
      if (seen.length === 3) break;
    }
    assert.equal(seen, ids(stored));
    await within(waitMs, "a break ends it", subscription.closed);
    // The last was not acked: nobody asked for the next.
    const again = await take(topic, "g");
    assert.is((await again.taken.nth(0)).event.id, stored[2].id);
    await settled(topic, "g");
    assert.equal(again.taken.ids, [stored[2].id]);
    await again.subscription();
  });

  promise("an iterator with manualAck acks nothing by itself", async (topic) => {
    const [first, second] = await bus.publishMany(topic, numbered(2));
    const subscription = await bus.subscribe(topic, "g", { from: "earliest", manualAck: true });
    const held: Delivery[] = [];
    for await (const delivery of subscription) {
      held.push(delivery);
      if (held.length < 2) continue;
      assert.equal(await held[1].ctx.ack(), { id: second.id, ok: true });
      break;
    }
    const again = await take(topic, "g");
    assert.is((await again.taken.nth(0)).event.id, first.id);
    await settled(topic, "g");
    assert.equal(again.taken.ids, [first.id]);
    await again.subscription();
  });

  promise("an iterator ends when its subscription is ended from elsewhere", async (topic) => {
    const subscription = await bus.subscribe(topic, "g");
    const waiting = (async () => {
      const seen: string[] = [];
      for await (const { event } of subscription) seen.push(event.id);
      return seen;
    })();
    await subscription.close();
    assert.equal(await within(waitMs, "the loop ends", waiting), []);
  });

  promise("aborting the signal ends the subscription", async (topic) => {
    const controller = new AbortController();
    const { taken, subscription } = await take(topic, "g", { signal: controller.signal });
    const first = await bus.publish(topic, 1);
    await taken.first(1);
    await settled(topic, "g");
    controller.abort();
    await within(waitMs, "it has ended", subscription.closed);
    const second = await bus.publish(topic, 2);
    const again = await take(topic, "g");
    assert.is((await again.taken.nth(0)).event.id, second.id);
    assert.equal(taken.ids, [first.id]);
    await again.subscription();
  });

  promise("a signal that was aborted before lets nothing begin", async (topic) => {
    const error = await refusal(bus.subscribe(topic, "g", () => undefined, { signal: AbortSignal.abort() }));
    assert.is(error.code, "closed");
    await (await take(topic, "g")).subscription();
  });

  promise("leaving the scope of a subscription ends it", async (topic) => {
    const { subscription } = await take(topic, "g");
    await subscription[Symbol.asyncDispose]();
    await within(waitMs, "it has ended", subscription.closed);
    // The name is free again.
    const again = await take(topic, "g");
    await again.subscription();
  });

  promise("a group begins where it is told, once", async (topic) => {
    const stored: Published[] = [];
    for (let n = 0; n < 6; n++) stored.push(await bus.publish(topic, n, { ts: 1000 + 10 * n, id: `e${n}` }));
    const begins: [string, SubscribeOptions, number][] = [
      ["earliest", { from: "earliest" }, 0],
      ["ts", { from: "ts", ts: 1020 }, 2],
      ["between", { from: "ts", ts: 1021 }, 3],
      ["afterId", { from: "afterId", afterId: "e3" }, 4],
      ["offsets", { from: "offsets", offsets: "0:5" }, 5],
      ["latest", { from: "latest" }, 6],
      ["default", {}, 6],
    ];
    const open = await Promise.all(
      begins.map(async ([group, options]) => {
        const taken = new Taken();
        const subscription = await bus.subscribe(topic, group, (event, ctx) => taken.add(event, ctx), options);
        return { group, taken, subscription };
      }),
    );
    stored.push(await bus.publish(topic, 6));
    for (let i = 0; i < begins.length; i++) {
      const expected = ids(stored.slice(begins[i][2]));
      await open[i].taken.first(expected.length);
      assert.equal(open[i].taken.ids, expected, open[i].group);
      await settled(topic, open[i].group);
      await open[i].subscription();
    }
    // For a group that has a cursor, where it would begin means nothing.
    const again = await take(topic, "latest", { from: "earliest" });
    stored.push(await bus.publish(topic, 7));
    await again.taken.first(1);
    assert.equal(again.taken.ids, [stored[7].id]);
    await again.subscription();
  });

  promise("a subscription that cannot be is refused by name", async (topic) => {
    await bus.publish(topic, 1);
    const handler = () => undefined;
    const options: [Record<string, unknown>, string][] = [
      [{ maxInflight: 0 }, "bad_option"],
      [{ maxInFlight: 1.5 }, "bad_option"],
      [{ maxInflight: 10_001 }, "bad_option"],
      [{ ackTimeoutMs: 5 }, "bad_option"],
      [{ ackTimeoutMs: Number.NaN }, "bad_option"],
      [{ batchSize: 0 }, "bad_option"],
      [{ concurrency: 0 }, "bad_option"],
      [{ maxAttempts: 0 }, "bad_option"],
      [{ backoffMs: -1 }, "bad_option"],
      [{ backoffMs: [] }, "bad_option"],
      [{ ordering: "time" }, "bad_option"],
      [{ filter: { colour: "red" } }, "bad_option"],
      [{ filter: { tags: "eu" } }, "bad_option"],
      [{ ephemeral: "yes" }, "bad_option"],
      [{ from: "start" }, "bad_option"],
      [{ from: "ts" }, "bad_option"],
      [{ ts: 5 }, "bad_option"],
      [{ from: "offsets", offsets: "5" }, "bad_option"],
      [{ from: "offsets", offsets: "9:5" }, "bad_option"],
      [{ from: "afterId", afterId: "a b" }, "bad_option"],
      [{ from: "afterId", afterId: "no-such-event" }, "unknown_id"],
      [{ colour: "red" }, "bad_option"],
    ];
    let n = 0;
    for (const [bad, code] of options) {
      const error = await refusal(bus.subscribe(topic, `g${n++}`, handler, bad as SubscribeOptions));
      assert.equal([error.code, error.retryable], [code, false], JSON.stringify(bad));
    }
    assert.is((await refusal(bus.subscribe(topic, "a b", handler))).code, "bad_group");
    assert.is((await refusal(bus.subscribe(topic, "", handler))).code, "bad_group");
    assert.is((await refusal(bus.subscribe("a b", "g", handler))).code, "bad_topic");
    // Of several topics one is enough, and nothing is left of the others.
    assert.is((await refusal(bus.subscribe([topic, "a b"], "several", handler))).code, "bad_topic");
    const { subscription } = await take(topic, "several");
    await subscription();
  });

  promise("a second subscription under the same name is refused, until the first has ended", async (topic) => {
    const { subscription } = await take(topic, "g");
    assert.is((await refusal(bus.subscribe(topic, "g", () => undefined))).code, "already_subscribed");
    await subscription();
    const again = await take(topic, "g");
    const stored = await bus.publish(topic, 1);
    assert.is((await again.taken.nth(0)).event.id, stored.id);
    await again.subscription();
  });

  promise("another filter or ordering than that of live members is a conflict", async (topic) => {
    const other = await stage.open();
    const { subscription } = await take(topic, "g", { filter: { key: "a" } });
    const error = await refusal(other.subscribe(topic, "g", () => undefined, { filter: { key: "b" } }));
    assert.is(error.code, "group_conflict");
    await subscription();
    await other.close();
  });

  // ------------------------------------------------------------------------------------------------------------- settling

  promise("with manualAck the handler's end settles nothing; ctx.ack does, once", async (topic) => {
    const [first, second] = await bus.publishMany(topic, numbered(2));
    const { taken, subscription } = await take(topic, "g", { manualAck: true });
    const [one, two] = await taken.first(2);
    assert.is((await bus.getCursor(topic, "g"))?.lag, 2);
    assert.equal(await two.ctx.ack(), { id: second.id, ok: true });
    assert.is((await bus.getCursor(topic, "g"))?.lag, 1);
    assert.equal(await two.ctx.ack(), { id: second.id, ok: true, stale: true });
    assert.equal(await one.ctx.ack(), { id: first.id, ok: true });
    assert.is((await bus.getCursor(topic, "g"))?.lag, 0);
    await subscription();
  });

  promise(
    "a nack comes again as the next attempt after its delay, and the last one becomes a dead letter",
    async (topic) => {
      const stored = await bus.publish(topic, { n: 1 }, { key: "k", headers: { own: "1" }, tags: ["eu"], sid: "s" });
      const { taken, subscription } = await take(topic, "g", { manualAck: true, maxAttempts: 2 });
      const first = await taken.nth(0);
      const before = performance.now();
      assert.equal(await first.ctx.nack("no stock", 200), { id: stored.id, ok: true });
      const second = await taken.nth(1);
      assert.ok(performance.now() - before >= 190, "the delay");
      assert.equal([second.event, second.ctx.attempt, second.ctx.maxAttempts], [record(stored), 2, 2]);
      assert.is.not(second.ctx.lease, first.ctx.lease);
      // The first lease is over: what is said in its name changes nothing.
      assert.equal(await first.ctx.ack(), { id: stored.id, ok: true, stale: true });
      assert.equal(await second.ctx.nack("still no stock"), { id: stored.id, ok: true });
      const dead = await take(`${topic}.dlq.g`, "repair");
      const { event } = await dead.taken.nth(0);
      assert.equal([event.payload, event.key, event.tags, event.caused_by], [{ n: 1 }, "k", ["eu"], [stored.id]]);
      assert.is.not(event.id, stored.id);
      assert.equal(event.headers, {
        own: "1",
        "x-dlq-topic": topic,
        "x-dlq-group": "g",
        "x-dlq-id": stored.id,
        "x-dlq-partition": "0",
        "x-dlq-offset": "0",
        "x-dlq-attempts": "2",
        "x-dlq-reason": "still no stock",
        "x-dlq-ts": String(stored.ts),
      });
      await settled(topic, "g");
      assert.is(taken.deliveries.length, 2);
      await dead.subscription();
      await subscription();
    },
  );

  promise("a handler that throws is a nack with its message, and is told to onError", async (topic) => {
    // Dead letters can be waited for before there are any.
    const dead = await take(`${topic}.dlq.g`, "repair");
    const stored = await bus.publish(topic, 1);
    const told: [string, string | undefined][] = [];
    const attempts: number[] = [];
    const subscription = await bus.subscribe(
      topic,
      "g",
      async (_event, ctx) => {
        attempts.push(ctx.attempt);
        throw new Error(`attempt ${ctx.attempt} failed`);
      },
      { from: "earliest", maxAttempts: 3, onError: (error, event) => told.push([error.message, event?.id]) },
    );
    const { event } = await dead.taken.nth(0);
    assert.equal([event.headers?.["x-dlq-reason"], event.headers?.["x-dlq-attempts"]], ["attempt 3 failed", "3"]);
    assert.equal(attempts, [1, 2, 3]);
    assert.equal(
      told,
      [1, 2, 3].map((n) => [`attempt ${n} failed`, stored.id]),
    );
    await dead.subscription();
    await subscription();
  });

  promise("backoffMs waits before each next attempt", async (topic) => {
    await bus.publish(topic, 1);
    const times: number[] = [];
    const third = gate();
    const subscription = await bus.subscribe(
      topic,
      "g",
      (_event, ctx) => {
        times.push(performance.now());
        if (ctx.attempt === 3) third.open();
        else throw new Error("again");
      },
      { from: "earliest", backoffMs: [100, 200], onError: () => undefined },
    );
    await within(waitMs, "the third attempt", third.passed);
    assert.ok(times[1] - times[0] >= 90 && times[2] - times[1] >= 190, String(times));
    await subscription();
  });

  promise("ack, nack and modAck by id work on what a subscription here holds", async (topic) => {
    const [a, b, c] = await bus.publishMany(topic, numbered(3));
    const { taken, subscription } = await take(topic, "g", { manualAck: true });
    await taken.first(3);
    assert.equal(await bus.ack(topic, "g", a.id), { id: a.id, ok: true });
    assert.equal(await bus.ack(topic, "g", a.id), { id: a.id, ok: true, stale: true });
    assert.equal(await bus.nack(topic, "g", b.id, "not yet", 0), { id: b.id, ok: true });
    const again = await taken.nth(3);
    assert.equal([again.event.id, again.ctx.attempt], [b.id, 2]);
    assert.equal(await bus.modAck(topic, "g", c.id, 60_000), { id: c.id, ok: true });
    const gone = await bus.modAck(topic, "g", a.id, 60_000);
    assert.equal([gone.id, gone.ok], [a.id, false]);
    assert.equal(await bus.ack(topic, "g", b.id), { id: b.id, ok: true });
    assert.equal(await bus.ack(topic, "g", c.id), { id: c.id, ok: true });
    assert.is((await bus.getCursor(topic, "g"))?.lag, 0);
    // Nobody here holds it.
    const nobody = await bus.ack(topic, "g", "never-seen");
    assert.equal([nobody.id, nobody.ok, nobody.stale], ["never-seen", true, true]);
    await subscription();
    for (const settle of [
      bus.ack(topic, "g", a.id),
      bus.nack(topic, "g", a.id),
      bus.modAck(topic, "g", a.id, 1000),
      bus.ack(topic, "other", a.id),
    ]) {
      assert.equal(await settle, { id: a.id, ok: false, err: "not_subscribed" });
    }
  });

  promise("a lease that is lost is told by its signal, and its late ack changes nothing", async (topic) => {
    const stored = await bus.publish(topic, 1);
    const { taken, subscription } = await take(topic, "g", { manualAck: true });
    const { ctx } = await taken.nth(0);
    await bus.setCursor(topic, "g", "earliest");
    const again = await taken.nth(1);
    assert.equal([again.event.id, again.ctx.attempt], [stored.id, 1]);
    assert.equal(await ctx.ack(), { id: stored.id, ok: false, err: "lease_lost" });
    assert.equal(await ctx.nack("late"), { id: stored.id, ok: false, err: "lease_lost" });
    assert.equal(await ctx.extend(1000), { id: stored.id, ok: false, err: "lease_lost" });
    assert.is(ctx.signal.aborted, true);
    assert.is((await bus.getCursor(topic, "g"))?.lag, 1);
    assert.equal(await again.ctx.ack(), { id: stored.id, ok: true });
    assert.is((await bus.getCursor(topic, "g"))?.lag, 0);
    await subscription();
  });

  promise("a lease is extended while its handler runs", async (topic) => {
    const stored = await bus.publish(topic, 1);
    const attempts: number[] = [];
    const errors: Error[] = [];
    const done = gate();
    const subscription = await bus.subscribe(
      topic,
      "g",
      async (event, ctx) => {
        attempts.push(ctx.attempt);
        await pause(1500);
        assert.equal([event.id, ctx.signal.aborted], [stored.id, false]);
        done.open();
      },
      { from: "earliest", ackTimeoutMs: 200, onError: (error) => errors.push(error) },
    );
    await within(waitMs, "the handler ends", done.passed);
    await settled(topic, "g");
    assert.equal([attempts, errors], [[1], []]);
    await subscription();
  });

  promise("without autoExtend it runs out, and the event comes again", async (topic) => {
    const stored = await bus.publish(topic, 1);
    const { taken, subscription } = await take(topic, "g", { manualAck: true, autoExtend: false, ackTimeoutMs: 150 });
    const [first, second] = await taken.first(2);
    assert.equal([first.ctx.attempt, second.ctx.attempt], [1, 2]);
    assert.equal([first.event.id, second.event.id], [stored.id, stored.id]);
    assert.equal(await first.ctx.ack(), { id: stored.id, ok: false, err: "lease_lost" });
    assert.equal(await second.ctx.extend(60_000), { id: stored.id, ok: true });
    await pause(400);
    assert.is(taken.deliveries.length, 2);
    assert.equal(await second.ctx.ack(), { id: stored.id, ok: true });
    await subscription();
  });

  // --------------------------------------------------------------------------------------------------- groups and windows

  promise("two buses of one group share the work: each event goes to one of them", async (topic) => {
    const other = await stage.open();
    const both = gate();
    const byBus: [string[], string[]] = [[], []];
    const handler = (mine: string[]) => async (event: EventRecord<unknown>) => {
      mine.push(event.id);
      if (byBus[0].length > 0 && byBus[1].length > 0) both.open();
      await both.passed;
    };
    const options: SubscribeOptions = { from: "earliest", maxInflight: 2 };
    const subscriptions = [
      await bus.subscribe(topic, "g", handler(byBus[0]), options),
      await other.subscribe(topic, "g", handler(byBus[1]), options),
    ];
    const stored = await bus.publishMany(topic, numbered(60));
    await settled(topic, "g");
    assert.equal([...byBus[0], ...byBus[1]].sort(), ids(stored).sort());
    for (const subscription of subscriptions) await subscription();
    await other.close();
  });

  promise("what a bus that ends holds goes to the others of its group", async (topic) => {
    const other = await stage.open();
    const { taken } = await take(topic, "g", { manualAck: true, maxInflight: 2 }, other);
    const stored = await bus.publishMany(topic, numbered(4));
    await taken.first(2);
    const mine = await take(topic, "g");
    await other.close();
    await mine.taken.first(4);
    await settled(topic, "g");
    assert.equal(mine.taken.ids.sort(), ids(stored).sort());
    await mine.subscription();
  });

  promise("each group gets everything", async (topic) => {
    const groups = await Promise.all(["a", "b", "c"].map((group) => take(topic, group)));
    const stored = await bus.publishMany(topic, numbered(20));
    for (const { taken, subscription } of groups) {
      await taken.first(20);
      assert.equal(taken.ids, ids(stored));
      await subscription();
    }
  });

  promise("several topics share one subscription, as a list and as an option", async (topic) => {
    const names = [`${topic}.a`, `${topic}.b`, `${topic}.c`];
    const list = await take(names, "list");
    const option = await take(names[0], "option", { topics: names.slice(1) });
    assert.equal([list.subscription.topics, option.subscription.topics], [names, names]);
    const stored = await Promise.all(names.map((one, n) => bus.publish(one, n)));
    for (const { taken, subscription } of [list, option]) {
      const deliveries = await taken.first(3);
      const seen = deliveries.map(({ event, ctx }) => [event.topic, ctx.topic, event.id]);
      assert.equal(seen.sort(), stored.map((event) => [event.topic, event.topic, event.id]).sort());
      for (const one of names) await settled(one, subscription.group);
      await subscription();
    }
    // All of them have ended.
    for (const one of names) await (await take(one, "list")).subscription();
  });

  promise("ordering by key hands out an event only when the one before it of its key is settled", async (topic) => {
    const send = (key: string, n: number) => bus.publish(topic, n, { key });
    const [a1, a2, b1] = [await send("a", 1), await send("a", 2), await send("b", 1)];
    const { taken, subscription } = await take(topic, "g", { ordering: "key", manualAck: true });
    const [first, second] = await taken.first(2);
    assert.equal([first.event.id, second.event.id].sort(), [a1.id, b1.id].sort());
    const holder = first.event.id === a1.id ? first : second;
    // It waits over a retry too.
    await holder.ctx.nack("again", 50);
    const retried = await taken.nth(2);
    assert.equal([retried.event.id, retried.ctx.attempt], [a1.id, 2]);
    assert.is(taken.deliveries.length, 3);
    await retried.ctx.ack();
    const last = await taken.nth(3);
    assert.is(last.event.id, a2.id);
    await last.ctx.ack();
    await bus.ack(topic, "g", b1.id);
    assert.is((await bus.getCursor(topic, "g"))?.lag, 0);
    await subscription();
  });

  promise("a filter of data is the group's: only what matches is delivered, the rest is settled", async (topic) => {
    const sent: PublishOptions[] = [
      { key: "customer-1", tags: ["eu", "new"], headers: { kind: "a" }, sid: "s1" },
      { key: "customer-2", tags: ["eu"], headers: { kind: "b" }, sid: "s2" },
      { key: "shop-1", tags: ["us", "new"], headers: { kind: "a" }, sid: "s1" },
      {},
    ];
    const stored: Published[] = [];
    for (const options of sent) stored.push(await bus.publish(topic, 1, options));
    const filters: [SubscribeOptions["filter"], number[]][] = [
      [{ key: "customer-2" }, [1]],
      [{ keyPrefix: "customer-" }, [0, 1]],
      [{ tags: ["new", "eu"] }, [0]],
      [{ headers: { kind: "a" } }, [0, 2]],
      [{ sid: "s1", tags: ["us"] }, [2]],
      [null, [0, 1, 2, 3]],
    ];
    let n = 0;
    for (const [filter, expected] of filters) {
      const group = `g${n++}`;
      const { taken, subscription } = await take(topic, group, { filter: filter as null });
      await taken.first(expected.length);
      await settled(topic, group);
      assert.equal(taken.ids, ids(expected.map((i) => stored[i])), JSON.stringify(filter));
      await subscription();
    }
  });

  promise("a filter that is a function runs here, and what it leaves out is acked", async (topic) => {
    const stored = await bus.publishMany(topic, numbered(10));
    const filter = (event: EventRecord<unknown>) => (event.payload as { n: number }).n % 3 === 0;
    const { taken, subscription } = await take(topic, "g", { filter });
    await taken.first(4);
    await settled(topic, "g");
    assert.equal(taken.ids, ids(stored.filter((_, n) => n % 3 === 0)));
    await subscription();
    const iterated = await bus.subscribe(topic, "h", { from: "earliest", filter });
    const seen: string[] = [];
    for await (const { event } of iterated) {
      seen.push(event.id);
      if (seen.length === 4) break;
    }
    assert.equal(seen, ids(stored.filter((_, n) => n % 3 === 0)));
  });

  promise("maxInflight bounds what is out, and concurrency the handlers that run, over all topics", async (topic) => {
    const names = [topic, `${topic}.more`];
    const stored = (await Promise.all(names.map((one) => bus.publishMany(one, numbered(10))))).flat();
    let running = 0;
    let most = 0;
    const seen: string[] = [];
    const subscription = await bus.subscribe(
      names,
      "g",
      async (event) => {
        most = Math.max(most, ++running);
        await pause(2);
        running--;
        seen.push(event.id);
      },
      { from: "earliest", concurrency: 3 },
    );
    for (const one of names) await settled(one, "g");
    assert.equal([seen.sort(), most], [ids(stored).sort(), 3]);
    await subscription();

    const one = await take(topic, "one", { manualAck: true, maxInflight: 1 });
    for (let n = 0; n < 10; n++) {
      const { event, ctx } = await one.taken.nth(n);
      assert.is(event.id, stored[n].id);
      await bus.getCursor(topic, "one");
      assert.is(one.taken.deliveries.length, n + 1);
      await ctx.ack();
    }
    await one.subscription();
  });

  promise("paused, a subscription gets nothing new until it is resumed", async (topic) => {
    const { taken, subscription } = await take(topic, "g");
    const witness = await take(topic, "witness");
    const steps: [() => Promise<void>, () => Promise<void>][] = [
      [() => subscription.pause(), () => subscription.resume()],
      [() => bus.pause(topic, "g"), () => bus.resume(topic, "g")],
    ];
    let n = 0;
    for (const [stop, go] of steps) {
      await stop();
      const stored = await bus.publish(topic, n);
      await witness.taken.first(n + 1);
      await bus.getCursor(topic, "g");
      assert.is(taken.deliveries.length, n);
      await go();
      assert.is((await taken.nth(n)).event.id, stored.id);
      n++;
    }
    await witness.subscription();
    await subscription();
    assert.is((await refusal(bus.pause(topic, "g"))).code, "not_subscribed");
    assert.is((await refusal(bus.resume(topic, "g"))).code, "not_subscribed");
  });

  promise("an ephemeral group ends with its last member", async (topic) => {
    const { taken, subscription } = await take(topic, "g", { ephemeral: true });
    await bus.publish(topic, 1);
    await taken.first(1);
    assert.ok(await bus.getCursor(topic, "g"));
    await subscription();
    await eventually(waitMs, "the group is gone", async () => (await bus.getCursor(topic, "g")) === null);
  });

  promise("a subscription whose topic is deleted says so", async (topic) => {
    const { subscription } = await take(topic, "g");
    const iterated = await bus.subscribe(topic, "h");
    const next = iterated[Symbol.asyncIterator]().next();
    const ended = Promise.all([refusal(subscription.closed), refusal(iterated.closed), refusal(next)]);
    await stage.deleteTopic(topic);
    assert.equal(
      (await ended).map(({ code }) => code),
      ["unknown_topic", "unknown_topic", "unknown_topic"],
    );
  });

  // -------------------------------------------------------------------------------------------------------------- cursors

  promise("a cursor is null without a group, and says how far a group has come", async (topic) => {
    assert.is(await bus.getCursor(topic, "g"), null);
    const stored = await bus.publishMany(topic, numbered(4));
    assert.is(await bus.getCursor(topic, "g"), null);
    const { taken, subscription } = await take(topic, "g", { manualAck: true });
    const deliveries = await taken.first(4);
    const fresh = await bus.getCursor(topic, "g");
    assert.equal(fresh, { topic, group: "g", lag: 4, partitions: [{ floor: 0, ranges: [], end: 4 }] });
    await deliveries[0].ctx.ack();
    await deliveries[2].ctx.ack();
    assert.equal(await bus.getCursor(topic, "g"), {
      topic,
      group: "g",
      lastId: stored[0].id,
      lastTs: stored[0].ts,
      lag: 2,
      partitions: [{ floor: 1, ranges: [[2, 3]], end: 4 }],
    });
    await subscription();
    assert.is((await refusal(bus.getCursor("a b", "g"))).code, "bad_topic");
    assert.is((await refusal(bus.getCursor(topic, "a b"))).code, "bad_group");
  });

  promise("setCursor moves a group to each target", async (topic) => {
    const stored: Published[] = [];
    for (let n = 0; n < 6; n++) stored.push(await bus.publish(topic, n, { ts: 1000 + 10 * n, id: `e${n}` }));
    const first = await take(topic, "g");
    await settled(topic, "g");
    const end = await bus.getCursor(topic, "g");
    assert.equal([end?.lastId, end?.lag], ["e5", 0]);
    await first.subscription();
    const targets: [Parameters<EventBus["setCursor"]>[2], number][] = [
      ["earliest", 0],
      [{ offsets: "0:4" }, 4],
      [{ lastId: "e1" }, 2],
      [{ lastTs: 1030 }, 3],
      [{ topic, lastId: "e2", lastTs: 1020 }, 3],
    ];
    for (const [target, from] of targets) {
      const moved = await bus.setCursor(topic, "g", target);
      assert.equal([moved.topic, moved.group, moved.lag], [topic, "g", 6 - from], JSON.stringify(target));
      assert.equal(moved.partitions, [{ floor: from, ranges: [], end: 6 }]);
      const { taken, subscription } = await take(topic, "g");
      assert.is(subscription.resumed, true);
      await settled(topic, "g");
      assert.equal(taken.ids, ids(stored.slice(from)), JSON.stringify(target));
      await subscription();
    }
    await bus.setCursor(topic, "g", "earliest");
    assert.is((await bus.setCursor(topic, "g", "latest")).lag, 0);
    // A cursor that was read can be given back.
    const kept = await bus.setCursor(topic, "g", { lastId: "e3" });
    await bus.setCursor(topic, "g", "earliest");
    assert.is((await bus.setCursor(topic, "g", kept)).lag, 2);
    assert.is((await refusal(bus.setCursor(topic, "g", { lastId: "no-such-event" }))).code, "unknown_id");
    const bad = { offsets: "nonsense" };
    assert.match((await refusal(bus.setCursor(topic, "g", bad))).code, /^bad_/);
    assert.match((await refusal(bus.setCursor(topic, "g", {}))).code, /^bad_/);
  });

  // --------------------------------------------------------------------------------------------------------------- latest

  promise(
    "latestByKey gives the newest event of each key: of those named, of none, or of all",
    async (topic) => {
      const first: Published[] = [];
      for (const key of ["a", "b", "c", "__proto__"]) first.push(await bus.publish(topic, `${key} 1`, { key }));
      const [, b, c, proto] = first;
      const a = await bus.publish(topic, "a 2", { key: "a", headers: { h: "1" } });
      await bus.publish(topic, "no key");
      const all = await bus.latestByKey(topic);
      assert.equal(Object.keys(all).sort(), ["__proto__", "a", "b", "c"]);
      for (const event of [a, b, c, proto]) {
        assert.equal(Object.entries(all).find(([key]) => key === event.key)?.[1], record(event));
      }
      const some = await bus.latestByKey(topic, ["a", "c", "nobody"]);
      assert.equal(Object.entries(some).sort(), [
        ["a", record(a)],
        ["c", record(c)],
      ]);
      assert.equal(Object.keys(await bus.latestByKey(topic, [])), []);
      assert.is((await refusal(bus.latestByKey(`${topic}.unknown`))).code, "unknown_topic");
    },
    3,
  );

  promise("latestByKey has no bound of its own on keys", async (topic) => {
    const keys = Array.from({ length: 1500 }, (_, n) => `key-${n}`);
    const stored = await bus.publishMany(
      topic,
      keys.map((key, n) => ({ payload: n, options: { key } })),
    );
    const all = await bus.latestByKey(topic);
    assert.equal(ids(keys.map((key) => all[key])), ids(stored));
    const named = await bus.latestByKey(topic, keys);
    assert.equal(ids(keys.map((key) => named[key])), ids(stored));
  });

  // -------------------------------------------------------------------------------------------------------------- the end

  promise("closing waits for handlers that run and settles everything that is pending", async (topic) => {
    const own = await stage.open();
    const stored = await own.publishMany(topic, numbered(2));
    const began = gate();
    const finish = gate();
    const handled = await own.subscribe(
      topic,
      "g",
      async () => {
        began.open();
        await finish.passed;
      },
      { from: "earliest", maxInflight: 1 },
    );
    const iterated = await own.subscribe(`${topic}.idle`, "g");
    const next = iterated[Symbol.asyncIterator]().next();
    await within(waitMs, "the handler runs", began.passed);
    const late = own.publish(topic, "published just before");
    const closing = own.close();
    finish.open();
    await within(waitMs, "the bus is closed", closing);
    assert.is((await within(waitMs, "the publish settles", late)).offset, 2);
    assert.is((await within(waitMs, "the iterator settles", next)).done, true);
    await within(waitMs, "the subscriptions settle", Promise.all([handled.closed, iterated.closed]));
    for (const attempt of [
      () => own.publish(topic, 1),
      () => own.publishMany(topic, [{ payload: 1 }]),
      () => own.subscribe(topic, "g", () => undefined),
      () => own.getCursor(topic, "g"),
      () => own.setCursor(topic, "g", "latest"),
      () => own.latestByKey(topic),
    ]) {
      const error = await refusal(attempt());
      assert.equal([error.code, error.retryable], ["closed", false], String(attempt));
    }
    await within(waitMs, "closed again", own.close());
    // What the handler acked is settled, the rest was not touched.
    const cursor = await bus.getCursor(topic, "g");
    assert.equal([cursor?.lastId, cursor?.lag], [stored[0].id, 2]);
    const { taken, subscription } = await take(topic, "g");
    assert.is((await taken.nth(0)).ctx.attempt, 1);
    await subscription();
  });

  test.run();
}
