// One connection of the harness. Answers and events are heard in the very order in which they came, in one turn: what is true when an OK
// arrives must be known before the EVENT behind it is looked at. A request whose connection ends is answered with nothing.

import { WebSocket } from "ws";
import { Arrival } from "../../src/client/arrival.ts";
import { decodeServerBatch, encodeSettle, type SettleVerb } from "../../src/protocol/batch.ts";
import { isFailure } from "../../src/protocol/failure.ts";
import type { EventFrame, Frame } from "../support/plain-client.ts";
import { Violation } from "./journal.ts";

export type Answer = Frame | undefined;

export interface Hears {
  event(frame: EventFrame): void;
  /** A subscription that ended by itself. */
  ended(frame: Frame): void;
  closed(): void;
}

let names = 0;

export class Wire {
  readonly name = `c${++names}`;
  readonly batches: boolean;
  open = false;
  private readonly socket: WebSocket;
  private readonly hears: Hears;
  private readonly waiting = new Map<number, (answer: Answer) => void>();
  private readonly handles = new Map<number, { readonly topic: string; readonly group: string }>();
  private corr = 0;

  constructor(url: string, hears: Hears, batches = false) {
    this.hears = hears;
    this.batches = batches;
    this.socket = new WebSocket(url, { perMessageDeflate: false });
    this.socket.binaryType = "nodebuffer";
    this.socket.on("message", (data: Buffer, binary: boolean) => guarded(() => this.take(data, binary)));
    // `close` follows every error.
    this.socket.on("error", () => undefined);
    this.socket.on("close", () => guarded(() => this.ended()));
  }

  /** Undefined if the node was gone before. */
  static connect(url: string, hears: Hears, batches = false): Promise<Wire | undefined> {
    const wire = new Wire(url, hears, batches);
    return new Promise((resolve) => {
      wire.socket.on("close", () => resolve(undefined));
      wire.socket.on("open", () => {
        wire.open = true;
        wire.send({ op: "AUTH", ...(batches ? { batch: 1 } : {}) }, (answer) =>
          resolve(answer?.op === "OK" ? wire : undefined),
        );
      });
    });
  }

  send(frame: Record<string, unknown>, answered: (answer: Answer) => void): void {
    if (!this.open) {
      answered(undefined);
      return;
    }
    const corr = ++this.corr;
    this.waiting.set(corr, answered);
    this.socket.send(JSON.stringify({ ...frame, corr }));
  }

  request(frame: Record<string, unknown>): Promise<Answer> {
    return new Promise((resolve) => this.send(frame, resolve));
  }

  /** For connections with batches: which subscription a handle means. */
  nameHandle(handle: number, topic: string, group: string): void {
    this.handles.set(handle, { topic, group });
  }

  settle(verb: SettleVerb, held: EventFrame, handle: number, ms: number | undefined, answered: (a: Answer) => void) {
    if (!this.open) {
      answered(undefined);
      return;
    }
    const corr = ++this.corr;
    this.waiting.set(corr, answered);
    const [epoch, token] = held.ctx.lease.split("-").map(Number);
    const { partition, offset } = held.event;
    const runs = [{ partition, offset, count: 1, epoch, token }];
    this.socket.send(encodeSettle({ handle, corr, verb, ...(ms === undefined ? {} : { ms }), runs }));
  }

  /** Goes without a word. */
  drop(): void {
    this.open = false;
    this.socket.terminate();
  }

  private take(data: Buffer, binary: boolean): void {
    if (binary) {
      this.takeBatch(data);
      return;
    }
    const frame = JSON.parse(data.toString()) as Frame;
    if (frame.op === "EVENT") {
      if (this.open) this.hears.event(frame as unknown as EventFrame);
      return;
    }
    const answered = this.waiting.get(frame.corr as number);
    if (answered === undefined) {
      this.hears.ended(frame);
      return;
    }
    this.waiting.delete(frame.corr as number);
    answered(frame);
  }

  private takeBatch(bytes: Buffer): void {
    const batch = decodeServerBatch(bytes);
    if (isFailure(batch) || batch.op !== "EVENTS") throw new Error(`not expected: ${JSON.stringify(batch)}`);
    const of = this.handles.get(batch.handle);
    if (of === undefined) throw new Error(`events for the handle ${batch.handle}, which was not given`);
    const arrival = new Arrival(of.topic, batch);
    for (let i = 0; i < batch.pack.count && this.open; i++) {
      this.hears.event({
        ...of,
        event: arrival.record(i) as EventFrame["event"],
        ctx: {
          attempt: batch.attempt,
          max_attempts: batch.maxAttempts,
          ack_deadline_ms: batch.ackDeadlineMs,
          lease: `${batch.epoch}-${batch.token + i}`,
        },
      });
    }
  }

  private ended(): void {
    this.open = false;
    const left = [...this.waiting.values()];
    this.waiting.clear();
    for (const answered of left) answered(undefined);
    this.hears.closed();
  }
}

/** The journal has a violation already; a socket's listener is no place to throw it. */
function guarded(hear: () => void): void {
  try {
    hear();
  } catch (error) {
    if (!(error instanceof Violation)) throw error;
  }
}
