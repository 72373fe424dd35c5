// When leases and backoffs end. Most share one of a few lengths, and what is entered later under the same length ends later, so
// each length has a queue of runs in order; the rest (extensions, too many lengths) goes to a heap.
//
// Entries are never searched for: one counts as long as its event is in the state that is timed and its alarm says the entry's
// time, so that a settled or extended lease leaves a dead entry behind. A lease that was extended keeps its old entry, which
// enters it anew when it fires: an event has one live entry at any time, however often a client extends it.

import type { LeaseRing, LeaseState } from "./lease-ring.ts";

const queuesMax = 16;
/** So many dead entries are left alone before they are swept out. */
const deadMin = 64;

interface Run {
  at: number;
  offset: number;
  count: number;
}

export class Deadlines {
  private readonly ring: LeaseRing;
  private readonly state: LeaseState;
  private readonly queues = new Map<number, RunQueue>();
  private heap: Run[] = [];

  constructor(ring: LeaseRing, state: LeaseState) {
    this.ring = ring;
    this.state = state;
  }

  /** The caller has put the events into the state and `at` into their alarms. */
  add(length: number, offset: number, count: number, at: number): void {
    let queue = this.queues.get(length);
    if (queue === undefined) {
      if (this.queues.size >= queuesMax) this.dropEmpty();
      if (this.queues.size >= queuesMax) {
        this.addAlone(offset, count, at);
        return;
      }
      queue = new RunQueue();
      this.queues.set(length, queue);
    }
    if (at < queue.lastAt) {
      this.addAlone(offset, count, at);
      return;
    }
    queue.push(offset, count, at);
    if (queue.length > this.entriesMax) queue.keep((run) => this.isLive(run));
  }

  /** For a time that fits no queue. */
  addAlone(offset: number, count: number, at: number): void {
    pushRun(this.heap, { at, offset, count });
    if (this.heap.length <= this.entriesMax) return;
    const live = this.heap.filter((run) => this.isLive(run));
    this.heap = [];
    for (const run of live) pushRun(this.heap, run);
  }

  /** Infinity when nothing is timed. */
  earliest(): number {
    let earliest = Number.POSITIVE_INFINITY;
    for (const queue of this.queues.values()) {
      while (queue.length > 0 && !this.lives(queue.headOffset, queue.headAt)) queue.dropFirst();
      if (queue.length > 0 && queue.headAt < earliest) earliest = queue.headAt;
    }
    while (this.heap.length > 0) {
      const run = this.heap[0];
      if (this.lives(run.offset, run.at)) return Math.min(earliest, run.at);
      run.offset++;
      if (--run.count === 0) popRun(this.heap);
    }
    return earliest;
  }

  /** Hands out what is due, each event once. `each` may enter events again, for later. */
  fire(now: number, each: (offset: number, slot: number) => void): void {
    for (const queue of this.queues.values()) {
      while (queue.length > 0 && queue.headAt <= now) {
        const { at, offset, count } = queue.shift();
        this.fireRun(at, offset, count, each);
      }
    }
    while (this.heap.length > 0 && this.heap[0].at <= now) {
      const { at, offset, count } = popRun(this.heap);
      this.fireRun(at, offset, count, each);
    }
  }

  clear(): void {
    this.queues.clear();
    this.heap = [];
  }

  /** Every offset that has a live entry, for checks. */
  *live(): Iterable<number> {
    const runs = [...this.heap];
    for (const queue of this.queues.values()) runs.push(...queue);
    for (const { at, offset, count } of runs) {
      for (let i = 0; i < count; i++) if (this.lives(offset + i, at)) yield offset + i;
    }
  }

  get entryCount(): number {
    let count = this.heap.length;
    for (const queue of this.queues.values()) count += queue.length;
    return count;
  }

  private get entriesMax(): number {
    return deadMin + 2 * this.ring.counts[this.state];
  }

  private fireRun(at: number, offset: number, count: number, each: (offset: number, slot: number) => void): void {
    for (let i = 0; i < count; i++) {
      if (this.lives(offset + i, at)) each(offset + i, this.ring.slotOf(offset + i));
    }
  }

  private lives(offset: number, at: number): boolean {
    const slot = this.ring.slotOf(offset);
    return slot >= 0 && this.ring.state[slot] === this.state && this.ring.alarm[slot] === at;
  }

  private isLive({ at, offset, count }: Run): boolean {
    for (let i = 0; i < count; i++) if (this.lives(offset + i, at)) return true;
    return false;
  }

  private dropEmpty(): void {
    for (const [length, queue] of this.queues) if (queue.length === 0) this.queues.delete(length);
  }
}

/** Runs in the order of their times, which never falls. */
class RunQueue {
  private offsets: number[] = [];
  private counts: number[] = [];
  private ats: number[] = [];
  private head = 0;

  get length(): number {
    return this.ats.length - this.head;
  }

  get headOffset(): number {
    return this.offsets[this.head];
  }

  get headAt(): number {
    return this.ats[this.head];
  }

  get lastAt(): number {
    return this.length === 0 ? Number.NEGATIVE_INFINITY : this.ats[this.ats.length - 1];
  }

  push(offset: number, count: number, at: number): void {
    const last = this.ats.length - 1;
    if (last >= this.head && this.ats[last] === at && this.offsets[last] + this.counts[last] === offset) {
      this.counts[last] += count;
      return;
    }
    this.offsets.push(offset);
    this.counts.push(count);
    this.ats.push(at);
  }

  shift(): Run {
    const run = { at: this.headAt, offset: this.headOffset, count: this.counts[this.head] };
    this.advance();
    return run;
  }

  dropFirst(): void {
    this.offsets[this.head]++;
    if (--this.counts[this.head] === 0) this.advance();
  }

  keep(wanted: (run: Run) => boolean): void {
    const runs = [...this].filter(wanted);
    this.offsets = runs.map((run) => run.offset);
    this.counts = runs.map((run) => run.count);
    this.ats = runs.map((run) => run.at);
    this.head = 0;
  }

  *[Symbol.iterator](): Iterator<Run> {
    for (let i = this.head; i < this.ats.length; i++) {
      yield { at: this.ats[i], offset: this.offsets[i], count: this.counts[i] };
    }
  }

  private advance(): void {
    this.head++;
    if (this.head === this.ats.length) {
      this.offsets.length = 0;
      this.counts.length = 0;
      this.ats.length = 0;
      this.head = 0;
    } else if (this.head >= 1024 && this.head * 2 > this.ats.length) {
      this.offsets = this.offsets.slice(this.head);
      this.counts = this.counts.slice(this.head);
      this.ats = this.ats.slice(this.head);
      this.head = 0;
    }
  }
}

function pushRun(heap: Run[], run: Run): void {
  let at = heap.length;
  heap.push(run);
  while (at > 0) {
    const above = (at - 1) >> 1;
    if (heap[above].at <= run.at) break;
    heap[at] = heap[above];
    at = above;
  }
  heap[at] = run;
}

function popRun(heap: Run[]): Run {
  const top = heap[0];
  const run = heap.pop() as Run;
  if (heap.length === 0) return top;
  let at = 0;
  for (;;) {
    let below = 2 * at + 1;
    if (below >= heap.length) break;
    if (below + 1 < heap.length && heap[below + 1].at < heap[below].at) below++;
    if (heap[below].at >= run.at) break;
    heap[at] = heap[below];
    at = below;
  }
  heap[at] = run;
  return top;
}
