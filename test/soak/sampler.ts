// What can be seen of the node from outside, every few seconds: /proc, its folder, /metrics, the probe in its threads; and what the load
// saw since the last look.

import { readdirSync, readFileSync, readlinkSync, statSync } from "node:fs";
import { join } from "node:path";
import { type IntervalHistogram, monitorEventLoopDelay } from "node:perf_hooks";
import { metricValues } from "../../src/cli/metrics-text.ts";
import type { Point } from "./judge.ts";
import type { Probe } from "./probe.ts";
import type { World } from "./world.ts";

const mebibyte = 1024 * 1024;
const ticksPerSecond = 100;
const lagResolutionMs = 10;

/** The series of a run, by name. */
export class Series {
  readonly points = new Map<string, Point[]>();

  add(name: string, seconds: number, value: number | undefined): void {
    if (value === undefined) return;
    const points = this.points.get(name);
    if (points === undefined) this.points.set(name, [{ seconds, value }]);
    else points.push({ seconds, value });
  }
}

export class Sampler {
  readonly series = new Series();
  private readonly world: World;
  private readonly probe: Probe;
  private readonly folder: string;
  private readonly ownLag: IntervalHistogram;
  private readonly startedMs = performance.now();
  private last = { seconds: 0, cpuMs: 0, published: 0, delivered: 0 };

  constructor(world: World, probe: Probe, folder: string) {
    this.world = world;
    this.probe = probe;
    this.folder = folder;
    this.ownLag = monitorEventLoopDelay({ resolution: lagResolutionMs });
    this.ownLag.enable();
    this.last.cpuMs = cpuMs(this.pid);
  }

  private get pid(): number {
    return this.world.node.child.pid as number;
  }

  get seconds(): number {
    return (performance.now() - this.startedMs) / 1000;
  }

  async sample(): Promise<void> {
    const { world } = this;
    const metrics = (await world.web("GET", "/metrics", undefined, {}, world.samplingAgent)).body.toString();
    const { seconds } = this;
    const add = (name: string, value: number | undefined) => this.series.add(name, seconds, value);
    for (const line of this.probe.take()) {
      const at = (line.at - performance.timeOrigin - this.startedMs) / 1000;
      const put = (name: string, value: number | undefined) =>
        this.series.add(`${name} ${line.thread}`, at, value === undefined ? undefined : value / mebibyte);
      put("heap", line.heap);
      put("live heap", line.live);
      put("external", line.external);
      this.series.add(`timers ${line.thread}`, at, line.timers);
    }
    const status = readFileSync(`/proc/${this.pid}/status`, "utf8");
    add("RSS", numberOf(status, "VmRSS") / 1024);
    add("threads", numberOf(status, "Threads"));
    const { files, sockets } = descriptors(this.pid);
    add("files", files);
    add("sockets", sockets);
    const disk = usage(this.folder);
    add("disk", disk.bytes / mebibyte);
    add("disk files", disk.files);
    for (const thread of ["main", "worker-0"]) {
      const [lag] = metricValues(metrics, "narthex_loop_lag_ms", { quantile: "0.99", thread });
      add(`loop lag ${thread}`, lag);
    }
    add("cells", sum(metricValues(metrics, "narthex_cells", {})));
    add("metrics text", metrics.length / 1024);
    add("load's lag", this.ownLag.percentile(99) / 1e6 - lagResolutionMs);
    this.ownLag.reset();
    this.addRates(seconds);
  }

  private addRates(seconds: number): void {
    const { world, last } = this;
    const published = world.topics.reduce((total, { confirmed }) => total + confirmed, 0);
    const delivered = world.groups.reduce((total, group) => total + group.delivered, 0);
    const cpu = cpuMs(this.pid);
    const passed = seconds - last.seconds;
    this.series.add("published", seconds, (published - last.published) / passed);
    this.series.add("delivered", seconds, (delivered - last.delivered) / passed);
    this.series.add("CPU", seconds, (cpu - last.cpuMs) / 10 / passed);
    const events = published - last.published + (delivered - last.delivered);
    if (events > 0) this.series.add("CPU per event", seconds, ((cpu - last.cpuMs) * 1000) / events);
    for (const [name, histogram] of [["OK", world.okMs] as const, ["EVENT", world.eventMs] as const]) {
      this.series.add(`${name} p50`, seconds, histogram.quantile(0.5));
      this.series.add(`${name} p99`, seconds, histogram.quantile(0.99));
      histogram.clear();
    }
    this.last = { seconds, cpuMs: cpu, published, delivered };
  }
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}

function numberOf(status: string, name: string): number {
  return Number(new RegExp(`^${name}:\\s+(\\d+)`, "m").exec(status)?.[1] ?? Number.NaN);
}

function cpuMs(pid: number): number {
  const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  return ((Number(fields[11]) + Number(fields[12])) * 1000) / ticksPerSecond;
}

function descriptors(pid: number): { files: number; sockets: number } {
  const folder = `/proc/${pid}/fd`;
  const found = { files: 0, sockets: 0 };
  for (const name of readdirSync(folder)) {
    const target = orGone(() => readlinkSync(join(folder, name)));
    if (target !== undefined) found[target.startsWith("socket:") ? "sockets" : "files"]++;
  }
  return found;
}

function usage(folder: string): { bytes: number; files: number } {
  const found = { bytes: 0, files: 0 };
  for (const name of readdirSync(folder, { recursive: true })) {
    const stat = orGone(() => statSync(join(folder, String(name))));
    if (stat?.isFile() !== true) continue;
    found.bytes += stat.blocks * 512;
    found.files++;
  }
  return found;
}

/** What was listed a moment ago may be gone. */
function orGone<T>(look: () => T): T | undefined {
  try {
    return look();
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw error;
  }
}
