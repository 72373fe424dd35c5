// Events as documents, one each, so that people and tools can query them, and blocks put together from documents again, byte for byte.
//
//   { _id: { s: "0:65", o: 12 },                   stream (heads.ts) and offset
//     topic: "orders", partition: 1, offset: 12,
//     id: "01a1…", ts: 1795006224969,
//     key, sid, headers, tags, caused_by           where the event has them
//     payload: { n: 1 }                            what can be queried
//     text: '{"n":1.0}'                            where the payload is not exactly that, or cannot be there at all (exact.ts)
//     raw                                          in place of both, where it is no text
//     given: ["id", "ts"]                          which of these two the publisher gave
//     nth: 0                                       how many events of its block are before it
//     block: { … } }                               what the block has besides, at its first event
//
// The documents are what is stored: whoever changes a payload there, or the text where there is one, changes the event.

import type { Binary } from "mongodb";
import { BlockView, blockHeaderBytes, writeBlockHeader } from "../../protocol/block.ts";
import { makeId } from "../../protocol/ids.ts";
import { type Extension, encodeExtension, packFlagExtensions, packHeaderBytes } from "../../protocol/pack.ts";
import { bsonValue, exactText } from "./exact.ts";
import type { Place } from "./queries.ts";

export interface EventDocument {
  readonly _id: { readonly s: string; readonly o: number };
  readonly topic: string;
  readonly partition: number;
  readonly offset: number;
  readonly id: string;
  readonly ts: number;
  readonly key?: string;
  readonly sid?: unknown;
  readonly headers?: unknown;
  readonly tags?: unknown;
  readonly caused_by?: unknown;
  readonly payload?: unknown;
  readonly text?: string;
  readonly raw?: Binary;
  readonly given?: readonly string[];
  /** Where sid, headers, tags and caused_by cannot be told as fields. */
  readonly meta?: string;
  /** Where the fields together would not give the same bytes. */
  readonly extension?: Binary;
  readonly nth: number;
  readonly block?: BlockFields;
}

export interface BlockFields {
  readonly count: number;
  readonly storedAt: number;
  readonly maxTs: number;
  readonly salt: number;
  readonly bytes: number;
  readonly extended: boolean;
  /** The highest ts of the stream up to the end of this block: it never falls, so that a time is found by it. */
  readonly tsMax: number;
}

/** Makes what BSON has and JSON does not. */
export type MakeBinary = (bytes: Uint8Array) => Binary;

const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const encoder = new TextEncoder();

/** The documents of a block. `tsMax` is that of the stream before it. */
export function documentsOf(
  block: BlockView,
  { id: s, topic, partition }: Place,
  tsMax: number,
  binary: MakeBinary,
): EventDocument[] {
  const fields: BlockFields = {
    count: block.count,
    storedAt: block.storedAt,
    maxTs: block.maxTs,
    salt: block.salt,
    bytes: block.bytes.length,
    extended: block.pack.extended,
    tsMax: Math.max(tsMax, block.maxTs),
  };
  return Array.from({ length: block.count }, (_, nth) => {
    const offset = block.firstOffset + nth;
    const extension = block.pack.extensionLength(nth) === 0 ? undefined : block.pack.extension(nth);
    return {
      _id: { s, o: offset },
      topic,
      partition,
      offset,
      id: extension?.id ?? makeId(block.storedAt, offset, partition, block.salt),
      ts: extension?.ts ?? block.storedAt,
      ...(extension === undefined ? {} : extensionFields(block, nth, extension, binary)),
      ...payloadFields(block.pack.payload(nth), binary),
      nth,
      ...(nth === 0 ? { block: fields } : {}),
    };
  });
}

type PayloadFields = Pick<EventDocument, "payload" | "text" | "raw">;

function payloadFields(bytes: Uint8Array, binary: MakeBinary): PayloadFields {
  const text = textOf(bytes);
  if (text === undefined) return { raw: binary(Uint8Array.from(bytes)) };
  const valued = bsonValue(text);
  if (valued === undefined) return { text };
  return valued.exact ? { payload: valued.value } : { payload: valued.value, text };
}

function textOf(bytes: Uint8Array): string | undefined {
  try {
    return strict.decode(bytes);
  } catch (error) {
    if (error instanceof TypeError) return undefined;
    throw error;
  }
}

function extensionFields(
  block: BlockView,
  nth: number,
  extension: Extension,
  binary: MakeBinary,
): Partial<EventDocument> {
  const bytes = block.pack.extensionBytesOf(nth);
  const { key, id, ts, meta } = extension;
  const given = [...(id === undefined ? [] : ["id"]), ...(ts === undefined ? [] : ["ts"])];
  const fields: Partial<EventDocument> = {
    ...(key === undefined ? {} : { key }),
    ...(given.length === 0 ? {} : { given }),
    ...(meta === undefined ? {} : metaFields(meta)),
  };
  const again = encodeExtension(extension);
  const same = again !== undefined && Buffer.compare(again, bytes) === 0;
  return same ? fields : { ...fields, extension: binary(Uint8Array.from(bytes)) };
}

const metaNames = ["sid", "headers", "tags", "caused_by"] as const;

function metaFields(meta: string): Partial<EventDocument> {
  const value = bsonValue(meta)?.value;
  if (typeof value !== "object" || value === null || Array.isArray(value)) return { meta };
  const fields = value as Readonly<Record<string, unknown>>;
  return metaText(fields) === meta ? { ...fields } : { meta };
}

/** In the order in which protocol/meta.ts spells them. */
function metaText(document: Partial<Record<string, unknown>>): string | undefined {
  const there = metaNames.filter((name) => document[name] !== undefined);
  if (there.length === 0) return undefined;
  return exactText(Object.fromEntries(there.map((name) => [name, document[name]])));
}

// ------------------------------------------------------------------------------------------------------------ the way back

/** A block of these documents, which are all of one block and in order. */
export function blockOf(documents: readonly EventDocument[], fields: BlockFields, stream: number): BlockView {
  const payloads = documents.map(payloadBytes);
  const extensions = fields.extended ? documents.map(extensionBytes) : [];
  const count = documents.length;
  const payloadSum = sum(payloads);
  const extensionSum = sum(extensions);
  const size = packHeaderBytes + (fields.extended ? 8 : 4) * count + payloadSum + extensionSum;
  const bytes = new Uint8Array(blockHeaderBytes + size);
  const { offset: firstOffset } = documents[0];
  writeBlockHeader({ stream, firstOffset, ...fields }, bytes, 0);
  const view = new DataView(bytes.buffer);
  view.setUint32(blockHeaderBytes, count, true);
  view.setUint32(blockHeaderBytes + 4, fields.extended ? packFlagExtensions : 0, true);
  view.setUint32(blockHeaderBytes + 8, payloadSum, true);
  view.setUint32(blockHeaderBytes + 12, extensionSum, true);
  let at = blockHeaderBytes + packHeaderBytes;
  for (const part of [...payloads, ...extensions]) {
    view.setUint32(at, part.length, true);
    at += 4;
  }
  for (const part of [...payloads, ...extensions]) {
    bytes.set(part, at);
    at += part.length;
  }
  return new BlockView(bytes);
}

function sum(parts: readonly Uint8Array[]): number {
  return parts.reduce((bytes, part) => bytes + part.length, 0);
}

function payloadBytes(document: EventDocument): Uint8Array {
  if (document.raw !== undefined) return document.raw.buffer.subarray(0, document.raw.position);
  return encoder.encode(document.text ?? exactText(document.payload));
}

const nothing = new Uint8Array();

function extensionBytes(document: EventDocument): Uint8Array {
  const { extension, key, id, ts, given = [] } = document;
  if (extension !== undefined) return extension.buffer.subarray(0, extension.position);
  const bytes = encodeExtension({
    key,
    id: given.includes("id") ? id : undefined,
    ts: given.includes("ts") ? ts : undefined,
    meta: document.meta ?? metaText(document as unknown as Record<string, unknown>),
  });
  return bytes ?? nothing;
}
