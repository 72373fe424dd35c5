// Each way in which events are looked for, with the index that it goes by (schema.ts): what is sent here is what `explain` is asked
// about in the tests. A stream is asked for by topic and partition, and by its own id besides, since events of a deleted topic of the
// same name may not be removed yet.

import type { Document } from "mongodb";

/** A stream as its documents name it. */
export interface Place {
  /** Names the stream in the database, and the document of its head: shard and stream. */
  readonly id: string;
  readonly stream: number;
  readonly topic: string;
  readonly partition: number;
}

export interface Query {
  readonly filter: Document;
  readonly sort: Record<string, 1 | -1>;
}

export interface Offsets {
  readonly from: number;
  readonly to: number;
}

const inLogOrder = { topic: 1, partition: 1, offset: 1 } as const;
const inBlockOrder = { topic: 1, partition: 1, "block.tsMax": 1, offset: 1 } as const;

function of({ id, topic, partition }: Place): Document {
  return { topic, partition, "_id.s": id };
}

function within({ from, to }: Offsets): Document {
  return { $gte: from, $lt: to };
}

/** Events in log order. */
export function eventsQuery(place: Place, offsets: Offsets): Query {
  return { filter: { ...of(place), offset: within(offsets) }, sort: inLogOrder };
}

/** The first event at or after a time. */
export function timeQuery(place: Place, offsets: Offsets, ts: number): Query {
  return { filter: { ...of(place), offset: within(offsets), ts: { $gte: ts } }, sort: inLogOrder };
}

/** The first documents of blocks, in log order; only those of which the stream had reached `ts`. */
export function blocksQuery(place: Place, offsets: Offsets, ts = 0): Query {
  return { filter: { ...of(place), offset: within(offsets), "block.tsMax": { $gte: ts } }, sort: inBlockOrder };
}

/** Events under an id that the publisher gave. */
export function idQuery(place: Place, offsets: Offsets, id: string): Query {
  return { filter: { ...of(place), id, given: "id", offset: within(offsets) }, sort: { offset: -1 } };
}

/** Events of a key, the newest first. */
export function keyQuery(place: Place, offsets: Offsets, key: string): Query {
  const sort = { topic: 1, partition: 1, key: 1, offset: -1 } as const;
  return { filter: { ...of(place), key, offset: within(offsets) }, sort };
}

/** Events of all keys behind one, in the order of keys, the newest of each key first. */
export function keysQuery(place: Place, offsets: Offsets, after: string): Query {
  const sort = { topic: 1, partition: 1, key: 1, offset: -1 } as const;
  return { filter: { ...of(place), key: { $gt: after }, offset: within(offsets) }, sort };
}

/** Whatever is at these offsets and of another stream: of a topic that was deleted before. */
export function foreignQuery({ id, topic, partition }: Place, offsets: Offsets): Query {
  return { filter: { topic, partition, "_id.s": { $ne: id }, offset: within(offsets) }, sort: inLogOrder };
}
