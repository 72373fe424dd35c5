// One actor, what waits for it, and what it still owes. The name stays, the actor behind it is replaced when it fails; each one is
// an incarnation, and what comes back for an older one is dropped.

import type { Actor, Ref } from "../actors/effects.ts";
import type { Message } from "../actors/messages.ts";
import { Alarm } from "./timers.ts";

export const restartsMax = 5;
export const restartWindowMs = 60_000;

/**
 * `full`: takes no more messages until the commit that it fills is under way. `starting` and `stopping` wait for the commit that
 * holds its last work, because an actor starts from what is stored. `failed`: given up.
 */
export type CellStatus = "starting" | "running" | "full" | "stopping" | "failed";

/** Who waits for an answer: the front, or a cell of the same shard. */
export type Origin =
  | { readonly kind: "front"; readonly id: number }
  | { readonly kind: "cell"; readonly cell: Cell; readonly incarnation: number; readonly tag: number };

export interface Request {
  readonly message: Message;
  /** Undefined: a tell. */
  readonly origin: Origin | undefined;
}

export class Cell {
  readonly name: string;
  /** Rings for the current incarnation. */
  readonly alarm: Alarm;
  status: CellStatus = "starting";
  incarnation = 1;
  actor: Actor | undefined;
  /** Why it was given up. */
  reason = "";
  /** The mailbox of a cell that cannot take messages now. */
  waiting: Request[] = [];
  readonly open = new Map<Ref, Request>();
  /** The last commit that holds work of this cell. */
  lastCommit = 0;
  follows: number | undefined;
  private restarts: number[] = [];

  constructor(name: string, ring: (cell: Cell) => void) {
    this.name = name;
    this.alarm = new Alarm(() => ring(this));
  }

  /** Counts a restart; false when there were too many of late. */
  mayRestart(now: number): boolean {
    this.restarts = this.restarts.filter((at) => at > now - restartWindowMs);
    this.restarts.push(now);
    return this.restarts.length <= restartsMax;
  }
}
