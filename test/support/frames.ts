// Generated packs and binary frames.

import fc from "fast-check";
import type { BatchName, EventsHeader, PublishedSpan, PublishHeader, SettleBatch } from "../../src/protocol/batch.ts";
import { eventBounds, frameBounds } from "../../src/protocol/bounds.ts";
import { type Code, codes, failure } from "../../src/protocol/failure.ts";
import { offsetMax, saltMax } from "../../src/protocol/ids.ts";
import { metaText } from "../../src/protocol/meta.ts";
import type { PackEntry } from "../../src/protocol/pack.ts";
import { counts, texts, wellFormed } from "./properties.ts";

const u32 = 0xffffffff;
const plain = { noNullPrototype: true } as const;

export const metas: fc.Arbitrary<string | undefined> = fc
  .record(
    {
      sid: fc.option(texts(1, 10), { nil: undefined }),
      headers: fc.option(
        fc.dictionary(
          texts(1, 8).filter((name) => name !== "__proto__"),
          texts(0, 8),
          { maxKeys: 3, noNullPrototype: true },
        ),
        { nil: undefined },
      ),
      tags: fc.option(fc.array(texts(1, 8), { maxLength: 3 }), { nil: undefined }),
    },
    plain,
  )
  .map(metaText);

/** No codec looks into a payload. */
export const payloads: fc.Arbitrary<Uint8Array> = fc.uint8Array({ minLength: 1, maxLength: 8 });

export const keys = wellFormed(1, 12);
export const ownIds = fc.string({ minLength: 1, maxLength: 12, unit: fc.constantFrom(..."aZ09._:-") });

export function entries(
  id: fc.Arbitrary<string | undefined> = fc.option(ownIds, { nil: undefined }),
): fc.Arbitrary<PackEntry> {
  return fc
    .record(
      {
        payload: payloads,
        key: fc.option(keys, { nil: undefined }),
        id,
        ts: fc.option(counts(eventBounds.tsMax), { nil: undefined }),
        meta: fc.oneof({ weight: 2, arbitrary: fc.constant(undefined) }, metas),
      },
      plain,
    )
    .map(withoutUndefined);
}

export function packs(maxLength = 6): fc.Arbitrary<PackEntry[]> {
  return fc.oneof(
    fc.array(entries(), { minLength: 1, maxLength }),
    fc.array(entries(fc.constant(undefined)), { minLength: 1, maxLength }),
    fc.array(entries(ownIds), { minLength: 1, maxLength }),
    fc.array(
      payloads.map((payload) => ({ payload })),
      { minLength: 1, maxLength },
    ),
  );
}

const producers = fc.string({ minLength: 32, maxLength: 32, unit: fc.constantFrom(..."0123456789abcdef") });

export const names: fc.Arbitrary<BatchName> = fc.oneof(
  fc.record({ producer: producers, seq: counts(u32) }, plain),
  fc.record({ producer: producers, seq: counts(u32), partition: fc.nat(63) }, plain),
  fc.record(
    { producer: producers, seq: counts(u32), partition: fc.nat(63), chained: fc.constant(true as const) },
    plain,
  ),
);

export const publishHeaders: fc.Arbitrary<PublishHeader> = fc
  .record({ handle: fc.nat(0xffff), corr: counts(u32), batch: fc.option(names, { nil: undefined }) }, plain)
  .map(({ handle, corr, batch }) => ({ handle, corr, ...(batch === undefined ? {} : { batch }) }));

/** Runs that together name no more leases than this. */
export function settles(leasesMax: number): fc.Arbitrary<Omit<SettleBatch, "op">> {
  const run = fc
    .record(
      {
        partition: fc.nat(63),
        count: fc.integer({ min: 1, max: Math.floor(leasesMax / 4) }),
        offset: counts(offsetMax),
        epoch: counts(u32),
        token: counts(Number.MAX_SAFE_INTEGER),
      },
      plain,
    )
    .map((one) => ({
      ...one,
      offset: Math.min(one.offset, offsetMax - one.count + 1),
      token: Math.min(one.token, Number.MAX_SAFE_INTEGER - one.count + 1),
    }));
  const verb = fc.oneof(
    fc.constantFrom({ verb: "ack" as const }, { verb: "release" as const }, { verb: "nack" as const }),
    counts(frameBounds.delayMsMax).map((ms) => ({ verb: "nack" as const, ms })),
    counts(frameBounds.extendMsMax - 1).map((ms) => ({ verb: "extend" as const, ms: ms + 1 })),
  );
  const runsOf = fc.array(run, { minLength: 1, maxLength: 4 });
  return fc
    .tuple(fc.nat(0xffff), counts(u32), verb, runsOf)
    .map(([handle, corr, what, runs]) => ({ handle, corr, ...what, runs }));
}

export const publishedSpans: fc.Arbitrary<PublishedSpan[]> = fc.array(
  fc
    .record(
      {
        index: counts(u32),
        count: counts(u32),
        partition: fc.nat(0xffff),
        offset: counts(offsetMax),
        storedAt: counts(eventBounds.tsMax),
        salt: fc.nat(saltMax),
        outcome: fc.oneof(
          fc.constant({}),
          counts(eventBounds.tsMax).map((ts) => ({ duplicate: { ts } })),
          fc
            .tuple(fc.constantFrom(...(Object.keys(codes) as Code[])), counts(u32))
            .map(([code, ms]) => ({ failure: failure(code, "made up", ms) })),
        ),
      },
      plain,
    )
    .map(({ outcome, ...span }) => ({ ...span, ...outcome })),
  { maxLength: 4 },
);

export const eventsHeaders: fc.Arbitrary<EventsHeader> = fc.record(
  {
    handle: fc.nat(0xffff),
    ackDeadlineMs: counts(u32),
    partition: fc.nat(0xffff),
    salt: fc.nat(saltMax),
    attempt: fc.nat(0xffff),
    maxAttempts: fc.nat(0xffff),
    firstOffset: counts(offsetMax),
    storedAt: counts(eventBounds.tsMax),
    epoch: counts(u32),
    token: counts(Number.MAX_SAFE_INTEGER),
  },
  plain,
);

/** As somebody spoils bytes: some replaced, some numbers in them replaced, a border between two lengths moved, cut, grown, made up. */
export function spoiled(good: Uint8Array): fc.Arbitrary<Uint8Array> {
  const at = fc.nat(Math.max(0, good.length - 1));
  const number = fc.oneof(
    fc.nat(40),
    fc.constantFrom(0, 1, 0x7f, 0x80, 0xff, 0x8000, 0xffff, 2 ** 31, u32 - 15, u32),
    fc.nat(u32),
  );
  const change = (...changes: readonly [number, number][]) => {
    const bytes = good.slice();
    for (const [place, value] of changes) if (place < bytes.length) bytes[place] = value;
    return bytes;
  };
  const rewrite = (numbers: readonly [number, number][]) => {
    const bytes = good.slice();
    const view = new DataView(bytes.buffer);
    for (const [place, value] of numbers)
      if (place + 4 <= bytes.length) view.setUint32(place - (place % 4), value, true);
    return bytes;
  };
  // Their sum stays as it was, modulo 2^32.
  const move = (places: readonly number[], by: number) => {
    const bytes = good.slice();
    const view = new DataView(bytes.buffer);
    const [up, down] = places.map((place) => place - (place % 4));
    if (Math.max(up, down) + 4 > bytes.length) return bytes;
    view.setUint32(up, view.getUint32(up, true) + by, true);
    view.setUint32(down, view.getUint32(down, true) - by, true);
    return bytes;
  };
  return fc.oneof(
    fc.tuple(fc.array(at, { minLength: 2, maxLength: 2 }), fc.nat(40)).map(([places, by]) => move(places, by)),
    fc.array(fc.tuple(at, fc.nat(255)), { minLength: 1, maxLength: 4 }).map((changes) => change(...changes)),
    // Lengths and counts stand at multiples of four.
    fc.array(fc.tuple(at, number), { minLength: 1, maxLength: 3 }).map(rewrite),
    fc.nat(good.length).map((length) => good.slice(0, length)),
    fc.uint8Array({ minLength: 1, maxLength: 40 }).map((more) => Uint8Array.from([...good, ...more])),
    fc
      .tuple(at, fc.uint8Array({ maxLength: 60 }))
      .map(([keep, rest]) => Uint8Array.from([...good.subarray(0, keep), ...rest])),
  );
}

/** The bytes in the middle of others, so that a read beyond them is seen: what is around them makes a difference to nobody. */
export function surrounded(bytes: Uint8Array, by: number): Uint8Array {
  const room = new Uint8Array(bytes.length + 128).fill(by);
  room.set(bytes, 64);
  return room.subarray(64, 64 + bytes.length);
}

export function withoutUndefined<T extends object>(value: T): T {
  return Object.fromEntries(Object.entries(value).filter(([, field]) => field !== undefined)) as T;
}
