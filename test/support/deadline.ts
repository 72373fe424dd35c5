// Real time for end-to-end tests, always under a deadline: a wait that does not end fails the test and says what it waited for.

export function within<T>(ms: number, what: string, promise: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`not within ${ms} ms: ${what}`)), ms);
    promise.then(resolve, reject).finally(() => clearTimeout(timer));
  });
}

/**
 * The times that tests give are those of a quiet machine, and a shared one may be several times slower. `eventually` is for what must
 * happen at all; how fast it has to be is measured, or bounded with `within`, where that is what is promised.
 */
const patience = 3;

/** Looks again every few milliseconds until `probe` gives something other than undefined or false. */
export async function eventually<T>(
  ms: number,
  what: string,
  probe: () => Promise<T | undefined | false> | T | undefined | false,
): Promise<T> {
  const end = performance.now() + patience * ms;
  for (;;) {
    const result = await probe();
    if (result !== undefined && result !== false) return result;
    if (performance.now() > end) throw new Error(`not within ${patience * ms} ms: ${what}`);
    await pause(5);
  }
}

/** For tests about the passing of real time (leases, limits), never to wait for something to be ready. */
export function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
