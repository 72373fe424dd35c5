// A line of a file that is imported, as the event that it will be published as. Exports are lines of this kind; a line that somebody
// wrote by hand needs no more than a payload. The payload stays the text that it is, so that an import stores what was exported.

import { isUtf8 } from "node:buffer";
import { frameBounds } from "../protocol/bounds.ts";
import { type Fields, isObject, keyFault, metaBytesFault, metaFault, metaText, tsFault } from "../protocol/meta.ts";
import { eventIdFault } from "../protocol/names.ts";
import { nestsTooDeep, placeOf } from "../protocol/payload.ts";

export interface LineEvent {
  readonly topic: string | undefined;
  readonly id: string | undefined;
  readonly ts: number | undefined;
  readonly key: string | undefined;
  readonly sid: string | undefined;
  readonly headers: Readonly<Record<string, string>> | undefined;
  readonly tags: readonly string[] | undefined;
  readonly caused_by: readonly string[] | undefined;
  /** `sid`, `headers`, `tags` and `caused_by` in the node's own spelling. */
  readonly meta: string | undefined;
  /** JSON, in one line. */
  readonly payload: string;
}

const members = new Set([
  "id",
  "ts",
  "topic",
  "partition",
  "offset",
  "key",
  "sid",
  "headers",
  "tags",
  "caused_by",
  "payload",
]);

/** The event, or what is wrong with the line. The text is of others, so a fault repeats nothing of it but names. */
export function readLine(bytes: Buffer): LineEvent | string {
  if (!isUtf8(bytes)) return "is not UTF-8";
  const text = bytes.toString("utf8");
  let fields: unknown;
  try {
    fields = JSON.parse(text);
  } catch (error) {
    return `is not JSON${placeOf(error)}`;
  }
  if (!isObject(fields)) return "is not an event: it must be an object with a payload";
  const fault = fieldsFault(fields);
  if (fault !== undefined) return fault;
  const meta = metaText(fields);
  const long = meta === undefined ? undefined : metaBytesFault(meta);
  if (long !== undefined) return long;
  const payload = payloadText(text, fields.payload);
  if (nestsTooDeep(payload, frameBounds.nestingMax)) return `payload nests deeper than ${frameBounds.nestingMax}`;
  const { topic, id, ts, key, sid, headers, tags, caused_by } = fields as unknown as LineEvent;
  return { topic, id, ts, key, sid, headers, tags, caused_by, meta, payload };
}

function fieldsFault(fields: Fields): string | undefined {
  if (fields.payload === undefined) return "is not an event: it has no payload";
  for (const name in fields) {
    if (!members.has(name)) return `has a member ${JSON.stringify(name.slice(0, 64))}, which events do not have`;
  }
  if (fields.topic !== undefined && typeof fields.topic !== "string") return "topic must be a string";
  return (
    (fields.id === undefined ? undefined : eventIdFault(fields.id)) ??
    (fields.ts === undefined ? undefined : tsFault(fields.ts)) ??
    (fields.key === undefined ? undefined : keyFault(fields.key)) ??
    metaFault(fields)
  );
}

// ----------------------------------------------------------------------------------------------------------------- payload

/** The text of the payload as it stands in the line, where that is how a node would store it. */
function payloadText(line: string, payload: unknown): string {
  const text = memberText(line, "payload");
  // A carriage return between tokens is allowed in JSON and not in a stored payload.
  return text === undefined || text.includes("\r") ? JSON.stringify(payload) : text;
}

const quote = 0x22;
const backslash = 0x5c;

/** The value of a member of a JSON object, by its text; of two with one name the last, as JSON.parse has it. */
export function memberText(object: string, wanted: string): string | undefined {
  let found: string | undefined;
  let at = skipSpace(object, object.indexOf("{") + 1);
  while (object.charCodeAt(at) === quote) {
    const nameEnd = stringEnd(object, at);
    const spelled = object.slice(at + 1, nameEnd - 1);
    const name = spelled.includes("\\") ? (JSON.parse(`"${spelled}"`) as string) : spelled;
    const start = skipSpace(object, object.indexOf(":", nameEnd) + 1);
    const end = valueEnd(object, start);
    if (name === wanted) found = object.slice(start, end);
    at = skipSpace(object, end);
    if (object.charCodeAt(at) === 0x2c) at = skipSpace(object, at + 1);
  }
  return found;
}

function skipSpace(text: string, from: number): number {
  let at = from;
  for (;;) {
    const char = text.charCodeAt(at);
    if (char !== 0x20 && char !== 0x09 && char !== 0x0d && char !== 0x0a) return at;
    at++;
  }
}

/** Behind the quote that closes the string which begins at `from`. */
function stringEnd(text: string, from: number): number {
  for (let at = text.indexOf('"', from + 1); at >= 0; at = text.indexOf('"', at + 1)) {
    let slashes = 0;
    while (text.charCodeAt(at - 1 - slashes) === backslash) slashes++;
    if (slashes % 2 === 0) return at + 1;
  }
  return text.length;
}

function valueEnd(text: string, from: number): number {
  const first = text.charCodeAt(from);
  if (first === quote) return stringEnd(text, from);
  if (first !== 0x7b && first !== 0x5b) {
    // A number, or true, false, null.
    let at = from;
    for (; at < text.length; at++) {
      const char = text.charCodeAt(at);
      if (char === 0x2c || char === 0x7d || char === 0x5d || char <= 0x20) break;
    }
    return at;
  }
  let depth = 0;
  for (let at = from; at < text.length; at++) {
    const char = text.charCodeAt(at);
    if (char === quote) at = stringEnd(text, at) - 1;
    else if (char === 0x7b || char === 0x5b) depth++;
    else if ((char === 0x7d || char === 0x5d) && --depth === 0) return at + 1;
  }
  return text.length;
}

// ---------------------------------------------------------------------------------------------------------------- contents

/** Everything of an event that an import carries over, in one spelling: all but topic, partition and offset. */
export function contentText({ id, ts, key, meta, payload }: LineEvent): string {
  return `${id} ${ts} ${key === undefined ? "" : JSON.stringify(key)} ${meta ?? ""} ${payload}`;
}
