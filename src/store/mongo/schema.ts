// The collections and their indexes, in one place: made at the start, verified there and by `narthex doctor`.
//
//   events      one document per event (documents.ts)
//   cursors     one per partition and group: its cursor, its options
//   topics      one per topic, and one per partition that knows its topic
//   partitions  one per partition: where its log begins and ends; and what publishers sent lately
//   owners      one per shard: who may write it (owner.ts); and the format
//   dedupe, outbox, snapshots   of what is built on the bus
//
// Keys of documents that belong to a shard begin with its number, so that a shard is read in three scans of `_id`.

import type { CreateIndexesOptions, Db, IndexDescriptionInfo } from "mongodb";
import { StoreError } from "../store.ts";

export const formatVersion = 1;

export const collectionNames = [
  "events",
  "cursors",
  "topics",
  "partitions",
  "owners",
  "dedupe",
  "outbox",
  "snapshots",
] as const;

export type CollectionName = (typeof collectionNames)[number];

export interface Index {
  readonly collection: CollectionName;
  readonly key: Readonly<Record<string, 1 | -1>>;
  readonly unique?: true;
  readonly expireAfterSeconds?: number;
  /** Only documents that have this field are in it. */
  readonly having?: string;
}

export const indexes: readonly Index[] = [
  { collection: "events", key: { topic: 1, ts: 1, id: 1 } },
  { collection: "events", key: { topic: 1, key: 1, ts: 1 } },
  { collection: "events", key: { id: 1 } },
  { collection: "events", key: { topic: 1, partition: 1, offset: 1 }, unique: true },
  // Not unique: an id that its publisher brings may be stored again once the dedupe window is over.
  { collection: "events", key: { topic: 1, partition: 1, id: 1 } },
  // The newest event of a key is the one with the highest offset, whatever its ts.
  { collection: "events", key: { topic: 1, partition: 1, key: 1, offset: -1 }, having: "key" },
  // The first documents of blocks: retention and `from: ts` go by them.
  { collection: "events", key: { topic: 1, partition: 1, "block.tsMax": 1, offset: 1 }, having: "block.tsMax" },
  { collection: "dedupe", key: { expireAt: 1 }, expireAfterSeconds: 0 },
  { collection: "outbox", key: { status: 1, lease_until: 1 } },
  { collection: "outbox", key: { ts: 1 } },
];

/** What an index lacks, in words that say what to do; `missing` is made at the next start. */
export interface IndexFault {
  readonly index: Index;
  readonly fault: "missing" | "different";
  readonly text: string;
}

type Known = Pick<IndexDescriptionInfo, "key" | "name" | "unique" | "expireAfterSeconds" | "partialFilterExpression">;

/** By key pattern: a name says nothing, and somebody may have made the index by hand. */
export function indexFault(index: Index, there: readonly Known[]): IndexFault | undefined {
  const pattern = JSON.stringify(index.key);
  const known = there.find(({ key }) => JSON.stringify(key) === pattern);
  const what = `index ${pattern} of ${index.collection}`;
  if (known === undefined) return { index, fault: "missing", text: `${what} is missing` };
  const { unique, expireAfterSeconds, partialFilterExpression } = known;
  const same =
    Boolean(unique) === Boolean(index.unique) &&
    expireAfterSeconds === index.expireAfterSeconds &&
    JSON.stringify(partialFilterExpression) === JSON.stringify(filterOf(index));
  if (same) return undefined;
  const text = `${what} is not ${optionText(index)}: drop it with db.${index.collection}.dropIndex("${known.name}"), a start makes it anew`;
  return { index, fault: "different", text };
}

function optionText({ unique, expireAfterSeconds, having }: Index): string {
  if (unique) return "unique";
  if (expireAfterSeconds !== undefined) return `one that expires after ${expireAfterSeconds} s`;
  return having === undefined ? "a plain one" : `one of the documents that have ${having}`;
}

function filterOf({ having }: Index): Record<string, unknown> | undefined {
  return having === undefined ? undefined : { [having]: { $exists: true } };
}

/** What is missing or different in the database as it is. */
export async function indexFaults(db: Db): Promise<readonly IndexFault[]> {
  const there = new Map<string, readonly Known[]>();
  const names = new Set((await db.listCollections({}, { nameOnly: true }).toArray()).map(({ name }) => name));
  for (const name of collectionNames) {
    there.set(name, names.has(name) ? await db.collection(name).listIndexes().toArray() : []);
  }
  return indexes.flatMap((index) => indexFault(index, there.get(index.collection) ?? []) ?? []);
}

/** Makes what is missing. What is there and different is refused by name: it may be somebody's. */
export async function makeSchema(db: Db): Promise<void> {
  const names = new Set((await db.listCollections({}, { nameOnly: true }).toArray()).map(({ name }) => name));
  // Within a transaction none is made.
  for (const name of collectionNames) if (!names.has(name)) await makeCollection(db, name);
  const faults = await indexFaults(db);
  const different = faults.find(({ fault }) => fault === "different");
  if (different !== undefined) throw new StoreError("refused", "EINDEX", different.text);
  for (const { index } of faults) await db.collection(index.collection).createIndex({ ...index.key }, optionsOf(index));
  const left = (await indexFaults(db))[0];
  if (left !== undefined) throw new StoreError("refused", "EINDEX", `${left.text} although it was just made`);
}

async function makeCollection(db: Db, name: CollectionName): Promise<void> {
  try {
    await db.createCollection(name);
  } catch (error) {
    // Another node has made it since we looked.
    if ((error as { codeName?: string }).codeName !== "NamespaceExists") throw error;
  }
}

function optionsOf(index: Index): CreateIndexesOptions {
  const filter = filterOf(index);
  return {
    ...(index.unique ? { unique: true } : {}),
    ...(index.expireAfterSeconds === undefined ? {} : { expireAfterSeconds: index.expireAfterSeconds }),
    ...(filter === undefined ? {} : { partialFilterExpression: filter }),
  };
}
