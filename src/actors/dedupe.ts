// What a partition remembers of the last minutes, so that publishing again under the same name stores nothing: ids that publishers
// brought (`i:` + id) and batches of the client library (`b:` + producer + seq, one entry for the whole batch). Each commit that
// adds names writes them as one entry of the small state, in the same commit as the events, and a later commit removes it.
//
// The window runs on monotonic time: a wall clock that is set forth must not end it while publishers still try again. Only over a
// restart the wall clock says how much of it is left, at most the whole.

import type { Env, Placed, Put, Shelf } from "./effects.ts";
import { entryBytes, entryKeys, entryValue } from "./entries.ts";

/** Where the first one was stored. */
export interface Known {
  readonly offset: number;
  readonly count: number;
  readonly storedAt: number;
  readonly salt: number;
  /** The ts the publisher gave, undefined where it is `storedAt`. */
  readonly ts: number | undefined;
}

/** A name and the events it stands for, counted from the start of one append. */
export interface Name {
  readonly name: string;
  readonly index: number;
  readonly count: number;
  readonly ts: number | undefined;
}

interface Stored {
  readonly storedAt: number;
  readonly salt: number;
  readonly names: readonly (readonly [name: string, offset: number, count: number, ts: number | null])[];
}

interface Remembered extends Known {
  readonly until: number;
}

interface Expiry {
  readonly key: string;
  readonly until: number;
  readonly names: readonly string[];
}

/** In monotonic time, when something of before the restart is to be forgotten. */
export function untilOf(storedAt: number, windowMs: number, env: Pick<Env, "mono" | "wall">): number {
  return env.mono + Math.min(windowMs, Math.max(0, windowMs - (env.wall - storedAt)));
}

export class DedupeWindow {
  private readonly stream: number;
  private readonly windowMs: number;
  private readonly known = new Map<string, Remembered>();
  // In the order of commits, which is the order of `until`.
  private readonly expiries: Expiry[] = [];

  constructor(stream: number, shelf: Shelf, env: Env) {
    this.stream = stream;
    this.windowMs = shelf.limits.dedupeMs;
    const stored = [...shelf.entries(entryKeys.dedupes(stream))].map(([key, bytes]) => ({
      key,
      value: entryValue<Stored>(bytes),
    }));
    stored.sort(
      (a, b) => a.value.storedAt - b.value.storedAt || (a.value.names[0]?.[1] ?? 0) - (b.value.names[0]?.[1] ?? 0),
    );
    for (const { key, value } of stored) this.remember(key, value, untilOf(value.storedAt, this.windowMs, env));
  }

  get size(): number {
    return this.known.size;
  }

  /** When the oldest name may be forgotten. */
  get oldestExpiry(): number | undefined {
    return this.expiries[0]?.until;
  }

  find(name: string, now: number): Known | undefined {
    const known = this.known.get(name);
    return known !== undefined && known.until > now ? known : undefined;
  }

  /** The entry for one append, to be written in its commit. */
  put(placed: Placed, names: readonly Name[]): Put {
    return [entryKeys.dedupe(this.stream, placed.offset), entryBytes(this.stored(placed, names))];
  }

  /** The append is durable. */
  add(placed: Placed, names: readonly Name[], now: number): void {
    this.remember(entryKeys.dedupe(this.stream, placed.offset), this.stored(placed, names), now + this.windowMs);
  }

  /** Forgets what is over and gives the removals to write. */
  expire(now: number): Put[] {
    let over = 0;
    const puts: Put[] = [];
    while (over < this.expiries.length && this.expiries[over].until <= now) {
      const expiry = this.expiries[over++];
      puts.push([expiry.key, null]);
      for (const name of expiry.names) {
        // The same name may have been stored anew after its window ended.
        if (this.known.get(name)?.until === expiry.until) this.known.delete(name);
      }
    }
    this.expiries.splice(0, over);
    return puts;
  }

  /** Removals of everything, for a partition that ends. */
  clear(): Put[] {
    const puts = this.expiries.map(({ key }): Put => [key, null]);
    this.known.clear();
    this.expiries.length = 0;
    return puts;
  }

  private stored(placed: Placed, names: readonly Name[]): Stored {
    return {
      storedAt: placed.storedAt,
      salt: placed.salt,
      names: names.map((name) => [name.name, placed.offset + name.index, name.count, name.ts ?? null]),
    };
  }

  private remember(key: string, { storedAt, salt, names }: Stored, until: number): void {
    for (const [name, offset, count, ts] of names) {
      this.known.set(name, { offset, count, storedAt, salt, ts: ts ?? undefined, until });
    }
    this.expiries.push({ key, until, names: names.map(([name]) => name) });
  }
}
