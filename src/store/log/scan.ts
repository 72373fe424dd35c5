// Walks the records of a segment file from its beginning and says what it met: records whose head is good, and stretches
// where no head is good but one follows. It judges nothing: whether a fault is damage or an unfinished write depends on what
// comes after it, and that is recovery's business.

import type { LogFile } from "./files.ts";
import {
  blockChecksOut,
  type Frame,
  headerBytes,
  lineageBytes,
  type RecordHead,
  RecordView,
  readHead,
} from "./record.ts";

const chunkBytes = 1024 * 1024;
const magicText = Buffer.from("NXR1");

export interface ScannedRecord {
  readonly type: "record";
  readonly position: number;
  readonly record: RecordView;
  readonly good: readonly Frame[];
  /** Blocks whose bytes do not check out, though their frames do. */
  readonly bad: readonly Frame[];
  /** Whether every frame could be read: otherwise the blocks behind the last one named here are lost. */
  readonly whole: boolean;
}

export type Scanned = ScannedRecord | { readonly type: "bad"; readonly from: number; readonly to: number };

export interface ScanRange {
  readonly segment: number;
  /** Without it any shard's records count: only for finding out which shard this is. */
  readonly lineage?: Uint8Array | undefined;
  /** Where to stop; the end of the file without it. */
  readonly end?: number | undefined;
  readonly from?: number;
}

export function isIntact(scanned: ScannedRecord): boolean {
  return scanned.whole && scanned.bad.length === 0;
}

/** Every record whose head is good, in order of position; their sequences rise. */
export async function* scanSegment(file: LogFile, range: ScanRange): AsyncGenerator<Scanned> {
  const size = await file.size();
  const window = new Window(file, Math.min(range.end ?? size, size));
  let position = range.from ?? 0;
  let sequence = -1;
  while (position + headerBytes <= window.end) {
    const head = await headAt(window, position, range, sequence);
    if (head === undefined) {
      const next = await findHead(window, position + 8, range, sequence);
      if (next === undefined) return;
      yield { type: "bad", from: position, to: next };
      position = next;
      continue;
    }
    // A file that ends inside the record gives what there is: its frames tell that it is not whole.
    yield examine(position, new RecordView(await window.load(position, head.totalBytes), head));
    sequence = head.sequence;
    position += head.totalBytes;
  }
}

function examine(position: number, record: RecordView): ScannedRecord {
  const { frames, whole } = record.frames();
  const good: Frame[] = [];
  const bad: Frame[] = [];
  for (const frame of frames) (blockChecksOut(record.bytes, frame) ? good : bad).push(frame);
  return { type: "record", position, record, good, bad, whole };
}

async function headAt(
  window: Window,
  position: number,
  range: ScanRange,
  after: number,
): Promise<RecordHead | undefined> {
  let bytes = await window.load(position, headerBytes);
  let head = readHead(bytes, 0, range.lineage);
  if (typeof head === "number") {
    if (position + head > window.end) return undefined;
    bytes = await window.load(position, head);
    head = readHead(bytes, 0, range.lineage);
  }
  if (head === undefined || typeof head === "number") return undefined;
  return head.segment === range.segment && head.sequence > after ? head : undefined;
}

/** The next place with a good head. Looks for what each head contains, so that zeroes and old bytes pass at the speed of memory. */
async function findHead(window: Window, from: number, range: ScanRange, after: number): Promise<number | undefined> {
  const needle = range.lineage === undefined ? magicText : Buffer.from(range.lineage);
  const needleAt = range.lineage === undefined ? 0 : 8;
  let position = from + needleAt;
  while (position + lineageBytes <= window.end) {
    const bytes = await window.load(position, Math.min(chunkBytes, window.end - position));
    for (let at = bytes.indexOf(needle); at >= 0; at = bytes.indexOf(needle, at + 1)) {
      const candidate = position + at - needleAt;
      if (candidate % 8 === 0 && (await headAt(window, candidate, range, after))) return candidate;
    }
    position += bytes.length - (lineageBytes - 1);
    if (bytes.length < lineageBytes) return undefined;
  }
  return undefined;
}

/** Reads ahead in chunks. A buffer is never written again, so records that point into it stay good. */
class Window {
  readonly end: number;
  private readonly file: LogFile;
  private buffer = Buffer.alloc(0);
  private at = 0;

  constructor(file: LogFile, end: number) {
    this.file = file;
    this.end = end;
  }

  /** The bytes from `position` on, fewer than asked only at the end. */
  async load(position: number, bytes: number): Promise<Buffer> {
    const wanted = Math.min(bytes, this.end - position);
    if (position < this.at || position + wanted > this.at + this.buffer.length) {
      const target = Buffer.allocUnsafeSlow(Math.min(Math.max(wanted, chunkBytes), this.end - position));
      const got = await this.file.read(target, position);
      this.buffer = target.subarray(0, got);
      this.at = position;
    }
    return this.buffer.subarray(position - this.at, position - this.at + wanted);
  }
}
