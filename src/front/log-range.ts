// Where reading a topic begins and ends in each partition. Heads are read first and bound the reading, so what is published
// meanwhile belongs to the next page or the next export.

import type { System } from "../runtime/system.ts";
import { orRefuse, refusal } from "./http-exchange.ts";
import { locateId } from "./place.ts";
import type { Route, RoutePartition } from "./router.ts";

export interface LaneRange {
  readonly partition: RoutePartition;
  readonly from: number;
  readonly to: number;
}

/** Where the partitions begin that no position names. */
export type Start =
  | { readonly kind: "earliest" }
  /** At the first event whose ts is at least this. */
  | { readonly kind: "ts"; readonly ts: number }
  /** Behind this event in the merged order. */
  | { readonly kind: "afterId"; readonly id: string };

interface Asking {
  readonly system: System;
  readonly route: Route;
}

/** By partition, without a gap. */
export async function rangesOf(
  asking: Asking,
  { start, after }: { readonly start: Start; readonly after: ReadonlyMap<number, number> },
): Promise<readonly LaneRange[]> {
  const { system, route } = asking;
  for (const partition of after.keys()) {
    if (partition < route.partitions.length) continue;
    throw refusal("bad_option", `after names partition ${partition} of ${route.partitions.length}`, "after");
  }
  const heads = await Promise.all(
    route.partitions.map(async ({ address }) => orRefuse(await system.request(address, { type: "describe" }))),
  );
  const unnamed = route.partitions.filter(({ partition }) => !after.has(partition));
  const starts = new Map([...after, ...(unnamed.length === 0 ? [] : await startsOf(asking, unnamed, start))]);
  return route.partitions.map((partition, index) => {
    const { start: first, end: to } = heads[index];
    // What retention has removed is passed over; a position past the end waits there for what comes.
    const from = Math.min(Math.max(starts.get(partition.partition) ?? first, first), to);
    return { partition, from, to };
  });
}

type Offset = readonly [partition: number, offset: number];

async function startsOf(
  asking: Asking,
  partitions: readonly RoutePartition[],
  start: Start,
): Promise<readonly Offset[]> {
  switch (start.kind) {
    case "earliest":
      return [];
    case "ts":
      return Promise.all(partitions.map((partition) => locateTs(asking, partition, start.ts)));
    case "afterId": {
      const found = orRefuse(await locateId(asking.system, asking.route, start.id), "afterId");
      return Promise.all(
        partitions.map((partition): Promise<Offset> | Offset => {
          if (partition.partition === found.partition) return [found.partition, found.offset + 1];
          // Of events with the same ts, those of lower partitions stand before it.
          return locateTs(asking, partition, partition.partition < found.partition ? found.ts + 1 : found.ts);
        }),
      );
    }
    default:
      return start satisfies never;
  }
}

async function locateTs({ system }: Asking, { address, partition }: RoutePartition, ts: number): Promise<Offset> {
  return [partition, orRefuse(await system.request(address, { type: "locateTs", ts })).offset];
}
