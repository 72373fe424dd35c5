// One EVENTS frame as it came, and the records in it. They are made one by one, when a handler is about to get them; what all events of
// the frame have in common is made once. Payloads in plain ASCII, nearly all of them, are cut out of one decoded text: decoding each
// for itself costs as much as parsing it.

import type { EventRecord } from "../bus/event-bus.ts";
import type { EventsBatch } from "../protocol/batch.ts";
import { idPositionPart, idTimePart } from "../protocol/ids.ts";
import { decoder } from "../protocol/utf8.ts";

export class Arrival {
  readonly batch: EventsBatch;
  readonly topic: string;
  readonly #timePart: string;
  /** Of all payloads; empty unless each byte of them is one character. */
  #text: string | undefined;

  constructor(topic: string, batch: EventsBatch) {
    this.topic = topic;
    this.batch = batch;
    this.#timePart = idTimePart(batch.storedAt);
  }

  /** The id that the publisher brought, or the one that the position makes. */
  id(index: number): string {
    return this.batch.pack.extension(index).id ?? this.#madeId(index);
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
    const payload: unknown = JSON.parse(this.#payload(index));
    if (pack.extensionLength(index) === 0) {
      return { id: this.#madeId(index), ts: storedAt, topic, partition, offset, payload };
    }
    const { key, id, ts, meta } = pack.extension(index);
    return {
      id: id ?? this.#madeId(index),
      ts: ts ?? storedAt,
      topic,
      partition,
      offset,
      ...(key === undefined ? {} : { key }),
      ...(meta === undefined ? {} : (JSON.parse(meta) as Pick<EventRecord, "sid" | "headers" | "tags" | "caused_by">)),
      payload,
    };
  }

  #madeId(index: number): string {
    const { firstOffset, partition, salt } = this.batch;
    return this.#timePart + idPositionPart(firstOffset + index, partition, salt);
  }

  #payload(index: number): string {
    const { pack } = this.batch;
    if (this.#text === undefined) {
      const text = decoder.decode(pack.bytes.subarray(pack.payloadsAt, pack.payloadsAt + pack.payloadBytes));
      this.#text = text.length === pack.payloadBytes ? text : "";
    }
    if (this.#text === "") return decoder.decode(pack.payload(index));
    const starts = pack.payloadStarts();
    return this.#text.slice(starts[index], starts[index + 1]);
  }
}
