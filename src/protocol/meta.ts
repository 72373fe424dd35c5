// What a publisher may attach to an event besides its payload, checked: key, id, ts, and `meta`, the text of an object with some
// of sid, headers, tags and caused_by. A meta text is always in our own spelling (those members in this order, empty ones left
// out, no space), because it is spliced into frames without being parsed again.

import { eventBounds } from "./bounds.ts";
import { type Failure, failure } from "./failure.ts";
import { eventIdFault } from "./names.ts";
import type { PackView } from "./pack.ts";
import { placeOf } from "./payload.ts";
import { utf8Bytes } from "./utf8.ts";

/** The values of JSON members that a client sent, by name; nothing is known about them yet. */
export type Fields = { readonly [name: string]: unknown };

export function isObject(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

// ---------------------------------------------------------------------------------------------------------------- faults
// Each says what is allowed, or undefined where the value is fine.

export function keyFault(key: unknown): string | undefined {
  if (typeof key !== "string") return "key must be a string";
  const bytes = key.length > eventBounds.keyBytesMax ? key.length : utf8Bytes(key);
  if (bytes < 0) return "key has half a surrogate pair";
  return bytes >= 1 && bytes <= eventBounds.keyBytesMax
    ? undefined
    : `key must have 1 to ${eventBounds.keyBytesMax} bytes in UTF-8`;
}

export function tsFault(ts: unknown): string | undefined {
  return Number.isInteger(ts) && (ts as number) >= 0 && (ts as number) <= eventBounds.tsMax
    ? undefined
    : `ts must be a whole number of milliseconds, 0 to ${eventBounds.tsMax}`;
}

export function sidFault(sid: unknown): string | undefined {
  return isText(sid, 1, eventBounds.sidCharsMax)
    ? undefined
    : `sid must be a string of 1 to ${eventBounds.sidCharsMax} characters`;
}

export function headersFault(headers: unknown): string | undefined {
  if (!isObject(headers)) return "headers must be an object of strings";
  const names = Object.keys(headers);
  if (names.length > eventBounds.headersMax)
    return `headers has ${names.length} members, allowed are ${eventBounds.headersMax}`;
  for (const name of names) {
    // As a plain assignment it would be lost, in our code or in a client's.
    if (name === "__proto__") return "headers may not have the name __proto__";
    if (!isText(name, 1, eventBounds.headerNameCharsMax))
      return `a name in headers must have 1 to ${eventBounds.headerNameCharsMax} characters`;
    if (!isText(headers[name], 0, eventBounds.headerValueCharsMax))
      return `a value in headers must be a string of at most ${eventBounds.headerValueCharsMax} characters`;
  }
  return undefined;
}

export function tagsFault(tags: unknown): string | undefined {
  if (!Array.isArray(tags) || tags.length > eventBounds.tagsMax)
    return `tags must be a list of at most ${eventBounds.tagsMax} strings`;
  return tags.every((tag) => isText(tag, 1, eventBounds.tagCharsMax))
    ? undefined
    : `each of tags must be a string of 1 to ${eventBounds.tagCharsMax} characters`;
}

function causedByFault(ids: unknown): string | undefined {
  if (!Array.isArray(ids) || ids.length > eventBounds.causedByMax)
    return `caused_by must be a list of at most ${eventBounds.causedByMax} ids`;
  for (const id of ids) {
    const fault = eventIdFault(id);
    if (fault !== undefined) return `caused_by: ${fault}`;
  }
  return undefined;
}

function isText(value: unknown, charsMin: number, charsMax: number): value is string {
  return typeof value === "string" && value.length >= charsMin && value.length <= charsMax;
}

// ----------------------------------------------------------------------------------------------------------------- meta

/** The faults of those members of `fields` that belong into meta, as one; members of other names are left to the caller. */
export function metaFault(fields: Fields): string | undefined {
  return (
    (fields.sid === undefined ? undefined : sidFault(fields.sid)) ??
    (fields.headers === undefined ? undefined : headersFault(fields.headers)) ??
    (fields.tags === undefined ? undefined : tagsFault(fields.tags)) ??
    (fields.caused_by === undefined ? undefined : causedByFault(fields.caused_by))
  );
}

/** Our spelling of members that have no fault; undefined when nothing is left to say. */
export function metaText(fields: Fields): string | undefined {
  let text = "";
  if (fields.sid !== undefined) text += `,"sid":${JSON.stringify(fields.sid)}`;
  if (isObject(fields.headers) && Object.keys(fields.headers).length > 0)
    text += `,"headers":${JSON.stringify(fields.headers)}`;
  if (Array.isArray(fields.tags) && fields.tags.length > 0) text += `,"tags":${JSON.stringify(fields.tags)}`;
  if (Array.isArray(fields.caused_by) && fields.caused_by.length > 0)
    text += `,"caused_by":${JSON.stringify(fields.caused_by)}`;
  return text === "" ? undefined : `{${text.slice(1)}}`;
}

export function metaBytesFault(text: string): string | undefined {
  // A string of our own making is well formed: JSON.stringify escapes half surrogate pairs.
  return utf8Bytes(text) <= eventBounds.metaBytesMax
    ? undefined
    : `sid, headers, tags and caused_by may have ${eventBounds.metaBytesMax} bytes together`;
}

/** Our spelling of a meta text from outside, or why it cannot be one. */
export function checkMeta(text: string): string | Failure {
  if (text.length > eventBounds.metaBytesMax) return failure("bad_option", metaBytesFault(text) ?? "meta is too long");
  let fields: unknown;
  try {
    fields = JSON.parse(text);
  } catch (error) {
    return failure("bad_option", `meta is not JSON${placeOf(error)}`);
  }
  if (!isObject(fields)) return failure("bad_option", "meta must be an object");
  for (const name of Object.keys(fields)) {
    if (name !== "sid" && name !== "headers" && name !== "tags" && name !== "caused_by")
      return failure("bad_option", `meta has the unknown member ${JSON.stringify(name.slice(0, 64))}`);
  }
  const fault = metaFault(fields);
  if (fault !== undefined) return failure("bad_option", fault);
  const spelled = metaText(fields);
  if (spelled === undefined) return failure("bad_option", "meta is empty: leave it out");
  const long = metaBytesFault(spelled);
  return long === undefined ? spelled : failure("bad_option", long);
}

/** Checks what the events of a pack from outside carry; its lengths must have been checked before (packFault). */
export function checkExtensions(pack: PackView): Failure | undefined {
  if (!pack.extended) return undefined;
  for (let i = 0; i < pack.count; i++) {
    if (pack.extensionLength(i) === 0) continue;
    const extension = pack.strictExtension(i);
    if (extension === undefined) return failure("bad_option", `event ${i} has a key, id or meta that is not UTF-8`);
    const { key, id, ts, meta } = extension;
    const fault =
      (key === undefined ? undefined : keyFault(key)) ??
      (id === undefined ? undefined : eventIdFault(id)) ??
      (ts === undefined ? undefined : tsFault(ts));
    if (fault !== undefined) return failure("bad_option", `event ${i}: ${fault}`);
    if (meta === undefined) continue;
    const spelled = checkMeta(meta);
    if (typeof spelled !== "string") return failure("bad_option", `event ${i}: ${spelled.msg}`);
    if (spelled !== meta)
      return failure(
        "bad_option",
        `event ${i}: meta must be spelled with sid, headers, tags, caused_by in this order, without spaces`,
      );
  }
  return undefined;
}
