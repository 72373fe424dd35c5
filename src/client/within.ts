// Waiting that ends.

import type { ClientClock, Timer } from "./clock.ts";

/** Undefined where it takes longer. */
export async function within<Value>(
  clock: ClientClock,
  ms: number,
  promise: Promise<Value>,
): Promise<Value | undefined> {
  let timer: Timer | undefined;
  const late = new Promise<undefined>((resolve) => {
    timer = clock.after(ms, () => resolve(undefined));
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    timer?.cancel();
  }
}
