// How far a shard is known to be on disk, said in a file apart from its log. Without it nobody could tell an acknowledged last record
// with a flipped bit, or a file that was cut, from a write that was never finished; and taking the one for the other loses events
// without a word.
//
// It is written in place after each commit that succeeded, and never synced: what it says was durable before it was said, so an old
// one says less but nothing wrong. A process that was killed leaves an exact one, and so does an orderly end; after a power cut it
// may be as old as the system lets pages be. `durable`, 56 bytes, so within one sector:
//
//   0   u32 magic
//   4   u32 crc          of the rest
//   8   8 bytes lineage
//   16  f64 segment      which had the newest commit
//   24  f64 end          where its record ended
//   32  f64 sequence     of that commit
//   40  f64 epoch
//   48  8 bytes zero

import { join } from "node:path";
import { crc32 } from "node:zlib";
import type { Files, LogFile } from "./files.ts";
import { lineageBytes } from "./record.ts";

const magic = 0x3144584e; // "NXD1"
const markBytes = 56;
const markName = "durable";

export interface Mark {
  readonly lineage: Uint8Array;
  readonly segment: number;
  readonly end: number;
  readonly sequence: number;
  readonly epoch: number;
}

export function markPath(folder: string): string {
  return join(folder, markName);
}

/** Nothing where there is none, or none that checks out: it is evidence, and its absence is not. */
export async function readMark(folder: string, files: Files): Promise<Mark | undefined> {
  if (!(await files.list(folder)).includes(markName)) return undefined;
  const file = await files.open(markPath(folder));
  const bytes = Buffer.alloc(markBytes);
  try {
    if ((await file.read(bytes, 0)) < markBytes) return undefined;
  } finally {
    await file.close();
  }
  if (bytes.readUInt32LE(0) !== magic || bytes.readUInt32LE(4) !== crc32(bytes.subarray(8))) return undefined;
  return {
    lineage: Uint8Array.from(bytes.subarray(8, 8 + lineageBytes)),
    segment: bytes.readDoubleLE(16),
    end: bytes.readDoubleLE(24),
    sequence: bytes.readDoubleLE(32),
    epoch: bytes.readDoubleLE(40),
  };
}

interface MarkParts {
  readonly folder: string;
  readonly files: Files;
  report(message: string): void;
}

/** Commits are as safe without it, so what fails here is said and no more: only damage to the newest of them could go unnoticed. */
export class MarkWriter {
  private readonly parts: MarkParts;
  private file: LogFile | undefined;
  private readonly bytes = Buffer.alloc(markBytes);

  /** Its name is durable with the next sync of the folder. */
  static async open(parts: MarkParts): Promise<MarkWriter> {
    const { folder, files } = parts;
    const path = markPath(folder);
    try {
      const there = (await files.list(folder)).includes(markName);
      return new MarkWriter(parts, await (there ? files.open(path) : files.create(path)));
    } catch (error) {
      parts.report(`${path} cannot be written, so nothing tells what is durable: ${String(error)}`);
      return new MarkWriter(parts, undefined);
    }
  }

  private constructor(parts: MarkParts, file: LogFile | undefined) {
    this.parts = parts;
    this.file = file;
  }

  write({ lineage, segment, end, sequence, epoch }: Mark): void {
    const { bytes, file } = this;
    if (file === undefined) return;
    bytes.writeUInt32LE(magic, 0);
    bytes.set(lineage, 8);
    bytes.writeDoubleLE(segment, 16);
    bytes.writeDoubleLE(end, 24);
    bytes.writeDoubleLE(sequence, 32);
    bytes.writeDoubleLE(epoch, 40);
    bytes.writeUInt32LE(crc32(bytes.subarray(8)), 4);
    try {
      file.writeNow(bytes, 0);
    } catch (error) {
      this.parts.report(`${file.path} stays behind what is durable: ${String(error)}`);
      this.file = undefined;
      void file.close();
    }
  }

  async close(): Promise<void> {
    await this.file?.close();
  }
}
