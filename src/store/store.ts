// What durability means to the rest of the node. A store has shards; a shard is the unit of commit and of ownership: one host
// has it open, under an epoch that is higher than any before and durable before `openShard` resolves. A shard holds streams of
// blocks (protocol/block.ts) and a small state of named entries (cursors, settings, dedupe). The store knows nothing of topics
// and groups. The shape is asynchronous so that a database fits; one commit is in flight per shard at any time.

import type { BlockView } from "../protocol/block.ts";

export interface StreamHead {
  /** The first offset still readable. */
  readonly start: number;
  /** The offset the next event gets. */
  readonly end: number;
  /** `storedAt` of the newest block, 0 when there never was one; the next block's may not be lower. */
  readonly lastStoredAt: number;
  /** Bytes of the blocks from start to end. */
  readonly bytes: number;
}

export interface Commit {
  /** Whole blocks, at most one per stream, each beginning at its stream's `end`. */
  readonly blocks: readonly Uint8Array[];
  /** Changes of the small state; null removes the entry. A later put of the same key wins. */
  readonly puts: readonly Put[];
  /** New starts of streams (retention), and streams that end for good (`null`: a deleted topic). */
  readonly trims: readonly Trim[];
}

export type Put = readonly [key: string, value: Uint8Array | null];
export type Trim = readonly [stream: number, start: number | null];

/** A stretch that did not check out: it keeps its offsets, reads skip it and report it. */
export interface Damage {
  readonly shard: number;
  readonly place: string;
  readonly reason: string;
  readonly stream?: number;
  readonly from?: number;
  readonly to?: number;
}

export interface ReadResult {
  /** Blocks in order; the first contains `from` or, where a gap was removed or damaged, is the first one after it. */
  readonly blocks: readonly BlockView[];
  /** Where to go on reading; equals `from` when nothing is stored at or after it. */
  readonly next: number;
}

export interface LatestEntry {
  readonly key: string;
  readonly offset: number;
}

export interface ShardStore {
  readonly shard: number;
  readonly epoch: number;
  /** What `durability` says in an OK: "fsync", "memory", "mongo:majority". */
  readonly durability: string;
  /** Where it differs from stream to stream. */
  durabilityOf?(stream: number): string;
  /** The streams as of the last commit that succeeded. */
  head(stream: number): StreamHead | undefined;
  streams(): IterableIterator<number>;
  /** The small state as of the last commit that succeeded. */
  entry(key: string): Uint8Array | undefined;
  entries(prefix: string): IterableIterator<readonly [string, Uint8Array]>;
  damage(): readonly Damage[];

  /** All or nothing, durable when it resolves. A rejection is a StoreError; after one with `state: "broken"` the shard must be
   *  closed and opened again, and what was in the commit may or may not be there then. */
  commit(commit: Commit): Promise<void>;
  /** Blocks from `from` on, until at least `bytesMax` bytes were gathered (at least one block where there is one) or `to`. */
  read(stream: number, range: { from: number; to: number; bytesMax: number }): Promise<ReadResult>;
  /** The first offset whose event has `ts` at or after the given time, `end` when there is none. */
  findTs(stream: number, ts: number): Promise<number>;
  /** The offset of the event that was published under this id of the publisher's own making. The newest one wins. */
  findId(stream: number, id: string): Promise<number | undefined>;
  /** The newest offset of each key: of these keys, or of all keys after `after` in key order, at most `limit`. */
  latest(
    stream: number,
    query: { keys: readonly string[] } | { after: string; limit: number },
  ): Promise<readonly LatestEntry[]>;
  /** Where retention would move the start: past what was stored before `storedBefore`, and past what exceeds `bytesMax`. */
  pruneTo(stream: number, policy: { storedBefore?: number; bytesMax?: number }): number;
  /** Finishes the commit in flight, releases every file. Safe to call on a broken shard. */
  close(): Promise<void>;
}

/** What a store has to say without being asked. */
export interface StoreEvents {
  /** Something went wrong in the background: nothing is lost by it, and it is tried again. */
  report(message: string): void;
  /** Something does not check out; it is in `damage()` from now on. */
  damaged(damage: Damage): void;
}

/** Time, for stores that have to do something now and then. */
export interface StoreClock {
  /** Milliseconds that never step back. */
  mono(): number;
  after(ms: number, run: () => void, options?: { background?: boolean }): { cancel(): void };
}

export interface Store {
  readonly kind: "memory" | "log" | "mongo";
  openShard(shard: number): Promise<ShardStore>;
  close(): Promise<void>;
}

/** `refused`: nothing of the commit is stored and the shard goes on; `broken`: unknown, the shard must be reopened. */
export class StoreError extends Error {
  readonly state: "refused" | "broken";
  readonly code: string;
  constructor(state: "refused" | "broken", code: string, message: string) {
    super(message);
    this.state = state;
    this.code = code;
  }
}

const passingCodes: ReadonlySet<string> = new Set([
  "ENOSPC",
  "EDQUOT",
  "EIO",
  "EROFS",
  "EMFILE",
  "ENFILE",
  "ENOMEM",
  "EAGAIN",
  "EBUSY",
  "ETIMEDOUT",
  "ENOPRIMARY",
  "EOWNED",
]);

/** Whether the cause may go away by itself, or by what an operator does about the machine: then it is worth trying again. */
export function mayPass(error: unknown): boolean {
  return error instanceof StoreError && passingCodes.has(error.code);
}

/** What may be said of a failure to anybody who asks: the code, not the places on this machine that the message names. */
export function storeReason(error: unknown): string {
  if (!(error instanceof StoreError)) return "the store failed";
  return `${reasons[error.code] ?? "the store failed"} (${error.code})`;
}

const reasons: Readonly<Record<string, string>> = {
  ENOSPC: "the disk is full",
  EDQUOT: "the disk is full",
  ENOPRIMARY: "MongoDB has no primary that answers",
  EOWNED: "another node has this shard",
};
