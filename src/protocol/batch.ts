// The binary frames, for clients that said `batch: 1` in AUTH: many events, leases or results in one frame, so that the cost of a
// frame is shared and no payload is parsed on the way. Little endian, the first byte is the op; bytes called zero must be zero.
// Everything else that such a client asks or is told stays a JSON text frame.
//
//   0x01 PUBLISH, client to server          0x02 SETTLE, client to server
//   0   u8  op                              0   u8  op
//   1   u8  flags  1: producer, 2: chained  1   u8  flags   0 ack, 1 nack, 2 extend, 3 release
//   2   u16 handle of the topic             2   u16 handle of the subscription
//   4   u32 corr                            4   u32 corr
//   with a producer:                        8   u32 delay of a nack or extension in ms, 0xffffffff: none
//   8   16 bytes producer                   12  u32 runCount
//   24  u32 seq                             16  runs of 32 bytes:
//   28  u16 partition + 1, 0: any               0   u16 partition
//   30  u16 zero, then the pack                 2   u16 zero
//                                               4   u32 count
//                                               8   f64 offset
//                                               16  u32 epoch
//                                               20  u32 zero
//                                               24  f64 token
//
//   0x11 PUBLISHED, server to client        0x12 EVENTS, server to client
//   0   u8  op                              0   u8  op
//   1   u8  zero                            1   u8  zero
//   2   u16 runCount                        2   u16 handle of the subscription
//   4   u32 corr                            4   u32 ackDeadlineMs
//   8   runs of 40 bytes:                   8   u16 partition
//       0   u32 index                       10  u16 salt
//       4   u32 count                       12  u16 attempt
//       8   u16 partition                   14  u16 maxAttempts
//       10  u16 status                      16  f64 firstOffset
//       12  u32 retryAfterMs                24  f64 storedAt
//       16  f64 offset                      32  u32 epoch
//       24  f64 storedAt                    36  u32 zero
//       32  u16 salt                        40  f64 token
//       34  u16 zero, u32 zero              48  the pack
//
// A run of leases is consecutive offsets under consecutive tokens. A status is 0 stored, 1 duplicate, or 2 + the place of the
// failure's code in the list of failure.ts, which therefore only grows at its end. The storedAt of a duplicate is its ts: of one
// that brought an id the ts need not be the time of storing, and its id does not depend on it.

import { frameBounds } from "./bounds.ts";
import { type Code, codes, type Failure, failure } from "./failure.ts";
import { offsetMax } from "./ids.ts";
import { checkExtensions } from "./meta.ts";
import { PackReader, PackView, packFault, packHeaderBytes } from "./pack.ts";
import { partitionsMax } from "./stream.ts";

export const batchOps = { PUBLISH: 0x01, SETTLE: 0x02, PUBLISHED: 0x11, EVENTS: 0x12 } as const;

const publishHeaderBytes = 8;
const producerBytes = 24;
/** In front of the pack of a batch that has a name. */
export const namedHeaderBytes = publishHeaderBytes + producerBytes;
export const settleHeaderBytes = 16;
export const leaseRunBytes = 32;
const publishedHeaderBytes = 8;
const publishedRunBytes = 40;
export const eventsHeaderBytes = 48;

const flagProducer = 1;
const flagChained = 2;
/** Their places are the flags. */
const settleVerbs = ["ack", "nack", "extend", "release"] as const;
export type SettleVerb = (typeof settleVerbs)[number];
const noDelay = 0xffffffff;
const retryAfterMsMax = 0xffffffff;

const statusStored = 0;
const statusDuplicate = 1;
const statusFailure = 2;
const codeNames = Object.keys(codes) as Code[];

export interface BatchLimits {
  /** Bytes of one payload. */
  readonly maxPayload: number;
  /** Events in a publish, and leases in a settle. */
  readonly batchEventsMax: number;
}

/** Who published a batch under which number, so that sent again it is stored once. */
export interface BatchName {
  /** 32 hex digits. */
  readonly producer: string;
  readonly seq: number;
  /** All of it goes there, and the numbers of the producer only rise there. Without it the node decides. */
  readonly partition?: number;
  /** Only with a partition: stored only right behind the batch with the number before it. */
  readonly chained?: true;
}

export interface PublishBatch {
  readonly op: "PUBLISH";
  readonly handle: number;
  readonly corr: number;
  readonly batch?: BatchName;
  /** Lengths, bounds and extensions are checked; that each payload is JSON is not. */
  readonly pack: PackView;
}

export interface SettleBatch {
  readonly op: "SETTLE";
  readonly handle: number;
  readonly corr: number;
  readonly verb: SettleVerb;
  /** The delay of a nack where one was given; always there with `extend`. */
  readonly ms?: number;
  readonly runs: readonly SettleRun[];
}

export type ClientBatch = PublishBatch | SettleBatch;

export interface SettleRun {
  readonly partition: number;
  readonly offset: number;
  readonly count: number;
  readonly epoch: number;
  readonly token: number;
}

/** The corr of a frame that may be broken otherwise, for the ERR that answers it. */
export function batchCorr(bytes: Uint8Array): number | undefined {
  return bytes.length < 8 ? undefined : viewOf(bytes).getUint32(4, true);
}

/** Total: whatever the bytes are, a checked batch or the reason why not. */
export function decodeClientBatch(bytes: Uint8Array, limits: BatchLimits): ClientBatch | Failure {
  if (bytes.length < 8) return failure("bad_frame", "binary frame shorter than its header");
  switch (bytes[0]) {
    case batchOps.PUBLISH:
      return decodePublish(bytes, limits);
    case batchOps.SETTLE:
      return decodeSettle(bytes, limits);
    default:
      return failure("bad_frame", `unknown binary op ${bytes[0]}`);
  }
}

function decodePublish(bytes: Uint8Array, limits: BatchLimits): PublishBatch | Failure {
  const view = viewOf(bytes);
  const flags = bytes[1];
  if ((flags & ~(flagProducer | flagChained)) !== 0) return failure("bad_frame", "PUBLISH has unknown flags");
  const handle = view.getUint16(2, true);
  const corr = view.getUint32(4, true);
  let at = publishHeaderBytes;
  let batch: BatchName | undefined;
  if (flags & flagProducer) {
    const name = decodeName(bytes, view);
    if ("code" in name) return name;
    batch = name;
    at = namedHeaderBytes;
  } else if (flags & flagChained) return failure("bad_frame", "PUBLISH is chained without a producer");
  const fault = packFault(bytes, at, { payloadBytesMax: limits.maxPayload, countMax: limits.batchEventsMax });
  if (fault !== undefined) return fault;
  const pack = new PackView(bytes, at);
  const refused = checkExtensions(pack);
  if (refused !== undefined) return refused;
  if (batch === undefined) return { op: "PUBLISH", handle, corr, pack };
  // By the name of the batch or by the ids of the events: one of the two must say what was stored before.
  const named = pack.id(0) !== undefined;
  for (let i = 1; pack.extended && i < pack.count; i++) {
    if ((pack.id(i) !== undefined) !== named)
      return failure("bad_frame", "a batch with a producer has an id in each event or in none");
  }
  return { op: "PUBLISH", handle, corr, batch, pack };
}

function decodeName(bytes: Uint8Array, view: DataView): BatchName | Failure {
  if (bytes.length < namedHeaderBytes) return failure("bad_frame", "PUBLISH shorter than its header");
  const name = { producer: toHex(bytes.subarray(8, 24)), seq: view.getUint32(24, true) };
  const partition = view.getUint16(28, true) - 1;
  const chained = (bytes[1] & flagChained) !== 0;
  if (view.getUint16(30, true) !== 0) return failure("bad_frame", "PUBLISH has a byte that must be zero");
  if (partition >= partitionsMax) return failure("bad_frame", `PUBLISH names partition ${partition}`);
  if (partition >= 0) return chained ? { ...name, partition, chained } : { ...name, partition };
  return chained ? failure("bad_frame", "PUBLISH is chained without a partition") : name;
}

function decodeSettle(bytes: Uint8Array, limits: BatchLimits): SettleBatch | Failure {
  if (bytes.length < settleHeaderBytes) return failure("bad_frame", "SETTLE shorter than its header");
  const view = viewOf(bytes);
  const flags = bytes[1];
  if (flags >= settleVerbs.length) return failure("bad_frame", "SETTLE has unknown flags");
  const verb = settleVerbs[flags];
  const handle = view.getUint16(2, true);
  const corr = view.getUint32(4, true);
  const ms = view.getUint32(8, true);
  const runCount = view.getUint32(12, true);
  if (runCount === 0 || runCount > limits.batchEventsMax)
    return failure("bad_frame", `SETTLE has ${runCount} runs, allowed are 1 to ${limits.batchEventsMax}`);
  if (bytes.length !== settleHeaderBytes + runCount * leaseRunBytes)
    return failure("bad_frame", "SETTLE lengths do not add up");
  const fault = settleMsFault(verb, ms);
  if (fault !== undefined) return fault;
  const runs: SettleRun[] = [];
  let total = 0;
  for (let at = settleHeaderBytes; at < bytes.length; at += leaseRunBytes) {
    const run = {
      partition: view.getUint16(at, true),
      offset: view.getFloat64(at + 8, true),
      count: view.getUint32(at + 4, true),
      epoch: view.getUint32(at + 16, true),
      token: view.getFloat64(at + 24, true),
    };
    total += run.count;
    if (view.getUint16(at + 2, true) !== 0 || view.getUint32(at + 20, true) !== 0)
      return failure("bad_frame", "SETTLE has a byte that must be zero");
    if (run.count === 0 || total > limits.batchEventsMax)
      return failure("bad_frame", `SETTLE names no lease in a run, or more than ${limits.batchEventsMax} in all`);
    if (run.partition >= partitionsMax) return failure("bad_frame", `SETTLE names partition ${run.partition}`);
    if (!isCount(run.offset, offsetMax - run.count + 1) || !isCount(run.token, Number.MAX_SAFE_INTEGER - run.count + 1))
      return failure("bad_frame", "SETTLE has an offset or a token that is not a whole number in range");
    runs.push(run);
  }
  return ms === noDelay ? { op: "SETTLE", handle, corr, verb, runs } : { op: "SETTLE", handle, corr, verb, ms, runs };
}

function settleMsFault(verb: SettleVerb, ms: number): Failure | undefined {
  switch (verb) {
    case "ack":
    case "release":
      return ms === noDelay ? undefined : failure("bad_frame", `SETTLE: ${verb} has a delay`);
    case "nack":
      return ms === noDelay || ms <= frameBounds.delayMsMax
        ? undefined
        : failure("bad_frame", `SETTLE: the delay of a nack is 0 to ${frameBounds.delayMsMax} ms`);
    case "extend":
      return ms >= frameBounds.extendMsMin && ms <= frameBounds.extendMsMax
        ? undefined
        : failure("bad_frame", `SETTLE: extends by ${frameBounds.extendMsMin} to ${frameBounds.extendMsMax} ms`);
    default: {
      const never: never = verb;
      return never;
    }
  }
}

// ------------------------------------------------------------------------------------------------- what a client writes

export interface PublishHeader {
  readonly handle: number;
  readonly corr: number;
  readonly batch?: BatchName;
}

export function encodePublish(header: PublishHeader, pack: Uint8Array): Uint8Array {
  const at = header.batch === undefined ? publishHeaderBytes : namedHeaderBytes;
  const out = new Uint8Array(at + pack.length);
  writePublishHeader(header, out);
  out.set(pack, at);
  return out;
}

/** Writes what stands in front of the pack; all of it, so that a frame can be sent again under another header. */
export function writePublishHeader({ handle, corr, batch }: PublishHeader, target: Uint8Array): void {
  const view = viewOf(target);
  target[0] = batchOps.PUBLISH;
  target[1] = batch === undefined ? 0 : flagProducer | (batch.chained ? flagChained : 0);
  view.setUint16(2, handle, true);
  view.setUint32(4, corr, true);
  if (batch === undefined) return;
  for (let i = 0; i < 16; i++) target[8 + i] = Number.parseInt(batch.producer.slice(2 * i, 2 * i + 2), 16);
  view.setUint32(24, batch.seq, true);
  view.setUint32(28, (batch.partition ?? -1) + 1, true);
}

export function encodeSettle(settle: Omit<SettleBatch, "op">): Uint8Array {
  const out = new Uint8Array(settleHeaderBytes + settle.runs.length * leaseRunBytes);
  const view = viewOf(out);
  out[0] = batchOps.SETTLE;
  out[1] = settleVerbs.indexOf(settle.verb);
  view.setUint16(2, settle.handle, true);
  view.setUint32(4, settle.corr, true);
  view.setUint32(8, settle.ms ?? noDelay, true);
  view.setUint32(12, settle.runs.length, true);
  let at = settleHeaderBytes;
  for (const run of settle.runs) {
    view.setUint16(at, run.partition, true);
    view.setUint32(at + 4, run.count, true);
    view.setFloat64(at + 8, run.offset, true);
    view.setUint32(at + 16, run.epoch, true);
    view.setFloat64(at + 24, run.token, true);
    at += leaseRunBytes;
  }
  return out;
}

// ------------------------------------------------------------------------------------------------- what the node writes

/** What became of `count` events from `index` of the batch on. The failure's text does not travel, its code does. */
export interface PublishedSpan {
  readonly index: number;
  readonly count: number;
  readonly partition: number;
  readonly offset: number;
  readonly storedAt: number;
  readonly salt: number;
  readonly duplicate?: { readonly ts: number };
  readonly failure?: Failure;
}

export interface EventsHeader {
  readonly handle: number;
  readonly ackDeadlineMs: number;
  readonly partition: number;
  readonly salt: number;
  readonly attempt: number;
  readonly maxAttempts: number;
  /** Of the first event in the frame. */
  readonly firstOffset: number;
  readonly storedAt: number;
  readonly epoch: number;
  readonly token: number;
}

export function encodePublished(corr: number, runs: readonly PublishedSpan[]): Uint8Array {
  const out = new Uint8Array(publishedHeaderBytes + runs.length * publishedRunBytes);
  const view = viewOf(out);
  out[0] = batchOps.PUBLISHED;
  view.setUint16(2, runs.length, true);
  view.setUint32(4, corr, true);
  let at = publishedHeaderBytes;
  for (const run of runs) {
    view.setUint32(at, run.index, true);
    view.setUint32(at + 4, run.count, true);
    view.setUint16(at + 8, run.partition, true);
    view.setUint16(at + 10, statusOf(run), true);
    view.setUint32(at + 12, Math.min(Math.ceil(run.failure?.retry_after_ms ?? 0), retryAfterMsMax), true);
    view.setFloat64(at + 16, run.offset, true);
    view.setFloat64(at + 24, run.duplicate?.ts ?? run.storedAt, true);
    view.setUint16(at + 32, run.salt, true);
    at += publishedRunBytes;
  }
  return out;
}

function statusOf(run: PublishedSpan): number {
  if (run.failure !== undefined) return statusFailure + codeNames.indexOf(run.failure.code);
  return run.duplicate === undefined ? statusStored : statusDuplicate;
}

export function eventsFrameBytes(pack: PackView, from: number, to: number): number {
  return eventsHeaderBytes + pack.rangeBytes(from, to);
}

/** Writes the frame for the events from..to of a pack to `target` and gives the number of bytes written. */
export function writeEventsFrame(
  header: EventsHeader,
  pack: PackView,
  from: number,
  to: number,
  target: Uint8Array,
  at: number,
): number {
  const view = viewOf(target);
  target[at] = batchOps.EVENTS;
  target[at + 1] = 0;
  view.setUint16(at + 2, header.handle, true);
  view.setUint32(at + 4, header.ackDeadlineMs, true);
  view.setUint16(at + 8, header.partition, true);
  view.setUint16(at + 10, header.salt, true);
  view.setUint16(at + 12, header.attempt, true);
  view.setUint16(at + 14, header.maxAttempts, true);
  view.setFloat64(at + 16, header.firstOffset, true);
  view.setFloat64(at + 24, header.storedAt, true);
  view.setUint32(at + 32, header.epoch, true);
  view.setUint32(at + 36, 0, true);
  view.setFloat64(at + 40, header.token, true);
  return eventsHeaderBytes + pack.copyRange(from, to, target, at + eventsHeaderBytes);
}

// -------------------------------------------------------------------------------------------------- what a client reads

export interface PublishedBatch {
  readonly op: "PUBLISHED";
  readonly corr: number;
  readonly runs: readonly PublishedResult[];
}

export interface PublishedResult {
  readonly index: number;
  readonly count: number;
  readonly partition: number;
  readonly offset: number;
  /** Of a duplicate: its ts. */
  readonly storedAt: number;
  readonly salt: number;
  readonly status: "stored" | "duplicate" | Code;
  readonly retryAfterMs: number;
}

export interface EventsBatch extends EventsHeader {
  readonly op: "EVENTS";
  readonly pack: PackReader;
}

export type ServerBatch = PublishedBatch | EventsBatch;

/** Total as well: a client must survive a server that is newer or broken. */
export function decodeServerBatch(bytes: Uint8Array): ServerBatch | Failure {
  if (bytes.length < 8) return failure("bad_frame", "binary frame shorter than its header");
  switch (bytes[0]) {
    case batchOps.PUBLISHED:
      return decodePublished(bytes);
    case batchOps.EVENTS:
      return decodeEvents(bytes);
    default:
      return failure("bad_frame", `unknown binary op ${bytes[0]}`);
  }
}

function decodePublished(bytes: Uint8Array): PublishedBatch | Failure {
  const view = viewOf(bytes);
  const runCount = view.getUint16(2, true);
  if (bytes.length !== publishedHeaderBytes + runCount * publishedRunBytes)
    return failure("bad_frame", "PUBLISHED lengths do not add up");
  const runs: PublishedResult[] = [];
  for (let at = publishedHeaderBytes; at < bytes.length; at += publishedRunBytes) {
    const status = view.getUint16(at + 10, true);
    runs.push({
      index: view.getUint32(at, true),
      count: view.getUint32(at + 4, true),
      partition: view.getUint16(at + 8, true),
      offset: view.getFloat64(at + 16, true),
      storedAt: view.getFloat64(at + 24, true),
      salt: view.getUint16(at + 32, true),
      // A code that this client does not know yet is a failure all the same.
      status: status === statusStored ? "stored" : status === statusDuplicate ? "duplicate" : codeAt(status),
      retryAfterMs: view.getUint32(at + 12, true),
    });
  }
  return { op: "PUBLISHED", corr: view.getUint32(4, true), runs };
}

function codeAt(status: number): Code {
  return codeNames[status - statusFailure] ?? "internal";
}

function decodeEvents(bytes: Uint8Array): EventsBatch | Failure {
  if (bytes.length < eventsHeaderBytes + packHeaderBytes) return failure("bad_frame", "EVENTS shorter than its header");
  const pack = new PackReader(bytes, eventsHeaderBytes);
  if (!pack.isWhole()) return failure("bad_frame", "EVENTS lengths do not add up");
  const view = viewOf(bytes);
  return {
    op: "EVENTS",
    handle: view.getUint16(2, true),
    ackDeadlineMs: view.getUint32(4, true),
    partition: view.getUint16(8, true),
    salt: view.getUint16(10, true),
    attempt: view.getUint16(12, true),
    maxAttempts: view.getUint16(14, true),
    firstOffset: view.getFloat64(16, true),
    storedAt: view.getFloat64(24, true),
    epoch: view.getUint32(32, true),
    token: view.getFloat64(40, true),
    pack,
  };
}

// ----------------------------------------------------------------------------------------------------------------- bytes

function viewOf(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

function isCount(value: number, max: number): boolean {
  return Number.isInteger(value) && value >= 0 && value <= max;
}

function toHex(bytes: Uint8Array): string {
  let text = "";
  for (const byte of bytes) text += (byte + 0x100).toString(16).slice(1);
  return text;
}
