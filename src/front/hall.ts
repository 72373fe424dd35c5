// What the parts of the front give each other: the things that all connections share, and what the handlers of frames may ask of
// the connection that a frame came from.

import type { Config } from "../config.ts";
import type { Failure } from "../protocol/failure.ts";
import type { Corr, OkFields } from "../protocol/frames.ts";
import type { Clock } from "../runtime/clock.ts";
import type { Logger } from "../runtime/log.ts";
import type { System } from "../runtime/system.ts";
import type { AuthFn, Rights } from "./auth.ts";
import type { Budgets } from "./budget.ts";
import type { Counters } from "./counters.ts";
import type { Corks, Outlet } from "./outlet.ts";
import type { Publishing } from "./publishing.ts";
import type { Router } from "./router.ts";
import type { Settling } from "./settling.ts";
import type { Members } from "./subscription.ts";
import type { Turns } from "./turns.ts";

export interface Hall {
  readonly config: Config;
  readonly system: System;
  readonly clock: Clock;
  readonly log: Logger;
  readonly auth: AuthFn;
  readonly router: Router;
  readonly budgets: Pick<Budgets, "connection" | "topic">;
  readonly publishing: Publishing;
  readonly settling: Settling;
  readonly members: Members;
  readonly corks: Corks;
  readonly turns: Turns;
  readonly counters: Counters;
}

/** Whether the frames behind may go on, or this one holds them until `resume`. */
export type Step = "through" | "held";

export interface Caller {
  readonly id: number;
  /** In words, for the operator. */
  readonly who: string;
  readonly rights: Rights;
  readonly outlet: Outlet;
  /** Whether the client speaks binary batches. */
  readonly batches: boolean;
  readonly draining: boolean;
  readonly closed: boolean;
  say(frame: string | Uint8Array): void;
  ok<Op extends keyof OkFields>(corr: Corr | undefined, fields?: OkFields[Op]): Step;
  refuse(failure: Failure, corr: Corr | undefined): Step;
  /** A request was handed on, and it was answered: too many between the two and the socket is not read. A large one counts as many. */
  began(weight?: number): void;
  ended(weight?: number): void;
  /** The frame that held the others is through, or holds them further. */
  resume(step: Step): void;
  /** Holds the frames behind until the promise is settled and `then` lets them go. */
  hold<T>(corr: Corr | undefined, promise: Promise<T>, then: (value: T) => Step): Step;
  /** How many single PUBLISH frames wait right behind the one that holds them, to this topic or to any. */
  behind(topic?: string): number;
}
