// What a bench is run with, from the environment: `N=100000 WINDOW=1000 npm run bench -- canonical`.

export interface Settings {
  /** Events that are measured, and those before them that only warm up. */
  readonly n: number;
  readonly warmUp: number;
  readonly topic: string;
  readonly store: string;
  readonly workers: number;
  readonly payloadBytes: number;
  /** Events under way at once, and how many a frame of a thin client has. */
  readonly window: number;
  readonly batch: number;
  /** How often each of those that are compared is run, taking turns. */
  readonly pairs: number;
}

export function settings(defaults: Partial<Settings> = {}): Settings {
  const n = numberFrom("N", defaults.n ?? 100_000);
  return {
    n,
    warmUp: numberFrom("WARM_UP", defaults.warmUp ?? Math.min(50_000, Math.ceil(n / 4))),
    topic: process.env.TOPIC ?? defaults.topic ?? "bench.topic",
    store: process.env.STORE ?? defaults.store ?? "log",
    // Some benches go over several.
    workers: numbersFrom("WORKERS", [defaults.workers ?? 1])[0],
    payloadBytes: numberFrom("PAYLOAD", defaults.payloadBytes ?? 256),
    window: numberFrom("WINDOW", defaults.window ?? 1000),
    batch: numberFrom("BATCH", defaults.batch ?? 200),
    pairs: numberFrom("PAIRS", defaults.pairs ?? 6),
  };
}

export function numberFrom(name: string, fallback: number): number {
  const text = process.env[name];
  if (text === undefined) return fallback;
  const number = Number(text);
  if (!Number.isFinite(number) || number < 0) throw new Error(`${name}=${text} is not a number of 0 or more`);
  return number;
}

/** A list such as `1,2,4`. */
export function numbersFrom(name: string, fallback: readonly number[]): readonly number[] {
  const text = process.env[name];
  if (text === undefined) return fallback;
  const numbers = text.split(",").map(Number);
  if (!numbers.every(Number.isFinite)) throw new Error(`${name}=${text} is not a list of numbers`);
  return numbers;
}
