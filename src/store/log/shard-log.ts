// One shard on disk: a folder of segments, of which the newest is written to.
//
// Opening always begins a new segment, under a higher epoch, and commits the newest record of the old one again as part of its
// snapshot. That one rule answers several questions at once:
// - An fdatasync that failed may have dropped the pages and marked them clean: a later one succeeds, reading gives the bytes,
//   and after a power cut they are gone. All records but the newest were synced with success before it was written, so
//   committing the newest once more in another file makes everything durable that recovery keeps. Nobody has to know whether
//   a sync failed, which a thread that died or a process that was killed could not tell us anyway.
// - Unfinished writes are never overwritten and damage is never touched, since nothing is written to an old segment.
// - The snapshot carries the epoch: one record and one fdatasync raise it before the shard is used.
//
// A commit is one write and one fdatasync. One that does not fit begins the next segment: then its record is the snapshot of
// that segment, the state before it and the commit in one. A segment gets its footer later, in the background.

import { dirname } from "node:path";
import type { BlockFacts } from "../block-facts.ts";
import type { ShardState } from "../shard-state.ts";
import {
  type Commit,
  type Damage,
  type LatestEntry,
  type ReadResult,
  type ShardStore,
  StoreError,
  type StreamHead,
} from "../store.ts";
import { type BlockIndex, blockRun } from "./block-index.ts";
import { DamageList } from "./damage-list.ts";
import { Derived, type OpenTable } from "./derived.ts";
import { ExtendedScan } from "./extended-scan.ts";
import { codeOf, type Files, isFull, type LogFile } from "./files.ts";
import { MarkWriter } from "./mark.ts";
import { BlockReader } from "./reader.ts";
import { RecordBuffer, recordBytes, recordBytesMax, type StreamEnd } from "./record.ts";
import { type DoubtfulCommit, type Recovered, recover, reportGaps } from "./recovery.ts";
import { Segment, SegmentFiles, segmentPath } from "./segment.ts";
import { encodeState, type Previous } from "./snapshot.ts";
import { Spare } from "./spare.ts";
import { keepUnfinished } from "./unfinished.ts";
import { Upkeep } from "./upkeep.ts";

const emptyCommit: Commit = { blocks: [], puts: [], trims: [] };

export interface ShardLogOptions {
  readonly shard: number;
  readonly folder: string;
  readonly segmentBytes: number;
  readonly files: Files;
  readonly openTable: OpenTable;
  /** Hears what went wrong in the background: nothing is lost by it, and it is tried again. */
  readonly report: (message: string) => void;
  readonly damaged: (damage: Damage) => void;
}

/** The segment that is written to. */
interface Active {
  readonly segment: Segment;
  readonly file: LogFile;
  readonly prepared: boolean;
  /** Grows with the state, or a shard with a large one would write little else. */
  readonly capacity: number;
  /** It has nothing but a state. */
  empty: boolean;
}

export async function openShardLog(options: ShardLogOptions): Promise<ShardLog> {
  const { files, folder } = options;
  const damage = new DamageList(options.shard, options.damaged);
  try {
    await files.makeFolder(folder);
    await files.syncFolder(dirname(folder));
    const pool = new SegmentFiles(files);
    const recovered = await recover(folder, files, pool, damage);
    const log = new ShardLog(options, recovered, pool, damage);
    await log.begin(recovered.previous, recovered.doubt);
    await keepUnfinished(options, recovered.unfinished);
    return log;
  } catch (error) {
    if (error instanceof StoreError) throw error;
    const code = codeOf(error);
    throw new StoreError("broken", code, `shard ${options.shard} could not be opened: ${String(error)}`);
  }
}

export class ShardLog implements ShardStore {
  readonly shard: number;
  readonly epoch: number;
  readonly durability = "fsync";
  private readonly options: ShardLogOptions;
  private readonly state: ShardState;
  private readonly index: BlockIndex;
  private readonly lineage: Uint8Array;
  private readonly damages: DamageList;
  private readonly pool: SegmentFiles;
  private readonly segments = new Map<number, Segment>();
  private readonly spare: Spare;
  private readonly reader: BlockReader;
  private readonly derived: Derived;
  private readonly upkeep: Upkeep;
  private readonly buffer = new RecordBuffer();
  private sequence: number;
  private echo: readonly StreamEnd[] = [];
  private active: Active | undefined;
  private mark: MarkWriter | undefined;
  private committing: Promise<unknown> | undefined;
  private status: "open" | "broken" | "closed" = "open";

  constructor(options: ShardLogOptions, recovered: Recovered, pool: SegmentFiles, damage: DamageList) {
    this.options = options;
    this.shard = options.shard;
    this.epoch = recovered.epoch + 1;
    this.state = recovered.state;
    this.index = recovered.index;
    this.lineage = recovered.lineage;
    this.sequence = recovered.sequence;
    this.damages = damage;
    this.pool = pool;
    for (const segment of recovered.segments) this.segments.set(segment.number, segment);
    this.spare = new Spare(options.folder, options.files);
    this.reader = new BlockReader({
      lineage: this.lineage,
      index: this.index,
      damage,
      segment: (number) => this.segments.get(number),
    });
    const extended = new ExtendedScan(this.segments, this.lineage);
    this.derived = new Derived(options.openTable, {
      lineage: this.lineage,
      sequence: () => this.sequence,
      head: (stream) => this.state.heads.get(stream),
      hasAfter: (sequence) => extended.hasAfter(sequence),
      visitAfter: (sequence, visit) => extended.visitAfter(sequence, visit),
      event: (stream, offset) => this.event(stream, offset),
    });
    this.upkeep = new Upkeep({
      folder: options.folder,
      files: options.files,
      lineage: this.lineage,
      segmentBytes: options.segmentBytes,
      segments: this.segments,
      index: this.index,
      state: this.state,
      spare: this.spare,
      pool,
      derived: this.derived,
      report: options.report,
      active: () => this.activeNow().segment,
    });
  }

  /** Opens the first segment of this epoch. */
  async begin(previous: Previous, doubt: DoubtfulCommit | undefined): Promise<void> {
    await this.spare.adopt();
    this.mark = await MarkWriter.open(this.options);
    // Where records were lost it is not the next number. Its own must not be given again: replay takes what rises.
    if (doubt !== undefined) this.sequence = doubt.sequence - 1;
    try {
      await this.roll(previous, doubt ?? emptyCommit, doubt?.facts ?? []);
    } catch (error) {
      await this.release();
      throw error;
    }
    // Not before the commit in doubt counts again: it may have trimmed what is gone since.
    reportGaps(this.state, this.index, this.damages);
    // Where something is lost, a file without a readable record may be what is missed, under a wrong name.
    if (this.damages.all().length > 0) {
      for (const segment of this.segments.values()) if (!segment.own && segment.end === 0) segment.damaged = true;
    }
    this.upkeep.kick();
  }

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
    return this.damages.all();
  }

  async commit(commit: Commit): Promise<void> {
    if (this.committing !== undefined) throw new Error(`shard ${this.shard}: a second commit while one is in flight`);
    if (this.status !== "open") throw this.stale();
    const facts = this.state.check(commit);
    if (typeof facts === "string") throw new StoreError("refused", "EINVAL", `shard ${this.shard}: ${facts}`);
    const work = this.write(commit, facts);
    this.committing = work;
    try {
      await work;
    } finally {
      this.committing = undefined;
    }
  }

  private async write(commit: Commit, facts: readonly BlockFacts[]): Promise<void> {
    const active = this.activeNow();
    const parts = {
      kind: "commit" as const,
      lineage: this.lineage,
      segment: active.segment.number,
      epoch: this.epoch,
      sequence: this.sequence + 1,
      echo: this.echo,
      blocks: commit.blocks,
      puts: commit.puts,
      trims: commit.trims,
      facts,
    };
    const size = recordBytes(parts);
    if (size > recordBytesMax) throw new StoreError("refused", "EFBIG", `a commit of ${size} bytes`);
    const { segment, file } = active;
    if (this.wantsRoll(active, size)) {
      await this.roll({ segment: segment.number, end: segment.end }, commit, facts);
      this.pool.adopt(segment);
      this.upkeep.kick();
      return;
    }
    this.put(file, this.buffer.encode(parts), segment.end);
    await file.datasync().catch((error: unknown) => this.fail(error, file));
    this.apply(active, segment.end, size, commit, facts);
    if (commit.trims.length > 0 || this.upkeep.wantsSpare(segment.end)) this.upkeep.kick();
  }

  private wantsRoll(active: Active, size: number): boolean {
    if (active.empty) return false;
    return active.segment.end + size > active.capacity || (!active.prepared && this.spare.ready);
  }

  /** Begins the next segment with a commit. The state is as it was before it until all is durable. */
  private async roll(previous: Previous, commit: Commit, facts: readonly BlockFacts[]): Promise<void> {
    const number = Math.max(0, ...this.segments.keys()) + 1;
    const state = encodeState(this.state, previous);
    const bytes = this.buffer.encode({
      kind: "snapshot",
      lineage: this.lineage,
      segment: number,
      epoch: this.epoch,
      sequence: this.sequence + 1,
      state,
      echo: [],
      blocks: commit.blocks,
      puts: commit.puts,
      trims: commit.trims,
      facts,
    });
    const { file, prepared } = await this.newFile(number);
    try {
      this.put(file, bytes, 0);
    } catch (error) {
      // Full: the file holds a part of the record at most, and nobody shall find it.
      await file.close();
      await this.options.files.unlink(file.path).catch((trouble: unknown) => this.fail(trouble, file));
      throw error;
    }
    await file.datasync().catch((error: unknown) => this.fail(error, file));
    await this.options.files.syncFolder(this.options.folder).catch((error: unknown) => this.fail(error, file));
    const segment = new Segment(number, file.path, this.pool, file);
    segment.previous = previous;
    segment.own = true;
    this.segments.set(number, segment);
    const capacity = Math.min(Math.max(this.options.segmentBytes, 4 * state.length), recordBytesMax);
    this.active = { segment, file, prepared, capacity, empty: true };
    this.apply(this.active, 0, bytes.length, commit, facts);
  }

  private async newFile(number: number): Promise<{ file: LogFile; prepared: boolean }> {
    const path = segmentPath(this.options.folder, number);
    try {
      return await this.spare.take(path);
    } catch (error) {
      if (isFull(error)) throw new StoreError("refused", codeOf(error), `no room for ${path}`);
      throw this.broken(error, path);
    }
  }

  /** Where the disk is full nothing but a part of the record was written, and the next one is written over it. */
  private put(file: LogFile, bytes: Uint8Array, position: number): void {
    try {
      file.writeNow(bytes, position);
    } catch (error) {
      if (isFull(error)) throw new StoreError("refused", codeOf(error), `no room in ${file.path}`);
      throw this.broken(error, file.path);
    }
  }

  private stale(): StoreError {
    return new StoreError("broken", "ESTALE", `shard ${this.shard} is ${this.status}`);
  }

  private fail(error: unknown, file: LogFile): never {
    throw this.broken(error, file.path);
  }

  private broken(error: unknown, path: string): StoreError {
    this.status = "broken";
    return new StoreError("broken", codeOf(error), `${path}: ${String(error)}`);
  }

  /** The commit is durable: from here on it is seen. */
  private apply(active: Active, position: number, size: number, commit: Commit, facts: readonly BlockFacts[]): void {
    const { segment } = active;
    facts.forEach((fact, i) => {
      this.index.add(blockRun(segment.number, position + this.buffer.framesAt[i], fact));
      if (fact.extended) segment.lastExtended = this.sequence + 1;
    });
    this.state.apply(commit, facts, (stream, start) => this.index.drop(stream, start));
    for (const [stream] of commit.trims) this.derived.trimmed(stream);
    this.echo = facts.map((fact) => ({ stream: fact.stream, end: fact.firstOffset + fact.count }));
    this.sequence++;
    segment.lastSequence = this.sequence;
    segment.end = position + size;
    segment.full = segment.end;
    if (position > 0 || facts.length + commit.puts.length + commit.trims.length > 0) active.empty = false;
    const { lineage, sequence, epoch } = this;
    this.mark?.write({ lineage, segment: segment.number, end: segment.end, sequence, epoch });
  }

  async read(stream: number, range: { from: number; to: number; bytesMax: number }): Promise<ReadResult> {
    if (this.status === "closed") throw this.stale();
    const head = this.state.heads.get(stream);
    if (head === undefined) return { blocks: [], next: range.from };
    return this.reader.read(stream, { start: head.start, end: head.end }, range);
  }

  async findTs(stream: number, ts: number): Promise<number> {
    for (let from = 0; ; ) {
      const head = this.state.heads.get(stream);
      const runs = this.index.runs(stream);
      if (head === undefined) return 0;
      if (runs === undefined) return head.end;
      let at = runs.find(Math.max(from, head.start));
      while (at < runs.length && runs.maxTs(at) < ts) at++;
      if (at >= runs.length) return head.end;
      const to = runs.endOffset(at);
      const found = await this.findTsWithin(stream, ts, { from: Math.max(runs.firstOffset(at), head.start), to });
      if (found !== undefined) return found;
      // Its events are below the start, or did not check out.
      from = to;
    }
  }

  private async findTsWithin(
    stream: number,
    ts: number,
    range: { from: number; to: number },
  ): Promise<number | undefined> {
    const { blocks } = await this.read(stream, { ...range, bytesMax: Number.POSITIVE_INFINITY });
    for (const block of blocks) {
      if (block.maxTs < ts) continue;
      for (let i = Math.max(0, range.from - block.firstOffset); i < block.count; i++) {
        if (block.ts(i) >= ts) return block.firstOffset + i;
      }
    }
    return undefined;
  }

  async findId(stream: number, id: string): Promise<number | undefined> {
    if (this.status === "closed") throw this.stale();
    return this.derived.findId(stream, id);
  }

  async latest(
    stream: number,
    query: { keys: readonly string[] } | { after: string; limit: number },
  ): Promise<readonly LatestEntry[]> {
    if (this.status === "closed") throw this.stale();
    return this.derived.latest(stream, query);
  }

  pruneTo(stream: number, policy: { storedBefore?: number; bytesMax?: number }): number {
    const head = this.state.heads.get(stream);
    if (head === undefined) return 0;
    const runs = this.index.runs(stream);
    let start = head.start;
    let bytes = head.bytes;
    for (let i = 0; runs !== undefined && i < runs.length; i++) {
      const old = policy.storedBefore !== undefined && runs.storedAt(i) < policy.storedBefore;
      const over = policy.bytesMax !== undefined && bytes > policy.bytesMax;
      if (!old && !over) break;
      start = runs.endOffset(i);
      bytes -= runs.bytes(i);
    }
    return start;
  }

  /** Resolves when nothing is left to do in the background: for tests, and before a folder is copied. */
  settled(): Promise<void> {
    return this.upkeep.settled();
  }

  async close(): Promise<void> {
    this.status = "closed";
    // Whoever asked for the commit hears how it ended.
    await Promise.allSettled([this.committing]);
    this.status = "closed";
    await this.release();
  }

  private async release(): Promise<void> {
    await this.upkeep.stop();
    await this.derived.close();
    await this.mark?.close();
    for (const segment of this.segments.values()) await segment.retire();
  }

  private async event(stream: number, offset: number): Promise<{ id?: string } | undefined> {
    const { blocks } = await this.read(stream, { from: offset, to: offset + 1, bytesMax: 1 });
    const block = blocks[0];
    if (block === undefined || offset < block.firstOffset || offset >= block.endOffset) return undefined;
    const id = block.pack.id(offset - block.firstOffset);
    return id === undefined ? {} : { id };
  }

  private activeNow(): Active {
    if (this.active === undefined) throw new Error(`shard ${this.shard} has no segment yet`);
    return this.active;
  }
}
