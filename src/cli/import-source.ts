// What is imported: a file, which can be read again from any place, or stdin, which cannot.

import { createHash } from "node:crypto";
import { createReadStream } from "node:fs";
import { readFile, stat } from "node:fs/promises";
import { publishTopicFault } from "../protocol/names.ts";
import { realClock } from "../runtime/clock.ts";
import { usage } from "./arguments.ts";
import { CliError, type Context, exitCodes } from "./context.ts";
import { unreadable } from "./disk-faults.ts";
import { absent } from "./export-part.ts";
import { readLine } from "./import-line.ts";
import { LineBlocks, newline } from "./ndjson.ts";
import { Progress } from "./progress.ts";

const chunkBytes = 256 * 1024;

export interface ImportSource {
  /** As it is called in messages. */
  readonly name: string;
  /** Where it can be read again; undefined for stdin. */
  readonly path: string | undefined;
  readonly bytes: number | undefined;
  readonly topic: string;
  /** From there to the end; of stdin once only, and all of it. */
  chunks(from: number): AsyncIterable<Buffer>;
  /** Some lines from its beginning and its end. */
  sample(): Promise<readonly Buffer[]>;
}

const sampleLines = 3;
/** As many bytes at each end: more than the largest event of a node that is set up as usual. */
const sampleBytes = 2 * 1024 * 1024;

export async function standardInput(topic: string | undefined): Promise<ImportSource> {
  if (process.stdin.isTTY) throw usage("stdin is a terminal: give a file, or pipe an export in");
  const [first, chunks] = await peek(process.stdin);
  needEvents("stdin", first);
  return {
    name: "stdin",
    path: undefined,
    bytes: undefined,
    topic: topic ?? topicOf("stdin", first),
    chunks: () => chunks,
    sample: async () => [first],
  };
}

/** Refused if it does not match the checksum beside it. */
export async function wholeFile(context: Context, path: string, topic: string | undefined): Promise<ImportSource> {
  const facts = await stat(path).catch(unreadable(path));
  if (!facts.isFile()) throw new CliError(`${path} is not a file`, exitCodes.usage);
  await checkSum(context, path, facts.size).catch(unreadable(path));
  const beginning = createReadStream(path);
  const [first] = await peek(beginning).catch(unreadable(path));
  beginning.destroy();
  needEvents(path, first);
  return {
    name: path,
    path,
    bytes: facts.size,
    topic: topic ?? topicOf(path, first),
    chunks: (from) => createReadStream(path, { start: from, highWaterMark: chunkBytes }),
    sample: () => sampleOf(path, facts.size).catch(unreadable(path)),
  };
}

function needEvents(name: string, first: Buffer): void {
  if (first.length === 0) throw new CliError(`${name} has no events: there is nothing to import`);
}

async function sampleOf(path: string, size: number): Promise<readonly Buffer[]> {
  const read = async (start: number) => {
    const pieces: Buffer[] = [];
    for await (const piece of createReadStream(path, { start, end: start + sampleBytes - 1 }))
      pieces.push(piece as Buffer);
    return Buffer.concat(pieces);
  };
  const head = linesOf(await read(0));
  if (size <= sampleBytes) return [...head.slice(0, sampleLines), ...head.slice(sampleLines).slice(-sampleLines)];
  const tail = linesOf(await read(size - sampleBytes));
  // The last of the one and the first of the other are cut.
  return [...head.slice(0, -1).slice(0, sampleLines), ...tail.slice(1).slice(-sampleLines)];
}

function linesOf(block: Buffer): Buffer[] {
  const lines: Buffer[] = [];
  for (let start = 0; start < block.length; ) {
    const found = block.indexOf(newline, start);
    const end = found < 0 ? block.length : found;
    const line = block.subarray(start, end);
    if (!isBlank(line)) lines.push(line);
    start = end + 1;
  }
  return lines;
}

/** The first line that is not blank, and all bytes, the first ones too. */
async function peek(source: AsyncIterable<Buffer>): Promise<[first: Buffer, all: AsyncIterable<Buffer>]> {
  const iterator = source[Symbol.asyncIterator]();
  const seen: Buffer[] = [];
  const blocks = new LineBlocks();
  let first: Buffer | undefined;
  while (first === undefined) {
    const { value, done } = await iterator.next();
    if (done) break;
    seen.push(value);
    const block = blocks.push(value);
    if (block !== undefined) first = firstLine(block);
  }
  async function* all(): AsyncGenerator<Buffer> {
    yield* seen;
    for (let next = await iterator.next(); !next.done; next = await iterator.next()) yield next.value;
  }
  return [first ?? firstLine(blocks.rest()) ?? Buffer.alloc(0), all()];
}

function firstLine(block: Buffer): Buffer | undefined {
  for (let start = 0; start < block.length; ) {
    const found = block.indexOf(newline, start);
    const end = found < 0 ? block.length : found;
    if (!isBlank(block.subarray(start, end))) return block.subarray(start, end);
    start = end + 1;
  }
  return undefined;
}

export function isBlank(line: Buffer): boolean {
  for (const byte of line) if (byte > 0x20) return false;
  return true;
}

function topicOf(name: string, line: Buffer): string {
  const event = readLine(line);
  const topic = typeof event === "string" ? undefined : event.topic;
  if (typeof event === "string" || topic === undefined) {
    const what = typeof event === "string" ? `the first line of ${name} ${event}` : `${name} names no topic`;
    throw new CliError(`${what}: give --topic`, typeof event === "string" ? exitCodes.failed : exitCodes.usage);
  }
  const fault = publishTopicFault(topic);
  if (fault !== undefined) throw new CliError(`${name} is of ${topic}, where nobody can publish: give --topic`);
  return topic;
}

/** Against the file that export wrote beside it, before anything is published. */
async function checkSum(context: Context, path: string, size: number): Promise<void> {
  const text = await readFile(`${path}.sha256`, "utf8").catch(absent);
  if (text === undefined) return;
  const wanted = /^\\?([0-9a-f]{64})\b/i.exec(text)?.[1]?.toLowerCase();
  if (wanted === undefined) throw new CliError(`${path}.sha256 is no checksum file: remove it to import without one`);
  const hash = createHash("sha256");
  const progress = new Progress({ clock: realClock(), tty: context.tty, label: "checking", total: size });
  let bytes = 0;
  for await (const chunk of createReadStream(path, { highWaterMark: 1024 * 1024 }) as AsyncIterable<Buffer>) {
    if (context.signal.aborted) throw new CliError("interrupted", exitCodes.interrupted);
    hash.update(chunk);
    bytes += chunk.length;
    progress.reach(0, bytes);
  }
  progress.stop();
  if (hash.digest("hex") === wanted) return;
  throw new CliError(
    `${path} does not match ${path}.sha256, so nothing was imported: export it again, or remove the checksum if the file was changed on purpose`,
  );
}
