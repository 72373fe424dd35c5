// A TCP connection that says what it is told to, and nothing else: for what no well-behaved library can be made to send.

import { randomBytes } from "node:crypto";
import { connect, type Socket } from "node:net";
import { eventually, within } from "../support/deadline.ts";

export interface ServerFrame {
  readonly opcode: number;
  readonly data: Buffer;
}

export class RawSocket {
  readonly socket: Socket;
  /** Everything that came and was not taken yet. */
  received: Buffer = Buffer.alloc(0);
  ended = false;

  private constructor(socket: Socket) {
    this.socket = socket;
    socket.on("data", (chunk: Buffer) => {
      this.received = this.received.length === 0 ? chunk : Buffer.concat([this.received, chunk]);
    });
    // A reset is one of the ways in which a connection may end here.
    socket.on("error", () => {
      this.ended = true;
    });
    socket.on("close", () => {
      this.ended = true;
    });
  }

  static open(port: number): Promise<RawSocket> {
    return within(
      15_000,
      "a TCP connection",
      new Promise((resolve, reject) => {
        const socket = connect(port, "127.0.0.1");
        socket.once("error", reject);
        socket.once("connect", () => {
          socket.off("error", reject);
          resolve(new RawSocket(socket));
        });
      }),
    );
  }

  /** After the handshake of a WebSocket. */
  static async webSocket(port: number, headers: readonly string[] = []): Promise<RawSocket> {
    const raw = await RawSocket.open(port);
    raw.write(`${handshake(headers)}\r\n`);
    await eventually(5000, "the handshake is answered", () => raw.received.includes("\r\n\r\n") || raw.ended);
    const text = raw.received.toString("latin1");
    if (!text.startsWith("HTTP/1.1 101 ")) throw new Error(`no upgrade: ${text.slice(0, 200)}`);
    raw.received = raw.received.subarray(text.indexOf("\r\n\r\n") + 4);
    return raw;
  }

  write(data: string | Uint8Array): void {
    if (!this.socket.destroyed) this.socket.write(data);
  }

  text(): string {
    return this.received.toString("latin1");
  }

  /** What came ends the connection or has this in it. */
  async until(pattern: string | RegExp, ms = 5000): Promise<string> {
    const found = () => (typeof pattern === "string" ? this.text().includes(pattern) : pattern.test(this.text()));
    await eventually(ms, `${pattern} or the end, got ${this.text().slice(0, 200)}`, () => found() || this.ended);
    return this.text();
  }

  async end(ms = 5000): Promise<void> {
    await eventually(ms, `the node ends the connection, got ${this.text().slice(0, 200)}`, () => this.ended);
  }

  destroy(): void {
    this.socket.destroy();
  }

  /** Whole WebSocket frames that came so far; they are not taken. */
  frames(): ServerFrame[] {
    const frames: ServerFrame[] = [];
    let rest = this.received;
    while (rest.length >= 2) {
      let length = rest[1] & 0x7f;
      let at = 2;
      if (length === 126) {
        if (rest.length < 4) break;
        length = rest.readUInt16BE(2);
        at = 4;
      } else if (length === 127) {
        if (rest.length < 10) break;
        length = Number(rest.readBigUInt64BE(2));
        at = 10;
      }
      if (rest.length < at + length) break;
      frames.push({ opcode: rest[0] & 0x0f, data: rest.subarray(at, at + length) });
      rest = rest.subarray(at + length);
    }
    return frames;
  }

  /** The code of the node's close frame; 1006 if the connection ended without one. */
  async closeCode(ms = 5000): Promise<number> {
    const close = await eventually(ms, `a close, got ${this.received.length} bytes`, () => {
      const frame = this.frames().find(({ opcode }) => opcode === 8);
      if (frame !== undefined) return frame.data.length < 2 ? 1005 : frame.data.readUInt16BE(0);
      return this.ended ? 1006 : undefined;
    });
    return close;
  }
}

export function handshake(headers: readonly string[] = []): string {
  const key = randomBytes(16).toString("base64");
  const lines = [
    "GET / HTTP/1.1",
    "Host: localhost",
    "Upgrade: websocket",
    "Connection: Upgrade",
    `Sec-WebSocket-Key: ${key}`,
    "Sec-WebSocket-Version: 13",
    ...headers,
  ];
  return `${lines.join("\r\n")}\r\n`;
}

export interface FrameShape {
  readonly opcode?: number;
  readonly fin?: boolean;
  readonly rsv?: number;
  readonly masked?: boolean;
  /** What the header says, where it is not the truth. */
  readonly length?: number;
}

/** One WebSocket frame as a client would send it, or nearly. */
export function wsFrame(data: string | Uint8Array, shape: FrameShape = {}): Buffer {
  const bytes = Buffer.from(data as Uint8Array);
  const { opcode = 1, fin = true, rsv = 0, masked = true, length = bytes.length } = shape;
  const extended = length < 126 ? 0 : length < 65_536 ? 2 : 8;
  const head = Buffer.alloc(2 + extended);
  head[0] = (fin ? 0x80 : 0) | (rsv << 4) | opcode;
  head[1] = (masked ? 0x80 : 0) | (extended === 0 ? length : extended === 2 ? 126 : 127);
  if (extended === 2) head.writeUInt16BE(length, 2);
  if (extended === 8) head.writeBigUInt64BE(BigInt(length), 2);
  if (!masked) return Buffer.concat([head, bytes]);
  const mask = randomBytes(4);
  const body = Buffer.from(bytes);
  for (let i = 0; i < body.length; i++) body[i] ^= mask[i & 3];
  return Buffer.concat([head, mask, body]);
}
