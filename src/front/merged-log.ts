// The log of a topic as one sequence: the partitions merged by (ts, partition, offset). Each partition's own order always
// holds, also where its timestamps fall: the next event is the one with the lowest (ts, partition) among the first events left of each
// partition. Lines are never parsed: a page says where each ends, its ts and its offset.
//
// In memory there is at most one page per partition, and one more under way with `ahead`.

import type { Page } from "../actors/messages.ts";
import { type Failure, failure, isFailure } from "../protocol/failure.ts";
import type { System } from "../runtime/system.ts";
import type { LaneRange } from "./log-range.ts";
import type { RoutePartition } from "./router.ts";

export interface MergedLogOptions {
  readonly system: System;
  /** By partition, without a gap. */
  readonly ranges: readonly LaneRange[];
  readonly fromTs?: number;
  readonly toTs?: number;
  readonly pageEventsMax: number;
  /** Ask for the next page while one is being written. */
  readonly ahead: boolean;
}

/** Neighbouring lines of one page, each with its newline: `byteLength` bytes from `start`. */
export interface Run {
  readonly page: Page;
  readonly from: number;
  readonly to: number;
  readonly start: number;
  readonly byteLength: number;
}

export function runBytes({ page, start, byteLength }: Run): Uint8Array {
  return page.lines.subarray(start, start + byteLength);
}

const comma = 0x2c;

/** Copies the lines of runs with a comma in place of each newline but the last, which is left out. */
export function copyJoined(runs: readonly Run[], target: Uint8Array, targetAt: number): void {
  let at = targetAt;
  runs.forEach((run, index) => {
    const { page, from, to, start } = run;
    const last = index === runs.length - 1;
    const lines = runBytes(run);
    target.set(last ? lines.subarray(0, -1) : lines, at);
    for (let line = from; line < (last ? to - 1 : to); line++) target[at + page.ends[line] - start - 1] = comma;
    at += lines.length;
  });
}

const pageBytesMax = 256 * 1024;
const pageBytesMin = 32 * 1024;
/** Of the pages of all partitions together. */
const pagesBytesMax = 4 * 1024 * 1024;

interface Lane {
  readonly partition: RoutePartition;
  readonly to: number;
  /** Where the page after the one held begins. */
  next: number;
  done: boolean;
  page: Page | undefined;
  /** The first line of the page not yet given out. */
  index: number;
  asked: Promise<Page | Failure> | undefined;
}

export class MergedLog {
  private readonly options: MergedLogOptions;
  private readonly lanes: readonly Lane[];
  private readonly pageBytes: number;

  constructor(options: MergedLogOptions) {
    this.options = options;
    const share = Math.floor(pagesBytesMax / options.ranges.length);
    this.pageBytes = Math.max(pageBytesMin, Math.min(pageBytesMax, share));
    this.lanes = options.ranges.map(({ partition, from, to }) => ({
      partition,
      to,
      next: from,
      done: from >= to,
      page: undefined,
      index: 0,
      asked: undefined,
    }));
  }

  /** Everything in the ranges was given out. */
  get ended(): boolean {
    return this.lanes.every((lane) => lane.page === undefined && lane.done);
  }

  /** Per partition the offset to go on from. */
  position(): number[] {
    return this.lanes.map(({ page, index, next }) => (page === undefined ? next : page.offsets[index]));
  }

  /** Resolves when `take` can go on. */
  async fill(): Promise<Failure | undefined> {
    const results = await Promise.all(this.lanes.map((lane) => this.fillLane(lane)));
    return results.find((result) => result !== undefined);
  }

  /** The next lines, in order, at most so many events and about so many bytes. Undefined: fill first, or it is the end. */
  take(eventsMax: number, bytesMax: number): Run | undefined {
    let first: Lane | undefined;
    let second: Lane | undefined;
    for (const lane of this.lanes) {
      if (lane.page === undefined) {
        if (lane.done) continue;
        return undefined;
      }
      // Lanes stand in the order of partitions, so of equals the earlier one stays in front.
      if (first === undefined || headTs(lane) < headTs(first)) {
        second = first;
        first = lane;
      } else if (second === undefined || headTs(lane) < headTs(second)) {
        second = lane;
      }
    }
    if (first?.page === undefined) return undefined;
    const { page, index: from } = first;
    const to = Math.min(runEnd(first, page, second), from + eventsMax, bytesEnd(page, from, bytesMax));
    first.index = to;
    if (to === page.count) first.page = undefined;
    const start = startOfLine(page, from);
    return { page, from, to, start, byteLength: page.ends[to - 1] - start };
  }

  private async fillLane(lane: Lane): Promise<Failure | undefined> {
    // A page may be empty and yet not the last: what was walked lay outside of fromTs..toTs.
    while (lane.page === undefined && !lane.done) {
      const page = await (lane.asked ?? this.ask(lane));
      lane.asked = undefined;
      if (isFailure(page)) return page;
      // A partition that neither gives nor moves has nothing stored up to `to`.
      lane.done = page.done || (page.count === 0 && page.next <= lane.next);
      lane.next = Math.max(lane.next, page.next);
      if (page.count > 0) {
        lane.page = page;
        lane.index = 0;
      }
      if (this.options.ahead && !lane.done) lane.asked = this.ask(lane);
    }
    return undefined;
  }

  private ask(lane: Lane): Promise<Page | Failure> {
    const { system, fromTs, toTs, pageEventsMax } = this.options;
    return system
      .request(lane.partition.address, {
        type: "scan",
        from: lane.next,
        to: lane.to,
        bytesMax: this.pageBytes,
        eventsMax: pageEventsMax,
        ...(fromTs === undefined ? {} : { fromTs }),
        ...(toTs === undefined ? {} : { toTs }),
      })
      .catch((error: Error) => failure("internal", `reading failed: ${error.message}`));
  }
}

function headTs(lane: Lane): number {
  return lane.page === undefined ? Number.POSITIVE_INFINITY : lane.page.ts[lane.index];
}

/** How far the lane goes before the one behind it comes first. */
function runEnd(lane: Lane, page: Page, behind: Lane | undefined): number {
  if (behind === undefined) return page.count;
  const limit = headTs(behind);
  const wins = lane.partition.partition < behind.partition.partition;
  let to = lane.index + 1;
  while (to < page.count && (page.ts[to] < limit || (wins && page.ts[to] === limit))) to++;
  return to;
}

/** At least one line, and the one that passes the bound. */
function bytesEnd(page: Page, from: number, bytesMax: number): number {
  const limit = startOfLine(page, from) + bytesMax;
  if (page.ends[page.count - 1] <= limit) return page.count;
  let to = from + 1;
  while (to < page.count && page.ends[to - 1] < limit) to++;
  return to;
}

function startOfLine(page: Page, line: number): number {
  return line === 0 ? 0 : page.ends[line - 1];
}
