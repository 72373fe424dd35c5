// Finds out what a shard holds. It reads and never writes: unfinished writes are left where they are, and the shard goes on in
// a new segment (shard-log.ts).
//
// The newest segment with a good snapshot gives the state; its records, and those of segments after it whose snapshot is
// unreadable, are replayed on top. Older segments give their footer, or are scanned for their blocks.
//
// One commit is in flight at a time, so record n is durable before n + 1 is written. Therefore
// - a bad record with a good head after it was acknowledged: damage. It is reported, its streams keep their offsets;
// - a bad record with nothing after it was acknowledged if mark.ts says so: damage as well. Otherwise it is an unfinished write: as if
//   it had never been, but said, and its bytes are kept (unfinished.ts);
// - a good record with nothing after it is in doubt: its fdatasync may have failed, or never have been called. It is given
//   back apart from the rest, to be committed once more where it is certain to be durable.

import { randomBytes } from "node:crypto";
import { basename, join } from "node:path";
import type { BlockFacts } from "../block-facts.ts";
import { ShardState } from "../shard-state.ts";
import { type Put, StoreError, type Trim } from "../store.ts";
import { BlockIndex } from "./block-index.ts";
import type { DamageList } from "./damage-list.ts";
import type { Files } from "./files.ts";
import { factsOf, readSnapshot, reportBlock, reportStretch, runOf } from "./found.ts";
import { type Mark, markPath, readMark } from "./mark.ts";
import { OlderSegments } from "./older-segments.ts";
import { lineageBytes } from "./record.ts";
import { isIntact, type ScannedRecord, scanSegment } from "./scan.ts";
import { Segment, type SegmentFiles, segmentNumber, segmentPath } from "./segment.ts";
import { decodeState, type Previous } from "./snapshot.ts";
import { findUnfinished, type Unfinished } from "./unfinished.ts";

/** An event takes at least a length and one byte of payload: so many events at most were in the bytes that are lost. */
const eventBytesMin = 5;

/** A commit that is complete, but perhaps not durable. */
export interface DoubtfulCommit {
  readonly sequence: number;
  readonly puts: readonly Put[];
  readonly trims: readonly Trim[];
  readonly blocks: readonly Uint8Array[];
  readonly facts: readonly BlockFacts[];
}

export interface Recovered {
  readonly lineage: Uint8Array;
  /** The highest epoch seen, 0 in a new shard. */
  readonly epoch: number;
  /** Of the last commit in `state`. */
  readonly sequence: number;
  readonly state: ShardState;
  readonly index: BlockIndex;
  /** Every segment file there is, in order. */
  readonly segments: readonly Segment[];
  readonly previous: Previous;
  readonly doubt: DoubtfulCommit | undefined;
  /** What was written behind the last record and is none. */
  readonly unfinished: readonly Unfinished[];
}

export async function recover(
  folder: string,
  files: Files,
  pool: SegmentFiles,
  damage: DamageList,
): Promise<Recovered> {
  const segments = await findSegments(folder, files, pool);
  try {
    return await recoverFrom(folder, segments, await readMark(folder, files), damage);
  } catch (error) {
    // It is tried again and again, and each time with files of its own.
    for (const segment of segments) await segment.retire();
    throw error;
  }
}

async function recoverFrom(
  folder: string,
  segments: readonly Segment[],
  mark: Mark | undefined,
  damage: DamageList,
): Promise<Recovered> {
  const base = await findBase(segments, mark);
  if (base === undefined) {
    await refuseUnreadable(folder, segments, mark);
    return {
      lineage: Uint8Array.from(randomBytes(lineageBytes)),
      epoch: 0,
      sequence: 0,
      state: new ShardState(),
      index: new BlockIndex(),
      segments,
      previous: { segment: 0, end: 0 },
      doubt: undefined,
      unfinished: [],
    };
  }
  const lineage = base.snapshot.record.lineage();
  if (mark !== undefined && mark.segment > (segments.at(-1)?.number ?? 0)) {
    const what = `${segmentPath(folder, mark.segment)} is missing, though ${markPath(folder)} says that commit ${mark.sequence} is in it`;
    throw new StoreError("broken", "EDAMAGED", `${what}: restore it, or remove the latter to go on without it`);
  }
  const older = new OlderSegments(lineage, damage, mark);
  for (const segment of segments) if (segment.number < base.segment.number) await older.read(segment, segments);
  const replay = new Replay(base.snapshot, lineage, older.index, damage, mark);
  for (const segment of segments) if (segment.number >= base.segment.number) await replay.read(segment);
  base.segment.previous = decodeState(base.snapshot.record.state()).previous;
  const found = replay.finish(segments);
  const unfinished: Unfinished[] = [];
  for (const segment of segments) {
    if (segment.number < base.segment.number || segment.damaged) continue;
    const last = segment.number === found.last.segment;
    const left = await findUnfinished(segment, last ? found.last.end : segment.end, lineage);
    if (left !== undefined) unfinished.push(left);
  }
  return { lineage, segments, ...found, unfinished };
}

/** What ends in .tmp is a copy that somebody did not finish. */
async function findSegments(folder: string, files: Files, pool: SegmentFiles): Promise<Segment[]> {
  const segments: Segment[] = [];
  for (const name of await files.list(folder)) {
    if (name.endsWith(".tmp")) await files.unlink(join(folder, name));
    const number = segmentNumber(name);
    if (number !== undefined) segments.push(new Segment(number, segmentPath(folder, number), pool));
  }
  return segments.sort((a, b) => a.number - b.number);
}

interface Base {
  readonly segment: Segment;
  readonly snapshot: ScannedRecord;
}

async function findBase(segments: readonly Segment[], mark: Mark | undefined): Promise<Base | undefined> {
  for (const segment of segments.toReversed()) {
    const snapshot = await readSnapshot(segment, mark);
    if (snapshot !== undefined) return { segment, snapshot };
  }
  return undefined;
}

/** Files without one readable record are the unfinished beginning of a shard. Anything else must not be taken for an empty one. */
async function refuseUnreadable(folder: string, segments: readonly Segment[], mark: Mark | undefined): Promise<void> {
  if (mark !== undefined) {
    const what = `${folder}: no segment begins with a readable snapshot, though ${markPath(folder)} says that commit ${mark.sequence} was stored`;
    throw new StoreError("broken", "EDAMAGED", what);
  }
  for (const segment of segments) {
    const found = await segment.reading(async (file) => {
      for await (const _ of scanSegment(file, { segment: segment.number })) return true;
      return false;
    });
    if (!found) continue;
    const what = `${folder}: no segment begins with a readable snapshot, though ${basename(segment.path)} has records`;
    throw new StoreError("broken", "EDAMAGED", what);
  }
}

/** The base and what is newer: state and blocks. */
class Replay {
  private readonly state: ShardState;
  private readonly index: BlockIndex;
  private readonly lineage: Uint8Array;
  private readonly damage: DamageList;
  private readonly base: number;
  private sequence: number;
  private epoch: number;
  /** The newest record: nothing is known of its durability until one follows. */
  private held: { segment: Segment; scanned: ScannedRecord } | undefined;
  private previous: Previous = { segment: 0, end: 0 };
  /** Bytes in which records were lost since the last good one; their streams are named by the next echo. */
  private lostBytes = 0;
  /** The last record had frames that could not be read: their streams are named by the echo of the next one. */
  private torn = false;
  /** Streams of which nothing was seen since several records were lost, with the bytes of those records. */
  private readonly unseen = new Map<number, number>();
  private readonly mark: Mark | undefined;

  constructor(
    snapshot: ScannedRecord,
    lineage: Uint8Array,
    index: BlockIndex,
    damage: DamageList,
    mark: Mark | undefined,
  ) {
    this.mark = mark;
    const decoded = decodeState(snapshot.record.state());
    this.state = decoded.state;
    this.base = snapshot.record.head.segment;
    this.index = index;
    this.lineage = lineage;
    this.damage = damage;
    this.sequence = snapshot.record.head.sequence - 1;
    this.epoch = snapshot.record.head.epoch;
    // The older segments know nothing of trims.
    for (const stream of [...index.streamNumbers()]) index.drop(stream, this.state.heads.get(stream)?.start ?? null);
  }

  async read(segment: Segment): Promise<void> {
    await segment.reading(async (file) => {
      for await (const item of scanSegment(file, { segment: segment.number, lineage: this.lineage })) {
        if (item.type === "record") {
          const { kind, epoch, sequence } = item.record.head;
          this.epoch = Math.max(this.epoch, epoch);
          // The base is the newest good snapshot, so this one is the unfinished write of a segment that never began. It may
          // carry the sequence of the commit that is in doubt, and must not take its place.
          if (kind === "snapshot" && segment.number > this.base) continue;
          if (sequence <= this.sequence) continue;
        }
        if (this.held !== undefined) this.take(this.held.segment, this.held.scanned);
        this.held = undefined;
        if (item.type === "record") this.held = { segment, scanned: item };
        else this.lose(segment, item.from, item.to);
      }
    });
  }

  /** `last` is where the records end that were read, whether or not they count. */
  finish(segments: readonly Segment[]): Omit<Recovered, "lineage" | "segments" | "unfinished"> & { last: Previous } {
    const { held } = this;
    const doubt = this.judgeLast();
    const last =
      doubt === undefined || held === undefined
        ? this.previous
        : { segment: held.segment.number, end: held.scanned.position + held.scanned.record.head.totalBytes };
    this.loseMarked(segments);
    for (const [stream, bytes] of this.unseen) {
      // Nobody can say how many events of this stream were lost. An offset must not be given twice, so it skips as many as
      // could have been there.
      this.raise(stream, (this.state.heads.get(stream)?.end ?? 0) + Math.floor(bytes / eventBytesMin));
    }
    const { state, index } = this;
    for (const [stream, head] of state.heads) head.bytes = index.bytes(stream);
    return { state, index, sequence: this.sequence, epoch: this.epoch, previous: this.previous, doubt, last };
  }

  /** What mark.ts says was stored and none of what was read is. */
  private loseMarked(segments: readonly Segment[]): void {
    const { mark } = this;
    if (mark === undefined) return;
    this.epoch = Math.max(this.epoch, mark.epoch);
    const known = Math.max(this.sequence, this.held?.scanned.record.head.sequence ?? 0);
    const segment = segments.find(({ number }) => number === mark.segment);
    if (mark.sequence <= known || segment === undefined) return;
    const from = Math.min(segment.end, mark.end);
    reportStretch(this.damage, segment, from, mark.end, "stored, and not readable any more");
    segment.end = mark.end;
    // Those before it may have lost their ends.
    const bytes = this.lostBytes + mark.end - from;
    for (const stream of this.state.heads.keys()) this.unseen.set(stream, bytes);
    this.sequence = mark.sequence;
    this.previous = { segment: segment.number, end: mark.end };
  }

  private judgeLast(): DoubtfulCommit | undefined {
    if (this.held === undefined) return undefined;
    const { segment, scanned } = this.held;
    const { sequence } = scanned.record.head;
    const marked = this.mark?.sequence ?? -1;
    if (sequence < marked || (sequence === marked && !isIntact(scanned))) {
      this.take(segment, scanned);
      this.forgetNone(scanned);
      return undefined;
    }
    this.previous = { segment: segment.number, end: scanned.position };
    segment.end = scanned.position;
    this.bridge(scanned);
    if (!isIntact(scanned)) return undefined;
    return {
      sequence: scanned.record.head.sequence,
      puts: scanned.record.puts(),
      trims: scanned.record.trims(),
      blocks: scanned.good.map((frame) => scanned.record.block(frame)),
      facts: scanned.good.map((frame) => factsOf(scanned, frame)),
    };
  }

  /** Behind a frame that cannot be read there may have been any stream, and no record follows whose echo would tell. */
  private forgetNone({ whole, good, bad, record }: ScannedRecord): void {
    if (whole) return;
    const named = new Set([...good, ...bad].map(({ stream }) => stream));
    for (const stream of this.state.heads.keys()) {
      if (!named.has(stream)) this.unseen.set(stream, record.head.totalBytes);
    }
  }

  private lose(segment: Segment, from: number, to: number): void {
    reportStretch(this.damage, segment, from, to);
    this.lostBytes += to - from;
    segment.end = to;
  }

  /** A record that was acknowledged. */
  private take(segment: Segment, scanned: ScannedRecord): void {
    const { record, position } = scanned;
    this.bridge(scanned);
    const facts = scanned.good.map((frame) => factsOf(scanned, frame));
    scanned.good.forEach((frame, i) => {
      this.index.add(runOf(segment, scanned, frame, facts[i]));
      if (frame.extended) segment.lastExtended = record.head.sequence;
    });
    for (const frame of scanned.bad) {
      reportBlock(this.damage, segment, scanned, frame);
      this.raise(frame.stream, frame.firstOffset + frame.count);
    }
    this.state.apply({ puts: record.puts(), trims: record.trims() }, facts, (stream, start) =>
      this.index.drop(stream, start),
    );
    this.sequence = record.head.sequence;
    segment.lastSequence = this.sequence;
    segment.end = position + record.head.totalBytes;
    this.previous = { segment: segment.number, end: segment.end };
    this.torn = !scanned.whole;
    if (!scanned.whole) this.lose(segment, position, segment.end);
  }

  /** Before a record counts: gives the streams of lost records the offsets that they had. */
  private bridge(scanned: ScannedRecord): void {
    const missing = scanned.record.head.sequence - this.sequence - 1;
    if (missing === 0 && this.lostBytes === 0 && this.unseen.size === 0) return;
    // An echo names the streams of one record.
    if (missing + (this.torn ? 1 : 0) > 1)
      for (const stream of this.state.heads.keys()) this.unseen.set(stream, this.lostBytes);
    this.lostBytes = 0;
    for (const { stream, end } of scanned.record.echo()) {
      this.raise(stream, end);
      this.unseen.delete(stream);
    }
    for (const frame of [...scanned.good, ...scanned.bad]) {
      this.raise(frame.stream, frame.firstOffset);
      this.unseen.delete(frame.stream);
    }
  }

  /** Moves the end of a stream over offsets whose events are lost. */
  private raise(stream: number, end: number): void {
    const head = this.state.heads.get(stream);
    if (head === undefined) this.state.heads.set(stream, { start: 0, end, lastStoredAt: 0, bytes: 0 });
    else head.end = Math.max(head.end, end);
  }
}

/** Blocks follow each other without a gap, so a gap in the index is what damage left, in whichever file and however long ago. */
export function reportGaps(state: ShardState, index: BlockIndex, damage: DamageList): void {
  for (const [stream, head] of state.heads) {
    const runs = index.runs(stream);
    let at = head.start;
    for (let i = 0; runs !== undefined && i < runs.length; i++) {
      if (runs.firstOffset(i) > at) damage.addGap(stream, at, runs.firstOffset(i));
      at = Math.max(at, runs.endOffset(i));
    }
    if (at < head.end) damage.addGap(stream, at, head.end);
  }
}
