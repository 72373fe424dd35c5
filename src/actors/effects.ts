// What an actor may ask the runtime to do, and what the runtime tells it back. An actor decides, the runtime does: `receive` is
// synchronous, reads no clock, touches no store. The runtime performs the effects of one `receive` in their order.
//
// A commit gathers everything that the cells of a shard asked for since the last one: appends (merged into one block per
// stream, offsets given at the moment of the commit), puts of every cell that asked to persist, trims. Replies with `hold`
// leave after the commit that was being gathered when they were made. If that commit fails they become failures and every cell
// of the shard is started again from the store.

import type { BlockView } from "../protocol/block.ts";
import type { Failure } from "../protocol/failure.ts";
import type { Address, Answer, Message, Signal } from "./messages.ts";

/** An open request; 0 for a message nobody waits for. */
export type Ref = number;

export type Put = readonly [key: string, value: Uint8Array | null];

export type Effect =
  | { readonly type: "reply"; readonly to: Ref; readonly value: Answer; readonly hold?: boolean }
  | { readonly type: "signal"; readonly signal: Signal }
  /** To a cell of the same shard: handled in this turn, before anything is committed. To another shard: posted. */
  | { readonly type: "tell"; readonly to: Address; readonly message: Message }
  | { readonly type: "ask"; readonly to: Address; readonly message: Message; readonly tag: number }
  /** `tsMax`: the highest ts that publishers gave in it, `tsGiven`: to how many of its events. */
  | {
      readonly type: "append";
      readonly stream: number;
      readonly pack: Uint8Array;
      readonly tag: number;
      readonly tsMax: number;
      readonly tsGiven: number;
    }
  /** Call `persist` when the next commit is built. `soon`: do not wait 10 ms for an append to join. `tell`: see `persisted`. */
  | { readonly type: "persist"; readonly soon?: boolean; readonly tell?: boolean }
  | { readonly type: "trim"; readonly stream: number; readonly start: number | null }
  | {
      readonly type: "read";
      readonly stream: number;
      readonly from: number;
      readonly to: number;
      readonly bytesMax: number;
      readonly tag: number;
    }
  | { readonly type: "findTs"; readonly stream: number; readonly ts: number; readonly tag: number }
  | { readonly type: "findId"; readonly stream: number; readonly id: string; readonly tag: number }
  | {
      readonly type: "latestOf";
      readonly stream: number;
      readonly keys?: readonly string[];
      readonly after: string;
      readonly limit: number;
      readonly tag: number;
    }
  /** One timer per cell: a `wake` message at this monotonic time; undefined clears it. */
  | { readonly type: "wake"; readonly at: number | undefined }
  /** The cell ends; messages for it start it anew. */
  | { readonly type: "stop" };

export interface Placed {
  readonly tag: number;
  readonly stream: number;
  readonly offset: number;
  readonly count: number;
  readonly storedAt: number;
  readonly salt: number;
}

/** From the runtime to the actor. */
export type Notice =
  /** The cell's own appends of one commit, durable now. */
  | { readonly type: "committed"; readonly placed: readonly Placed[] }
  /** What the last call of `persist` gave is durable; only for a commit of which the cell asked to be told. */
  | { readonly type: "persisted" }
  /** To every cell that follows the stream: it has grown, durably. */
  | { readonly type: "advanced"; readonly end: number }
  | { readonly type: "trimmed"; readonly start: number }
  | { readonly type: "blocks"; readonly tag: number; readonly blocks: readonly BlockView[]; readonly next: number }
  | { readonly type: "found"; readonly tag: number; readonly offset: number | undefined }
  | {
      readonly type: "latestFound";
      readonly tag: number;
      readonly entries: readonly { readonly key: string; readonly offset: number }[];
    }
  /** A read, find or latest that failed; the store's words are in the failure. */
  | { readonly type: "readFailed"; readonly tag: number; readonly failure: Failure }
  | { readonly type: "answer"; readonly tag: number; readonly answer: Answer }
  | { readonly type: "wake" };

/** The moment, and what else comes from outside. */
export interface Env {
  /** Monotonic milliseconds: leases, timers, buckets. */
  readonly mono: number;
  /** Wall-clock milliseconds: ts, retention, what is persisted. */
  readonly wall: number;
  /** Another each time that any shard is opened; with a token it names a lease for ever. */
  readonly epoch: number;
  /** Reserves so many consecutive lease tokens of this epoch, shared by all cells of the shard, and gives the first. */
  readonly tokens: (count: number) => number;
  /** Bytes inside the buffer that this turn's post to the front will transfer: frames are written straight into it. */
  readonly room: (bytes: number) => Uint8Array;
}

export interface Head {
  readonly start: number;
  readonly end: number;
  readonly lastStoredAt: number;
  readonly bytes: number;
}

/** What a cell may look at when it starts, and the heads of streams at any time: all of it as of the last commit. */
export interface Shelf {
  readonly shard: number;
  /** How many shards there are in all. */
  readonly shards: number;
  /** How what is appended to a stream is stored before anybody is told. */
  durabilityOf(stream: number): string;
  readonly limits: ActorLimits;
  head(stream: number): Head | undefined;
  entry(key: string): Uint8Array | undefined;
  entries(prefix: string): Iterable<readonly [string, Uint8Array]>;
  /** Where retention would move the start of a stream. */
  pruneTo(stream: number, policy: { storedBefore?: number; bytesMax?: number }): number;
}

export interface ActorLimits {
  readonly maxAttempts: number;
  readonly topicsMax: number;
  readonly groupsPerTopicMax: number;
  /** Unsettled events above the floor, per partition and group. */
  readonly unsettledMax: number;
  readonly dedupeMs: number;
  /** Remembered ids and batches per partition. */
  readonly dedupeEntriesMax: number;
  readonly pruneEveryMs: number;
}

export interface Sample {
  readonly name: string;
  readonly labels: Readonly<Record<string, string>>;
  readonly value: number | Histogram;
}

/** Counts per bucket, not cumulated; the last one counts what is above every bound. */
export interface Histogram {
  readonly bounds: readonly number[];
  readonly counts: readonly number[];
  readonly sum: number;
}

export interface Actor {
  receive(message: Message | Notice, ref: Ref, env: Env): readonly Effect[];
  /** What to write, called once per commit after a `persist` effect or for a cell that appended; `placed` are its own appends. */
  persist?(placed: readonly Placed[], env: Env): readonly Put[];
  /** The stream whose `advanced` and `trimmed` this cell wants. */
  readonly follows?: number;
  /** Numbers for the operator, read when they are scraped. */
  stats?(env: Env): readonly Sample[];
}

/** How the runtime makes actors without knowing one: from the name of the cell and what the store holds. */
export interface Kinds {
  /** Undefined: no such kind of cell. */
  create(
    cell: string,
    shelf: Shelf,
    env: Env,
  ): { readonly actor: Actor; readonly effects: readonly Effect[] } | undefined;
  /** The cells that must live from the start, since the store knows them. */
  resident(shelf: Shelf): Iterable<string>;
  /** Failures by kind of cell when its shard is down: `write` for what was surely not stored. */
  refusal(message: Message, reason: string): Failure;
  /** Whether it can be answered without writing, so that it is served while the store takes no writes. */
  readsOnly(message: Message): boolean;
}
