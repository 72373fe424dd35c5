// What this client publishes to one partition of a topic, in the order of the calls. Events gather in a queue and leave in batches, a
// few of which are under way at a time. The node stores a batch that is chained only right behind the one before it, so when one is
// refused those behind it are refused as well, and the order holds without waiting for each answer.
//
// After a refusal nothing leaves until everything under way is answered. Batches that are surely not stored are taken apart then, and
// their events go back to the head of the queue. Those whose fate is unknown (the connection was lost, or the node said `unavailable`)
// stay as they are, with their name and their bytes, and go again first: the node knows the name if it had stored them. All that is
// not known to be refused stands before all that is: a batch behind one that is not stored is not stored either.

import { type BatchName, namedHeaderBytes, type PublishedResult, writePublishHeader } from "../protocol/batch.ts";
import { type Code, type Failure, failure, isFailure, isRetryable } from "../protocol/failure.ts";
import { encodeExtension, packFlagExtensions, packHeaderBytes } from "../protocol/pack.ts";
import { encoder, utf8Bytes } from "../protocol/utf8.ts";
import { backoffMs } from "./backoff.ts";
import type { ClientClock, Timer } from "./clock.ts";
import type { Answer, Connection } from "./connection.ts";
import { type NarthexError, RefusedError, refused } from "./errors.ts";
import type { Outgoing } from "./outgoing.ts";

/** As much of a connection as publishing needs. */
export type Link = Pick<Connection, "ask" | "askBinary" | "live" | "unsent" | "maxFrame" | "maxPayload">;

/** How to reach the topic on the connection of the day. */
export interface Way {
  readonly link: Link;
  readonly handle: number;
  /** What it means that something is stored. */
  readonly durability: string;
}

export interface LaneOptions {
  readonly clock: ClientClock;
  readonly partition: number;
  /** Something was stored. */
  readonly onStored: () => void;
  /** The topic is not what it was. False: it has just been opened again, and opening it once more would not help. */
  readonly onUnknownTopic: () => boolean;
  /** Nothing is under way. */
  readonly onQuiet: () => void;
}

interface Batch {
  readonly events: readonly Outgoing[];
  readonly frame: Uint8Array;
  readonly seq: number;
  sentAt: number | undefined;
  flying: boolean;
  /** It may be stored. */
  unsure: boolean;
  refusal: Failure | undefined;
}

export const batchEventsMax = 1000;
export const batchCharsMax = 256 * 1024;
export const flyingMax = 4;
/** With more than this waiting for a slow socket, one batch under way is enough. */
export const unsentBytesMax = 1024 * 1024;
/** The node remembers a name for at least 120 s; what is older than this is not sent again. */
export const resendMsMax = 100_000;

/** Refusals that one event of a batch may have brought on all of it. */
const oneToBlame: ReadonlySet<Code> = new Set(["bad_json", "bad_frame", "bad_option", "too_large"]);

export class Lane {
  readonly #options: LaneOptions;
  readonly #producer: string;
  #nextSeq = 0;
  #queue: Outgoing[] = [];
  /** Built and not confirmed, in order. */
  #batches: Batch[] = [];
  #flying = 0;
  #way: Way | undefined;
  /** After a refusal, until it is time to try again. */
  #held = false;
  #timer: Timer | undefined;
  #refusals = 0;
  #pumping = false;

  constructor(options: LaneOptions) {
    this.#options = options;
    this.#producer = options.clock.nonce(16);
  }

  get quiet(): boolean {
    return this.#flying === 0;
  }

  get empty(): boolean {
    return this.#queue.length + this.#batches.length === 0;
  }

  /** It leaves with the next `pump`. */
  push(event: Outgoing): void {
    this.#queue.push(event);
  }

  /** There is a way to the topic, perhaps again. */
  open(way: Way): void {
    this.#way = way;
    this.#go();
  }

  /** Nothing leaves until `open`. */
  halt(): void {
    this.#way = undefined;
    this.#timer?.cancel();
  }

  /** Sends what may be sent. */
  pump(): void {
    // An answer may come before the question returns.
    if (this.#pumping) return;
    this.#pumping = true;
    while (this.#sendNext());
    this.#pumping = false;
  }

  /** Rejects what is due and gives the earliest time of the rest. */
  expire(now: number): number {
    const next = expire(this.#queue, now, (event) => event.timeOut());
    this.#queue = this.#queue.filter(isOpen);
    return Math.min(next, ...this.#batches.map(({ events }) => expire(events, now, (event) => event.doubt())));
  }

  /** Gives up the lane and gives what is surely not stored. */
  drain(): readonly Outgoing[] {
    this.halt();
    this.#regroup();
    for (const batch of this.#batches) this.#remove(batch, (event) => event.doubt());
    return this.#queue.splice(0);
  }

  /** Rejects everything. `refused`: what may be stored is told so. */
  fail(error: NarthexError, refused: boolean): void {
    this.halt();
    for (const event of this.#queue.splice(0)) event.reject(error);
    for (const batch of this.#batches) this.#remove(batch, (event) => (refused ? event.doubt() : event.reject(error)));
  }

  // --------------------------------------------------------------------------------------------------------------- sending

  #sendNext(): boolean {
    const way = this.#way;
    if (way === undefined || !way.link.live || this.#held || this.#flying >= flyingMax) return false;
    if (this.#flying > 0 && way.link.unsent > unsentBytesMax) return false;
    const at = this.#batches.findIndex(({ flying }) => !flying);
    if (at >= 0) return this.#send(this.#batches[at], this.#batches[at - 1], way);
    const last = this.#batches.at(-1);
    // Behind a gap in the numbers nothing can be chained: it waits to be the first.
    if (this.#queue.length === 0 || (last !== undefined && last.seq !== this.#nextSeq - 1)) return false;
    const batch = this.#build(way.link);
    if (batch === undefined) return true;
    this.#batches.push(batch);
    return this.#send(batch, last, way);
  }

  #send(batch: Batch, before: Batch | undefined, { link, handle, durability }: Way): boolean {
    if (before !== undefined && (!before.flying || before.seq !== batch.seq - 1)) return false;
    const { clock, partition } = this.#options;
    const producer = this.#producer;
    const again = batch.sentAt !== undefined;
    batch.sentAt ??= clock.mono();
    if (clock.mono() - batch.sentAt >= resendMsMax) {
      this.#remove(batch, (event) => event.doubt());
      return true;
    }
    batch.flying = true;
    batch.refusal = undefined;
    this.#flying++;
    const chained = before === undefined ? undefined : { chained: true as const };
    const name: BatchName = { producer, seq: batch.seq, partition, ...chained };
    link.askBinary(
      (corr) => {
        // The bytes of the first time may still be waiting in a socket.
        const frame = again ? batch.frame.slice() : batch.frame;
        writePublishHeader({ handle, corr, batch: name }, frame);
        return frame;
      },
      (answer) => this.#answered(batch, answer, durability),
    );
    return true;
  }

  /** A batch of what stands first in the queue; undefined if that cannot be sent at all. */
  #build({ maxPayload, maxFrame }: Link): Batch | undefined {
    const queue = this.#queue;
    const [first] = queue;
    const charsMax = Math.min(batchCharsMax, maxFrame / 4);
    let count = 1;
    let { chars } = first;
    for (; count < Math.min(queue.length, batchEventsMax) && !first.alone; count++) {
      const event = queue[count];
      chars += event.chars;
      if (chars > charsMax || event.alone || event.hasId !== first.hasId) break;
    }
    const events = queue.splice(0, count).filter((event) => {
      const { text } = event.call;
      // What no text of this length can have need not be counted.
      const bytes = text.length * 3 <= maxPayload ? 0 : utf8Bytes(text);
      if (bytes <= maxPayload) return true;
      event.reject(new RefusedError("too_large", `payload has ${bytes} bytes, allowed are ${maxPayload}`));
      return false;
    });
    if (events.length === 0) return undefined;
    let frame = frameOf(events, 1);
    while (frame.length > maxFrame) {
      if (events.length === 1) {
        const why = `the event needs a frame of ${frame.length} bytes, allowed are ${maxFrame}`;
        events[0].reject(new RefusedError("too_large", why));
        return undefined;
      }
      queue.unshift(...events.splice(events.length >> 1));
      frame = frameOf(events, 1);
    }
    return {
      events,
      frame,
      seq: this.#nextSeq++,
      sentAt: undefined,
      flying: false,
      unsure: false,
      refusal: undefined,
    };
  }

  // --------------------------------------------------------------------------------------------------------------- answers

  #answered(batch: Batch, answer: Answer, durability: string): void {
    batch.flying = false;
    this.#flying--;
    if (answer === "lost") batch.unsure = true;
    else if (isFailure(answer)) this.#refused(batch, answer);
    else if (answer.op === "PUBLISHED") this.#stored(batch, answer.runs, durability);
    else this.#refused(batch, failure("internal", "the node does not say what it stored"));
    if (this.#flying === 0) {
      if (this.#held) this.#pause();
      this.#options.onQuiet();
    }
    this.pump();
  }

  #stored(batch: Batch, runs: readonly PublishedResult[], durability: string): void {
    this.#refusals = 0;
    this.#options.onStored();
    for (const run of runs) {
      const { index, status } = run;
      for (let i = 0; i < run.count && index + i < batch.events.length; i++) {
        const event = batch.events[index + i];
        if (status === "stored" || status === "duplicate") event.resolve(run, i, durability);
        else event.reject(refused(failure(status, "not stored")));
      }
    }
    this.#remove(batch, (event) => event.doubt());
  }

  #refused(batch: Batch, why: Failure): void {
    this.#held = true;
    batch.refusal = why;
    if (why.code === "unavailable") batch.unsure = true;
    if (isRetryable(why)) return;
    if (why.code === "unknown_topic" && this.#options.onUnknownTopic()) return;
    // What an earlier copy of it did is not known.
    if (batch.unsure) this.#remove(batch, (event) => event.doubt());
    else if (batch.events.length > 1 && oneToBlame.has(why.code)) for (const event of batch.events) event.alone = true;
    else this.#remove(batch, (event) => event.reject(refused(why)));
  }

  #remove(batch: Batch, settle: (event: Outgoing) => void): void {
    this.#batches = this.#batches.filter((other) => other !== batch);
    for (const event of batch.events) if (isOpen(event)) settle(event);
  }

  #pause(): void {
    const { clock } = this.#options;
    // Only what the first one met counts: the others were refused because of it. One that will not come again holds up nobody.
    const why = this.#batches[0]?.refusal;
    const waitMs =
      why !== undefined && isRetryable(why) ? (why.retry_after_ms ?? backoffMs(clock, this.#refusals++)) : 0;
    this.#regroup();
    if (this.#way !== undefined) this.#timer = clock.after(waitMs, () => this.#go());
  }

  #go(): void {
    this.#timer?.cancel();
    this.#regroup();
    this.#held = false;
    this.pump();
  }

  #regroup(): void {
    this.#batches = this.#batches.filter(({ events }) => events.some(isOpen));
    const firstSure = this.#batches.findIndex(({ unsure }) => !unsure);
    if (firstSure < 0) return;
    const again = this.#batches.splice(firstSure).flatMap(({ events }) => events.filter(isOpen));
    this.#queue = [...again, ...this.#queue];
  }
}

/**
 * The bytes of a batch, with room for its header. It is written in one go, because this is where a client that publishes much spends
 * its time: how long the payloads will be in UTF-8 is guessed, and if the guess was too low it is done again.
 */
function frameOf(events: readonly Outgoing[], bytesPerChar: 1 | 3): Uint8Array {
  const extensions = events.map(({ call }) => encodeExtension(call.extension));
  let chars = 0;
  let extensionBytes = 0;
  for (const { call } of events) chars += call.text.length;
  for (const extension of extensions) extensionBytes += extension?.length ?? 0;
  const table = namedHeaderBytes + packHeaderBytes;
  const payloadsAt = table + (extensionBytes > 0 ? 8 : 4) * events.length;
  const payloadsEnd = payloadsAt + chars * bytesPerChar;
  const frame = new Uint8Array(payloadsEnd + extensionBytes);
  const view = new DataView(frame.buffer);
  let at = payloadsAt;
  for (const [i, { call }] of events.entries()) {
    const { read, written } = encoder.encodeInto(call.text, frame.subarray(at, payloadsEnd));
    if (read < call.text.length) return frameOf(events, 3);
    view.setUint32(table + 4 * i, written, true);
    at += written;
  }
  const payloadBytes = at - payloadsAt;
  for (const [i, extension] of extensions.entries()) {
    if (extension === undefined) continue;
    view.setUint32(table + 4 * (events.length + i), extension.length, true);
    frame.set(extension, at);
    at += extension.length;
  }
  const header = [events.length, extensionBytes > 0 ? packFlagExtensions : 0, payloadBytes, extensionBytes];
  for (const [i, value] of header.entries()) view.setUint32(namedHeaderBytes + 4 * i, value, true);
  return frame.subarray(0, at);
}

/** Settles what is due and gives the earliest time of the rest. */
export function expire(events: readonly Outgoing[], now: number, settle: (event: Outgoing) => void): number {
  let next = Number.POSITIVE_INFINITY;
  for (const event of events) {
    if (event.settled) continue;
    if (event.call.until <= now) settle(event);
    else next = Math.min(next, event.call.until);
  }
  return next;
}

export function isOpen({ settled }: Outgoing): boolean {
  return !settled;
}
