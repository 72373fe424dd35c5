// What is compared takes turns (A B C A B C …), so that what else the machine does meets all of them alike. What counts are the ratios
// within a round.

import { canonicalOnce, type Variation } from "./canonical.ts";
import { medians, type Result, resultTable, spread } from "./report.ts";
import type { Settings } from "./settings.ts";
import type { System } from "./system.ts";

/** Each is run once in every round. */
export async function takeTurns<T>(rounds: number, runs: readonly (() => Promise<T>)[]): Promise<readonly T[][]> {
  const all: T[][] = [];
  for (let round = 0; round < rounds; round++) {
    const results: T[] = [];
    for (const run of runs) results.push(await run());
    all.push(results);
  }
  return all;
}

/** A line for each of those that took turns. */
export function printMedians(rounds: readonly (readonly Result[])[]): void {
  console.log(resultTable(rounds[0].map((_, i) => medians(rounds.map((results) => results[i])))));
}

export interface CompareOptions extends Variation {
  /** Which one is divided by which; otherwise each by the last one. */
  readonly pairs?: readonly Pair[];
  readonly variant?: string;
}

type Pair = readonly [number, number];

/** The canonical work by several systems. */
export async function compare(
  bench: string,
  set: Settings,
  starts: readonly (() => Promise<System>)[],
  options: CompareOptions = {},
): Promise<readonly (readonly Result[])[]> {
  const { variant, pairs = starts.slice(1).map((_, i): Pair => [i, starts.length - 1]), ...variation } = options;
  const rounds = await takeTurns(
    set.pairs,
    starts.map((start) => () => canonicalOnce(bench, start, set, variation, variant)),
  );
  console.log(resultTable(rounds.flat()));
  for (const [over, under] of pairs) printRatios(rounds, over, under);
  return rounds;
}

const measures = {
  "server CPU per event": ({ cpu_us_per_event: cpu }) => cpu.server ?? 0,
  "client CPU per event": ({ cpu_us_per_event: cpu }) => cpu.client ?? 0,
  "events/s": ({ events_per_s: rate }) => rate,
  p50: ({ p50 }) => p50 ?? 0,
  p99: ({ p99 }) => p99 ?? 0,
} satisfies Record<string, (result: Result) => number>;

/** In each round, of its `i`-th result over its `j`-th. */
export function ratios(
  rounds: readonly (readonly Result[])[],
  of: keyof typeof measures,
  i: number,
  j: number,
): readonly number[] {
  return rounds.map((results) => measures[of](results[i]) / measures[of](results[j]));
}

function printRatios(rounds: readonly (readonly Result[])[], i: number, j: number): void {
  const names = `${rounds[0][i].system} / ${rounds[0][j].system}`;
  for (const of of Object.keys(measures) as (keyof typeof measures)[]) {
    console.log(`${of}, ${names}: ${spread(ratios(rounds, of, i, j))} in ${rounds.length} pairs`);
  }
}
