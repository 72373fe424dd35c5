// Attempts that ended and are not durable yet. What says attempt n + 1 leaves only when the store holds "n attempts ended", so that
// over a crash the number never falls (G6). Until then an event that is up for delivery waits here.
//
// The cursor is written whole, so one commit covers all that ended before it was built: `written` when it is, `durable` when it is
// over. There is one such commit at a time.

import { RangeSet } from "./range-set.ts";

export class Limbo {
  /** Up for delivery but for that. */
  readonly waiting = new RangeSet();
  private ended = new Set<number>();
  private underway = new Set<number>();

  /** The store is yet to be told of an end. */
  get unwritten(): boolean {
    return this.ended.size > 0;
  }

  has(offset: number): boolean {
    return this.ended.has(offset) || this.underway.has(offset);
  }

  add(offset: number): void {
    this.ended.add(offset);
  }

  /** Settled, or leased again by an extension: what the store says of its attempts is no longer too little. */
  delete(offset: number): void {
    if (this.ended.size > 0) this.ended.delete(offset);
    if (this.underway.size > 0) this.underway.delete(offset);
    if (this.waiting.size > 0) this.waiting.remove(offset, offset + 1);
  }

  written(): void {
    if (this.ended.size === 0) return;
    if (this.underway.size > 0) throw new Error("two commits under way");
    [this.ended, this.underway] = [this.underway, this.ended];
  }

  /** Gives what waited; the caller places it anew, since some of it may have ended again after that commit was built. */
  durable(): number[] {
    this.underway.clear();
    const waited: number[] = [];
    for (const [from, to] of this.waiting) for (let offset = from; offset < to; offset++) waited.push(offset);
    this.waiting.clear();
    return waited;
  }

  clear(): void {
    this.waiting.clear();
    this.ended.clear();
    this.underway.clear();
  }
}
