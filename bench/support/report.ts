// What a bench prints: a line of JSON for each measurement, for machines, and a table of them all and the goals, for people.

import { cpus } from "node:os";
import type { Percentiles } from "./latency.ts";
import type { Measured } from "./measure.ts";
import type { Settings } from "./settings.ts";

export interface Result extends Partial<Percentiles> {
  readonly bench: string;
  readonly system: string;
  /** What is varied within the bench, in words. */
  readonly variant?: string;
  readonly durability: string;
  readonly n: number;
  readonly events_per_s: number;
  /** By microseconds. */
  readonly cpu_us_per_event: { readonly [Part in "server" | "front" | "workers" | "client"]?: number | undefined };
  readonly [field: string]: unknown;
}

type Described = Pick<Settings, "payloadBytes" | "window" | "workers">;

/** The fields that every measurement has. */
export function resultOf(
  bench: string,
  system: { readonly name: string; readonly durability: string },
  set: Described & Pick<Settings, "store" | "topic">,
  events: number,
  measured: Measured,
  latency?: Percentiles,
  more: Readonly<Record<string, unknown>> = {},
): Result {
  const per = (micros: number | undefined) =>
    micros === undefined || events === 0 ? undefined : rounded(micros / events);
  const { server, front, workers, client } = measured.used;
  return {
    bench,
    system: system.name,
    durability: system.durability,
    store: set.store,
    topic: set.topic,
    n: events,
    payload_bytes: set.payloadBytes,
    window: set.window,
    workers: set.workers,
    cores: cpus().length,
    ms: Math.round(measured.ms),
    events_per_s: Math.round(events / (measured.ms / 1000)),
    ...latency,
    cpu_us_per_event: {
      server: per(server),
      front: per(front),
      workers: per(workers),
      client: per(client),
    },
    ...more,
  };
}

/** To what can be told apart, also where one event takes a thousandth of a microsecond. */
function rounded(value: number): number {
  return Math.abs(value) >= 1000 ? Math.round(value) : Number(value.toPrecision(4));
}

export function print(result: Result): void {
  console.log(JSON.stringify(result));
}

const columns = [
  "events/s",
  "server µs",
  "front",
  "workers",
  "client",
  "p50 ms",
  "p90",
  "p99",
  "p99.9",
  "max",
  "B/event",
];

function columnsOf(result: Result): readonly (number | undefined)[] {
  const { n, events_per_s, cpu_us_per_event: cpu, p50, p90, p99, p999, max } = result;
  const stored = result.stored_bytes_per_event as number | undefined;
  const rate = n === 0 ? undefined : events_per_s;
  return [rate, cpu.server, cpu.front, cpu.workers, cpu.client, p50, p90, p99, p999, max, stored];
}

/** The measurements in a table; what they have in common stands above it. `more`: fields that only this bench has. */
export function resultTable(results: readonly Result[], more: readonly string[] = []): string {
  const of = (field: string) => [...new Set(results.map((result) => result[field]))].join(", ");
  const head = `${of("bench")}: ${of("durability")}, payload ${of("payload_bytes")} B, window ${of("window")}, workers ${of("workers")}`;
  const names = ["", ...columns, ...more.map((field) => field.replaceAll("_", " "))];
  const rows = results.map((result) => {
    const { system, variant } = result;
    const own = more.map((field) => result[field] as number | undefined);
    return [variant === undefined ? system : `${system}, ${variant}`, ...columnsOf(result), ...own];
  });
  // A bench without latencies, or without a server, has no columns of dashes for them.
  const used = names.map((_, column) => rows.some((row) => row[column] !== undefined));
  const pick = <T>(row: readonly T[]) => row.filter((_, column) => used[column]);
  return `${head}\n${table(pick(names), rows.map(pick))}`;
}

/** What is typical of several runs of the same: the median of each number. */
export function medians(results: readonly Result[]): Result {
  const middle = (values: readonly unknown[]): unknown => {
    const [first] = values;
    if (typeof first === "number") return rounded(median(values as number[]));
    if (typeof first !== "object" || first === null) return first;
    const parts = Object.keys(first).map((name) => [name, middle(values.map((value) => (value as Fields)[name]))]);
    return Object.fromEntries(parts);
  };
  return middle(results) as Result;
}

type Fields = Readonly<Record<string, unknown>>;

const signs = {
  "<": (value: number, bound: number) => value < bound,
  "≤": (value: number, bound: number) => value <= bound,
  "≥": (value: number, bound: number) => value >= bound,
} as const;

/** A line with what should be beside what is. `text` is the value as it is to be read, if not the bare number. */
export function printGoal(
  what: string,
  value: number,
  { is, bound, unit = "" }: { readonly is: keyof typeof signs; readonly bound: number; readonly unit?: string },
  text = `${Number(value.toPrecision(3))}${unit}`,
): void {
  console.log(`${what}: ${text} · goal ${is} ${bound}${unit}: ${signs[is](value, bound) ? "met" : "not met"}`);
}

/** The goal is for the median of the rounds. */
export function printRatioGoal(
  what: string,
  values: readonly number[],
  goal: { readonly is: keyof typeof signs; readonly bound: number },
): void {
  printGoal(what, median(values), { ...goal, unit: " ×" }, `${spread(values)} × in ${values.length} pairs`);
}

/** A table with right-aligned columns; the first is a name. */
export function table(head: readonly string[], rows: readonly (readonly (string | number | undefined)[])[]): string {
  const texts = [head, ...rows.map((row) => row.map((cell) => (cell === undefined ? "-" : String(cell))))];
  const widths = head.map((_, column) => Math.max(...texts.map((row) => row[column].length)));
  return texts
    .map((row) => row.map((cell, i) => (i === 0 ? cell.padEnd(widths[i]) : cell.padStart(widths[i]))).join("  "))
    .join("\n");
}

export function median(numbers: readonly number[]): number {
  const sorted = [...numbers].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/** `median (least … most)`. */
export function spread(numbers: readonly number[], digits = 2): string {
  const text = (value: number) => value.toFixed(digits);
  return `${text(median(numbers))} (${text(Math.min(...numbers))}–${text(Math.max(...numbers))})`;
}
