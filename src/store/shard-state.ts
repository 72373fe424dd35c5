// The small state of a shard: where each stream begins and ends, and the named entries. Memory and log keep it the same way,
// and the log writes it at the beginning of each segment.

import { type BlockFacts, blockFacts } from "./block-facts.ts";
import { EntryTable } from "./entry-table.ts";
import type { Commit } from "./store.ts";

export interface Head {
  start: number;
  end: number;
  lastStoredAt: number;
  bytes: number;
}

export class ShardState {
  readonly heads = new Map<number, Head>();
  readonly entries = new EntryTable();

  /** The facts of each block of a commit that fits here, or what is wrong with it. */
  check(commit: Commit): readonly BlockFacts[] | string {
    const facts: BlockFacts[] = [];
    const streams = new Set<number>();
    for (const bytes of commit.blocks) {
      const block = blockFacts(bytes);
      if (block === undefined) return "a block whose lengths do not add up";
      const head = this.heads.get(block.stream);
      const end = head?.end ?? 0;
      if (block.firstOffset !== end) {
        return `a block of stream ${block.stream} begins at ${block.firstOffset}, the stream ends at ${end}`;
      }
      if (head !== undefined && block.storedAt < head.lastStoredAt) {
        return `storedAt of stream ${block.stream} steps back`;
      }
      if (streams.has(block.stream)) return `two blocks of stream ${block.stream}`;
      streams.add(block.stream);
      facts.push(block);
    }
    return facts;
  }

  /** `dropped` removes the blocks of a stream that end at or before `start` (all of them without it) and gives their bytes. */
  apply(
    commit: Pick<Commit, "puts" | "trims">,
    blocks: readonly BlockFacts[],
    dropped: (stream: number, start: number | null) => number,
  ): void {
    for (const block of blocks) this.append(block);
    for (const [key, value] of commit.puts) this.entries.put(key, value);
    for (const [stream, wanted] of commit.trims) {
      const head = this.heads.get(stream);
      if (head === undefined) continue;
      if (wanted === null) {
        this.heads.delete(stream);
        dropped(stream, null);
        continue;
      }
      const start = Math.min(wanted, head.end);
      if (start <= head.start) continue;
      head.start = start;
      head.bytes = Math.max(0, head.bytes - dropped(stream, start));
    }
  }

  private append(block: BlockFacts): void {
    const head = this.heads.get(block.stream);
    const end = block.firstOffset + block.count;
    if (head === undefined) {
      this.heads.set(block.stream, { start: 0, end, lastStoredAt: block.storedAt, bytes: block.bytes });
      return;
    }
    head.end = end;
    head.lastStoredAt = block.storedAt;
    head.bytes += block.bytes;
  }
}
