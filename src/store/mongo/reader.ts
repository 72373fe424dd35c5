// Blocks, put together from the documents of their events. A block of which a document is missing does not check out: its offsets are
// skipped and reported.

import type { FindCursor } from "mongodb";
import type { BlockView } from "../../protocol/block.ts";
import type { Damage, ReadResult } from "../store.ts";
import { type BlockFields, blockOf, type EventDocument } from "./documents.ts";
import type { Place } from "./queries.ts";

/** Documents that one answer of the server brings, the first one fewer: most reads are short. */
const batchDocuments = 1000;

export interface ReadRange {
  readonly from: number;
  readonly to: number;
  readonly bytesMax: number;
}

export interface ReadAround {
  readonly find: (place: Place, offsets: { from: number; to: number }) => FindCursor<EventDocument>;
  /** What is below may be removed while this is under way. */
  readonly start: () => number;
  readonly damaged: (damage: Omit<Damage, "shard">) => void;
}

export async function readBlocks(
  place: Place,
  head: { readonly start: number; readonly end: number },
  range: ReadRange,
  around: ReadAround,
): Promise<ReadResult> {
  const from = Math.max(range.from, head.start);
  if (from >= head.end || from >= range.to) return { blocks: [], next: range.from };
  const reading = new Reading(place, range, around);
  const cursor = around.find(place, { from, to: head.end }).batchSize(batchDocuments);
  let begun = false;
  try {
    for await (const document of cursor) {
      if (!begun) {
        begun = true;
        // The block that holds `from` may begin before it.
        const first = document.offset - document.nth;
        reading.begin(Math.min(from, first));
        if (document.nth > 0) {
          for await (const earlier of around.find(place, { from: first, to: document.offset })) reading.take(earlier);
        }
      }
      if (reading.take(document) === "enough") return reading.result();
    }
  } finally {
    await cursor.close();
  }
  if (!begun) reading.begin(from);
  reading.giveUp(head.end);
  return reading.result();
}

class Reading {
  private readonly place: Place;
  private readonly range: ReadRange;
  private readonly around: ReadAround;
  private readonly blocks: BlockView[] = [];
  private bytes = 0;
  /** Of the block that is being put together. */
  private documents: EventDocument[] = [];
  private fields: BlockFields | undefined;
  /** Up to here it is known what there is. */
  private next = 0;

  constructor(place: Place, range: ReadRange, around: ReadAround) {
    this.place = place;
    this.range = range;
    this.around = around;
  }

  begin(offset: number): void {
    this.next = offset;
  }

  take(document: EventDocument): "more" | "enough" {
    if (document.block !== undefined) {
      this.giveUp(document.offset);
      const full = this.blocks.length > 0 && this.bytes >= this.range.bytesMax;
      if (full || document.offset >= this.range.to) return "enough";
      this.fields = document.block;
    }
    if (this.fields === undefined || document.nth !== this.documents.length || !isReadable(document)) {
      // Something is missing before it, or it is no event: what is readable begins with the next block.
      this.abandon();
      return "more";
    }
    this.documents.push(document);
    if (this.documents.length < this.fields.count) return "more";
    const block = blockOf(this.documents, this.fields, this.place.stream);
    this.blocks.push(block);
    this.bytes += block.bytes.length;
    this.next = block.endOffset;
    this.abandon();
    return "more";
  }

  result(): ReadResult {
    return { blocks: this.blocks, next: this.next };
  }

  /** Whatever there is between what was read and this offset cannot be read. */
  giveUp(offset: number): void {
    const { stream, topic, partition } = this.place;
    const from = Math.max(this.next, this.around.start());
    if (from < offset) {
      const place = `events of topic ${topic}, partition ${partition}`;
      this.around.damaged({ place, reason: "documents are missing", stream, from, to: offset });
    }
    this.next = Math.max(this.next, offset);
    this.abandon();
  }

  private abandon(): void {
    this.fields = undefined;
    this.documents = [];
  }
}

function isReadable({ payload, text, raw }: EventDocument): boolean {
  return payload !== undefined || text !== undefined || raw !== undefined;
}
