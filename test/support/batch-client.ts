// A client of the binary batches for tests and benches: as thin as it can be, no reconnecting, no queueing.

import { WebSocket } from "ws";
import {
  type BatchName,
  decodeServerBatch,
  type EventsBatch,
  encodePublish,
  encodeSettle,
  type PublishedBatch,
} from "../../src/protocol/batch.ts";
import { isFailure } from "../../src/protocol/failure.ts";
import { encodePack } from "../../src/protocol/pack.ts";
import { within } from "./deadline.ts";

const encoder = new TextEncoder();

export interface JsonAnswer {
  readonly op: string;
  readonly corr?: number;
  readonly code?: string;
  readonly msg?: string;
  readonly handle?: number;
  readonly [field: string]: unknown;
}

export class BatchClient {
  readonly socket: WebSocket;
  /** Set before subscribing. */
  onEvents: (batch: EventsBatch) => void = () => undefined;
  private readonly answers = new Map<number, (answer: JsonAnswer) => void>();
  private readonly published = new Map<number, (answer: PublishedBatch) => void>();
  private corr = 1;

  private constructor(socket: WebSocket) {
    this.socket = socket;
    socket.binaryType = "nodebuffer";
    socket.on("message", (data: Buffer, binary: boolean) =>
      binary ? this.takeBatch(data) : this.takeText(data.toString()),
    );
  }

  static async open(url: string, token?: string): Promise<BatchClient> {
    const socket = new WebSocket(url, { perMessageDeflate: false });
    await within(
      5000,
      "the socket opens",
      new Promise((resolve, reject) => socket.on("open", resolve).on("error", reject)),
    );
    const client = new BatchClient(socket);
    const ok = await client.request({ op: "AUTH", batch: 1, ...(token === undefined ? {} : { token }) });
    if (ok.batch !== 1) throw new Error(`no batches: ${JSON.stringify(ok)}`);
    return client;
  }

  async request(frame: Record<string, unknown>): Promise<JsonAnswer> {
    const corr = this.corr++;
    const answer = new Promise<JsonAnswer>((resolve) => this.answers.set(corr, resolve));
    this.socket.send(JSON.stringify({ ...frame, corr }));
    const result = await within(15_000, `an answer to ${frame.op}`, answer);
    if (result.op !== "OK") throw new Error(JSON.stringify(result));
    return result;
  }

  async handle(topic: string): Promise<number> {
    return (await this.request({ op: "OPEN", topic })).handle as number;
  }

  async subscribe(topic: string, group: string, opts: Record<string, unknown>): Promise<number> {
    return (await this.request({ op: "SUBSCRIBE", topic, group, opts })).handle as number;
  }

  publish(handle: number, pack: Uint8Array, batch?: BatchName): Promise<PublishedBatch> {
    const corr = this.corr++;
    return new Promise((resolve, reject) => {
      this.published.set(corr, resolve);
      // A batch that is refused as a whole is answered with an ERR.
      this.answers.set(corr, (answer) => reject(new Error(JSON.stringify(answer))));
      this.socket.send(encodePublish({ handle, corr, ...(batch === undefined ? {} : { batch }) }, pack));
    });
  }

  /** Acks a whole EVENTS frame. */
  ack(batch: EventsBatch): Promise<JsonAnswer> {
    const corr = this.corr++;
    const { partition, firstOffset, epoch, token } = batch;
    const run = { partition, offset: firstOffset, count: batch.pack.count, epoch, token };
    return new Promise((resolve) => {
      this.answers.set(corr, resolve);
      this.socket.send(encodeSettle({ handle: batch.handle, corr, verb: "ack", runs: [run] }));
    });
  }

  close(): void {
    this.socket.close();
  }

  private takeText(text: string): void {
    const frame = JSON.parse(text) as JsonAnswer;
    const answer = frame.corr === undefined ? undefined : this.answers.get(frame.corr);
    if (answer === undefined) throw new Error(`unexpected ${text}`);
    this.answers.delete(frame.corr as number);
    answer(frame);
  }

  private takeBatch(bytes: Buffer): void {
    const batch = decodeServerBatch(bytes);
    if (isFailure(batch)) throw new Error(batch.msg);
    if (batch.op === "EVENTS") {
      this.onEvents(batch);
      return;
    }
    this.answers.delete(batch.corr);
    this.published.get(batch.corr)?.(batch);
    this.published.delete(batch.corr);
  }
}

/** Publishes `count` events in batches, a few at a time, and gives how many were stored. */
export async function fill(
  client: BatchClient,
  topic: string,
  options: { count: number; payload: (n: number) => string; ts?: number; key?: (n: number) => string },
): Promise<number> {
  const handle = await client.handle(topic);
  const batchSize = 1000;
  let stored = 0;
  const windows: Promise<void>[] = [];
  for (let from = 0; from < options.count; from += batchSize) {
    const length = Math.min(batchSize, options.count - from);
    const pack = encodePack(
      Array.from({ length }, (_, i) => ({
        payload: encoder.encode(options.payload(from + i)),
        ...(options.ts === undefined ? {} : { ts: options.ts }),
        ...(options.key === undefined ? {} : { key: options.key(from + i) }),
      })),
    );
    windows.push(
      client.publish(handle, pack).then(({ runs }) => {
        for (const run of runs) {
          if (run.status !== "stored") throw new Error(`a run was answered ${run.status}`);
          stored += run.count;
        }
      }),
    );
    if (windows.length >= 4) await windows.shift();
  }
  await Promise.all(windows);
  return stored;
}
