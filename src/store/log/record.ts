// A record is what one commit writes: one write, one fdatasync. Little endian:
//
//   0   u32 magic
//   4   u32 crc          of the bytes from 8 to headBytes; the blocks have their own
//   8   8 bytes lineage  random, made with the shard and known to nobody outside: a payload cannot pose as a record
//   16  f64 segment      so that what a recycled file held before never counts
//   24  f64 epoch
//   32  f64 sequence     counts the commits of the shard
//   40  u32 headBytes    where the first frame begins
//   44  u32 totalBytes   a multiple of 8: records begin at multiples of 8
//   48  u32 kind         1 snapshot, 2 commit, 3 copy
//   52  u32 stateBytes   only in a snapshot
//   56  u32 echoCount
//   60  u32 trimCount
//   64  u32 putCount
//   68  u32 putBytes
//   72  u32 blockCount
//   76  u32 zero
//   80  state, echo { f64 stream, f64 end }, trims { f64 stream, f64 start, -1: gone },
//       puts { u32 keyBytes, u32 valueBytes, 0xffffffff: removed, key, value }
//   headBytes: blockCount × frame + block, then zeroes up to totalBytes
//
// A snapshot is the first record of a segment: the state of the shard before this record, and what this record commits on top.
// A copy is a record that a rewrite moved; it has blocks only. The echo names the ends of the streams that the record before it
// wrote to: when that one's head is unreadable, its streams still keep their offsets.
//
// A frame makes its block verifiable alone, whatever it is read with. 40 bytes:
//
//   0   u32 crc          of the frame from 4 on
//   4   u32 blockCrc
//   8   u32 blockBytes
//   12  u32 left         blocks behind this one in the record: with 0 the next thing is the next record
//   16  f64 stream
//   24  f64 firstOffset
//   32  u32 count
//   36  u32 flags        bit 0: extended

import { crc32 } from "node:zlib";
import type { BlockFacts } from "../block-facts.ts";
import type { Put, Trim } from "../store.ts";

export const headerBytes = 80;
export const frameBytes = 40;
export const lineageBytes = 8;
export const recordBytesMax = 2 ** 32 - 8;

const keptBytesMax = 8 * 1024 * 1024;
const magic = 0x3152584e; // "NXR1"
const removed = 0xffffffff;
const flagExtended = 1;

export type RecordKind = "snapshot" | "commit" | "copy";
const kinds: readonly RecordKind[] = ["snapshot", "commit", "copy"];

export interface StreamEnd {
  readonly stream: number;
  readonly end: number;
}

export interface RecordParts {
  readonly kind: RecordKind;
  readonly lineage: Uint8Array;
  readonly segment: number;
  readonly epoch: number;
  readonly sequence: number;
  readonly state?: Uint8Array;
  readonly echo: readonly StreamEnd[];
  readonly puts: readonly Put[];
  readonly trims: readonly Trim[];
  readonly blocks: readonly Uint8Array[];
  /** Of the same blocks. */
  readonly facts: readonly BlockFacts[];
}

export function align8(position: number): number {
  return Math.ceil(position / 8) * 8;
}

export function recordBytes(parts: Pick<RecordParts, "state" | "echo" | "puts" | "trims" | "blocks">): number {
  let size = headerBytes + (parts.state?.length ?? 0) + 16 * (parts.echo.length + parts.trims.length);
  for (const [key, value] of parts.puts) size += 8 + Buffer.byteLength(key) + (value?.length ?? 0);
  for (const block of parts.blocks) size += frameBytes + block.length;
  return align8(size);
}

/** Assembles records in one buffer that is used again and again. */
export class RecordBuffer {
  /** Where the frame of each block of the last record stands, from the beginning of the record. */
  readonly framesAt: number[] = [];
  private buffer = Buffer.allocUnsafeSlow(64 * 1024);

  /** The bytes hold until the next call. */
  encode(parts: RecordParts): Buffer {
    const total = recordBytes(parts);
    // Grows by doubling; after one very large record it shrinks again.
    const oversize = this.buffer.length > keptBytesMax && total <= keptBytesMax;
    if (this.buffer.length < total || oversize) {
      this.buffer = Buffer.allocUnsafeSlow(Math.max(total, Math.min(2 * this.buffer.length, keptBytesMax)));
    }
    const out = this.buffer;
    let at = headerBytes;
    if (parts.state) {
      out.set(parts.state, at);
      at += parts.state.length;
    }
    for (const { stream, end } of parts.echo) {
      out.writeDoubleLE(stream, at);
      out.writeDoubleLE(end, at + 8);
      at += 16;
    }
    for (const [stream, start] of parts.trims) {
      out.writeDoubleLE(stream, at);
      out.writeDoubleLE(start ?? -1, at + 8);
      at += 16;
    }
    const putsAt = at;
    for (const [key, value] of parts.puts) at = writePut(out, at, key, value);
    const headBytes = at;
    this.framesAt.length = 0;
    for (let i = 0; i < parts.blocks.length; i++) {
      this.framesAt.push(at);
      at = writeFrame(out, at, parts.blocks[i], parts.facts[i], parts.blocks.length - 1 - i);
    }
    out.fill(0, at, total);
    out.writeUInt32LE(magic, 0);
    out.set(parts.lineage, 8);
    out.writeDoubleLE(parts.segment, 16);
    out.writeDoubleLE(parts.epoch, 24);
    out.writeDoubleLE(parts.sequence, 32);
    out.writeUInt32LE(headBytes, 40);
    out.writeUInt32LE(total, 44);
    out.writeUInt32LE(kinds.indexOf(parts.kind) + 1, 48);
    out.writeUInt32LE(parts.state?.length ?? 0, 52);
    out.writeUInt32LE(parts.echo.length, 56);
    out.writeUInt32LE(parts.trims.length, 60);
    out.writeUInt32LE(parts.puts.length, 64);
    out.writeUInt32LE(headBytes - putsAt, 68);
    out.writeUInt32LE(parts.blocks.length, 72);
    out.writeUInt32LE(0, 76);
    out.writeUInt32LE(crc32(out.subarray(8, headBytes)), 4);
    return out.subarray(0, total);
  }
}

export function writePut(out: Buffer, at: number, key: string, value: Uint8Array | null): number {
  const keyBytes = out.write(key, at + 8);
  out.writeUInt32LE(keyBytes, at);
  out.writeUInt32LE(value === null ? removed : value.length, at + 4);
  if (value !== null) out.set(value, at + 8 + keyBytes);
  return at + 8 + keyBytes + (value?.length ?? 0);
}

function writeFrame(out: Buffer, at: number, block: Uint8Array, facts: BlockFacts, left: number): number {
  out.writeUInt32LE(crc32(block), at + 4);
  out.writeUInt32LE(block.length, at + 8);
  out.writeUInt32LE(left, at + 12);
  out.writeDoubleLE(facts.stream, at + 16);
  out.writeDoubleLE(facts.firstOffset, at + 24);
  out.writeUInt32LE(facts.count, at + 32);
  out.writeUInt32LE(facts.extended ? flagExtended : 0, at + 36);
  out.writeUInt32LE(crc32(out.subarray(at + 4, at + frameBytes)), at);
  out.set(block, at + frameBytes);
  return at + frameBytes + block.length;
}

export interface RecordHead {
  readonly kind: RecordKind;
  readonly segment: number;
  readonly epoch: number;
  readonly sequence: number;
  readonly headBytes: number;
  readonly totalBytes: number;
  readonly blockCount: number;
}

/** The head of the record at `at`; how many bytes from `at` on are needed to tell; or nothing when there is none. */
export function readHead(bytes: Buffer, at: number, lineage: Uint8Array | undefined): RecordHead | number | undefined {
  if (bytes.length - at < headerBytes) return headerBytes;
  if (bytes.readUInt32LE(at) !== magic) return undefined;
  if (lineage !== undefined && bytes.compare(lineage, 0, lineageBytes, at + 8, at + 8 + lineageBytes) !== 0)
    return undefined;
  const headBytes = bytes.readUInt32LE(at + 40);
  const totalBytes = bytes.readUInt32LE(at + 44);
  const kind = kinds[bytes.readUInt32LE(at + 48) - 1];
  if (kind === undefined || totalBytes % 8 !== 0 || headBytes > totalBytes) return undefined;
  const sections =
    bytes.readUInt32LE(at + 52) +
    16 * (bytes.readUInt32LE(at + 56) + bytes.readUInt32LE(at + 60)) +
    bytes.readUInt32LE(at + 68);
  if (headBytes !== headerBytes + sections) return undefined;
  if (bytes.length - at < headBytes) return headBytes;
  if (bytes.readUInt32LE(at + 4) !== crc32(bytes.subarray(at + 8, at + headBytes))) return undefined;
  return {
    kind,
    segment: bytes.readDoubleLE(at + 16),
    epoch: bytes.readDoubleLE(at + 24),
    sequence: bytes.readDoubleLE(at + 32),
    headBytes,
    totalBytes,
    blockCount: bytes.readUInt32LE(at + 72),
  };
}

export interface Frame {
  readonly stream: number;
  readonly firstOffset: number;
  readonly count: number;
  readonly extended: boolean;
  readonly left: number;
  /** The block itself, inside the bytes that were given. */
  readonly blockAt: number;
  readonly blockBytes: number;
  readonly blockCrc: number;
}

/** The frame at `at`, or nothing when it does not check out or its block does not end within the bytes. */
export function readFrame(bytes: Buffer, at: number): Frame | undefined {
  if (at + frameBytes > bytes.length) return undefined;
  if (bytes.readUInt32LE(at) !== crc32(bytes.subarray(at + 4, at + frameBytes))) return undefined;
  const blockBytes = bytes.readUInt32LE(at + 8);
  if (at + frameBytes + blockBytes > bytes.length) return undefined;
  return {
    stream: bytes.readDoubleLE(at + 16),
    firstOffset: bytes.readDoubleLE(at + 24),
    count: bytes.readUInt32LE(at + 32),
    extended: (bytes.readUInt32LE(at + 36) & flagExtended) !== 0,
    left: bytes.readUInt32LE(at + 12),
    blockAt: at + frameBytes,
    blockBytes,
    blockCrc: bytes.readUInt32LE(at + 4),
  };
}

export function blockChecksOut(bytes: Buffer, frame: Frame): boolean {
  return crc32(bytes.subarray(frame.blockAt, frame.blockAt + frame.blockBytes)) === frame.blockCrc;
}

/** Reads a whole record whose head is good. `bytes` is exactly the record. */
export class RecordView {
  readonly bytes: Buffer;
  readonly head: RecordHead;

  constructor(bytes: Buffer, head: RecordHead) {
    this.bytes = bytes;
    this.head = head;
  }

  lineage(): Uint8Array {
    return Uint8Array.from(this.bytes.subarray(8, 8 + lineageBytes));
  }

  state(): Buffer {
    return this.bytes.subarray(headerBytes, headerBytes + this.stateBytes());
  }

  echo(): StreamEnd[] {
    const from = headerBytes + this.stateBytes();
    const ends: StreamEnd[] = [];
    for (let at = from; at < from + 16 * this.bytes.readUInt32LE(56); at += 16) {
      ends.push({ stream: this.bytes.readDoubleLE(at), end: this.bytes.readDoubleLE(at + 8) });
    }
    return ends;
  }

  trims(): Trim[] {
    const from = headerBytes + this.stateBytes() + 16 * this.bytes.readUInt32LE(56);
    const trims: Trim[] = [];
    for (let at = from; at < from + 16 * this.bytes.readUInt32LE(60); at += 16) {
      const start = this.bytes.readDoubleLE(at + 8);
      trims.push([this.bytes.readDoubleLE(at), start < 0 ? null : start]);
    }
    return trims;
  }

  puts(): Put[] {
    const puts: Put[] = [];
    let at = this.head.headBytes - this.bytes.readUInt32LE(68);
    for (let left = this.bytes.readUInt32LE(64); left > 0; left--) {
      const { key, value, next } = readPut(this.bytes, at);
      puts.push([key, value]);
      at = next;
    }
    return puts;
  }

  /** The frames in order, up to one that does not check out: what is behind it cannot be found from here. */
  frames(): { frames: Frame[]; whole: boolean } {
    const frames: Frame[] = [];
    let at = this.head.headBytes;
    for (let left = this.head.blockCount - 1; left >= 0; left--) {
      const frame = readFrame(this.bytes, at);
      if (frame === undefined || frame.left !== left) return { frames, whole: false };
      frames.push(frame);
      at = frame.blockAt + frame.blockBytes;
    }
    return { frames, whole: true };
  }

  block(frame: Frame): Buffer {
    return this.bytes.subarray(frame.blockAt, frame.blockAt + frame.blockBytes);
  }

  private stateBytes(): number {
    return this.bytes.readUInt32LE(52);
  }
}

export function readPut(bytes: Buffer, at: number): { key: string; value: Buffer | null; next: number } {
  const keyEnd = at + 8 + bytes.readUInt32LE(at);
  const valueBytes = bytes.readUInt32LE(at + 4);
  const key = bytes.toString("utf8", at + 8, keyEnd);
  if (valueBytes === removed) return { key, value: null, next: keyEnd };
  return { key, value: bytes.subarray(keyEnd, keyEnd + valueBytes), next: keyEnd + valueBytes };
}
