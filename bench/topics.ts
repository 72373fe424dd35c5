// From one topic to 10,000. Active: N events, published to all of them in turn, so that with many topics each commit has many small blocks. Idle: what
// a node holds for each topic that nobody uses, and whether it has timers or takes any of the processor for them.

import { setTimeout as sleep } from "node:timers/promises";
import { connect, type EventClient } from "../src/client/client.ts";
import { printMedians, takeTurns } from "./support/compare.ts";
import { processMicros } from "./support/cpu.ts";
import { publishWindow } from "./support/drive.ts";
import { Latencies } from "./support/latency.ts";
import { measure, warmUpToQuiet } from "./support/measure.ts";
import { payloadMaker } from "./support/payload.ts";
import { print, printGoal, type Result, resultOf, resultTable } from "./support/report.ts";
import { numberFrom, numbersFrom, settings } from "./support/settings.ts";
import { perOne, startStanding } from "./support/stand.ts";
import type { Publisher } from "./support/system.ts";
import { warmMemory } from "./support/warm.ts";
import { type NarthexSystem, startNarthex } from "./systems/narthex.ts";

const set = settings({ n: 50_000, warmUp: 10_000, pairs: 3 });
const counts = numbersFrom("TOPICS", [1, 100, 10_000]);
const quietMs = numberFrom("QUIET_MS", 3000);
/** The first ones make a node ready: what they bring is there once. */
const firstShare = 0.1;
/** Requests under way at once. */
const lanes = 16;
const make = payloadMaker(set.payloadBytes);
const makers = { made, used } as const;

const rounds = await takeTurns(
  set.pairs,
  counts.map((count) => () => active(count)),
);
const most = Math.max(...counts);
const still = [await idle("made", most), await idle("used", most)];
printMedians(rounds);
console.log(resultTable(still, ["resident_bytes_each", "held_bytes_each", "timers_more", "idle_cpu_us_per_s_more"]));
for (const { variant, resident_bytes_each: each, timers_more: timers } of still as Still[]) {
  printGoal(`${variant}, resident bytes for each topic`, each, { is: "<", bound: 2000, unit: " B" });
  printGoal(`${variant}, timers for each topic`, timers / most, { is: "<", bound: 0.01 });
}

type Still = Result & ReturnType<typeof perOne>;

async function active(count: number): Promise<Result> {
  warmMemory();
  const system = await startNarthex(set);
  const client = await connect(system.wsUrl);
  const topics = Array.from({ length: count }, (_, i) => `${set.topic}.${i}`);
  const publisher = roundRobin(client, topics);
  const { n, warmUp, window } = set;
  // Each topic is made before anything is measured.
  const from = Math.max(warmUp, count);
  let next = 0;
  await warmUpToQuiet(system, from, (to) => {
    const step = { from: next, to, window, make };
    next = to;
    return publishWindow(publisher, step);
  });
  const latencies = new Latencies(n);
  const confirmed = (ms: number) => latencies.add(ms);
  const measured = await measure(system, () =>
    publishWindow(publisher, { from, to: from + n, window, make, confirmed }),
  );
  await client.close();
  await system.stop();
  const result = resultOf("topics", system, set, n, measured, latencies.percentiles(), { variant: `active ${count}` });
  print(result);
  return result;
}

/** `made`: they never had an event; `used`: each had one a moment ago, which is remembered for two minutes lest it be published twice. */
async function idle(how: keyof typeof makers, count: number): Promise<Result> {
  const { system, look, stop } = await startStanding(set);
  const first = Math.max(1, Math.floor(count * firstShare));
  await makers[how](system, 0, first);
  const before = await look();
  const quietBefore = await quietMicros(system.pid);
  const started = performance.now();
  await makers[how](system, first, count);
  const ms = performance.now() - started;
  const after = await look();
  const quietAfter = await quietMicros(system.pid);
  await stop();
  const result = resultOf("topics", system, set, 0, { ms, used: {} }, undefined, {
    variant: `idle ${count}, ${how}`,
    ...perOne(before, after, count - first),
    idle_cpu_us_per_s_more: Math.round(quietAfter - quietBefore),
  });
  print(result);
  return result;
}

/** What the process takes of each second in which nobody asks for anything. */
async function quietMicros(pid: number): Promise<number> {
  const before = processMicros([pid]);
  await sleep(quietMs);
  return (processMicros([pid]) - before) / (quietMs / 1000);
}

async function made({ http }: NarthexSystem, from: number, to: number): Promise<void> {
  let next = from;
  const request = { method: "PUT", headers: { "content-type": "application/json" }, body: "{}" };
  const lane = async () => {
    for (let i = next++; i < to; i = next++) {
      const { status } = await fetch(`${http}/topics/${set.topic}.${i}`, request);
      if (status !== 201) throw new Error(`a topic was not made: ${status}`);
    }
  };
  await Promise.all(Array.from({ length: lanes }, lane));
}

/** By a connection that is gone after it. */
async function used({ wsUrl }: NarthexSystem, from: number, to: number): Promise<void> {
  const client = await connect(wsUrl);
  const topics = Array.from({ length: to }, (_, i) => `${set.topic}.${i}`);
  await publishWindow(roundRobin(client, topics), { from, to, window: set.window, make });
  await client.close();
}

function roundRobin(client: EventClient, topics: readonly string[]): Publisher {
  return {
    publish: (payload) => client.publish(topics[payload.i % topics.length], payload),
    close: () => client.close(),
  };
}
