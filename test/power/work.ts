// Clients that keep a node busy with everything that changes its files, and write down what they asked for and heard.

import { randomBytes } from "node:crypto";
import { makeId } from "../../src/protocol/ids.ts";
import { parseLease } from "../../src/protocol/lease.ts";
import { encodePack } from "../../src/protocol/pack.ts";
import { BatchClient } from "../support/batch-client.ts";
import type { Dice } from "../support/dice.ts";
import { type EventFrame, PlainClient } from "../support/plain-client.ts";
import type { Facts, Publish, Seek, Settle, TopicLife } from "./facts.ts";
import { segmentBytes } from "./power-node.ts";

const now = (): bigint => process.hrtime.bigint();
const encoder = new TextEncoder();

export const orders = { topic: "orders", group: "billing", partitions: 2 };
export const batches = { topic: "batches", group: "loader" };
export const seeker = { topic: "batches", group: "seeker" };
export const poison = { topic: "poison", group: "sick", maxAttempts: 2 };
export const letters = { topic: "poison.dlq.sick", group: "undertaker" };
export const short = { topic: "short", bytes: 100_000 };

export class Workers {
  readonly facts: Facts;
  private readonly dice: Dice;
  private readonly url: string;
  private count = 0;
  private readonly clients: { close(): unknown }[] = [];
  private stopped = false;
  private readonly held: EventFrame[] = [];
  /** While a topic has the log to itself, so that whole segments die with it and their files are used again. */
  private alone: Promise<unknown> | undefined;

  constructor(facts: Facts, dice: Dice, url: string) {
    this.facts = facts;
    this.dice = dice;
    this.url = url;
    this.count = facts.publishes.length;
  }

  /** Until `stop`, or until the node is gone. */
  async run(): Promise<void> {
    const { topic, group } = orders;
    await this.makeTopics();
    await Promise.all([
      this.publishSingly(topic, (n) => ({ key: `k${n % 8}`, ...(n % 3 === 0 ? { id: `own-${n}` } : {}) })),
      this.publishSingly(short.topic, () => ({}), 3000),
      this.publishSingly(poison.topic, (n) => (n % 4 === 0 ? { id: `bad-${n}` } : {})),
      this.publishBatches(),
      this.consume(topic, group, {}, (event, client) => this.settleOrder(event, client)),
      this.consume(poison.topic, poison.group, { maxAttempts: poison.maxAttempts }, (event, client) =>
        this.settle(client, event, "nack"),
      ),
      this.consume(letters.topic, letters.group, {}, (event, client) => this.settle(client, event, "ack")),
      this.consumeBatches(),
      this.makeAndDelete(),
      this.seek(),
    ]);
  }

  stop(): void {
    this.stopped = true;
  }

  close(): void {
    for (const client of this.clients) client.close();
  }

  private async plain(): Promise<PlainClient> {
    const client = await PlainClient.open(this.url);
    this.clients.push(client);
    return client;
  }

  private async makeTopics(): Promise<void> {
    const put = async (topic: string, body: object, life: Omit<TopicLife, "asked" | "topic">) => {
      if (this.facts.topics.some((known) => known.topic === topic && known.heard !== undefined)) return;
      const made: TopicLife = { asked: now(), topic, ...life };
      this.facts.topics.push(made);
      await this.http("PUT", topic, body);
      made.heard = now();
    };
    await put(orders.topic, { partitions: orders.partitions }, {});
    await put(short.topic, { partitions: 2, retention: { bytes: short.bytes } }, { retentionBytes: short.bytes });
    for (const topic of [batches.topic, poison.topic]) await put(topic, {}, {});
  }

  private async http(method: string, topic: string, body?: object): Promise<void> {
    const url = `${this.url.replace("ws:", "http:")}/topics/${topic}`;
    const init = { method, ...(body === undefined ? {} : { body: JSON.stringify(body) }) };
    const response = await fetch(url, {
      ...init,
      headers: { "content-type": "application/json", connection: "close" },
    });
    if (!response.ok) throw new Error(`${method} ${url}: ${response.status} ${await response.text()}`);
    await response.arrayBuffer();
  }

  private payload(bytesMax: number): string {
    return JSON.stringify(`${this.count++} ${"x".repeat(this.dice.below(bytesMax))}`);
  }

  private async publishSingly(
    topic: string,
    options: (n: number) => { key?: string; id?: string },
    bytesMax = 400,
  ): Promise<void> {
    const client = await this.plain();
    for (let n = this.count; !this.stopped; n++) {
      await this.alone;
      // Several under way, so that a commit has several.
      await Promise.all(
        Array.from({ length: 1 + this.dice.below(4) }, () => this.publishOne(client, topic, options(n++), bytesMax)),
      );
    }
  }

  private async publishOne(
    client: PlainClient,
    topic: string,
    { key, id: ownId }: { key?: string; id?: string },
    bytesMax: number,
  ): Promise<void> {
    const payload = this.payload(bytesMax);
    const named = ownId === undefined ? {} : { ownId, name: `i:${ownId}` };
    const fact: Publish = { asked: now(), topic, payload, ...(key === undefined ? {} : { key }), ...named };
    this.facts.publishes.push(fact);
    const opts = { ...(key === undefined ? {} : { key }), ...(ownId === undefined ? {} : { id: ownId }) };
    const answer = await client.publish(topic, JSON.parse(payload), opts);
    fact.heard = now();
    if (answer.duplicate === true) throw new Error(`${topic}: ${payload} was known before it was published`);
    fact.id = answer.id as string;
    fact.partition = answer.partition as number;
    fact.offset = answer.offset as number;
  }

  private async publishBatches(): Promise<void> {
    const client = await this.batch();
    const handle = await client.handle(batches.topic);
    const producer = randomBytes(16).toString("hex");
    for (let seq = 1; !this.stopped; seq++) {
      await this.alone;
      const name = `b:${producer}:${seq}`;
      const facts = Array.from({ length: 1 + this.dice.below(30) }, (_, i): Publish => {
        const keyed = this.dice.chance(30) ? { key: `b${i}` } : {};
        return {
          asked: now(),
          topic: batches.topic,
          payload: this.payload(300),
          ...keyed,
          ...(i === 0 ? { name } : {}),
        };
      });
      this.facts.publishes.push(...facts);
      const pack = encodePack(
        facts.map(({ payload, key }) => ({ payload: encoder.encode(payload), ...(key === undefined ? {} : { key }) })),
      );
      const { runs } = await client.publish(handle, pack, { producer, seq });
      const heard = now();
      for (const { index, count, partition, offset, storedAt, salt, status } of runs) {
        if (status !== "stored") throw new Error(`a batch was answered ${status}`);
        for (let i = 0; i < count; i++) {
          const id = makeId(storedAt, offset + i, partition, salt);
          Object.assign(facts[index + i], { heard, id, partition, offset: offset + i });
        }
      }
    }
  }

  private async batch(): Promise<BatchClient> {
    const client = await BatchClient.open(this.url);
    client.socket.on("error", () => undefined);
    this.clients.push(client);
    return client;
  }

  private async consumeBatches(): Promise<void> {
    const client = await this.batch();
    const { topic, group } = batches;
    client.onEvents = (batch) => {
      const { partition, firstOffset, storedAt, salt, epoch, attempt, pack } = batch;
      const heard = now();
      const settles: Settle[] = [];
      for (let i = 0; i < pack.count; i++) {
        const offset = firstOffset + i;
        const payload = Buffer.from(pack.payload(i)).toString();
        const id = pack.extension(i).id ?? makeId(storedAt, offset, partition, salt);
        this.facts.deliveries.push({ heard, topic, partition, offset, id, payload, epoch });
        settles.push({ verb: "ack", asked: heard, topic, group, partition, offset, attempt });
      }
      this.facts.settles.push(...settles);
      void client.ack(batch).then(({ op }) => {
        if (op === "OK") for (const settle of settles) settle.heard = now();
      });
    };
    await client.subscribe(topic, group, { from: "earliest", maxInflight: 200 });
  }

  private async consume(
    topic: string,
    group: string,
    options: Record<string, unknown>,
    handle: (event: EventFrame, client: PlainClient) => void,
  ): Promise<void> {
    const client = await this.plain();
    client.socket.on("message", (data) => {
      const frame = JSON.parse(data.toString()) as EventFrame & { op: string };
      if (frame.op !== "EVENT") return;
      this.delivered(frame);
      handle(frame, client);
    });
    await client.subscribe(topic, group, { from: "earliest", ackTimeoutMs: 30_000, ...options });
  }

  private delivered({ topic, event, ctx }: EventFrame): void {
    const { id, partition, offset } = event;
    this.facts.deliveries.push({
      heard: now(),
      topic,
      partition,
      offset,
      id,
      payload: JSON.stringify(event.payload),
      epoch: parseLease(ctx.lease)?.epoch ?? 0,
      ...(event.caused_by === undefined ? {} : { causedBy: event.caused_by[0] }),
    });
  }

  /** Some are held back and come behind newer ones, some come a second time first. */
  private settleOrder(event: EventFrame, client: PlainClient): void {
    if (event.ctx.attempt === 1 && this.dice.chance(10)) this.settle(client, event, "nack");
    else if (this.dice.chance(25)) this.held.push(event);
    else this.settle(client, event, "ack");
    if (this.held.length > 12) {
      const [late] = this.held.splice(this.dice.below(this.held.length), 1);
      this.settle(client, late, "ack");
    }
  }

  private settle(client: PlainClient, frame: EventFrame, verb: "ack" | "nack"): void {
    const { topic, group, ctx } = frame;
    const { partition, offset } = frame.event;
    const fact: Settle = { asked: now(), verb, topic, group, partition, offset, attempt: ctx.attempt };
    this.facts.settles.push(fact);
    void client[verb](frame, { lease: ctx.lease }).then(({ op, stale }) => {
      if (op === "OK" && stale !== true) fact.heard = now();
    });
  }

  /** Names that are used once, and names that are used again. */
  private async makeAndDelete(): Promise<void> {
    const client = await this.plain();
    for (let n = this.facts.topics.length; !this.stopped; n++) {
      const topic = `passing-${n}`;
      const life: TopicLife = { asked: now(), topic };
      this.facts.topics.push(life);
      await this.publishOne(client, topic, {}, 2000);
      life.heard = now();
      if (this.dice.chance(45)) {
        this.alone = this.fillSegments(client, topic);
        await this.alone;
      } else {
        await this.publishSome(client, topic, this.dice.below(5), 4000);
        if (this.dice.chance(30)) continue;
      }
      life.deletion = { asked: now() };
      await this.http("DELETE", topic);
      life.deletion.heard = now();
    }
  }

  /** One that holds nothing else, and the one behind it, which is still written to when the topic goes: its file is free at the next roll. */
  private async fillSegments(client: PlainClient, topic: string): Promise<void> {
    for (let bytes = 0; bytes < 2.5 * segmentBytes; bytes += 10 * 2000) await this.publishSome(client, topic, 10, 4000);
  }

  private async publishSome(client: PlainClient, topic: string, count: number, bytesMax: number): Promise<void> {
    await Promise.all(Array.from({ length: count }, () => this.publishOne(client, topic, {}, bytesMax)));
  }

  private async seek(): Promise<void> {
    const client = await this.plain();
    while (!this.stopped) {
      const ends = this.facts.publishes.filter(({ topic, offset }) => topic === seeker.topic && offset !== undefined);
      if (ends.length === 0) {
        await client.request({ op: "PING" });
        continue;
      }
      const floor = this.dice.below(ends.length);
      const fact: Seek = { asked: now(), ...seeker, floor };
      this.facts.seeks.push(fact);
      await client.ok({ op: "CURSOR", ...seeker, set: { offsets: `0:${floor}` } });
      fact.heard = now();
    }
  }
}
