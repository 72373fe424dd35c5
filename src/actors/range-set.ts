// A set of offsets kept as sorted ranges [from, to). What is settled above the floor, ready to be delivered again or dying comes
// in runs, so the set stays small where a set of numbers would be as large as the window.

export class RangeSet implements Iterable<readonly [number, number]> {
  private readonly starts: number[] = [];
  private readonly ends: number[] = [];
  private held = 0;

  /** How many offsets are in it. */
  get size(): number {
    return this.held;
  }

  get rangeCount(): number {
    return this.starts.length;
  }

  /** The lowest offset in it, Infinity when it is empty. */
  get first(): number {
    return this.starts.length === 0 ? Number.POSITIVE_INFINITY : this.starts[0];
  }

  /** Where the range of `first` ends. */
  get firstEnd(): number {
    return this.starts.length === 0 ? Number.POSITIVE_INFINITY : this.ends[0];
  }

  add(from: number, to: number): void {
    if (from >= to) return;
    const { starts, ends } = this;
    const last = ends.length - 1;
    if (last < 0 || from > ends[last]) {
      starts.push(from);
      ends.push(to);
      this.held += to - from;
      return;
    }
    if (from === ends[last]) {
      ends[last] = to;
      this.held += to - from;
      return;
    }
    const low = this.endingAtOrAfter(from);
    let high = low;
    let covered = 0;
    while (high < starts.length && starts[high] <= to) {
      covered += ends[high] - starts[high];
      high++;
    }
    if (low === high) {
      starts.splice(low, 0, from);
      ends.splice(low, 0, to);
      this.held += to - from;
      return;
    }
    const start = Math.min(from, starts[low]);
    const end = Math.max(to, ends[high - 1]);
    starts[low] = start;
    ends[low] = end;
    if (high - low > 1) {
      starts.splice(low + 1, high - low - 1);
      ends.splice(low + 1, high - low - 1);
    }
    this.held += end - start - covered;
  }

  /** Takes out what it has of from..to and says how much that was. */
  remove(from: number, to: number): number {
    if (this.held === 0 || from >= to) return 0;
    const { starts, ends } = this;
    let at = this.endingAtOrAfter(from + 1);
    let removed = 0;
    while (at < starts.length && starts[at] < to) {
      const start = starts[at];
      const end = ends[at];
      const cutFrom = Math.max(start, from);
      const cutTo = Math.min(end, to);
      removed += cutTo - cutFrom;
      if (cutFrom === start && cutTo === end) {
        starts.splice(at, 1);
        ends.splice(at, 1);
      } else if (cutFrom === start) {
        starts[at++] = cutTo;
      } else if (cutTo === end) {
        ends[at++] = cutFrom;
      } else {
        ends[at] = cutFrom;
        starts.splice(at + 1, 0, cutTo);
        ends.splice(at + 1, 0, end);
        at += 2;
      }
    }
    this.held -= removed;
    return removed;
  }

  has(offset: number): boolean {
    const at = this.endingAtOrAfter(offset + 1);
    return at < this.starts.length && this.starts[at] <= offset;
  }

  /** The first offset at or after this one that is in the set, Infinity when there is none. */
  nextIn(offset: number): number {
    const at = this.endingAtOrAfter(offset + 1);
    return at < this.starts.length ? Math.max(this.starts[at], offset) : Number.POSITIVE_INFINITY;
  }

  /** The first offset at or after this one that is not in the set. */
  nextOut(offset: number): number {
    const at = this.endingAtOrAfter(offset + 1);
    return at < this.starts.length && this.starts[at] <= offset ? this.ends[at] : offset;
  }

  countIn(from: number, to: number): number {
    let count = 0;
    for (let at = this.endingAtOrAfter(from + 1); at < this.starts.length && this.starts[at] < to; at++) {
      count += Math.min(this.ends[at], to) - Math.max(this.starts[at], from);
    }
    return count;
  }

  clear(): void {
    this.starts.length = 0;
    this.ends.length = 0;
    this.held = 0;
  }

  *[Symbol.iterator](): Iterator<readonly [number, number]> {
    for (let at = 0; at < this.starts.length; at++) yield [this.starts[at], this.ends[at]];
  }

  /** The place of the first range whose end is at or after the offset. */
  private endingAtOrAfter(offset: number): number {
    const { ends } = this;
    let low = 0;
    let high = ends.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (ends[middle] < offset) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}
