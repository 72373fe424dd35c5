// A connection as the consuming half of the client sees it, played by the test: every question waits for an answer that the test
// gives, and events come as real frames.

import type { Context, EventRecord, Handler, SubscribeOptions, Subscription } from "../../src/bus/event-bus.ts";
import type { Answer, Connection } from "../../src/client/connection.ts";
import { Subscriber } from "../../src/client/subscriber.ts";
import {
  decodeClientBatch,
  decodeServerBatch,
  type EventsBatch,
  eventsFrameBytes,
  type SettleBatch,
  writeEventsFrame,
} from "../../src/protocol/batch.ts";
import { type Code, failure, isFailure } from "../../src/protocol/failure.ts";
import { encodePack, type PackEntry, PackView } from "../../src/protocol/pack.ts";
import { clientClockOf } from "./fake-dial.ts";
import { ManualClock } from "./manual-clock.ts";

const encoder = new TextEncoder();

export interface Question {
  readonly op: string;
  /** Of a text frame. */
  readonly frame: { readonly [field: string]: unknown };
  readonly settle: SettleBatch | undefined;
  readonly answer: (answer: Answer) => void;
}

export interface EventsOptions {
  readonly handle?: number;
  readonly offset?: number;
  readonly partition?: number;
  readonly attempt?: number;
  readonly maxAttempts?: number;
  readonly epoch?: number;
  readonly token?: number;
  readonly ackDeadlineMs?: number;
  readonly salt?: number;
}

export class FakeConnection {
  live = true;
  maxFrame = 8_388_608;
  /** Not answered yet, in the order they were asked. */
  open: Question[] = [];
  readonly asked: string[] = [];
  /** Answers SUBSCRIBE, PAUSE, RESUME and UNSUBSCRIBE by itself. */
  obliging = true;
  private readonly receivers = new Map<number, (batch: EventsBatch) => void>();
  private lastHandle = 0;

  ask(said: { readonly op: string; readonly [field: string]: unknown }, done: (answer: Answer) => void): void {
    // As it would arrive.
    const frame = JSON.parse(JSON.stringify(said)) as typeof said;
    this.put({ op: frame.op, frame, settle: undefined, answer: done });
    const [question] = this.open.slice(-1);
    if (!this.obliging || question === undefined) return;
    if (frame.op === "SUBSCRIBE") this.subscribed(question);
    else if (["PAUSE", "RESUME", "UNSUBSCRIBE"].includes(frame.op)) this.ok(question);
  }

  askBinary(encode: (corr: number) => Uint8Array, done: (answer: Answer) => void): void {
    const settle = decodeClientBatch(encode(1), { maxPayload: 1_000_000, batchEventsMax: 10_000 });
    if (isFailure(settle) || settle.op !== "SETTLE") throw new Error(`no SETTLE: ${JSON.stringify(settle)}`);
    this.put({ op: settle.verb, frame: {}, settle, answer: done });
  }

  receive(handle: number, receiver: (batch: EventsBatch) => void): void {
    this.receivers.set(handle, receiver);
  }

  ignore(handle: number): void {
    this.receivers.delete(handle);
  }

  // -------------------------------------------------------------------------------------------------------------- the node

  /** The oldest open question of this op: PAUSE, ack, extend, … */
  question(op: string): Question {
    const question = this.open.find((one) => one.op === op);
    if (question === undefined) throw new Error(`no ${op} is open, only ${this.open.map((one) => one.op)}`);
    return question;
  }

  ok(question: Question | string, fields: object = {}): void {
    this.answer(question, { op: "OK", ...fields });
  }

  refuse(question: Question | string, code: Code, retryAfterMs?: number): void {
    this.answer(question, failure(code, `refused as ${code}`, retryAfterMs));
  }

  subscribed(question: Question | string = "SUBSCRIBE", fields: object = {}): void {
    this.ok(question, { handle: ++this.lastHandle, resumed: false, position: "0:0", ...fields });
  }

  /** Delivers these payloads (as JSON, or as they are) with consecutive offsets and tokens. */
  events(payloads: readonly (unknown | PackEntry)[], options: EventsOptions = {}): void {
    const { handle = 1, offset = 0, token = 1 + offset, attempt = 1, maxAttempts = 5 } = options;
    const header = {
      handle,
      partition: 0,
      salt: 7,
      epoch: 1,
      storedAt: 1_760_000_000_000,
      ackDeadlineMs: 30_000,
      ...options,
      firstOffset: offset,
      token,
      attempt,
      maxAttempts,
    };
    const pack = new PackView(encodePack(payloads.map(entryOf)));
    const bytes = new Uint8Array(eventsFrameBytes(pack, 0, pack.count));
    writeEventsFrame(header, pack, 0, pack.count, bytes, 0);
    const batch = decodeServerBatch(bytes);
    if (isFailure(batch) || batch.op !== "EVENTS") throw new Error("no EVENTS");
    this.receivers.get(handle)?.(batch);
  }

  /** As a real one: every question is answered before anybody is told. */
  end(): void {
    this.live = false;
    this.receivers.clear();
    for (const { answer } of this.open.splice(0)) answer("lost");
  }

  private put(question: Question): void {
    this.asked.push(question.op);
    if (this.live) this.open.push(question);
    else question.answer("lost");
  }

  private answer(which: Question | string, answer: Answer): void {
    const question = typeof which === "string" ? this.question(which) : which;
    this.open = this.open.filter((one) => one !== question);
    question.answer(answer);
  }
}

function entryOf(payload: unknown): PackEntry {
  if (typeof payload === "object" && payload !== null && "payload" in payload) return payload as PackEntry;
  return { payload: encoder.encode(JSON.stringify(payload)) };
}

/** A payload as these very bytes, with what else an event may carry. */
export function raw(text: string, extension: Omit<PackEntry, "payload"> = {}): PackEntry {
  return { payload: encoder.encode(text), ...extension };
}

/** Lets promises settle and runs what was put off to the end of the turn, until nothing more happens. */
export async function turns(clock: ManualClock, count = 4): Promise<void> {
  for (let i = 0; i < count; i++) {
    await new Promise<void>((resolve) => setImmediate(resolve));
    clock.turn();
  }
}

export interface Run {
  readonly event: EventRecord<unknown>;
  readonly ctx: Context;
  /** Ends the handler. */
  readonly end: () => void;
  readonly fail: (error: unknown) => void;
}

/** A subscriber on simulated time. */
export class SubscriberStage {
  readonly clock = new ManualClock();
  /** What the client was told where no subscription has an `onError`. */
  readonly errors: Error[] = [];
  readonly subscriber = new Subscriber({
    clock: clientClockOf(this.clock),
    requestTimeoutMs: 5000,
    onError: (error) => void this.errors.push(error),
  });
  connection = new FakeConnection();
  /** Handlers that were started, in order. */
  readonly runs: Run[] = [];

  /** Waits for its `end`. */
  readonly handler: Handler = (event, ctx) =>
    new Promise<void>((resolve, reject) => void this.runs.push({ event, ctx, end: () => resolve(), fail: reject }));

  connect(obliging = true): FakeConnection {
    this.connection = new FakeConnection();
    this.connection.obliging = obliging;
    this.subscriber.connected(this.connection as unknown as Connection);
    return this.connection;
  }

  lose(): void {
    this.connection.end();
    this.subscriber.lost();
  }

  subscribe(handler: Handler | undefined = this.handler, options: SubscribeOptions = {}): Promise<Subscription> {
    return this.subscriber.subscribe(["orders"], "billing", handler, options);
  }

  /** For loops. */
  loop(options: SubscribeOptions = {}): Promise<Subscription> {
    return this.subscriber.subscribe(["orders"], "billing", undefined, options);
  }

  payloads(): unknown[] {
    return this.runs.map(({ event }) => event.payload);
  }

  turns(count?: number): Promise<void> {
    return turns(this.clock, count);
  }
}

/** Of a SETTLE: which leases, as `partition:offset+count epoch-token`. */
export function runsText({ settle }: Question): string[] {
  return (settle?.runs ?? []).map(
    ({ partition, offset, count, epoch, token }) => `${partition}:${offset}+${count} ${epoch}-${token}`,
  );
}
