// The pause before something is tried again.

import type { ClientClock } from "./clock.ts";

const backoffMsMin = 50;
const backoffMsMax = 2000;

/** From half to the whole of a pause that doubles, so that many who were refused together do not come back together. */
export function backoffMs(
  clock: ClientClock,
  tries: number,
  retryAfterMs = 0,
  msMin = backoffMsMin,
  msMax = backoffMsMax,
): number {
  const pause = Math.min(msMax, msMin * 2 ** Math.min(tries, 16));
  return Math.max(retryAfterMs, pause * (0.5 + clock.random() / 2));
}
