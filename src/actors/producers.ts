// The batches that publishers keep in order, by producer. Their numbers only rise, so of each producer only the last few are
// remembered, however much it publishes: one small entry of the state, replaced in the commit that stores a batch, and removed when
// nothing came for a whole dedupe window. A number that is not above the last one and no longer remembered is refused, not stored.

import { type Known, untilOf } from "./dedupe.ts";
import type { Env, Placed, Put, Shelf } from "./effects.ts";
import { entryBytes, entryKeys, entryValue } from "./entries.ts";

/** How many batches a producer may have unanswered. */
export const recentBatchesMax = 8;

export interface OrderedBatch {
  readonly producer: string;
  readonly seq: number;
}

type Recent = readonly [seq: number, offset: number, count: number, storedAt: number, salt: number];

interface Producer {
  /** The highest number taken, which may be under way. */
  readonly last: number;
  /** In monotonic time, when it is forgotten unless something comes. */
  readonly until: number;
  readonly recent: readonly Recent[];
}

export class Producers {
  private readonly stream: number;
  private readonly windowMs: number;
  // In the order of use, so that the first is the first to be forgotten.
  private readonly known = new Map<string, Producer>();
  private readonly changed = new Set<string>();

  constructor(stream: number, shelf: Shelf, env: Env) {
    this.stream = stream;
    this.windowMs = shelf.limits.dedupeMs;
    const prefix = entryKeys.producers(stream);
    const stored = [...shelf.entries(prefix)].map(([key, bytes]): [string, Producer] => {
      const recent = entryValue<Recent[]>(bytes);
      const [last, , , storedAt] = recent[recent.length - 1];
      return [key.slice(prefix.length), { last, until: untilOf(storedAt, this.windowMs, env), recent }];
    });
    stored.sort(([, a], [, b]) => a.until - b.until);
    for (const [name, producer] of stored) this.known.set(name, producer);
  }

  get size(): number {
    return this.known.size;
  }

  /** Where a batch is stored, or is about to be: one that is under way may be found as soon as its commit is built. */
  find({ producer, seq }: OrderedBatch): Known | undefined {
    const found = this.known.get(producer)?.recent.find(([number]) => number === seq);
    if (found === undefined) return undefined;
    const [, offset, count, storedAt, salt] = found;
    return { offset, count, storedAt, salt, ts: undefined };
  }

  /** The highest number taken. */
  last(producer: string): number | undefined {
    return this.known.get(producer)?.last;
  }

  /** The batch is on its way into the log, or all of it is known there. */
  take({ producer, seq }: OrderedBatch, now: number): void {
    const before = this.known.get(producer);
    this.known.delete(producer);
    this.known.set(producer, { last: seq, until: now + this.windowMs, recent: before?.recent ?? [] });
  }

  /** In the commit that is being built the batch has got this place; `puts` follows. */
  place({ producer, seq }: OrderedBatch, { offset, storedAt, salt }: Placed, count: number, now: number): void {
    const before = this.known.get(producer);
    const recent: Recent[] = [
      ...(before?.recent ?? []).slice(1 - recentBatchesMax),
      [seq, offset, count, storedAt, salt],
    ];
    this.known.delete(producer);
    this.known.set(producer, { last: before?.last ?? seq, until: now + this.windowMs, recent });
    this.changed.add(producer);
  }

  /** What changed since the last commit. */
  puts(): Put[] {
    const puts = [...this.changed].map((name): Put => {
      const value = this.known.get(name)?.recent;
      return [entryKeys.producer(this.stream, name), value === undefined ? null : entryBytes(value)];
    });
    this.changed.clear();
    return puts;
  }

  /** Forgets who has been silent for long. */
  expire(now: number): boolean {
    for (const [name, { until }] of this.known) {
      if (until > now) break;
      this.forget(name);
    }
    return this.changed.size > 0;
  }

  /** Forgets everyone, for a partition that ends. */
  clear(): void {
    for (const name of [...this.known.keys()]) this.forget(name);
  }

  private forget(name: string): void {
    // One whose batches had all been stored before, under their ids, has no entry.
    if (this.known.get(name)?.recent.length !== 0) this.changed.add(name);
    this.known.delete(name);
  }
}
