// Waiting in a command: never longer than the user wants to.

import type { Clock } from "../runtime/clock.ts";

/** False: the signal came first. */
export function pause(clock: Clock, ms: number, signal: AbortSignal): Promise<boolean> {
  if (signal.aborted) return Promise.resolve(false);
  return new Promise((resolve) => {
    const abort = () => {
      timer.cancel();
      resolve(false);
    };
    const timer = clock.after(ms, () => {
      signal.removeEventListener("abort", abort);
      resolve(true);
    });
    signal.addEventListener("abort", abort, { once: true });
  });
}
