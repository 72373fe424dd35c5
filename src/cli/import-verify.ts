// After an import: is what the target has what the file has? The target is read back from where it ended when the import began, and
// every event of the file must be found there with the same contents. Other publishers may have written in between.
//
// Where the target was empty and nobody else writes, its export is the file, byte for byte, and comparing bytes is all it takes.
// Otherwise each event of the file leaves a fingerprint of 64 bits, and each event of the target takes one away. Files of more than
// a million events are done in slices, so that memory does not grow with them.

import { hash } from "node:crypto";
import { closeSync, openSync, readSync } from "node:fs";
import { type FileHandle, open } from "node:fs/promises";
import type { Clock } from "../runtime/clock.ts";
import type { Context } from "./context.ts";
import { contentText, readLine } from "./import-line.ts";
import type { ReadEvent } from "./import-pipeline.ts";
import { readBack } from "./import-target.ts";
import { eachLine, LineBlocks, LineHead } from "./ndjson.ts";

const sliceEvents = 1_000_000;
const chunkBytes = 1024 * 1024;

export interface Verification {
  readonly context: Context;
  readonly clock: Clock;
  readonly file: string;
  readonly topic: string;
  /** Of the target, when the import began. */
  readonly begin: string;
  readonly retryMs: number;
  readonly read: ReadEvent;
}

export type Verdict =
  /** The target's export has the very bytes of the file. */
  | { readonly kind: "identical" }
  /** All events are there; so many stand before one that the file has later, in the same partition. */
  | { readonly kind: "same"; readonly reordered: number }
  | { readonly kind: "missing"; readonly line: number; readonly id: string };

export async function verifyImport(verification: Verification): Promise<Verdict> {
  if (/^0:0$/.test(verification.begin) && (await sameBytes(verification))) return { kind: "identical" };
  let reordered = 0;
  const file = await open(verification.file, "r");
  try {
    const slices = new Slices(file, verification.read);
    for (;;) {
      const slice = await slices.next();
      if (slice === undefined) return { kind: "same", reordered };
      reordered += await take(verification, slice.prints);
      if (slice.prints.left > 0) return await firstMissing(verification, slice);
    }
  } finally {
    await file.close();
  }
}

// ------------------------------------------------------------------------------------------------------------------- bytes

async function sameBytes({ context, clock, file, topic, begin, retryMs }: Verification): Promise<boolean> {
  const fd = openSync(file, "r");
  let bytes = Buffer.alloc(chunkBytes);
  let at = 0;
  let same = true;
  try {
    await readBack(context, clock, { topic, from: begin, retryMs }, (block) => {
      if (bytes.length < block.length) bytes = Buffer.alloc(block.length);
      const read = readSync(fd, bytes, 0, block.length, at);
      at += read;
      same = read === block.length && bytes.compare(block, 0, block.length, 0, read) === 0;
      return !same;
    });
    return same && readSync(fd, bytes, 0, 1, at) === 0;
  } finally {
    closeSync(fd);
  }
}

// ------------------------------------------------------------------------------------------------------------------ slices

interface Slice {
  readonly prints: Fingerprints;
  /** Of its first line. */
  readonly start: FilePlace;
}

interface FilePlace {
  readonly bytes: number;
  readonly lines: number;
  readonly events: number;
}

/** The events of a file, some at a time. */
class Slices {
  private readonly file: FileHandle;
  private readonly read: ReadEvent;
  private place: FilePlace = { bytes: 0, lines: 0, events: 0 };

  constructor(file: FileHandle, read: ReadEvent) {
    this.file = file;
    this.read = read;
  }

  async next(): Promise<Slice | undefined> {
    const { place: start, read } = this;
    const prints = new Fingerprints();
    for await (const { line, place } of linesFrom(this.file, start)) {
      const event = read(line, this.place.events);
      const isEvent = typeof event === "object";
      if (isEvent) prints.add(contentText(event), this.place.events);
      this.place = { ...place, events: this.place.events + (isEvent ? 1 : 0) };
      if (prints.size >= sliceEvents) break;
    }
    return prints.size === 0 ? undefined : { prints, start };
  }
}

/** Each line with the place behind it; `events` is left to the caller. */
async function* linesFrom(file: FileHandle, start: FilePlace): AsyncGenerator<{ line: Buffer; place: FilePlace }> {
  const blocks = new LineBlocks();
  let { bytes, lines } = start;
  let at = start.bytes;
  const { events } = start;
  for (;;) {
    const { bytesRead, buffer } = await file.read(Buffer.allocUnsafe(chunkBytes), 0, chunkBytes, at);
    at += bytesRead;
    const block = bytesRead === 0 ? blocks.rest() : blocks.push(buffer.subarray(0, bytesRead));
    for (let from = 0; block !== undefined && from < block.length; ) {
      const found = block.indexOf(0x0a, from);
      const end = found < 0 ? block.length : found;
      const next = found < 0 ? block.length : found + 1;
      bytes += next - from;
      lines++;
      yield { line: block.subarray(from, end), place: { bytes, lines, events } };
      from = next;
    }
    if (bytesRead === 0) return;
  }
}

/** Takes away what the target has. Gives how many events come before one that was earlier in the file. */
async function take({ context, clock, topic, begin, retryMs }: Verification, prints: Fingerprints): Promise<number> {
  const head = new LineHead();
  const last = new Map<number, number>();
  let reordered = 0;
  await readBack(context, clock, { topic, from: begin, retryMs }, (block) => {
    eachLine(block, (start, end) => {
      const event = readLine(block.subarray(start, end));
      if (typeof event === "string") return;
      const index = prints.take(contentText(event));
      if (index < 0 || !head.read(block, start, end)) return;
      if (index < (last.get(head.partition) ?? -1)) reordered++;
      last.set(head.partition, index);
    });
    return prints.left === 0;
  });
  return reordered;
}

async function firstMissing({ file: path, read }: Verification, { prints, start }: Slice): Promise<Verdict> {
  const file = await open(path, "r");
  try {
    let { events } = start;
    for await (const { line, place } of linesFrom(file, start)) {
      const event = read(line, events);
      if (typeof event !== "object") continue;
      events++;
      if (prints.has(contentText(event))) return { kind: "missing", line: place.lines, id: event.id ?? "" };
    }
  } finally {
    await file.close();
  }
  throw new Error("an event is missing, and none of the file is it: the file was changed meanwhile");
}

// ------------------------------------------------------------------------------------------------------------ fingerprints

/** A set of texts by 64 bits of their hash, each with the index that it came with. */
export class Fingerprints {
  /** Texts in it, also those taken. */
  size = 0;
  /** Texts in it that were not taken. */
  left = 0;
  private slots = 1 << 12;
  // Two halves of the print per slot, and the index plus one; negative once it was taken, 0 where nothing is.
  private prints = new Uint32Array(this.slots * 2);
  private indexes = new Int32Array(this.slots);

  add(text: string, index: number): void {
    if (this.size * 2 >= this.slots) this.grow();
    const slot = this.slotOf(text);
    // The same event twice is stored once.
    if (this.indexes[slot] !== 0) return;
    this.indexes[slot] = index + 1;
    this.size++;
    this.left++;
  }

  /** The index of a text that was not taken before, or -1. */
  take(text: string): number {
    const slot = this.slotOf(text);
    const index = this.indexes[slot];
    if (index <= 0) return -1;
    this.indexes[slot] = -index;
    this.left--;
    return index - 1;
  }

  /** Whether it was added and not taken. */
  has(text: string): boolean {
    return this.indexes[this.slotOf(text)] > 0;
  }

  private slotOf(text: string): number {
    const digest = hash("sha256", text, "buffer");
    return this.find(digest.readUInt32LE(0), digest.readUInt32LE(4));
  }

  /** The slot of the print, which is written there if it is new. */
  private find(low: number, high: number): number {
    const mask = this.slots - 1;
    let slot = low & mask;
    while (this.indexes[slot] !== 0 && (this.prints[slot * 2] !== low || this.prints[slot * 2 + 1] !== high)) {
      slot = (slot + 1) & mask;
    }
    this.prints[slot * 2] = low;
    this.prints[slot * 2 + 1] = high;
    return slot;
  }

  private grow(): void {
    const { prints, indexes, slots } = this;
    this.slots = slots * 2;
    this.prints = new Uint32Array(this.slots * 2);
    this.indexes = new Int32Array(this.slots);
    for (let slot = 0; slot < slots; slot++) {
      if (indexes[slot] !== 0) this.indexes[this.find(prints[slot * 2], prints[slot * 2 + 1])] = indexes[slot];
    }
  }
}
