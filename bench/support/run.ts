// What every bench shares: a node of its own as a process, settings from the environment, CPU of both sides, percentiles.

import { readFileSync } from "node:fs";
import { encodePack } from "../../src/protocol/pack.ts";
import { dataFolder, type NodeProcess, startNode } from "../../test/support/node-process.ts";

export interface Settings {
  readonly n: number;
  readonly topic: string;
  readonly store: string;
  readonly workers: string;
  readonly payloadBytes: number;
  /** Events under way at once, and how many go in one frame. */
  readonly window: number;
  readonly batch: number;
}

export function settings(): Settings {
  const { env } = process;
  return {
    n: Number(env.N ?? 100_000),
    topic: env.TOPIC ?? "bench.topic",
    store: env.STORE ?? "log",
    workers: env.WORKERS ?? "1",
    payloadBytes: Number(env.PAYLOAD ?? 256),
    window: Number(env.WINDOW ?? 1000),
    batch: Number(env.BATCH ?? 200),
  };
}

const ticksPerSecond = 100;

/** User and system time of a process and all its threads, in microseconds; a tick is 10 ms. */
function cpuMicros(pid: number): number {
  const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  return ((Number(fields[11]) + Number(fields[12])) * 1e6) / ticksPerSecond;
}

export interface Measured {
  readonly ms: number;
  readonly serverCpuUs: number;
  readonly clientCpuUs: number;
}

export async function withNode<T>(set: Settings, work: (node: NodeProcess) => Promise<T>): Promise<T> {
  const data = dataFolder();
  const env = { STORE: set.store, WORKERS: set.workers, CONN_RATE: "off", TOPIC_RATE: "off", LOG_LEVEL: "warn" };
  const node = await startNode({ data: data.path, env });
  try {
    return await work(node);
  } finally {
    await node.kill("SIGKILL");
    data.remove();
  }
}

export async function measure(node: NodeProcess, work: () => Promise<void>): Promise<Measured> {
  const pid = node.child.pid as number;
  const server = cpuMicros(pid);
  const client = process.cpuUsage();
  const started = performance.now();
  await work();
  const ms = performance.now() - started;
  const used = process.cpuUsage(client);
  return { ms, serverCpuUs: cpuMicros(pid) - server, clientCpuUs: used.user + used.system };
}

/** What an OK of this node says of its durability. */
export async function durabilityOf(node: NodeProcess): Promise<string> {
  const headers = { "content-type": "application/json" };
  const response = await fetch(`${node.http}/publish/bench.probe`, { method: "POST", headers, body: "1" });
  return ((await response.json()) as { durability: string }).durability;
}

const encoder = new TextEncoder();

/** A batch of events numbered from `from` on, all made at `t0`. */
export function packOf(set: Settings, from: number, length: number, t0: number): Uint8Array {
  const payload = (i: number) => encoder.encode(payloadOf(set.payloadBytes, from + i, t0));
  return encodePack(Array.from({ length }, (_, i) => ({ payload: payload(i) })));
}

export function percentiles(latencies: Float64Array): Record<string, number> {
  const sorted = latencies.slice().sort();
  const at = (p: number) =>
    Number((sorted[Math.min(sorted.length - 1, Math.floor((p / 100) * sorted.length))] ?? 0).toFixed(3));
  return { p50: at(50), p90: at(90), p99: at(99), p999: at(99.9), max: at(100) };
}

/** A JSON object of exactly so many bytes that holds the moment it was made. */
function payloadOf(bytes: number, i: number, t0: number): string {
  const head = `{"i":${i},"t0":${t0.toFixed(3)},"pad":"`;
  return `${head}${"x".repeat(Math.max(0, bytes - head.length - 2))}"}`;
}

export function report(
  bench: string,
  set: Settings,
  durability: string,
  events: number,
  measured: Measured,
  latencies: Float64Array,
): void {
  console.log(
    JSON.stringify({
      bench,
      n: events,
      topic: set.topic,
      store: set.store,
      durability,
      payload_bytes: set.payloadBytes,
      window: set.window,
      batch: set.batch,
      workers: Number(set.workers),
      ms: Math.round(measured.ms),
      events_per_s: Math.round(events / (measured.ms / 1000)),
      ...percentiles(latencies),
      cpu_us_per_event: {
        server: Number((measured.serverCpuUs / events).toFixed(2)),
        client: Number((measured.clientCpuUs / events).toFixed(2)),
      },
    }),
  );
}
