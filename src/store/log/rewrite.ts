// Copies what lives of a segment into a new file and puts that in its place. The blocks keep their bytes, the records their
// sequence and epoch; entries and trims are left out, since a newer snapshot has them. Until the rename the copy is a .tmp file
// that recovery removes; after it the old file is gone by name, and goes for good when the last reader lets go of it.

import { type BlockFacts, blockFacts } from "../block-facts.ts";
import { BlockIndex, blockRun, type Run } from "./block-index.ts";
import type { Files, LogFile } from "./files.ts";
import { encodeFooter } from "./footer.ts";
import { type Frame, RecordBuffer } from "./record.ts";
import { isIntact, type ScannedRecord, scanSegment } from "./scan.ts";
import type { Segment } from "./segment.ts";

const writeBytesMin = 256 * 1024;

export interface RewriteParts {
  readonly folder: string;
  readonly files: Files;
  readonly lineage: Uint8Array;
  /** Whether a block of this segment is still read from here. */
  lives(segment: number, frame: Frame): boolean;
  stopped(): boolean;
}

export interface Rewritten {
  readonly end: number;
  readonly extended: boolean;
  readonly runs: readonly Run[];
}

/** Gives what the new file holds; nothing when it was stopped, or met a record that does not check out: that file must stay. */
export async function rewrite(segment: Segment, parts: RewriteParts): Promise<Rewritten | undefined> {
  const making = `${segment.path}.tmp`;
  const file = await parts.files.create(making);
  let result: Rewritten | undefined;
  try {
    result = await copy(segment, file, parts);
  } finally {
    await file.close();
    if (result === undefined) await parts.files.unlink(making);
  }
  if (result === undefined) return undefined;
  await parts.files.rename(making, segment.path);
  await parts.files.syncFolder(parts.folder);
  return result;
}

async function copy(segment: Segment, file: LogFile, parts: RewriteParts): Promise<Rewritten | undefined> {
  const out = new CopyWriter(segment, file, parts.lineage);
  const { number, end } = segment;
  const whole = await segment.reading(async (source) => {
    for await (const item of scanSegment(source, { segment: number, lineage: parts.lineage, end })) {
      if (parts.stopped()) return false;
      if (item.type === "bad" || !isIntact(item)) {
        segment.damaged = true;
        return false;
      }
      await out.add(item, (frame) => parts.lives(number, frame));
    }
    return true;
  });
  return whole ? out.finish() : undefined;
}

class CopyWriter {
  private readonly segment: Segment;
  private readonly file: LogFile;
  private readonly lineage: Uint8Array;
  private readonly buffer = new RecordBuffer();
  private readonly index = new BlockIndex();
  private waiting: Buffer[] = [];
  private waitingBytes = 0;
  private written = 0;
  private extended = false;

  constructor(segment: Segment, file: LogFile, lineage: Uint8Array) {
    this.segment = segment;
    this.file = file;
    this.lineage = lineage;
  }

  async add(scanned: ScannedRecord, lives: (frame: Frame) => boolean): Promise<void> {
    const { record } = scanned;
    const kept = scanned.good.filter(lives);
    if (kept.length === 0) return;
    const blocks = kept.map((frame) => record.block(frame));
    const facts = blocks.map((block) => blockFacts(block)).filter((fact): fact is BlockFacts => fact !== undefined);
    const { epoch, sequence } = record.head;
    const position = this.written + this.waitingBytes;
    const bytes = this.buffer.encode({
      kind: "copy",
      lineage: this.lineage,
      segment: this.segment.number,
      epoch,
      sequence,
      echo: [],
      puts: [],
      trims: [],
      blocks,
      facts,
    });
    facts.forEach((fact, i) => {
      this.index.add(blockRun(this.segment.number, position + this.buffer.framesAt[i], fact));
      if (fact.extended) this.extended = true;
    });
    this.waiting.push(Buffer.from(bytes));
    this.waitingBytes += bytes.length;
    if (this.waitingBytes >= writeBytesMin) await this.flush();
  }

  async finish(): Promise<Rewritten> {
    await this.flush();
    const end = this.written;
    const { number, lastSequence, previous } = this.segment;
    this.index.join(number);
    const runs = this.index.inSegment(number);
    const footer = {
      lineage: this.lineage,
      segment: number,
      end,
      lastSequence,
      previous,
      extended: this.extended,
      runs,
    };
    await this.file.write(encodeFooter({ ...footer, rewritten: true }), end);
    await this.file.datasync();
    return { end, extended: this.extended, runs };
  }

  private async flush(): Promise<void> {
    if (this.waiting.length === 0) return;
    const bytes = Buffer.concat(this.waiting);
    await this.file.write(bytes, this.written);
    this.written += bytes.length;
    this.waiting = [];
    this.waitingBytes = 0;
  }
}
