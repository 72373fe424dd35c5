// The client that behaves. Whatever others do, what it publishes is stored, delivered to it once and in order, and answered in time.

import { PlainClient } from "../support/plain-client.ts";
import { canary, type Target, token } from "./target.ts";

/** Nobody else publishes to the first; everybody does to the second. */
export const ownTopic = "control.own";
export const sharedTopic = "control.shared";
export const controlGroup = "control";

interface Stored {
  readonly topic: string;
  readonly id: string;
  readonly partition: number;
  readonly offset: number;
  readonly payload: string;
}

export class Control {
  readonly stored: Stored[] = [];
  slowestMs = 0;
  private readonly target: Target;
  private readonly client: PlainClient;
  private readonly floors = new Map<string, number>();
  private count = 0;

  private constructor(target: Target, client: PlainClient) {
    this.target = target;
    this.client = client;
  }

  static async open(target: Target): Promise<Control> {
    const client = await PlainClient.open(target.node.wsUrl, token);
    for (const topic of [ownTopic, sharedTopic]) {
      await client.subscribe(topic, controlGroup, { from: "earliest", maxInflight: 1000, ackTimeoutMs: 120_000 });
    }
    return new Control(target, client);
  }

  /** One event there and back. Gives its id and lease, for others to misuse. */
  async round(msMax: number): Promise<{ id: string; lease: string }> {
    const topic = this.count % 2 === 0 ? ownTopic : sharedTopic;
    const payload = `${canary}-payload-${this.count++}`;
    const started = performance.now();
    const { id, partition, offset } = (await this.client.publish(topic, payload)) as unknown as Stored;
    this.stored.push({ topic, id, partition, offset, payload });
    for (;;) {
      const event = await this.client.next(msMax);
      const { event: got, ctx } = event;
      if (ctx.attempt !== 1) throw new Error(`${got.topic} ${got.offset} came as attempt ${ctx.attempt}`);
      const place = `${got.topic}/${got.partition}`;
      const floor = this.floors.get(place) ?? -1;
      if (got.offset !== floor + 1) throw new Error(`${place}: ${got.offset} came behind ${floor}`);
      this.floors.set(place, got.offset);
      const mine = got.id === id;
      if (
        mine &&
        (got.topic !== topic || got.payload !== payload || got.offset !== offset || got.partition !== partition)
      )
        throw new Error(`${JSON.stringify(got)} is not what was published: ${payload} at ${partition}:${offset}`);
      if (!mine && got.topic === ownTopic) throw new Error(`a foreign event in ${ownTopic}: ${JSON.stringify(got)}`);
      const ack = await this.client.ack(event, { lease: ctx.lease });
      if (ack.op !== "OK" || ack.stale === true)
        throw new Error(`the ack of ${place} ${got.offset}: ${JSON.stringify(ack)}`);
      if (!mine) continue;
      const tookMs = performance.now() - started;
      this.slowestMs = Math.max(this.slowestMs, tookMs);
      if (tookMs > msMax) throw new Error(`publish, delivery and ack took ${tookMs.toFixed(0)} ms`);
      if (this.client.others.length > 0) throw new Error(`unasked: ${JSON.stringify(this.client.others[0])}`);
      return { id, lease: ctx.lease };
    }
  }

  /** Every event that was acknowledged is in the log once, where its OK said, as it was. */
  async verify(): Promise<void> {
    for (const topic of [ownTopic, sharedTopic]) {
      const { status, text } = await this.target.get(`/export?topic=${topic}`);
      if (status !== 200) throw new Error(`export of ${topic}: ${status}`);
      const byId = new Map<string, { partition: number; offset: number; payload: unknown }[]>();
      for (const line of text.split("\n")) {
        if (line === "") continue;
        const event = JSON.parse(line) as Stored;
        byId.set(event.id, [...(byId.get(event.id) ?? []), event]);
      }
      for (const want of this.stored.filter((one) => one.topic === topic)) {
        const found = byId.get(want.id) ?? [];
        const [got] = found;
        if (
          found.length !== 1 ||
          got.offset !== want.offset ||
          got.partition !== want.partition ||
          got.payload !== want.payload
        )
          throw new Error(`${JSON.stringify(want)} is stored as ${JSON.stringify(found)}`);
      }
    }
  }

  close(): Promise<unknown> {
    return this.client.close();
  }
}
