// The store for tests, benches and throw-away use: nothing outlives the thread that made it. A shard that is closed and opened
// again from the same Store keeps what it held; a worker thread that dies takes its Store with it.

import { BlockView } from "../protocol/block.ts";
import { readBlocks } from "./block-list.ts";
import { compareKeys } from "./key-order.ts";
import { ShardState } from "./shard-state.ts";
import {
  type Commit,
  type Damage,
  type LatestEntry,
  type ReadResult,
  type ShardStore,
  type Store,
  StoreError,
  type StreamHead,
} from "./store.ts";

interface MemoryStream {
  /** Of those that are not trimmed away, in order. */
  readonly blocks: BlockView[];
  readonly ids: Map<string, number>;
  readonly latest: Map<string, number>;
}

/** What stays when a shard is closed. */
class MemoryShard {
  readonly state = new ShardState();
  readonly streams = new Map<number, MemoryStream>();
  epoch = 0;
}

export function openMemoryStore(): Store {
  const shards = new Map<number, MemoryShard>();
  return {
    kind: "memory",
    async openShard(shard) {
      const kept = shards.get(shard) ?? new MemoryShard();
      shards.set(shard, kept);
      kept.epoch++;
      return new MemoryShardStore(shard, kept);
    },
    async close() {},
  };
}

class MemoryShardStore implements ShardStore {
  readonly shard: number;
  readonly epoch: number;
  readonly durability = "memory";
  private readonly kept: MemoryShard;
  private committing = false;
  private closed = false;

  constructor(shard: number, kept: MemoryShard) {
    this.shard = shard;
    this.epoch = kept.epoch;
    this.kept = kept;
  }

  head(stream: number): StreamHead | undefined {
    const head = this.kept.state.heads.get(stream);
    return head && { ...head };
  }

  streams(): IterableIterator<number> {
    return this.kept.state.heads.keys();
  }

  entry(key: string): Uint8Array | undefined {
    return this.kept.state.entries.get(key);
  }

  entries(prefix: string): IterableIterator<readonly [string, Uint8Array]> {
    return this.kept.state.entries.withPrefix(prefix);
  }

  damage(): readonly Damage[] {
    return [];
  }

  async commit(commit: Commit): Promise<void> {
    if (this.committing) throw new Error(`shard ${this.shard}: a second commit while one is in flight`);
    this.committing = true;
    try {
      // A commit is never done within the call: callers must not come to rely on it.
      await Promise.resolve();
      this.apply(commit);
    } finally {
      this.committing = false;
    }
  }

  private apply(commit: Commit): void {
    if (this.closed) throw new StoreError("broken", "ESTALE", `shard ${this.shard} is closed`);
    // An older incarnation of the shard is fenced off, as in every store.
    if (this.epoch !== this.kept.epoch) {
      throw new StoreError("broken", "EFENCED", `shard ${this.shard} was opened again, this is epoch ${this.epoch}`);
    }
    const checked = this.kept.state.check(commit);
    if (typeof checked === "string") throw new StoreError("refused", "EINVAL", checked);
    for (const bytes of commit.blocks) this.keep(new BlockView(Uint8Array.from(bytes)));
    this.kept.state.apply(commit, checked, (stream, start) => this.drop(stream, start));
  }

  private keep(block: BlockView): void {
    let stream = this.kept.streams.get(block.stream);
    if (stream === undefined) {
      stream = { blocks: [], ids: new Map(), latest: new Map() };
      this.kept.streams.set(block.stream, stream);
    }
    stream.blocks.push(block);
    if (!block.pack.extended) return;
    for (let i = 0; i < block.count; i++) {
      const { id, key } = block.pack.extension(i);
      if (id !== undefined) stream.ids.set(id, block.firstOffset + i);
      if (key !== undefined) stream.latest.set(key, block.firstOffset + i);
    }
  }

  private drop(number: number, start: number | null): number {
    const stream = this.kept.streams.get(number);
    if (stream === undefined) return 0;
    if (start === null) {
      this.kept.streams.delete(number);
      return 0;
    }
    let dropped = 0;
    let bytes = 0;
    while (dropped < stream.blocks.length && stream.blocks[dropped].endOffset <= start) {
      bytes += stream.blocks[dropped++].bytes.length;
    }
    stream.blocks.splice(0, dropped);
    for (const table of [stream.ids, stream.latest]) {
      for (const [name, offset] of table) if (offset < start) table.delete(name);
    }
    return bytes;
  }

  async read(number: number, range: { from: number; to: number; bytesMax: number }): Promise<ReadResult> {
    return readBlocks(this.kept.streams.get(number)?.blocks ?? [], range);
  }

  async findTs(number: number, ts: number): Promise<number> {
    const head = this.kept.state.heads.get(number);
    if (head === undefined) return 0;
    for (const block of this.kept.streams.get(number)?.blocks ?? []) {
      if (block.maxTs < ts) continue;
      for (let i = Math.max(0, head.start - block.firstOffset); i < block.count; i++) {
        if (block.ts(i) >= ts) return block.firstOffset + i;
      }
    }
    return head.end;
  }

  async findId(number: number, id: string): Promise<number | undefined> {
    return this.kept.streams.get(number)?.ids.get(id);
  }

  async latest(
    number: number,
    query: { keys: readonly string[] } | { after: string; limit: number },
  ): Promise<readonly LatestEntry[]> {
    const table = this.kept.streams.get(number)?.latest ?? new Map<string, number>();
    const entries: LatestEntry[] = [];
    if ("keys" in query) {
      for (const key of query.keys) {
        const offset = table.get(key);
        if (offset !== undefined) entries.push({ key, offset });
      }
      return entries;
    }
    for (const [key, offset] of table) if (compareKeys(key, query.after) > 0) entries.push({ key, offset });
    return entries.sort((a, b) => compareKeys(a.key, b.key)).slice(0, query.limit);
  }

  pruneTo(number: number, policy: { storedBefore?: number; bytesMax?: number }): number {
    const head = this.kept.state.heads.get(number);
    if (head === undefined) return 0;
    let start = head.start;
    let bytes = head.bytes;
    for (const block of this.kept.streams.get(number)?.blocks ?? []) {
      const old = policy.storedBefore !== undefined && block.storedAt < policy.storedBefore;
      const over = policy.bytesMax !== undefined && bytes > policy.bytesMax;
      if (!old && !over) break;
      start = block.endOffset;
      bytes -= block.bytes.length;
    }
    return start;
  }

  async close(): Promise<void> {
    while (this.committing) await Promise.resolve();
    this.closed = true;
  }
}
