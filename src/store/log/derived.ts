// Answers by random access: which offset has this id of a publisher's own making, which is the newest of each key. It is made
// from the log and can be thrown away at any time. The commit path never pays for it: it is brought up to date when somebody
// asks, and when a segment is sealed.
//
// What was read from the log but not yet written to the table waits in memory; asking again soon after costs a look into it,
// not a transaction. The table holds, besides the entries, which log it was made from and up to which commit:
//
//   "p"                                   → 8 bytes lineage, f64 sequence
//   "i" + f64 stream (big endian) + id    → f64 offset
//   "k" + f64 stream (big endian) + key   → f64 offset
//
// A name too long for a key of the table is cut and gets its sha-256; the whole name stands behind the offset then.

import { createHash } from "node:crypto";
import type { BlockView } from "../../protocol/block.ts";
import { compareKeys } from "../key-order.ts";
import type { LatestEntry } from "../store.ts";

/** An ordered table on disk. */
export interface DerivedTable {
  get(key: Buffer): Buffer | undefined;
  /** Entries from `from` (inclusive) to `to` (exclusive) in the order of their bytes, at most `limit`. */
  range(from: Buffer, to: Buffer, limit: number): [Buffer, Buffer][];
  /** All or nothing; null removes. */
  write(changes: readonly (readonly [Buffer, Buffer | null])[]): Promise<void>;
  clear(): Promise<void>;
  close(): Promise<void>;
}

export type OpenTable = () => Promise<DerivedTable>;

export interface DerivedSource {
  readonly lineage: Uint8Array;
  /** The newest durable commit. */
  sequence(): number;
  head(stream: number): { readonly start: number; readonly end: number } | undefined;
  hasAfter(sequence: number): boolean;
  visitAfter(sequence: number, visit: (block: BlockView) => void): Promise<void>;
  event(stream: number, offset: number): Promise<{ id?: string } | undefined>;
}

const placeKey = Buffer.from("p");
const nameBytesMax = 1500;
const waitingMax = 50_000;
const writeMax = 2_000;
const sweepPage = 1_000;
const prefixBytes = 9;

type Kind = "i" | "k";

interface WaitingStream {
  readonly i: Map<string, number>;
  readonly k: Map<string, number>;
}

export class Derived {
  private readonly openTable: OpenTable;
  private readonly source: DerivedSource;
  private table: DerivedTable | undefined;
  /** Up to which commit the table goes, and up to which the table and what waits. */
  private written = 0;
  private seen = 0;
  private waiting = new Map<number, WaitingStream>();
  private waitingCount = 0;
  private readonly swept = new Map<number, number>();
  private readonly trims = new Set<number>();
  /** One thing at a time: each step begins when the one before it has ended, however it ended. */
  private turn: Promise<unknown> = Promise.resolve();

  constructor(openTable: OpenTable, source: DerivedSource) {
    this.openTable = openTable;
    this.source = source;
  }

  findId(stream: number, id: string): Promise<number | undefined> {
    return this.inTurn(async () => {
      if (this.source.head(stream) === undefined) return undefined;
      const table = await this.current();
      const offset = this.lookUp(table, "i", stream, id);
      if (offset === undefined) return undefined;
      const event = await this.source.event(stream, offset);
      if (event === undefined || event.id === id) return event && offset;
      // The table says something that the log does not: it was made from another one.
      await this.forget(table);
      return this.lookUp(await this.current(), "i", stream, id);
    });
  }

  latest(
    stream: number,
    query: { keys: readonly string[] } | { after: string; limit: number },
  ): Promise<readonly LatestEntry[]> {
    return this.inTurn(async () => {
      if (this.source.head(stream) === undefined) return [];
      const table = await this.current();
      if (!("keys" in query)) return this.page(table, stream, query.after, query.limit);
      const found: LatestEntry[] = [];
      for (const key of query.keys) {
        const offset = this.lookUp(table, "k", stream, key);
        if (offset !== undefined) found.push({ key, offset });
      }
      return found;
    });
  }

  /** Writes what the log has to the table, when there is anything. */
  flush(): Promise<void> {
    return this.inTurn(async () => {
      if (!this.source.hasAfter(this.written)) return;
      await this.write(await this.current());
    });
  }

  /** Up to which commit the table itself goes. */
  get writtenThrough(): number {
    return this.written;
  }

  /** A trim moved the start of a stream, or ended it: its entries are to go, some day. */
  trimmed(stream: number): void {
    this.trims.add(stream);
  }

  /** Removes entries below the start of streams that were trimmed. Does nothing while they are few, or nobody ever asked. */
  sweep(): Promise<void> {
    return this.inTurn(async () => {
      if (this.table === undefined) return;
      for (const stream of [...this.trims]) {
        this.trims.delete(stream);
        const head = this.source.head(stream);
        const start = head?.start ?? Number.POSITIVE_INFINITY;
        // A sweep reads all entries of the stream, so it waits until at least half as many went as are left.
        const gone = start - (this.swept.get(stream) ?? 0);
        if (head !== undefined && gone < (head.end - head.start) / 2) continue;
        for (const kind of ["i", "k"] as const) await this.sweepKind(this.table, kind, stream, start);
        if (head === undefined) this.swept.delete(stream);
        else this.swept.set(stream, start);
      }
    });
  }

  close(): Promise<void> {
    return this.inTurn(async () => {
      await this.table?.close();
      this.table = undefined;
    });
  }

  private inTurn<T>(step: () => Promise<T>): Promise<T> {
    const result = this.turn.then(step, step);
    this.turn = Promise.allSettled([result]);
    return result;
  }

  /** The table, with everything that was committed either in it or waiting. */
  private async current(): Promise<DerivedTable> {
    this.table ??= await this.begin();
    const through = this.source.sequence();
    if (this.source.hasAfter(this.seen)) {
      await this.source.visitAfter(this.seen, (block) => this.gather(block));
    }
    this.seen = Math.max(this.seen, through);
    if (this.waitingCount > waitingMax) await this.write(this.table);
    return this.table;
  }

  private async begin(): Promise<DerivedTable> {
    const table = await this.openTable();
    const place = table.get(placeKey);
    const known = place?.length === 16 && place.compare(this.source.lineage, 0, 8, 0, 8) === 0;
    const sequence = known ? place.readDoubleLE(8) : -1;
    if (sequence < 0 || sequence > this.source.sequence()) await this.forget(table);
    else this.written = sequence;
    this.seen = this.written;
    return table;
  }

  private async forget(table: DerivedTable): Promise<void> {
    await table.clear();
    this.written = 0;
    this.seen = 0;
    this.waiting.clear();
    this.waitingCount = 0;
  }

  private gather(block: BlockView): void {
    let stream = this.waiting.get(block.stream);
    if (stream === undefined) {
      stream = { i: new Map(), k: new Map() };
      this.waiting.set(block.stream, stream);
    }
    for (let index = 0; index < block.count; index++) {
      if (block.pack.extensionLength(index) === 0) continue;
      const { id, key } = block.pack.extension(index);
      if (id !== undefined) this.wait(stream.i, id, block.firstOffset + index);
      if (key !== undefined) this.wait(stream.k, key, block.firstOffset + index);
    }
  }

  private wait(names: Map<string, number>, name: string, offset: number): void {
    const before = names.size;
    // Records are visited in order, but a part of them may be visited twice after a failed write.
    if ((names.get(name) ?? -1) < offset) names.set(name, offset);
    this.waitingCount += names.size - before;
  }

  private async write(table: DerivedTable): Promise<void> {
    const through = this.seen;
    const writes: Promise<void>[] = [];
    let changes: [Buffer, Buffer | null][] = [];
    for (const [stream, names] of this.waiting) {
      for (const kind of ["i", "k"] as const) {
        for (const [name, offset] of names[kind]) {
          changes.push(encodeEntry(kind, stream, name, offset));
          if (changes.length < writeMax) continue;
          const write = table.write(changes);
          // It may fail before it is waited for below, and must not pass for unheard.
          void Promise.allSettled([write]);
          writes.push(write);
          changes = [];
          // Encoding tens of thousands of entries in one go would hold up the commits of this thread.
          await new Promise((resolve) => setImmediate(resolve));
        }
      }
    }
    await Promise.all(writes);
    // The place comes with the last entries: cut short, the next run reads the same part of the log again.
    const place = Buffer.alloc(16);
    place.set(this.source.lineage);
    place.writeDoubleLE(through, 8);
    changes.push([placeKey, place]);
    await table.write(changes);
    this.written = through;
    this.waiting.clear();
    this.waitingCount = 0;
  }

  private lookUp(table: DerivedTable, kind: Kind, stream: number, name: string): number | undefined {
    const waiting = this.waiting.get(stream)?.[kind].get(name);
    return this.within(stream, waiting ?? readOffset(table.get(encodeKey(kind, stream, name)), name));
  }

  /** Entries of what was trimmed away are still there for a while, and do not count. */
  private within(stream: number, offset: number | undefined): number | undefined {
    const head = this.source.head(stream);
    if (offset === undefined || head === undefined) return undefined;
    return offset >= head.start && offset < head.end ? offset : undefined;
  }

  private page(table: DerivedTable, stream: number, after: string, limit: number): LatestEntry[] {
    const found = new Map<string, number>();
    const waiting = this.waiting.get(stream)?.k ?? new Map<string, number>();
    for (const [key, offset] of waiting) if (compareKeys(key, after) > 0) found.set(key, offset);
    let from = after === "" ? encodePrefix("k", stream) : successor(encodeKey("k", stream, after));
    for (let live = 0; live < limit; ) {
      const entries = table.range(from, endOfPrefix("k", stream), limit);
      for (const [key, value] of entries) {
        const name = nameOf(key, value);
        const offset = this.within(stream, value.readDoubleLE(0));
        if (offset === undefined) continue;
        live++;
        if (!found.has(name)) found.set(name, offset);
      }
      if (entries.length < limit) break;
      from = successor(entries[entries.length - 1][0]);
    }
    const page: LatestEntry[] = [];
    for (const key of [...found.keys()].sort(compareKeys)) {
      const offset = this.within(stream, found.get(key));
      if (offset !== undefined && page.length < limit) page.push({ key, offset });
    }
    return page;
  }

  private async sweepKind(table: DerivedTable, kind: Kind, stream: number, start: number): Promise<void> {
    for (let from = encodePrefix(kind, stream); ; ) {
      const entries = table.range(from, endOfPrefix(kind, stream), sweepPage);
      const dead = entries.filter(([, value]) => value.readDoubleLE(0) < start);
      if (dead.length > 0) await table.write(dead.map(([key]) => [key, null] as const));
      if (entries.length < sweepPage) return;
      from = successor(entries[entries.length - 1][0]);
    }
  }
}

function encodePrefix(kind: Kind, stream: number): Buffer {
  const prefix = Buffer.alloc(prefixBytes);
  prefix.write(kind, 0, "latin1");
  // The bits of doubles that are not negative are in the order of the numbers.
  prefix.writeDoubleBE(stream, 1);
  return prefix;
}

function endOfPrefix(kind: Kind, stream: number): Buffer {
  return Buffer.concat([encodePrefix(kind, stream), Buffer.from([0xff])]);
}

function encodeKey(kind: Kind, stream: number, name: string): Buffer {
  const bytes = Buffer.from(name);
  if (bytes.length <= nameBytesMax) return Buffer.concat([encodePrefix(kind, stream), bytes]);
  const digest = createHash("sha256").update(bytes).digest();
  return Buffer.concat([encodePrefix(kind, stream), bytes.subarray(0, nameBytesMax), digest]);
}

function encodeEntry(kind: Kind, stream: number, name: string, offset: number): [Buffer, Buffer] {
  const long = Buffer.byteLength(name) > nameBytesMax;
  const value = Buffer.alloc(8 + (long ? Buffer.byteLength(name) : 0));
  value.writeDoubleLE(offset, 0);
  if (long) value.write(name, 8);
  return [encodeKey(kind, stream, name), value];
}

function nameOf(key: Buffer, value: Buffer): string {
  return value.length > 8 ? value.toString("utf8", 8) : key.toString("utf8", prefixBytes);
}

function readOffset(value: Buffer | undefined, name: string): number | undefined {
  if (value === undefined || value.length < 8) return undefined;
  return value.length > 8 && value.toString("utf8", 8) !== name ? undefined : value.readDoubleLE(0);
}

/** The smallest key after this one. */
function successor(key: Buffer): Buffer {
  return Buffer.concat([key, Buffer.from([0])]);
}
