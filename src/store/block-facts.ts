// What a store needs to know of a block, read without making views of its events.

import { blockHeaderBytes } from "../protocol/block.ts";
import { packFlagExtensions, packHeaderBytes } from "../protocol/pack.ts";

export interface BlockFacts {
  readonly stream: number;
  readonly firstOffset: number;
  readonly count: number;
  readonly storedAt: number;
  readonly maxTs: number;
  /** Some of its events have a key, an id or a ts of their own. */
  readonly extended: boolean;
  readonly bytes: number;
}

/** The facts of a block, or nothing when the bytes are not exactly one block with at least one event. */
export function blockFacts(block: Uint8Array): BlockFacts | undefined {
  if (block.length < blockHeaderBytes + packHeaderBytes) return undefined;
  const view = new DataView(block.buffer, block.byteOffset, block.byteLength);
  const count = view.getUint32(blockHeaderBytes, true);
  const extended = (view.getUint32(blockHeaderBytes + 4, true) & packFlagExtensions) !== 0;
  const body = view.getUint32(blockHeaderBytes + 8, true) + view.getUint32(blockHeaderBytes + 12, true);
  const bytes = blockHeaderBytes + packHeaderBytes + (extended ? 8 : 4) * count + body;
  if (count === 0 || bytes !== block.length) return undefined;
  return {
    stream: view.getFloat64(0, true),
    firstOffset: view.getFloat64(8, true),
    count,
    storedAt: view.getFloat64(16, true),
    maxTs: view.getFloat64(24, true),
    extended,
    bytes,
  };
}
