// What a partition remembers of the last minutes, so that publishing again under the same name stores nothing: ids that publishers
// brought (`i:` + id) and batches of the client library (`b:` + producer + seq, one entry for the whole batch). Each commit that
// adds names writes them as one entry of the small state, in the same commit as the events, and a later commit removes it.

import type { Placed, Put, Shelf } from "./effects.ts";
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

interface Expiry {
  readonly key: string;
  readonly storedAt: number;
  readonly names: readonly string[];
}

export class DedupeWindow {
  private readonly stream: number;
  private readonly windowMs: number;
  private readonly known = new Map<string, Known>();
  // In the order of commits, which is the order of `storedAt`.
  private readonly expiries: Expiry[] = [];

  constructor(stream: number, shelf: Shelf) {
    this.stream = stream;
    this.windowMs = shelf.limits.dedupeMs;
    const stored = [...shelf.entries(entryKeys.dedupes(stream))].map(([key, bytes]) => ({
      key,
      value: entryValue<Stored>(bytes),
    }));
    stored.sort(
      (a, b) => a.value.storedAt - b.value.storedAt || (a.value.names[0]?.[1] ?? 0) - (b.value.names[0]?.[1] ?? 0),
    );
    for (const { key, value } of stored) this.remember(key, value);
  }

  get size(): number {
    return this.known.size;
  }

  /** When the oldest name may be forgotten, in wall time. */
  get oldestExpiry(): number | undefined {
    return this.expiries.length === 0 ? undefined : this.expiries[0].storedAt + this.windowMs;
  }

  find(name: string, wall: number): Known | undefined {
    const known = this.known.get(name);
    return known !== undefined && known.storedAt + this.windowMs > wall ? known : undefined;
  }

  /** The entry for one append, to be written in its commit. */
  put(placed: Placed, names: readonly Name[]): Put {
    return [entryKeys.dedupe(this.stream, placed.offset), entryBytes(this.stored(placed, names))];
  }

  /** The append is durable. */
  add(placed: Placed, names: readonly Name[]): void {
    this.remember(entryKeys.dedupe(this.stream, placed.offset), this.stored(placed, names));
  }

  /** Forgets what is over and gives the removals to write. */
  expire(wall: number): Put[] {
    let over = 0;
    const puts: Put[] = [];
    while (over < this.expiries.length && this.expiries[over].storedAt + this.windowMs <= wall) {
      const expiry = this.expiries[over++];
      puts.push([expiry.key, null]);
      for (const name of expiry.names) {
        // The same name may have been stored anew after its window ended.
        if (this.known.get(name)?.storedAt === expiry.storedAt) this.known.delete(name);
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

  private remember(key: string, stored: Stored): void {
    for (const [name, offset, count, ts] of stored.names) {
      this.known.set(name, { offset, count, storedAt: stored.storedAt, salt: stored.salt, ts: ts ?? undefined });
    }
    this.expiries.push({ key, storedAt: stored.storedAt, names: stored.names.map(([name]) => name) });
  }
}
