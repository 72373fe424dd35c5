// Finds what a write that was never finished left behind the last record, and keeps it. It counts for nobody, but it might be an
// acknowledged record after all that was damaged while nothing else told of it (mark.ts may be old): so it is said, and its bytes
// are copied to a file of their own, since the segment is used again or removed one day.

import { basename, join } from "node:path";
import type { Files, LogFile } from "./files.ts";
import { headerBytes, lineageBytes } from "./record.ts";
import type { Segment } from "./segment.ts";

/** How far behind the last record is looked, and how much is kept of a write whose length nobody knows. */
const lookBytes = 1024 * 1024;
/** One bit in so many of what each head of this segment begins with may be wrong, and it still is one. Of random bytes every second is. */
const wrongBitIn = 6;

export interface Unfinished {
  readonly segment: number;
  readonly path: string;
  readonly position: number;
  readonly bytes: Buffer;
}

export async function findUnfinished(
  segment: Segment,
  position: number,
  lineage: Uint8Array,
): Promise<Unfinished | undefined> {
  return segment.reading(async (file) => {
    const found = await load(file, position, lookBytes);
    const length = beginsRecord(found, segment.number, lineage)
      ? Math.max(headerBytes, found.length < headerBytes ? 0 : found.readUInt32LE(44))
      : startsUnwritten(position, found)
        ? lastWritten(found)
        : 0;
    if (length === 0) return undefined;
    const bytes = length <= found.length ? found.subarray(0, length) : await load(file, position, length);
    return { segment: segment.number, path: segment.path, position, bytes };
  });
}

async function load(file: LogFile, position: number, bytes: number): Promise<Buffer> {
  const target = Buffer.alloc(Math.max(0, Math.min(bytes, (await file.size()) - position)));
  return target.subarray(0, await file.read(target, position));
}

/**
 * Magic, lineage and segment: what a file held before it was used again has another segment there. Of a head in which the file ends
 * there may be less.
 */
function beginsRecord(bytes: Buffer, segment: number, lineage: Uint8Array): boolean {
  const expected = Buffer.alloc(24);
  expected.write("NXR1");
  expected.set(lineage, 8);
  expected.writeDoubleLE(segment, 8 + lineageBytes);
  let compared = 0;
  let wrong = 0;
  for (let at = 0; at < Math.min(expected.length, bytes.length); at++) {
    // The checksum.
    if (at >= 4 && at < 8) continue;
    compared += 8;
    wrong += bits(expected[at] ^ bytes[at]);
  }
  if (compared < 32 || wrong * wrongBitIn > compared) return false;
  // An older segment's number may differ from this one by a bit or two.
  const other = bytes.length < 24 ? 0 : bytes.readDoubleLE(16);
  return !(Number.isInteger(other) && other > 0 && other < segment);
}

function bits(byte: number): number {
  let count = 0;
  for (let left = byte; left > 0; left &= left - 1) count++;
  return count;
}

/** The first sector was never written, as in a prepared file, but something behind it was. */
function startsUnwritten(position: number, bytes: Buffer): boolean {
  return bytes.subarray(0, 512 - (position % 512)).every((byte) => byte === 0) && lastWritten(bytes) > 0;
}

function lastWritten(bytes: Buffer): number {
  let length = bytes.length;
  while (length > 0 && bytes[length - 1] === 0) length--;
  return length;
}

interface KeepParts {
  readonly folder: string;
  readonly files: Files;
  report(message: string): void;
}

/** Copies each into a file of its own, once, and says so. A disk that is full keeps it where it is for now. */
export async function keepUnfinished(parts: KeepParts, unfinished: readonly Unfinished[]): Promise<void> {
  for (const one of unfinished) {
    const { segment, path, position, bytes } = one;
    const name = `${String(segment).padStart(12, "0")}-${position}.cut`;
    const said = `an unfinished write of ${bytes.length} bytes at ${basename(path)}:${position} was cut`;
    try {
      await keep(parts, name, bytes);
      parts.report(`${said}, its bytes are in ${name}`);
    } catch (error) {
      parts.report(`${said}, and its bytes could not be copied to ${name}: ${String(error)}`);
    }
  }
}

async function keep({ folder, files }: KeepParts, name: string, bytes: Buffer): Promise<void> {
  if ((await files.list(folder)).includes(name)) return;
  const making = join(folder, `${name}.tmp`);
  const file = await files.create(making);
  try {
    await file.write(bytes, 0);
    await file.datasync();
  } finally {
    await file.close();
  }
  await files.rename(making, join(folder, name));
  await files.syncFolder(folder);
}
