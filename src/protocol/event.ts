// An event as clients see it. Its JSON is put together from what is stored, without parsing anything: the head is text made here,
// the payload is copied behind it as the bytes that were published, and a closing brace ends it.

import type { BlockView } from "./block.ts";
import { idPositionPart, idTimePart, makeId } from "./ids.ts";
import { partitionOf } from "./stream.ts";

export type Json = null | boolean | number | string | readonly Json[] | { readonly [name: string]: Json };

export interface EventRecord<Payload = Json> {
  readonly id: string;
  /** Milliseconds since 1970: the publisher's, or the node's when it was stored. */
  readonly ts: number;
  readonly topic: string;
  readonly partition: number;
  readonly offset: number;
  readonly key?: string;
  readonly sid?: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly tags?: readonly string[];
  readonly caused_by?: readonly string[];
  readonly payload: Payload;
}

/** The id that the publisher brought, or the one that the position makes. */
export function eventId(block: BlockView, index: number): string {
  return (
    block.pack.id(index) ?? makeId(block.storedAt, block.firstOffset + index, partitionOf(block.stream), block.salt)
  );
}

/**
 * The JSON of the event up to and including `"payload":`. Topic and id need no escaping (see names.ts), and `meta` is the text
 * of an object in our own spelling, so its members are spliced in as they are.
 */
export function eventHead(block: BlockView, index: number, topic: string): string {
  const offset = block.firstOffset + index;
  const partition = partitionOf(block.stream);
  if (block.pack.extensionLength(index) === 0) {
    const id = idTimePart(block.storedAt) + idPositionPart(offset, partition, block.salt);
    return `{"id":"${id}","ts":${block.storedAt},"topic":"${topic}","partition":${partition},"offset":${offset},"payload":`;
  }
  const { key, id, ts, meta } = block.pack.extension(index);
  const ownOrMade = id ?? makeId(block.storedAt, offset, partition, block.salt);
  const keyPart = key === undefined ? "" : `"key":${JSON.stringify(key)},`;
  const metaPart = meta === undefined || meta.length <= 2 ? "" : `${meta.slice(1, -1)},`;
  return `{"id":"${ownOrMade}","ts":${ts ?? block.storedAt},"topic":"${topic}","partition":${partition},"offset":${offset},${keyPart}${metaPart}"payload":`;
}
