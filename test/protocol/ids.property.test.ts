// Texts that stand for numbers: ids, leases, positions. Each reading takes back exactly what the writing gives, and nothing else.

import fc from "fast-check";
import { test } from "uvu";
import * as assert from "uvu/assert";
import {
  idPartitionMax,
  idPositionPart,
  idTimeMax,
  idTimePart,
  makeId,
  offsetMax,
  parseId,
  saltMax,
} from "../../src/protocol/ids.ts";
import { leaseText, parseLease } from "../../src/protocol/lease.ts";
import { eventIdFault } from "../../src/protocol/names.ts";
import { parsePosition, positionText } from "../../src/protocol/position.ts";
import { counts, runs, texts } from "../support/properties.ts";

const parts = fc.record(
  {
    storedAt: counts(idTimeMax),
    offset: counts(offsetMax),
    partition: counts(idPartitionMax),
    salt: counts(saltMax),
  },
  { noNullPrototype: true },
);
type Parts = typeof parts extends fc.Arbitrary<infer Value> ? Value : never;
const idOf = ({ storedAt, offset, partition, salt }: Parts) => makeId(storedAt, offset, partition, salt);

/** One character replaced, left out or put in. */
function edits(text: string): fc.Arbitrary<string> {
  const place = fc.nat(text.length - 1);
  const char = fc.oneof(fc.constantFrom(..."0123456789abcdefABCDEFg-:, +.é"), texts(1, 1));
  return fc.oneof(
    fc.tuple(place, char).map(([at, other]) => text.slice(0, at) + other + text.slice(at + 1)),
    place.map((at) => text.slice(0, at) + text.slice(at + 1)),
    fc.tuple(place, char).map(([at, other]) => text.slice(0, at) + other + text.slice(at)),
  );
}

test("an id says its parts, is one that may be named, and is made of its two halves", () => {
  fc.assert(
    fc.property(parts, (given) => {
      const id = idOf(given);
      assert.equal(parseId(id), given);
      assert.is(eventIdFault(id), undefined);
      assert.is(idTimePart(given.storedAt) + idPositionPart(given.offset, given.partition, given.salt), id);
    }),
    runs(1000),
  );
});

test("ids sort by time, then offset, then partition", () => {
  const rank = ({ storedAt, offset, partition, salt }: Parts) => [storedAt, offset, partition, salt];
  fc.assert(
    fc.property(parts, parts, fc.nat(3), (a, b, same) => {
      // Where the first parts are equal the next ones decide, so some are made equal.
      const other = { ...b, ...(same > 0 && { storedAt: a.storedAt }), ...(same > 1 && { offset: a.offset }) };
      const ranks = [rank(a), rank(other)];
      const at = ranks[0].findIndex((part, i) => part !== ranks[1][i]);
      const expected = at < 0 ? 0 : Math.sign(ranks[0][at] - ranks[1][at]);
      const [left, right] = [idOf(a), idOf(other)];
      assert.is(left < right ? -1 : left > right ? 1 : 0, expected);
    }),
    runs(600),
  );
});

test("a text that is parsed as an id, a lease or a position is the one that would be written for it", () => {
  const lease = fc.tuple(counts(0xffffffff), counts(Number.MAX_SAFE_INTEGER)).map(([e, t]) => leaseText(e, t));
  const position = fc.array(counts(offsetMax), { minLength: 1, maxLength: 5 }).map((offsets) => positionText(offsets));
  // Partitions that repeat, and numbers that are one too high.
  const repeating = fc
    .array(fc.tuple(fc.oneof(fc.nat(3), fc.nat(65)), counts(offsetMax + 1)), { maxLength: 4 })
    .map((entries) => entries.map(([partition, offset]) => `${partition}:${offset}`).join(","));
  const any = fc.oneof(
    repeating,
    parts.map(idOf).chain(edits),
    lease.chain(edits),
    position.chain(edits),
    texts(0, 40),
    fc.string({ maxLength: 40, unit: fc.constantFrom(..."0123456789-:,") }),
  );
  fc.assert(
    fc.property(any, (text) => {
      const id = parseId(text);
      if (id !== undefined) assert.is(idOf(id), text);
      const read = parseLease(text);
      if (read !== undefined) assert.is(leaseText(read.epoch, read.token), text);
      const offsets = parsePosition(text);
      if (offsets !== undefined) assert.is(positionText(offsets), text);
    }),
    runs(2500),
  );
});

test("a lease and a position say what they were made of", () => {
  const several = fc.uniqueArray(fc.tuple(fc.nat(63), counts(offsetMax)), { selector: ([partition]) => partition });
  fc.assert(
    fc.property(counts(0xffffffff), counts(Number.MAX_SAFE_INTEGER), several, (epoch, token, offsets) => {
      assert.equal(parseLease(leaseText(epoch, token)), { epoch, token });
      const read = parsePosition(positionText(new Map(offsets)));
      assert.equal(read === undefined ? [] : [...read], offsets);
    }),
    runs(600),
  );
});

test.run();
