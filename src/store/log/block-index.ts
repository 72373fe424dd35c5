// Where the blocks of each stream lie. An entry is a run: one block, or, in sealed segments of very many blocks, neighbouring
// blocks of a stream that lie within 64 KiB of the file, so that a stream of small commits costs one entry per 64 KiB. 48 bytes
// per entry:
//
//   f64 firstOffset, f64 storedAt of the last block, f64 maxTs,
//   u32 segment, u32 count of events, u32 position of the first frame, u32 span from there to the end of the last block,
//   u32 bytes of the blocks, u32 zero

import type { BlockFacts } from "../block-facts.ts";
import { frameBytes } from "./record.ts";

const runBytes = 48;
/** How much of a file a run of a sealed segment may span: what a read of one event reads at most, besides its block. */
const runSpanMax = 64 * 1024;

/** Up to so many blocks in a segment the index is exact: 192 KiB for 64 MiB. */
const runsExactMax = 4096;

const words = runBytes / 8;
const halves = runBytes / 4;

export interface Run {
  readonly stream: number;
  readonly firstOffset: number;
  readonly count: number;
  readonly storedAt: number;
  readonly maxTs: number;
  readonly segment: number;
  readonly position: number;
  readonly span: number;
  readonly bytes: number;
}

/** The run of a single block whose frame stands at `position`. */
export function blockRun(segment: number, position: number, facts: BlockFacts): Run {
  const { stream, firstOffset, count, storedAt, maxTs, bytes } = facts;
  return { stream, firstOffset, count, storedAt, maxTs, segment, position, span: frameBytes + bytes, bytes };
}

/** The runs of one stream in order of offset. */
export class StreamRuns {
  readonly stream: number;
  private f64 = new Float64Array(2 * words);
  private u32 = new Uint32Array(this.f64.buffer);
  private from = 0;
  private to = 0;

  constructor(stream: number) {
    this.stream = stream;
  }

  get length(): number {
    return this.to - this.from;
  }

  firstOffset(index: number): number {
    return this.f64[(this.from + index) * words];
  }

  endOffset(index: number): number {
    return this.firstOffset(index) + this.u32[(this.from + index) * halves + 7];
  }

  storedAt(index: number): number {
    return this.f64[(this.from + index) * words + 1];
  }

  maxTs(index: number): number {
    return this.f64[(this.from + index) * words + 2];
  }

  segment(index: number): number {
    return this.u32[(this.from + index) * halves + 6];
  }

  bytes(index: number): number {
    return this.u32[(this.from + index) * halves + 10];
  }

  get(index: number): Run {
    const half = (this.from + index) * halves;
    return {
      stream: this.stream,
      firstOffset: this.firstOffset(index),
      count: this.u32[half + 7],
      storedAt: this.storedAt(index),
      maxTs: this.maxTs(index),
      segment: this.u32[half + 6],
      position: this.u32[half + 8],
      span: this.u32[half + 9],
      bytes: this.u32[half + 10],
    };
  }

  push(run: Run): void {
    if (this.to * words === this.f64.length) this.makeRoom();
    this.set(this.to++, run);
  }

  /** The first run that ends after `offset`; `length` when there is none. */
  find(offset: number): number {
    let low = 0;
    let high = this.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (this.endOffset(middle) <= offset) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  dropFirst(count: number): void {
    this.from += count;
  }

  /** Joins neighbours from `from` to `to`, in place: a segment may have hundreds of thousands of runs when it is sealed. */
  join(from: number, to: number): void {
    let last = this.from + from;
    for (let at = last + 1; at < this.from + to; at++) {
      if (!this.joinInto(last, at)) this.move(at, ++last);
    }
    this.f64.copyWithin((last + 1) * words, (this.from + to) * words, this.to * words);
    this.to -= this.from + to - (last + 1);
  }

  /** Makes the run at `a` reach over the one at `b`, if they may be one. */
  private joinInto(a: number, b: number): boolean {
    const { f64, u32 } = this;
    const [first, second] = [a * halves, b * halves];
    const span = u32[second + 8] + u32[second + 9] - u32[first + 8];
    if (f64[a * words] + u32[first + 7] !== f64[b * words] || span > runSpanMax) return false;
    f64[a * words + 1] = f64[b * words + 1];
    f64[a * words + 2] = Math.max(f64[a * words + 2], f64[b * words + 2]);
    u32[first + 7] += u32[second + 7];
    u32[first + 9] = span;
    u32[first + 10] += u32[second + 10];
    return true;
  }

  private move(from: number, to: number): void {
    if (from !== to) this.f64.copyWithin(to * words, from * words, (from + 1) * words);
  }

  /** Puts other runs in the place of `count` from `index` on. */
  replace(index: number, count: number, runs: readonly Run[]): void {
    const kept: Run[] = [];
    for (let i = index + count; i < this.length; i++) kept.push(this.get(i));
    this.to = this.from + index;
    for (const run of runs) this.push(run);
    for (const run of kept) this.push(run);
  }

  private set(at: number, run: Run): void {
    const half = at * halves;
    this.f64[at * words] = run.firstOffset;
    this.f64[at * words + 1] = run.storedAt;
    this.f64[at * words + 2] = run.maxTs;
    this.u32[half + 6] = run.segment;
    this.u32[half + 7] = run.count;
    this.u32[half + 8] = run.position;
    this.u32[half + 9] = run.span;
    this.u32[half + 10] = run.bytes;
  }

  /** Twice the runs that live, so that a stream which is trimmed as fast as it grows stays small. */
  private makeRoom(): void {
    const live = this.f64.subarray(this.from * words, this.to * words);
    const grown = new Float64Array(Math.max(2 * words, 2 * live.length));
    grown.set(live);
    this.f64 = grown;
    this.u32 = new Uint32Array(grown.buffer);
    this.to -= this.from;
    this.from = 0;
  }
}

export class BlockIndex {
  private readonly streams = new Map<number, StreamRuns>();
  private readonly liveBytes = new Map<number, number>();

  runs(stream: number): StreamRuns | undefined {
    return this.streams.get(stream);
  }

  streamNumbers(): IterableIterator<number> {
    return this.streams.keys();
  }

  /** Bytes of the blocks in a segment that are still within their stream. */
  live(segment: number): number {
    return this.liveBytes.get(segment) ?? 0;
  }

  /** What begins before the end of its stream is there already (a commit that was written once more) and is left out. */
  add(run: Run): void {
    let runs = this.streams.get(run.stream);
    if (runs === undefined) {
      runs = new StreamRuns(run.stream);
      this.streams.set(run.stream, runs);
    }
    const last = runs.length > 0 ? runs.get(runs.length - 1) : undefined;
    if (last !== undefined && run.firstOffset < last.firstOffset + last.count) return;
    runs.push(run);
    this.count(run.segment, run.bytes);
  }

  /** Forgets the runs of a stream that end at or before `start`, all of them without one, and gives their bytes. */
  drop(stream: number, start: number | null): number {
    const runs = this.streams.get(stream);
    if (runs === undefined) return 0;
    const dead = start === null ? runs.length : runs.find(start);
    let bytes = 0;
    for (let i = 0; i < dead; i++) {
      bytes += runs.bytes(i);
      this.count(runs.segment(i), -runs.bytes(i));
    }
    if (start === null) this.streams.delete(stream);
    else runs.dropFirst(dead);
    return bytes;
  }

  /** Whether a block is read from this segment: it is not trimmed away, and no other segment holds it as well. */
  isIn(segment: number, stream: number, firstOffset: number): boolean {
    const runs = this.streams.get(stream);
    if (runs === undefined) return false;
    const at = runs.find(firstOffset);
    return at < runs.length && runs.firstOffset(at) <= firstOffset && runs.segment(at) === segment;
  }

  /** Bytes of the blocks of a stream. */
  bytes(stream: number): number {
    const runs = this.streams.get(stream);
    let sum = 0;
    for (let i = 0; i < (runs?.length ?? 0); i++) sum += runs?.bytes(i) ?? 0;
    return sum;
  }

  /** All runs in a segment, by stream. */
  inSegment(segment: number): Run[] {
    const found: Run[] = [];
    for (const runs of this.streams.values()) {
      const { from, to } = within(runs, segment);
      for (let i = from; i < to; i++) found.push(runs.get(i));
    }
    return found;
  }

  /** Makes the runs of a sealed segment fewer, where there are very many. */
  join(segment: number): void {
    let count = 0;
    for (const runs of this.streams.values()) {
      const { from, to } = within(runs, segment);
      count += to - from;
    }
    if (count <= runsExactMax) return;
    for (const runs of this.streams.values()) {
      const { from, to } = within(runs, segment);
      if (to - from > 1) runs.join(from, to);
    }
  }

  /** Puts `fresh` in the place of what is known of a segment, by stream in order, and gives the bytes each stream lost by it. */
  replaceSegment(segment: number, fresh: readonly Run[]): Map<number, number> {
    const lost = new Map<number, number>();
    const byStream = new Map<number, Run[]>();
    for (const run of fresh) {
      const runs = byStream.get(run.stream);
      if (runs === undefined) byStream.set(run.stream, [run]);
      else runs.push(run);
    }
    for (const runs of this.streams.values()) {
      const { from, to } = within(runs, segment);
      if (from === to) continue;
      // A trim may have come in between: what was dropped stays dropped.
      const low = runs.firstOffset(from);
      const kept = (byStream.get(runs.stream) ?? []).filter((run) => run.firstOffset + run.count > low);
      let bytes = 0;
      for (let i = from; i < to; i++) bytes += runs.bytes(i);
      runs.replace(from, to - from, kept);
      for (const run of kept) bytes -= run.bytes;
      this.count(segment, -bytes);
      if (bytes !== 0) lost.set(runs.stream, bytes);
    }
    return lost;
  }

  private count(segment: number, bytes: number): void {
    const live = this.live(segment) + bytes;
    if (live === 0) this.liveBytes.delete(segment);
    else this.liveBytes.set(segment, live);
  }
}

/** Offsets rise with segments, so the runs of one segment stand together. */
function within(runs: StreamRuns, segment: number): { from: number; to: number } {
  const from = firstAtOrAfter(runs, segment);
  return { from, to: firstAtOrAfter(runs, segment + 1) };
}

function firstAtOrAfter(runs: StreamRuns, segment: number): number {
  let low = 0;
  let high = runs.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (runs.segment(middle) < segment) low = middle + 1;
    else high = middle;
  }
  return low;
}
