// What recovery makes of a record that a scan found: where its blocks lie, and what to report of those that do not check out.

import { basename } from "node:path";
import { type BlockFacts, blockFacts } from "../block-facts.ts";
import { blockRun, type Run } from "./block-index.ts";
import type { DamageList } from "./damage-list.ts";
import type { Mark } from "./mark.ts";
import { type Frame, frameBytes } from "./record.ts";
import { isIntact, type ScannedRecord, scanSegment } from "./scan.ts";
import type { Segment } from "./segment.ts";

/**
 * The snapshot a segment begins with, unless it is an unfinished write. Another shard's, put there by mistake, is none. The mark vouches
 * for no later segment than its own: a start commits the newest record once more under its old number, and may be cut off in that.
 */
export async function readSnapshot(segment: Segment, mark: Mark | undefined): Promise<ScannedRecord | undefined> {
  const { segment: marked = 0, sequence = 0 } = mark ?? {};
  return segment.reading(async (file) => {
    let first: ScannedRecord | undefined;
    for await (const item of scanSegment(file, { segment: segment.number, lineage: mark?.lineage })) {
      if (first !== undefined) return first;
      if (item.type === "bad" || item.record.head.kind !== "snapshot") return undefined;
      if (isIntact(item) || (segment.number <= marked && item.record.head.sequence <= sequence)) return item;
      first = item;
    }
    return undefined;
  });
}

export function runOf(segment: Segment, scanned: ScannedRecord, frame: Frame, facts: BlockFacts): Run {
  return blockRun(segment.number, scanned.position + frame.blockAt - frameBytes, facts);
}

function placeOf(segment: Segment, from: number, to: number): string {
  return `${basename(segment.path)} ${from}..${to}`;
}

export function factsOf(scanned: ScannedRecord, frame: Frame): BlockFacts {
  const facts = blockFacts(scanned.record.block(frame));
  if (facts === undefined) throw new Error("a block that checks out and is none: the writer is broken");
  return facts;
}

export function reportBlock(damage: DamageList, segment: Segment, scanned: ScannedRecord, frame: Frame): void {
  const at = scanned.position + frame.blockAt;
  segment.damaged = true;
  damage.add({
    place: placeOf(segment, at, at + frame.blockBytes),
    reason: "the block does not match its checksum",
    stream: frame.stream,
    from: frame.firstOffset,
    to: frame.firstOffset + frame.count,
  });
}

const stretchReason = "no readable record, though one follows";

export function reportStretch(
  damage: DamageList,
  segment: Segment,
  from: number,
  to: number,
  reason: string = stretchReason,
): void {
  segment.damaged = true;
  damage.add({ place: placeOf(segment, from, to), reason });
}
