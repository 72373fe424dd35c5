// Visits the blocks that have keys or ids of the publisher's own, in order of commit: what the derived index is made of. It
// remembers how far it came in the newest segment, so that asking often costs only what was committed since.

import { BlockView } from "../../protocol/block.ts";
import { scanSegment } from "./scan.ts";
import type { Segment } from "./segment.ts";

export class ExtendedScan {
  private readonly segments: ReadonlyMap<number, Segment>;
  private readonly lineage: Uint8Array;
  private place = { segment: 0, position: 0, sequence: -1 };

  constructor(segments: ReadonlyMap<number, Segment>, lineage: Uint8Array) {
    this.segments = segments;
    this.lineage = lineage;
  }

  /** Whether there is such a block in a commit after this one. */
  hasAfter(sequence: number): boolean {
    for (const segment of this.segments.values()) if (segment.lastExtended > sequence) return true;
    return false;
  }

  /** What does not check out is passed over: reads report it. */
  async visitAfter(sequence: number, visit: (block: BlockView) => void): Promise<void> {
    const ordered = [...this.segments.values()].sort((a, b) => a.number - b.number);
    for (const segment of ordered)
      if (segment.lastExtended > sequence) await this.visitSegment(segment, sequence, visit);
  }

  private async visitSegment(segment: Segment, after: number, visit: (block: BlockView) => void): Promise<void> {
    const { number, end, lastSequence } = segment;
    const known = this.place.segment === number && this.place.sequence <= after && !segment.rewritten;
    const from = known ? this.place.position : 0;
    await segment.reading(async (file) => {
      for await (const item of scanSegment(file, { segment: number, lineage: this.lineage, from, end })) {
        if (item.type === "bad" || item.record.head.sequence <= after) continue;
        for (const frame of item.good) if (frame.extended) visit(new BlockView(item.record.block(frame)));
      }
    });
    this.place = { segment: number, position: end, sequence: lastSequence };
  }
}
