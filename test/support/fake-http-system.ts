// Topics, partitions, groups and buckets in a few lines of memory, behind the System interface, for tests of the front's HTTP half.
// A test can hold answers back, make them fail, and look at what was asked.

import type {
  Address,
  Answer,
  CursorState,
  GroupFacts,
  Lent,
  Message,
  MessageOf,
  MessageType,
  Page,
  PublishedRun,
  TopicRecord,
  TopicSettings,
} from "../../src/actors/messages.ts";
import { type Failure, failure } from "../../src/protocol/failure.ts";
import { makeId } from "../../src/protocol/ids.ts";
import { PackView } from "../../src/protocol/pack.ts";
import { streamOf } from "../../src/protocol/stream.ts";
import type { ShardState, System } from "../../src/runtime/system.ts";

export interface FakeEvent {
  readonly id: string;
  readonly ts: number;
  readonly offset: number;
  readonly key?: string;
  readonly line: string;
}

interface FakeStream {
  readonly topic: string;
  readonly partition: number;
  start: number;
  readonly events: FakeEvent[];
  readonly groups: Map<string, CursorState>;
}

const salt = 7;

export class FakeHttpSystem implements System {
  readonly shards = 1;
  readonly workers = 1;
  readonly topics = new Map<string, TopicRecord>();
  readonly streams = new Map<number, FakeStream>();
  /** Everything that was asked, in order. */
  readonly asked: Message[] = [];
  now = 1_700_000_000_000;
  /** A scan looks at no more than so many events, whatever it may return. */
  walkMax = 1000;
  /** What a bucket lends. */
  lend: (bucket: string, need: number) => Lent = (_, need) => ({ tokens: need, retryAfterMs: 0 });
  /** A failure in place of the answer. */
  fail: (message: Message, to: Address) => Failure | undefined = () => undefined;
  /** Answers leave when this resolves. */
  hold: (message: Message) => Promise<void> | undefined = () => undefined;
  states: readonly ShardState[] = [];
  private nextId = 1;

  // ------------------------------------------------------------------------------------------------- for tests to set up

  make(name: string, partitions: number, settings: TopicSettings = {}): TopicRecord {
    const id = this.nextId++;
    const shards = Array.from({ length: partitions }, () => 0);
    const record: TopicRecord = { id, name, shards, settings, status: "live", createdAt: this.now };
    this.topics.set(name, record);
    for (let partition = 0; partition < partitions; partition++) {
      this.streams.set(streamOf(id, partition), { topic: name, partition, start: 0, events: [], groups: new Map() });
    }
    return record;
  }

  stream(topic: string, partition: number): FakeStream {
    const record = this.topics.get(topic);
    const stream = record && this.streams.get(streamOf(record.id, partition));
    if (stream === undefined) throw new Error(`no ${topic}/${partition}`);
    return stream;
  }

  add(
    topic: string,
    partition: number,
    event: { ts?: number; id?: string; key?: string; meta?: string; payload: string },
  ): FakeEvent {
    const stream = this.stream(topic, partition);
    const offset = stream.events.length;
    const ts = event.ts ?? this.now;
    const id = event.id ?? makeId(this.now, offset, partition, salt);
    const { key, meta, payload } = event;
    const keyPart = key === undefined ? "" : `"key":${JSON.stringify(key)},`;
    const metaPart = meta === undefined ? "" : `${meta.slice(1, -1)},`;
    const line = `{"id":"${id}","ts":${ts},"topic":"${topic}","partition":${partition},"offset":${offset},${keyPart}${metaPart}"payload":${payload}}`;
    const stored: FakeEvent = { id, ts, offset, line, ...(key === undefined ? {} : { key }) };
    stream.events.push(stored);
    return stored;
  }

  group(topic: string, partition: number, name: string, state: Partial<CursorState>): void {
    const stream = this.stream(topic, partition);
    stream.groups.set(name, { ...noCursor, exists: true, end: stream.events.length, ...state });
  }

  /** How old the oldest lease of a group is on a partition. */
  readonly leaseAges = new Map<string, number>();

  countAsked(type: MessageType): number {
    return this.asked.filter((message) => message.type === type).length;
  }

  // ------------------------------------------------------------------------------------------------------------- System

  request<T extends MessageType>(to: Address, message: MessageOf<T>): Promise<Answer<T>> {
    return new Promise((resolve) => this.ask(to, message, resolve));
  }

  ask<T extends MessageType>(to: Address, message: MessageOf<T>, done: (answer: Answer<T>) => void): void {
    const plain = message as Message;
    this.asked.push(plain);
    const answer = () => done((this.fail(plain, to) ?? this.answer(to, plain)) as Answer<T>);
    (this.hold(plain) ?? Promise.resolve()).then(answer);
  }

  tell(_to: Address, message: MessageOf<MessageType>): void {
    this.asked.push(message);
  }

  room(_shard: number, bytes: number): Uint8Array {
    return new Uint8Array(bytes);
  }

  async start(): Promise<void> {}
  async close(): Promise<void> {}
  async destroy(): Promise<void> {}

  state(): readonly ShardState[] {
    return this.states;
  }

  async samples() {
    return [
      { name: "topic_events", labels: { topic: "a" }, value: 3 },
      { name: "topic_events", labels: { topic: "b" }, value: 4 },
    ];
  }

  // -------------------------------------------------------------------------------------------------------------- cells

  private answer(to: Address, message: Message): Answer {
    const [kind, stream, group] = to.cell.split("/");
    if (kind === "catalog") return this.catalog(message);
    if (kind === "bucket") {
      return message.type === "take" ? this.lend(to.cell.slice("bucket/".length), message.need) : null;
    }
    const found = this.streams.get(Number(stream));
    if (found === undefined) return failure("unknown_topic", "not open");
    return kind === "group" ? this.ofGroup(found, group, message) : this.ofPartition(Number(stream), found, message);
  }

  private catalog(message: Message): Answer {
    switch (message.type) {
      case "resolve": {
        const record = this.topics.get(message.topic);
        if (record !== undefined) return record;
        if (!message.create) return failure("unknown_topic", `there is no topic ${message.topic}`);
        return this.make(message.topic, message.partitions);
      }
      case "configure": {
        const record = this.topics.get(message.topic);
        if (record === undefined) {
          return { record: this.make(message.topic, message.partitions ?? 1, message.settings), created: true };
        }
        if (message.partitions !== undefined && message.partitions !== record.shards.length) {
          return failure("limit", "the number of partitions is fixed");
        }
        const changed = { ...record, settings: message.settings };
        this.topics.set(record.name, changed);
        return { record: changed, created: false };
      }
      case "deleteTopic": {
        const record = this.topics.get(message.topic);
        if (record === undefined) return failure("unknown_topic", `there is no topic ${message.topic}`);
        this.topics.delete(message.topic);
        return { ...record, status: "deleting" };
      }
      case "forget":
        return null;
      case "topics": {
        const names = [...this.topics.keys()].sort().filter((name) => name > message.after);
        const records = names.slice(0, message.limit).map((name) => this.topics.get(name)!);
        return names.length > records.length ? { records, next: records.at(-1)!.name } : { records };
      }
      default:
        throw new Error(`the catalog was asked ${message.type}`);
    }
  }

  private ofPartition(number: number, stream: FakeStream, message: Message): Answer {
    const { events } = stream;
    switch (message.type) {
      case "open":
      case "describe":
        return {
          start: stream.start,
          end: events.length,
          bytes: events.reduce((sum, { line }) => sum + line.length, 0),
          lastStoredAt: this.now,
          groups: [...stream.groups.keys()],
          durability: "memory",
        };
      case "publish":
        return this.publish(stream, new PackView(message.pack));
      case "scan":
        return this.scan(stream, message);
      case "locateTs": {
        const index = events.findIndex(({ ts, offset }) => offset >= stream.start && ts >= message.ts);
        return { offset: index < 0 ? events.length : index };
      }
      case "locateId": {
        const found = events.find(({ id }) => id === message.id);
        return found ?? failure("unknown_id", `no event ${message.id} here`);
      }
      case "latest":
        return latestOf(events, message);
      case "drop":
        this.streams.delete(number);
        return null;
      default:
        throw new Error(`a partition was asked ${message.type}`);
    }
  }

  private publish({ topic, partition, events }: FakeStream, pack: PackView): Answer {
    const runs: PublishedRun[] = [];
    for (let index = 0; index < pack.count; index++) {
      const { id, ts, key, meta } = pack.extension(index);
      const payload = new TextDecoder().decode(pack.payload(index));
      const before = id === undefined ? undefined : events.find((event) => event.id === id);
      const event = before ?? this.add(topic, partition, { id, ts, key, meta, payload } as { payload: string });
      const run = { index, count: 1, offset: event.offset, storedAt: this.now, salt };
      runs.push(before === undefined ? run : { ...run, duplicate: { ts: before.ts } });
    }
    return { durability: "memory", runs };
  }

  private scan({ start, events }: FakeStream, scan: MessageOf<"scan">): Page {
    const from = Math.max(scan.from, start);
    const found: FakeEvent[] = [];
    let bytes = 0;
    let next = from;
    while (next < scan.to && next < from + this.walkMax && found.length < scan.eventsMax && bytes < scan.bytesMax) {
      const event = events[next++];
      if (event.ts < (scan.fromTs ?? 0) || event.ts > (scan.toTs ?? Number.POSITIVE_INFINITY)) continue;
      found.push(event);
      bytes += Buffer.byteLength(event.line) + 1;
    }
    const lines = found.map(({ line }) => Buffer.from(`${line}\n`));
    let end = 0;
    return {
      lines: new Uint8Array(Buffer.concat(lines)),
      count: found.length,
      ends: Uint32Array.from(lines, (line) => {
        end += line.length;
        return end;
      }),
      ts: Float64Array.from(found, ({ ts }) => ts),
      offsets: Float64Array.from(found, ({ offset }) => offset),
      next,
      done: next >= scan.to,
    };
  }

  private ofGroup(stream: FakeStream, group: string, message: Message): Answer {
    switch (message.type) {
      case "cursor":
        return stream.groups.get(group) ?? { ...noCursor, end: stream.events.length };
      case "explain":
        return {
          oldestLease: { heldMs: this.leaseAges.get(`${stream.topic}/${stream.partition}/${group}`) },
        } as GroupFacts;
      case "dropGroup":
        stream.groups.delete(group);
        return null;
      default:
        throw new Error(`a group was asked ${message.type}`);
    }
  }
}

const noCursor: CursorState = {
  exists: false,
  floor: 0,
  ranges: [],
  start: 0,
  end: 0,
  lag: 0,
  leased: 0,
  waiting: 0,
  members: 0,
};

function latestOf(events: readonly FakeEvent[], { keys, after, limit }: MessageOf<"latest">): Answer<"latest"> {
  const latest = new Map<string, FakeEvent>();
  for (const event of events) if (event.key !== undefined) latest.set(event.key, event);
  const wanted = keys ?? [...latest.keys()].sort().filter((key) => key > after);
  const page = wanted.filter((key) => latest.has(key)).slice(0, limit);
  const lines = Buffer.concat(page.map((key) => Buffer.from(`${latest.get(key)!.line}\n`)));
  const answer = { lines: new Uint8Array(lines), count: page.length };
  return keys === undefined && wanted.length > page.length ? { ...answer, next: page.at(-1)! } : answer;
}
