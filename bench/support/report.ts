// What a bench prints: a line of JSON for each measurement, for machines, and a table of them all, for people.

import { cpus } from "node:os";
import type { Percentiles } from "./latency.ts";
import type { Measured } from "./measure.ts";
import type { Settings } from "./settings.ts";

export interface Result extends Partial<Percentiles> {
  readonly bench: string;
  readonly system: string;
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
  const per = (micros: number | undefined) => (micros === undefined ? undefined : Number((micros / events).toFixed(2)));
  const { server, front, workers } = measured.server;
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
      client: per(measured.clientMicros),
    },
    ...more,
  };
}

export function print(result: Result): void {
  console.log(JSON.stringify(result));
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
