// Samples as the text that Prometheus scrapes. A registry is filled anew for each scrape: the numbers live in the cells.

import { type Metric, Registry } from "prom-client";
import type { Sample } from "../actors/effects.ts";
import { LabelBound } from "./metrics.ts";

const prefix = "narthex_";
/** Names that users know from elsewhere stay bare. */
const bareNames = /^(events_|ws_inflight$|delivery_latency_ms$)/;

interface Line {
  readonly metricName?: string;
  readonly labels: Readonly<Record<string, string | number>>;
  readonly value: number;
}

/** What a registry asks of a metric when it is printed. */
interface Printable {
  readonly name: string;
  readonly help: string;
  readonly type: "counter" | "gauge" | "histogram";
  readonly values: readonly Line[];
}

export class Exposition {
  private readonly bound = new LabelBound();
  private readonly help: Readonly<Record<string, string>>;

  /** `help` by metric name without the prefix. */
  constructor(help: Readonly<Record<string, string>> = {}) {
    this.help = { ...runtimeHelp, ...help };
  }

  readonly contentType = Registry.PROMETHEUS_CONTENT_TYPE;

  async text(samples: Iterable<Sample>): Promise<string> {
    const registry = new Registry();
    const byName = new Map<string, Sample[]>();
    for (const sample of this.bound.apply(samples)) {
      const same = byName.get(sample.name);
      if (same === undefined) byName.set(sample.name, [sample]);
      else same.push(sample);
    }
    for (const [name, same] of [...byName].sort(([a], [b]) => (a < b ? -1 : 1))) {
      const metric = printable(name, this.help[name] ?? name.replaceAll("_", " "), same);
      // The registry calls nothing but `get` to print; prom-client's own aggregator registers such plain objects too.
      registry.registerMetric({ name: metric.name, get: async () => metric } as object as Metric<string>);
    }
    return registry.metrics();
  }
}

function printable(name: string, help: string, samples: readonly Sample[]): Printable {
  const full = bareNames.test(name) ? name : `${prefix}${name}`;
  const type = samples.some(({ value }) => typeof value !== "number")
    ? "histogram"
    : name.endsWith("_total")
      ? "counter"
      : "gauge";
  return { name: full, help, type, values: samples.flatMap((sample) => linesOf(full, sample)) };
}

function linesOf(name: string, { labels, value }: Sample): Line[] {
  if (typeof value === "number") return [{ labels, value }];
  const lines: Line[] = [];
  let count = 0;
  for (const [at, bound] of value.bounds.entries()) {
    count += value.counts[at];
    lines.push({ metricName: `${name}_bucket`, labels: { ...labels, le: bound }, value: count });
  }
  count += value.counts[value.bounds.length];
  lines.push({ metricName: `${name}_bucket`, labels: { ...labels, le: "+Inf" }, value: count });
  lines.push({ metricName: `${name}_sum`, labels, value: value.sum });
  lines.push({ metricName: `${name}_count`, labels, value: count });
  return lines;
}

const runtimeHelp: Readonly<Record<string, string>> = {
  commits_total: "Commits that succeeded",
  commit_failures_total: "Commits that the store refused or that broke the shard",
  commit_ms: "Time of a commit in milliseconds, fsync included",
  commit_bytes: "Bytes of event blocks per commit",
  commit_events: "Events per commit",
  loop_lag_ms: "Lateness of the event loop of a thread in milliseconds since the last scrape, by quantile",
  cpu_seconds_total: "Processor time of a thread in seconds since it began, where the system tells it by thread",
  mailbox_messages: "Messages that wait for a cell of this worker",
  under_way_messages: "Messages posted to a worker and not yet answered or taken in",
  under_way_bytes: "Bytes posted to a worker and not yet answered or taken in",
  cells: "Actors alive",
  tail_hits_total: "Reads answered from the newest blocks in memory",
  tail_misses_total: "Reads that went to the store",
  cell_restarts_total: "Actors started again after a fault",
  cells_failed: "Actors given up after too many restarts",
  worker_restarts_total: "Worker threads started again",
  overloaded_total: "Requests refused at the credit of a worker",
  shard_up: "1 while the shard can be used, 0 also while it can only be read",
};
