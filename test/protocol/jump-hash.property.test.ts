// The partition of a key, against the algorithms as their authors wrote them on 64-bit numbers.

import fc from "fast-check";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { fnv1a, jump, jumpHash } from "../../src/protocol/jump-hash.ts";
import { runs, texts } from "../support/properties.ts";
import { slowFnv, slowJump } from "./slow-hash.ts";

/** Times the factor of the jump this is -1 in 32 bits, so that adding 1 carries into the high half. */
const carries = 0x666313ab;
const half = fc.oneof(
  fc.constant(carries),
  fc.nat(0xffffffff),
  fc.constantFrom(0, 1, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff),
);

test("any key hashes and jumps as in 64-bit arithmetic", () => {
  fc.assert(
    fc.property(texts(0, 60), fc.integer({ min: 1, max: 64 }), (key, buckets) => {
      const [high, low] = fnv1a(key);
      assert.is((BigInt(high) << 32n) | BigInt(low), slowFnv(key));
      assert.is(jumpHash(key, buckets), slowJump(slowFnv(key), buckets));
    }),
    runs(800),
  );
});

test("any 64-bit number jumps as in 64-bit arithmetic, and with one more bucket it stays or goes to the new one", () => {
  fc.assert(
    fc.property(half, half, fc.integer({ min: 1, max: 1023 }), (high, low, buckets) => {
      const bucket = jump(high, low, buckets);
      assert.is(bucket, slowJump((BigInt(high) << 32n) | BigInt(low), buckets));
      const next = jump(high, low, buckets + 1);
      assert.ok(next === bucket || next === buckets, `${bucket} of ${buckets}, then ${next}`);
    }),
    runs(800),
  );
});

test.run();
