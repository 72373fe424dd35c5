// A world around one lease table: a stream of blocks, entries that survive a restart, simulated time, commits. Reads are answered at
// once unless `delayReads` is set; commits happen after every message unless `holdCommits` is. The table's invariant is checked
// after every message, and with every delivery that the store knows of the attempts before it.

import { decodeCursor } from "../../src/actors/cursor.ts";
import type { ActorLimits, Effect, Env, Notice, Put, Sample, Shelf } from "../../src/actors/effects.ts";
import { entryBytes, entryKeys } from "../../src/actors/entries.ts";
import { LeaseTableActor } from "../../src/actors/lease-table.ts";
import type {
  Answer,
  CursorState,
  GroupOptions,
  Joined,
  Message,
  MessageOf,
  SettleEntry,
  SettleResult,
  Signal,
  Start,
  TopicRecord,
} from "../../src/actors/messages.ts";
import { decodeServerBatch } from "../../src/protocol/batch.ts";
import { BlockView, blockHeaderBytes, writeBlockHeader } from "../../src/protocol/block.ts";
import { type Failure, failure, isFailure } from "../../src/protocol/failure.ts";
import { makeId } from "../../src/protocol/ids.ts";
import { leaseText, parseLease } from "../../src/protocol/lease.ts";
import { type Extension, encodePack, PackView } from "../../src/protocol/pack.ts";
import { partitionOf, streamOf } from "../../src/protocol/stream.ts";

export const stream = streamOf(7, 3);
export const deadStream = streamOf(8, 3);
export const shard = 2;

export const record: TopicRecord = {
  id: 7,
  name: "orders",
  shards: [0, 1, 0, shard],
  settings: {},
  status: "live",
  createdAt: 0,
};

export const deadRecord: TopicRecord = {
  id: 8,
  name: "orders.dlq.g",
  shards: [0, 1, 0, shard],
  settings: {},
  status: "live",
  createdAt: 0,
  deadLetterOf: { topic: "orders", group: "g" },
};

/** An event as a member got it. */
export interface Got {
  /** When, in monotonic time. */
  at: number;
  readonly member: number;
  readonly offset: number;
  readonly id: string;
  readonly attempt: number;
  readonly epoch: number;
  readonly token: number;
  readonly lease: string;
  readonly payload: unknown;
  readonly key: string | undefined;
}

export interface NewEvent extends Extension {
  readonly payload?: unknown;
}

/** A commit takes what the table has to write; it is durable later. */
export interface CommitMark {
  readonly commit: "begins" | "ends";
  readonly at: number;
}

interface Flight {
  readonly puts: readonly Put[];
  readonly appends: readonly EffectOf<"append">[];
  readonly held: readonly { readonly to: number; readonly value: Answer }[];
  readonly tell: boolean;
}

type EffectOf<T extends Effect["type"]> = Extract<Effect, { type: T }>;

export class LeaseHarness {
  mono = 10_000;
  wall = 1_700_000_000_000;
  epoch = 5;
  start = 0;
  delayReads = false;
  holdCommits = false;
  /** A front that comes to nothing: what is sent to it waits for `frontGoesOn`. Tests see in `got` what has left the table. */
  frontHangs = false;
  private readonly onTheWay: Signal[] = [];
  private readonly handed = new Map<number, number>();
  /** `ask` gives also an answer that has not left yet, instead of committing for it. */
  peek = false;
  /** What the catalog answers; undefined: nothing yet. */
  deadLetterAnswer: Answer<"deadLetter"> | undefined = deadRecord;
  readonly limits: ActorLimits;
  readonly blocks: BlockView[] = [];
  readonly entries = new Map<string, Uint8Array>();
  readonly signals: Signal[] = [];
  readonly got: Got[] = [];
  /** Deliveries, moves to the dead letters and commits, as they came. */
  readonly timeline: (Got | PackView | CommitMark)[] = [];
  readonly frames: { member: number; frames: number; bytes: number }[] = [];
  readonly answers = new Map<number, Answer>();
  /** Partitions of dead letters that were to be opened. */
  readonly opened: { readonly cell: string; readonly message: Message }[] = [];
  /** Why they cannot be; undefined: they can. */
  openFailure: Failure | undefined;
  readonly asked: Message[] = [];
  /** What each commit appended to the dead letters, together with the cursor of that commit. */
  readonly buried: { readonly pack: PackView; readonly stream: number; readonly cursor: Uint8Array | undefined }[] = [];
  readonly reads: EffectOf<"read">[] = [];
  readonly finds: EffectOf<"findTs">[] = [];
  readonly asks: EffectOf<"ask">[] = [];
  readonly wakes: (number | undefined)[] = [];
  persistCalls = 0;
  /** How soon what is gathered asks to be committed. */
  gathers: "nothing" | "later" | "soon" = "nothing";
  /** The table asked to be told when that is durable. */
  tells = false;
  wakeAt: number | undefined;
  stopped = 0;
  actor!: LeaseTableActor;
  private nextToken = 1;
  private nextRef = 1;
  private flight: Flight | undefined;
  private appends: EffectOf<"append">[] = [];
  private held: { to: number; value: Answer }[] = [];
  private failReads: Failure | undefined;
  private queue: { message: Message | Notice; ref: number }[] = [];
  private working = false;

  constructor(options: { limits?: Partial<ActorLimits>; record?: TopicRecord | null } = {}) {
    this.limits = {
      maxAttempts: 5,
      topicsMax: 10,
      groupsPerTopicMax: 10,
      unsettledMax: 1000,
      dedupeMs: 1,
      dedupeEntriesMax: 1,
      pruneEveryMs: 1,
      ...options.limits,
    };
    if (options.record !== null) this.entries.set(entryKeys.partition(stream), entryBytes(options.record ?? record));
    this.boot();
  }

  /** Also of what is damaged by now. */
  end = 0;

  get env(): Env {
    return {
      mono: this.mono,
      wall: this.wall,
      epoch: this.epoch,
      tokens: (count) => {
        const first = this.nextToken;
        this.nextToken += count;
        return first;
      },
      room: (bytes) => new Uint8Array(bytes),
    };
  }

  readonly shelf: Shelf = {
    shard,
    shards: 3,
    durabilityOf: () => "memory",
    limits: {} as ActorLimits,
    head: (wanted) =>
      wanted === stream ? { start: this.start, end: this.end, lastStoredAt: this.wall, bytes: 0 } : undefined,
    entry: (key) => this.entries.get(key),
    entries: (prefix) => [...this.entries].filter(([key]) => key.startsWith(prefix)),
    pruneTo: () => 0,
  };

  // ---------------------------------------------------------------------------------------------------------- the world

  /** What was not committed is lost. `epoch` rises when the shard was opened anew, not when only the cell failed. */
  restart(options: { epoch?: number; downMs?: number; wallMs?: number } = {}): void {
    this.epoch = options.epoch ?? this.epoch + 1;
    if (this.epoch !== options.epoch) this.nextToken = 1;
    this.mono += 7;
    this.wall += options.wallMs ?? options.downMs ?? 7;
    this.boot();
  }

  publish(...events: NewEvent[]): number {
    const first = this.append(...events);
    this.tell({ type: "advanced", end: this.end });
    return first;
  }

  /** Stored, and the table does not know it yet. */
  append(...events: NewEvent[]): number {
    const firstOffset = this.end;
    const pack = encodePack(
      events.map(({ payload, ...extension }, index) => ({
        ...extension,
        payload: new TextEncoder().encode(JSON.stringify(payload ?? { n: firstOffset + index })),
      })),
    );
    const bytes = new Uint8Array(blockHeaderBytes + pack.length);
    const salt = (firstOffset * 31 + 11) % 2 ** 14;
    writeBlockHeader({ stream, firstOffset, storedAt: this.wall, maxTs: this.wall, salt }, bytes, 0);
    bytes.set(pack, blockHeaderBytes);
    this.blocks.push(new BlockView(bytes));
    this.end += events.length;
    return firstOffset;
  }

  publishMany(count: number, event: (n: number) => NewEvent = () => ({})): void {
    if (count > 0) this.publish(...Array.from({ length: count }, (_, n) => event(n)));
  }

  trim(to: number): void {
    this.start = to;
    while (this.blocks.length > 1 && this.blocks[0].endOffset <= to) this.blocks.shift();
    this.tell({ type: "trimmed", start: to });
  }

  /** The bytes are gone without a word: damage. */
  damage(offset: number): void {
    const at = this.blocks.findIndex((block) => block.firstOffset <= offset && offset < block.endOffset);
    this.blocks.splice(at, 1);
  }

  /** Lets time pass, ringing the table's timer whenever it is due. */
  pass(ms: number): void {
    const until = this.mono + ms;
    while (this.wakeAt !== undefined && this.wakeAt <= until) {
      const at = Math.max(this.mono, this.wakeAt);
      this.wall += at - this.mono;
      this.mono = at;
      this.wakeAt = undefined;
      this.tell({ type: "wake" });
    }
    this.wall += until - this.mono;
    this.mono = until;
  }

  commit(): void {
    this.endCommit();
    this.beginCommit();
    this.endCommit();
  }

  beginCommit(): void {
    if (this.flight !== undefined) return;
    let puts: readonly Put[] = [];
    if (this.gathers !== "nothing" || this.appends.length > 0) {
      this.persistCalls++;
      puts = this.actor.persist?.([], this.env) ?? [];
      this.timeline.push({ commit: "begins", at: this.mono });
    }
    this.flight = { puts, appends: this.appends, held: this.held, tell: this.tells };
    this.gathers = "nothing";
    this.tells = false;
    this.appends = [];
    this.held = [];
  }

  endCommit(): void {
    const { flight } = this;
    if (flight === undefined) return;
    this.flight = undefined;
    for (const [key, value] of flight.puts) value === null ? this.entries.delete(key) : this.entries.set(key, value);
    const cursor = this.entries.get(entryKeys.cursor(stream, "g"));
    for (const { pack, stream: target } of flight.appends) {
      this.buried.push({ pack: new PackView(pack), stream: target, cursor });
    }
    if (flight.puts.length > 0) this.timeline.push({ commit: "ends", at: this.mono });
    for (const { to, value } of flight.held) this.answers.set(to, value);
    if (flight.tell) this.tell({ type: "persisted" });
  }

  answerReads(): void {
    for (const read of this.reads.splice(0)) this.answerRead(read);
  }

  failRead(reason = failure("unavailable", "no disk")): void {
    this.failReads = reason;
  }

  // ----------------------------------------------------------------------------------------------------- talking to it

  ask<T extends Answer>(message: Message): T {
    const ref = this.send(message);
    if (this.answers.has(ref)) return this.answers.get(ref) as T;
    const held = this.held.find(({ to }) => to === ref);
    if (this.peek && held !== undefined) return held.value as T;
    this.commit();
    return this.answers.get(ref) as T;
  }

  /** Sends a request and gives its reference; the answer is in `answers` once it left. */
  send(message: Message): number {
    const ref = this.nextRef++;
    this.receive(message, ref);
    return ref;
  }

  tell(message: Message | Notice): void {
    if (message.type === "join") this.handed.delete(message.member);
    this.receive(message, 0);
  }

  join(
    member: number,
    options: Partial<MessageOf<"join">> & { group?: Partial<GroupOptions>; from?: Start } = {},
  ): Joined & Failure {
    return this.ask<Joined & Failure>(this.joinMessage(member, options));
  }

  joinMessage(
    member: number,
    options: Partial<MessageOf<"join">> & { group?: Partial<GroupOptions>; from?: Start } = {},
  ): MessageOf<"join"> {
    const { group = {}, from = { kind: "earliest" }, ...rest } = options;
    return {
      type: "join",
      member,
      options: group,
      start: from,
      ackTimeoutMs: 1000,
      batchSize: 100,
      format: "json",
      handle: member + 100,
      who: `client ${member}`,
      rejoin: false,
      ...rest,
    };
  }

  /** Joins with credit. */
  member(
    member: number,
    options: Partial<MessageOf<"join">> & {
      group?: Partial<GroupOptions>;
      from?: Start;
      slots?: number;
      tokens?: number;
      bytes?: number;
    } = {},
  ): void {
    const { slots, tokens, bytes, ...join } = options;
    const joined = this.join(member, join);
    if (isFailure(joined)) throw new Error(joined.msg);
    this.grant(member, slots, tokens, bytes);
  }

  grant(member: number, slots = 100, tokens = Number.POSITIVE_INFINITY, bytes = 1e9): void {
    this.tell({ type: "grant", member, slots, tokens, bytes });
  }

  leave(member: number, cause: MessageOf<"leave">["cause"] = "disconnect", written = Number.MAX_SAFE_INTEGER): void {
    this.tell({ type: "leave", member, cause, written });
  }

  settle(member: number, ...entries: SettleEntry[]): readonly SettleResult[] {
    const { results } = this.ask<{ results: readonly SettleResult[] | null }>({ type: "settle", member, entries });
    return results ?? entries.map(() => null);
  }

  ack(got: Got, options: { member?: number; named?: boolean } = {}): SettleResult {
    const lease = options.named === false ? {} : { lease: got.lease };
    return this.settle(options.member ?? got.member, { id: got.id, ack: true, ...lease })[0];
  }

  nack(got: Got, more: { delayMs?: number; reason?: string } = {}, named = true): SettleResult {
    const lease = named ? { lease: got.lease } : {};
    return this.settle(got.member, { id: got.id, ack: false, ...lease, ...more })[0];
  }

  extend(got: Got, extendMs: number, named = true, member = got.member): Answer<"extend"> {
    const lease = named ? { lease: got.lease } : {};
    return this.ask<Answer<"extend">>({ type: "extend", member, id: got.id, extendMs, ...lease });
  }

  cursor(): CursorState {
    return this.ask<CursorState>({ type: "cursor" });
  }

  /** What was delivered since the last call. */
  take(member?: number): Got[] {
    const taken = this.got.filter((got) => member === undefined || got.member === member);
    for (const got of taken) this.got.splice(this.got.indexOf(got), 1);
    return taken;
  }

  offsets(member?: number): number[] {
    return this.take(member).map(({ offset }) => offset);
  }

  takeSignals<T extends Signal["type"]>(type: T): Extract<Signal, { type: T }>[] {
    const taken = this.signals.filter((signal) => signal.type === type);
    for (const signal of taken) this.signals.splice(this.signals.indexOf(signal), 1);
    return taken as Extract<Signal, { type: T }>[];
  }

  total(name: string): number {
    return this.sample(name).value as number;
  }

  sample(name: string): Sample {
    const sample = this.actor.stats(this.env).find((candidate) => candidate.name === name);
    if (sample === undefined) throw new Error(`no sample ${name}`);
    return sample;
  }

  /** Attempts that ended, as a restart would find them. */
  storedAttempts(offset: number): number {
    const cursor = this.entries.get(entryKeys.cursor(stream, "g"));
    const attempted = cursor === undefined ? [] : decodeCursor(cursor, this.wall).attempted;
    return attempted.find((entry) => entry.offset === offset)?.attempts ?? 0;
  }

  idOf(offset: number): string {
    const block = this.blocks.find((candidate) => candidate.firstOffset <= offset && offset < candidate.endOffset)!;
    const own = block.pack.id(offset - block.firstOffset);
    return own ?? makeId(block.storedAt, offset, partitionOf(stream), block.salt);
  }

  // ------------------------------------------------------------------------------------------------------------- inside

  private boot(): void {
    Object.assign(this.shelf, { limits: this.limits });
    this.gathers = "nothing";
    this.tells = false;
    this.flight = undefined;
    this.appends = [];
    this.held = [];
    this.queue = this.queue.filter(({ ref }) => ref > 0);
    this.reads.length = 0;
    this.finds.length = 0;
    this.asks.length = 0;
    this.wakeAt = undefined;
    const made = LeaseTableActor.start({ stream, group: "g", shelf: this.shelf, env: this.env });
    this.actor = made.actor as LeaseTableActor;
    this.actor.check?.();
    this.work(() => this.perform(made.effects));
  }

  /** As in the runtime, what the effects set off is taken in after all of them were performed, in the same turn. */
  private receive(message: Message | Notice, ref: number): void {
    this.queue.push({ message, ref });
    this.work();
  }

  private work(first: () => void = () => undefined): void {
    if (this.working) {
      first();
      return;
    }
    this.working = true;
    try {
      first();
      for (let job = this.queue.shift(); job !== undefined; job = this.queue.shift()) {
        const effects = this.actor.receive(job.message, job.ref, this.env);
        this.actor.check?.();
        this.perform(effects);
      }
    } finally {
      this.working = false;
    }
    if (!this.holdCommits) this.commit();
  }

  private perform(effects: readonly Effect[]): void {
    let stops = false;
    for (const effect of effects) {
      switch (effect.type) {
        case "reply":
          if (effect.hold) this.held.push(effect);
          else this.answers.set(effect.to, effect.value);
          break;
        case "signal":
          this.signals.push(effect.signal);
          if (effect.signal.type === "events") this.unpack(effect.signal);
          if (this.frontHangs) this.onTheWay.push(effect.signal);
          else this.front(effect.signal);
          break;
        case "ask":
          if (effect.message.type === "open") {
            this.opened.push({ cell: effect.to.cell, message: effect.message });
            this.answerOpen(effect.message, effect.tag);
            break;
          }
          this.asked.push(effect.message);
          if (this.deadLetterAnswer === undefined) this.asks.push(effect);
          else this.tell({ type: "answer", tag: effect.tag, answer: this.deadLetterAnswer });
          break;
        case "append":
          this.appends.push(effect);
          this.timeline.push(new PackView(effect.pack));
          break;
        case "persist":
          if (this.gathers !== "soon") this.gathers = effect.soon ? "soon" : "later";
          this.tells ||= effect.tell ?? false;
          break;
        case "read":
          if (this.delayReads) this.reads.push(effect);
          else this.answerRead(effect);
          break;
        case "findTs":
          if (this.delayReads) this.finds.push(effect);
          else this.answerFind(effect);
          break;
        case "wake":
          this.wakes.push(effect.at);
          this.wakeAt = effect.at;
          break;
        case "stop":
          stops = true;
          break;
        default:
          throw new Error(`this harness has no use for ${effect.type}`);
      }
    }
    if (!stops) return;
    this.stopped++;
    this.commit();
    this.boot();
  }

  /** The partition has its record stored before it answers. */
  private answerOpen({ record }: MessageOf<"open">, tag: number): void {
    const number = record.shards.lastIndexOf(shard);
    const answer: Answer<"open"> = this.openFailure ?? {
      start: 0,
      end: 0,
      lastStoredAt: 0,
      bytes: 0,
      groups: [],
      durability: "memory",
    };
    if (this.openFailure === undefined) {
      this.entries.set(entryKeys.partition(streamOf(record.id, number)), entryBytes(record));
    }
    this.tell({ type: "answer", tag, answer });
  }

  private answerRead({ tag, from, to, bytesMax }: EffectOf<"read">): void {
    if (this.failReads !== undefined) {
      const reason = this.failReads;
      this.failReads = undefined;
      this.tell({ type: "readFailed", tag, failure: reason });
      return;
    }
    const found: BlockView[] = [];
    let bytes = 0;
    for (const block of this.blocks) {
      if (block.endOffset <= from || block.firstOffset >= to || bytes >= bytesMax) continue;
      if (block.endOffset <= this.start) continue;
      found.push(block);
      bytes += block.bytes.length;
    }
    // As the log does it: what is neither there nor behind it up to `to` is lost.
    const next = found.at(-1)?.endOffset ?? Math.min(to, this.end);
    this.tell({ type: "blocks", tag, blocks: found, next });
  }

  answerFind({ tag, ts }: EffectOf<"findTs">): void {
    const block = this.blocks.find((candidate) => candidate.storedAt >= ts);
    this.tell({ type: "found", tag, offset: block?.firstOffset ?? this.end });
  }

  frontGoesOn(): void {
    this.frontHangs = false;
    for (const signal of this.onTheWay.splice(0)) this.front(signal);
  }

  /** As much of a front as the table talks to by itself. */
  private front({ type, member, ...signal }: Signal): void {
    const { handed } = this;
    if (type === "events") handed.set(member, (handed.get(member) ?? 0) + (signal as { count: number }).count);
    if (type !== "overdue") return;
    this.queue.push({ message: { type: "handed", member, handed: handed.get(member) ?? 0 }, ref: 0 });
    this.work();
  }

  private unpack(signal: Extract<Signal, { type: "events" }>): void {
    let from = 0;
    let count = 0;
    for (const to of signal.ends) {
      const frame = signal.frames.subarray(from, to);
      from = to;
      const got = signal.binary ? unpackBatch(signal.member, frame) : [unpackText(signal.member, frame)];
      for (const event of got) {
        event.at = this.mono;
        if (event.attempt > 1 + this.storedAttempts(event.offset)) {
          throw new Error(`${event.offset} came as attempt ${event.attempt}, and the store does not know why`);
        }
      }
      this.got.push(...got);
      this.timeline.push(...got);
      count += got.length;
    }
    if (from !== signal.frames.length) throw new Error("bytes behind the last frame");
    if (count !== signal.count) throw new Error(`${count} events in frames, ${signal.count} said`);
    this.frames.push({ member: signal.member, frames: signal.ends.length, bytes: signal.frames.length });
  }
}

function unpackText(member: number, bytes: Uint8Array): Got {
  const { op, group, event, ctx } = JSON.parse(new TextDecoder().decode(bytes));
  if (op !== "EVENT" || group !== "g") throw new Error(`not an EVENT for g: ${op}`);
  const { epoch, token } = parseLease(ctx.lease)!;
  const { offset, id, payload, key } = event;
  return { at: 0, member, offset, id, attempt: ctx.attempt, epoch, token, lease: ctx.lease, payload, key };
}

function unpackBatch(member: number, bytes: Uint8Array): Got[] {
  const batch = decodeServerBatch(bytes);
  if ("code" in batch || batch.op !== "EVENTS") throw new Error("not an EVENTS frame");
  if (batch.handle !== member + 100) throw new Error("the handle of another subscription");
  const got: Got[] = [];
  for (let i = 0; i < batch.pack.count; i++) {
    const offset = batch.firstOffset + i;
    const extension = batch.pack.extension(i);
    got.push({
      at: 0,
      member,
      offset,
      id: extension.id ?? makeId(batch.storedAt, offset, batch.partition, batch.salt),
      attempt: batch.attempt,
      epoch: batch.epoch,
      token: batch.token + i,
      lease: leaseText(batch.epoch, batch.token + i),
      payload: JSON.parse(new TextDecoder().decode(batch.pack.payload(i))),
      key: extension.key,
    });
  }
  return got;
}
