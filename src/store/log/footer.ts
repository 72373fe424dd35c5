// What a sealed segment ends in: its part of the block index, so that opening a shard need not read it. Only a shortcut: a
// segment whose footer is missing or does not check out is scanned. Behind the last record, up to the end of the file:
//
//   runs { f64 stream, f64 firstOffset, f64 storedAt, f64 maxTs, u32 count, u32 position, u32 span, u32 bytes }
//   trailer, 80 bytes:
//     0   8 bytes lineage
//     8   f64 segment
//     16  f64 end              where the records end and this begins
//     24  f64 lastSequence
//     32  f64 previousSegment  as in the snapshot of the segment
//     40  f64 previousEnd
//     48  u32 runCount
//     52  u32 flags            bit 0: some block is extended, bit 1: rewritten
//     56  u32 version 1
//     60  u32 zero
//     64  u32 zero
//     68  u32 crc              of the runs
//     72  u32 magic
//     76  u32 trailerCrc       of the trailer up to here

import { crc32 } from "node:zlib";
import type { Run } from "./block-index.ts";
import type { LogFile } from "./files.ts";
import type { Previous } from "./snapshot.ts";

const magic = 0x3146584e; // "NXF1"
const version = 1;
const entryBytes = 48;
const trailerBytes = 80;

export interface Footer {
  readonly lineage: Uint8Array;
  readonly segment: number;
  readonly end: number;
  readonly lastSequence: number;
  readonly previous: Previous;
  readonly extended: boolean;
  readonly rewritten: boolean;
  readonly runs: readonly Run[];
}

export function encodeFooter(footer: Footer): Buffer {
  const out = Buffer.alloc(entryBytes * footer.runs.length + trailerBytes);
  let at = 0;
  for (const run of footer.runs) {
    out.writeDoubleLE(run.stream, at);
    out.writeDoubleLE(run.firstOffset, at + 8);
    out.writeDoubleLE(run.storedAt, at + 16);
    out.writeDoubleLE(run.maxTs, at + 24);
    out.writeUInt32LE(run.count, at + 32);
    out.writeUInt32LE(run.position, at + 36);
    out.writeUInt32LE(run.span, at + 40);
    out.writeUInt32LE(run.bytes, at + 44);
    at += entryBytes;
  }
  out.set(footer.lineage, at);
  out.writeDoubleLE(footer.segment, at + 8);
  out.writeDoubleLE(footer.end, at + 16);
  out.writeDoubleLE(footer.lastSequence, at + 24);
  out.writeDoubleLE(footer.previous.segment, at + 32);
  out.writeDoubleLE(footer.previous.end, at + 40);
  out.writeUInt32LE(footer.runs.length, at + 48);
  out.writeUInt32LE((footer.extended ? 1 : 0) | (footer.rewritten ? 2 : 0), at + 52);
  out.writeUInt32LE(version, at + 56);
  out.writeUInt32LE(crc32(out.subarray(0, at)), at + 68);
  out.writeUInt32LE(magic, at + 72);
  out.writeUInt32LE(crc32(out.subarray(at, at + 76)), at + 76);
  return out;
}

/** The footer of a segment, or nothing when there is none that checks out. */
export async function readFooter(file: LogFile, segment: number, lineage: Uint8Array): Promise<Footer | undefined> {
  const size = await file.size();
  if (size < trailerBytes) return undefined;
  const trailer = Buffer.alloc(trailerBytes);
  if ((await file.read(trailer, size - trailerBytes)) < trailerBytes) return undefined;
  if (trailer.readUInt32LE(72) !== magic || trailer.readUInt32LE(56) !== version) return undefined;
  if (trailer.readUInt32LE(76) !== crc32(trailer.subarray(0, 76))) return undefined;
  if (trailer.readDoubleLE(8) !== segment || trailer.compare(lineage, 0, 8, 0, 8) !== 0) return undefined;
  const end = trailer.readDoubleLE(16);
  const runCount = trailer.readUInt32LE(48);
  if (end + entryBytes * runCount + trailerBytes !== size) return undefined;
  const entries = Buffer.allocUnsafeSlow(entryBytes * runCount);
  if ((await file.read(entries, end)) < entries.length || crc32(entries) !== trailer.readUInt32LE(68)) return undefined;
  return {
    lineage,
    segment,
    end,
    lastSequence: trailer.readDoubleLE(24),
    previous: { segment: trailer.readDoubleLE(32), end: trailer.readDoubleLE(40) },
    extended: (trailer.readUInt32LE(52) & 1) !== 0,
    rewritten: (trailer.readUInt32LE(52) & 2) !== 0,
    runs: readRuns(entries, segment),
  };
}

function readRuns(bytes: Buffer, segment: number): Run[] {
  const runs: Run[] = [];
  for (let at = 0; at < bytes.length; at += entryBytes) {
    runs.push({
      stream: bytes.readDoubleLE(at),
      firstOffset: bytes.readDoubleLE(at + 8),
      storedAt: bytes.readDoubleLE(at + 16),
      maxTs: bytes.readDoubleLE(at + 24),
      count: bytes.readUInt32LE(at + 32),
      position: bytes.readUInt32LE(at + 36),
      span: bytes.readUInt32LE(at + 40),
      bytes: bytes.readUInt32LE(at + 44),
      segment,
    });
  }
  return runs;
}
