// Everything that is posted between the front and a host, declared once. Both directions post one object per turn of the event
// loop and transfer the buffers that bytes were written into (room.ts). The control plane has its own port: control.ts.

import type { ActorLimits } from "../actors/effects.ts";
import type { Address, Answer, Message, Signal } from "../actors/messages.ts";
import type { StoreConfig } from "../store/open.ts";
import type { Damage } from "../store/store.ts";
import type { LogFields, LogLevel } from "./log.ts";

/** What a host is started with; travels with its two ports. */
export interface HostSettings {
  readonly worker: number;
  readonly shards: number;
  readonly store: StoreConfig;
  readonly limits: ActorLimits;
  /** After so many tells the host says how many it has taken in, even when it has nothing else to say. */
  readonly reportTells: number;
  /** Lets the control plane crash the thread. */
  readonly testing: boolean;
}

/** A message for a cell. `id` names the request in its answer; 0: nobody waits. */
export interface Mail {
  readonly shard: number;
  readonly cell: string;
  readonly id: number;
  readonly message: Message;
}

/** The answer to what a cell of this host asked of another shard. */
export interface AskAnswer {
  readonly shard: number;
  readonly ask: number;
  readonly answer: Answer;
}

export interface ToHost {
  readonly answers: readonly AskAnswer[];
  readonly mail: readonly Mail[];
}

/** In the order in which the cells said it: an OK posted before the first event stays before it. */
export type Item =
  | { readonly type: "answer"; readonly id: number; readonly answer: Answer }
  | { readonly type: "signal"; readonly signal: Signal }
  /** From a cell of `shard` to a cell of another shard; `ask` 0: a tell. */
  | {
      readonly type: "forward";
      readonly shard: number;
      readonly ask: number;
      readonly to: Address;
      readonly message: Message;
    }
  | {
      readonly type: "shardUp";
      readonly shard: number;
      readonly epoch: number;
      readonly damage: readonly Damage[];
    }
  /** Found while the shard is open. */
  | { readonly type: "damaged"; readonly damage: Damage }
  /** `reads`: what only reads is still served. `mayPass`: the cause is one that may go away by itself. */
  | {
      readonly type: "shardDown";
      readonly shard: number;
      readonly reason: string;
      readonly reads?: boolean;
      readonly mayPass?: boolean;
    }
  | { readonly type: "cellRestarted"; readonly address: Address }
  | { readonly type: "cellFailed"; readonly address: Address; readonly reason: string }
  | { readonly type: "log"; readonly level: LogLevel; readonly msg: string; readonly fields: LogFields };

export interface ToFront {
  readonly items: readonly Item[];
  /** Tells taken in since the host started. */
  readonly tells: number;
}
