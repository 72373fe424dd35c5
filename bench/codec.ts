// Encoding and decoding, by whoever does it: frames of a batch client (200 events each), frames of a plain one (one event), and what a worker does
// with packs.

import {
  decodeClientBatch,
  decodeServerBatch,
  encodePublish,
  encodePublished,
  encodeSettle,
  eventsFrameBytes,
  writeEventsFrame,
} from "../src/protocol/batch.ts";
import { BlockView, blockHeaderBytes, writeBlockHeader } from "../src/protocol/block.ts";
import { decodeFrame } from "../src/protocol/decode.ts";
import { okText } from "../src/protocol/encode.ts";
import { eventHead, eventId } from "../src/protocol/event.ts";
import { encodePack, mergedBytes, mergePacks, PackView } from "../src/protocol/pack.ts";
import { payloadFault } from "../src/protocol/payload.ts";
import { type Cost, costSettings, measureCosts } from "./support/cost.ts";
import { payloadBytes, payloadMaker } from "./support/payload.ts";

const set = costSettings("nothing is stored");
const { batch, topic } = set;
const make = payloadMaker(set.payloadBytes);
const limits = { maxPayload: 1_048_576, batchEventsMax: 10_000 };

const payloads = Array.from({ length: batch }, (_, i) => make(i, i));
const pack = encodePack(payloads.map((payload) => ({ payload: payloadBytes(payload) })));
const view = new PackView(pack);
const block = new Uint8Array(blockHeaderBytes + pack.length);
writeBlockHeader({ stream: 64, firstOffset: 0, storedAt: 1, maxTs: 1, salt: 7 }, block, 0);
block.set(pack, blockHeaderBytes);
const stored = new BlockView(block);
const publish = encodePublish({ handle: 1, corr: 1 }, pack);
const runs = [{ index: 0, count: batch, partition: 0, offset: 0, storedAt: 1, salt: 7 }];
const published = encodePublished(1, runs);
const leases = [{ partition: 0, offset: 0, count: batch, epoch: 1, token: 1 }];
const settle = encodeSettle({ handle: 1, corr: 1, verb: "ack", runs: leases });
const header = {
  handle: 1,
  ackDeadlineMs: 30_000,
  partition: 0,
  salt: 7,
  attempt: 1,
  maxAttempts: 5,
  firstOffset: 0,
  storedAt: 1,
  epoch: 1,
  token: 1,
};
const events = new Uint8Array(eventsFrameBytes(view, 0, batch));
writeEventsFrame(header, view, 0, batch, events, 0);
const merging = [view, view];
const merged = new Uint8Array(mergedBytes(merging));
const decoder = new TextDecoder();
const publishText = JSON.stringify({ op: "PUBLISH", corr: 1, topic, payload: payloads[0] });
const ackText = JSON.stringify({ op: "ACK", corr: 1, topic, group: "bench", id: eventId(stored, 0) });

const one: Omit<Cost, "variant" | "part" | "call"> = { events: 1 };
const many: Omit<Cost, "variant" | "part" | "call"> = { events: batch };
await measureCosts("codec", set, [
  {
    ...many,
    variant: "payloads to a PUBLISH batch",
    part: "client",
    call: () => {
      encodePublish(
        { handle: 1, corr: 1 },
        encodePack(payloads.map((payload) => ({ payload: payloadBytes(payload) }))),
      );
    },
  },
  { ...many, variant: "PUBLISH batch, checked", part: "front", call: () => void decodeClientBatch(publish, limits) },
  {
    ...many,
    variant: "payloads checked to be JSON",
    part: "workers",
    call: () => {
      // A view of its own: the sums that it keeps are part of the cost.
      const fresh = new PackView(pack);
      for (let i = 0; i < batch; i++) payloadFault(fresh.payload(i));
    },
  },
  {
    variant: "two packs merged",
    part: "workers",
    events: 2 * batch,
    call: () => mergePacks(merging, merged, 0),
  },
  { ...many, variant: "PUBLISHED, written", part: "workers", call: () => void encodePublished(1, runs) },
  { ...many, variant: "PUBLISHED, read", part: "client", call: () => void decodeServerBatch(published) },
  {
    ...many,
    variant: "EVENTS batch, cut from a block",
    part: "workers",
    call: () => void writeEventsFrame(header, new BlockView(block).pack, 0, batch, events, 0),
  },
  {
    ...many,
    variant: "EVENTS batch to payloads",
    part: "client",
    call: () => {
      const frame = decodeServerBatch(events);
      if (!("pack" in frame)) throw new Error("no EVENTS frame");
      for (let i = 0; i < batch; i++) JSON.parse(decoder.decode(frame.pack.payload(i)));
    },
  },
  {
    ...many,
    variant: "SETTLE, written",
    part: "client",
    call: () => void encodeSettle({ handle: 1, corr: 1, verb: "ack", runs: leases }),
  },
  { ...many, variant: "SETTLE, checked", part: "front", call: () => void decodeClientBatch(settle, limits) },
  { ...one, variant: "PUBLISH as JSON, checked", part: "front", call: () => void decodeFrame(publishText, limits) },
  {
    ...one,
    variant: "OK to it",
    part: "front",
    call: () =>
      void okText<"PUBLISH">(1, { id: eventId(stored, 0), ts: 1, partition: 0, offset: 0, durability: "fsync" }),
  },
  { ...one, variant: "head of an EVENT as JSON", part: "workers", call: () => void eventHead(stored, 0, topic) },
  { ...one, variant: "ACK as JSON, checked", part: "front", call: () => void decodeFrame(ackText, limits) },
]);
