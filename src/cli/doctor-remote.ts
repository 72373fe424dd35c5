// What the node at NARTHEX_URL says about itself.

import type { Clock } from "../runtime/clock.ts";
import { CliError, type Context } from "./context.ts";
import { type Finding, fail, ok, warn } from "./finding.ts";
import { metricSum, metricValues } from "./metrics-text.ts";
import { count } from "./table.ts";

const answerMsMax = 5000;
const lagMsMax = 100;
/** The header counts in whole seconds, and the answer takes its time. */
const clockMsMax = 2500;

interface Ready {
  readonly ready?: boolean;
  readonly reasons?: readonly string[];
  readonly shards?: readonly {
    readonly shard: number;
    readonly status: string;
    readonly failed?: readonly unknown[];
  }[];
  readonly damage?: readonly unknown[];
}

/** `expected`: somebody said that there is a node. */
export async function checkRemote(context: Context, clock: Clock, expected: boolean): Promise<readonly Finding[]> {
  const { url } = context;
  let answer: Response;
  let ready: Ready;
  try {
    answer = await fetch(`${url}/health/ready`, { signal: AbortSignal.timeout(answerMsMax) });
    ready = (await answer.json()) as Ready;
    if (typeof ready.ready !== "boolean") throw new Error("something else answers");
  } catch (error) {
    const { cause, message } = error as Error & { cause?: { code?: string } };
    const why = `no node answers at ${url} (${cause?.code ?? message})`;
    return [
      expected
        ? fail("remote", `${why}: check NARTHEX_URL, and that it runs`)
        : warn("remote", `${why}: start one with npx narthex`),
    ];
  }
  return [
    readyFinding(url, ready),
    ...clockFindings(answer.headers.get("date"), clock.wall()),
    ...(await metricsFindings(context)),
  ];
}

export function readyFinding(url: string, { ready, reasons = [], shards = [], damage = [] }: Ready): Finding {
  if (!ready) return fail("remote", `${url} is not ready: ${reasons.join("; ")}`);
  if (damage.length > 0) {
    return warn(
      "remote",
      `${url} is ready, but found ${damage.length} damaged records: see GET /health/ready, and restore them`,
    );
  }
  const failed = shards.reduce((sum, shard) => sum + (shard.failed?.length ?? 0), 0);
  if (failed > 0)
    return warn("remote", `${url} is ready, but gave up ${failed} partitions or groups: see GET /health/ready`);
  return ok("remote", `${url} is ready, ${shards.length === 1 ? "1 shard" : `${shards.length} shards`} up`);
}

export function clockFindings(date: string | null, wall: number): readonly Finding[] {
  const theirs = Date.parse(date ?? "");
  if (Number.isNaN(theirs)) return [];
  const apart = theirs + 500 - wall;
  if (Math.abs(apart) <= clockMsMax) return [ok("remote clock", "agrees with the one here")];
  const text = `${count(Math.round(Math.abs(apart) / 1000))} s ${apart > 0 ? "ahead of" : "behind"} the one here`;
  return [warn("remote clock", `${text}: run NTP on both machines, times in events go by it`)];
}

async function metricsFindings(context: Context): Promise<readonly Finding[]> {
  try {
    return metricFindings(await (await context.http("/metrics")).text());
  } catch (error) {
    if (error instanceof CliError) return [fail("remote token", error.message)];
    throw error;
  }
}

export function metricFindings(metrics: string): readonly Finding[] {
  const lag = Math.max(0, ...metricValues(metrics, "narthex_loop_lag_ms", { quantile: "0.99" }));
  const workers = metricSum(metrics, "narthex_worker_restarts_total") ?? 0;
  const cells = metricSum(metrics, "narthex_cell_restarts_total") ?? 0;
  const commits = metricSum(metrics, "narthex_commit_failures_total") ?? 0;
  const limited = metricSum(metrics, "narthex_refusals_total", { code: "rate_limited" }) ?? 0;
  const findings: Finding[] = [];
  findings.push(
    lag > lagMsMax
      ? warn(
          "event loop",
          `p99 is ${Math.round(lag)} ms late since the last look: give the node a core for each worker and one more`,
        )
      : ok("event loop", `p99 is ${lag.toFixed(1)} ms late since the last look`),
  );
  findings.push(
    workers + cells > 0
      ? warn(
          "restarts",
          `${workers} worker threads and ${cells} actors were started again since the node was: look into its log`,
        )
      : ok("restarts", "none since the node was started"),
  );
  if (commits > 0)
    findings.push(warn("commits", `${count(commits)} failed since the node was started: look into its log`));
  findings.push(
    limited > 0
      ? warn(
          "rate limits",
          `${count(limited)} publishes were refused for them: raise CONN_RATE or TOPIC_RATE, or set them to off`,
        )
      : ok("rate limits", "nobody was refused for them since the node was started"),
  );
  return findings;
}
