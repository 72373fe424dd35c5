// What must be true of a node, kept as plainly as it can be said: logs as arrays, cursors as sets, leases as a list per event. It
// shares no code with the lease tables, the partitions or the front. It hears four things: what reaches the store, what worker
// threads say and are told, what clients send, and what leaves for a client; it compares each with all that came before.

import type { Effect, Notice } from "../../src/actors/effects.ts";
import type { Answer, LeaseRun, Message, MessageOf } from "../../src/actors/messages.ts";
import { batchOps, decodeServerBatch, eventsHeaderBytes } from "../../src/protocol/batch.ts";
import { BlockView } from "../../src/protocol/block.ts";
import { eventId } from "../../src/protocol/event.ts";
import { makeId } from "../../src/protocol/ids.ts";
import { leaseText } from "../../src/protocol/lease.ts";
import type { Rate } from "../../src/protocol/rate.ts";
import type { ToFront, ToHost } from "../../src/runtime/envelope.ts";
import type { Commit, ShardStore } from "../../src/store/store.ts";
import { Budgets } from "./budgets.ts";
import type { Ask, LatestAsk, Publication, SettleAsk, SimClient, Subscription } from "./client.ts";
import type { Coverage } from "./coverage.ts";
import { type EventFrame, GroupState, type Lease, type SeekTarget, type StoredCursor } from "./group-state.ts";
import type { World } from "./world.ts";

/** A promise was broken. */
export class Violation extends Error {}

export interface StoredEvent {
  readonly offset: number;
  readonly id: string;
  readonly payload: string;
  readonly key: string | undefined;
  readonly ownId: string | undefined;
  readonly storedAt: number;
  readonly ts: number;
}

interface Stream {
  readonly number: number;
  readonly topic: string;
  readonly partition: number;
  readonly deadLetterOf: { readonly topic: string; readonly group: string } | undefined;
  readonly events: StoredEvent[];
  /** Where the events of an id are; one that its publisher chose may be of several. */
  readonly byId: Map<string, number[]>;
  start: number;
}

interface ShardModel {
  epoch: number;
  readonly streams: Map<number, Stream>;
  readonly entries: Map<string, string>;
  pending: Commit | undefined;
}

/** A group whose deletion is not stored yet. */
interface Drop {
  readonly cell: string;
  readonly shard: number;
  done: boolean;
}

/** A seek that a lease table was given and has not answered. */
interface Seek {
  readonly cell: string;
  readonly shard: number;
  /** What is answered. */
  readonly question: string;
  readonly to: SeekTarget;
  /** Its cursor is stored. */
  done: boolean;
}

/** What a lease table is told of an event; without a token it is about what the subscription holds. */
interface Said {
  readonly op: SettleAsk["op"];
  readonly id: string;
  readonly token: string | undefined;
  readonly extendMs?: number;
}

/** What a request may mean at a lease table: surely, unless the time of the lease was over. */
export interface Hit {
  readonly lease: Lease;
  readonly sure: boolean;
}

interface Settle {
  readonly op: SettleAsk["op"] | "RELEASE";
  readonly what: string;
  readonly at: number;
  readonly hits: readonly Hit[];
  /** It was said of a run: the name of the lease, and whether it was acked before. */
  readonly run?: { readonly token: string; readonly again: boolean };
}

/** How a handler of the library ended. */
interface HandlerFacts {
  readonly by: string;
  readonly topic: string;
  readonly group: string;
  /** Of what was published. */
  readonly n: number;
  readonly ok: boolean;
}

const decoder = new TextDecoder();

/** Codes after which an event that was published may still be there. */
const unsure: ReadonlySet<string> = new Set(["unavailable", "internal", "unknown_outcome", "closed"]);

export class Checker {
  readonly shards = new Map<number, ShardModel>();
  readonly groups = new Map<string, GroupState>();
  readonly publications = new Map<number, Publication>();
  /** Set when the wall clock is moved: what is measured by it is not compared then. */
  clockMoved = false;
  clockSetForth = false;
  /** Hears what happens, in words. */
  trace: ((line: string) => void) | undefined;
  dedupeMs = 0;
  /** The longest that a thread has stood still. */
  stoodStillMs = 0;
  connRate: Rate | "off" = "off";
  topicRate: Rate | "off" = "off";
  readonly budgets = new Budgets();
  violation: Violation | undefined;
  private readonly world: World;
  private readonly coverage: Coverage;
  /** Every lease ever given, by its name. */
  private readonly leases = new Map<string, Lease>();
  /** What each client has asked about leases, by what the tables must be told of it. It may arrive long after it was given up. */
  private readonly asks = new Map<string, SettleAsk[]>();
  private readonly lastOf = new Map<string, number>();
  private readonly ownIds = new Map<string, StoredEvent>();
  /** What lease tables are told of leases and have not answered, by worker and number of the request. */
  private readonly questions = new Map<string, readonly Settle[]>();
  private readonly questionOf = new WeakMap<object, string>();
  /** The leases of each EVENTS frame, by the client that it is for and its header. */
  private readonly batches = new Map<string, Lease[]>();
  /** Which lease table a member has joined. */
  private readonly groupOf = new Map<number, string>();
  /** Which client it is of. */
  private readonly holders = new Map<number, string>();
  /** Of the clients of the library: how handlers ended, by client, topic, group and event. */
  private readonly handlers = new Set<string>();
  /** Partitions were started from the store after the clock was set forth. */
  private forgot = false;
  private seeks: Seek[] = [];
  private readonly seeksOf = new WeakMap<Commit, readonly Seek[]>();
  private drops: Drop[] = [];
  private readonly dropsOf = new WeakMap<Commit, readonly Drop[]>();
  /** Of topics that were deleted. */
  private readonly gone = new Map<number, Stream>();
  private groupsMost = 0;

  constructor(world: World, coverage: Coverage) {
    this.world = world;
    this.coverage = coverage;
  }

  /** The first one counts: it may be thrown where the node catches everything. */
  fail(what: string): never {
    this.violation ??= new Violation(what);
    throw this.violation;
  }

  // ------------------------------------------------------------------------------------------------------------- the store

  started(shard: number, commit: Commit): void {
    const model = this.shard(shard);
    if (model.pending !== undefined) this.fail(`shard ${shard}: a second commit while one is in flight`);
    model.pending = commit;
    this.seeksOf.set(
      commit,
      this.seeks.filter((seek) => seek.shard === shard),
    );
    this.dropsOf.set(
      commit,
      this.drops.filter((drop) => drop.shard === shard),
    );
    // A table writes the end of its group with the next commit, or had none to end.
    this.drops = this.drops.filter((drop) => drop.shard !== shard);
  }

  committed(shard: number, commit: Commit): void {
    this.shard(shard).pending = undefined;
    this.apply(shard, commit);
  }

  /** Nothing of it is stored, and the actors that had gathered it are started anew. */
  refused(shard: number, _commit: Commit): void {
    this.shard(shard).pending = undefined;
    this.restarted(shard);
    this.begins(shard);
  }

  broke(shard: number): void {
    this.restarted(shard);
  }

  private restarted(shard: number): void {
    this.forgot ||= this.clockSetForth;
    this.budgets.reset(this.world.mono);
    this.seeks = this.seeks.filter((seek) => seek.shard !== shard);
    this.drops = this.drops.filter((drop) => drop.shard !== shard);
    for (const group of this.groups.values()) if (group.shard === shard) group.restarted(this.world.mono);
  }

  /** What it holds is all that counts from now on. */
  private begins(shard: number): void {
    for (const group of this.groups.values()) if (group.shard === shard) group.begins(this.world.mono);
  }

  /** What a shard holds when it is opened is what was committed, with or without the commit that was under way, whole. */
  async opened(shard: number, store: ShardStore): Promise<void> {
    const model = this.shard(shard);
    if (store.epoch <= model.epoch) this.fail(`shard ${shard}: epoch ${store.epoch} after ${model.epoch}`);
    model.epoch = store.epoch;
    if (store.damage().length > 0) this.fail(`shard ${shard}: damage ${JSON.stringify(store.damage())}`);
    const blocks = new Map<number, readonly BlockView[]>();
    for (const stream of store.streams()) {
      const head = store.head(stream)!;
      const read = await store.read(stream, { from: head.start, to: head.end, bytesMax: Number.POSITIVE_INFINITY });
      blocks.set(stream, read.blocks);
    }
    let difference = this.difference(model, store, blocks);
    if (difference !== undefined && model.pending !== undefined) {
      this.coverage.hit("recovered: with the commit in flight");
      this.apply(shard, model.pending);
      difference = this.difference(model, store, blocks);
    } else if (model.pending !== undefined) this.coverage.hit("recovered: without the commit in flight");
    model.pending = undefined;
    if (difference !== undefined) this.fail(`shard ${shard} after opening: ${difference}`);
    this.restarted(shard);
    this.begins(shard);
  }

  private difference(
    model: ShardModel,
    store: ShardStore,
    blocks: ReadonlyMap<number, readonly BlockView[]>,
  ): string | undefined {
    const found = new Map([...store.entries("")].map(([key, value]) => [key, decoder.decode(value)]));
    for (const [key, value] of model.entries) {
      if (found.get(key) !== value) return `entry ${key} is ${found.get(key)}, committed was ${value}`;
    }
    for (const key of found.keys())
      if (!model.entries.has(key)) return `entry ${key} was never committed or was removed`;
    const streams = new Set([...model.streams].filter(([, { events }]) => events.length > 0).map(([number]) => number));
    for (const number of store.streams()) {
      if (!streams.delete(number)) return `stream ${number} is there and was not committed`;
      const stream = model.streams.get(number)!;
      const head = store.head(number)!;
      if (head.end !== stream.events.length) return `stream ${number} ends at ${head.end}, not ${stream.events.length}`;
      if (head.start !== stream.start) return `stream ${number} starts at ${head.start}, not ${stream.start}`;
      let next = head.start;
      for (const block of blocks.get(number) ?? []) {
        for (let i = 0; i < block.count; i++) {
          const event = readEvent(block, i);
          if (event.offset < head.start) continue;
          if (event.offset !== next++) return `stream ${number} has ${event.offset} in the place of ${next - 1}`;
          const known = stream.events[event.offset];
          if (JSON.stringify(known) !== JSON.stringify(event)) {
            return `stream ${number} offset ${event.offset} is ${JSON.stringify(event)}, stored was ${JSON.stringify(known)}`;
          }
        }
      }
      if (next !== head.end) return `stream ${number}: nothing can be read from ${next} to ${head.end}`;
    }
    return streams.size > 0 ? `stream ${[...streams][0]} is gone` : undefined;
  }

  private apply(shard: number, commit: Commit): void {
    const model = this.shard(shard);
    // Who a partition belongs to is put before its first event is stored, in the same commit at the latest.
    for (const [key, value] of commit.puts) if (key.startsWith("partition/")) this.putPartition(model, key, value);
    const dead: { readonly group: GroupState; readonly offset: number; readonly seeking: boolean }[] = [];
    for (const bytes of commit.blocks) {
      const block = new BlockView(bytes);
      const stream = model.streams.get(block.stream);
      if (stream === undefined) this.fail(`events of stream ${block.stream}, whose topic nobody knows`);
      if (block.firstOffset !== stream.events.length) {
        this.fail(
          `${stream.topic}/${stream.partition}: stored at ${block.firstOffset}, the end is ${stream.events.length}`,
        );
      }
      for (let i = 0; i < block.count; i++) {
        const event = readEvent(block, i);
        const last = stream.events.at(-1);
        if (last !== undefined && event.storedAt < last.storedAt) this.fail(`${stream.topic}: time of storing falls`);
        if (stream.deadLetterOf === undefined) this.publicationStored(block.stream, stream, event);
        else dead.push(this.deadLetterStored(stream, event, block, i, commit));
        stream.events.push(event);
        const same = stream.byId.get(event.id);
        if (same === undefined) stream.byId.set(event.id, [event.offset]);
        else same.push(event.offset);
      }
    }
    for (const [number, start] of commit.trims) {
      const stream = model.streams.get(number);
      if (stream === undefined) continue;
      if (start === null) {
        model.streams.delete(number);
        this.gone.set(number, stream);
        this.trace?.(`    ${stream.topic}/${stream.partition} is deleted`);
        this.coverage.hit("a partition is deleted");
        // Its bucket goes too, and a topic of that name has another.
        this.budgets.reset(this.world.mono);
      } else if (start > stream.start) {
        stream.start = Math.min(start, stream.events.length);
        this.trace?.(`    retention of ${stream.topic}/${stream.partition} up to ${stream.start}`);
        this.coverage.hit("retention");
      }
    }
    for (const [key, value] of commit.puts) {
      if (value === null) model.entries.delete(key);
      else model.entries.set(key, decoder.decode(value));
      if (key.startsWith("cursor/") || key.startsWith("group/")) this.putGroup(shard, key, value, commit);
    }
    for (const { group, offset, seeking } of dead) {
      // One that died just before the group was moved back comes again.
      const deleted = this.groups.get(`${group.stream}/${group.group}`) !== group;
      if (!seeking && !deleted && !group.isSettled(offset))
        this.fail(`${group.name}: ${offset} is a dead letter and not settled in the same commit`);
    }
  }

  private putPartition(model: ShardModel, key: string, value: Uint8Array | null): void {
    const number = Number(key.slice("partition/".length));
    if (value === null || model.streams.has(number)) return;
    if (this.gone.has(number)) this.fail(`${key} is stored again, and its topic was deleted`);
    const record = JSON.parse(decoder.decode(value)) as { name: string; deadLetterOf?: Stream["deadLetterOf"] };
    model.streams.set(number, {
      number,
      topic: record.name,
      partition: number % 64,
      deadLetterOf: record.deadLetterOf,
      events: [],
      byId: new Map(),
      start: 0,
    });
  }

  private publicationStored(number: number, stream: Stream, event: StoredEvent): void {
    const where = `${stream.topic}/${stream.partition}:${event.offset}`;
    const { n } = JSON.parse(event.payload) as { n: number };
    const publication = this.publications.get(n);
    if (publication === undefined) this.fail(`${where} holds ${event.payload}, which nobody published`);
    const { topic, key, ownId } = publication;
    if (topic !== stream.topic || key !== event.key || ownId !== event.ownId) {
      this.fail(`${where} is not what was published as ${n}: ${JSON.stringify(event)}`);
    }
    if (publication.stored !== undefined && this.forgot) {
      // Over a restart only the wall clock tells how old a name is, and it was set forth.
      this.coverage.hit("stored twice: the clock was set forth before a restart");
      return;
    }
    if (publication.stored !== undefined && this.gone.has(publication.stored.stream))
      this.coverage.hit("stored again: its topic was deleted");
    else if (publication.stored !== undefined)
      this.fail(`${where}: ${n} is stored twice, first at ${publication.stored.offset}`);
    publication.stored = { stream: number, offset: event.offset };
    if (publication.refused !== undefined && !unsure.has(publication.refused)) {
      this.fail(`${where}: ${n} is stored and was refused with ${publication.refused}`);
    }
    if (key !== undefined) this.inOrder(`${publication.client}/${number}/${key}`, n, where);
    // The library lays events out over the partitions that it knows of: between keys they have no order where there are others now.
    const another = [...this.gone.values()].some((gone) => gone.topic === topic);
    if (!publication.library || !another) this.inOrder(`${publication.client}/${number}`, n, where);
    if (ownId === undefined) return;
    const name = `${number}/${ownId}`;
    const first = this.ownIds.get(name);
    if (first !== undefined && !this.clockMoved && event.storedAt - first.storedAt < this.dedupeMs - 1) {
      this.fail(
        `${where}: the id ${ownId} is stored again ${event.storedAt - first.storedAt} ms after ${first.offset}`,
      );
    }
    if (first !== undefined) this.coverage.hit("dedupe: stored again after its window");
    this.ownIds.set(name, event);
  }

  private inOrder(lane: string, n: number, where: string): void {
    const last = this.lastOf.get(lane) ?? -1;
    if (last > n) this.fail(`${where}: ${n} is behind ${last} of the same client`);
    this.lastOf.set(lane, n);
  }

  private deadLetterStored(stream: Stream, event: StoredEvent, block: BlockView, index: number, commit: Commit) {
    const { deadLetterOf } = stream;
    const meta = JSON.parse(block.pack.extension(index).meta ?? "{}") as {
      headers: Record<string, string>;
      caused_by: readonly string[];
    };
    const partition = Number(meta.headers["x-dlq-partition"]);
    const offset = Number(meta.headers["x-dlq-offset"]);
    const what = `dead letter of ${meta.headers["x-dlq-topic"]}/${partition}:${offset}`;
    // A group may go a commit after its partition.
    const source = this.everOf(meta.headers["x-dlq-topic"], partition).find(({ events }) => {
      const origin = events[offset];
      return origin?.id === meta.caused_by[0] && origin.payload === event.payload && origin.key === event.key;
    });
    if (source === undefined) this.fail(`${what}, which is not stored: ${JSON.stringify(event)}`);
    if (source.deadLetterOf !== undefined) this.fail(`${what}, which is a dead letter itself`);
    const group = this.groups.get(`${source.number}/${deadLetterOf!.group}`);
    if (group === undefined || deadLetterOf!.group !== meta.headers["x-dlq-group"]) this.fail(`${what} of no group`);
    const cell = `group/${source.number}/${group.group}`;
    const seeking = (this.seeksOf.get(commit) ?? []).some((seek) => seek.cell === cell && !seek.done);
    const reason = group.bury(offset, Number(meta.headers["x-dlq-attempts"]), { seeking, now: this.world.mono });
    if (reason !== undefined) this.fail(`${what} of ${group.name}: ${reason}`);
    this.coverage.hit("dead letter");
    return { group, offset, seeking };
  }

  private putGroup(shard: number, key: string, value: Uint8Array | null, commit: Commit): void {
    const [kind, stream, ...rest] = key.split("/");
    const name = `${stream}/${rest.join("/")}`;
    const number = Number(stream);
    const cell = `group/${name}`;
    const drops = (this.dropsOf.get(commit) ?? []).filter((one) => one.cell === cell && !one.done);
    const before = this.groups.get(name);
    if (before !== undefined && drops.length > 0) {
      // Made anew in the same commit perhaps.
      this.groups.delete(name);
      this.trace?.(`    ${before.name} is deleted`);
      this.coverage.hit(value === null ? "a group is deleted" : "a group is deleted and made anew at once");
    } else if (before !== undefined && value === null) this.fail(`${before.name} is removed, and nobody deleted it`);
    for (const drop of drops) drop.done = true;
    if (value === null) return;
    const owner = this.shard(shard).streams.get(number);
    if (owner === undefined && this.gone.has(number)) {
      // Joined while its topic was being deleted: nothing of it may be delivered, and in the end it must be gone.
      this.coverage.hit("a group is stored behind the end of its topic");
      return;
    }
    if (owner === undefined) this.fail(`${key} without a stream`);
    let group = this.groups.get(name);
    if (group === undefined) {
      group = new GroupState({
        shard,
        stream: number,
        group: rest.join("/"),
        name: `${owner.topic}/${owner.partition} ${rest.join("/")}`,
        owner,
      });
      this.groups.set(name, group);
      this.groupsMost = Math.max(this.groupsMost, this.groups.size);
    }
    const text = decoder.decode(value);
    if (kind === "group") {
      group.options = JSON.parse(text) as GroupState["options"];
      return;
    }
    const seeks = (this.seeksOf.get(commit) ?? []).filter((seek) => seek.cell === cell && !seek.done);
    this.trace?.(`    cursor ${group.name} ${text}${seeks.length > 0 ? " (seeking)" : ""}`);
    const outcome = group.put(JSON.parse(text) as StoredCursor, {
      seeks: seeks.map(({ to }) => to),
      now: this.world.mono,
    });
    if (outcome === "seek") {
      this.coverage.hit("seek");
      for (const seek of seeks) seek.done = true;
    } else if (outcome !== undefined) this.fail(`${group.name}: ${outcome}`);
  }

  // ----------------------------------------------------------------------------------------------------------- the threads

  taken(worker: number, { mail }: ToHost): void {
    for (const { id, message } of mail) {
      const question = `${worker}/${id}`;
      // Each thread counts from 1.
      this.questions.delete(question);
      this.questionOf.set(message, question);
    }
  }

  /** It begins, perhaps anew and in the middle of a turn: what was told to the one before it is gone, what it is told next is not. */
  made(shard: number, cell: string): void {
    const other = (one: Seek | Drop) => cell !== one.cell || shard !== one.shard;
    this.seeks = this.seeks.filter(other);
    this.drops = this.drops.filter(other);
  }

  told(shard: number, cell: string, message: Message | Notice): void {
    if (!cell.startsWith("group/")) return;
    const name = cell.slice("group/".length);
    const group = this.groups.get(name);
    const question = this.questionOf.get(message) ?? "";
    switch (message.type) {
      case "seek":
        this.trace?.(`    seek ${cell} ${JSON.stringify(message.to)}`);
        group?.moves(this.world.mono);
        this.seeks.push({ cell, shard, question, to: { ...message.to, ...this.headOf(cell) }, done: false });
        break;
      case "join":
        this.groupOf.set(message.member, name);
        this.holders.set(message.member, /from (\S+):\d+/.exec(message.who)?.[1] ?? message.who);
        break;
      case "settle":
        this.questions.set(
          question,
          message.entries.map(({ id, ack, lease: token }) =>
            this.settleArrives(cell, message.member, { op: ack ? "ACK" : "NACK", id, token }),
          ),
        );
        break;
      case "extend": {
        const { member, id, lease: token, extendMs } = message;
        this.questions.set(question, [this.settleArrives(cell, member, { op: "MODACK", id, token, extendMs })]);
        break;
      }
      case "settleRuns":
        this.questions.set(question, this.runsArrive(message));
        break;
      case "extendRuns":
        for (const lease of this.leasesOf(message.runs))
          if (lease.extensible) lease.extends(message.extendMs, this.world.mono);
        break;
      case "leave":
        group?.left(message.member, message.cause, this.world.mono);
        break;
      case "dropGroup":
        this.drops.push({ cell, shard, done: false });
        group?.moves(this.world.mono);
        break;
      default:
    }
  }

  /** What a cell decides counts at once, also for what it is told next in the same turn. */
  decided(effects: readonly Effect[]): void {
    for (const effect of effects) {
      if (effect.type !== "signal" || effect.signal.type !== "events") continue;
      const { member, stream, frames, ends, binary } = effect.signal;
      let from = 0;
      for (const end of ends) {
        const frame = frames.subarray(from, end);
        if (binary) this.deliveredBatch(stream, member, frame);
        else this.delivered(stream, member, JSON.parse(decoder.decode(frame)) as EventFrame);
        from = end;
      }
    }
  }

  /** An ACK, NACK or MODACK reaches a lease table: with a name it means that lease, without one what its subscription holds of this id. */
  private settleArrives(cell: string, member: number, said: Said): Settle {
    const { op, id, token, extendMs } = said;
    const now = this.world.mono;
    // One whose join was refused or is lost may name a lease all the same.
    const holder = this.holders.get(member);
    const group = this.groups.get(cell.slice("group/".length));
    const hits: Hit[] = [];
    for (const offset of group?.owner.byId.get(id) ?? []) {
      const lease = group?.current(offset);
      const counts = op === "MODACK" ? lease?.extensible : lease?.open;
      if (lease !== undefined && counts && (token === undefined ? lease.member === member : lease.token === token))
        hits.push({ lease, sure: !lease.over(now) });
    }
    const tokens = hits.map(({ lease }) => lease.token).join(" ");
    this.trace?.(`    ${cell} takes ${op} of ${id} by ${holder ?? member}: ${tokens || "nothing"}`);
    if (!isLibrary(holder)) this.hasSaid(cell, holder, said, hits);
    for (const { lease } of hits) {
      if (op === "MODACK") lease.extends(extendMs ?? 0, now);
      else this.settles(lease, op);
      if (op !== "MODACK" && isLibrary(holder)) this.wasHandled(lease, op, holder);
    }
    return { op, what: `${op} of ${id} as ${token ?? "its holder"} by ${holder ?? member} at ${cell}`, at: now, hits };
  }

  /** What a table is told was said by that client. Which time, if it said so more than once, nobody can tell. */
  private hasSaid(cell: string, holder: string | undefined, said: Said, hits: readonly Hit[]): void {
    const [, stream, group] = cell.split("/");
    const topic = this.topicOf(Number(stream));
    const speakers = holder === undefined ? new Set([...this.asks.values()].map(([{ by }]) => by)) : [holder];
    let heard = false;
    for (const by of speakers) {
      for (const ask of this.asks.get(askName(by, topic, group, said)) ?? []) {
        ask.hits.push(...hits);
        heard = true;
      }
    }
    if (!heard && holder !== undefined)
      this.fail(`${cell} is told ${JSON.stringify(said)}, which ${holder} has not said`);
  }

  private runsArrive({ verb, runs }: MessageOf<"settleRuns">): readonly Settle[] {
    const op = ({ ack: "ACK", nack: "NACK", release: "RELEASE" } as const)[verb];
    const at = this.world.mono;
    return [...this.leasesOf(runs)].map((lease) => {
      const what = `${op} of ${lease.group.name}:${lease.offset} as ${lease.token}`;
      const again = lease.settling === "acked";
      const hits = lease.open ? [{ lease, sure: !lease.over(at) }] : [];
      if (hits.length > 0) {
        this.settles(lease, op);
        if (op !== "RELEASE") this.wasHandled(lease, op, lease.holder);
      }
      return { op, what, at, hits, run: { token: lease.token, again } };
    });
  }

  /** A lease table has answered what it was told of leases. */
  private judged(settles: readonly Settle[], answer: Answer): void {
    if (answer !== null && "code" in answer) {
      for (const settle of settles) if (isLost(answer.code)) this.inVain(settle, answer.code);
    } else if (answer !== null && "lost" in answer) {
      const lost = new Set(
        answer.lost.flatMap(({ epoch, token, count }) =>
          Array.from({ length: count }, (_, i) => leaseText(epoch, token + i)),
        ),
      );
      for (const settle of settles) {
        if (lost.has(settle.run!.token)) this.inVain(settle, "lost");
        else if (!settle.run!.again) this.inEffect(settle);
      }
    } else {
      const results = answer !== null && "results" in answer ? answer.results : null;
      for (const [i, settle] of settles.entries()) {
        const result = results?.[i] ?? null;
        if (result === null) this.inEffect(settle);
        else if (result === "stale") this.inVain(settle, result);
        else if (isLost(result.code)) this.inVain(settle, result.code);
      }
    }
  }

  /** A lease that runs and was settled by nothing before is no reason to refuse this. */
  private inVain({ what, hits }: Settle, answer: string): void {
    const ran = hits.find(({ lease, sure }) => sure && !lease.lost);
    if (ran !== undefined) this.fail(`${what} is answered ${answer}, and the lease ${ran.lease.token} runs`);
  }

  private inEffect({ op, what, at, hits }: Settle): void {
    if (hits.length === 0) this.fail(`${what} is answered OK, and there is nothing that it may mean`);
    for (const { lease, sure } of hits) {
      const { group, offset } = lease;
      if (!sure || group.since >= at) continue;
      if (op === "ACK" && !group.isSettled(offset)) this.fail(`${what} is answered OK, and ${offset} is not settled`);
      if (op === "NACK" && !group.isSettled(offset) && group.attemptsStored(offset) < lease.attempt)
        this.fail(`${what} is answered OK, and attempt ${lease.attempt} of ${offset} is not stored`);
    }
  }

  private settles(lease: Lease, op: "ACK" | "NACK" | "RELEASE"): void {
    lease.settling = ({ ACK: "acked", NACK: "nacked", RELEASE: "released" } as const)[op];
    if (op === "RELEASE") lease.mayBeTakenBack = true;
  }

  /** The library acks what a handler of its has done, and nacks what one has failed on. */
  private wasHandled({ group, offset, token }: Lease, op: "ACK" | "NACK", by: string): void {
    const { n } = JSON.parse(group.owner.events[offset].payload) as { n: number };
    if (!this.handlers.has(handlerName({ by, topic: group.owner.topic, group: group.group, n, ok: op === "ACK" })))
      this.fail(`${by}: ${op} of ${group.name}:${offset} as ${token}, and no handler ended so`);
  }

  /** A handler of the library has ended, well or badly. */
  handled(facts: HandlerFacts): void {
    this.handlers.add(handlerName(facts));
  }

  /** A node is gone. The next one numbers its members from 1. */
  ended(): void {
    this.groupOf.clear();
    this.holders.clear();
    for (const group of this.groups.values()) group.gone.clear();
  }

  died(shards: readonly number[]): void {
    for (const shard of shards) this.restarted(shard);
  }

  posted(worker: number, { items }: ToFront): void {
    for (const item of items) {
      if (item.type === "answer") {
        const question = `${worker}/${item.id}`;
        if (this.seeks.length > 0) this.seeks = this.seeks.filter((seek) => seek.question !== question);
        const settles = this.questions.get(question);
        if (settles === undefined) continue;
        this.questions.delete(question);
        this.judged(settles, item.answer);
      } else if (item.type === "shardUp") {
        // Also after a full disk, which needs no opening.
        this.forgot ||= this.clockSetForth;
        this.budgets.reset(this.world.mono);
      } else if (item.type === "cellRestarted") {
        this.groups.get(item.address.cell.slice("group/".length))?.begins(this.world.mono);
        this.coverage.hit("a cell is restarted");
        this.forgot ||= this.clockSetForth;
        this.budgets.reset(this.world.mono);
      }
    }
  }

  private *leasesOf(runs: readonly LeaseRun[]): Generator<Lease> {
    for (const { epoch, token, count } of runs) {
      for (let i = 0; i < count; i++) {
        const lease = this.leases.get(leaseText(epoch, token + i));
        if (lease !== undefined) yield lease;
      }
    }
  }

  private deliveredBatch(stream: number, member: number, bytes: Uint8Array): void {
    const batch = decodeServerBatch(bytes);
    if ("code" in batch || batch.op !== "EVENTS") this.fail(`a binary frame for member ${member} that is no EVENTS`);
    const group = this.groups.get(this.groupOf.get(member) ?? "");
    if (group === undefined) this.fail(`EVENTS for member ${member}, which has not joined`);
    const { firstOffset, attempt, epoch, token, pack, partition } = batch;
    const leases: Lease[] = [];
    this.batches.set(batchName(this.holders.get(member) ?? "", bytes), leases);
    for (let i = 0; i < pack.count; i++) {
      const offset = firstOffset + i;
      const { key, id } = pack.extension(i);
      const lease = this.delivered(stream, member, {
        topic: group.owner.topic,
        group: group.group,
        event: {
          id: id ?? makeId(batch.storedAt, offset, partition, batch.salt),
          partition,
          offset,
          ...(key === undefined ? {} : { key }),
          payload: JSON.parse(decoder.decode(pack.payload(i))),
        },
        ctx: { attempt, ack_deadline_ms: batch.ackDeadlineMs, lease: leaseText(epoch, token + i) },
      });
      leases.push(lease);
    }
  }

  private delivered(stream: number, member: number, { group: name, topic, event, ctx }: EventFrame): Lease {
    const group = this.groups.get(`${stream}/${name}`);
    const what = `${topic}/${event.partition}:${event.offset} to ${name} as ${ctx.lease}, attempt ${ctx.attempt}`;
    if (group === undefined) this.fail(`${what}: delivered before the group is stored`);
    const known = group.owner.events[event.offset];
    if (known === undefined) this.fail(`${what}: delivered before it is stored`);
    if (known.id !== event.id || known.payload !== JSON.stringify(event.payload) || known.key !== event.key) {
      this.fail(`${what}: ${JSON.stringify(event)} is not what is stored: ${JSON.stringify(known)}`);
    }
    this.trace?.(`    lease ${what} member ${member}${known.ownId === undefined ? "" : ` id ${known.ownId}`}`);
    if (this.leases.has(ctx.lease)) this.fail(`${what}: this name of a lease was given before`);
    const reason = group.lease(event.offset, {
      token: ctx.lease,
      attempt: ctx.attempt,
      member,
      holder: this.holders.get(member) ?? "",
      issuedAt: this.world.mono,
      deadlineAt: this.world.mono + ctx.ack_deadline_ms,
      blurred: this.world.stoodStill,
      seeking: this.seeks.some(
        ({ cell, shard, done }) => !done && shard === group.shard && cell === `group/${stream}/${name}`,
      ),
    });
    if (reason !== undefined) this.fail(`${what}: ${reason}`);
    const lease = group.current(event.offset)!;
    this.leases.set(ctx.lease, lease);
    this.coverage.hit(ctx.attempt === 1 ? "delivered" : "redelivered");
    if (group.owner.deadLetterOf !== undefined) {
      this.coverage.hit(
        ctx.attempt > (group.options?.maxAttempts ?? 0)
          ? "a dead letter goes on past the last attempt"
          : "a dead letter is delivered",
      );
    }
    return lease;
  }

  // ----------------------------------------------------------------------------------------------------------- the clients

  /** An EVENT leaves for a client. */
  eventSent(subscription: Subscription, frame: EventFrame): Lease {
    const { name } = subscription.client;
    const lease = this.leaseOn(frame);
    if (lease === undefined)
      this.fail(`${subscription.name}: an EVENT with the lease ${frame.ctx.lease}, which no table gave`);
    if (lease.sent) this.fail(`${subscription.name}: a second EVENT with the lease ${lease.token}`);
    lease.subscription = subscription;
    lease.sent = true;
    if (lease.holder !== name)
      this.fail(`${subscription.name}: an EVENT with the lease ${lease.token} of ${lease.holder}`);
    // 50 ms of refill at each lease table that the connection may have a seat at.
    const lent = this.connRate === "off" ? 0 : Math.ceil(this.connRate.perSec / 20) * this.groupsMost;
    this.budgets.use(`delivery to ${name}`, this.connRate, [this.world.mono, this.world.mono], lent);
    // What is written to a connection whose other end is gone was written in good faith.
    if (subscription.client.status !== "open") return lease;
    if (subscription.status !== "live") {
      this.fail(`${subscription.name}: EVENT ${frame.topic}:${frame.event.offset} while it is ${subscription.status}`);
    }
    let held = 0;
    for (const other of subscription.leases) {
      if (other.revived || other.over(this.world.mono)) subscription.leases.delete(other);
      else held++;
    }
    subscription.leases.add(lease);
    if (held + 1 > subscription.maxInflight) {
      this.fail(`${subscription.name}: ${held + 1} events out, maxInflight is ${subscription.maxInflight}`);
    }
    if (held + 1 === subscription.maxInflight) this.coverage.hit("window full");
    return lease;
  }

  /** EVENTS leave for a client of the library. */
  batchSent(name: string, bytes: Uint8Array): readonly Lease[] {
    if (bytes[0] !== batchOps.EVENTS) return [];
    const leases = this.batches.get(batchName(name, bytes));
    if (leases === undefined) this.fail(`${name}: EVENTS that no table gave it`);
    for (const lease of leases) lease.sent = true;
    return leases;
  }

  /** A client says something about an event. */
  asked(ask: SettleAsk): void {
    const name = askName(ask.by, ask.topic, ask.group, ask);
    const same = this.asks.get(name);
    if (same === undefined) this.asks.set(name, [ask]);
    else same.push(ask);
  }

  /** A request is answered: `ok` are the fields of an OK, otherwise there is a code. */
  answered(client: SimClient, ask: Ask, answer: { ok?: Record<string, unknown>; code?: string }): void {
    const { ok, code } = answer;
    this.trace?.(
      `    ${client.name} hears ${code ?? (ok?.stale === true ? "stale" : "OK")} to ${ask.op} ${ask.publication?.n ?? ask.settle?.id ?? ""}`,
    );
    this.coverage.hit(code === undefined ? `OK to ${ask.op}` : `code: ${code}`);
    switch (ask.op) {
      case "PUBLISH":
        if (ok === undefined) this.publishRefused(ask.publication!, code!);
        else {
          const { topic } = ask.publication!;
          const span = [ask.sentAt, this.world.mono] as const;
          this.budgets.use(`publishing of ${client.name}`, this.connRate, span);
          this.budgets.use(`publishing to ${topic}`, this.topicRate, span);
          this.publishConfirmed(ask.publication!, ok);
        }
        return;
      case "ACK":
      case "NACK":
      case "MODACK":
        this.settled(ask.settle!, ok, code);
        return;
      case "LATEST":
        if (ok !== undefined) this.latestHeard(ask.latest!, ok.events as EventFrame["event"][]);
        return;
      default:
    }
  }

  publishRefused(publication: Publication, code: string): void {
    publication.refused = code;
    if (publication.stored !== undefined && !unsure.has(code)) {
      this.fail(
        `${publication.topic}: ${publication.n} is refused with ${code} and was stored at ${publication.stored.offset}`,
      );
    }
  }

  publishConfirmed(publication: Publication, ok: Record<string, unknown>): void {
    const { topic, n, ownId } = publication;
    const where = `${topic}/${ok.partition}:${ok.offset}`;
    const found = this.everOf(topic, Number(ok.partition)).map(({ events }) => events[Number(ok.offset)]);
    const event = found.find((one) => one !== undefined && one.id === ok.id && one.ts === ok.ts);
    if (event === undefined)
      this.fail(`${where}: OK to ${n} says ${JSON.stringify(ok)}, stored is ${JSON.stringify(found)}`);
    if (ok.duplicate !== true) {
      if (event.payload !== JSON.stringify({ n })) this.fail(`${where}: OK to ${n}, but it holds ${event.payload}`);
      publication.confirmed = true;
      return;
    }
    this.coverage.hit("dedupe: duplicate");
    if (ownId === undefined || event.ownId !== ownId)
      this.fail(`${where}: ${n} is no duplicate of ${JSON.stringify(event)}`);
    // It counts from when the partition hears of its commit: half a second for that and the way there and back, and what stood still.
    if (!this.clockMoved && publication.sentWall - event.storedAt > this.dedupeMs + 500 + this.stoodStillMs) {
      this.fail(`${where}: ${n} is taken for a duplicate ${publication.sentWall - event.storedAt} ms later`);
    }
  }

  /** What came of it at the tables was compared there; here, whether the client hears the same. */
  private settled(ask: SettleAsk, ok: Record<string, unknown> | undefined, code: string | undefined): void {
    const { by, op, topic, group, id, token, hits } = ask;
    const what = `${by}: ${op} of ${topic} ${id} for ${group} as ${token ?? "its holder"}`;
    const only = this.asks.get(askName(by, topic, group, ask))?.length === 1;
    if (ok !== undefined && ok.stale !== true && hits.length === 0)
      this.fail(`${what} is answered OK, and there is nothing that it may mean`);
    if (only && (isLost(code) || ok?.stale === true)) {
      const ran = hits.find(({ lease, sure }) => sure && !lease.lost);
      if (ran !== undefined) this.fail(`${what} is answered ${code ?? "stale"}, and the lease ${ran.lease.token} runs`);
    }
  }

  newestByKey(topic: string): ReadonlyMap<number, ReadonlyMap<string, number>> {
    const newest = new Map<number, Map<string, number>>();
    for (const { number, stream } of this.streams()) {
      if (stream.topic !== topic) continue;
      const keys = new Map<string, number>();
      for (const { key, offset } of stream.events.slice(stream.start)) if (key !== undefined) keys.set(key, offset);
      newest.set(number, keys);
    }
    return newest;
  }

  /** The newest of each key is at least as new as when it was asked for. What retention or a deletion has removed since may be missing. */
  private latestHeard({ topic, keys, newest }: LatestAsk, events: readonly EventFrame["event"][]): void {
    const heard = new Set<string>();
    for (const { id, partition, offset, key = "", payload } of events) {
      const what = `LATEST of ${topic}: ${key} is ${partition}:${offset}`;
      // Topics of this name that were deleted may have had an event of this id in the same place.
      const all = this.everOf(topic, partition);
      const stream = all.find(({ events }) => {
        const known = events[offset];
        return known?.id === id && known.key === key && known.payload === JSON.stringify(payload);
      });
      if (stream === undefined)
        this.fail(`${what}, stored is ${JSON.stringify(all.map(({ events }) => events[offset]))}`);
      if (heard.has(key)) this.fail(`${what}, for the second time`);
      if (keys !== undefined && !keys.includes(key)) this.fail(`${what}, which was not asked for`);
      if (offset < (newest.get(stream.number)?.get(key) ?? 0)) this.fail(`${what}, and there was a newer one before`);
      heard.add(key);
    }
    for (const { number, stream } of this.streams()) {
      for (const [key, offset] of newest.get(number) ?? []) {
        if (heard.has(key) || offset < stream.start || keys?.includes(key) === false) continue;
        this.fail(`LATEST of ${topic}: nothing of ${key}, and ${stream.partition}:${offset} is stored`);
      }
    }
    this.coverage.hit(keys === undefined ? "LATEST of all keys compared" : "LATEST of some keys compared");
    if (heard.size > 0) this.coverage.hit("LATEST of a key compared", heard.size);
  }

  // --------------------------------------------------------------------------------------------------------------- looking

  /** The last lease of each event in this group. */
  *leasesIn(topic: string, name: string): Generator<Lease> {
    for (const group of this.groups.values())
      if (group.owner.topic === topic && group.group === name) yield* group.newest();
  }

  private topicOf(stream: number): string {
    for (const { streams } of this.shards.values()) {
      const found = streams.get(stream);
      if (found !== undefined) return found.topic;
    }
    return this.gone.get(stream)?.topic ?? "";
  }

  /** Of the stream of a lease table. */
  private headOf(cell: string): { readonly start: number; readonly end: number } {
    const stream = Number(cell.split("/")[1]);
    for (const { streams } of this.shards.values()) {
      const found = streams.get(stream);
      if (found !== undefined) return { start: found.start, end: found.events.length };
    }
    return { start: 0, end: 0 };
  }

  streamOf(
    topic: string,
    partition: number,
  ): { readonly number: number; readonly shard: number; readonly stream: Stream } | undefined {
    for (const [shard, { streams }] of this.shards) {
      for (const [number, stream] of streams) {
        if (stream.topic === topic && stream.partition === partition) return { number, shard, stream };
      }
    }
    return undefined;
  }

  *streams(): Generator<{ readonly number: number; readonly stream: Stream }> {
    for (const { streams } of this.shards.values()) for (const [number, stream] of streams) yield { number, stream };
  }

  /** All that ever were this partition, those of deleted topics too. */
  private everOf(topic: string, partition: number): readonly Stream[] {
    const all = [...Array.from(this.streams(), ({ stream }) => stream), ...this.gone.values()];
    return all.filter((stream) => stream.topic === topic && stream.partition === partition);
  }

  /** Its topic or group may have been deleted since its table gave it. */
  private leaseOn({ topic, group, event, ctx }: EventFrame): Lease | undefined {
    const lease = this.leases.get(ctx.lease);
    if (lease === undefined || lease.offset !== event.offset || lease.group.group !== group) return undefined;
    const { owner } = lease.group;
    return owner.topic === topic && owner.events[lease.offset].id === event.id ? lease : undefined;
  }

  /** What the catalog calls a topic that is being deleted. */
  deleting(): string | undefined {
    for (const record of this.records()) if (record.status === "deleting") return record.name;
    return undefined;
  }

  /** Nothing may be left of a topic that the catalog does not know. */
  leftBehind(): string | undefined {
    const ids = new Set([...this.records()].map(({ id }) => id));
    for (const { entries, streams } of this.shards.values()) {
      for (const number of streams.keys())
        if (!ids.has(Math.floor(number / 64))) return `the events of stream ${number}`;
      for (const key of entries.keys()) {
        const stream = /^(?:partition|group|cursor|dedupe|producer)\/(\d+)/.exec(key)?.[1];
        if (stream !== undefined && !ids.has(Math.floor(Number(stream) / 64))) return key;
      }
    }
    return undefined;
  }

  private *records(): Generator<{ readonly id: number; readonly name: string; readonly status: string }> {
    for (const [key, value] of this.shards.get(0)?.entries ?? []) if (key.startsWith("topic/")) yield JSON.parse(value);
  }

  private shard(number: number): ShardModel {
    let model = this.shards.get(number);
    if (model === undefined) {
      model = { epoch: 0, streams: new Map(), entries: new Map(), pending: undefined };
      this.shards.set(number, model);
    }
    return model;
  }
}

/** The lease is not there, or no more. */
function isLost(code: string | undefined): boolean {
  return code === "lease_lost" || code === "unknown_id";
}

function isLibrary(client: string | undefined): client is string {
  return client?.startsWith("bus-") === true;
}

function askName(by: string, topic: string, group: string, { op, id, token }: Said): string {
  return `${by} ${topic} ${group} ${op} ${id} ${token ?? ""}`;
}

function handlerName({ by, topic, group, n, ok }: HandlerFacts): string {
  return `${by} ${topic} ${group} ${n} ${ok}`;
}

function batchName(client: string, bytes: Uint8Array): string {
  return `${client} ${Buffer.from(bytes.buffer, bytes.byteOffset, eventsHeaderBytes).toString("latin1")}`;
}

function readEvent(block: BlockView, index: number): StoredEvent {
  const { key, id } = block.pack.extended ? block.pack.extension(index) : { key: undefined, id: undefined };
  return {
    offset: block.firstOffset + index,
    id: eventId(block, index),
    payload: decoder.decode(block.pack.payload(index)),
    key,
    ownId: id,
    storedAt: block.storedAt,
    ts: block.ts(index),
  };
}
