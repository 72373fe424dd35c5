// The memory store behind gates: a test decides when a commit or a read ends, and how.

import { openMemoryStore } from "../../src/store/memory.ts";
import { type Commit, type ReadResult, type ShardStore, type Store, StoreError } from "../../src/store/store.ts";

interface Gate {
  open(): Promise<void>;
  fail(error: Error): void;
}

export interface GatedCommit extends Gate {
  readonly commit: Commit;
}

export class GatedStore implements Store {
  readonly kind = "memory";
  readonly commits: Commit[] = [];
  /** Commits and reads that wait for the test, oldest first. */
  readonly waiting: GatedCommit[] = [];
  readonly waitingReads: Gate[] = [];
  gateCommits = false;
  gateReads = false;
  /** Opening rejects with each of these in turn before it works. */
  openErrors: Error[] = [];
  opened = 0;
  closed = 0;
  ended = false;
  private readonly inner = openMemoryStore();
  private readonly shards = new Map<number, ShardStore>();

  async openShard(shard: number): Promise<ShardStore> {
    const error = this.openErrors.shift();
    if (error !== undefined) throw error;
    this.opened++;
    return this.guard(await this.inner.openShard(shard));
  }

  async close(): Promise<void> {
    this.ended = true;
  }

  /** Lets the oldest waiting commit through. */
  async release(): Promise<void> {
    await this.waiting.shift()!.open();
  }

  refuseNext(code = "ENOSPC"): void {
    this.waiting.shift()!.fail(new StoreError("refused", code, "no space left on the device"));
  }

  breakNext(): void {
    this.waiting.shift()!.fail(new StoreError("broken", "EIO", "the disk has gone"));
  }

  /** What is stored: each stream and its end, and the names of the small state. */
  streamsOf(shard: number): [stream: number, end: number][] {
    const store = this.shards.get(shard)!;
    return [...store.streams()].map((stream) => [stream, store.head(stream)!.end]);
  }

  keysOf(shard: number): string[] {
    return [...this.shards.get(shard)!.entries("")].map(([key]) => key);
  }

  private guard(inner: ShardStore): ShardStore {
    this.shards.set(inner.shard, inner);
    return {
      shard: inner.shard,
      epoch: inner.epoch,
      durability: inner.durability,
      head: (stream) => inner.head(stream),
      streams: () => inner.streams(),
      entry: (key) => inner.entry(key),
      entries: (prefix) => inner.entries(prefix),
      damage: () => inner.damage(),
      commit: (commit) => {
        this.commits.push(commit);
        if (!this.gateCommits) return inner.commit(commit);
        return new Promise((resolve, reject) => {
          this.waiting.push({
            commit,
            open: () => inner.commit(commit).then(resolve, reject),
            fail: reject,
          });
        });
      },
      read: (stream, range) => {
        if (!this.gateReads) return inner.read(stream, range);
        return new Promise<ReadResult>((resolve, reject) => {
          this.waitingReads.push({ open: () => inner.read(stream, range).then(resolve, reject), fail: reject });
        });
      },
      findTs: (stream, ts) => inner.findTs(stream, ts),
      findId: (stream, id) => inner.findId(stream, id),
      latest: (stream, query) => inner.latest(stream, query),
      pruneTo: (stream, policy) => inner.pruneTo(stream, policy),
      close: async () => {
        this.closed++;
        await inner.close();
      },
    };
  }
}
