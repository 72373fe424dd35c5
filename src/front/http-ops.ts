// For those who run the node: health, metrics, and how far groups are.

import { keyFault } from "../protocol/meta.ts";
import { groupFault } from "../protocol/names.ts";
import { cursorsOf, type GroupCursor, groupsOf, oldestLeasesOf } from "./group-cursors.ts";
import {
  type Exchange,
  type HttpOptions,
  HttpRefusal,
  type HttpRoute,
  orRefuse,
  readableTopic,
  refusal,
} from "./http-exchange.ts";

const cursorsDefault = 100;
const cursorsMax = 1000;
const keysDefault = 100;
const keysMax = 1000;
/** A page of latest events ends with the answer that passes this. */
const latestBytesMax = 4 * 1024 * 1024;

const newline = 0x0a;
const comma = 0x2c;

export function opsRoutes(options: HttpOptions): readonly HttpRoute[] {
  return [
    { method: "GET", path: "/health/live", handle: async (exchange) => exchange.json(200, { live: true }) },
    { method: "GET", path: "/health/ready", handle: (exchange) => ready(exchange, options) },
    { method: "GET", path: "/metrics", handle: (exchange) => metrics(exchange, options) },
    { method: "GET", path: "/stats", handle: (exchange) => stats(exchange, options) },
    { method: "GET", path: "/cursors", handle: (exchange) => cursors(exchange, options) },
    { method: "GET", path: "/lag", handle: (exchange) => lag(exchange, options) },
    { method: "GET", path: "/latest-by-key", handle: (exchange) => latestByKey(exchange, options) },
  ];
}

/** Open to everyone, so it says nothing of files and addresses. */
async function ready(exchange: Exchange, { status, system }: HttpOptions): Promise<void> {
  const { ready, reasons } = status();
  const states = system.state();
  const shards = states.map(({ shard, status, reason, failedCells }) => ({
    shard,
    status,
    reason,
    failed: failedCells.length === 0 ? undefined : failedCells,
  }));
  const damage = states.flatMap((state) =>
    state.damage.map(({ shard, reason, stream, from, to }) => ({ shard, reason, stream, from, to })),
  );
  exchange.json(ready ? 200 : 503, { ready, reasons, shards, ...(damage.length === 0 ? {} : { damage }) });
}

async function metrics(exchange: Exchange, { metricsText }: HttpOptions): Promise<void> {
  exchange.query();
  exchange.bytes(200, "text/plain; version=0.0.4; charset=utf-8", await metricsText());
}

/** The numbers of /metrics without their labels, for a quick look. */
async function stats(exchange: Exchange, { system, samples, status }: HttpOptions): Promise<void> {
  exchange.query();
  const totals: Record<string, number> = {};
  for (const { name, value } of await samples()) {
    if (typeof value === "number") totals[name] = (totals[name] ?? 0) + value;
  }
  const shards = system.state().map(({ shard, worker, status, epoch }) => ({ shard, worker, status, epoch }));
  exchange.json(200, { ready: status().ready, workers: system.workers, shards, totals });
}

// ------------------------------------------------------------------------------------------------------------------ groups

async function cursors(exchange: Exchange, { system, router }: HttpOptions): Promise<void> {
  const query = exchange.query("topic", "after", "limit");
  const topic = query.needed("topic");
  const after = query.text("after") ?? "";
  const limit = query.count("limit", { min: 1, max: cursorsMax }) ?? cursorsDefault;
  const route = await readableTopic(exchange, router, topic);
  const groups = (await groupsOf(system, route)).filter((group) => group > after);
  const page = groups.slice(0, limit);
  // One that ended since its name was read is left out.
  const found = (await cursorsOf(system, route, page)).filter((cursor) => cursor !== undefined);
  const next = groups.length > page.length ? page.at(-1) : undefined;
  const oldest = await oldestLeasesOf(system, route, found);
  exchange.json(200, { topic, cursors: found.map((cursor, i) => cursorJson(cursor, oldest[i])), next });
}

function cursorJson(cursor: GroupCursor, oldestLeaseMs: number | undefined): object {
  const { group, lastId, lastTs, lag, members, partitions } = cursor;
  return {
    group,
    lastId,
    lastTs,
    lag,
    members,
    oldestLeaseMs,
    partitions: partitions.map(({ partition, floor, ranges, start, end, lag, leased, waiting }) => ({
      partition,
      floor,
      ranges,
      start,
      end,
      lag,
      leased,
      waiting,
    })),
  };
}

async function lag(exchange: Exchange, { system, router }: HttpOptions): Promise<void> {
  const query = exchange.query("topic", "group");
  const topic = query.needed("topic");
  const group = query.needed("group");
  const fault = groupFault(group);
  if (fault !== undefined) throw refusal("bad_group", fault, "group");
  const route = await readableTopic(exchange, router, topic, group);
  const [cursor] = await cursorsOf(system, route, [group]);
  if (cursor === undefined) throw unknownGroup(topic, group);
  const partitions = cursor.partitions.map(({ partition, floor, end, lag }) => ({ partition, floor, end, lag }));
  exchange.json(200, { topic, group, lag: cursor.lag, partitions });
}

export function unknownGroup(topic: string, group: string): HttpRefusal {
  return new HttpRefusal({ status: 404, error: `${topic} has no group ${group}`, field: "group" });
}

// ------------------------------------------------------------------------------------------------------------ latest by key

/** One key, or every key in pages: `next` is `<partition>:<last key>`, to be given back as `after`. */
async function latestByKey(exchange: Exchange, options: HttpOptions): Promise<void> {
  const query = exchange.query("topic", "key", "after", "limit");
  const topic = query.needed("topic");
  const key = query.text("key");
  if (key === undefined) {
    const limit = query.count("limit", { min: 1, max: keysMax }) ?? keysDefault;
    return latestOfAll(exchange, options, { topic, limit, after: query.text("after") ?? "0:" });
  }
  for (const other of ["after", "limit"]) {
    if (query.text(other) !== undefined) throw refusal("bad_option", `${other} does not go with key`, other);
  }
  const fault = keyFault(key);
  if (fault !== undefined) throw refusal("bad_option", fault, "key");
  const route = await readableTopic(exchange, options.router, topic);
  const { address } = options.router.partitionFor(route, key);
  const found = orRefuse(await options.system.request(address, { type: "latest", keys: [key], after: "", limit: 1 }));
  const head = `{"topic":${JSON.stringify(topic)},"key":${JSON.stringify(key)},"event":`;
  answerEvents(exchange, head, found.count === 0 ? [Buffer.from("null\n")] : [found.lines], "}");
}

async function latestOfAll(
  exchange: Exchange,
  { system, router }: HttpOptions,
  { topic, limit, after }: { readonly topic: string; readonly limit: number; readonly after: string },
): Promise<void> {
  const parts = /^(\d{1,2}):(.*)$/s.exec(after);
  if (parts === null) throw refusal("bad_option", "after must be what next was", "after");
  const route = await readableTopic(exchange, router, topic);
  let partition = Number(parts[1]);
  let key = parts[2];
  if (partition >= route.partitions.length) throw refusal("bad_option", "after must be what next was", "after");
  const pages: Uint8Array[] = [];
  let count = 0;
  let bytes = 0;
  while (partition < route.partitions.length && count < limit && bytes < latestBytesMax) {
    const { address } = route.partitions[partition];
    const page = orRefuse(await system.request(address, { type: "latest", after: key, limit: limit - count }));
    if (page.count > 0) pages.push(page.lines);
    count += page.count;
    bytes += page.lines.length;
    if (page.next === undefined) partition++;
    key = page.next ?? "";
  }
  const next = partition < route.partitions.length ? `,"next":${JSON.stringify(`${partition}:${key}`)}` : "";
  answerEvents(exchange, `{"topic":${JSON.stringify(topic)},"count":${count},"events":[`, pages, `]${next}}`);
}

/** Lines have no line break inside, so each that is found ends an event. */
function answerEvents(exchange: Exchange, head: string, pages: readonly Uint8Array[], tail: string): void {
  const events = Buffer.concat(pages);
  for (let at = events.indexOf(newline); at >= 0; at = events.indexOf(newline, at)) events[at] = comma;
  const body = Buffer.concat([Buffer.from(head), events.subarray(0, -1), Buffer.from(tail)]);
  exchange.bytes(200, "application/json; charset=utf-8", body);
}
