// Packs and blocks for store tests, and what a store gave back in a form that can be compared: events with their identity,
// never counts.

import { BlockView, blockHeaderBytes, writeBlockHeader } from "../../src/protocol/block.ts";
import { encodePack, type PackEntry } from "../../src/protocol/pack.ts";
import type { Commit, Put, ShardStore, Trim } from "../../src/store/store.ts";

const encoder = new TextEncoder();
const decoder = new TextDecoder();

export type EventSpec = string | { payload: string; key?: string; id?: string; ts?: number; meta?: string };

export interface BlockSpec {
  readonly stream: number;
  readonly first: number;
  readonly storedAt?: number;
  readonly salt?: number;
  readonly events: readonly EventSpec[];
}

export function block(spec: BlockSpec): Uint8Array {
  const storedAt = spec.storedAt ?? 1000;
  const entries: PackEntry[] = [];
  let maxTs = 0;
  for (const event of spec.events) {
    const { payload, ...extension } = typeof event === "string" ? { payload: event } : event;
    entries.push({ payload: encoder.encode(JSON.stringify(payload)), ...extension });
    maxTs = Math.max(maxTs, extension.ts ?? storedAt);
  }
  const pack = encodePack(entries);
  const out = new Uint8Array(blockHeaderBytes + pack.length);
  const { stream, first: firstOffset, salt = 7 } = spec;
  writeBlockHeader({ stream, firstOffset, storedAt, maxTs, salt }, out, 0);
  out.set(pack, blockHeaderBytes);
  return out;
}

export function commitOf(parts: { blocks?: Uint8Array[]; puts?: Put[]; trims?: Trim[] }): Commit {
  return { blocks: parts.blocks ?? [], puts: parts.puts ?? [], trims: parts.trims ?? [] };
}

/** Appends events to a stream, wherever it ends. */
export async function append(
  shard: ShardStore,
  stream: number,
  events: readonly EventSpec[],
  storedAt?: number,
): Promise<void> {
  const head = shard.head(stream);
  const at = Math.max(storedAt ?? 1000, head?.lastStoredAt ?? 0);
  await shard.commit(commitOf({ blocks: [block({ stream, first: head?.end ?? 0, storedAt: at, events })] }));
}

export function payloads(blocks: readonly BlockView[]): string[] {
  const found: string[] = [];
  for (const view of blocks) {
    for (let i = 0; i < view.count; i++) {
      found.push(`${view.firstOffset + i}:${JSON.parse(decoder.decode(view.pack.payload(i)))}`);
    }
  }
  return found;
}

/** All blocks of a stream, read in small steps as a reader would. */
export async function readAll(shard: ShardStore, stream: number, bytesMax = 1): Promise<BlockView[]> {
  const blocks: BlockView[] = [];
  for (let from = 0; ; ) {
    const result = await shard.read(stream, { from, to: Number.POSITIVE_INFINITY, bytesMax });
    for (const view of result.blocks) blocks.push(new BlockView(Uint8Array.from(view.bytes)));
    if (result.next === from) return blocks;
    from = result.next;
  }
}

export async function allPayloads(shard: ShardStore, stream: number): Promise<string[]> {
  return payloads(await readAll(shard, stream));
}

/** Everything a shard holds, byte for byte, as text. */
export async function dump(shard: ShardStore): Promise<Record<string, unknown>> {
  const streams: Record<string, unknown> = {};
  for (const stream of [...shard.streams()].sort((a, b) => a - b)) {
    const head = shard.head(stream);
    const blocks = await readAll(shard, stream);
    streams[stream] = {
      start: head?.start,
      end: head?.end,
      blocks: blocks.map((view) => `${view.firstOffset} ${Buffer.from(view.bytes).toString("hex")}`),
    };
  }
  const entries: Record<string, string> = {};
  for (const [key, value] of shard.entries("")) entries[key] = Buffer.from(value).toString("hex");
  return { streams, entries };
}
