// What an export has written so far, in `<file>.part`, and for what, in `<file>.part.json`. Both stay when the export is cut, and the
// same command goes on from there: the part says by itself which event was the last of each partition.

import { createHash, type Hash } from "node:crypto";
import { createReadStream } from "node:fs";
import { open, readFile, rename, truncate, unlink } from "node:fs/promises";
import { dirname } from "node:path";
import { CliError } from "./context.ts";
import { eachLine, LineBlocks, LineHead } from "./ndjson.ts";
import { timeText } from "./times.ts";

/** As it was typed. `--since 2h` means two hours before the export began, also when it goes on later. */
export interface AskedRange {
  readonly fromTs: string | null;
  readonly toTs: string | null;
  readonly since: string | null;
}

/** So many bytes of the part had this checksum when the export last looked. */
export interface Checkpoint {
  readonly bytes: number;
  readonly sha256: string;
}

export interface PartFacts extends AskedRange {
  readonly version: 1;
  readonly topic: string;
  /** Tells a topic from a later one of the same name, and from one of another node. */
  readonly createdAt: number;
  /** What the range came to when the export began, in ms since 1970, both inclusive. */
  readonly begin: number | null;
  readonly end: number | null;
  /** Null: nothing was written yet, or the version that wrote it made none. */
  readonly checkpoint: Checkpoint | null;
}

// -------------------------------------------------------------------------------------------------------------------- rules

/** Why a part cannot be gone on with, and what to do; undefined if it can. */
export function partFault(
  file: string,
  found: PartFacts,
  wanted: AskedRange & Pick<PartFacts, "topic" | "createdAt">,
): string | undefined {
  const choice = `give another -o, or --force to start ${file} anew`;
  if (found.topic !== wanted.topic) return `${file}.part is an export of ${found.topic}: ${choice}`;
  if (found.fromTs !== wanted.fromTs || found.toTs !== wanted.toTs || found.since !== wanted.since) {
    const asked = rangeText(found);
    return `${file}.part was begun ${asked === "" ? "without a range" : `with ${asked}`}: give the same again, or --force to start anew`;
  }
  if (found.createdAt !== wanted.createdAt) {
    return `${file}.part is of another topic ${found.topic}, made at ${timeText(found.createdAt)}: ${choice}`;
  }
  return undefined;
}

export function rangeText({ fromTs, toTs, since }: AskedRange): string {
  return [
    ...(fromTs === null ? [] : [`--from-ts ${fromTs}`]),
    ...(toTs === null ? [] : [`--to-ts ${toTs}`]),
    ...(since === null ? [] : [`--since ${since}`]),
  ].join(" ");
}

export function parseFacts(text: string): PartFacts | undefined {
  let facts: Partial<PartFacts> | null;
  try {
    facts = JSON.parse(text) as Partial<PartFacts> | null;
  } catch {
    return undefined;
  }
  const known = facts?.version === 1 && typeof facts.topic === "string" && Number.isInteger(facts.createdAt);
  if (!known) return undefined;
  return {
    version: 1,
    topic: facts?.topic ?? "",
    createdAt: facts?.createdAt ?? 0,
    fromTs: facts?.fromTs ?? null,
    toTs: facts?.toTs ?? null,
    since: facts?.since ?? null,
    begin: facts?.begin ?? null,
    end: facts?.end ?? null,
    checkpoint: isCheckpoint(facts?.checkpoint) ? facts.checkpoint : null,
  };
}

function isCheckpoint(value: Checkpoint | null | undefined): value is Checkpoint {
  return Number.isInteger(value?.bytes) && typeof value?.sha256 === "string";
}

// ------------------------------------------------------------------------------------------------------------- what is there

export class LineFault extends Error {}

/** Counts lines of one topic as they pass and remembers how far each partition is. */
export class Trail {
  events = 0;
  bytes = 0;
  /** By partition, the offset to go on from. */
  readonly next = new Map<number, number>();
  private readonly topic: Buffer;
  private readonly head = new LineHead();

  constructor(topic: string) {
    this.topic = Buffer.from(topic);
  }

  /** Throws a LineFault at a line that cannot follow those before it. */
  take(block: Buffer): void {
    const { head, next } = this;
    eachLine(block, (start, end) => {
      if (!head.read(block, start, end)) throw new LineFault(`line ${this.events + 1} is not an exported event`);
      if (!head.isOf(this.topic)) throw new LineFault(`line ${this.events + 1} is an event of ${head.topic}`);
      if (head.offset < (next.get(head.partition) ?? 0)) {
        throw new LineFault(`line ${this.events + 1} (${head.partition}:${head.offset}) stands behind a later event`);
      }
      next.set(head.partition, head.offset + 1);
      this.events++;
    });
    this.bytes += block.length;
  }
}

export interface Found {
  readonly trail: Trail;
  /** Of the bytes of the trail; goes on with what follows. */
  readonly hash: Hash;
  /** Of a last line that was cut; they are not part of the trail. */
  readonly looseBytes: number;
}

export class ChangedPart extends Error {}

/** Reads a part once, whatever its size. Throws a ChangedPart where it is not what was written up to the checkpoint. */
export async function scanPart(
  chunks: AsyncIterable<Buffer>,
  topic: string,
  checkpoint: Checkpoint | null = null,
): Promise<Found> {
  const trail = new Trail(topic);
  const hash = createHash("sha256");
  const lines = new LineBlocks();
  for await (const chunk of chunks) {
    const block = lines.push(chunk);
    if (block === undefined) continue;
    const before = trail.bytes;
    // Where it ends in this block, if it does.
    const at = checkpoint === null ? -1 : checkpoint.bytes - before;
    const ends = at > 0 && at <= block.length;
    if (ends) {
      hash.update(block.subarray(0, at));
      if (hash.copy().digest("hex") !== checkpoint?.sha256) throw new ChangedPart();
    }
    trail.take(block);
    hash.update(ends ? block.subarray(at) : block);
  }
  if (checkpoint !== null && trail.bytes < checkpoint.bytes) throw new ChangedPart();
  return { trail, hash, looseBytes: lines.rest().length };
}

// -------------------------------------------------------------------------------------------------------------------- files

export interface PartPaths {
  readonly file: string;
  readonly part: string;
  readonly facts: string;
  readonly checksum: string;
  readonly lock: string;
}

export function pathsOf(file: string): PartPaths {
  return {
    file,
    part: `${file}.part`,
    facts: `${file}.part.json`,
    checksum: `${file}.sha256`,
    lock: `${file}.part.lock`,
  };
}

/** What can be gone on with, cut to whole lines. */
export async function openPart({ file, part }: PartPaths, { topic, checkpoint }: PartFacts): Promise<Found> {
  const chunks = createReadStream(part, { highWaterMark: 1024 * 1024 });
  const found = await scanPart(chunks, topic, checkpoint).catch((error: Error) => {
    if (error instanceof ChangedPart) {
      throw new CliError(`${part} was changed since it was written: remove it, and the same command starts anew`);
    }
    if (!(error instanceof LineFault)) throw error;
    throw new CliError(`${part}: ${error.message}; give another -o, or --force to start ${file} anew`);
  });
  if (found.looseBytes > 0) await truncate(part, found.trail.bytes);
  return found;
}

export async function writeFacts(path: string, facts: PartFacts): Promise<void> {
  await replaceFile(path, `${JSON.stringify(facts)}\n`);
}

export async function readFacts(path: string): Promise<PartFacts | undefined> {
  const text = await readFile(path, "utf8").catch(absent);
  return text === undefined ? undefined : parseFacts(text);
}

export function absent(error: NodeJS.ErrnoException): undefined {
  if (error.code !== "ENOENT") throw error;
}

/** The old content or the new one, whatever happens in between. */
export async function replaceFile(path: string, text: string): Promise<void> {
  const draft = `${path}.tmp`;
  const file = await open(draft, "w");
  try {
    await file.writeFile(text);
    await file.datasync();
  } finally {
    await file.close();
  }
  await rename(draft, path);
}

export async function removeIfThere(path: string): Promise<void> {
  await unlink(path).catch(absent);
}

/** Names that were given or taken are on disk afterwards. */
export async function syncFolderOf(path: string): Promise<void> {
  const folder = await open(dirname(path), "r");
  try {
    await folder.sync();
  } finally {
    await folder.close();
  }
}
