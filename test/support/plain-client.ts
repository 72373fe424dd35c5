// A client of the seeds' frames for tests: requests by corr, events in a queue, everything under a deadline.

import { WebSocket } from "ws";
import { within } from "./deadline.ts";

export interface Frame {
  readonly op: string;
  readonly corr?: string | number;
  readonly code?: string;
  readonly msg?: string;
  readonly [field: string]: unknown;
}

export interface EventFrame {
  readonly topic: string;
  readonly group: string;
  readonly event: {
    readonly id: string;
    readonly ts: number;
    readonly topic: string;
    readonly partition: number;
    readonly offset: number;
    readonly key?: string;
    readonly headers?: Record<string, string>;
    readonly caused_by?: string[];
    readonly tags?: string[];
    readonly payload: unknown;
  };
  readonly ctx: {
    readonly attempt: number;
    readonly max_attempts: number;
    readonly ack_deadline_ms: number;
    readonly lease: string;
  };
}

export class PlainClient {
  readonly socket: WebSocket;
  /** Events not yet taken by `next`. */
  readonly events: EventFrame[] = [];
  /** Frames that answer nothing and are no events. */
  readonly others: Frame[] = [];
  readonly closed: Promise<{ code: number; reason: string }>;
  /** Takes the events in the place of the queue. */
  onEvent: ((event: EventFrame) => void) | undefined;
  private readonly waiting = new Map<string | number, (frame: Frame) => void>();
  private readonly takers: ((event: EventFrame) => void)[] = [];
  private corr = 0;

  private constructor(socket: WebSocket) {
    this.socket = socket;
    this.closed = new Promise((resolve) => {
      socket.on("close", (code, reason) => {
        // Nobody waits for answers that cannot come any more.
        for (const answer of this.waiting.values()) answer({ op: "ERR", code: "closed" });
        this.waiting.clear();
        resolve({ code, reason: reason.toString() });
      });
    });
    socket.on("message", (data, binary) => {
      if (binary) return;
      this.take(JSON.parse(data.toString()) as Frame);
    });
    socket.on("error", () => undefined);
  }

  static async open(url: string, token?: string): Promise<PlainClient> {
    const socket = new WebSocket(url);
    const client = new PlainClient(socket);
    await within(
      15_000,
      "the socket opens",
      new Promise((resolve, reject) => socket.on("open", resolve).on("error", reject)),
    );
    await client.ok({ op: "AUTH", ...(token === undefined ? {} : { token }) });
    return client;
  }

  /** Sends and resolves with the answer, OK or ERR. */
  request(frame: Record<string, unknown>): Promise<Frame> {
    const corr = `c${this.corr++}`;
    const answer = new Promise<Frame>((resolve) => this.waiting.set(corr, resolve));
    this.socket.send(JSON.stringify({ ...frame, corr }));
    return within(15_000, `an answer to ${frame.op}`, answer);
  }

  async ok(frame: Record<string, unknown>): Promise<Frame> {
    const answer = await this.request(frame);
    if (answer.op !== "OK") throw new Error(`${frame.op} was refused: ${JSON.stringify(answer)}`);
    return answer;
  }

  publish(topic: string, payload: unknown, opts?: Record<string, unknown>): Promise<Frame> {
    return this.ok({ op: "PUBLISH", topic, payload, ...(opts === undefined ? {} : { opts }) });
  }

  subscribe(topic: string, group: string, opts: Record<string, unknown> = {}): Promise<Frame> {
    return this.ok({ op: "SUBSCRIBE", topic, group, opts });
  }

  /** The next event, in order. */
  next(ms = 15_000): Promise<EventFrame> {
    const event = this.events.shift();
    if (event !== undefined) return Promise.resolve(event);
    return within(ms, "another event", new Promise((resolve) => this.takers.push(resolve)));
  }

  async nextMany(count: number): Promise<EventFrame[]> {
    const events: EventFrame[] = [];
    while (events.length < count) events.push(await this.next());
    return events;
  }

  ack(event: EventFrame, extra: Record<string, unknown> = {}): Promise<Frame> {
    return this.request({ op: "ACK", topic: event.topic, group: event.group, id: event.event.id, ...extra });
  }

  nack(event: EventFrame, extra: Record<string, unknown> = {}): Promise<Frame> {
    return this.request({ op: "NACK", topic: event.topic, group: event.group, id: event.event.id, ...extra });
  }

  /** Everything sent before has been handled once this is answered. */
  async settle(): Promise<void> {
    await this.request({ op: "UNSUBSCRIBE", topic: "no-such", group: "no-such" });
  }

  close(): Promise<{ code: number; reason: string }> {
    this.socket.close();
    return within(15_000, "the socket closes", this.closed);
  }

  private take(frame: Frame): void {
    if (frame.op === "EVENT") {
      const event = frame as unknown as EventFrame;
      if (this.onEvent !== undefined) {
        this.onEvent(event);
        return;
      }
      const taker = this.takers.shift();
      if (taker === undefined) this.events.push(event);
      else taker(event);
      return;
    }
    const answer = frame.corr === undefined ? undefined : this.waiting.get(frame.corr);
    if (answer === undefined) {
      this.others.push(frame);
      return;
    }
    this.waiting.delete(frame.corr as string | number);
    answer(frame);
  }
}
