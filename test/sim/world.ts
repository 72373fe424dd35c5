// Simulated time and the order in which things happen, from a seed. A scope is what lives and dies together: the main thread of a
// node, one worker thread, one client. What a dead scope had put off never happens, as in a thread that is gone.
//
// Promises are real. After every task the microtasks are run to their end, by the engine's own checkpoint, so that a task and
// what it set off among promises is one step, as one turn of a real event loop is.

import { setFlagsFromString } from "node:v8";
import type { Clock, Timer } from "../../src/runtime/clock.ts";
import { pop, push } from "../../src/runtime/heap.ts";
import type { Dice } from "../support/dice.ts";

/** Turns of different threads that fall on one moment come in any order; so far apart at most. */
const turnMsMax = 0.2;

interface Task {
  at: number;
  readonly order: number;
  readonly scope: Scope;
  run: (() => void) | undefined;
}

export class Scope {
  readonly name: string;
  alive = true;
  lastTurnAt = 0;
  /** Until then it does nothing: what it should do waits. */
  stuckUntil = 0;

  constructor(name: string) {
    this.name = name;
  }

  /** Never for a shorter time than before, or what comes now would overtake what was put off. */
  standStill(until: number): void {
    this.stuckUntil = Math.max(this.stuckUntil, until);
  }
}

setFlagsFromString("--allow-natives-syntax");
/** Runs every microtask there is. Does nothing when called from within one. */
const checkpoint = new Function("%PerformMicrotaskCheckpoint()") as () => void;

export class World {
  mono = 1000;
  /** What the wall clock is ahead of the monotonic one. */
  wallAhead = 1_790_000_000_000;
  readonly dice: Dice;
  /** Hears what nobody caught. */
  onThrow: (error: unknown, scope: Scope) => void = (error) => {
    throw error;
  };
  steps = 0;
  /** Some thread did so. */
  stoodStill = false;
  private readonly heap: Task[] = [];
  private order = 0;

  constructor(dice: Dice) {
    this.dice = dice;
  }

  get wall(): number {
    return this.mono + this.wallAhead;
  }

  standStill(scope: Scope, ms: number): void {
    this.stoodStill = true;
    scope.standStill(this.mono + ms);
  }

  at(scope: Scope, at: number, run: () => void): Task {
    const task = { at: Math.max(at, this.mono), order: this.order++, scope, run };
    push(this.heap, task);
    return task;
  }

  after(scope: Scope, ms: number, run: () => void): Task {
    return this.at(scope, this.mono + ms, run);
  }

  clock(scope: Scope): Clock {
    const { dice } = this;
    return {
      mono: () => this.mono,
      wall: () => Math.floor(this.wall),
      after: (ms, run): Timer => {
        const task = this.after(scope, Math.max(0, ms), run);
        return {
          cancel: () => {
            task.run = undefined;
          },
        };
      },
      soon: (run) => {
        scope.lastTurnAt = Math.max(scope.lastTurnAt, this.mono + (dice.below(100) / 100) * turnMsMax);
        this.at(scope, scope.lastTurnAt, run);
      },
      random: (bound) => dice.below(bound),
      nonce: (bytes) => Array.from({ length: bytes }, () => dice.below(256).toString(16).padStart(2, "0")).join(""),
    };
  }

  /** Runs until the condition holds, at most to this moment; says whether it does. */
  runUntil(done: () => boolean, at: number): boolean {
    while (!done()) {
      const first = this.heap[0];
      if (first === undefined || first.at > at) {
        this.mono = Math.max(this.mono, at);
        return done();
      }
      this.step();
    }
    return true;
  }

  step(): void {
    const task = pop(this.heap);
    const { at, scope, run } = task;
    if (run === undefined || !scope.alive) return;
    if (scope.stuckUntil > at) {
      // Its order stays, or what was put off twice would come behind what was put off once.
      task.at = scope.stuckUntil;
      push(this.heap, task);
      return;
    }
    this.mono = Math.max(this.mono, at);
    this.steps++;
    try {
      run();
    } catch (error) {
      this.onThrow(error, scope);
    }
    checkpoint();
  }

  /** Lets promises go on after something was done from outside of a task. */
  settle(): void {
    checkpoint();
  }
}
