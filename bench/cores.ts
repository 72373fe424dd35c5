// The canonical work over WORKERS and client processes, taking turns: what more cores bring, and where they stop. Each client process has a topic of its own; a lone
// one has a topic with several partitions, so that there is work for each worker. N, WARM_UP and WINDOW are those of all clients together. With
// SVG=path the latencies and rates are drawn as well.

import { writeFileSync } from "node:fs";
import type { ClientAnswer, ClientAsk } from "./support/canonical-client.entry.ts";
import { chartSvg, type Panel } from "./support/chart.ts";
import { Child } from "./support/child.ts";
import { printMedians, ratios, takeTurns } from "./support/compare.ts";
import { Latencies } from "./support/latency.ts";
import { measure, warmUpToQuiet } from "./support/measure.ts";
import { medians, print, printRatioGoal, type Result, resultOf, spread } from "./support/report.ts";
import { numbersFrom, settings } from "./support/settings.ts";
import { warmMemory } from "./support/warm.ts";
import { speechFrom, startNarthex } from "./systems/narthex.ts";

const program = "support-canonical-client.entry";
const workerCounts = numbersFrom("WORKERS", [1, 2, 4]);
// Each worker has to get warm by its part of the events.
const set = settings({ n: 100_000, warmUp: 200_000, pairs: 3 });
const speech = speechFrom("library");
const processCounts = numbersFrom("PROCESSES", [1, 4, 16]);
const grid = processCounts.flatMap((processes) => workerCounts.map((workers) => ({ processes, workers })));

const rounds = await takeTurns(
  set.pairs,
  grid.map((point) => () => run(point)),
);
printMedians(rounds);
const typical = grid.map((_, i) => medians(rounds.map((results) => results[i])));
for (const result of typical) printRoof(result);
for (const processes of processCounts) {
  const [one, two] = [1, 2].map((workers) =>
    grid.findIndex((point) => point.processes === processes && point.workers === workers),
  );
  if (one < 0 || two < 0) continue;
  const what = `2 workers / 1, client processes ${processes}`;
  console.log(`server CPU per event, ${what}: ${spread(ratios(rounds, "server CPU per event", two, one))} ×`);
  printRatioGoal(`events/s, ${what}`, ratios(rounds, "events/s", two, one), { is: "≥", bound: 0.85 });
}
if (process.env.SVG !== undefined) writeFileSync(process.env.SVG, chart());

interface Point {
  readonly processes: number;
  readonly workers: number;
}

async function run({ processes, workers }: Point): Promise<Result> {
  const partitions = Math.ceil(Math.max(...workerCounts) / processes);
  const share = (number: number) => Math.max(1, Math.floor(number / processes));
  const each = { ...set, workers, n: share(set.n), warmUp: share(set.warmUp), window: share(set.window) };
  warmMemory();
  const system = await startNarthex(each, speech, { PARTITIONS: String(partitions) });
  const clients = Array.from({ length: processes }, () => new Child<ClientAsk, ClientAnswer>(program));
  const url = system.wsUrl;
  const prepare = (client: (typeof clients)[number], i: number) =>
    client.ask({
      type: "prepare",
      url,
      set: { ...each, topic: `${set.topic}.${i}` },
      speech,
      partitioned: partitions > 1,
    });
  await Promise.all(clients.map(prepare));
  const all = (ask: ClientAsk) => Promise.all(clients.map((client) => client.ask(ask)));
  await warmUpToQuiet(system, each.warmUp, (to) => all({ type: "warmUp", to }));
  const n = each.n * processes;
  const latencies = new Latencies(n);
  let micros = 0;
  const { ms, used } = await measure(system, async () => {
    for (const answer of await all({ type: "work" })) {
      latencies.addAll(answer.latencies);
      micros += answer.micros;
    }
  });
  await Promise.all(clients.map((client) => client.end()));
  await system.stop();
  const result = resultOf(
    "cores",
    system,
    { ...set, workers },
    n,
    { ms, used: { ...used, client: micros } },
    latencies.percentiles(),
    { variant: nameOf({ processes, workers }), client_processes: processes, partitions },
  );
  print(result);
  return result;
}

function nameOf({ processes, workers }: Point): string {
  return `workers ${workers}, client processes ${processes}`;
}

/** The front is one thread, whatever the number of workers: it can be busy for a second in each second. */
function printRoof({ variant, cpu_us_per_event: { server = 0, front = 0, workers = 0 } }: Result): void {
  const share = Math.round((100 * front) / server);
  const roof = (Math.round(1000 / front) * 1000).toLocaleString("en");
  const enough = (workers / front).toFixed(1);
  console.log(
    `${variant}: the front has ${front} of ${server} µs, ${share} %: no more than ${roof} events/s on any number of cores, and ${enough} workers keep up with it`,
  );
}

function chart(): string {
  const panel = (title: string, unit: string, of: (result: Result) => number | undefined): Panel => ({
    title,
    unit,
    ticks: workerCounts.map(String),
    series: processCounts.map((processes) => ({
      name: `client processes: ${processes}`,
      values: workerCounts.map((workers) => {
        const at = grid.findIndex((point) => point.processes === processes && point.workers === workers);
        return rounds.map((results) => of(results[at]) ?? 0);
      }),
    })),
  });
  const { durability, payload_bytes, window, cores } = typical[0];
  return chartSvg({
    title: "publish, lease, receive and ack over WORKERS",
    subtitle: `${durability}, payload ${payload_bytes} B, window ${window} over all clients, ${cores} cores; medians of ${rounds.length}, bars from least to most`,
    axis: "workers",
    panels: [
      panel("throughput", "events/s", ({ events_per_s }) => events_per_s),
      panel("server CPU", "µs per event", ({ cpu_us_per_event }) => cpu_us_per_event.server),
      panel("latency, p50", "ms", ({ p50 }) => p50),
      panel("latency, p99", "ms", ({ p99 }) => p99),
    ],
  });
}
