// The work we stand for: each event published, stored, leased, received and acknowledged; by one group or several, of one member or many.

import { within } from "../../test/support/deadline.ts";
import { Arrivals, publishPaced, publishWindow } from "./drive.ts";
import { Latencies, type Percentiles } from "./latency.ts";
import { type Measured, measure, warmUpToQuiet } from "./measure.ts";
import { payloadMaker } from "./payload.ts";
import { print, type Result, resultOf } from "./report.ts";
import type { Settings } from "./settings.ts";
import type { Clients, Consumer, Publisher, System } from "./system.ts";
import { warmMemory } from "./warm.ts";

const patienceMs = 300_000;

/** Who consumes, one group of one member unless it says more. */
export interface Shape {
  readonly groups?: number;
  /** Of each group; they share its events, so no member sees them all. */
  readonly members?: number;
  /** The topic has several partitions, and order holds within each. */
  readonly partitioned?: boolean;
}

export interface Step {
  readonly latencies?: Latencies;
  /** Publishes at this pace in place of keeping a window full. */
  readonly perSecond?: number | undefined;
}

/** The work as it goes on: events up to a number, then up to the next one. */
export class Work {
  private readonly set: Settings;
  private readonly publisher: Publisher;
  private readonly consumers: readonly Consumer[];
  private readonly groups: readonly Arrivals[];
  private published = 0;

  /** `total`: how many events there will be at most. */
  static async start(clients: Clients, set: Settings, total: number, shape: Shape = {}): Promise<Work> {
    const { topic, window } = set;
    const { groups = 1, members = 1, partitioned = false } = shape;
    const consumers: Consumer[] = [];
    const arrivals: Arrivals[] = [];
    for (let g = 0; g < groups; g++) {
      const of = new Arrivals({ total, ordered: members === 1 && !partitioned });
      for (let m = 0; m < members; m++) {
        consumers.push(await clients.consumer({ topic, group: `bench-${g}`, window, onEvent: of.take }));
      }
      arrivals.push(of);
    }
    return new Work(set, await clients.publisher(topic), consumers, arrivals);
  }

  private constructor(
    set: Settings,
    publisher: Publisher,
    consumers: readonly Consumer[],
    groups: readonly Arrivals[],
  ) {
    this.set = set;
    this.publisher = publisher;
    this.consumers = consumers;
    this.groups = groups;
  }

  /** That were published so far. */
  get events(): number {
    return this.published;
  }

  /** Publishes up to this event; resolves when each is confirmed and has come to each group. */
  async advance(to: number, { latencies, perSecond }: Step = {}): Promise<void> {
    const { window } = this.set;
    const make = payloadMaker(this.set.payloadBytes);
    const from = this.published;
    this.published = to;
    for (const arrivals of this.groups) arrivals.latencies = latencies;
    const published =
      perSecond === undefined
        ? publishWindow(this.publisher, { from, to, window, make })
        : publishPaced(this.publisher, { from, to, perSecond, make });
    await within(patienceMs, "every event is confirmed", published);
    await within(patienceMs, "every event arrives", Promise.all(this.groups.map((arrivals) => arrivals.until(to))));
  }

  /** Resolves when every ack is confirmed; nothing is published after it. */
  async settled(): Promise<void> {
    const all = Promise.all(this.consumers.map((consumer) => consumer.settled()));
    await within(patienceMs, "every ack is confirmed", all);
  }

  async close(): Promise<void> {
    await this.publisher.close();
    await Promise.all(this.consumers.map((consumer) => consumer.close()));
  }
}

export interface Canonical {
  readonly measured: Measured;
  /** From the call of publish, or from when an event was due, to its arrival at each group. */
  readonly latency: Percentiles;
  readonly storedPerEvent: number | undefined;
}

/** What is varied of the work, besides its settings. */
export interface Variation extends Shape, Pick<Step, "perSecond"> {
  /** Measures a system that has done what it does once after its start. */
  readonly fromQuiet?: boolean;
}

export async function canonical(system: System, set: Settings, variation: Variation = {}): Promise<Canonical> {
  const { n, warmUp } = set;
  const total = warmUp + n;
  const { perSecond, fromQuiet = false, ...shape } = variation;
  const latencies = new Latencies(n * (shape.groups ?? 1));
  const work = await Work.start(system, set, total, shape);
  if (fromQuiet) await warmUpToQuiet(system, warmUp, (to) => work.advance(to));
  else await work.advance(warmUp);
  const measured = await measure(system, async () => {
    await work.advance(total, { latencies, perSecond });
    await work.settled();
  });
  const stored = await system.storedBytes();
  await work.close();
  return {
    measured,
    latency: latencies.percentiles(),
    storedPerEvent: stored === undefined ? undefined : stored / total,
  };
}

/** Once, by a system of its own, from its start to its end. */
export async function canonicalOnce(
  bench: string,
  start: () => Promise<System>,
  set: Settings,
  variation: Variation = {},
  variant?: string,
): Promise<Result> {
  warmMemory();
  const system = await start();
  try {
    const { measured, latency, storedPerEvent } = await canonical(system, set, variation);
    const result = resultOf(bench, system, set, set.n, measured, latency, {
      ...(variant === undefined ? {} : { variant }),
      version: system.version,
      per_second: variation.perSecond,
      stored_bytes_per_event: storedPerEvent === undefined ? undefined : Math.round(storedPerEvent),
    });
    print(result);
    return result;
  } finally {
    await system.stop();
  }
}
