// From the text of a frame to a checked frame. Total: whatever the text is, the outcome is a frame or a failure with the corr to
// answer under, never a throw, and nothing behind this file looks at a client's JSON again. It runs on the front's thread for each
// JSON frame, so a good frame is read once and costs one JSON.parse and, where there is a payload, one JSON.stringify.

import { frameBounds } from "./bounds.ts";
import { type Failure, failure, isFailure } from "./failure.ts";
import type { ClientFrame, Corr, Place } from "./frames.ts";
import { type Fields, isObject, keyFault, tsFault } from "./meta.ts";
import { eventIdFault, groupFault, publishTopicFault, topicFault } from "./names.ts";
import { decodePublishOptions, decodeSubscribeOptions, isWhole, quote } from "./options.ts";
import type { PackEntry } from "./pack.ts";
import { hasMoreValues, nestsTooDeep, placeOf } from "./payload.ts";
import { parsePosition } from "./position.ts";

export interface FrameLimits {
  /** Bytes of one payload. */
  readonly maxPayload: number;
}

export interface BadFrame {
  readonly failure: Failure;
  readonly corr: Corr | undefined;
}

const encoder = new TextEncoder();
const noOptions: Fields = {};

/** A good frame has no more punctuation than its payload may have bytes, or a LATEST in its keys; and some to spare. */
const punctuationMin = 1_048_576;
const punctuationSpare = 131_072;
/** `"":0` and a comma: what a member takes at least of the bytes of a payload. */
const memberBytesMin = 5;

export function decodeFrame(text: string, limits: FrameLimits): ClientFrame | BadFrame {
  const heavy = heavyFault(text, limits);
  if (heavy !== undefined) return { failure: heavy, corr: undefined };
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    return bad("bad_json", `not JSON${placeOf(error)}`, undefined);
  }
  if (!isObject(value)) return bad("bad_frame", "a frame is a JSON object", undefined);
  const corr = value.corr;
  if (corr !== undefined && !isCorr(corr))
    return bad(
      "bad_frame",
      `corr must be a string of at most ${frameBounds.corrCharsMax} characters or a number`,
      undefined,
    );
  // The frame itself is one level.
  if (nestsTooDeep(text, frameBounds.nestingMax + 1))
    return bad("bad_frame", `nests deeper than ${frameBounds.nestingMax}`, corr);
  const outcome = decodeFields(value, corr, limits);
  return isFailure(outcome) ? { failure: outcome, corr } : outcome;
}

/**
 * Parsing takes its time by the value, not by the byte: 8 MiB of `[` or `{},` hold the thread for more than a second, as do half a million
 * names of members, and a payload of 1 MiB for a tenth of that. So a text that is longer than any good one needs to be is looked at before it is parsed; what is refused
 * here has no corr, as nobody has read it.
 */
function heavyFault(text: string, { maxPayload }: FrameLimits): Failure | undefined {
  const most = Math.max(maxPayload, punctuationMin) + punctuationSpare;
  if (text.length <= most) return undefined;
  if (nestsTooDeep(text, frameBounds.nestingMax + 1))
    return failure("bad_frame", `nests deeper than ${frameBounds.nestingMax}`);
  return hasMoreValues(text, { punctuationMax: most, membersMax: most / memberBytesMin })
    ? failure("too_large", "the frame has more values than a payload can hold")
    : undefined;
}

function decodeFields(frame: Fields, corr: Corr | undefined, limits: FrameLimits): ClientFrame | Failure {
  const op = frame.op;
  switch (op) {
    case "ACK":
    case "NACK":
    case "MODACK":
      return decodeSettle(op, frame, corr);
    case "PUBLISH": {
      const { topic } = frame;
      const fault = topicFailure(topic, publishTopicFault);
      if (fault !== undefined) return fault;
      if (frame.payload === undefined) return failure("bad_frame", "PUBLISH needs a payload (null is one)");
      const entry = decodeEntry(frame.payload, frame.opts, limits);
      return isFailure(entry) ? entry : { op, corr, topic: topic as string, entry };
    }
    case "SUBSCRIBE": {
      const { topic, group, opts } = frame;
      const fault = topicFailure(topic, topicFault) ?? groupFailure(group);
      if (fault !== undefined) return fault;
      if (opts !== undefined && !isObject(opts)) return failure("bad_frame", "opts must be an object");
      const options = decodeSubscribeOptions(opts ?? noOptions);
      return isFailure(options) ? options : { op, corr, topic: topic as string, group: group as string, options };
    }
    case "UNSUBSCRIBE":
    case "PAUSE":
    case "RESUME": {
      const { topic, group } = frame;
      const fault = topicFailure(topic, topicFault) ?? groupFailure(group);
      return fault ?? { op, corr, topic: topic as string, group: group as string };
    }
    case "AUTH": {
      const { token, batch } = frame;
      if (token !== undefined && !isShort(token, frameBounds.tokenCharsMax))
        return failure("bad_frame", `token must be a string of at most ${frameBounds.tokenCharsMax} characters`);
      if (batch !== undefined && batch !== 1) return failure("bad_frame", "batch must be 1");
      return { op, corr, token, batch: batch === 1 };
    }
    case "OPEN": {
      const fault = topicFailure(frame.topic, publishTopicFault);
      return fault ?? { op, corr, topic: frame.topic as string };
    }
    case "CURSOR": {
      const { topic, group, set } = frame;
      const fault = topicFailure(topic, topicFault) ?? groupFailure(group);
      if (fault !== undefined) return fault;
      const place = set === undefined ? undefined : decodeSet(set);
      return isFailure(place) ? place : { op, corr, topic: topic as string, group: group as string, set: place };
    }
    case "LATEST":
      return decodeLatest(frame, corr);
    case "PING":
      return { op, corr };
    case undefined:
      return failure("bad_frame", "op is missing");
    default:
      return failure("bad_frame", `unknown op ${quote(op)}`);
  }
}

/**
 * One event to publish, from a payload and options as JSON.parse gave them, nested at most 64 deep. A text frame carries JSON
 * values, not texts: of duplicate names the last counts and numbers are doubles.
 */
export function decodeEntry(payload: unknown, opts: unknown, limits: FrameLimits): PackEntry | Failure {
  if (opts !== undefined && !isObject(opts)) return failure("bad_frame", "opts must be an object");
  const text = JSON.stringify(payload);
  if (text.length > limits.maxPayload) return tooLarge(limits);
  // A number such as 1e400 was read as Infinity and is written as null: then the event would not be what was sent.
  if (text.includes("null") && hasInfinity(payload))
    return failure("bad_frame", "payload has a number that is too large for a double");
  const bytes = encoder.encode(text);
  if (bytes.length > limits.maxPayload) return tooLarge(limits);
  return opts === undefined ? { payload: bytes } : decodePublishOptions(opts, bytes);
}

/** As `decodeEntry`, from the text of the payload: the body of a request over HTTP. */
export function decodeBody(text: string, opts: Fields | undefined, limits: FrameLimits): PackEntry | Failure {
  let payload: unknown;
  try {
    payload = JSON.parse(text);
  } catch (error) {
    return failure("bad_json", `not JSON${placeOf(error)}`);
  }
  if (nestsTooDeep(text, frameBounds.nestingMax))
    return failure("bad_frame", `nests deeper than ${frameBounds.nestingMax}`);
  return decodeEntry(payload, opts, limits);
}

function tooLarge(limits: FrameLimits): Failure {
  return failure("too_large", `payload has more than ${limits.maxPayload} bytes (MAX_PAYLOAD)`);
}

function hasInfinity(value: unknown): boolean {
  if (typeof value === "number") return !Number.isFinite(value);
  if (typeof value !== "object" || value === null) return false;
  return Object.values(value).some(hasInfinity);
}

function decodeSettle(op: "ACK" | "NACK" | "MODACK", frame: Fields, corr: Corr | undefined): ClientFrame | Failure {
  const fault = topicFailure(frame.topic, topicFault) ?? groupFailure(frame.group);
  if (fault !== undefined) return fault;
  const idFault = eventIdFault(frame.id);
  if (idFault !== undefined) return failure("bad_frame", idFault);
  const lease = frame.lease;
  if (lease !== undefined && !isShort(lease, frameBounds.leaseCharsMax))
    return failure("bad_frame", `lease must be a string of at most ${frameBounds.leaseCharsMax} characters`);
  const topic = frame.topic as string;
  const group = frame.group as string;
  const id = frame.id as string;
  switch (op) {
    case "ACK":
      return { op, corr, topic, group, id, lease };
    case "NACK": {
      const { reason, delay_ms } = frame;
      if (reason !== undefined && typeof reason !== "string") return failure("bad_frame", "reason must be a string");
      if (delay_ms !== undefined && !isWhole(delay_ms, 0, frameBounds.delayMsMax))
        return failure("bad_frame", `delay_ms must be a whole number, 0 to ${frameBounds.delayMsMax}`);
      return { op, corr, topic, group, id, lease, reason: cut(reason), delayMs: delay_ms };
    }
    case "MODACK": {
      const { extend_ms } = frame;
      if (!isWhole(extend_ms, frameBounds.extendMsMin, frameBounds.extendMsMax))
        return failure(
          "bad_frame",
          `extend_ms must be a whole number, ${frameBounds.extendMsMin} to ${frameBounds.extendMsMax}`,
        );
      return { op, corr, topic, group, id, lease, extendMs: extend_ms };
    }
    default: {
      const never: never = op;
      return never;
    }
  }
}

/** A reason is often a whole error text; what is too long of it is left out. */
function cut(reason: string | undefined): string | undefined {
  if (reason === undefined || reason.length <= frameBounds.reasonCharsMax) return reason;
  const last = reason.charCodeAt(frameBounds.reasonCharsMax - 1);
  const splitsPair = last >= 0xd800 && last <= 0xdbff;
  return reason.slice(0, frameBounds.reasonCharsMax - (splitsPair ? 1 : 0));
}

/** Where CURSOR moves a group. `lastId` with `lastTs` is what reading gives: then the id counts, which is exact. */
function decodeSet(set: unknown): Place | Failure {
  if (set === "earliest" || set === "latest") return { kind: set };
  if (isObject(set)) {
    const { offsets, lastId, lastTs } = set;
    if (offsets !== undefined) {
      if (lastId !== undefined || lastTs !== undefined)
        return failure("bad_frame", "set has offsets and lastId or lastTs: give one");
      const parsed = typeof offsets === "string" ? parsePosition(offsets) : undefined;
      return parsed === undefined
        ? failure("bad_frame", 'offsets must be a position such as "0:1234,1:88"')
        : { kind: "offsets", offsets: parsed };
    }
    const timeFault = lastTs === undefined ? undefined : tsFault(lastTs);
    if (timeFault !== undefined) return failure("bad_frame", `lastTs: ${timeFault}`);
    if (lastId !== undefined) {
      const fault = eventIdFault(lastId);
      return fault === undefined ? { kind: "afterId", id: lastId as string } : failure("bad_frame", `lastId: ${fault}`);
    }
    if (lastTs !== undefined) return { kind: "ts", ts: lastTs as number };
  }
  return failure("bad_frame", 'set must be "earliest", "latest" or an object with offsets, lastId or lastTs');
}

function decodeLatest(frame: Fields, corr: Corr | undefined): ClientFrame | Failure {
  const { topic, keys, after } = frame;
  const fault = topicFailure(topic, topicFault);
  if (fault !== undefined) return fault;
  if (keys !== undefined) {
    if (!Array.isArray(keys) || keys.length > frameBounds.latestKeysMax)
      return failure("bad_frame", `keys must be a list of at most ${frameBounds.latestKeysMax} strings`);
    for (const key of keys) {
      const keyProblem = keyFault(key);
      if (keyProblem !== undefined) return failure("bad_frame", `keys: ${keyProblem}`);
    }
  }
  if (after !== undefined && !isShort(after, frameBounds.afterCharsMax))
    return failure("bad_frame", `after must be a string of at most ${frameBounds.afterCharsMax} characters`);
  return { op: "LATEST", corr, topic: topic as string, keys: keys as string[] | undefined, after };
}

// ----------------------------------------------------------------------------------------------------------------- parts

function bad(code: "bad_json" | "bad_frame", msg: string, corr: Corr | undefined): BadFrame {
  return { failure: failure(code, msg), corr };
}

function isCorr(value: unknown): value is Corr {
  return typeof value === "string" ? value.length <= frameBounds.corrCharsMax : Number.isFinite(value);
}

function isShort(value: unknown, charsMax: number): value is string {
  return typeof value === "string" && value.length <= charsMax;
}

/** Missing or of another type it is the frame that is wrong; out of rule it is the name. */
function topicFailure(topic: unknown, fault: (name: unknown) => string | undefined): Failure | undefined {
  const found = fault(topic);
  return found === undefined ? undefined : failure(typeof topic === "string" ? "bad_topic" : "bad_frame", found);
}

function groupFailure(group: unknown): Failure | undefined {
  const found = groupFault(group);
  return found === undefined ? undefined : failure(typeof group === "string" ? "bad_group" : "bad_frame", found);
}
