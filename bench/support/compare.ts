// The canonical work by several systems, taking turns (A B C A B C …), so that what else the machine does meets all of them alike. What
// counts are the ratios within a round.

import { canonical } from "./canonical.ts";
import { print, type Result, resultOf, spread, table } from "./report.ts";
import type { Settings } from "./settings.ts";
import type { System } from "./system.ts";
import { warmMemory } from "./warm.ts";

export interface CompareOptions {
  /** Which one is divided by which; otherwise each by the last one. */
  readonly pairs?: readonly Pair[];
  /** Events are published at this pace; otherwise as fast as a full window goes. */
  readonly perSecond?: number | undefined;
}

type Pair = readonly [number, number];

/** Each is run once in every round. */
export async function compare(
  bench: string,
  set: Settings,
  starts: readonly (() => Promise<System>)[],
  options: CompareOptions = {},
): Promise<readonly (readonly Result[])[]> {
  const { perSecond, pairs = starts.slice(1).map((_, i): Pair => [i, starts.length - 1]) } = options;
  const rounds: Result[][] = [];
  for (let round = 0; round < set.pairs; round++) {
    const results: Result[] = [];
    for (const start of starts) {
      warmMemory();
      const result = await runOne(bench, set, await start(), perSecond);
      print(result);
      results.push(result);
    }
    rounds.push(results);
  }
  console.log(table(head, rounds.flat().map(rowOf)));
  for (const [over, under] of pairs) {
    const names = `${rounds[0][over].system} / ${rounds[0][under].system}`;
    for (const [what, of] of ratios) {
      const values = rounds.map((results) => of(results[over]) / of(results[under]));
      console.log(`${what}, ${names}: ${spread(values)} in ${rounds.length} pairs`);
    }
  }
  return rounds;
}

async function runOne(bench: string, set: Settings, system: System, perSecond: number | undefined): Promise<Result> {
  try {
    const { measured, latency, storedPerEvent } = await canonical(system, set, perSecond);
    return resultOf(bench, system, set, set.n, measured, latency, {
      version: system.version,
      per_second: perSecond,
      stored_bytes_per_event: storedPerEvent === undefined ? undefined : Math.round(storedPerEvent),
    });
  } finally {
    await system.stop();
  }
}

const head = ["", "events/s", "server µs", "front", "workers", "client", "p50 ms", "p90", "p99", "p99.9", "max"];

function rowOf({ system, events_per_s, cpu_us_per_event: cpu, p50, p90, p99, p999, max }: Result) {
  return [system, events_per_s, cpu.server, cpu.front, cpu.workers, cpu.client, p50, p90, p99, p999, max];
}

const ratios: readonly (readonly [string, (result: Result) => number])[] = [
  ["server CPU per event", ({ cpu_us_per_event: cpu }) => cpu.server ?? 0],
  ["client CPU per event", ({ cpu_us_per_event: cpu }) => cpu.client ?? 0],
  ["events/s", ({ events_per_s: rate }) => rate],
  ["p50", ({ p50 }) => p50 ?? 0],
  ["p99", ({ p99 }) => p99 ?? 0],
];
