// The work we stand for: each event published, stored, leased, received and acknowledged.

import { within } from "../../test/support/deadline.ts";
import { Arrivals, publishPaced, publishWindow } from "./drive.ts";
import { Latencies, type Percentiles } from "./latency.ts";
import { type Measured, measure } from "./measure.ts";
import { payloadMaker } from "./payload.ts";
import type { Settings } from "./settings.ts";
import type { System } from "./system.ts";

const patienceMs = 300_000;

export interface Canonical {
  readonly measured: Measured;
  /** From the call of publish, or the time when it was due, to the event's arrival at the consumer. */
  readonly latency: Percentiles;
  readonly storedPerEvent: number | undefined;
}

/** At `perSecond`, where it is given, or as fast as a full window goes. */
export async function canonical(system: System, set: Settings, perSecond?: number): Promise<Canonical> {
  const { n, warmUp, window, topic } = set;
  const total = warmUp + n;
  const latencies = new Latencies(n);
  const arrivals = new Arrivals({ total, ordered: true, latencies, measuredFrom: warmUp });
  const make = payloadMaker(set.payloadBytes);
  const consumer = await system.consumer({ topic, group: "bench", window, onEvent: arrivals.take });
  const publisher = await system.publisher(topic);
  await publishWindow(publisher, { from: 0, to: warmUp, window, make });
  await within(patienceMs, "the warm-up arrives", arrivals.until(warmUp));
  const measured = await measure(system, async () => {
    const work = { from: warmUp, to: total, make };
    const published =
      perSecond === undefined
        ? publishWindow(publisher, { ...work, window })
        : publishPaced(publisher, { ...work, perSecond });
    await within(patienceMs, "every event is confirmed", published);
    await within(patienceMs, "every event arrives", arrivals.until(total));
    await within(patienceMs, "every ack is confirmed", consumer.settled());
  });
  const stored = await system.storedBytes();
  await publisher.close();
  await consumer.close();
  return {
    measured,
    latency: latencies.percentiles(),
    storedPerEvent: stored === undefined ? undefined : stored / total,
  };
}
