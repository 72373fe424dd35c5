// The newest blocks of a shard as they were committed. A group that keeps up is served from here, in the turn of the commit and
// without the store. What is kept of one stream is always its end, without a gap: blocks come in order and leave oldest first.

import type { BlockView } from "../protocol/block.ts";
import { readBlocks } from "../store/block-list.ts";
import type { ReadResult } from "../store/store.ts";

/** Small blocks cost more than their bytes; past this, dropping the first of an array is no longer cheap. */
const blocksMax = 8192;

export class Tail {
  private readonly bytesMax: number;
  private bytes = 0;
  private readonly streams = new Map<number, BlockView[]>();
  /** Over all streams, oldest first; those before `oldest` are gone. */
  private order: (BlockView | undefined)[] = [];
  private oldest = 0;

  constructor(bytesMax: number) {
    this.bytesMax = bytesMax;
  }

  add(block: BlockView): void {
    const blocks = this.streams.get(block.stream);
    if (blocks === undefined) this.streams.set(block.stream, [block]);
    else blocks.push(block);
    this.order.push(block);
    this.bytes += block.bytes.length;
    while (this.bytes > this.bytesMax || this.order.length - this.oldest > blocksMax) this.evict();
  }

  /** The stream now starts here; null: it has ended. Blocks in the order list go when their turn comes. */
  trim(stream: number, start: number | null): void {
    const blocks = this.streams.get(stream);
    if (blocks === undefined) return;
    let gone = start === null ? blocks.length : 0;
    while (gone < blocks.length && blocks[gone].endOffset <= start!) gone++;
    if (gone === blocks.length) this.streams.delete(stream);
    else blocks.splice(0, gone);
  }

  /**
   * As the store would read it; undefined when the range begins before what is kept, or behind it: the store knows of a commit a moment
   * before it is told here.
   */
  read(stream: number, range: { from: number; to: number; bytesMax: number }): ReadResult | undefined {
    const blocks = this.streams.get(stream);
    if (blocks === undefined || range.from < blocks[0].firstOffset) return undefined;
    if (range.from >= blocks[blocks.length - 1].endOffset) return undefined;
    return readBlocks(blocks, range);
  }

  private evict(): void {
    const block = this.order[this.oldest]!;
    this.order[this.oldest++] = undefined;
    this.bytes -= block.bytes.length;
    const blocks = this.streams.get(block.stream);
    // A trimmed block has left its stream before.
    if (blocks?.[0] === block) {
      if (blocks.length === 1) this.streams.delete(block.stream);
      else blocks.shift();
    }
    if (this.oldest > 1024 && this.oldest * 2 > this.order.length) {
      this.order = this.order.slice(this.oldest);
      this.oldest = 0;
    }
  }
}
