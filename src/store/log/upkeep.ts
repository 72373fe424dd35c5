// What a shard does beside committing: gives sealed segments their footers, feeds the derived index, removes segments in which
// nothing lives, prepares the next file and rewrites segments of which less than half lives. One thing at a time, and none of
// it is needed for a commit to be safe: it may fail or be cut off at any point, and is tried again.
//
// The newest two segments are left as they are: the one that is written to, and the one before it, from which the state can
// be replayed should the snapshot of the newest turn out unreadable.

import type { ShardState } from "../shard-state.ts";
import type { BlockIndex } from "./block-index.ts";
import type { Derived } from "./derived.ts";
import type { Files } from "./files.ts";
import { encodeFooter } from "./footer.ts";
import { type Rewritten, rewrite } from "./rewrite.ts";
import { Segment, type SegmentFiles } from "./segment.ts";
import type { Spare } from "./spare.ts";

export interface UpkeepParts {
  readonly folder: string;
  readonly files: Files;
  readonly lineage: Uint8Array;
  readonly segmentBytes: number;
  readonly segments: Map<number, Segment>;
  readonly index: BlockIndex;
  readonly state: ShardState;
  readonly spare: Spare;
  readonly pool: SegmentFiles;
  readonly derived: Derived;
  report(message: string): void;
  active(): Segment;
}

/** The next file is made once so much of the current one is used: a shard that hardly writes does not cost 64 MiB more. */
const spareFraction = 1 / 64;

export class Upkeep {
  private readonly parts: UpkeepParts;
  private running: Promise<void> | undefined;
  private wanted = false;
  private stopped = false;
  /** Making it failed: not tried again before the next segment begins, or a full disk would be asked at each commit. */
  private spareFailedIn = 0;

  constructor(parts: UpkeepParts) {
    this.parts = parts;
  }

  /** Something changed that may give work. */
  kick(): void {
    if (this.stopped) return;
    this.wanted = true;
    this.running ??= this.run();
  }

  wantsSpare(used: number): boolean {
    if (this.parts.spare.status !== "none" || this.spareFailedIn === this.parts.active().number) return false;
    return used >= this.parts.segmentBytes * spareFraction;
  }

  async settled(): Promise<void> {
    while (this.running !== undefined) await this.running;
  }

  async stop(): Promise<void> {
    this.stopped = true;
    await this.settled();
  }

  private async run(): Promise<void> {
    // Not within the call that kicked.
    await Promise.resolve();
    while (this.wanted && !this.stopped) {
      this.wanted = false;
      await this.attempt("footers", () => this.addFooters());
      await this.attempt("derived index", () => this.feedDerived());
      await this.attempt("removal", () => this.removeDead());
      await this.attempt("next segment", () => this.prepareSpare());
      await this.attempt("rewrite", () => this.rewriteSparse());
    }
    this.running = undefined;
  }

  private async attempt(what: string, step: () => Promise<void>): Promise<void> {
    if (this.stopped) return;
    try {
      await step();
    } catch (error) {
      this.parts.report(`${this.parts.folder}: ${what}: ${String(error)}`);
    }
  }

  private sealed(): Segment[] {
    const active = this.parts.active().number;
    return [...this.parts.segments.values()].filter((segment) => segment.number < active);
  }

  /** Only those that were written by this incarnation: how an older one ended is for recovery and rewriting to judge. */
  private async addFooters(): Promise<void> {
    for (const segment of this.sealed()) {
      if (segment.footed || segment.damaged || !segment.own) continue;
      this.parts.index.join(segment.number);
      const runs = this.parts.index.inSegment(segment.number);
      const { number, end, lastSequence, previous, lastExtended } = segment;
      const footer = encodeFooter({
        lineage: this.parts.lineage,
        segment: number,
        end,
        lastSequence,
        previous,
        extended: lastExtended > 0,
        rewritten: false,
        runs,
      });
      await segment.reading(async (file) => {
        await file.truncate(end + footer.length);
        await file.write(footer, end);
        await file.datasync().catch((error: unknown) => {
          // What this file lost nobody knows, so it is let be. It goes on without a footer until it is rewritten.
          segment.own = false;
          throw error;
        });
      });
      segment.footed = true;
    }
  }

  private async feedDerived(): Promise<void> {
    if (this.sealed().some((segment) => segment.lastExtended > this.parts.derived.writtenThrough)) {
      await this.parts.derived.flush();
    }
    await this.parts.derived.sweep();
  }

  private async removeDead(): Promise<void> {
    const { files, index, segments } = this.parts;
    const newest = this.parts.active().number;
    for (const segment of this.sealed()) {
      if (segment.number >= newest - 1 || index.live(segment.number) > 0) continue;
      segments.delete(segment.number);
      await segment.retire();
      if (segment.damaged) await files.rename(segment.path, segment.path.replace(/\.log$/, ".damaged"));
      else if (this.canRecycle(segment)) await this.recycle(segment);
      else await files.unlink(segment.path);
      if (this.stopped) return;
    }
  }

  private canRecycle(segment: Segment): boolean {
    const { segmentBytes, spare } = this.parts;
    return (
      spare.status === "none" &&
      segment.full >= segmentBytes / 2 &&
      segment.full <= 2 * segmentBytes &&
      !segment.rewritten
    );
  }

  private recycle(segment: Segment): Promise<void> {
    return this.parts.spare.make(this.parts.segmentBytes, { from: segment.path, stopped: () => this.stopped });
  }

  private async prepareSpare(): Promise<void> {
    const active = this.parts.active();
    if (!this.wantsSpare(active.end)) return;
    try {
      await this.parts.spare.make(this.parts.segmentBytes, { stopped: () => this.stopped });
    } catch (error) {
      this.spareFailedIn = active.number;
      throw error;
    }
  }

  private async rewriteSparse(): Promise<void> {
    const newest = this.parts.active().number;
    for (const segment of this.sealed()) {
      if (this.stopped) return;
      if (segment.number >= newest - 1 || segment.damaged) continue;
      if (segment.footed && this.parts.index.live(segment.number) * 2 >= segment.full) continue;
      // The file stays open all the while: whoever opened it by name after the rename would find other bytes there.
      await segment.reading(async () => {
        const copied = await rewrite(segment, {
          ...this.parts,
          lives: (number, frame) => this.parts.index.isIn(number, frame.stream, frame.firstOffset),
          stopped: () => this.stopped,
        });
        if (copied !== undefined) this.replace(segment, copied);
      });
      if (this.parts.segments.get(segment.number) !== segment) await segment.retire();
    }
  }

  private replace(old: Segment, copied: Rewritten): void {
    const { index, pool, segments, state } = this.parts;
    const fresh = new Segment(old.number, old.path, pool);
    fresh.end = copied.end;
    fresh.previous = old.previous;
    fresh.lastSequence = old.lastSequence;
    fresh.lastExtended = copied.extended ? old.lastSequence : 0;
    fresh.footed = true;
    fresh.rewritten = true;
    fresh.full = copied.runs.reduce((sum, run) => sum + run.bytes, 0);
    segments.set(fresh.number, fresh);
    for (const [stream, bytes] of index.replaceSegment(old.number, copied.runs)) {
      const head = state.heads.get(stream);
      if (head !== undefined) head.bytes -= bytes;
    }
  }
}
