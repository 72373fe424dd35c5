// The named entries of a shard as documents. Their values are JSON of ours, kept as BSON where that is exact, so that cursors and topics
// can be looked at; anything else is kept as bytes.
//
//   { _id: "0/cursor/65/billing", topic: "orders", partition: 1, group: "billing", value: { floor: 12 } }
//
// The names of entries belong to the actors. What is read out of them here only serves those who look: nothing depends on it.

import type { AnyBulkWriteOperation, Binary, Document } from "mongodb";
import { partitionOf } from "../../protocol/stream.ts";
import type { MakeBinary } from "./documents.ts";
import { bsonValue, exactText } from "./exact.ts";
import type { CollectionName } from "./schema.ts";

export type EntryCollection = Extract<CollectionName, "cursors" | "topics" | "partitions">;

export const entryCollections: readonly EntryCollection[] = ["cursors", "topics", "partitions"];

export interface EntryDocument {
  readonly _id: string;
  readonly topic?: string;
  readonly partition?: number;
  readonly group?: string;
  readonly value?: unknown;
  readonly bytes?: Binary;
}

const places: Readonly<Record<string, EntryCollection>> = {
  cursor: "cursors",
  group: "cursors",
  catalog: "topics",
  topic: "topics",
  partition: "topics",
};

const encoder = new TextEncoder();
const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

export function collectionOf(key: string): EntryCollection {
  const slash = key.indexOf("/");
  return places[slash < 0 ? key : key.slice(0, slash)] ?? "partitions";
}

/** All documents of a shard in a collection: "7/" and everything behind it, up to where "70" would be. */
export function ofShard(shard: number): { readonly _id: { readonly $gte: string; readonly $lt: string } } {
  return { _id: { $gte: `${shard}/`, $lt: `${shard}0` } };
}

/** `topicOf` gives the name behind a stream, where it is known. */
export function entryWrite(
  shard: number,
  key: string,
  value: Uint8Array | null,
  { topicOf, binary }: { topicOf(stream: number): string | undefined; binary: MakeBinary },
): AnyBulkWriteOperation<EntryDocument> {
  const _id = `${shard}/${key}`;
  if (value === null) return { deleteOne: { filter: { _id } } };
  const stored = storedValue(value);
  const replacement: Document = {
    ...described(key, topicOf),
    ...(stored === undefined ? { bytes: binary(Uint8Array.from(value)) } : { value: stored.value }),
  };
  return { replaceOne: { filter: { _id }, replacement: replacement as EntryDocument, upsert: true } };
}

export function entryKey({ _id }: EntryDocument): string {
  return _id.slice(_id.indexOf("/") + 1);
}

export function entryValue({ bytes, value }: EntryDocument): Uint8Array {
  return bytes === undefined ? encoder.encode(exactText(value)) : bytes.buffer.subarray(0, bytes.position);
}

function storedValue(bytes: Uint8Array): { readonly value: unknown } | undefined {
  let text: string;
  try {
    text = strict.decode(bytes);
  } catch (error) {
    if (error instanceof TypeError) return undefined;
    throw error;
  }
  const valued = bsonValue(text);
  return valued?.exact ? valued : undefined;
}

function described(key: string, topicOf: (stream: number) => string | undefined): Document {
  const [, kind, number, group] = /^(cursor|group)\/(\d+)\/(.*)$/s.exec(key) ?? [];
  if (kind === undefined) return {};
  const stream = Number(number);
  const topic = topicOf(stream);
  return { ...(topic === undefined ? {} : { topic }), partition: partitionOf(stream), group };
}
