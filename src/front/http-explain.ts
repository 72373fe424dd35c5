// Why a group gets nothing, and what became of one event: `GET /explain` and `GET /history`. This file asks whoever knows, all at
// once, and hands what they say to explain.ts.

import { type EventFacts, type GroupFacts, groupCell } from "../actors/messages.ts";
import { type Failure, failure, isFailure } from "../protocol/failure.ts";
import { eventIdFault, groupFault } from "../protocol/names.ts";
import type { ShardState } from "../runtime/system.ts";
import type { PartitionSituation } from "./explain.ts";
import { explain } from "./explain-answer.ts";
import { instant } from "./explain-words.ts";
import { type Exchange, type HttpOptions, type HttpRoute, orRefuse, readableTopic, refusal } from "./http-exchange.ts";
import { locateId } from "./place.ts";
import type { Route } from "./router.ts";

/** A topic may have 1,000 groups: so many are asked at a time. */
const asksMax = 64;

const note =
  "Who held an event is remembered in memory only, as far as the latest leases go: a restart of the node or of its shard leaves " +
  "what the cursor stores, which is whether the event is settled and how many attempts have ended.";

export function explainRoutes(options: HttpOptions): readonly HttpRoute[] {
  return [
    { method: "GET", path: "/explain", handle: (exchange) => explainGroup(exchange, options) },
    { method: "GET", path: "/history", handle: (exchange) => history(exchange, options) },
  ];
}

// ---------------------------------------------------------------------------------------------------------------- explain

async function explainGroup(exchange: Exchange, options: HttpOptions): Promise<void> {
  const { router, members, clock, closing } = options;
  const query = exchange.query("topic", "group");
  const topic = query.needed("topic");
  const group = query.needed("group");
  const fault = groupFault(group);
  if (fault !== undefined) throw refusal("bad_group", fault, "group");
  const route = await readableTopic(exchange, router, topic, group);
  const partitions = await partitionsOf(options, route, group);
  const missing = partitions.every(({ facts }) => !isFailure(facts) && !facts.exists);
  const otherGroups = missing ? await groupsFor(exchange, options, route) : [];
  const subscriptions = members.of(route.record.id, group).map((subscription) => subscription.facts());
  exchange.json(
    200,
    explain({ topic, group, at: clock.wall(), draining: closing(), subscriptions, partitions, otherGroups }),
  );
}

function partitionsOf(
  { system }: HttpOptions,
  { partitions }: Route,
  group: string,
): Promise<readonly PartitionSituation[]> {
  return Promise.all(
    partitions.map(async ({ partition, shard, stream }): Promise<PartitionSituation> => {
      const cell = groupCell(stream, group);
      const answered = await askUnlessDown(stateOf(system.state(), shard), () =>
        system.request({ shard, cell }, { type: "explain" }),
      );
      // As it is after the answer: what the table did not say, the state explains.
      const state = stateOf(system.state(), shard);
      const givenUp = state?.failedCells.find((failed) => failed.cell === cell);
      const facts = givenUp === undefined ? answered : failure("unavailable", `it was given up: ${givenUp.reason}`);
      return { partition, shard, status: state?.status ?? "up", reason: state?.reason, facts };
    }),
  );
}

async function askUnlessDown(
  state: ShardState | undefined,
  ask: () => Promise<GroupFacts | Failure>,
): Promise<GroupFacts | Failure> {
  if (state?.status === "down" || state?.status === "opening") {
    return failure("unavailable", state.reason ?? `shard ${state.shard} is ${state.status}`);
  }
  return ask();
}

function stateOf(states: readonly ShardState[], shard: number): ShardState | undefined {
  return states.find((state) => state.shard === shard);
}

/** The groups that the caller may know of. A partition that cannot be asked names none. */
async function groupsFor({ granted }: Exchange, { system }: HttpOptions, route: Route): Promise<readonly string[]> {
  const infos = await Promise.all(route.partitions.map(({ address }) => system.request(address, { type: "describe" })));
  const names = new Set(infos.flatMap((info) => (isFailure(info) ? [] : info.groups)));
  return [...names].filter((name) => granted.rights.subscribe(route.topic, name)).sort();
}

// ---------------------------------------------------------------------------------------------------------------- history

async function history(exchange: Exchange, options: HttpOptions): Promise<void> {
  const { router, system } = options;
  const query = exchange.query("topic", "id");
  const topic = query.needed("topic");
  const id = query.needed("id");
  const fault = eventIdFault(id);
  if (fault !== undefined) throw refusal("bad_option", fault, "id");
  const route = await readableTopic(exchange, router, topic);
  const { partition, offset, ts } = orRefuse(await locateId(system, route, id), "id");
  const { address, shard, stream } = route.partitions[partition];
  const info = orRefuse(await system.request(address, { type: "describe" }));
  const names = info.groups.filter((name) => exchange.granted.rights.subscribe(topic, name)).sort();
  const groups: object[] = [];
  for (let from = 0; from < names.length; from += asksMax) {
    const some = names.slice(from, from + asksMax);
    const ask = (name: string) => system.request({ shard, cell: groupCell(stream, name) }, { type: "history", offset });
    const answers = await Promise.all(some.map(ask));
    groups.push(...answers.flatMap((answer, i) => groupJson(some[i], answer)));
  }
  exchange.json(200, { topic, id, partition, offset, ts, groups, note });
}

/** Nothing of one that ended since its name was read. */
function groupJson(group: string, facts: EventFacts | Failure): object[] {
  if (isFailure(facts)) return [{ group, state: "unreachable", error: facts.msg, code: facts.code, holders: [] }];
  const { exists, state, attempts, until, at, reason, behind, holdings } = facts;
  if (!exists) return [];
  const holders = holdings.map(({ who, attempt, from, until, outcome, counted, reason }) => ({
    who,
    attempt,
    from: instant(from),
    until: instant(until),
    outcome,
    ...(counted ? {} : { counted }),
    ...(reason === undefined ? {} : { reason }),
  }));
  return [
    {
      group,
      state,
      ...(attempts === undefined ? {} : { attempts }),
      ...(until === undefined ? {} : { until: instant(until) }),
      ...(at === undefined ? {} : { at: instant(at) }),
      ...(reason === undefined ? {} : { reason }),
      ...(behind === undefined ? {} : { behind }),
      holders,
    },
  ];
}
