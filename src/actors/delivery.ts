// Leased events as the frames that their members get: gathered while one message is handled, then written into one stretch of
// memory per member, which the front only cuts and sends. Plain clients get an EVENT text frame per event; batch clients an
// EVENTS frame per run, whose pack is copied out of the stored block.

import { eventsFrameBytes, writeEventsFrame } from "../protocol/batch.ts";
import type { BlockView } from "../protocol/block.ts";
import { eventHead } from "../protocol/event.ts";
import { leaseText } from "../protocol/lease.ts";
import { partitionOf } from "../protocol/stream.ts";
import type { Effect, Env } from "./effects.ts";
import type { Member } from "./members.ts";

/** Events from..to of one block for one member, under consecutive tokens. */
export interface Piece {
  readonly block: BlockView;
  readonly from: number;
  readonly to: number;
  readonly token: number;
  readonly attempt: number;
  readonly maxAttempts: number;
}

/** What one member gets. */
interface Parcel {
  readonly pieces: Piece[];
  count: number;
  bytes: number;
}

const encoder = new TextEncoder();
const attemptMax = 0xffff;
/** Roughly what is made around the payload of a text frame besides topic and group. */
const aroundBytes = 300;

export class EventFrames {
  private readonly stream: number;
  private readonly topic: string;
  private readonly prefix: Uint8Array;
  private readonly parcels = new Map<Member, Parcel>();
  // Of each text frame what stands before and behind its payload, in the order of `add`: encoded once, to know the exact size.
  private made = new Uint8Array(4096);
  private madeUsed = 0;
  private readonly madeEnds = new Map<Piece, number[]>();

  constructor(stream: number, topic: string, group: string) {
    this.stream = stream;
    this.topic = topic;
    this.prefix = encoder.encode(
      `{"op":"EVENT","topic":${JSON.stringify(topic)},"group":${JSON.stringify(group)},"event":`,
    );
  }

  /** How many of the events from..to the member's bytes allow, at least one: the last may overdraw them. */
  fit(member: Member, block: BlockView, from: number, to: number): number {
    const { pack } = block;
    if (member.format === "json") {
      const around = this.prefix.length + this.topic.length + aroundBytes;
      let left = member.bytes;
      let at = from;
      for (; at < to && left > 0; at++) left -= around + pack.payloadLength(at) + pack.extensionLength(at);
      return Math.max(1, at - from);
    }
    if (eventsFrameBytes(pack, from, to) <= member.bytes) return to - from;
    let low = 1;
    let high = to - from;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (eventsFrameBytes(pack, from, from + middle) < member.bytes) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** The member's bytes are charged at once. */
  add(member: Member, piece: Piece, env: Env): void {
    let parcel = this.parcels.get(member);
    if (parcel === undefined) {
      parcel = { pieces: [], count: 0, bytes: 0 };
      this.parcels.set(member, parcel);
    }
    const { block, from, to } = piece;
    const bytes =
      member.format === "json" ? this.makeTexts(member, piece, env) : eventsFrameBytes(block.pack, from, to);
    parcel.pieces.push(piece);
    parcel.count += to - from;
    parcel.bytes += bytes;
    member.bytes -= bytes;
  }

  /** One signal per member that was given something. */
  flush(env: Env, effects: Effect[]): void {
    if (this.parcels.size === 0) return;
    const { stream } = this;
    for (const [member, { pieces, count, bytes }] of this.parcels) {
      const binary = member.format === "batch";
      const frames = env.room(bytes);
      const ends = binary ? this.writeBatches(member, pieces, frames, env) : this.writeTexts(pieces, count, frames);
      effects.push({
        type: "signal",
        signal: { type: "events", member: member.number, stream, count, binary, frames, ends },
      });
    }
    this.parcels.clear();
    this.madeEnds.clear();
    this.madeUsed = 0;
  }

  private writeBatches(member: Member, pieces: readonly Piece[], frames: Uint8Array, env: Env): Uint32Array {
    const ends = new Uint32Array(pieces.length);
    let at = 0;
    for (let i = 0; i < pieces.length; i++) {
      const { block, from, to, token, attempt, maxAttempts } = pieces[i];
      const header = {
        handle: member.handle,
        ackDeadlineMs: member.ackTimeoutMs,
        partition: partitionOf(this.stream),
        salt: block.salt,
        attempt: Math.min(attempt, attemptMax),
        maxAttempts: Math.min(maxAttempts, attemptMax),
        firstOffset: block.firstOffset + from,
        storedAt: block.storedAt,
        epoch: env.epoch,
        token,
      };
      at += writeEventsFrame(header, block.pack, from, to, frames, at);
      ends[i] = at;
    }
    return ends;
  }

  /** Gives the size of the frames. */
  private makeTexts(member: Member, piece: Piece, env: Env): number {
    const { block, from, to, token, attempt, maxAttempts } = piece;
    const ends = [this.madeUsed];
    let bytes = -this.madeUsed;
    for (let index = from; index < to; index++) {
      this.make(eventHead(block, index, this.topic));
      ends.push(this.madeUsed);
      const lease = leaseText(env.epoch, token + index - from);
      this.make(
        `},"ctx":{"attempt":${attempt},"max_attempts":${maxAttempts},"ack_deadline_ms":${member.ackTimeoutMs},"lease":"${lease}"}}`,
      );
      ends.push(this.madeUsed);
      bytes += this.prefix.length + block.pack.payloadLength(index);
    }
    this.madeEnds.set(piece, ends);
    return bytes + this.madeUsed;
  }

  private writeTexts(pieces: readonly Piece[], count: number, frames: Uint8Array): Uint32Array {
    const ends = new Uint32Array(count);
    let done = 0;
    let at = 0;
    const put = (bytes: Uint8Array) => {
      frames.set(bytes, at);
      at += bytes.length;
    };
    for (const piece of pieces) {
      const marks = this.madeEnds.get(piece) as number[];
      for (let index = piece.from, mark = 0; index < piece.to; index++, mark += 2) {
        put(this.prefix);
        put(this.made.subarray(marks[mark], marks[mark + 1]));
        put(piece.block.pack.payload(index));
        put(this.made.subarray(marks[mark + 1], marks[mark + 2]));
        ends[done++] = at;
      }
    }
    return ends;
  }

  private make(text: string): void {
    // A UTF-16 unit takes at most three bytes of UTF-8.
    const needed = this.madeUsed + text.length * 3;
    if (needed > this.made.length) {
      const larger = new Uint8Array(Math.max(needed, 2 * this.made.length));
      larger.set(this.made.subarray(0, this.madeUsed));
      this.made = larger;
    }
    this.madeUsed += encoder.encodeInto(text, this.made.subarray(this.madeUsed)).written;
  }
}
