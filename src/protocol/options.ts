// The options of PUBLISH and SUBSCRIBE, from JSON to what the node works with. An option that is not known is refused by name: a
// misspelt `maxAttempts` that was ignored would be found in production.

import { frameBounds } from "./bounds.ts";
import { type Failure, failure, isFailure } from "./failure.ts";
import type { Filter } from "./filter.ts";
import type { Place, SubscribeOptions } from "./frames.ts";
import {
  type Fields,
  headersFault,
  isObject,
  keyFault,
  metaBytesFault,
  metaFault,
  metaText,
  sidFault,
  tagsFault,
  tsFault,
} from "./meta.ts";
import { eventIdFault } from "./names.ts";
import type { PackEntry } from "./pack.ts";
import { parsePosition } from "./position.ts";

/** One event from its payload and the options of its PUBLISH. */
export function decodePublishOptions(opts: Fields, payload: Uint8Array): PackEntry | Failure {
  const out: { payload: Uint8Array; key?: string; id?: string; ts?: number; meta?: string } = { payload };
  let meta = false;
  for (const name in opts) {
    const value = opts[name];
    let fault: string | undefined;
    switch (name) {
      case "key":
        fault = keyFault(value);
        out.key = value as string;
        break;
      case "id":
        fault = eventIdFault(value);
        out.id = value as string;
        break;
      case "ts":
        fault = tsFault(value);
        out.ts = (value as number) + 0; // -0 becomes 0
        break;
      case "sid":
      case "headers":
      case "tags":
      case "caused_by":
        meta = true; // together, below
        break;
      default:
        return unknownOption(name, "id ts key headers tags caused_by sid");
    }
    if (fault !== undefined) return failure("bad_option", fault);
  }
  if (!meta) return out;
  const fault = metaFault(opts);
  if (fault !== undefined) return failure("bad_option", fault);
  const text = metaText(opts);
  if (text === undefined) return out;
  const long = metaBytesFault(text);
  if (long !== undefined) return failure("bad_option", long);
  out.meta = text;
  return out;
}

type GroupPart = { -readonly [Name in keyof SubscribeOptions["group"]]: SubscribeOptions["group"][Name] };
type MemberPart = { ackTimeoutMs?: number; maxInflight?: number; batchSize?: number };

const subscribeOptionNames =
  "from ts afterId offsets ackTimeoutMs maxInflight batchSize maxAttempts backoffMs ordering filter ephemeral";

export function decodeSubscribeOptions(opts: Fields): SubscribeOptions | Failure {
  const member: MemberPart = {};
  const group: GroupPart = {};
  const from = decodeFrom(opts);
  if (isFailure(from)) return from;
  for (const name in opts) {
    const fault = takeSubscribeOption(name, opts, member, group);
    if (fault !== undefined) return fault;
  }
  return { from, ...member, group };
}

function takeSubscribeOption(name: string, opts: Fields, member: MemberPart, group: GroupPart): Failure | undefined {
  const value = opts[name];
  switch (name) {
    case "from":
    case "ts":
    case "afterId":
    case "offsets":
      return undefined; // together, in decodeFrom
    case "ackTimeoutMs":
      if (!isWhole(value, frameBounds.ackTimeoutMsMin, frameBounds.ackTimeoutMsMax))
        return outOfRange(name, frameBounds.ackTimeoutMsMin, frameBounds.ackTimeoutMsMax);
      member.ackTimeoutMs = value;
      return undefined;
    case "maxInflight":
    case "maxInFlight":
      if (!isWhole(value, 1, frameBounds.maxInflightMax)) return outOfRange(name, 1, frameBounds.maxInflightMax);
      if (member.maxInflight !== undefined && member.maxInflight !== value)
        return failure("bad_option", "maxInflight and maxInFlight are one option and differ");
      member.maxInflight = value;
      return undefined;
    case "batchSize":
      if (!isWhole(value, 1, frameBounds.batchSizeMax)) return outOfRange(name, 1, frameBounds.batchSizeMax);
      member.batchSize = value;
      return undefined;
    case "maxAttempts":
      if (!isWhole(value, 1, frameBounds.maxAttemptsMax)) return outOfRange(name, 1, frameBounds.maxAttemptsMax);
      group.maxAttempts = value;
      return undefined;
    case "backoffMs":
      if (!isBackoff(value))
        return failure(
          "bad_option",
          `backoffMs must be a whole number, 0 to ${frameBounds.delayMsMax}, or a list of 1 to ${frameBounds.backoffStepsMax} such`,
        );
      group.backoffMs = value;
      return undefined;
    case "ordering":
      if (value !== "none" && value !== "key") return failure("bad_option", 'ordering must be "none" or "key"');
      group.ordering = value;
      return undefined;
    case "filter": {
      const filter = decodeFilter(value);
      if (isFailure(filter)) return filter;
      group.filter = filter;
      return undefined;
    }
    case "ephemeral":
      if (typeof value !== "boolean") return failure("bad_option", "ephemeral must be true or false");
      group.ephemeral = value;
      return undefined;
    case "manualAck":
      // The seeds' clients send it. Over the wire every ack is the client's own, so it changes nothing.
      return typeof value === "boolean" ? undefined : failure("bad_option", "manualAck must be true or false");
    default:
      return unknownOption(name, subscribeOptionNames);
  }
}

/** `from` and what it needs. A `ts`, `afterId` or `offsets` that `from` does not ask for is refused: one of the two is a mistake. */
function decodeFrom(opts: Fields): Place | Failure {
  const from: unknown = opts.from === undefined ? "latest" : opts.from;
  for (const name of ["ts", "afterId", "offsets"]) {
    if (opts[name] !== undefined && from !== name)
      return failure("bad_option", `${name} goes with from: "${name}", and from is ${quote(from)}`);
  }
  switch (from) {
    case "latest":
    case "earliest":
      return { kind: from };
    case "ts": {
      const fault = tsFault(opts.ts);
      return fault === undefined ? { kind: "ts", ts: opts.ts as number } : failure("bad_option", fault);
    }
    case "afterId": {
      const fault = eventIdFault(opts.afterId);
      return fault === undefined
        ? { kind: "afterId", id: opts.afterId as string }
        : failure("bad_option", `afterId: ${fault}`);
    }
    case "offsets": {
      const offsets = typeof opts.offsets === "string" ? parsePosition(opts.offsets) : undefined;
      return offsets === undefined
        ? failure("bad_option", 'offsets must be a position such as "0:1234,1:88"')
        : { kind: "offsets", offsets };
    }
    default:
      return failure("bad_option", "from must be latest, earliest, ts, afterId or offsets");
  }
}

/** In one spelling, whatever the client's: members, tags and headers in a fixed order, so that equal filters compare equal. */
function decodeFilter(value: unknown): Filter | null | Failure {
  if (value === null) return null;
  if (!isObject(value)) return failure("bad_option", "filter must be an object or null");
  for (const name in value) {
    if (name !== "key" && name !== "keyPrefix" && name !== "tags" && name !== "headers" && name !== "sid")
      return failure(
        "bad_option",
        `filter has the unknown member ${quote(name)}, known are key keyPrefix tags headers sid`,
      );
  }
  const { key, keyPrefix, tags, headers, sid } = value;
  const fault =
    (key === undefined ? undefined : keyFault(key)) ??
    (keyPrefix === undefined ? undefined : keyFault(keyPrefix)) ??
    (tags === undefined ? undefined : tagsFault(tags)) ??
    (headers === undefined ? undefined : headersFault(headers)) ??
    (sid === undefined ? undefined : sidFault(sid));
  if (fault !== undefined) return failure("bad_option", `filter: ${fault}`);
  const out: { -readonly [Name in keyof Filter]: Filter[Name] } = {};
  if (key !== undefined) out.key = key as string;
  if (keyPrefix !== undefined) out.keyPrefix = keyPrefix as string;
  if (tags !== undefined && (tags as string[]).length > 0) out.tags = [...new Set(tags as string[])].sort();
  if (headers !== undefined) {
    const sorted = Object.entries(headers as Record<string, string>).sort(([a], [b]) => (a < b ? -1 : 1));
    if (sorted.length > 0) out.headers = Object.fromEntries(sorted);
  }
  if (sid !== undefined) out.sid = sid as string;
  return Object.keys(out).length === 0 ? null : out;
}

function isBackoff(value: unknown): value is number | number[] {
  if (!Array.isArray(value)) return isWhole(value, 0, frameBounds.delayMsMax);
  return (
    value.length >= 1 &&
    value.length <= frameBounds.backoffStepsMax &&
    value.every((step) => isWhole(step, 0, frameBounds.delayMsMax))
  );
}

export function isWhole(value: unknown, min: number, max: number): value is number {
  return Number.isInteger(value) && (value as number) >= min && (value as number) <= max;
}

function outOfRange(name: string, min: number, max: number): Failure {
  return failure("bad_option", `${name} must be a whole number, ${min} to ${max}`);
}

function unknownOption(name: string, known: string): Failure {
  return failure("bad_option", `unknown option ${quote(name)}, known are ${known}`);
}

/** A client's own words in a message: short, and in one line. */
export function quote(value: unknown): string {
  const text = JSON.stringify(typeof value === "string" ? value.slice(0, 64) : value) ?? "undefined";
  return text.length > 80 ? `${text.slice(0, 80)}…` : text;
}
