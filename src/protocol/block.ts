// A block is what one commit adds to one stream: a header with the position, and a pack. Stores keep it byte for byte.
//
//   0   f64 stream
//   8   f64 firstOffset
//   16  f64 storedAt     the node's clock when the block was committed; never falls within a stream
//   24  f64 maxTs        the highest ts of its events
//   32  u16 salt         14 random bits, part of every id that the node makes in this block
//   34  u16 zero
//   36  u32 zero
//   40  the pack

import { PackView } from "./pack.ts";

export const blockHeaderBytes = 40;

export interface BlockHeader {
  readonly stream: number;
  readonly firstOffset: number;
  readonly storedAt: number;
  readonly maxTs: number;
  readonly salt: number;
}

export function writeBlockHeader(header: BlockHeader, target: Uint8Array, at: number): void {
  const view = new DataView(target.buffer, target.byteOffset, target.byteLength);
  view.setFloat64(at, header.stream, true);
  view.setFloat64(at + 8, header.firstOffset, true);
  view.setFloat64(at + 16, header.storedAt, true);
  view.setFloat64(at + 24, header.maxTs, true);
  view.setUint16(at + 32, header.salt, true);
  view.setUint16(at + 34, 0, true);
  view.setUint32(at + 36, 0, true);
}

export class BlockView implements BlockHeader {
  readonly bytes: Uint8Array;
  readonly stream: number;
  readonly firstOffset: number;
  readonly storedAt: number;
  readonly maxTs: number;
  readonly salt: number;
  readonly pack: PackView;

  /** `bytes` is exactly one block. */
  constructor(bytes: Uint8Array) {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.bytes = bytes;
    this.stream = view.getFloat64(0, true);
    this.firstOffset = view.getFloat64(8, true);
    this.storedAt = view.getFloat64(16, true);
    this.maxTs = view.getFloat64(24, true);
    this.salt = view.getUint16(32, true);
    this.pack = new PackView(bytes, blockHeaderBytes);
  }

  get count(): number {
    return this.pack.count;
  }

  /** The offset after the last event. */
  get endOffset(): number {
    return this.firstOffset + this.pack.count;
  }

  ts(index: number): number {
    return this.pack.ts(index) ?? this.storedAt;
  }
}
