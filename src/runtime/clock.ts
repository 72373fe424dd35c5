// The only file that knows real time and real randomness. Everything else is handed a Clock, so that a whole node can be run on
// simulated time from a seed.

import { randomBytes } from "node:crypto";

export interface Timer {
  cancel(): void;
}

export interface Clock {
  /** Milliseconds that never step back; only differences mean something. */
  mono(): number;
  /** Milliseconds since 1970. */
  wall(): number;
  /** Calls back once after so many milliseconds. `background` timers do not keep the process alive. */
  after(ms: number, run: () => void, options?: { background?: boolean }): Timer;
  /** Calls back once this turn of the event loop has taken in what is there to read. */
  soon(run: () => void): void;
  /** A whole number from 0 to below `bound`, at most 2^32. */
  random(bound: number): number;
  /** So many random bytes in hex: names of sessions and nodes. */
  nonce(bytes: number): string;
}

const timeoutMsMax = 2 ** 31 - 1;

export function realClock(): Clock {
  return {
    mono: () => performance.now(),
    wall: () => Date.now(),
    after(ms, run, options) {
      const timer = setTimeout(run, Math.min(Math.max(ms, 0), timeoutMsMax));
      if (options?.background) timer.unref();
      return { cancel: () => clearTimeout(timer) };
    },
    soon: (run) => void setImmediate(run),
    random: (bound) => Math.floor(Math.random() * bound),
    nonce: (bytes) => randomBytes(bytes).toString("hex"),
  };
}

/** Resolves after so many milliseconds of this clock. */
export function sleep(clock: Clock, ms: number, options?: { background?: boolean }): Promise<void> {
  return new Promise((resolve) => void clock.after(ms, resolve, options));
}
