// Topics over HTTP: making, changing, looking at and deleting them, and deleting their groups.

import type { TopicRecord, TopicSettings } from "../actors/messages.ts";
import { frameBounds } from "../protocol/bounds.ts";
import type { Json } from "../protocol/event.ts";
import { isFailure } from "../protocol/failure.ts";
import { groupFault, publishTopicFault, topicFault } from "../protocol/names.ts";
import { positionText } from "../protocol/position.ts";
import type { Rate } from "../protocol/rate.ts";
import { partitionsMax } from "../protocol/stream.ts";
import type { Rights } from "./auth.ts";
import { cursorsOf, groupsOf } from "./group-cursors.ts";
import { type Exchange, type HttpOptions, type HttpRoute, orRefuse, refusal, refusalOf } from "./http-exchange.ts";
import { unknownGroup } from "./http-ops.ts";
import type { Route } from "./router.ts";

const bodyBytesMax = 64 * 1024;
const topicsDefault = 500;
const topicsMax = 1000;
const rateMax = 1_000_000_000;
const settingNames = ["partitions", "retention", "rate", "maxAttempts", "writeConcern"];

export function topicRoutes(options: HttpOptions): readonly HttpRoute[] {
  return [
    { method: "GET", path: "/topics", handle: (exchange) => list(exchange, options) },
    { method: "POST", path: "/topics", handle: (exchange) => post(exchange, options) },
    { method: "PUT", path: "/topics/:topic", handle: (exchange) => put(exchange, options) },
    { method: "GET", path: "/topics/:topic", handle: (exchange) => show(exchange, options) },
    { method: "DELETE", path: "/topics/:topic", handle: (exchange) => remove(exchange, options) },
    { method: "GET", path: "/topics/:topic/offsets", handle: (exchange) => offsets(exchange, options) },
    {
      method: "DELETE",
      path: "/topics/:topic/groups/:group",
      handle: (exchange) => removeGroup(exchange, options),
    },
  ];
}

/** Of these topics the caller may know that they are there. */
function sees(rights: Rights, topic: string): boolean {
  return rights.admin || rights.subscribe(topic, "") || rights.publish(topic);
}

function needAdmin({ granted }: Exchange): void {
  if (!granted.rights.admin) throw refusal("forbidden", "this token may not make, change or delete topics and groups");
}

async function visibleTopic(exchange: Exchange, { router }: HttpOptions): Promise<Route> {
  const topic = exchange.param("topic");
  const fault = topicFault(topic);
  if (fault !== undefined) throw refusal("bad_topic", fault, "topic");
  if (!sees(exchange.granted.rights, topic)) throw refusal("forbidden", `this token has no rights on ${topic}`);
  return orRefuse(await router.resolve(topic, { create: false }), "topic");
}

// ----------------------------------------------------------------------------------------------------------------- looking

function topicJson({ name, shards, settings, createdAt, deadLetterOf }: TopicRecord): object {
  return { topic: name, partitions: shards.length, ...settings, createdAt, deadLetterOf };
}

async function list(exchange: Exchange, { router }: HttpOptions): Promise<void> {
  const query = exchange.query("after", "limit");
  const limit = query.count("limit", { min: 1, max: topicsMax }) ?? topicsDefault;
  const { records, next } = orRefuse(await router.list(query.text("after") ?? "", limit));
  const { rights } = exchange.granted;
  const topics = records.filter(({ name, status }) => status === "live" && sees(rights, name)).map(topicJson);
  exchange.json(200, { topics, next });
}

async function show(exchange: Exchange, options: HttpOptions): Promise<void> {
  exchange.query();
  const route = await visibleTopic(exchange, options);
  const { system } = options;
  const infos = await describe(options, route);
  const cursors = await cursorsOf(system, route, await groupsOf(system, route));
  exchange.json(200, {
    ...topicJson(route.record),
    offsets: infos.map(({ start, end, bytes, lastStoredAt }, partition) => ({
      partition,
      start,
      end,
      bytes,
      // Left out where nothing was ever stored: 0 would be a day in 1970.
      lastStoredAt: lastStoredAt === 0 ? undefined : lastStoredAt,
    })),
    groups: cursors
      .filter((cursor) => cursor !== undefined)
      .map(({ group, lag, members }) => ({ group, lag, members })),
  });
}

async function offsets(exchange: Exchange, options: HttpOptions): Promise<void> {
  exchange.query();
  const route = await visibleTopic(exchange, options);
  const infos = await describe(options, route);
  exchange.json(200, {
    topic: route.topic,
    earliest: positionText(infos.map(({ start }) => start)),
    latest: positionText(infos.map(({ end }) => end)),
    partitions: infos.map(({ start, end }, partition) => ({ partition, start, end })),
  });
}

function describe({ system }: HttpOptions, { partitions }: Route) {
  return Promise.all(
    partitions.map(async ({ address }) => orRefuse(await system.request(address, { type: "describe" }))),
  );
}

// ------------------------------------------------------------------------------------------------------ making and changing

type Members = { readonly [name: string]: Json };

async function put(exchange: Exchange, options: HttpOptions): Promise<void> {
  exchange.query();
  needAdmin(exchange);
  await configure(exchange, options, exchange.param("topic"), await members(exchange, settingNames));
}

/** As in the notes that this grew from: the name is in the body. */
async function post(exchange: Exchange, options: HttpOptions): Promise<void> {
  exchange.query();
  needAdmin(exchange);
  const body = await members(exchange, ["topic", ...settingNames]);
  if (typeof body.topic !== "string") throw refusal("bad_topic", "topic must be a string", "topic");
  await configure(exchange, options, body.topic, body);
}

async function configure(exchange: Exchange, options: HttpOptions, topic: string, body: Members): Promise<void> {
  const { router, config } = options;
  const partitions = countOf(body, "partitions", { min: 1, max: partitionsMax });
  const settings = settingsOf(body);
  const existing = await router.resolve(topicOf(topic), { create: false });
  if (isFailure(existing)) {
    if (existing.code !== "unknown_topic") throw refusalOf(existing);
    const fault = publishTopicFault(topic);
    if (fault !== undefined) throw refusal("bad_topic", fault, "topic");
  }
  // The default counts for a new topic only: one that is there keeps its number.
  const wanted = partitions ?? (isFailure(existing) ? config.partitions : undefined);
  const answer = await router.configure(topic, { settings, ...(wanted === undefined ? {} : { partitions: wanted }) });
  const field = isFailure(answer) && answer.code === "limit" && partitions !== undefined ? "partitions" : undefined;
  const { record, created } = orRefuse(answer, field);
  exchange.json(created ? 201 : 200, topicJson(record));
}

function topicOf(topic: string): string {
  const fault = topicFault(topic);
  if (fault !== undefined) throw refusal("bad_topic", fault, "topic");
  return topic;
}

async function members(exchange: Exchange, known: readonly string[]): Promise<Members> {
  exchange.needJson();
  const body = await exchange.jsonBody(bodyBytesMax);
  if (!isMembers(body)) throw refusal("bad_frame", "the body must be a JSON object");
  for (const name of Object.keys(body)) {
    if (known.includes(name)) continue;
    const field = name.slice(0, 64);
    throw refusal("bad_option", `${field}: unknown member, allowed are ${known.join(", ")}`, field);
  }
  return body;
}

function isMembers(value: Json | undefined): value is Members {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function settingsOf(body: Members): TopicSettings {
  const maxAttempts = countOf(body, "maxAttempts", { min: 1, max: frameBounds.maxAttemptsMax });
  const { retention, rate, writeConcern } = body;
  return {
    ...(retention === undefined ? {} : { retention: retentionOf(retention) }),
    ...(rate === undefined ? {} : { rate: rateOf(rate) }),
    ...(maxAttempts === undefined ? {} : { maxAttempts }),
    ...(writeConcern === undefined ? {} : { writeConcern: writeConcernOf(writeConcern) }),
  };
}

function retentionOf(value: Json): { ageMs?: number; bytes?: number } {
  if (!isMembers(value)) throw refusal("bad_option", "retention must be { ageMs?, bytes? }", "retention");
  for (const name of Object.keys(value)) {
    if (name === "ageMs" || name === "bytes") continue;
    throw refusal("bad_option", "retention may have ageMs and bytes only", `retention.${name.slice(0, 64)}`);
  }
  const bounds = { min: 1, max: Number.MAX_SAFE_INTEGER };
  const ageMs = countOf(value, "ageMs", bounds, "retention.");
  const bytes = countOf(value, "bytes", bounds, "retention.");
  return { ...(ageMs === undefined ? {} : { ageMs }), ...(bytes === undefined ? {} : { bytes }) };
}

function rateOf(value: Json): Rate | "off" {
  if (value === "off") return "off";
  const parts = typeof value === "string" ? /^(\d{1,10})\/(\d{1,10})$/.exec(value) : null;
  const burst = parts ? Number(parts[1]) : isMembers(value) ? value.burst : undefined;
  const perSec = parts ? Number(parts[2]) : isMembers(value) ? value.perSec : undefined;
  if (isRate(burst) && isRate(perSec)) return { burst, perSec };
  const text = `rate must be "off", "burst/perSec" or { burst, perSec }, both whole numbers from 1 to ${rateMax}`;
  throw refusal("bad_option", text, "rate");
}

function isRate(value: Json | undefined): value is number {
  return typeof value === "number" && Number.isInteger(value) && value >= 1 && value <= rateMax;
}

function writeConcernOf(value: Json): string {
  if (typeof value === "string" && /^(?:majority|w:[1-9]\d?)$/.test(value)) return value;
  throw refusal("bad_option", 'writeConcern must be "majority" or "w:<number>"', "writeConcern");
}

function countOf(
  body: Members,
  name: string,
  { min, max }: { readonly min: number; readonly max: number },
  prefix = "",
): number | undefined {
  const value = body[name];
  if (value === undefined) return undefined;
  if (typeof value === "number" && Number.isInteger(value) && value >= min && value <= max) return value;
  throw refusal("bad_option", `${prefix}${name} must be a whole number from ${min} to ${max}`, prefix + name);
}

// ---------------------------------------------------------------------------------------------------------------- deleting

async function remove(exchange: Exchange, { router }: HttpOptions): Promise<void> {
  exchange.query();
  needAdmin(exchange);
  orRefuse(await router.remove(topicOf(exchange.param("topic"))), "topic");
  exchange.empty(204);
}

async function removeGroup(exchange: Exchange, options: HttpOptions): Promise<void> {
  exchange.query();
  needAdmin(exchange);
  const { router, system } = options;
  const group = exchange.param("group");
  const fault = groupFault(group);
  if (fault !== undefined) throw refusal("bad_group", fault, "group");
  const route = await visibleTopic(exchange, options);
  const [cursor] = await cursorsOf(system, route, [group]);
  if (cursor === undefined) throw unknownGroup(route.topic, group);
  orRefuse(await router.removeGroup(route.topic, group));
  exchange.empty(204);
}
