// The segments before the one that gives the state. Only their blocks matter: where they lie, from the footer or from a scan.

import { BlockIndex } from "./block-index.ts";
import type { DamageList } from "./damage-list.ts";
import { readFooter } from "./footer.ts";
import { factsOf, readSnapshot, reportBlock, reportStretch, runOf } from "./found.ts";
import type { Mark } from "./mark.ts";
import { isIntact, type ScannedRecord, scanSegment } from "./scan.ts";
import type { Segment } from "./segment.ts";
import { decodeState } from "./snapshot.ts";
import { findUnfinished } from "./unfinished.ts";

export class OlderSegments {
  readonly index = new BlockIndex();
  private readonly lineage: Uint8Array;
  private readonly damage: DamageList;
  private readonly mark: Mark | undefined;

  constructor(lineage: Uint8Array, damage: DamageList, mark: Mark | undefined) {
    this.lineage = lineage;
    this.damage = damage;
    this.mark = mark;
  }

  async read(segment: Segment, all: readonly Segment[]): Promise<void> {
    const footer = await segment.reading((file) => readFooter(file, segment.number, this.lineage));
    if (footer === undefined) return this.scan(segment, await this.endOf(segment, all));
    segment.footed = true;
    segment.rewritten = footer.rewritten;
    segment.full = footer.rewritten ? footer.runs.reduce((sum, run) => sum + run.bytes, 0) : footer.end;
    segment.end = footer.end;
    segment.previous = footer.previous;
    segment.lastSequence = footer.lastSequence;
    segment.lastExtended = footer.extended ? footer.lastSequence : 0;
    for (const run of footer.runs) this.index.add(run);
  }

  /** `end` is where a later snapshot says that the segment ends: all before it was acknowledged. */
  private async scan(segment: Segment, end: number | undefined): Promise<void> {
    let held: ScannedRecord | undefined;
    await segment.reading(async (file) => {
      for await (const item of scanSegment(file, { segment: segment.number, lineage: this.lineage, end })) {
        if (held !== undefined) this.take(segment, held);
        held = undefined;
        if (item.type === "record") held = item;
        else reportStretch(this.damage, segment, item.from, item.to);
      }
    });
    if (held !== undefined && (end !== undefined || isIntact(held))) this.take(segment, held);
    this.index.join(segment.number);
    if (end === undefined) {
      // Nobody knows how it ended. If that tore something off, the gap is reported, and these bytes are all there is to look at.
      if ((await findUnfinished(segment, segment.end, this.lineage)) !== undefined) segment.damaged = true;
      return;
    }
    if (segment.end < end) {
      reportStretch(this.damage, segment, segment.end, end);
      segment.end = end;
    }
  }

  private take(segment: Segment, scanned: ScannedRecord): void {
    const { head } = scanned.record;
    if (scanned.position === 0 && head.kind === "snapshot") {
      segment.previous = decodeState(scanned.record.state()).previous;
    }
    for (const frame of scanned.good) {
      this.index.add(runOf(segment, scanned, frame, factsOf(scanned, frame)));
      if (frame.extended) segment.lastExtended = head.sequence;
    }
    for (const frame of scanned.bad) reportBlock(this.damage, segment, scanned, frame);
    segment.end = scanned.position + head.totalBytes;
    segment.full = segment.end;
    if (!scanned.whole) reportStretch(this.damage, segment, scanned.position, segment.end);
    segment.lastSequence = head.sequence;
  }

  /** Where a segment ends, as a later one says: in its snapshot, or in its footer once it was rewritten. */
  private async endOf(segment: Segment, all: readonly Segment[]): Promise<number | undefined> {
    for (const later of all) {
      if (later.number <= segment.number) continue;
      const snapshot = await readSnapshot(later, this.mark);
      const previous =
        snapshot !== undefined
          ? decodeState(snapshot.record.state()).previous
          : (await later.reading((file) => readFooter(file, later.number, this.lineage)))?.previous;
      if (previous?.segment === segment.number) return previous.end;
    }
    return undefined;
  }
}
