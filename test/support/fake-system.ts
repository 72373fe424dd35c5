// The worker threads as the front sees them, in the hands of a test: every ask and tell is recorded, answered by a default that is
// just enough to go on, by what the test puts in its place, or held until the test answers it.

import type { Env } from "../../src/actors/effects.ts";
import type {
  Address,
  Answer,
  Joined,
  Message,
  MessageOf,
  MessageType,
  Signal,
  TopicRecord,
} from "../../src/actors/messages.ts";
import { TokenBucketActor } from "../../src/actors/token-bucket.ts";
import { failure } from "../../src/protocol/failure.ts";
import { PackView } from "../../src/protocol/pack.ts";
import type { ShardState, System, SystemEvents } from "../../src/runtime/system.ts";
import { within } from "./deadline.ts";
import { ManualClock } from "./manual-clock.ts";

export interface Sent<T extends MessageType = MessageType> {
  readonly to: Address;
  readonly message: MessageOf<T>;
  /** Of an ask that is held. */
  readonly answer: (value: Answer<T>) => void;
}

/** Time stands still, but a turn of the event loop is a real one: sockets need it. */
export class SocketClock extends ManualClock {
  override soon(run: () => void): void {
    setImmediate(run);
  }
}

type Handler = (to: Address, message: Message) => Answer | "hold";
type Taker = { readonly wants: (sent: Sent) => boolean; readonly take: (sent: Sent) => void };

export class FakeSystem implements System {
  readonly workers = 2;
  readonly shards: number;
  /** Everything the front sent, in order. */
  readonly sent: Sent[] = [];
  readonly topics = new Map<string, TopicRecord>();
  partitions: number;
  events: SystemEvents | undefined;
  states: ShardState[] = [];
  private readonly clock: ManualClock;
  private readonly handlers = new Map<MessageType, Handler>();
  private readonly buckets = new Map<string, TokenBucketActor>();
  private readonly ends = new Map<string, number>();
  private takers: Taker[] = [];
  private nextTopic = 1;

  constructor(clock: ManualClock, { shards = 2, partitions = 1 }: { shards?: number; partitions?: number } = {}) {
    this.clock = clock;
    this.shards = shards;
    this.partitions = partitions;
  }

  /** Answers asks of a type in place of the default. */
  on<T extends MessageType>(type: T, handler: (message: MessageOf<T>, to: Address) => Answer<T> | "hold"): void {
    this.handlers.set(type, (to, message) => handler(message as MessageOf<T>, to));
  }

  hold(type: MessageType): void {
    this.handlers.set(type, () => "hold");
  }

  all<T extends MessageType>(type: T): Sent<T>[] {
    return this.sent.filter(({ message }) => message.type === type) as unknown as Sent<T>[];
  }

  /** The nth of its type (from 0), once it was sent. */
  async nth<T extends MessageType>(type: T, n: number): Promise<Sent<T>> {
    const found = this.all(type)[n];
    if (found !== undefined) return found;
    let left = n - this.all(type).length;
    const sent = new Promise<Sent>((take) => {
      this.takers.push({ wants: ({ message }) => message.type === type && left-- === 0, take });
    });
    return (await within(5000, `${type} number ${n}`, sent)) as unknown as Sent<T>;
  }

  signal(signal: Signal): void {
    this.events?.signal(signal);
  }

  // ------------------------------------------------------------------------------------------------------------- the System

  async start(events: SystemEvents): Promise<void> {
    this.events = events;
  }

  ask<T extends MessageType>(to: Address, message: MessageOf<T>, done: (answer: Answer<T>) => void): void {
    let open = true;
    const answer = (value: Answer<T>) => {
      if (!open) throw new Error(`${message.type} was answered twice`);
      open = false;
      setImmediate(() => done(value));
    };
    this.record({ to, message, answer } as unknown as Sent);
    const handler = this.handlers.get(message.type as MessageType);
    const value = handler === undefined ? this.standard(to, message as Message) : handler(to, message as Message);
    if (value !== "hold") answer(value as Answer<T>);
  }

  request<T extends MessageType>(to: Address, message: MessageOf<T>): Promise<Answer<T>> {
    return new Promise((resolve) => this.ask<T>(to, message, resolve));
  }

  tell(to: Address, message: MessageOf<MessageType>): void {
    this.record({ to, message, answer: () => undefined });
  }

  room(_shard: number, bytes: number): Uint8Array {
    return new Uint8Array(bytes);
  }

  state(): readonly ShardState[] {
    return this.states;
  }

  async samples() {
    return [];
  }

  async close(): Promise<void> {
    this.events = undefined;
  }

  async destroy(): Promise<void> {
    this.events = undefined;
  }

  private record(sent: Sent): void {
    this.sent.push(sent);
    const taker = this.takers.find(({ wants }) => wants(sent));
    if (taker === undefined) return;
    this.takers = this.takers.filter((other) => other !== taker);
    taker.take(sent);
  }

  private standard(to: Address, message: Message): Answer {
    switch (message.type) {
      case "resolve": {
        const known = this.topics.get(message.topic);
        if (known !== undefined) return known;
        return message.create
          ? this.make(message.topic)
          : failure("unknown_topic", `there is no topic ${message.topic}`);
      }
      case "deadLetter": {
        const source = [...this.topics.values()].find(({ id }) => id === message.topicId);
        return this.make(`${source?.name}.dlq.${message.group}`);
      }
      case "configure":
        return { record: this.make(message.topic), created: true };
      case "deleteTopic": {
        const known = this.topics.get(message.topic);
        return known === undefined ? failure("unknown_topic", "no such topic") : { ...known, status: "deleting" };
      }
      case "topics":
        return { records: [...this.topics.values()] };
      case "open":
      case "describe":
        return { start: 0, end: 0, bytes: 0, lastStoredAt: 0, groups: [], durability: "memory" };
      case "publish": {
        const { count } = new PackView(message.pack);
        const offset = this.ends.get(to.cell) ?? 0;
        this.ends.set(to.cell, offset + count);
        return { durability: "memory", runs: [{ index: 0, count, offset, storedAt: this.clock.wall(), salt: 5 }] };
      }
      case "join": {
        const options = { maxAttempts: 5, backoffMs: 0, ordering: "none", filter: null, ephemeral: false } as const;
        return { resumed: false, floor: 0, end: 0, options: { ...options, ...message.options } } satisfies Joined;
      }
      case "settle":
        return { results: null };
      case "settleRuns":
      case "extendRuns":
        return { lost: [] };
      case "cursor":
      case "seek":
        return { exists: true, floor: 0, ranges: [], start: 0, end: 0, lag: 0, leased: 0, waiting: 0, members: 1 };
      case "locateId":
        return failure("unknown_id", "no such event");
      case "locateTs":
        return { offset: 0 };
      case "latest":
        return { lines: new Uint8Array(0), count: 0 };
      case "take":
        return this.take(to.cell, message);
      default:
        return null;
    }
  }

  /** By the actor itself. */
  private take(cell: string, message: Message): Answer {
    const bucket = this.buckets.get(cell) ?? new TokenBucketActor();
    this.buckets.set(cell, bucket);
    const [effect] = bucket.receive(message, 1, { mono: this.clock.mono() } as Env);
    if (effect.type !== "reply") throw new Error(`a bucket answered with ${effect.type}`);
    return effect.value;
  }

  make(name: string, partitions = this.partitions): TopicRecord {
    const id = this.nextTopic++;
    const shards = Array.from({ length: partitions }, (_, partition) => (id + partition) % this.shards);
    const record: TopicRecord = { id, name, shards, settings: {}, status: "live", createdAt: 0 };
    this.topics.set(name, record);
    return record;
  }
}
