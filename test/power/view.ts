// What a start finds in a folder, read through the real store: topics, events with their identity, cursors and names, as the node's
// own entries spell them.

import { join } from "node:path";
import { decodeCursor } from "../../src/actors/cursor.ts";
import { entryKeys, entryValue } from "../../src/actors/entries.ts";
import type { TopicRecord } from "../../src/actors/messages.ts";
import { eventId } from "../../src/protocol/event.ts";
import { streamOf } from "../../src/protocol/stream.ts";
import type { Files } from "../../src/store/log/files.ts";
import { openLogStore } from "../../src/store/log/log-store.ts";
import type { ShardLog } from "../../src/store/log/shard-log.ts";
import type { Damage, Store } from "../../src/store/store.ts";
import { block, commitOf, readAll } from "../support/store-blocks.ts";
import { memoryTable } from "../support/store-files.ts";
import { segmentBytes, shards } from "./power-node.ts";

export interface FoundEvent {
  readonly offset: number;
  readonly id: string;
  readonly payload: string;
  readonly key: string | undefined;
  readonly causedBy: string | undefined;
}

export interface FoundCursor {
  readonly floor: number;
  isSettled(offset: number): boolean;
  /** Attempts that ended, 0 for none. */
  attempts(offset: number): number;
}

export interface FoundPartition {
  readonly start: number;
  readonly end: number;
  readonly events: ReadonlyMap<number, FoundEvent>;
  /** Offsets of events and batches that are remembered by name. */
  readonly names: ReadonlyMap<string, number>;
  readonly cursors: ReadonlyMap<string, FoundCursor>;
}

export interface View {
  /** Of the topics that are live. */
  readonly topics: ReadonlyMap<
    string,
    { readonly record: TopicRecord; readonly partitions: readonly FoundPartition[] }
  >;
  /** In place of a topic that is half deleted nothing is promised. */
  readonly deleting: ReadonlySet<string>;
  readonly epochs: readonly number[];
  readonly damage: readonly Damage[];
  readonly reports: readonly string[];
}

export interface OpenFolder {
  readonly view: View;
  readonly shards: readonly ShardLog[];
  close(): Promise<void>;
}

export const probeStream = streamOf(1_000_000, 0);

export async function openFound(root: string, files: Files, lock?: string): Promise<OpenFolder> {
  const reports: string[] = [];
  const store: Store = openLogStore({
    path: root,
    files,
    segmentBytes,
    openTable: async () => memoryTable(),
    report: (message) => reports.push(message),
    ...(lock === undefined ? {} : { lock }),
  });
  const opened: ShardLog[] = [];
  for (let shard = 0; shard < shards; shard++) opened.push((await store.openShard(shard)) as ShardLog);
  const view = { ...(await viewOf(opened)), reports };
  return { view, shards: opened, close: () => store.close() };
}

async function viewOf(opened: readonly ShardLog[]): Promise<Omit<View, "reports">> {
  const topics = new Map<string, { record: TopicRecord; partitions: FoundPartition[] }>();
  const deleting = new Set<string>();
  for (const [, bytes] of opened[0].entries(entryKeys.topics)) {
    const record = entryValue<TopicRecord>(bytes);
    if (record.status === "deleting") {
      deleting.add(record.name);
      continue;
    }
    const partitions: FoundPartition[] = [];
    for (let partition = 0; partition < record.shards.length; partition++) {
      partitions.push(await partitionOf(opened[record.shards[partition]], streamOf(record.id, partition)));
    }
    topics.set(record.name, { record, partitions });
  }
  return {
    topics,
    deleting,
    epochs: opened.map(({ epoch }) => epoch),
    damage: opened.flatMap((shard) => shard.damage()),
  };
}

async function partitionOf(shard: ShardLog, stream: number): Promise<FoundPartition> {
  const { start = 0, end = 0 } = shard.head(stream) ?? {};
  const events = new Map<number, FoundEvent>();
  for (const block of await readAll(shard, stream, 256 * 1024)) {
    for (let i = 0; i < block.count; i++) {
      const offset = block.firstOffset + i;
      if (offset < start) continue;
      const { key, meta } = block.pack.extension(i);
      const causes = meta === undefined ? undefined : (JSON.parse(meta) as { caused_by?: string[] }).caused_by;
      const payload = Buffer.from(block.pack.payload(i)).toString();
      if (events.has(offset)) throw new Error(`offset ${offset} of stream ${stream} is read twice`);
      events.set(offset, { offset, id: eventId(block, i), payload, key, causedBy: causes?.[0] });
    }
  }
  const names = new Map<string, number>();
  for (const [, bytes] of shard.entries(entryKeys.dedupes(stream))) {
    for (const [name, offset] of entryValue<{ names: [string, number][] }>(bytes).names) names.set(name, offset);
  }
  const cursors = new Map<string, FoundCursor>();
  const prefix = entryKeys.cursors(stream);
  for (const [key, bytes] of shard.entries(prefix)) cursors.set(key.slice(prefix.length), cursorOf(bytes));
  return { start, end, events, names, cursors };
}

function cursorOf(bytes: Uint8Array): FoundCursor {
  const { floor, ranges, attempted } = decodeCursor(bytes, 0);
  const ended = new Map(attempted.map(({ offset, attempts }) => [offset, attempts]));
  return {
    floor,
    isSettled: (offset) => offset < floor || ranges.some(([from, to]) => from <= offset && offset < to),
    attempts: (offset) => ended.get(offset) ?? 0,
  };
}

/** Commits something to each shard and gives how often that was done before. */
export async function probe(opened: OpenFolder): Promise<void> {
  for (const shard of opened.shards) {
    const { end = 0, lastStoredAt = 1 } = shard.head(probeStream) ?? {};
    const events = [`probe ${end}`];
    await shard.commit(
      commitOf({ blocks: [block({ stream: probeStream, first: end, storedAt: lastStoredAt, events })] }),
    );
  }
}

/** What must be wrong with a folder as a whole before any shard is opened. */
export function folderFault(root: string, folder: ReadonlyMap<string, Buffer>): string | undefined {
  const shardFiles = [...folder.keys()].some((path) => path.startsWith(join(root, "shard-")));
  const format = folder.get(join(root, "format.json"));
  if (format === undefined)
    return shardFiles ? "there are shards and no format.json: the node refuses to start" : undefined;
  try {
    const { version, shards: count } = JSON.parse(format.toString()) as { version?: number; shards?: number };
    return version === 1 && count === shards ? undefined : `format.json holds ${format.toString()}`;
  } catch (error) {
    return `format.json: ${String(error)}`;
  }
}
