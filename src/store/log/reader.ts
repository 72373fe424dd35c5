// Reads blocks through the index. A read plans with what the index says at that moment and holds on to the file, so a rewrite
// or a deletion meanwhile does not touch it; it never waits for a writer and no writer waits for it.

import { basename } from "node:path";
import { BlockView } from "../../protocol/block.ts";
import { type ReadResult, StoreError } from "../store.ts";
import type { BlockIndex, Run, StreamRuns } from "./block-index.ts";
import type { DamageList } from "./damage-list.ts";
import { codeOf } from "./files.ts";
import { align8, blockChecksOut, lineageBytes, readFrame, readHead } from "./record.ts";
import type { Segment } from "./segment.ts";

/** Neighbouring runs are read in one go, up to this much and over gaps of this much. */
const groupBytesMax = 1024 * 1024;
const groupGapMax = 64 * 1024;

export interface ReaderParts {
  readonly lineage: Uint8Array;
  readonly index: BlockIndex;
  readonly damage: DamageList;
  segment(number: number): Segment | undefined;
}

export interface ReadRange {
  readonly from: number;
  readonly to: number;
  readonly bytesMax: number;
}

export class BlockReader {
  private readonly parts: ReaderParts;

  constructor(parts: ReaderParts) {
    this.parts = parts;
  }

  async read(stream: number, head: { start: number; end: number }, range: ReadRange): Promise<ReadResult> {
    const blocks: BlockView[] = [];
    const limit = Math.min(range.to, head.end);
    let bytes = 0;
    let at = Math.max(range.from, head.start);
    if (at >= limit) return { blocks, next: range.from };
    while (at < limit && (blocks.length === 0 || bytes < range.bytesMax)) {
      const runs = this.parts.index.runs(stream);
      const first = runs?.find(at) ?? 0;
      if (runs === undefined || first >= runs.length || runs.firstOffset(first) >= limit) {
        // What was here is lost (damage() says so), or went with the stream.
        at = limit;
        break;
      }
      const group = groupOf(runs, first, { to: limit, bytesMax: range.bytesMax - bytes });
      for (const block of await this.readGroup(group)) {
        if (block.endOffset <= at) continue;
        if (block.firstOffset >= limit || (blocks.length > 0 && bytes >= range.bytesMax)) {
          return { blocks, next: at };
        }
        blocks.push(block);
        bytes += block.bytes.length;
        at = block.endOffset;
      }
      // Blocks at the end of the group that did not check out are behind us as well.
      const last = group[group.length - 1];
      at = Math.max(at, last.firstOffset + last.count);
    }
    return { blocks, next: at };
  }

  /** The good blocks of runs that lie in one segment near each other. */
  private async readGroup(group: readonly Run[]): Promise<BlockView[]> {
    const [{ segment: number, position }] = group;
    const segment = this.parts.segment(number);
    if (segment === undefined) throw new Error(`the index names segment ${number}, which is not there`);
    const last = group[group.length - 1];
    const target = Buffer.allocUnsafeSlow(last.position + last.span - position);
    const got = await segment
      .reading((file) => file.read(target, position))
      .catch((error: unknown) => {
        throw new StoreError("refused", codeOf(error), `${segment.path} could not be read: ${String(error)}`);
      });
    const bytes = target.subarray(0, got);
    const blocks: BlockView[] = [];
    for (const run of group) this.walk(segment, run, bytes, position, blocks);
    return blocks;
  }

  /** Goes from frame to frame through one run; `bytes` begin at `base` of the file. */
  private walk(segment: Segment, run: Run, bytes: Buffer, base: number, blocks: BlockView[]): void {
    const end = run.position + run.span - base;
    let at: number | undefined = run.position - base;
    let offset = run.firstOffset;
    while (at !== undefined && at < end) {
      const frame = readFrame(bytes, at);
      if (frame === undefined) {
        at = this.nextFrames(bytes, at, base, "search");
        continue;
      }
      if (frame.stream === run.stream) {
        if (frame.firstOffset > offset) this.lost(segment, run, offset, frame.firstOffset);
        offset = frame.firstOffset + frame.count;
        if (blockChecksOut(bytes, frame)) {
          blocks.push(new BlockView(bytes.subarray(frame.blockAt, frame.blockAt + frame.blockBytes)));
        } else {
          this.lost(segment, run, frame.firstOffset, offset);
        }
      }
      at = frame.blockAt + frame.blockBytes;
      if (frame.left === 0 && at < end) at = this.nextFrames(bytes, at, base, "here");
    }
    if (offset < run.firstOffset + run.count) this.lost(segment, run, offset, run.firstOffset + run.count);
  }

  /** Where the frames of the next record with blocks begin: the record stands right here, or has to be searched for. */
  private nextFrames(bytes: Buffer, from: number, base: number, how: "here" | "search"): number | undefined {
    let at = align8(base + from) - base;
    let searching = how === "search";
    for (;;) {
      if (searching) {
        const found = bytes.indexOf(this.parts.lineage, at + lineageBytes);
        if (found < 0) return undefined;
        at = found - lineageBytes;
      }
      const head = readHead(bytes, at, this.parts.lineage);
      if (head === undefined || typeof head === "number") {
        searching = true;
        at += 8;
        continue;
      }
      if (head.blockCount > 0) return at + head.headBytes;
      at += head.totalBytes;
      searching = false;
    }
  }

  private lost(segment: Segment, run: Run, from: number, to: number): void {
    segment.damaged = true;
    this.parts.damage.add({
      place: `${basename(segment.path)} ${run.position}..${run.position + run.span}`,
      reason: "a block does not check out",
      stream: run.stream,
      from,
      to,
    });
  }
}

function groupOf(runs: StreamRuns, first: number, limit: { to: number; bytesMax: number }): Run[] {
  const group = [runs.get(first)];
  const [{ segment, position }] = group;
  let last = group[0];
  let bytes = last.bytes;
  for (let i = first + 1; i < runs.length && bytes < limit.bytesMax; i++) {
    const run = runs.get(i);
    const near = run.position - (last.position + last.span) <= groupGapMax;
    const small = run.position + run.span - position <= groupBytesMax;
    if (run.segment !== segment || !near || !small || run.firstOffset >= limit.to) break;
    group.push(run);
    bytes += run.bytes;
    last = run;
  }
  return group;
}
