// JSON frames of one event each, as the simplest client speaks them: every frame is sent by itself and answered by itself. The bare server
// takes the same ones.

import { WebSocket } from "ws";
import type { Payload } from "../support/payload.ts";
import type { Consumer, ConsumerOptions, Publisher } from "../support/system.ts";

interface Frame {
  readonly op: string;
  readonly corr?: number;
  readonly event: { readonly id: string; readonly payload: Payload };
}

class PlainClient {
  onEvent: (frame: Frame) => void = () => undefined;
  private readonly socket: WebSocket;
  private readonly waiting = new Map<number, { resolve: () => void; reject: (error: Error) => void }>();
  private corr = 0;

  private constructor(socket: WebSocket) {
    this.socket = socket;
    socket.on("message", (data: Buffer) => {
      const frame = JSON.parse(data.toString()) as Frame;
      if (frame.op === "EVENT") this.onEvent(frame);
      else this.answer(frame);
    });
  }

  static async open(url: string): Promise<PlainClient> {
    const socket = new WebSocket(url, { perMessageDeflate: false });
    await new Promise((resolve, reject) => socket.on("open", resolve).on("error", reject));
    const client = new PlainClient(socket);
    await client.ask({ op: "AUTH" });
    return client;
  }

  ask(frame: Readonly<Record<string, unknown>>): Promise<void> {
    const corr = ++this.corr;
    return new Promise((resolve, reject) => {
      this.waiting.set(corr, { resolve, reject });
      this.socket.send(JSON.stringify({ ...frame, corr }));
    });
  }

  async close(): Promise<void> {
    this.socket.close();
  }

  private answer(frame: Frame): void {
    const one = this.waiting.get(frame.corr as number);
    this.waiting.delete(frame.corr as number);
    if (frame.op === "OK") one?.resolve();
    else one?.reject(new Error(JSON.stringify(frame)));
  }
}

export async function plainPublisher(url: string, topic: string): Promise<Publisher> {
  const client = await PlainClient.open(url);
  return { publish: (payload) => client.ask({ op: "PUBLISH", topic, payload }), close: () => client.close() };
}

export async function plainConsumer(url: string, options: ConsumerOptions): Promise<Consumer> {
  const { topic, group, window, onEvent } = options;
  const client = await PlainClient.open(url);
  const acks = new Set<Promise<void>>();
  client.onEvent = ({ event }) => {
    onEvent(event.payload);
    const ack = client.ask({ op: "ACK", topic, group, id: event.id });
    acks.add(ack);
    void ack.then(() => acks.delete(ack));
  };
  await client.ask({ op: "SUBSCRIBE", topic, group, opts: { from: "earliest", maxInflight: window } });
  return { settled: async () => void (await Promise.all(acks)), close: () => client.close() };
}
