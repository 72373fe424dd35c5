// Where each stream of a shard begins and ends, as a document in `partitions`, written in the commit that changes it.
//
//   { _id: "0:65", stream: 65, topic: "orders", partition: 1, start: 0, end: 13, storedAt: …, bytes: …, tsMax: …, swept: 0 }
//
// A stream that ends for good leaves a document with `dropped` until its events are removed.

import type { AnyBulkWriteOperation } from "mongodb";
import { partitionOf, topicIdOf } from "../../protocol/stream.ts";
import type { Head } from "../shard-state.ts";
import type { Place } from "./queries.ts";

export interface HeadDocument {
  readonly _id: string;
  readonly stream: number;
  readonly topic: string;
  readonly partition: number;
  readonly start: number;
  readonly end: number;
  readonly storedAt: number;
  readonly bytes: number;
  readonly tsMax: number;
  readonly swept: number;
  readonly dropped?: boolean;
}

/** What is known of a stream besides its head. */
export interface StreamFacts extends Place {
  /** The highest ts that it ever had. */
  tsMax: number;
  /** Below it no event is left. */
  swept: number;
}

/** Their keys are between those of no entries. */
export function headsOf(shard: number): { readonly _id: { readonly $gte: string; readonly $lt: string } } {
  return { _id: { $gte: `${shard}:`, $lt: `${shard};` } };
}

/** The name of a stream that nobody has given one: never that of a topic. */
export function placeOf(shard: number, stream: number, topic: string | undefined): Place {
  const id = `${shard}:${stream}`;
  return { id, stream, topic: topic ?? `$${shard}:${topicIdOf(stream)}`, partition: partitionOf(stream) };
}

export function headWrite(facts: StreamFacts, head: Head): AnyBulkWriteOperation<HeadDocument> {
  return replace(facts, { ...head });
}

export function droppedWrite(facts: StreamFacts, head: Head): AnyBulkWriteOperation<HeadDocument> {
  return replace(facts, { ...head, start: head.end, bytes: 0, dropped: true });
}

function replace(
  { id, stream, topic, partition, tsMax, swept }: StreamFacts,
  { lastStoredAt: storedAt, start, end, bytes, dropped }: Head & { dropped?: boolean },
): AnyBulkWriteOperation<HeadDocument> {
  const fields = { stream, topic, partition, start, end, storedAt, bytes, tsMax, swept };
  const replacement = { ...fields, ...(dropped ? { dropped } : {}) };
  return {
    replaceOne: { filter: { _id: id }, replacement: replacement as HeadDocument, upsert: true },
  };
}
