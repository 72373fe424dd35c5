// The binary frames: what is written is read back; cut at any byte, changed in any byte or filled with chance, a frame is either refused
// with a code that PROTOCOL.md names for it, or means exactly what its bytes say. No read goes beyond the frame.

import fc from "fast-check";
import { test } from "uvu";
import * as assert from "uvu/assert";
import {
  type ClientBatch,
  decodeClientBatch,
  decodeServerBatch,
  encodePublish,
  encodePublished,
  encodeSettle,
  eventsFrameBytes,
  eventsHeaderBytes,
  type ServerBatch,
  writeEventsFrame,
} from "../../src/protocol/batch.ts";
import { type Failure, isFailure } from "../../src/protocol/failure.ts";
import { encodePack, type PackReader, PackView, packHeaderBytes } from "../../src/protocol/pack.ts";
import {
  eventsHeaders,
  packs,
  publishedSpans,
  publishHeaders,
  settles,
  spoiled,
  surrounded,
  withoutUndefined,
} from "../support/frames.ts";
import { runs } from "../support/properties.ts";
import { hexOf } from "./bytes.ts";

const limits = { maxPayload: 300, batchEventsMax: 40 };

/** With a producer all events bring an id or none does. */
const publishes = fc
  .tuple(publishHeaders, packs())
  .filter(([{ batch }, events]) => batch === undefined || new Set(events.map(({ id }) => id === undefined)).size === 1);

const clientFrames = fc.oneof(
  publishes.map(([header, events]) => encodePublish(header, encodePack(events))),
  settles(limits.batchEventsMax).map(encodeSettle),
);

const serverFrames = fc.oneof(
  fc.tuple(fc.nat(), publishedSpans).map(([corr, spans]) => encodePublished(corr, spans)),
  fc.tuple(eventsHeaders, packs()).map(([header, events]) => {
    const pack = new PackView(encodePack(events));
    const frame = new Uint8Array(eventsFrameBytes(pack, 0, pack.count));
    writeEventsFrame(header, pack, 0, pack.count, frame, 0);
    return frame;
  }),
);

function entriesOf(pack: PackReader) {
  return Array.from({ length: pack.count }, (_, i) =>
    withoutUndefined({ payload: hexOf(pack.payload(i)), ...pack.extension(i) }),
  );
}

function sameEntries(pack: PackReader, events: readonly { readonly payload: Uint8Array }[]): void {
  assert.equal(
    entriesOf(pack),
    events.map((event) => ({ ...event, payload: hexOf(event.payload) })),
  );
}

test("PUBLISH and SETTLE are read as they were written", () => {
  fc.assert(
    fc.property(publishes, ([header, events]) => {
      const frame = decodeClientBatch(encodePublish(header, encodePack(events)), limits);
      if (isFailure(frame) || frame.op !== "PUBLISH") throw new Error(JSON.stringify(frame));
      const { op, pack, ...read } = frame;
      assert.equal([op, read], ["PUBLISH", header]);
      sameEntries(pack, events);
    }),
    runs(150),
  );
  fc.assert(
    fc.property(settles(limits.batchEventsMax), (settle) => {
      assert.equal(decodeClientBatch(encodeSettle(settle), limits), { op: "SETTLE", ...settle });
    }),
    runs(150),
  );
});

test("PUBLISHED is read as it was written", () => {
  fc.assert(
    fc.property(fc.nat(), publishedSpans, (corr, spans) => {
      const runsRead = spans.map(({ duplicate, failure, ...span }) => ({
        ...span,
        storedAt: duplicate?.ts ?? span.storedAt,
        status: failure?.code ?? (duplicate === undefined ? "stored" : "duplicate"),
        retryAfterMs: failure?.retry_after_ms ?? 0,
      }));
      assert.equal(decodeServerBatch(encodePublished(corr, spans)), { op: "PUBLISHED", corr, runs: runsRead });
    }),
    runs(150),
  );
});

test("EVENTS of any part of a pack are read as they were written, and written nowhere else", () => {
  fc.assert(
    fc.property(eventsHeaders, packs(), fc.nat(), fc.nat(), fc.nat(9), (header, events, a, b, before) => {
      const pack = new PackView(encodePack(events));
      const from = a % events.length;
      const to = from + 1 + (b % (events.length - from));
      const size = eventsFrameBytes(pack, from, to);
      const room = new Uint8Array(before + size + 9).fill(0xaa);
      assert.is(writeEventsFrame(header, pack, from, to, room, before), size);
      assert.ok([...room.subarray(0, before), ...room.subarray(before + size)].every((byte) => byte === 0xaa));
      const frame = decodeServerBatch(room.subarray(before, before + size));
      if (isFailure(frame) || frame.op !== "EVENTS") throw new Error(JSON.stringify(frame));
      const { op, pack: read, ...readHeader } = frame;
      assert.equal([op, readHeader], ["EVENTS", header]);
      sameEntries(read, events.slice(from, to));
    }),
    runs(150),
  );
});

/** A frame that was accepted, as bytes. */
function clientBytes(frame: ClientBatch): Uint8Array {
  if (frame.op === "SETTLE") return encodeSettle(frame);
  const { bytes, at, byteLength } = frame.pack;
  return encodePublish(frame, bytes.subarray(at, at + byteLength));
}

/** Everything that it says. */
function allOf(outcome: ClientBatch | ServerBatch | Failure): string {
  if (isFailure(outcome) || !("pack" in outcome)) return JSON.stringify(outcome);
  const { pack, ...rest } = outcome;
  return JSON.stringify([rest, entriesOf(pack)]);
}

/** What may be said of a frame that is broken, by PROTOCOL.md. */
const refusals = new Set(["bad_frame", "too_large", "bad_option"]);

function checkClient(bytes: Uint8Array): boolean {
  const outcome = decodeClientBatch(surrounded(bytes, 0x00), limits);
  assert.is(allOf(decodeClientBatch(surrounded(bytes, 0xff), limits)), allOf(outcome), "bytes beyond the frame count");
  if (isFailure(outcome)) {
    assert.ok(refusals.has(outcome.code), outcome.code);
    return false;
  }
  assert.is(hexOf(clientBytes(outcome)), hexOf(bytes), "it means something else than it says");
  return true;
}

function checkServer(bytes: Uint8Array): boolean {
  const outcome = decodeServerBatch(surrounded(bytes, 0x00));
  assert.is(allOf(decodeServerBatch(surrounded(bytes, 0xff))), allOf(outcome), "bytes beyond the frame count");
  if (isFailure(outcome)) {
    assert.is(outcome.code, "bad_frame");
    return false;
  }
  if (outcome.op === "PUBLISHED") return true;
  const { pack } = outcome;
  let end = pack.payloadsAt;
  for (let i = 0; i < pack.count; i++) {
    const payload = pack.payload(i);
    assert.is(payload.length, pack.payloadLength(i), `payload ${i}`);
    assert.is(payload.byteOffset - pack.bytes.byteOffset, end, `payload ${i} does not stand behind the one before`);
    end += payload.length;
  }
  assert.is(end, pack.payloadsAt + pack.payloadBytes);
  return true;
}

test("a frame cut at any byte is refused", () => {
  fc.assert(
    fc.property(clientFrames, (bytes) => {
      assert.ok(checkClient(bytes));
      for (let length = 0; length < bytes.length; length++)
        assert.not(checkClient(bytes.subarray(0, length)), `${length}`);
    }),
    runs(10),
  );
  fc.assert(
    fc.property(serverFrames, (bytes) => {
      assert.ok(checkServer(bytes));
      for (let length = 0; length < bytes.length; length++)
        assert.not(checkServer(bytes.subarray(0, length)), `${length}`);
    }),
    runs(10),
  );
});

test("a frame with any one byte changed is refused or means exactly what it says", () => {
  const values = [0, 1, 2, 4, 8, 0x7f, 0x80, 0xff];
  const each = (bytes: Uint8Array, check: (bytes: Uint8Array) => boolean, by: number) => {
    for (let at = 0; at < bytes.length; at++) {
      for (const value of [...values, bytes[at] ^ by, bytes[at] + 1]) {
        const changed = bytes.slice();
        changed[at] = value;
        check(changed);
      }
    }
  };
  fc.assert(
    fc.property(clientFrames, fc.nat(255), (bytes, by) => each(bytes, checkClient, by)),
    runs(3),
  );
  fc.assert(
    fc.property(serverFrames, fc.nat(255), (bytes, by) => each(bytes, checkServer, by)),
    runs(3),
  );
});

test("EVENTS in whose tables lengths were moved are refused, or each payload stands where it should", () => {
  // Also by so much that a length falls below zero, which makes it one of nearly 2^32.
  const moved = fc.tuple(eventsHeaders, packs(3), fc.nat(), fc.nat(), fc.oneof(fc.nat(30), fc.nat(0xffffffff)));
  fc.assert(
    fc.property(moved, fc.boolean(), fc.nat(20), ([header, events, up, down, by], both, last) => {
      const pack = new PackView(encodePack(events));
      const frame = new Uint8Array(eventsFrameBytes(pack, 0, pack.count));
      writeEventsFrame(header, pack, 0, pack.count, frame, 0);
      const view = new DataView(frame.buffer);
      const lengths = (pack.extended ? 2 : 1) * pack.count;
      for (const [entry, change] of [
        [up % lengths, by],
        [down % lengths, both ? -by : 0],
      ]) {
        const at = eventsHeaderBytes + packHeaderBytes + 4 * entry;
        view.setUint32(at, view.getUint32(at, true) + change, true);
      }
      frame[frame.length - 1] = last;
      checkServer(frame);
    }),
    runs(1500),
  );
});

test("a frame spoiled in any way is refused or means exactly what it says", () => {
  const spoil = (frames: fc.Arbitrary<Uint8Array>) => frames.chain(spoiled);
  fc.assert(
    fc.property(spoil(clientFrames), (bytes) => void checkClient(bytes)),
    runs(800),
  );
  fc.assert(
    fc.property(spoil(serverFrames), (bytes) => void checkServer(bytes)),
    runs(800),
  );
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 90 }), fc.constantFrom(1, 2, 0x11, 0x12), (bytes, op) => {
      const frame = Uint8Array.from([op, ...bytes]);
      checkClient(frame);
      checkServer(frame);
    }),
    runs(1500),
  );
});

test.run();
