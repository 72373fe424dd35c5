// The copy of an event that used up its attempts: payload, key, tags and headers as they were, where it came from in headers of
// their own, and the old id in `caused_by`. It gets a new id where it is stored.

import type { BlockView } from "../protocol/block.ts";
import { type EventRecord, eventId } from "../protocol/event.ts";
import { metaText } from "../protocol/meta.ts";
import type { PackEntry } from "../protocol/pack.ts";
import { partitionOf } from "../protocol/stream.ts";

const reasonBytesMax = 1024;
const encoder = new TextEncoder();

export interface Death {
  readonly topic: string;
  readonly group: string;
  readonly attempts: number;
  readonly reason: string;
}

export function deadLetterEntry(block: BlockView, index: number, death: Death): PackEntry {
  const { key, meta } = block.pack.extension(index);
  const id = eventId(block, index);
  // Written by this program (meta.ts) and guarded by the store's checksums.
  const stored = meta === undefined ? {} : (JSON.parse(meta) as Pick<EventRecord, "headers" | "tags">);
  const text = metaText({
    headers: {
      ...stored.headers,
      "x-dlq-topic": death.topic,
      "x-dlq-group": death.group,
      "x-dlq-id": id,
      "x-dlq-partition": String(partitionOf(block.stream)),
      "x-dlq-offset": String(block.firstOffset + index),
      "x-dlq-attempts": String(death.attempts),
      "x-dlq-reason": death.reason,
      "x-dlq-ts": String(block.ts(index)),
    },
    tags: stored.tags,
    caused_by: [id],
  });
  return {
    payload: block.pack.payload(index),
    ...(key === undefined ? {} : { key }),
    ...(text === undefined ? {} : { meta: text }),
  };
}

/** At most so much of a reason is kept, in whole characters. */
export function boundReason(reason: string): string {
  if (reason.length * 3 <= reasonBytesMax) return reason;
  return reason.slice(0, encoder.encodeInto(reason, new Uint8Array(reasonBytesMax)).read);
}
