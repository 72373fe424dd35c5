// One shard in MongoDB: heads and entries in memory as in every store, events in the database. ARCHITECTURE.md says what is atomic.

import type { ClientSession, Collection, Db, MongoClient } from "mongodb";
import { mongoPayloadBytesMax } from "../../config.ts";
import { BlockView } from "../../protocol/block.ts";
import type { BlockFacts } from "../block-facts.ts";
import { ShardState } from "../shard-state.ts";
import {
  type Commit,
  type Damage,
  type LatestEntry,
  type ReadResult,
  type ShardStore,
  type StoreClock,
  StoreError,
  type StoreEvents,
  type StreamHead,
} from "../store.ts";
import { type Concern, commitWrites } from "./commit.ts";
import type { EventDocument } from "./documents.ts";
import type { Driver } from "./driver.ts";
import {
  collectionOf,
  type EntryCollection,
  type EntryDocument,
  entryCollections,
  entryKey,
  entryValue,
  ofShard,
} from "./entries.ts";
import { messageOf, storeError } from "./failures.ts";
import { type HeadDocument, headsOf, placeOf, type StreamFacts } from "./heads.ts";
import { type Loaded, type OldBlock, OldBlocks } from "./old-blocks.ts";
import { type Claim, claimShard, ownersOf, releaseShard, untilStage } from "./owner.ts";
import { dropper, endOf, planWrites, type Trimmable, type View } from "./plan.ts";
import { eventsQuery, foreignQuery, type Offsets, type Place } from "./queries.ts";
import { Questions } from "./questions.ts";
import { Sweeper } from "./sweep.ts";

/** Of an owner that has nothing to commit; owner.ts says what for. */
const beatMs = 1500;

export interface MongoShardOptions {
  readonly shard: number;
  readonly node: string;
  readonly driver: Driver;
  readonly client: MongoClient;
  readonly db: Db;
  readonly clock: StoreClock;
  readonly commitMs: number;
  readonly events: StoreEvents;
}

export async function openMongoShard(options: MongoShardOptions): Promise<MongoShard> {
  const { shard, node, client } = options;
  // It is ended with the client and not before: an ended one is used again by others, and whoever opens the shard next ends whatever
  // goes on in the session that the owner document names.
  const session = client.startSession();
  try {
    const claim = await claimShard(options, shard, { node, session });
    const opened = new MongoShard(options, session, claim);
    await opened.load();
    return opened;
  } catch (error) {
    throw storeError(error, "broken", `shard ${shard} could not be opened`);
  }
}

export class MongoShard implements ShardStore {
  readonly shard: number;
  readonly epoch: number;
  readonly durability = "mongo:majority";
  private readonly options: MongoShardOptions;
  private readonly session: ClientSession;
  private readonly state = new ShardState();
  private readonly facts = new Map<number, StreamFacts>();
  private readonly oldBlocks = new Map<number, OldBlocks>();
  /** By stream, as the entries of their partitions tell them. */
  private readonly topics = new Map<number, Topic>();
  private readonly damages: Damage[] = [];
  /** Streams that ended, until nothing of them is left. */
  private readonly dropping = new Map<number, Promise<void>>();
  private readonly events: Collection<EventDocument>;
  private readonly questions: Questions;
  private readonly sweeper: Sweeper;
  private claim: Claim;
  private committing: Promise<void> | undefined;
  private beating: Promise<void> | undefined;
  private beatTimer: { cancel(): void } | undefined;
  private status: "open" | "broken" | "closed" = "open";

  constructor(options: MongoShardOptions, session: ClientSession, claim: Claim) {
    const { shard, db, events } = options;
    this.options = options;
    this.shard = shard;
    this.epoch = claim.epoch;
    this.session = session;
    this.claim = claim;
    this.events = db.collection<EventDocument>("events");
    this.questions = new Questions({ shard, client: options.client, events: this.events, writer: session });
    this.sweeper = new Sweeper(this.events, (error) =>
      events.report(`events below the start of a stream of shard ${shard} are not removed yet: ${messageOf(error)}`),
    );
  }

  // ------------------------------------------------------------------------------------------------------------- opening

  /** What the last owner has left: nobody but us can change it any more. */
  async load(): Promise<void> {
    await this.questions.ask(async (options) => {
      for (const name of entryCollections) {
        for await (const document of this.collection(name).find(ofShard(this.shard), options)) this.takeEntry(document);
      }
      const heads = this.options.db.collection<HeadDocument>("partitions").find(headsOf(this.shard), options);
      for await (const document of heads) this.takeHead(document);
    });
    this.planBeat();
  }

  private takeEntry(document: EntryDocument): void {
    const key = entryKey(document);
    const value = entryValue(document);
    this.state.entries.put(key, value);
    this.learnTopic(key, value);
  }

  private takeHead(document: HeadDocument): void {
    const { stream, topic, start, end, storedAt, bytes, tsMax, swept, dropped } = document;
    const facts = { ...placeOf(this.shard, stream, topic), tsMax, swept };
    if (dropped) {
      this.sweepDropped(facts, end);
      return;
    }
    this.facts.set(stream, facts);
    this.state.heads.set(stream, { start, end, lastStoredAt: storedAt, bytes });
    this.oldBlocks.set(stream, new OldBlocks({ fresh: start === end }));
    if (start > swept) this.sweep(stream, start);
  }

  /** For what is written into documents and their indexes, and how safely. */
  private learnTopic(key: string, value: Uint8Array | null): void {
    const stream = /^partition\/(\d+)$/.exec(key)?.[1];
    if (stream === undefined || value === null) return;
    const { name, settings } = JSON.parse(Buffer.from(value).toString()) as Partial<TopicEntry>;
    // A number above 1 would be no less than a majority where it can be had at all.
    const concern = settings?.writeConcern === "w:1" ? "w:1" : "majority";
    if (typeof name === "string") this.topics.set(Number(stream), { name, concern });
  }

  // --------------------------------------------------------------------------------------------------------------- state

  head(stream: number): StreamHead | undefined {
    const head = this.state.heads.get(stream);
    return head && { ...head };
  }

  streams(): IterableIterator<number> {
    return this.state.heads.keys();
  }

  entry(key: string): Uint8Array | undefined {
    return this.state.entries.get(key);
  }

  entries(prefix: string): IterableIterator<readonly [string, Uint8Array]> {
    return this.state.entries.withPrefix(prefix);
  }

  damage(): readonly Damage[] {
    return this.damages;
  }

  // -------------------------------------------------------------------------------------------------------------- commit

  async commit(commit: Commit): Promise<void> {
    if (this.committing !== undefined) throw new Error(`shard ${this.shard}: a second commit while one is in flight`);
    if (this.status !== "open") throw this.stale();
    const checked = this.state.check(commit);
    if (typeof checked === "string") throw this.refused("EINVAL", checked);
    const blocks = commit.blocks.map((bytes) => new BlockView(bytes));
    const large = blocks.find((block) => largestPayload(block) > mongoPayloadBytesMax);
    if (large !== undefined) throw this.refused("EFBIG", `a payload of more than ${mongoPayloadBytesMax} bytes`);
    const work = this.write(commit, checked, blocks);
    this.committing = work;
    try {
      await work;
    } finally {
      this.committing = undefined;
    }
  }

  private async write(commit: Commit, checked: readonly BlockFacts[], blocks: readonly BlockView[]): Promise<void> {
    // Both write the owner document, and of two at a time one would be turned away.
    await this.beating;
    // A stream that begins again must not be taken for what is left of itself.
    for (const { stream } of blocks) await this.dropping.get(stream);
    try {
      for (const [key, value] of commit.puts) this.learnTopic(key, value);
      const trimmable = await this.trimmable(commit, blocks);
      const writes = planWrites({ commit, checked, blocks, trimmable }, this.view());
      const { db, clock, commitMs } = this.options;
      await commitWrites(writes, this.claim, {
        db,
        session: this.session,
        clock,
        commitMs,
        concern: this.concernOf(commit, blocks),
        makeRoom: (events) => this.makeRoom(events),
      });
      this.claim = { ...this.claim, sequence: this.claim.sequence + 1 };
      this.apply(commit, checked, blocks, trimmable);
    } catch (error) {
      const failure = storeError(error, "broken", `shard ${this.shard}: a commit failed`);
      if (failure.state === "broken" && this.status === "open") this.status = "broken";
      throw failure;
    }
  }

  durabilityOf(stream: number): string {
    return `mongo:${this.topics.get(stream)?.concern ?? "majority"}`;
  }

  /** That of the topics where there is nothing but events and what is remembered of their publishers. */
  private concernOf({ puts, trims }: Commit, blocks: readonly BlockView[]): Concern {
    const more = trims.length > 0 || puts.some(([key]) => collectionOf(key) !== "partitions");
    const careless = blocks.length > 0 && blocks.every(({ stream }) => this.topics.get(stream)?.concern === "w:1");
    return careless && !more ? "w:1" : "majority";
  }

  /** For each stream that the commit trims, the blocks that may go. */
  private async trimmable({ trims }: Commit, blocks: readonly BlockView[]): Promise<Trimmable> {
    const found = new Map<number, { readonly start: number; readonly blocks: readonly OldBlock[] }>();
    for (const [stream, wanted] of trims) {
      const head = this.state.heads.get(stream);
      const own = blocks.filter((block) => block.stream === stream).map(oldBlockOf);
      const start = Math.min(wanted ?? 0, own[0]?.end ?? head?.end ?? 0);
      const before = head?.start ?? 0;
      if (start <= before) continue;
      const known = this.oldBlocks.get(stream)?.upTo(start) ?? (await this.loadBlocks(stream, before, start)).blocks;
      found.set(stream, { start: before, blocks: [...known, ...own] });
    }
    return found;
  }

  private view(): View {
    return {
      shard: this.shard,
      state: this.state,
      factsOf: (stream) => this.factsOf(stream),
      topicOf: (stream) => this.topics.get(stream)?.name,
      binary: (bytes) => new this.options.driver.Binary(bytes),
    };
  }

  private factsOf(stream: number): StreamFacts {
    return (
      this.facts.get(stream) ?? { ...placeOf(this.shard, stream, this.topics.get(stream)?.name), tsMax: 0, swept: 0 }
    );
  }

  /** It is durable: from here on it is seen. */
  private apply(
    commit: Commit,
    checked: readonly BlockFacts[],
    blocks: readonly BlockView[],
    trimmable: Trimmable,
  ): void {
    for (const block of blocks) {
      const facts = this.factsOf(block.stream);
      facts.tsMax = Math.max(facts.tsMax, block.maxTs);
      this.facts.set(block.stream, facts);
      if (!this.oldBlocks.has(block.stream)) this.oldBlocks.set(block.stream, new OldBlocks({ fresh: true }));
      this.oldBlocks.get(block.stream)?.add(oldBlockOf(block));
    }
    const before = new Map(
      commit.trims.map(([stream]) => {
        return [stream, { start: this.state.heads.get(stream)?.start, end: endOf(this.state, stream, checked).end }];
      }),
    );
    this.state.apply(commit, checked, dropper(trimmable));
    for (const [stream, { start, end }] of before) {
      const facts = this.facts.get(stream);
      const head = this.state.heads.get(stream);
      if (facts === undefined) continue;
      if (head === undefined) {
        this.facts.delete(stream);
        this.oldBlocks.delete(stream);
        this.topics.delete(stream);
        this.sweepDropped(facts, end);
      } else if (head.start !== start) {
        this.sweep(stream, head.start);
        this.oldBlocks.get(stream)?.drop(head.start);
      }
    }
  }

  // ------------------------------------------------------------------------------------------------------------- removal

  /** Everything below the block that holds `start`. */
  private sweep(stream: number, start: number): void {
    const facts = this.facts.get(stream);
    if (facts === undefined) return;
    const to = async () => {
      const { filter, sort } = eventsQuery(facts, { from: start, to: start + 1 });
      const holding = await this.events.findOne(filter, { sort, projection: { offset: 1, nth: 1 } });
      return holding === null ? start : holding.offset - holding.nth;
    };
    // Written with the next commit of the stream; until then an opening looks once more.
    const done = async () => {
      facts.swept = Math.max(facts.swept, start);
    };
    this.sweeper.add({ place: facts, to, done });
  }

  private sweepDropped(facts: StreamFacts, end: number): void {
    const { db } = this.options;
    const gone = new Promise<void>((resolve) => {
      const done = async () => {
        await db.collection<HeadDocument>("partitions").deleteOne({ _id: facts.id, dropped: true });
      };
      const ended = () => {
        this.dropping.delete(facts.stream);
        resolve();
      };
      this.sweeper.add({ place: facts, to: async () => end, done, ended });
    });
    this.dropping.set(facts.stream, gone);
  }

  /** Documents of a topic that was deleted and made anew may be where new ones have to go. */
  private async makeRoom(events: readonly EventDocument[]): Promise<boolean> {
    const heads = this.options.db.collection<HeadDocument>("partitions");
    const ranges = new Map<string, { readonly place: Place; readonly from: number; to: number }>();
    for (const { _id, topic, partition, offset } of events) {
      const range = ranges.get(_id.s);
      if (range !== undefined) range.to = offset + 1;
      else ranges.set(_id.s, { place: { id: _id.s, stream: 0, topic, partition }, from: offset, to: offset + 1 });
    }
    let removed = 0;
    for (const { place, from, to } of ranges.values()) {
      const others: string[] = await this.events.distinct("_id.s", foreignQuery(place, { from, to }).filter);
      for (const id of others) {
        // Only what is known to have ended: anything else is not ours to remove.
        const ended = await heads.findOne({ _id: id, dropped: true }, { readConcern: { level: "majority" } });
        if (ended === null) continue;
        const { filter } = eventsQuery({ ...place, id }, { from, to });
        removed += (await this.events.deleteMany(filter)).deletedCount;
      }
    }
    return removed > 0;
  }

  /** Resolves when nothing is left to do in the background: for tests. */
  settled(): Promise<void> {
    return this.sweeper.settled();
  }

  // --------------------------------------------------------------------------------------------------------------- reads

  async read(stream: number, range: { from: number; to: number; bytesMax: number }): Promise<ReadResult> {
    const asked = this.asked(stream);
    if (asked === undefined) return { blocks: [], next: range.from };
    const missing: Damage[] = [];
    const result = await this.questions.blocksIn(asked.place, asked.offsets, range, {
      start: () => this.state.heads.get(stream)?.start ?? Number.POSITIVE_INFINITY,
      damaged: (damage) => void missing.push({ shard: this.shard, ...damage }),
    });
    if (missing.length > 0) await this.checkOwner();
    for (const damage of missing) this.damaged(damage);
    return result;
  }

  /** What is missing may have been removed by another node that has the shard by now. */
  private async checkOwner(): Promise<void> {
    const { shard, epoch } = this.claim;
    const owner = await this.questions.ask((options) =>
      ownersOf(this.options.db).findOne({ _id: shard, epoch }, options),
    );
    if (owner !== null) return;
    if (this.status === "open") this.status = "broken";
    throw new StoreError("broken", "EFENCED", `shard ${shard} was taken over by another node, this was epoch ${epoch}`);
  }

  async findTs(stream: number, ts: number): Promise<number> {
    const asked = this.asked(stream);
    return asked === undefined ? 0 : this.questions.time(asked.place, asked.offsets, ts);
  }

  async findId(stream: number, id: string): Promise<number | undefined> {
    const asked = this.asked(stream);
    return asked && this.questions.id(asked.place, asked.offsets, id);
  }

  async latest(
    stream: number,
    query: { keys: readonly string[] } | { after: string; limit: number },
  ): Promise<readonly LatestEntry[]> {
    const asked = this.asked(stream);
    if (asked === undefined) return [];
    const { place, offsets } = asked;
    return "keys" in query
      ? this.questions.latestOf(place, offsets, query.keys)
      : this.questions.latestAfter(place, offsets, query);
  }

  pruneTo(stream: number, policy: { storedBefore?: number; bytesMax?: number }): number {
    const head = this.state.heads.get(stream);
    const old = this.oldBlocks.get(stream);
    if (head === undefined || old === undefined) return head?.start ?? 0;
    let start = head.start;
    let bytes = head.bytes;
    for (const block of old.all()) {
      const isOld = policy.storedBefore !== undefined && block.storedAt < policy.storedBefore;
      const isOver = policy.bytesMax !== undefined && bytes > policy.bytesMax;
      if (!isOld && !isOver) break;
      start = Math.max(start, block.end);
      bytes -= block.bytes;
    }
    old.refill(
      (limit) => this.loadBlocks(stream, head.start, head.end, limit),
      (error) => this.options.events.report(`shard ${this.shard} cannot look for old events: ${messageOf(error)}`),
    );
    return start;
  }

  private async loadBlocks(stream: number, from: number, to: number, limit = 0): Promise<Loaded> {
    const place = this.facts.get(stream);
    return place === undefined ? { blocks: [], whole: false } : this.questions.blocks(place, { from, to }, limit);
  }

  /** A stream as it is now, for a question about it. */
  private asked(stream: number): { readonly place: Place; readonly offsets: Offsets } | undefined {
    if (this.status === "closed") throw this.stale();
    const head = this.state.heads.get(stream);
    const place = this.facts.get(stream);
    if (head === undefined || place === undefined) return undefined;
    return { place, offsets: { from: head.start, to: head.end } };
  }

  private damaged(damage: Damage): void {
    const known = this.damages.some(({ stream, from, to }) => {
      return stream === damage.stream && from === damage.from && to === damage.to;
    });
    if (known) return;
    this.damages.push(damage);
    this.options.events.damaged(damage);
  }

  // ----------------------------------------------------------------------------------------------------------------- end

  async close(): Promise<void> {
    if (this.status === "closed") return;
    const wasOpen = this.status === "open";
    this.status = "closed";
    this.beatTimer?.cancel();
    await Promise.allSettled([this.committing, this.beating]);
    await this.sweeper.stop();
    try {
      if (wasOpen) await releaseShard(this.options.db, this.claim);
    } catch (error) {
      this.options.events.report(`shard ${this.shard} could not be given back: ${messageOf(error)}`);
    }
  }

  private planBeat(): void {
    this.beatTimer = this.options.clock.after(
      beatMs,
      () => {
        this.beating = this.beat().finally(() => {
          this.beating = undefined;
          if (this.status === "open") this.planBeat();
        });
      },
      { background: true },
    );
  }

  private async beat(): Promise<void> {
    // A commit says the same.
    if (this.committing !== undefined) return;
    const { shard, epoch } = this.claim;
    try {
      // It need not last, and must not wait for a majority: a commit waits for it.
      const options = { writeConcern: { w: 1 } };
      const { matchedCount } = await ownersOf(this.options.db).updateOne(
        { _id: shard, epoch },
        [untilStage()],
        options,
      );
      if (matchedCount === 0 && this.status === "open") this.status = "broken";
    } catch (error) {
      this.options.events.report(`shard ${shard} cannot say that it has an owner: ${messageOf(error)}`);
    }
  }

  private collection(name: EntryCollection): Collection<EntryDocument> {
    return this.options.db.collection<EntryDocument>(name);
  }

  private stale(): StoreError {
    return new StoreError("broken", "ESTALE", `shard ${this.shard} is ${this.status}`);
  }

  private refused(code: string, what: string): StoreError {
    return new StoreError("refused", code, `shard ${this.shard}: ${what}`);
  }
}

interface Topic {
  readonly name: string;
  readonly concern: Concern;
}

/** What the entry of a partition says of its topic, as far as it matters here. */
interface TopicEntry {
  readonly name: string;
  readonly settings: { readonly writeConcern?: string };
}

function oldBlockOf(block: BlockView): OldBlock {
  const { firstOffset: first, endOffset: end, storedAt, bytes } = block;
  return { first, end, storedAt, bytes: bytes.length };
}

function largestPayload({ pack, count }: BlockView): number {
  let largest = 0;
  for (let i = 0; i < count; i++) largest = Math.max(largest, pack.payloadLength(i));
  return largest;
}
