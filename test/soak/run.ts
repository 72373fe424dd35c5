// One soak run from start to end: a node as a process of its own on a folder of its own, the load, a sample every few seconds, the verdicts.

import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { startNode } from "../support/node-process.ts";
import { judge, type Point, type Span, type Verdict } from "./judge.ts";
import { Load } from "./load.ts";
import { measureOf } from "./measures.ts";
import { Probe } from "./probe.ts";
import { Sampler } from "./sampler.ts";
import { World } from "./world.ts";

export interface SoakOptions {
  readonly minutes: number;
  /** Events published in a second, over all topics; each is delivered to one to two groups. */
  readonly rate: number;
  readonly seed: number;
  readonly leak?: string | undefined;
  readonly say: (text: string) => void;
}

export interface SoakReport {
  readonly span: Span;
  readonly series: ReadonlyMap<string, readonly Point[]>;
  readonly verdicts: readonly Verdict[];
  readonly faults: readonly string[];
  readonly faultCount: number;
  readonly counts: ReadonlyMap<string, number>;
  readonly totals: {
    readonly published: number;
    readonly delivered: number;
    readonly again: number;
    readonly dead: number;
  };
}

const saysEveryMs = 60_000;
/** For hours V8 compiles one more function now and then: 70 MiB of heap a day that look like a leak. What is interpreted shows only what is kept. */
const uncompiled: readonly string[] = ["--no-opt", "--no-sparkplug"];

/** The dedupe window of 120 s, retention and all caches must have filled once; a short run cannot wait for that. */
export function warmUpSeconds(seconds: number): number {
  return Math.min(seconds * 0.3, Math.max(240, seconds / 10));
}

export async function soak(options: SoakOptions): Promise<SoakReport> {
  const folder = mkdtempSync(join(tmpdir(), "narthex-soak-"));
  const data = join(folder, "data");
  const seconds = options.minutes * 60;
  const sampleMs = Math.max(250, Math.min(5000, (seconds * 1000) / 200));
  const collectMs = Math.max(200, Math.min(30_000, (seconds * 1000) / 100));
  const probe = new Probe(folder, { sampleMs, collectMs, leak: options.leak });
  const env = { STORE: "log", WORKERS: "1", CONN_RATE: "off", TOPIC_RATE: "off", NODE_OPTIONS: probe.nodeOptions };
  const node = await startNode({ data, env, nodeFlags: uncompiled });
  try {
    const world = new World(node, options.rate, options.seed);
    const load = new Load(world, seconds);
    await load.start();
    const sampler = new Sampler(world, probe, data);
    let said = performance.now();
    while (sampler.seconds < seconds && node.child.exitCode === null) {
      await world.pause(sampleMs);
      await sampler.sample();
      if (performance.now() - said < saysEveryMs) continue;
      said = performance.now();
      options.say(progress(sampler, world));
    }
    const span = { warmUpSeconds: warmUpSeconds(seconds), seconds: sampler.seconds };
    await load.finish();
    const code = await node.kill("SIGTERM");
    if (code !== 0) world.faults.add(`the node ended with ${code}`);
    // All that it should have to say of such a run is that it has no token.
    const complaints = node
      .out()
      .split("\n")
      .filter((line) => line.startsWith("{"));
    for (const line of complaints) world.faults.add(`the node logged ${line}`);
    return report(world, sampler, span);
  } finally {
    node.child.kill("SIGKILL");
    rmSync(folder, { recursive: true, force: true });
  }
}

function progress(sampler: Sampler, world: World): string {
  const last = (name: string) => sampler.series.points.get(name)?.at(-1)?.value ?? Number.NaN;
  const figures = ["RSS", "live heap main", "disk", "OK p50", "OK p99", "EVENT p50", "CPU", "published"];
  const text = figures.map((name) => `${name} ${last(name).toFixed(1)}`).join(", ");
  return `${(sampler.seconds / 60).toFixed(1)} min: ${text}, faults ${world.faults.count}`;
}

function report(world: World, { series }: Sampler, span: Span): SoakReport {
  const sum = (of: (group: World["groups"][number]) => number) =>
    world.groups.reduce((total, group) => total + of(group), 0);
  return {
    span,
    series: series.points,
    verdicts: verdictsOf(series.points, span),
    faults: world.faults.list,
    faultCount: world.faults.count,
    counts: world.counts,
    totals: {
      published: world.topics.reduce((total, { confirmed }) => total + confirmed, 0),
      delivered: sum(({ delivered }) => delivered),
      again: sum(({ again }) => again),
      dead: sum(({ dead }) => dead),
    },
  };
}

export function verdictsOf(series: ReadonlyMap<string, readonly Point[]>, span: Span): Verdict[] {
  const verdicts: Verdict[] = [];
  for (const [name, points] of series) {
    const measure = measureOf(name);
    if (measure !== undefined) verdicts.push(judge(measure, points, span));
  }
  return verdicts;
}

/** Steady in everything, and everything there that must be. */
export function isGood({ verdicts, faultCount }: SoakReport): boolean {
  return faultCount === 0 && verdicts.length > 0 && verdicts.every(({ finding }) => finding === "steady");
}
