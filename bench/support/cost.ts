// One cost by itself, in this process: the same call again and again for MS milliseconds, and what that took of the processor. Those
// of a bench take turns.

import { printMedians, takeTurns } from "./compare.ts";
import { mainMicros, processMicros } from "./cpu.ts";
import { Latencies } from "./latency.ts";
import { print, type Result, resultOf } from "./report.ts";
import { numberFrom, type Settings, settings } from "./settings.ts";

export interface Cost {
  readonly variant: string;
  /** Who pays for it in a node; `threads`: the front what this thread does, the workers what the others do. */
  readonly part: "client" | "front" | "workers" | "threads";
  /** Of one call. */
  readonly events: number;
  /** Each call of one that waits has its latency. */
  readonly call: (() => void) | (() => Promise<unknown>);
}

/** Calls between two looks at the clock, of those that do not wait. */
const callsPerLook = 16;
const warmUpShare = 0.25;

/** What is true of all of them. */
export interface CostSettings extends Settings {
  readonly durability: string;
}

export function costSettings(durability: string, fixed: Partial<Settings> = {}): CostSettings {
  return { ...settings(), store: "none", workers: 0, ...fixed, durability };
}

export async function measureCosts(bench: string, set: CostSettings, costs: readonly Cost[]): Promise<void> {
  const ms = numberFrom("MS", 300);
  for (const cost of costs) await repeat(cost, ms * warmUpShare);
  const rounds = await takeTurns(
    set.pairs,
    costs.map((cost) => () => measureCost(bench, set, cost, ms)),
  );
  printMedians(rounds);
}

async function measureCost(bench: string, set: CostSettings, cost: Cost, ms: number): Promise<Result> {
  const before = { main: mainMicros(process.pid), all: processMicros([process.pid]) };
  const started = performance.now();
  const { calls, took } = await repeat(cost, ms);
  const elapsed = performance.now() - started;
  const main = mainMicros(process.pid) - before.main;
  const all = processMicros([process.pid]) - before.all;
  const { variant, part, events } = cost;
  const used = part === "threads" ? { front: main, workers: all - main } : { [part]: all };
  const latencies = new Latencies(took.length);
  latencies.addAll(took);
  const system = { name: "narthex", durability: set.durability };
  const measured = { ms: elapsed, used };
  const result = resultOf(
    bench,
    system,
    { ...set, window: events },
    calls * events,
    measured,
    took.length > 0 ? latencies.percentiles() : undefined,
    { variant },
  );
  print(result);
  return result;
}

async function repeat(
  { call }: Cost,
  ms: number,
): Promise<{ readonly calls: number; readonly took: readonly number[] }> {
  const end = performance.now() + ms;
  const took: number[] = [];
  let calls = 0;
  for (let now = performance.now(); now < end; ) {
    const waits = call();
    calls++;
    if (waits instanceof Promise) {
      await waits;
      const then = performance.now();
      took.push(then - now);
      now = then;
    } else if (calls % callsPerLook === 0) {
      now = performance.now();
    }
  }
  return { calls, took };
}
