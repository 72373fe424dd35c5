// The state section of a snapshot record (record.ts): all that a shard must know before it can replay its newest segment.
//
//   0   u32 version 1
//   4   u32 streamCount
//   8   u32 entryCount
//   12  u32 zero
//   16  f64 previousSegment, 0 for none
//   24  f64 previousEnd      how far the segment before this one counts. What is behind it is an unfinished write, or was
//                            committed once more in this segment (shard-log.ts says why).
//   32  streams { f64 stream, f64 start, f64 end, f64 lastStoredAt, f64 bytes }
//       entries, as the puts of a record
//       zeroes up to a multiple of 8

import { ShardState } from "../shard-state.ts";
import { align8, readPut, writePut } from "./record.ts";

const version = 1;
const fixedBytes = 32;
const streamBytes = 40;

export interface Previous {
  readonly segment: number;
  readonly end: number;
}

export function encodeState(state: ShardState, previous: Previous): Buffer {
  let size = fixedBytes + streamBytes * state.heads.size;
  for (const [key, value] of state.entries.all()) size += 8 + Buffer.byteLength(key) + value.length;
  const out = Buffer.alloc(align8(size));
  out.writeUInt32LE(version, 0);
  out.writeUInt32LE(state.heads.size, 4);
  out.writeUInt32LE(state.entries.size, 8);
  out.writeDoubleLE(previous.segment, 16);
  out.writeDoubleLE(previous.end, 24);
  let at = fixedBytes;
  for (const [stream, head] of state.heads) {
    out.writeDoubleLE(stream, at);
    out.writeDoubleLE(head.start, at + 8);
    out.writeDoubleLE(head.end, at + 16);
    out.writeDoubleLE(head.lastStoredAt, at + 24);
    out.writeDoubleLE(head.bytes, at + 32);
    at += streamBytes;
  }
  for (const [key, value] of state.entries.all()) at = writePut(out, at, key, value);
  return out;
}

/** `bytes` has passed its crc, so anything but the version is as it was written. */
export function decodeState(bytes: Buffer): { state: ShardState; previous: Previous } {
  if (bytes.readUInt32LE(0) !== version)
    throw new Error(`a snapshot of version ${bytes.readUInt32LE(0)}, this is ${version}`);
  const state = new ShardState();
  let at = fixedBytes;
  for (let left = bytes.readUInt32LE(4); left > 0; left--) {
    state.heads.set(bytes.readDoubleLE(at), {
      start: bytes.readDoubleLE(at + 8),
      end: bytes.readDoubleLE(at + 16),
      lastStoredAt: bytes.readDoubleLE(at + 24),
      bytes: bytes.readDoubleLE(at + 32),
    });
    at += streamBytes;
  }
  for (let left = bytes.readUInt32LE(8); left > 0; left--) {
    const { key, value, next } = readPut(bytes, at);
    state.entries.put(key, value);
    at = next;
  }
  return { state, previous: { segment: bytes.readDoubleLE(16), end: bytes.readDoubleLE(24) } };
}
