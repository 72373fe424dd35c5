// A pack is a run of events without positions, and the one shape in which events travel: a client's publish batch, the message
// from the front to a worker, the body of a stored block and the body of an EVENTS frame are all packs, so a payload is copied
// but never parsed or encoded again on the way. Little endian:
//
//   0   u32 count
//   4   u32 flags            bit 0: there is an extension for each event (key, id, ts or meta)
//   8   u32 payloadBytes
//   12  u32 extensionBytes   0 without the flag
//   16  u32 payloadLength[count]
//       u32 extensionLength[count]   only with the flag
//       payloads, joined             each one JSON value in UTF-8
//       extensions, joined           only with the flag
//
// An extension: u8 bits (1 key, 2 id, 4 ts, 8 meta), then u16 length + key, u8 length + id, f64 ts, and the rest is meta: a JSON
// object in UTF-8 with some of headers, tags, caused_by, sid, in our own spelling (it is spliced into frames as it is).
// An empty extension (length 0) has nothing. Ranges of a pack are cut with four copies, whatever its size.

import { type Failure, failure } from "./failure.ts";
import { decoder, encoder, strictDecoder } from "./utf8.ts";

export const packHeaderBytes = 16;
export const packFlagExtensions = 1;

const bitKey = 1;
const bitId = 2;
const bitTs = 4;
const bitMeta = 8;

/** What an event may carry besides its payload. `meta` is the text of a JSON object, without it the event has none. */
export interface Extension {
  readonly key?: string | undefined;
  readonly id?: string | undefined;
  readonly ts?: number | undefined;
  readonly meta?: string | undefined;
}

export interface PackEntry extends Extension {
  readonly payload: Uint8Array;
}

/** Reads a pack in place, as far as a client needs it. `at` is where it begins in `bytes`; nothing is copied. */
export class PackReader {
  readonly bytes: Uint8Array;
  readonly at: number;
  readonly count: number;
  readonly byteLength: number;
  readonly extended: boolean;
  readonly payloadsAt: number;
  readonly payloadBytes: number;
  readonly extensionBytes: number;
  protected readonly view: DataView;
  protected readonly extensionsAt: number;
  // Prefix sums are made on first random access; a reader that walks from the start never pays for them.
  private payloadSums: Uint32Array | undefined;
  private extensionSums: Uint32Array | undefined;

  constructor(bytes: Uint8Array, at = 0) {
    this.bytes = bytes;
    this.at = at;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.count = this.view.getUint32(at, true);
    this.extended = (this.view.getUint32(at + 4, true) & packFlagExtensions) !== 0;
    this.payloadBytes = this.view.getUint32(at + 8, true);
    this.extensionBytes = this.view.getUint32(at + 12, true);
    const tables = (this.extended ? 8 : 4) * this.count;
    this.payloadsAt = at + packHeaderBytes + tables;
    this.extensionsAt = this.payloadsAt + this.payloadBytes;
    this.byteLength = packHeaderBytes + tables + this.payloadBytes + this.extensionBytes;
  }

  payloadLength(index: number): number {
    return this.view.getUint32(this.at + packHeaderBytes + 4 * index, true);
  }

  extensionLength(index: number): number {
    return this.extended ? this.view.getUint32(this.at + packHeaderBytes + 4 * (this.count + index), true) : 0;
  }

  payload(index: number): Uint8Array {
    const starts = this.payloadStarts();
    return this.bytes.subarray(this.payloadsAt + starts[index], this.payloadsAt + starts[index + 1]);
  }

  extension(index: number): Extension {
    return this.read(index, decoder);
  }

  /** By event, counted from `payloadsAt`; the last number is where the last payload ends. */
  payloadStarts(): Uint32Array {
    this.payloadSums ??= this.sums((index) => this.payloadLength(index));
    return this.payloadSums;
  }

  /** Whether all of it is there and ends with the bytes, so that nothing in it can be read past its end. */
  isWhole(): boolean {
    const { bytes, count, view } = this;
    if (this.at + this.byteLength !== bytes.length) return false;
    // Added up as numbers: the sums that `payloadStarts` makes wrap around at 2^32.
    let payloads = 0;
    for (let i = 0; i < count; i++) payloads += this.payloadLength(i);
    if (payloads !== this.payloadBytes) return false;
    if (!this.extended) return this.extensionBytes === 0;
    let at = this.extensionsAt;
    for (let i = 0; i < count; i++) {
      const length = this.extensionLength(i);
      if (at + length > bytes.length) return false;
      if (length > 0 && !extensionFits(bytes, view, at, at + length)) return false;
      at += length;
    }
    return at === bytes.length;
  }

  protected extensionAt(index: number): number {
    return this.extensionsAt + this.extensionStarts()[index];
  }

  protected extensionStarts(): Uint32Array {
    this.extensionSums ??= this.sums((index) => this.extensionLength(index));
    return this.extensionSums;
  }

  protected read(index: number, text: { decode(bytes: Uint8Array): string }): Extension {
    const length = this.extensionLength(index);
    if (length === 0) return {};
    const from = this.extensionAt(index);
    return readExtension(this.bytes, this.view, from, from + length, text);
  }

  private sums(length: (index: number) => number): Uint32Array {
    const sums = new Uint32Array(this.count + 1);
    for (let i = 0; i < this.count; i++) sums[i + 1] = sums[i] + length(i);
    return sums;
  }
}

/** What the node does with packs besides. */
export class PackView extends PackReader {
  /** The extension of an event from outside, or undefined where its text is not UTF-8. */
  strictExtension(index: number): Extension | undefined {
    try {
      return this.read(index, strictDecoder);
    } catch (error) {
      if (error instanceof TypeError) return undefined;
      throw error;
    }
  }

  key(index: number): string | undefined {
    const length = this.keyLength(index);
    if (length < 0) return undefined;
    const at = this.extensionAt(index) + 3;
    return decoder.decode(this.bytes.subarray(at, at + length));
  }

  id(index: number): string | undefined {
    if (!this.has(index, bitId)) return undefined;
    const at = this.extensionAt(index) + 1 + this.keyBytes(index);
    return decoder.decode(this.bytes.subarray(at + 1, at + 1 + this.bytes[at]));
  }

  ts(index: number): number | undefined {
    if (!this.has(index, bitTs)) return undefined;
    let at = this.extensionAt(index) + 1 + this.keyBytes(index);
    if (this.has(index, bitId)) at += 1 + this.bytes[at];
    return this.view.getFloat64(at, true);
  }

  meta(index: number): string | undefined {
    return this.has(index, bitMeta) ? this.extension(index).meta : undefined;
  }

  /** As they are in the pack; none where the event has no extension. */
  extensionBytesOf(index: number): Uint8Array {
    const at = this.extended ? this.extensionAt(index) : this.at;
    return this.bytes.subarray(at, at + this.extensionLength(index));
  }

  /** Whether the event's key is this one, or begins with it; nothing is decoded as long as `text` is ASCII. */
  keyMatches(index: number, text: string, prefix: boolean): boolean {
    const length = this.keyLength(index);
    if (length < text.length) return false;
    const at = this.extensionAt(index) + 3;
    for (let i = 0; i < text.length; i++) {
      const char = text.charCodeAt(i);
      if (char >= 0x80) {
        const key = decoder.decode(this.bytes.subarray(at, at + length));
        return prefix ? key.startsWith(text) : key === text;
      }
      if (this.bytes[at + i] !== char) return false;
    }
    return prefix || length === text.length;
  }

  /** Copies the events from..to as a pack of their own to `target` and gives the number of bytes written. */
  copyRange(from: number, to: number, target: Uint8Array, targetAt: number): number {
    const size = this.rangeBytes(from, to);
    const starts = this.payloadStarts();
    const out = new DataView(target.buffer, target.byteOffset, target.byteLength);
    const count = to - from;
    const payloads = starts[to] - starts[from];
    const extensions = this.extended ? this.extensionStarts()[to] - this.extensionStarts()[from] : 0;
    const extended = extensions > 0;
    out.setUint32(targetAt, count, true);
    out.setUint32(targetAt + 4, extended ? packFlagExtensions : 0, true);
    out.setUint32(targetAt + 8, payloads, true);
    out.setUint32(targetAt + 12, extensions, true);
    let position = targetAt + packHeaderBytes;
    const table = this.at + packHeaderBytes;
    target.set(this.bytes.subarray(table + 4 * from, table + 4 * to), position);
    position += 4 * count;
    if (extended) {
      target.set(this.bytes.subarray(table + 4 * (this.count + from), table + 4 * (this.count + to)), position);
      position += 4 * count;
    }
    target.set(this.bytes.subarray(this.payloadsAt + starts[from], this.payloadsAt + starts[to]), position);
    position += payloads;
    if (extended) {
      const ext = this.extensionStarts();
      target.set(this.bytes.subarray(this.extensionsAt + ext[from], this.extensionsAt + ext[to]), position);
    }
    return size;
  }

  rangeBytes(from: number, to: number): number {
    const starts = this.payloadStarts();
    const extensions = this.extended ? this.extensionStarts()[to] - this.extensionStarts()[from] : 0;
    return packHeaderBytes + (extensions > 0 ? 8 : 4) * (to - from) + starts[to] - starts[from] + extensions;
  }

  private has(index: number, bit: number): boolean {
    return this.extensionLength(index) > 0 && (this.bytes[this.extensionAt(index)] & bit) !== 0;
  }

  /** Of the key's text; -1 without a key. */
  private keyLength(index: number): number {
    return this.has(index, bitKey) ? this.view.getUint16(this.extensionAt(index) + 1, true) : -1;
  }

  /** Of the key's field, with its length. */
  private keyBytes(index: number): number {
    const length = this.keyLength(index);
    return length < 0 ? 0 : 2 + length;
  }
}

function readExtension(
  bytes: Uint8Array,
  view: DataView,
  from: number,
  to: number,
  text: { decode(bytes: Uint8Array): string },
): Extension {
  const bits = bytes[from];
  const out: { key?: string; id?: string; ts?: number; meta?: string } = {};
  let at = from + 1;
  if (bits & bitKey) {
    const length = view.getUint16(at, true);
    out.key = text.decode(bytes.subarray(at + 2, at + 2 + length));
    at += 2 + length;
  }
  if (bits & bitId) {
    const length = bytes[at];
    out.id = text.decode(bytes.subarray(at + 1, at + 1 + length));
    at += 1 + length;
  }
  if (bits & bitTs) {
    out.ts = view.getFloat64(at, true);
    at += 8;
  }
  if (bits & bitMeta) out.meta = text.decode(bytes.subarray(at, to));
  return out;
}

export function encodeExtension(entry: Extension): Uint8Array | undefined {
  if (entry.key === undefined && entry.id === undefined && entry.ts === undefined && entry.meta === undefined)
    return undefined;
  const key = entry.key === undefined ? undefined : encoder.encode(entry.key);
  const id = entry.id === undefined ? undefined : encoder.encode(entry.id);
  const meta = entry.meta === undefined ? undefined : encoder.encode(entry.meta);
  const size =
    1 +
    (key ? 2 + key.length : 0) +
    (id ? 1 + id.length : 0) +
    (entry.ts === undefined ? 0 : 8) +
    (meta ? meta.length : 0);
  const out = new Uint8Array(size);
  const view = new DataView(out.buffer);
  out[0] = (key ? bitKey : 0) | (id ? bitId : 0) | (entry.ts === undefined ? 0 : bitTs) | (meta ? bitMeta : 0);
  let at = 1;
  if (key) {
    view.setUint16(at, key.length, true);
    out.set(key, at + 2);
    at += 2 + key.length;
  }
  if (id) {
    out[at] = id.length;
    out.set(id, at + 1);
    at += 1 + id.length;
  }
  if (entry.ts !== undefined) {
    view.setFloat64(at, entry.ts, true);
    at += 8;
  }
  if (meta) out.set(meta, at);
  return out;
}

/** `room` gives the bytes to write to: all of them are written. */
export function encodePack(
  entries: readonly PackEntry[],
  room: (bytes: number) => Uint8Array = (bytes) => new Uint8Array(bytes),
): Uint8Array {
  const extensions = entries.map(encodeExtension);
  const extended = extensions.some((extension) => extension !== undefined);
  let payloadBytes = 0;
  let extensionBytes = 0;
  for (let i = 0; i < entries.length; i++) {
    payloadBytes += entries[i].payload.length;
    extensionBytes += extensions[i]?.length ?? 0;
  }
  const out = room(packHeaderBytes + (extended ? 8 : 4) * entries.length + payloadBytes + extensionBytes);
  const view = new DataView(out.buffer, out.byteOffset, out.byteLength);
  view.setUint32(0, entries.length, true);
  view.setUint32(4, extended ? packFlagExtensions : 0, true);
  view.setUint32(8, payloadBytes, true);
  view.setUint32(12, extensionBytes, true);
  let at = packHeaderBytes;
  for (const entry of entries) {
    view.setUint32(at, entry.payload.length, true);
    at += 4;
  }
  if (extended) {
    for (const extension of extensions) {
      view.setUint32(at, extension?.length ?? 0, true);
      at += 4;
    }
  }
  for (const entry of entries) {
    out.set(entry.payload, at);
    at += entry.payload.length;
  }
  for (const extension of extensions) {
    if (extension === undefined) continue;
    out.set(extension, at);
    at += extension.length;
  }
  return out;
}

/** The size of the pack that `mergePacks` makes. */
export function mergedBytes(packs: readonly PackView[]): number {
  let size = packHeaderBytes;
  const extended = packs.some((pack) => pack.extended);
  for (const pack of packs) size += (extended ? 8 : 4) * pack.count + pack.payloadBytes + pack.extensionBytes;
  return size;
}

/** Joins packs into one, in their order, at `targetAt` of `target`. */
export function mergePacks(packs: readonly PackView[], target: Uint8Array, targetAt: number): void {
  const extended = packs.some((pack) => pack.extended);
  let count = 0;
  let payloadBytes = 0;
  let extensionBytes = 0;
  for (const pack of packs) {
    count += pack.count;
    payloadBytes += pack.payloadBytes;
    extensionBytes += pack.extensionBytes;
  }
  const view = new DataView(target.buffer, target.byteOffset, target.byteLength);
  view.setUint32(targetAt, count, true);
  view.setUint32(targetAt + 4, extended ? packFlagExtensions : 0, true);
  view.setUint32(targetAt + 8, payloadBytes, true);
  view.setUint32(targetAt + 12, extensionBytes, true);
  let lengthsAt = targetAt + packHeaderBytes;
  let extensionLengthsAt = lengthsAt + 4 * count;
  let payloadsAt = extensionLengthsAt + (extended ? 4 * count : 0);
  let extensionsAt = payloadsAt + payloadBytes;
  for (const pack of packs) {
    const table = pack.at + packHeaderBytes;
    const tableBytes = 4 * pack.count;
    target.set(pack.bytes.subarray(table, table + tableBytes), lengthsAt);
    lengthsAt += tableBytes;
    const body = table + tableBytes * (pack.extended ? 2 : 1);
    if (extended) {
      if (pack.extended) target.set(pack.bytes.subarray(table + tableBytes, body), extensionLengthsAt);
      else target.fill(0, extensionLengthsAt, extensionLengthsAt + tableBytes);
      extensionLengthsAt += tableBytes;
    }
    target.set(pack.bytes.subarray(body, body + pack.payloadBytes), payloadsAt);
    payloadsAt += pack.payloadBytes;
    target.set(
      pack.bytes.subarray(body + pack.payloadBytes, body + pack.payloadBytes + pack.extensionBytes),
      extensionsAt,
    );
    extensionsAt += pack.extensionBytes;
  }
}

export interface PackLimits {
  /** Of one event. */
  readonly payloadBytesMax: number;
  readonly countMax: number;
}

/** Says what is wrong with bytes from outside that claim to be a pack ending exactly at their end, or nothing. */
export function packFault(bytes: Uint8Array, at: number, limits: PackLimits): Failure | undefined {
  if (bytes.length - at < packHeaderBytes) return failure("bad_frame", "batch shorter than its header");
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const count = view.getUint32(at, true);
  const flags = view.getUint32(at + 4, true);
  const payloadBytes = view.getUint32(at + 8, true);
  const extensionBytes = view.getUint32(at + 12, true);
  if (count === 0 || count > limits.countMax)
    return failure("bad_frame", `batch of ${count} events, allowed are 1 to ${limits.countMax}`);
  if (flags !== 0 && flags !== packFlagExtensions) return failure("bad_frame", "unknown batch flags");
  const extended = flags === packFlagExtensions;
  if (!extended && extensionBytes !== 0) return failure("bad_frame", "extension bytes without the flag");
  const tables = (extended ? 8 : 4) * count;
  if (at + packHeaderBytes + tables + payloadBytes + extensionBytes !== bytes.length)
    return failure("bad_frame", "batch lengths do not add up");
  let payloadSum = 0;
  let extensionSum = 0;
  const table = at + packHeaderBytes;
  for (let i = 0; i < count; i++) {
    const length = view.getUint32(table + 4 * i, true);
    if (length === 0) return failure("bad_frame", `event ${i} has no payload`);
    if (length > limits.payloadBytesMax)
      return failure("too_large", `payload of event ${i} has ${length} bytes, allowed are ${limits.payloadBytesMax}`);
    payloadSum += length;
    if (extended) extensionSum += view.getUint32(table + 4 * (count + i), true);
  }
  if (payloadSum !== payloadBytes || extensionSum !== extensionBytes)
    return failure("bad_frame", "batch lengths do not add up");
  if (!extended) return undefined;
  let from = table + tables + payloadBytes;
  for (let i = 0; i < count; i++) {
    const length = view.getUint32(table + 4 * (count + i), true);
    if (length > 0 && !extensionFits(bytes, view, from, from + length))
      return failure("bad_frame", `event ${i} has a broken extension`);
    from += length;
  }
  return undefined;
}

function extensionFits(bytes: Uint8Array, view: DataView, from: number, to: number): boolean {
  const bits = bytes[from];
  if (bits === 0 || (bits & ~(bitKey | bitId | bitTs | bitMeta)) !== 0) return false;
  let at = from + 1;
  if (bits & bitKey) {
    if (at + 2 > to) return false;
    at += 2 + view.getUint16(at, true);
  }
  if (bits & bitId) {
    if (at + 1 > to) return false;
    at += 1 + bytes[at];
  }
  if (bits & bitTs) at += 8;
  return bits & bitMeta ? at < to : at === to;
}
