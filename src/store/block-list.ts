// Reading from blocks in memory, in the way every store reads.

import type { BlockView } from "../protocol/block.ts";
import type { ReadResult } from "./store.ts";

/** `blocks` in the order of their offsets. Whole blocks from the one that holds `from` on, at least one where there is one. */
export function readBlocks(
  blocks: readonly BlockView[],
  range: { readonly from: number; readonly to: number; readonly bytesMax: number },
): ReadResult {
  const found: BlockView[] = [];
  let bytes = 0;
  for (let at = firstEndingAfter(blocks, range.from); at < blocks.length; at++) {
    const block = blocks[at];
    if (block.firstOffset >= range.to || (found.length > 0 && bytes >= range.bytesMax)) break;
    found.push(block);
    bytes += block.bytes.length;
  }
  return { blocks: found, next: found.at(-1)?.endOffset ?? range.from };
}

function firstEndingAfter(blocks: readonly BlockView[], offset: number): number {
  let low = 0;
  let high = blocks.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (blocks[middle].endOffset <= offset) low = middle + 1;
    else high = middle;
  }
  return low;
}
