// Events as JSON lines, written into one growing buffer: the text up to the payload is made, the payload is copied as it is.

import type { BlockView } from "../protocol/block.ts";
import { eventHead } from "../protocol/event.ts";

const encoder = new TextEncoder();
const lineEnd = encoder.encode("}\n");

export class EventLines {
  private buffer = new Uint8Array(16 * 1024);
  private used = 0;
  private readonly topic: string;

  constructor(topic: string) {
    this.topic = topic;
  }

  get byteLength(): number {
    return this.used;
  }

  add(block: BlockView, index: number): void {
    const head = eventHead(block, index, this.topic);
    const payload = block.pack.payload(index);
    // A UTF-16 unit takes at most three bytes of UTF-8.
    this.reserve(head.length * 3 + payload.length + lineEnd.length);
    this.used += encoder.encodeInto(head, this.buffer.subarray(this.used)).written;
    this.buffer.set(payload, this.used);
    this.used += payload.length;
    this.buffer.set(lineEnd, this.used);
    this.used += lineEnd.length;
  }

  /** Copies what was written into bytes that `room` gives. */
  copy(room: (bytes: number) => Uint8Array): Uint8Array {
    const target = room(this.used);
    target.set(this.buffer.subarray(0, this.used));
    return target;
  }

  private reserve(bytes: number): void {
    if (this.used + bytes <= this.buffer.length) return;
    const larger = new Uint8Array(Math.max(this.buffer.length * 2, this.used + bytes));
    larger.set(this.buffer.subarray(0, this.used));
    this.buffer = larger;
  }
}
