// How far the groups of a topic are, gathered from the lease tables of its partitions.

import { type CursorState, groupCell } from "../actors/messages.ts";
import type { System } from "../runtime/system.ts";
import { orRefuse } from "./http-exchange.ts";
import type { Route } from "./router.ts";

/** A topic may have 1,000 groups on 64 partitions: so many asks are under way at a time. */
const asksMax = 64;

export interface PartitionCursor extends CursorState {
  readonly partition: number;
}

export interface GroupCursor {
  readonly group: string;
  readonly lag: number;
  /** Of the newest event below a floor, where it is still stored. */
  readonly lastId?: string;
  readonly lastTs?: number;
  readonly members: number;
  /** Those on which the group is known. */
  readonly partitions: readonly PartitionCursor[];
}

/** The names of all groups of the topic, in order. */
export async function groupsOf(system: System, route: Route): Promise<readonly string[]> {
  const infos = await Promise.all(
    route.partitions.map(async ({ address }) => orRefuse(await system.request(address, { type: "describe" }))),
  );
  return [...new Set(infos.flatMap(({ groups }) => groups))].sort();
}

/** In the order of `groups`; one that no partition knows is undefined. */
export async function cursorsOf(
  system: System,
  route: Route,
  groups: readonly string[],
): Promise<readonly (GroupCursor | undefined)[]> {
  const cursors: (GroupCursor | undefined)[] = [];
  const width = Math.max(1, Math.floor(asksMax / route.partitions.length));
  for (let from = 0; from < groups.length; from += width) {
    const some = groups.slice(from, from + width);
    cursors.push(...(await Promise.all(some.map((group) => cursorOf(system, route, group)))));
  }
  return cursors;
}

async function cursorOf(system: System, route: Route, group: string): Promise<GroupCursor | undefined> {
  const states = await Promise.all(
    route.partitions.map(async ({ partition, shard, stream }): Promise<PartitionCursor> => {
      const address = { shard, cell: groupCell(stream, group) };
      return { partition, ...orRefuse(await system.request(address, { type: "cursor" })) };
    }),
  );
  const partitions = states.filter(({ exists }) => exists);
  if (partitions.length === 0) return undefined;
  let newest: PartitionCursor | undefined;
  for (const state of partitions) {
    if (state.lastTs !== undefined && (newest?.lastTs === undefined || state.lastTs > newest.lastTs)) newest = state;
  }
  return {
    group,
    lag: partitions.reduce((sum, { lag }) => sum + lag, 0),
    // A member has joined on every partition.
    members: Math.max(...partitions.map(({ members }) => members)),
    ...(newest?.lastId === undefined ? {} : { lastId: newest.lastId }),
    ...(newest?.lastTs === undefined ? {} : { lastTs: newest.lastTs }),
    partitions,
  };
}

/** In the order of `cursors`: for how long the oldest lease that is out has been held; undefined where none is. */
export async function oldestLeasesOf(
  system: System,
  route: Route,
  cursors: readonly GroupCursor[],
): Promise<readonly (number | undefined)[]> {
  const oldest: (number | undefined)[] = [];
  const width = Math.max(1, Math.floor(asksMax / route.partitions.length));
  for (let from = 0; from < cursors.length; from += width) {
    const some = cursors.slice(from, from + width);
    oldest.push(...(await Promise.all(some.map((cursor) => oldestLeaseOf(system, route, cursor)))));
  }
  return oldest;
}

async function oldestLeaseOf(system: System, route: Route, cursor: GroupCursor): Promise<number | undefined> {
  const holding = cursor.partitions.filter(({ leased }) => leased > 0);
  const held = await Promise.all(
    holding.map(async ({ partition }) => {
      const { shard, stream } = route.partitions[partition];
      const address = { shard, cell: groupCell(stream, cursor.group) };
      return orRefuse(await system.request(address, { type: "explain" })).oldestLease?.heldMs;
    }),
  );
  const known = held.filter((ms) => ms !== undefined);
  return known.length === 0 ? undefined : Math.round(Math.max(...known));
}
