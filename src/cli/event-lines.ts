// How an event is shown: one JSON per line for programs; for people a line of time, topic, key and payload in columns.

import type { EventRecord } from "../protocol/event.ts";
import type { Context } from "./context.ts";
import { oneLine } from "./failures.ts";
import { type Paint, painter, paintJson } from "./paint.ts";
import { cut, pad, textWidth } from "./table.ts";
import { timeText } from "./times.ts";

const keyWidthMax = 24;
const payloadWidthMin = 20;

export interface EventLineOptions {
  /** The topics that may come; their column is as wide as the longest. */
  readonly topics: readonly string[];
  /** Everything of the event, over several lines where one is too short. */
  readonly full?: boolean;
  /** Of the terminal; without one lines are never cut. */
  readonly columns?: number | undefined;
}

/** A printer for a stream of events. The column of keys grows with what came so far. */
export function eventPrinter(
  context: Pick<Context, "json" | "color" | "out">,
  options: EventLineOptions,
): (event: EventRecord<unknown>, extra?: Readonly<Record<string, unknown>>) => void {
  if (context.json)
    return (event, extra) => context.out(JSON.stringify(extra === undefined ? event : { ...event, ...extra }));
  const paint = painter(context);
  const topicWidth = Math.max(...options.topics.map(textWidth));
  let keyWidth = 1;
  return (event, extra) => {
    const key = event.key === undefined ? "-" : cut(oneLine(event.key), keyWidthMax);
    keyWidth = Math.max(keyWidth, textWidth(key));
    const time = timeText(event.ts);
    const notes = extra === undefined ? "" : notesOf(extra);
    const before = textWidth(time) + 2 + topicWidth + 2 + keyWidth + 2 + (notes === "" ? 0 : notes.length + 1);
    const head = `${paint("dim", time)}  ${paint("blue", pad(event.topic, topicWidth))}  ${paint("bold", pad(key, keyWidth))}  ${
      notes === "" ? "" : `${paint("yellow", notes)} `
    }`;
    const room = options.columns === undefined ? undefined : Math.max(payloadWidthMin, options.columns - before);
    context.out(head + payloadText(event.payload, { room, full: options.full === true, paint }));
    if (options.full) for (const line of detailLines(event, paint)) context.out(line);
  };
}

function notesOf(extra: Readonly<Record<string, unknown>>): string {
  const { attempt } = extra;
  return typeof attempt === "number" && attempt > 1 ? `(attempt ${attempt})` : "";
}

function payloadText(
  payload: unknown,
  { room, full, paint }: { readonly room: number | undefined; readonly full: boolean; readonly paint: Paint },
): string {
  const compact = safeJson(JSON.stringify(payload));
  // On a terminal there is air between the members; for a pipe it is the JSON that was stored.
  const text = room === undefined ? compact : safeJson(airy(payload));
  if (room === undefined || textWidth(text) <= room) return paintJson(text, paint);
  if (!full) return paintJson(cut(text, room), paint);
  return paintJson(safeJson(JSON.stringify(payload, null, 2)), paint);
}

/** JSON.stringify with the members of an object and a list on one line, spaces between them. */
function airy(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(airy).join(", ")}]`;
  if (typeof value !== "object" || value === null) return JSON.stringify(value);
  const members = Object.entries(value).map(([name, member]) => `${JSON.stringify(name)}: ${airy(member)}`);
  return members.length === 0 ? "{}" : `{ ${members.join(", ")} }`;
}

/** JSON leaves some control characters as they are; a terminal would obey them. */
function safeJson(text: string): string {
  return text.replace(
    /[\u007f-\u009f\u2028\u2029]/g,
    (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

function detailLines(
  { id, partition, offset, sid, headers, tags, caused_by: causes }: EventRecord<unknown>,
  paint: Paint,
): string[] {
  const facts: [string, string][] = [
    ["id", id],
    ["at", `${partition}:${offset}`],
    ...(sid === undefined ? [] : [["sid", sid] satisfies [string, string]]),
    ...(tags === undefined ? [] : [["tags", tags.join(", ")] satisfies [string, string]]),
    ...(causes === undefined ? [] : [["caused by", causes.join(", ")] satisfies [string, string]]),
    ...Object.entries(headers ?? {}),
  ];
  return facts.map(([name, value]) => `  ${paint("dim", `${oneLine(name)}:`)} ${oneLine(value)}`);
}
