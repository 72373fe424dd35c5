// Where in a shard's file which bytes lie: so that each kind of place is spoiled, however few bytes it has.

import { frameBytes, headerBytes, RecordView, readHead } from "../../src/store/log/record.ts";
import { segmentNumber } from "../../src/store/log/segment.ts";

export interface Place {
  readonly what: string;
  readonly from: number;
  readonly to: number;
}

const headFields: readonly (readonly [string, number, number])[] = [
  ["magic", 0, 4],
  ["crc", 4, 8],
  ["lineage", 8, 16],
  ["segment", 16, 24],
  ["epoch", 24, 32],
  ["sequence", 32, 40],
  ["head length", 40, 44],
  ["length", 44, 48],
  ["kind", 48, 52],
  ["section lengths", 52, 80],
];

const frameFields: readonly (readonly [string, number, number])[] = [
  ["frame crc", 0, 4],
  ["block crc", 4, 8],
  ["block length", 8, 12],
  ["blocks left", 12, 16],
  ["stream", 16, 24],
  ["first offset", 24, 32],
  ["count", 32, 36],
  ["flags", 36, 40],
];

/** Of a segment: record by record, then what follows the last one. Of any other file: all of it. */
export function placesOf(name: string, bytes: Buffer): { readonly places: Place[]; readonly records: Place[] } {
  const number = segmentNumber(name);
  const places: Place[] = [];
  const records: Place[] = [];
  let at = 0;
  while (number !== undefined && at + headerBytes <= bytes.length) {
    const head = readHead(bytes.subarray(at), 0, undefined);
    if (head === undefined || typeof head === "number" || head.segment !== number) break;
    const end = at + head.totalBytes;
    const kind = records.length === 0 ? "first record" : "record";
    records.push({ what: kind, from: at, to: end });
    for (const [what, from, to] of headFields) places.push({ what: `${kind}: ${what}`, from: at + from, to: at + to });
    if (head.headBytes > headerBytes) {
      places.push({ what: `${kind}: state and entries`, from: at + headerBytes, to: at + head.headBytes });
    }
    const record = new RecordView(bytes.subarray(at, end), head);
    let last = at + head.headBytes;
    for (const { blockAt, blockBytes } of record.frames().frames) {
      const frameAt = at + blockAt - frameBytes;
      for (const [what, from, to] of frameFields) places.push({ what, from: frameAt + from, to: frameAt + to });
      places.push({ what: "block header", from: at + blockAt, to: at + blockAt + 40 });
      last = at + blockAt + blockBytes;
      places.push({ what: "events", from: at + blockAt + 40, to: last });
    }
    if (last < end) places.push({ what: "padding", from: last, to: end });
    at = end;
  }
  const lastRecord = records.at(-1);
  if (lastRecord !== undefined) {
    for (const place of places) {
      if (place.from >= lastRecord.from) places[places.indexOf(place)] = { ...place, what: `last ${place.what}` };
    }
  }
  const rest = number === undefined ? "all" : hasFooter(bytes) ? "footer" : "unused";
  if (at < bytes.length) places.push({ what: rest, from: at, to: bytes.length });
  return { places, records };
}

function hasFooter(bytes: Buffer): boolean {
  return bytes.length >= 8 && bytes.readUInt32LE(bytes.length - 8) === 0x3146584e;
}
