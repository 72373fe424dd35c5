// GET /replay: a page of a topic's events, and where to go on. GET /export: all of them, streamed (export.ts).

import { eventBounds } from "../protocol/bounds.ts";
import { eventIdFault } from "../protocol/names.ts";
import { parsePosition, positionText } from "../protocol/position.ts";
import { exportLog } from "./export.ts";
import {
  type Exchange,
  type HttpOptions,
  HttpRefusal,
  type HttpRoute,
  orRefuse,
  type Query,
  readableTopic,
  refusal,
} from "./http-exchange.ts";
import { rangesOf, type Start } from "./log-range.ts";
import { copyJoined, MergedLog, type Run } from "./merged-log.ts";

const limitDefault = 1000;
const limitMax = 10_000;
/** A page ends with the event that passes this. */
const replayBytesMax = 16 * 1024 * 1024;
/** Replays and exports under way; each may hold some megabytes. */
const readersMax = 64;
const overloadedRetryMs = 1000;

const tsBounds = { min: 0, max: eventBounds.tsMax };

export function replayRoutes(options: HttpOptions): readonly HttpRoute[] {
  const readers = new Readers(options.config.limits.replayHeldBytesMax);
  return [
    {
      method: "GET",
      path: "/replay",
      handle: (exchange) => readers.run(exchange, (held) => replay(exchange, options, held)),
    },
    {
      method: "GET",
      path: "/export",
      handle: (exchange) => readers.run(exchange, () => exportTopic(exchange, options)),
    },
  ];
}

/** What the answers of all readers together hold in memory. */
interface Held {
  readonly full: boolean;
  add(bytes: number): void;
}

class Readers {
  private readonly heldBytesMax: number;
  private count = 0;
  private heldBytes = 0;

  constructor(heldBytesMax: number) {
    this.heldBytesMax = heldBytesMax;
  }

  /** Counts a reader, and what it holds, until its answer has left or its client has. */
  async run({ res }: Exchange, read: (held: Held) => Promise<void>): Promise<void> {
    if (res.destroyed) return;
    if (this.count >= readersMax) {
      throw new HttpRefusal({
        status: 503,
        code: "overloaded",
        error: `${readersMax} replays and exports are under way`,
        retryAfterMs: overloadedRetryMs,
      });
    }
    this.count++;
    let own = 0;
    let closed = false;
    res.once("close", () => {
      this.count--;
      this.heldBytes -= own;
      closed = true;
    });
    const isFull = () => this.heldBytes >= this.heldBytesMax;
    const add = (bytes: number) => {
      if (closed) return;
      own += bytes;
      this.heldBytes += bytes;
    };
    await read({
      get full() {
        return isFull();
      },
      add,
    });
  }
}

async function replay(exchange: Exchange, { system, router }: HttpOptions, held: Held): Promise<void> {
  const query = exchange.query("topic", "from", "ts", "afterId", "after", "limit");
  const topic = query.needed("topic");
  const start = startOf(query);
  const after = positionOf(query);
  const limit = query.count("limit", { min: 1, max: limitMax }) ?? limitDefault;
  const route = await readableTopic(exchange, router, topic);
  const ranges = await rangesOf({ system, route }, { start, after });
  const merged = new MergedLog({ system, ranges, pageEventsMax: limit, ahead: false });

  const runs: Run[] = [];
  let count = 0;
  let bytes = 0;
  // A page ends early while many others wait to be taken; one event it has, or it would look like the end.
  while (count < limit && bytes < replayBytesMax && !(held.full && count > 0) && !exchange.res.destroyed) {
    const run = merged.take(held.full ? 1 : limit - count, replayBytesMax - bytes);
    if (run !== undefined) {
      runs.push(run);
      count += run.to - run.from;
      bytes += run.byteLength;
      held.add(run.byteLength);
    } else if (merged.ended) break;
    else orRefuse(await merged.fill());
  }
  const head = Buffer.from(`{"topic":${JSON.stringify(topic)},"count":${count},"events":[`);
  const tail = Buffer.from(`],"next":${JSON.stringify(positionText(merged.position()))}}`);
  const body = Buffer.allocUnsafe(head.length + Math.max(0, bytes - 1) + tail.length);
  body.set(head, 0);
  copyJoined(runs, body, head.length);
  body.set(tail, body.length - tail.length);
  exchange.bytes(200, "application/json; charset=utf-8", body);
}

async function exportTopic(exchange: Exchange, options: HttpOptions): Promise<void> {
  const { system, router, clock, log, config } = options;
  const query = exchange.query("topic", "fromTs", "toTs", "ndjson", "after", "afterId");
  const topic = query.needed("topic");
  const fromTs = query.count("fromTs", tsBounds);
  const toTs = query.count("toTs", tsBounds);
  if (fromTs !== undefined && toTs !== undefined && toTs < fromTs) {
    throw refusal("bad_option", "toTs lies before fromTs", "toTs");
  }
  const ndjson = query.choice("ndjson", ["1", "0"], "1") === "1";
  const after = positionOf(query);
  const afterId = idOf(query);
  if (after.size > 0 && afterId !== undefined) {
    throw refusal("bad_option", "after and afterId exclude each other", "afterId");
  }
  const route = await readableTopic(exchange, router, topic);
  if (afterId !== undefined && route.partitions.length > 1) {
    const many = route.partitions.length;
    throw refusal("bad_option", `${topic} has ${many} partitions: give a position in after`, "afterId");
  }
  let start: Start = fromTs === undefined ? { kind: "earliest" } : { kind: "ts", ts: fromTs };
  if (afterId !== undefined) start = { kind: "afterId", id: afterId };
  const ranges = await rangesOf({ system, route }, { start, after });
  const merged = new MergedLog({
    system,
    ranges,
    // Timestamps need not rise within a partition, so the whole range is walked and each event looked at.
    ...(fromTs === undefined ? {} : { fromTs }),
    ...(toTs === undefined ? {} : { toTs }),
    pageEventsMax: Number.MAX_SAFE_INTEGER,
    ahead: true,
  });
  await exportLog({ exchange, merged, topic, ndjson, clock, log, stalledMs: config.limits.stalledMs });
}

function startOf(query: Query): Start {
  const from = query.choice("from", ["earliest", "ts", "afterId"], "earliest");
  const ts = query.count("ts", tsBounds);
  const id = idOf(query);
  // A bound that would be ignored is a mistake of the caller.
  if (ts !== undefined && from !== "ts") throw refusal("bad_option", "ts goes with from=ts", "ts");
  if (id !== undefined && from !== "afterId") throw refusal("bad_option", "afterId goes with from=afterId", "afterId");
  switch (from) {
    case "earliest":
      return { kind: "earliest" };
    case "ts":
      if (ts === undefined) throw refusal("bad_option", "ts is missing", "ts");
      return { kind: "ts", ts };
    case "afterId":
      if (id === undefined) throw refusal("bad_option", "afterId is missing", "afterId");
      return { kind: "afterId", id };
    default:
      return from satisfies never;
  }
}

function idOf(query: Query): string | undefined {
  const id = query.text("afterId");
  if (id === undefined) return undefined;
  const fault = eventIdFault(id);
  if (fault !== undefined) throw refusal("bad_option", `afterId: ${fault}`, "afterId");
  return id;
}

/** Empty when it was not given. */
function positionOf(query: Query): ReadonlyMap<number, number> {
  const text = query.text("after");
  if (text === undefined) return new Map();
  const position = parsePosition(text);
  if (position === undefined) throw refusal("bad_option", "after must be a position such as 0:1234,1:88", "after");
  return position;
}
