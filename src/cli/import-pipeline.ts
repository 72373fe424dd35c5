// Publishing the lines of a file with many under way, in order, and knowing at any moment which of them are surely stored. Ends at the
// end of the file, at a line that is no event, or at the first refusal; whatever is under way then is waited for.

import type { Hash } from "node:crypto";
import type { EventClient, Published, PublishOptions } from "../client/client.ts";
import { RawJson } from "../client/raw-json.ts";
import { parsePosition, positionText } from "../protocol/position.ts";
import { type Clock, sleep } from "../runtime/clock.ts";
import type { LineEvent } from "./import-line.ts";
import { aheadMax, type ImportState, type Mark } from "./import-state.ts";
import { LineBlocks, newline } from "./ndjson.ts";
import { pause } from "./pause.ts";
import { Pace } from "./progress.ts";

const markEvery = 4096;
/** Events under way: about as many as are confirmed in a few seconds, so that none waits until its time is over. */
const windowMin = 64;
const windowMax = 8192;
const windowFirst = 2048;
const windowSeconds = 4;
const windowBytesMax = 8 * 1024 * 1024;
/** What is under way when the user ends it gets so long. */
const interruptedMs = 5000;

export interface Ids {
  has(id: string): boolean;
}

/** What a line of the file is published as; undefined: nothing stands there. */
export type ReadEvent = (line: Buffer, index: number) => LineEvent | string | undefined;

export interface PipelineOptions {
  readonly client: EventClient;
  readonly clock: Clock;
  readonly signal: AbortSignal;
  readonly state: ImportState;
  /** Of the file up to the mark of the state; what is read goes on into it. */
  readonly hash: Hash;
  readonly read: ReadEvent;
  /** Ids of events that the target had before the import began, as far as they are to be left out. */
  readonly storedBefore: Ids;
  /** Ids behind the mark that are stored already. */
  readonly stored: Ids;
  /** Events per second at most. */
  readonly rate: number | undefined;
  /** Lines that are no events are passed over, and told of here. */
  readonly skip: ((line: number, fault: string) => void) | undefined;
  /** Writes it where it survives. */
  readonly save: (state: ImportState) => Promise<void>;
  readonly onProgress: (events: number, bytes: number) => void;
}

export type PipelineEnd =
  | { readonly kind: "done" }
  | { readonly kind: "interrupted" }
  /** Nothing behind this line was published. */
  | { readonly kind: "bad"; readonly line: number; readonly fault: string }
  | { readonly kind: "refused"; readonly line: number; readonly error: Error }
  /** The state could not be written. */
  | { readonly kind: "unsaved"; readonly error: Error };

/** Where in the file the next line begins. */
interface Place {
  bytes: number;
  lines: number;
  skipped: number;
}

interface Outgoing {
  readonly endBytes: number;
  readonly payloadChars: number;
  done: boolean;
}

export class Pipeline {
  /** The last mark up to which everything is confirmed, and `hash` as it was there. */
  state: ImportState;
  hashAtMark: Hash;
  /** Events that the target had before the import began: they were not stored again. */
  storedBefore = 0;
  private readonly options: PipelineOptions;
  private readonly hash: Hash;
  private readonly place: Place;
  private readonly pace: Pace;
  private readonly startedAt: number;
  /** Sent, in the order of the file, and not confirmed together with all before. */
  private queue: Outgoing[] = [];
  private confirmedInQueue = 0;
  private readonly marks: { readonly mark: Mark; readonly hash: Hash }[] = [];
  private markedEvents: number;
  private savedEvents: number;
  private readonly end: ReadonlyMap<number, number>;
  private readonly begin: Map<number, number>;
  private readonly next: Map<number, number>;
  private sent: number;
  private confirmed: number;
  private open = 0;
  private openChars = 0;
  private published = 0;
  private fault: { readonly end: PipelineEnd; readonly line: number } | undefined;
  private wake: (() => void) | undefined;
  private saving: Promise<void> | undefined;
  private unsaved = false;

  constructor(options: PipelineOptions) {
    this.options = options;
    const { state, hash, clock } = options;
    const { mark } = state;
    this.state = state;
    this.hash = hash;
    this.hashAtMark = hash.copy();
    this.place = { bytes: mark.bytes, lines: mark.lines, skipped: mark.skipped };
    this.pace = new Pace(clock, mark.events);
    this.startedAt = clock.mono();
    this.end = parsePosition(state.end) ?? new Map();
    this.begin = parsePosition(state.begin) ?? new Map();
    this.next = parsePosition(mark.position) ?? new Map();
    this.sent = mark.events;
    this.confirmed = mark.events;
    this.markedEvents = mark.events;
    this.savedEvents = mark.events;
  }

  /** `chunks` are the bytes of the file behind the mark. */
  async run(chunks: AsyncIterable<Buffer>): Promise<PipelineEnd> {
    const blocks = new LineBlocks();
    let end: PipelineEnd | undefined;
    for await (const chunk of chunks) {
      const block = blocks.push(chunk);
      if (block !== undefined) end = await this.takeBlock(block);
      if (end !== undefined) break;
    }
    // A last line may lack its newline.
    const rest = blocks.rest();
    if (end === undefined && rest.length > 0) end = await this.takeBlock(rest);
    await this.settled();
    end = this.fault?.end ?? end ?? { kind: "done" };
    // Everything before this place is confirmed.
    if (end.kind === "done" || end.kind === "bad") {
      this.addMark();
      this.advance();
    }
    await this.saving;
    return this.fault?.end ?? end;
  }

  // ----------------------------------------------------------------------------------------------------------------- reading

  private async takeBlock(block: Buffer): Promise<PipelineEnd | undefined> {
    const { read, skip } = this.options;
    const { place } = this;
    if (this.sent - this.markedEvents >= markEvery) this.addMark();
    for (let start = 0; start < block.length; ) {
      const found = block.indexOf(newline, start);
      const lineEnd = found < 0 ? block.length : found;
      const next = found < 0 ? block.length : found + 1;
      const event = read(block.subarray(start, lineEnd), this.sent);
      if (typeof event === "string") {
        if (skip === undefined) {
          this.hash.update(block.subarray(0, start));
          return { kind: "bad", line: place.lines + 1, fault: event };
        }
        skip(place.lines + 1, event);
        place.skipped++;
      }
      place.lines++;
      place.bytes += next - start;
      start = next;
      if (typeof event !== "object") continue;
      this.publish(event);
      const stop = this.mustWait() ? await this.room() : this.fault?.end;
      if (stop !== undefined) return stop;
    }
    this.hash.update(block);
    return undefined;
  }

  /** To be called at the beginning of a line, with the hash there too. */
  private addMark(): void {
    const { bytes, lines, skipped } = this.place;
    const sha256 = this.hash.copy().digest("hex");
    // Whatever is sent from here on is stored behind what is confirmed now.
    const position = positionText(this.next);
    const mark: Mark = { bytes, lines, events: this.sent, skipped, sha256, position };
    this.marks.push({ mark, hash: this.hash.copy() });
    this.markedEvents = this.sent;
  }

  // -------------------------------------------------------------------------------------------------------------- publishing

  private publish(event: LineEvent): void {
    const { client, state, stored, storedBefore } = this.options;
    const payloadChars = event.payload.length;
    const outgoing: Outgoing = { endBytes: this.place.bytes, payloadChars, done: false };
    this.queue.push(outgoing);
    this.sent++;
    const before = event.id !== undefined && storedBefore.has(event.id);
    if (before) this.storedBefore++;
    if (before || (event.id !== undefined && stored.has(event.id))) {
      outgoing.done = true;
      this.advance();
      return;
    }
    const line = this.place.lines;
    this.published++;
    this.open++;
    this.openChars += payloadChars;
    client.publish(state.topic, new RawJson(event.payload), publishOptions(event)).then(
      (published) => {
        outgoing.done = true;
        this.stored(published);
        this.answered(payloadChars);
      },
      (error: Error) => {
        this.fail({ kind: "refused", line, error }, line);
        this.answered(payloadChars);
      },
    );
  }

  private stored({ partition, offset, duplicate }: Published): void {
    // Sent again by the client after a lost answer, it is a duplicate too: what counts is when it was stored.
    if (duplicate && offset < (this.end.get(partition) ?? 0)) {
      this.storedBefore++;
      this.begin.set(partition, Math.min(this.begin.get(partition) ?? 0, offset));
    }
    this.next.set(partition, Math.max(this.next.get(partition) ?? 0, offset + 1));
  }

  private answered(payloadChars: number): void {
    this.open--;
    this.openChars -= payloadChars;
    this.advance();
    if (this.open === 0 || this.fault !== undefined || this.hasRoom(0.5)) this.wake?.();
  }

  private fail(end: PipelineEnd, line: number): void {
    if (this.fault === undefined || line < this.fault.line) this.fault = { end, line };
    this.wake?.();
  }

  /** Moves the confirmed front of the queue, and with it the mark. */
  private advance(): void {
    const { queue } = this;
    let bytes = 0;
    while (this.confirmedInQueue < queue.length && queue[this.confirmedInQueue].done) {
      bytes = queue[this.confirmedInQueue++].endBytes;
      this.confirmed++;
    }
    if (this.confirmedInQueue > windowMax) {
      this.queue = queue.slice(this.confirmedInQueue);
      this.confirmedInQueue = 0;
    }
    if (bytes > 0) {
      this.pace.reach(this.confirmed);
      this.options.onProgress(this.confirmed, bytes);
    }
    let reached = false;
    while (this.marks.length > 0 && this.marks[0].mark.events <= this.confirmed) {
      const { mark, hash } = this.marks.shift() as { mark: Mark; hash: Hash };
      this.state = { ...this.state, begin: positionText(this.begin), mark };
      this.hashAtMark = hash;
      reached = true;
    }
    if (reached) this.saveSoon();
  }

  private saveSoon(): void {
    this.unsaved = true;
    this.saving ??= this.save();
  }

  /** One write at a time, always of the newest. */
  private async save(): Promise<void> {
    try {
      while (this.unsaved) {
        this.unsaved = false;
        const { state } = this;
        await this.options.save(state);
        this.savedEvents = state.mark.events;
      }
    } catch (error) {
      this.fail({ kind: "unsaved", error: error as Error }, 0);
    }
    this.saving = undefined;
    this.wake?.();
  }

  // ----------------------------------------------------------------------------------------------------------------- waiting

  private mustWait(): boolean {
    const { rate } = this.options;
    return !this.hasRoom(1) || (rate !== undefined && this.published > 0);
  }

  private hasRoom(share: number): boolean {
    return (
      this.open < this.window() * share &&
      this.openChars < windowBytesMax * share &&
      this.sent - this.savedEvents < aheadMax
    );
  }

  private window(): number {
    if (this.options.clock.mono() - this.startedAt < 1000) return windowFirst;
    return Math.min(windowMax, Math.max(windowMin, this.pace.rate() * windowSeconds));
  }

  /** Resolves when the next event may be sent, or with why none may. */
  private async room(): Promise<PipelineEnd | undefined> {
    const { rate, clock, signal } = this.options;
    if (rate !== undefined) {
      const due = this.startedAt + (this.published / rate) * 1000;
      if (due > clock.mono() + 1) await pause(clock, due - clock.mono(), signal);
    }
    while (this.fault === undefined && !signal.aborted && !this.hasRoom(1)) await this.woken(signal);
    return signal.aborted ? { kind: "interrupted" } : this.fault?.end;
  }

  private woken(signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const wake = () => {
        this.wake = undefined;
        signal.removeEventListener("abort", wake);
        resolve();
      };
      this.wake = wake;
      signal.addEventListener("abort", wake, { once: true });
    });
  }

  /** Every publish has its answer; the client sees to that. */
  private async settled(): Promise<void> {
    const { signal, clock } = this.options;
    while (this.open > 0 && !signal.aborted) await this.woken(signal);
    const end = clock.mono() + interruptedMs;
    while (this.open > 0 && clock.mono() < end) await sleep(clock, 20);
  }
}

function publishOptions({ id, ts, key, sid, headers, tags, caused_by }: LineEvent): PublishOptions {
  const options: { -readonly [Name in keyof PublishOptions]: PublishOptions[Name] } = {};
  if (id !== undefined) options.id = id;
  if (ts !== undefined) options.ts = ts;
  if (key !== undefined) options.key = key;
  if (sid !== undefined) options.sid = sid;
  if (headers !== undefined) options.headers = headers;
  if (tags !== undefined) options.tags = tags;
  if (caused_by !== undefined) options.caused_by = caused_by;
  return options;
}
