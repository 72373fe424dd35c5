// One topic that grows to N events with a group that keeps up: what an event costs at 10,000 stored ones, at ten times as many, and so on; then the
// node is killed, and started on what is there. The log prepares a file of 64 MiB for every quarter of a million events, which is in one or two of the
// measurements at a mark; their median leaves it out, and the line of the way to the mark has it.

import { dataFolder } from "../test/support/node-process.ts";
import { Work } from "./support/canonical.ts";
import { Latencies } from "./support/latency.ts";
import { measure, warmUpToQuiet } from "./support/measure.ts";
import { median, medians, print, printGoal, type Result, resultOf, resultTable, spread } from "./support/report.ts";
import { numberFrom, type Settings, settings } from "./support/settings.ts";
import { type NarthexSystem, speechFrom, startNarthex } from "./systems/narthex.ts";

const set = settings({ n: 1_000_000, pairs: 7 });
const speech = speechFrom("library");
/** Events of one measurement; there are PAIRS of them at each mark. */
const slice = numberFrom("SLICE", 10_000);
const marks = [];
for (let mark = numberFrom("FROM", 10_000); mark <= set.n; mark *= 10) marks.push(mark);
if (marks.length < 2 || set.pairs * slice >= 9 * marks[0])
  throw new Error("two marks, and what is measured at one before the next");

const folder = dataFolder();
const fresh = await start();
await warm(fresh.system);
const lines: Result[][] = [];
const ways: Result[] = [];
const work = await Work.start(fresh.system, set, set.n + set.pairs * slice);
for (const mark of marks) {
  ways.push(await measureWay(fresh.system, work, mark));
  lines.push(await measureAt(fresh.system, work, mark));
}
await work.settled();
await work.close();
await fresh.system.stop();

const end = marks[marks.length - 1] + set.pairs * slice;
const stored = set.warmUp + end;
const again = await start();
await assertEnd(again.system, end);
const bytes = ((await again.system.storedBytes()) as number) / stored;
const started = resultOf("growth", again.system, set, 0, { ms: again.ms, used: {} }, undefined, {
  variant: `start with ${stored} stored`,
  start_ms: Math.round(again.ms),
  start_empty_ms: Math.round(fresh.ms),
  stored_bytes_per_event: Math.round(bytes),
});
print(started);
await again.system.stop();
folder.remove();

const rows = marks.flatMap((_, i) => [ways[i], medians(lines[i])]);
console.log(resultTable([...rows, started], ["start_ms", "start_empty_ms"]));
const server = (results: readonly Result[]) => results.map(({ cpu_us_per_event: cpu }) => cpu.server ?? 0);
const least = median(server(lines[0]));
const most = server(lines[lines.length - 1]).map((micros) => micros / least);
printGoal(
  `server CPU per event, at ${marks[marks.length - 1]} / at ${marks[0]}`,
  median(most),
  { is: "≤", bound: 1.25, unit: " ×" },
  `${spread(most)} × in ${most.length} measurements`,
);
printGoal(`start with ${stored} events`, again.ms / 1000, { is: "<", bound: 2, unit: " s" });
printGoal("stored bytes per event", bytes, { is: "≤", bound: Math.round(1.2 * set.payloadBytes + 60), unit: " B" });

async function start(): Promise<{ system: NarthexSystem; ms: number }> {
  const from = performance.now();
  const system = await startNarthex(set, speech, {}, folder.path);
  return { system, ms: performance.now() - from };
}

/** On another topic, so that what is compared is a warm node each time. */
async function warm(system: NarthexSystem): Promise<void> {
  const other: Settings = { ...set, topic: `${set.topic}.warm` };
  const work = await Work.start(system, other, set.warmUp);
  await warmUpToQuiet(system, set.warmUp, (to) => work.advance(to));
  await work.settled();
  await work.close();
}

async function measureWay(system: NarthexSystem, work: Work, mark: number): Promise<Result> {
  const count = mark - work.events;
  const measured = await measure(system, () => work.advance(mark));
  const result = resultOf("growth", system, set, count, measured, undefined, { variant: `on the way to ${mark}` });
  print(result);
  return result;
}

async function measureAt(system: NarthexSystem, work: Work, mark: number): Promise<Result[]> {
  const results: Result[] = [];
  for (let i = 1; i <= set.pairs; i++) {
    const latencies = new Latencies(slice);
    const measured = await measure(system, () => work.advance(mark + i * slice, { latencies }));
    const result = resultOf("growth", system, set, slice, measured, latencies.percentiles(), {
      variant: `at ${mark} stored`,
      stored_events: mark,
    });
    print(result);
    results.push(result);
  }
  return results;
}

/** Nothing that was confirmed is missing. */
async function assertEnd(system: NarthexSystem, end: number): Promise<void> {
  const answer = await fetch(`${system.http}/topics/${set.topic}/offsets`);
  const { partitions } = (await answer.json()) as { partitions: readonly { end: number }[] };
  if (partitions[0].end !== end) throw new Error(`the topic ends at ${partitions[0].end}, published were ${end}`);
}
