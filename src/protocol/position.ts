// A position in a topic: for each partition the next offset wanted, written `0:1234,1:88`. A client can build it from the events
// it has (offset + 1), so it is part of the contract and not opaque.

import { offsetMax } from "./ids.ts";
import { parseCount } from "./lease.ts";
import { partitionsMax } from "./stream.ts";

/** Of the longest position there is. */
export const positionCharsMax = partitionsMax * "63:1125899906842623,".length;

/** By partition. Undefined unless it is well formed: decimal numbers, each partition at most once, at least one. */
export function parsePosition(text: string): Map<number, number> | undefined {
  if (text.length > positionCharsMax) return undefined;
  const offsets = new Map<number, number>();
  let from = 0;
  while (from <= text.length) {
    let to = text.indexOf(",", from);
    if (to < 0) to = text.length;
    const colon = text.indexOf(":", from);
    if (colon < 0 || colon > to) return undefined;
    const partition = parseCount(text, from, colon);
    const offset = parseCount(text, colon + 1, to);
    if (partition === undefined || partition >= partitionsMax || offsets.has(partition)) return undefined;
    if (offset === undefined || offset > offsetMax) return undefined;
    offsets.set(partition, offset);
    from = to + 1;
  }
  return offsets;
}

/** From a list by partition, or from some partitions only. */
export function positionText(offsets: readonly number[] | ReadonlyMap<number, number>): string {
  let text = "";
  offsets.forEach((offset: number, partition: number) => {
    text += `${text === "" ? "" : ","}${partition}:${offset}`;
  });
  return text;
}
