// Publishers and a group of consumers on a node that is being hurt, and what was promised to them: every answer is written down, so
// that afterwards it can be compared event by event with what the node holds and hands out.

import * as assert from "uvu/assert";
import { eventually, pause } from "./deadline.ts";
import { type EventFrame, type Frame, PlainClient } from "./plain-client.ts";

/** Longer than a node may take to answer anything: its own deadline is 10 s. */
const answerMsMax = 12_000;
const nackEvery = 7;

interface Sent {
  readonly n: number;
  readonly topic: string;
  readonly outcome: string;
  readonly id: string;
  readonly partition: number;
  readonly offset: number;
  readonly ts: number;
}

/** What a group was told about one event. */
interface Told {
  /** The highest attempt whose end was confirmed. */
  ended: number;
  acked: boolean;
  /** The lease that is out, and until when at most. */
  lease: { readonly until: number; readonly client: PlainClient } | undefined;
}

export interface LoadOptions {
  readonly topics: readonly string[];
  readonly group?: string;
  /** Bytes of each payload. */
  readonly pad?: number;
  /** How many publishers each topic has. */
  readonly publishers?: number;
  readonly ackTimeoutMs?: number;
}

export class Load {
  readonly sent: Sent[] = [];
  /** Everything that went against a promise, as sentences. */
  readonly violations: string[] = [];
  readonly slowestMs = { publish: 0, settle: 0 };
  private readonly options: Required<LoadOptions>;
  private readonly told = new Map<string, Told>();
  private readonly refusals = new Map<string, number>();
  private clients: PlainClient[] = [];
  private running: Promise<unknown>[] = [];
  private stopping = false;
  private nextN = 0;

  constructor(options: LoadOptions) {
    this.options = { group: "g", pad: 500, publishers: 2, ackTimeoutMs: 30_000, ...options };
  }

  /** Begins to publish and to consume until `stop`. */
  async start(url: string): Promise<void> {
    this.stopping = false;
    const { topics, publishers } = this.options;
    const consumer = await this.connect(url);
    for (const topic of topics) await this.subscribe(consumer, topic);
    this.running = [this.consume(consumer)];
    for (const topic of topics) {
      for (let i = 0; i < publishers; i++) this.running.push(this.publishTo(await this.connect(url), topic));
    }
  }

  async stop(): Promise<void> {
    this.stopping = true;
    await Promise.all(this.running);
    for (const client of this.clients.splice(0)) client.socket.terminate();
    for (const told of this.told.values()) told.lease = undefined;
  }

  /** Answers to everything but the OKs, by code: `publish unavailable` and so on. */
  codes(): string[] {
    return [...this.refusals.keys()].sort();
  }

  forgetCodes(): void {
    this.refusals.clear();
  }

  count(topic?: string): number {
    return this.sent.filter((one) => one.outcome === "OK" && (topic === undefined || one.topic === topic)).length;
  }

  get acks(): number {
    return [...this.told.values()].filter(({ acked }) => acked).length;
  }

  /** Waits until each request that is under way at this moment is answered. */
  async turn(ms: number): Promise<void> {
    const until = this.nextN + this.clients.length;
    await eventually(ms, "every publisher is answered", () => this.sent.length >= until || undefined);
  }

  /** Waits until so many more were acknowledged on each topic. */
  async progress(more: number, ms: number, what: string): Promise<void> {
    const before = this.options.topics.map((topic) => this.count(topic));
    await eventually(ms, what, () =>
      this.options.topics.every((topic, i) => this.count(topic) >= before[i] + more || undefined),
    );
  }

  /** Compares what is stored with what was confirmed, by position, id and content. */
  async checkStored(http: string): Promise<void> {
    for (const topic of this.options.topics) {
      const response = await fetch(`${http}/export?topic=${topic}`);
      assert.is(response.status, 200, `export of ${topic}`);
      const lines = (await response.text()).split("\n").filter(Boolean);
      const events = lines.map((line) => JSON.parse(line) as EventFrame["event"] & { payload: { n: number } });
      const byN = new Map<number, (typeof events)[number]>();
      for (const event of events) {
        if (byN.has(event.payload.n)) this.violations.push(`${topic}: ${event.payload.n} is stored twice`);
        byN.set(event.payload.n, event);
      }
      this.checkDense(topic, events);
      for (const one of this.sent) {
        if (one.topic !== topic) continue;
        const event = byN.get(one.n);
        if (one.outcome === "OK") {
          const same = event?.id === one.id && event.offset === one.offset && event.partition === one.partition;
          if (!same) this.violations.push(`${topic}: the confirmed ${one.n} (${one.id}) is missing or another`);
        } else if (event !== undefined && !["unavailable", "closed"].includes(one.outcome)) {
          this.violations.push(`${topic}: ${one.n} was refused with ${one.outcome} and is stored`);
        }
      }
    }
    assert.equal(this.violations, []);
  }

  /** Takes everything that is left in the group, and compares it with what was settled. */
  async checkGroup(url: string): Promise<void> {
    const { topics, group } = this.options;
    const client = await PlainClient.open(url);
    const came = new Set<string>();
    for (const topic of topics) await this.subscribe(client, topic);
    await eventually(20_000, "the group has everything", async () => {
      for (const event of client.events.splice(0)) {
        this.arrived(client, event);
        came.add(event.event.id);
        await this.settle(client, event, "ACK");
      }
      for (const topic of topics) {
        const cursor = await client.ok({ op: "CURSOR", topic, group });
        if (cursor.lag !== 0) return false;
      }
      return true;
    });
    for (const one of this.sent) {
      if (one.outcome !== "OK" || came.has(one.id) || this.told.has(one.id)) continue;
      this.violations.push(`${one.topic}: ${one.n} (${one.id}) was never handed out`);
    }
    client.socket.terminate();
    for (const told of this.told.values()) told.lease = undefined;
    assert.equal(this.violations, []);
  }

  // ----------------------------------------------------------------------------------------------------------- publishing

  private async connect(url: string): Promise<PlainClient> {
    const client = await PlainClient.open(url);
    this.clients.push(client);
    return client;
  }

  private async publishTo(client: PlainClient, topic: string): Promise<void> {
    const pad = "x".repeat(this.options.pad);
    while (!this.stopping) {
      const n = this.nextN++;
      const opts = { key: `k${n % 10}`, ...(n % 3 === 0 ? { id: `own-${n}` } : {}) };
      const answer = await this.timed("publish", client, { op: "PUBLISH", topic, payload: { n, pad }, opts });
      const { id = "", partition = -1, offset = -1, ts = 0 } = answer as Partial<Record<string, never>>;
      this.sent.push({ n, topic, outcome: this.outcome("publish", answer), id, partition, offset, ts });
      if (answer.code === "closed") return;
      // The load is to be there all the time, not to use up the machine.
      await pause(answer.op === "OK" ? 3 : 10);
    }
  }

  // ------------------------------------------------------------------------------------------------------------ consuming

  private async subscribe(client: PlainClient, topic: string): Promise<void> {
    const { group, ackTimeoutMs } = this.options;
    await client.subscribe(topic, group, { from: "earliest", maxInflight: 50, maxAttempts: 1000, ackTimeoutMs });
  }

  private async consume(client: PlainClient): Promise<void> {
    const under = new Set<Promise<void>>();
    while (!this.stopping && client.socket.readyState === client.socket.OPEN) {
      for (const event of client.events.splice(0)) {
        this.arrived(client, event);
        const nacks = event.event.offset % nackEvery === 0 && event.ctx.attempt === 1;
        const settling = this.settle(client, event, nacks ? "NACK" : "ACK").finally(() => under.delete(settling));
        under.add(settling);
      }
      await pause(2);
    }
    await Promise.all(under);
  }

  private arrived(client: PlainClient, { event, ctx }: EventFrame): void {
    let told = this.told.get(event.id);
    if (told === undefined) {
      told = { ended: 0, acked: false, lease: undefined };
      this.told.set(event.id, told);
    }
    const who = `${event.topic} ${event.offset} (${event.id})`;
    if (told.acked) this.violations.push(`${who}: came again after its ACK was confirmed`);
    if (ctx.attempt <= told.ended) {
      this.violations.push(`${who}: came as attempt ${ctx.attempt} after attempt ${told.ended} was counted`);
    }
    const { lease } = told;
    const open = lease !== undefined && lease.client.socket.readyState === lease.client.socket.OPEN;
    if (open && performance.now() < lease.until) this.violations.push(`${who}: leased twice at a time`);
    // From when it was sent, which is not later than now.
    told.lease = { until: performance.now() + ctx.ack_deadline_ms - 1000, client };
  }

  private async settle(client: PlainClient, frame: EventFrame, op: "ACK" | "NACK"): Promise<void> {
    const { topic, group, event, ctx } = frame;
    const told = this.told.get(event.id);
    if (told === undefined) throw new Error(`${event.id} never arrived`);
    // The lease ends at some moment from here on.
    told.lease = undefined;
    const answer = await this.timed("settle", client, { op, topic, group, id: event.id, lease: ctx.lease });
    if (this.outcome(op.toLowerCase(), answer) !== "OK") return;
    if (op === "ACK") told.acked = true;
    told.ended = Math.max(told.ended, ctx.attempt);
  }

  private async timed(what: "publish" | "settle", client: PlainClient, frame: Record<string, unknown>): Promise<Frame> {
    const began = performance.now();
    if (client.socket.readyState !== client.socket.OPEN) return { op: "ERR", code: "closed" };
    const answer = await client.request(frame).catch((error: Error): Frame => {
      this.violations.push(error.message);
      return { op: "ERR", code: "closed" };
    });
    const took = performance.now() - began;
    this.slowestMs[what] = Math.max(this.slowestMs[what], took);
    if (took > answerMsMax) this.violations.push(`${String(frame.op)} was answered after ${Math.round(took)} ms`);
    return answer;
  }

  private outcome(what: string, { op, code }: Frame): string {
    const outcome = op === "OK" ? "OK" : String(code);
    if (outcome !== "OK") {
      const name = `${what} ${outcome}`;
      this.refusals.set(name, (this.refusals.get(name) ?? 0) + 1);
    }
    return outcome;
  }

  private checkDense(topic: string, events: readonly EventFrame["event"][]): void {
    const ends = new Map<number, number>();
    for (const { partition, offset } of events) {
      const end = ends.get(partition) ?? 0;
      if (offset !== end) this.violations.push(`${topic}: offset ${offset} of ${partition} follows ${end - 1}`);
      ends.set(partition, offset + 1);
    }
  }
}
