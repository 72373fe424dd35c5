// One partition of one topic: takes events in, remembers for a while under which names they came, answers readers, and moves its
// start by the topic's retention. It keeps no event: offsets are given by the commit, groups follow the stream by themselves.

import { type Failure, failure } from "../protocol/failure.ts";
import { type Extension, mergedBytes, mergePacks, PackView } from "../protocol/pack.ts";
import { faultOfMany } from "../protocol/payload.ts";
import { partitionOf, topicIdOf } from "../protocol/stream.ts";
import { DedupeWindow, type Known, type Name } from "./dedupe.ts";
import type { Actor, Effect, Env, Notice, Placed, Put, Ref, Sample, Shelf } from "./effects.ts";
import { entryBytes, entryKeys, entryValue } from "./entries.ts";
import {
  type Answer,
  groupCell,
  type Message,
  type MessageOf,
  type PublishedRun,
  type TopicRecord,
} from "./messages.ts";
import { PartitionReader } from "./partition-reader.ts";
import { type OrderedBatch, Producers } from "./producers.ts";

/** One append under way: who waits for it, and which names it brought. */
interface Append {
  readonly names: readonly Name[];
  readonly ordered: (OrderedBatch & { readonly name: Name }) | undefined;
  readonly waiting: { readonly settle: (placed: Placed) => readonly Effect[] }[];
}

type Batch = NonNullable<MessageOf<"publish">["batch"]>;

/** A stretch of a request's pack: stored anew at `at` of the append, or known from before, or part of an append under way. */
type Stretch =
  | { readonly kind: "new"; readonly index: number; readonly count: number; readonly at: number }
  | { readonly kind: "known"; readonly index: number; readonly known: Known }
  | { readonly kind: "pending"; readonly index: number; readonly append: Append; readonly name: Name };

export class PartitionActor implements Actor {
  private readonly stream: number;
  private readonly shelf: Shelf;
  private readonly dedupe: DedupeWindow;
  private readonly producers: Producers;
  private readonly reader: PartitionReader;
  private record: TopicRecord | undefined;
  private recordChanged = false;
  private dropped = false;
  /** Who waits for the end of it, and how many commits it takes at least until then. */
  private dropping: { readonly refs: Ref[]; commits: number } | undefined;
  private removals: Put[] = [];
  private nextTag = 1;
  private wakeAt: number | undefined;
  private believed: { readonly wall: number; readonly mono: number };
  private readonly appends = new Map<number, Append>();
  private readonly pendingNames = new Map<string, { readonly append: Append; readonly name: Name }>();

  static start(stream: number, shelf: Shelf, env: Env): { actor: PartitionActor; effects: readonly Effect[] } {
    const actor = new PartitionActor(stream, shelf, env);
    return { actor, effects: actor.plan(env) };
  }

  private constructor(stream: number, shelf: Shelf, env: Env) {
    this.stream = stream;
    this.shelf = shelf;
    const entry = shelf.entry(entryKeys.partition(stream));
    this.record = entry === undefined ? undefined : entryValue<TopicRecord>(entry);
    this.dedupe = new DedupeWindow(stream, shelf, env);
    this.producers = new Producers(stream, shelf, env);
    this.believed = { wall: env.wall, mono: env.mono };
    this.reader = new PartitionReader(stream, () => this.nextTag++);
  }

  receive(message: Message | Notice, ref: Ref, env: Env): readonly Effect[] {
    switch (message.type) {
      case "open":
        return this.open(message.record, ref, env);
      case "publish":
        return this.publish(message, ref, env);
      case "drop":
        return this.drop(ref, env);
      case "describe":
        return [{ type: "reply", to: ref, value: this.info() }];
      case "scan":
      case "locateTs":
      case "locateId":
      case "latest":
        if (this.record === undefined) return this.unknown(ref);
        return this.reader.ask(message, ref, this.record.name);
      case "blocks":
      case "found":
      case "latestFound":
      case "readFailed":
        return this.reader.receive(message, env);
      case "committed":
        return this.committed(message.placed, env);
      case "persisted":
        return this.dropGoesOn();
      case "wake":
        return this.wake(env);
      default:
        throw new Error(`a partition does not take ${message.type}`);
    }
  }

  persist(placed: readonly Placed[], env: Env): readonly Put[] {
    const puts = [...this.dedupe.expire(env.mono), ...this.removals];
    this.removals = [];
    for (const place of placed) {
      const append = this.appends.get(place.tag);
      // Nothing is remembered of what came before a partition was dropped and is stored with its end.
      if (append === undefined || this.dropped) continue;
      if (append.names.length > 0) puts.push(this.dedupe.put(place, append.names));
      if (append.ordered !== undefined)
        this.producers.place(append.ordered, place, append.ordered.name.count, env.mono);
    }
    this.producers.expire(env.mono);
    puts.push(...this.producers.puts());
    if (this.recordChanged && this.record !== undefined) {
      puts.push([entryKeys.partition(this.stream), entryBytes(this.record)]);
      this.recordChanged = false;
    }
    return puts;
  }

  stats(): readonly Sample[] {
    const head = this.shelf.head(this.stream);
    if (this.record === undefined || head === undefined) return [];
    const labels = { topic: this.record.name };
    return [
      { name: "topic_events", labels, value: head.end - head.start },
      { name: "topic_bytes", labels, value: head.bytes },
    ];
  }

  private open(record: TopicRecord, ref: Ref, env: Env): readonly Effect[] {
    if (this.dropped) return [reply(ref, failure("unknown_topic", "the topic was deleted"))];
    if (topicIdOf(this.stream) !== record.id) throw new Error(`stream ${this.stream} is not of topic ${record.id}`);
    if (JSON.stringify(record) === JSON.stringify(this.record)) {
      return [{ type: "reply", to: ref, value: this.info(), hold: true }];
    }
    this.record = record;
    this.recordChanged = true;
    return [
      ...this.plan(env),
      { type: "persist", soon: true },
      { type: "reply", to: ref, value: this.info(), hold: true },
    ];
  }

  private publish(message: MessageOf<"publish">, ref: Ref, env: Env): readonly Effect[] {
    if (this.record === undefined) return this.unknown(ref);
    const pack = new PackView(message.pack);
    const fault = message.unparsed ? faultOfPayloads(pack) : undefined;
    if (fault !== undefined) return [reply(ref, fault)];
    const { batch } = message;
    // In a batch that has a name each event has an id or none has.
    if (batch !== undefined && pack.id(0) === undefined) return this.publishBatch(pack, batch, ref, env);
    if (!pack.extended) return this.append(pack, [], wholePack(pack), ref, env);
    return this.publishNamed(pack, batch, ref, env);
  }

  /** One name stands for the whole batch: a repetition is answered from the first, event for event. */
  private publishBatch(pack: PackView, batch: Batch, ref: Ref, env: Env): readonly Effect[] {
    const name: Name = { name: batchName(batch), index: 0, count: pack.count, ts: undefined };
    const pending = this.pendingNames.get(name.name);
    if (pending !== undefined) return this.append(undefined, [], [{ kind: "pending", index: 0, ...pending }], ref, env);
    const ordered = batch.order !== undefined;
    const known = ordered ? this.producers.find(batch) : this.dedupe.find(name.name, env.mono);
    if (known !== undefined) return [reply(ref, this.published([knownRun(0, known)]))];
    if (!ordered) return this.append(pack, [name], wholePack(pack), ref, env);
    const stranger = this.producers.last(batch.producer) === undefined;
    const fault = this.orderFault(batch) ?? (stranger ? this.crowded(1, env) : undefined);
    if (fault !== undefined) return [reply(ref, fault)];
    this.producers.take(batch, env.mono);
    return this.append(pack, [], wholePack(pack), ref, env, { ...batch, name });
  }

  /**
   * Whether the batch may be stored now. One chained to a batch that is under way is stored with it or after it, or not at all: what
   * fails a commit ends this actor and everything that it has gathered.
   */
  private orderFault({ producer, seq, order }: Batch): Failure | undefined {
    const last = this.producers.last(producer) ?? -1;
    if (seq <= last) return failure("publish_failed", "not stored: a later batch of this producer was taken before it");
    if (order === "chained" && seq !== last + 1) {
      return failure("publish_failed", "not stored: the batch before it was not stored");
    }
    return undefined;
  }

  private crowded(names: number, env: Env): Failure | undefined {
    const { size } = this.dedupe;
    if (size + this.producers.size + this.pendingNames.size + names <= this.shelf.limits.dedupeEntriesMax)
      return undefined;
    const wait = Math.max(1, (this.dedupe.oldestExpiry ?? env.mono + 1000) - env.mono);
    return failure("overloaded", "too many ids to remember within the dedupe window", Math.ceil(wait));
  }

  /**
   * Events under ids of the publisher's own: those known are left out of the append and answered with the first. A batch of them that
   * is kept in order has its number remembered with it.
   */
  private publishNamed(pack: PackView, batch: Batch | undefined, ref: Ref, env: Env): readonly Effect[] {
    const names: Name[] = [];
    const stretches: Stretch[] = [];
    const own = new Map<string, number>();
    const kept: [from: number, to: number][] = [];
    let at = 0;
    for (let index = 0; index < pack.count; index++) {
      const extension = pack.extension(index);
      const name = extension.id === undefined ? undefined : `i:${extension.id}`;
      const before = name === undefined ? undefined : this.stretchOf(name, index, env);
      if (before !== undefined) {
        stretches.push(before);
        continue;
      }
      const twin = name === undefined ? undefined : own.get(name);
      if (twin !== undefined) {
        stretches.push({ kind: "new", index, count: -1, at: twin });
        continue;
      }
      if (name !== undefined) {
        names.push({ name, index: at, count: 1, ts: extension.ts });
        own.set(name, at);
      }
      const last = stretches.at(-1);
      if (last?.kind === "new" && last.count > 0 && last.index + last.count === index) {
        stretches[stretches.length - 1] = { ...last, count: last.count + 1 };
        kept[kept.length - 1][1] = index + 1;
      } else {
        stretches.push({ kind: "new", index, count: 1, at });
        kept.push([index, index + 1]);
      }
      at++;
    }
    const crowded = this.crowded(names.length, env);
    if (crowded !== undefined) return [reply(ref, crowded)];
    const fresh = kept.length === 1 && at === pack.count ? pack : cut(pack, kept);
    if (batch?.order === undefined) return this.append(fresh, names, stretches, ref, env);
    const repeated = fresh === undefined && batch.seq <= (this.producers.last(batch.producer) ?? -1);
    const fault = repeated ? undefined : this.orderFault(batch);
    if (fault !== undefined) return [reply(ref, fault)];
    if (!repeated) this.producers.take(batch, env.mono);
    const name: Name = { name: batchName(batch), index: 0, count: 0, ts: undefined };
    return this.append(fresh, names, stretches, ref, env, { ...batch, name });
  }

  private stretchOf(name: string, index: number, env: Env): Stretch | undefined {
    const known = this.dedupe.find(name, env.mono);
    if (known !== undefined) return { kind: "known", index, known };
    const pending = this.pendingNames.get(name);
    return pending === undefined ? undefined : { kind: "pending", index, ...pending };
  }

  /** Appends the pack, where something of it is new, and answers the request once all it waits for is durable. */
  private append(
    pack: PackView | undefined,
    names: readonly Name[],
    stretches: readonly Stretch[],
    ref: Ref,
    env: Env,
    ordered?: Append["ordered"],
  ): readonly Effect[] {
    const effects: Effect[] = [];
    const runs: PublishedRun[] = [];
    let open = 0;
    const done = (): readonly Effect[] => {
      if (--open > 0) return [];
      runs.sort((a, b) => a.index - b.index);
      return [reply(ref, this.published(runs))];
    };
    const wait = (append: Append, run: (placed: Placed) => PublishedRun[]): void => {
      open++;
      append.waiting.push({
        settle: (placed) => {
          runs.push(...run(placed));
          return done();
        },
      });
    };
    if (pack !== undefined && pack.count > 0) {
      const append: Append = { names, ordered, waiting: [] };
      const tag = this.nextTag++;
      this.appends.set(tag, append);
      for (const name of pendingOf(append)) this.pendingNames.set(name.name, { append, name });
      effects.push({ type: "append", stream: this.stream, pack: bytesOf(pack), tag, ...timesOf(pack) });
      const fresh = stretches.filter((stretch) => stretch.kind === "new");
      wait(append, (placed) => fresh.map((stretch) => newRun(stretch, placed, pack)));
      effects.push(...this.plan(env));
    }
    for (const stretch of stretches) {
      if (stretch.kind === "known") runs.push(knownRun(stretch.index, stretch.known));
      if (stretch.kind === "pending") {
        const { index, name } = stretch;
        wait(stretch.append, (placed) => [
          knownRun(index, { ...placed, offset: placed.offset + name.index, count: name.count, ts: name.ts }),
        ]);
      }
    }
    if (open === 0) effects.push(reply(ref, this.published(runs)));
    return effects;
  }

  private committed(placed: readonly Placed[], env: Env): readonly Effect[] {
    const effects: Effect[] = [];
    for (const place of placed) {
      const append = this.appends.get(place.tag);
      if (append === undefined) continue;
      this.appends.delete(place.tag);
      for (const name of pendingOf(append)) this.pendingNames.delete(name.name);
      if (append.names.length > 0) this.dedupe.add(place, append.names, env.mono);
      for (const waiter of append.waiting) effects.push(...waiter.settle(place));
    }
    if (effects.length > 0 && this.wakeAt === undefined) effects.push(...this.plan(env));
    return effects;
  }

  /**
   * The commit under way may store names of which nothing can be seen yet. So may this one and the next store a group that is being joined;
   * those whose tables begin later find no partition. So it is over when the commit behind the first has left nothing.
   */
  private drop(ref: Ref, env: Env): readonly Effect[] {
    this.dropping = { refs: [...(this.dropping?.refs ?? []), ref], commits: 2 };
    this.removals = [...this.dedupe.clear(), [entryKeys.partition(this.stream), null]];
    this.producers.clear();
    this.record = undefined;
    this.recordChanged = false;
    this.dropped = true;
    this.wakeAt = env.mono + 60_000;
    return [
      ...this.dropGroups(),
      { type: "trim", stream: this.stream, start: null },
      { type: "persist", soon: true, tell: true },
      // The cell goes once what it removes is surely written.
      { type: "wake", at: this.wakeAt },
    ];
  }

  private dropGroups(): Effect[] {
    return this.groups().map((group) => ({
      type: "tell",
      to: { shard: this.shelf.shard, cell: groupCell(this.stream, group) },
      message: { type: "dropGroup" },
    }));
  }

  private dropGoesOn(): readonly Effect[] {
    if (this.dropping === undefined) return [];
    const { refs } = this.dropping;
    const groups = this.dropGroups();
    for (const prefix of [entryKeys.dedupes(this.stream), entryKeys.producers(this.stream)]) {
      for (const [key] of this.shelf.entries(prefix)) this.removals.push([key, null]);
    }
    if (--this.dropping.commits > 0 || groups.length + this.removals.length > 0) {
      return [...groups, { type: "persist", soon: true, tell: true }];
    }
    this.dropping = undefined;
    return refs.map((ref) => reply(ref, null));
  }

  /** Retention and the dedupe window need a look from time to time; a partition with neither has no timer. */
  private plan(env: Env): readonly Effect[] {
    if (this.wakeAt !== undefined) return [];
    const { retention } = this.record?.settings ?? {};
    const prunes = retention?.ageMs !== undefined || retention?.bytes !== undefined;
    if (!prunes && this.dedupe.size + this.producers.size === 0) return [];
    this.wakeAt = env.mono + this.shelf.limits.pruneEveryMs;
    return [{ type: "wake", at: this.wakeAt }];
  }

  private wake(env: Env): readonly Effect[] {
    this.wakeAt = undefined;
    if (this.dropped) return [{ type: "stop" }];
    const effects: Effect[] = [];
    const removals = this.dedupe.expire(env.mono);
    this.removals.push(...removals);
    if (this.producers.expire(env.mono) || removals.length > 0) effects.push({ type: "persist" });
    const { retention } = this.record?.settings ?? {};
    const head = this.shelf.head(this.stream);
    if (retention !== undefined && head !== undefined && head.end > head.start) {
      const start = this.shelf.pruneTo(this.stream, {
        ...(retention.ageMs === undefined ? {} : { storedBefore: this.believedWall(env) - retention.ageMs }),
        ...(retention.bytes === undefined ? {} : { bytesMax: retention.bytes }),
      });
      if (start > head.start) effects.push({ type: "trim", stream: this.stream, start });
    }
    effects.push(...this.plan(env));
    return effects;
  }

  /**
   * What is deleted cannot be had back, so a wall clock that was set forward is believed only as fast as time passes once more: a
   * wrong one can be put right before all is gone, and a right one (after a machine slept) is believed in the end.
   */
  private believedWall({ wall, mono }: Env): number {
    const before = this.believed;
    this.believed = { wall: Math.min(wall, before.wall + 2 * (mono - before.mono)), mono };
    return this.believed.wall;
  }

  private info() {
    const head = this.shelf.head(this.stream) ?? { start: 0, end: 0, lastStoredAt: 0, bytes: 0 };
    return { ...head, groups: this.groups(), durability: this.shelf.durabilityOf(this.stream) };
  }

  private groups(): string[] {
    const prefix = entryKeys.groups(this.stream);
    return [...this.shelf.entries(prefix)].map(([key]) => key.slice(prefix.length));
  }

  private published(runs: readonly PublishedRun[]): Answer<"publish"> {
    return { durability: this.shelf.durabilityOf(this.stream), runs };
  }

  private unknown(ref: Ref): readonly Effect[] {
    return [reply(ref, failure("unknown_topic", `partition ${partitionOf(this.stream)} of this topic is not open`))];
  }
}

function reply(to: Ref, value: Answer): Effect {
  return { type: "reply", to, value };
}

function batchName({ producer, seq }: Batch): string {
  return `b:${producer}:${seq}`;
}

/** The names under which it can be asked for again while it is under way. */
function pendingOf({ names, ordered }: Append): readonly Name[] {
  return ordered === undefined ? names : [...names, ordered.name];
}

function wholePack(pack: PackView): readonly [Stretch] {
  return [{ kind: "new", index: 0, count: pack.count, at: 0 }];
}

function knownRun(index: number, known: Known): PublishedRun {
  const { offset, count, storedAt, salt } = known;
  return { index, count, offset, storedAt, salt, duplicate: { ts: known.ts ?? storedAt } };
}

/** `count` -1 marks a twin: an event whose id stands earlier in the same pack. */
function newRun(stretch: Extract<Stretch, { kind: "new" }>, placed: Placed, pack: PackView): PublishedRun {
  const { storedAt, salt } = placed;
  const offset = placed.offset + stretch.at;
  if (stretch.count > 0) return { index: stretch.index, count: stretch.count, offset, storedAt, salt };
  const ts = pack.extension(stretch.at).ts;
  return knownRun(stretch.index, { offset, count: 1, storedAt, salt, ts });
}

function bytesOf(pack: PackView): Uint8Array {
  return pack.bytes.subarray(pack.at, pack.at + pack.byteLength);
}

/** A pack of some of the events. */
function cut(pack: PackView, ranges: readonly (readonly [number, number])[]): PackView | undefined {
  if (ranges.length === 0) return undefined;
  const parts = ranges.map(([from, to]) => {
    const bytes = new Uint8Array(pack.rangeBytes(from, to));
    pack.copyRange(from, to, bytes, 0);
    return new PackView(bytes);
  });
  if (parts.length === 1) return parts[0];
  const bytes = new Uint8Array(mergedBytes(parts));
  mergePacks(parts, bytes, 0);
  return new PackView(bytes);
}

function timesOf(pack: PackView): { tsMax: number; tsGiven: number } {
  let tsMax = 0;
  let tsGiven = 0;
  for (let index = 0; pack.extended && index < pack.count; index++) {
    const { ts }: Extension = pack.extension(index);
    if (ts === undefined) continue;
    tsGiven++;
    tsMax = Math.max(tsMax, ts);
  }
  return { tsMax, tsGiven };
}

/** Payloads are spliced into frames and lines as they are. */
function faultOfPayloads(pack: PackView): Failure | undefined {
  const { bytes, payloadsAt, payloadBytes } = pack;
  const found = faultOfMany(bytes.subarray(payloadsAt, payloadsAt + payloadBytes), pack.payloadStarts());
  return found === undefined ? undefined : failure("bad_json", `event ${found.index}: ${found.fault}`);
}
