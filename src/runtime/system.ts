// What the front sees of the worker threads: addresses to ask and tell, signals that come back, and the state of each shard. It
// hides which thread a shard lives on, that threads die, and that messages travel gathered, one array per turn and worker.

import type { Sample } from "../actors/effects.ts";
import type { Address, Answer, MessageOf, MessageType, Signal } from "../actors/messages.ts";
import type { Damage } from "../store/store.ts";

export type { Sample } from "../actors/effects.ts";

export interface ShardState {
  readonly shard: number;
  readonly worker: number;
  /** `read-only`: its store takes no writes; what only reads is served. */
  readonly status: "opening" | "up" | "read-only" | "down";
  readonly epoch: number;
  /** Why it is not up, in words for the operator. */
  readonly reason?: string;
  /** Cells that were given up after too many restarts. */
  readonly failedCells: readonly { readonly cell: string; readonly reason: string }[];
  readonly damage: readonly Damage[];
}

export interface SystemEvents {
  signal(signal: Signal): void;
  /** A shard can be used (again): subscriptions on it must be joined anew. */
  shardUp(shard: number, epoch: number): void;
  /** It takes no writes and its lease tables are gone. */
  shardDown(shard: number, reason: string): void;
  /** One cell was started again from the store and has forgotten its members. */
  cellRestarted(address: Address): void;
}

export interface System {
  readonly shards: number;
  readonly workers: number;
  /**
   * Resolves when every shard is up, or waits for what kept it from opening to pass (a full disk); rejects when one cannot be opened
   * for a cause that no waiting cures.
   */
  start(events: SystemEvents): Promise<void>;
  /**
   * Always calls back exactly once, never before it returns: with the answer, or a Failure: `overloaded` at the credit of the
   * worker, `unavailable` (or what the kind of cell says) when the shard is down, the worker dies or the deadline passes.
   */
  ask<T extends MessageType>(to: Address, message: MessageOf<T>, done: (answer: Answer<T>) => void): void;
  request<T extends MessageType>(to: Address, message: MessageOf<T>): Promise<Answer<T>>;
  /** For what may be lost with the shard: grants, flow, leave. */
  tell(to: Address, message: MessageOf<MessageType>): void;
  /** Bytes inside the buffer that the next post to this shard's worker will transfer. */
  room(shard: number, bytes: number): Uint8Array;
  state(): readonly ShardState[];
  /** Numbers of all cells and of the runtime itself, from every worker. */
  samples(): Promise<readonly Sample[]>;
  /** Commits what is gathered, closes every shard, ends the threads. */
  close(): Promise<void>;
  /** Ends the threads at once. */
  destroy(): Promise<void>;
}
