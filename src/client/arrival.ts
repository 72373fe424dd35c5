// One EVENTS frame as it came, and the records in it. They are made one by one, when a handler is about to get them; what all events of
// the frame have in common is made once. Payloads in plain ASCII, nearly all of them, are cut out of one decoded text: decoding each
// for itself costs as much as parsing it.

import type { EventRecord } from "../bus/event-bus.ts";
import type { EventsBatch } from "../protocol/batch.ts";
import { idPositionPart, idTimePart } from "../protocol/ids.ts";

// Without ignoreBOM a text would lose a U+FEFF at its front.
const decoder = new TextDecoder("utf-8", { ignoreBOM: true });

export class Arrival {
  readonly batch: EventsBatch;
  readonly topic: string;
  private readonly timePart: string;
  /** Of all payloads; empty unless each byte of them is one character. */
  private text: string | undefined;
  private readonly starts: Uint32Array;

  constructor(topic: string, batch: EventsBatch) {
    this.topic = topic;
    this.batch = batch;
    this.timePart = idTimePart(batch.storedAt);
    const { pack } = batch;
    this.starts = new Uint32Array(pack.count + 1);
    for (let i = 0; i < pack.count; i++) this.starts[i + 1] = this.starts[i] + pack.payloadLength(i);
  }

  /** The id that the publisher brought, or the one that the position makes. */
  id(index: number): string {
    return this.batch.pack.id(index) ?? this.madeId(index);
  }

  /** Names the event itself, whatever its lease. */
  key(index: number): string {
    return `${this.batch.partition}:${this.batch.firstOffset + index}:${this.id(index)}`;
  }

  /** Throws where the payload is not JSON, which no node stores. */
  record(index: number): EventRecord<unknown> {
    const { topic } = this;
    const { pack, storedAt, partition, firstOffset } = this.batch;
    const offset = firstOffset + index;
    const payload: unknown = JSON.parse(this.payload(index));
    if (pack.extensionLength(index) === 0) {
      return { id: this.madeId(index), ts: storedAt, topic, partition, offset, payload };
    }
    const { key, id, ts, meta } = pack.extension(index);
    return {
      id: id ?? this.madeId(index),
      ts: ts ?? storedAt,
      topic,
      partition,
      offset,
      ...(key === undefined ? {} : { key }),
      ...(meta === undefined ? {} : (JSON.parse(meta) as Pick<EventRecord, "sid" | "headers" | "tags" | "caused_by">)),
      payload,
    };
  }

  private madeId(index: number): string {
    const { firstOffset, partition, salt } = this.batch;
    return this.timePart + idPositionPart(firstOffset + index, partition, salt);
  }

  private payload(index: number): string {
    const { pack } = this.batch;
    if (this.text === undefined) {
      const from = pack.payload(0).byteOffset - pack.bytes.byteOffset;
      const text = decoder.decode(pack.bytes.subarray(from, from + pack.payloadBytes));
      this.text = text.length === pack.payloadBytes ? text : "";
    }
    if (this.text === "") return decoder.decode(pack.payload(index));
    return this.text.slice(this.starts[index], this.starts[index + 1]);
  }
}
