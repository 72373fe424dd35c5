import { test } from "uvu";
import * as assert from "uvu/assert";
import { type Attempted, decodeCursor, encodeCursor } from "../../src/actors/cursor.ts";
import { RangeSet } from "../../src/actors/range-set.ts";

const wall = 1_700_000_000_000;

function encode(attempted: Attempted[], ranges: [number, number][] = [], reasons: [number, string][] = []): Uint8Array {
  const settled = new RangeSet();
  for (const [from, to] of ranges) settled.add(from, to);
  return encodeCursor({ floor: 5_000_000, settled, attempted, reasons: new Map(reasons) }, wall);
}

function attempt(offset: number, delayMs = 0, attempts = 1, byDisconnect = false): Attempted {
  return { offset, attempts, byDisconnect, delayMs };
}

test("a cursor comes back as it was written", () => {
  const attempted = [attempt(5_000_001), attempt(5_000_002), attempt(5_000_003, 40, 2, true), attempt(5_000_009, 0, 4)];
  const ranges: [number, number][] = [
    [5_000_004, 5_000_006],
    [5_000_020, 5_001_000],
  ];
  assert.equal(decodeCursor(encode(attempted, ranges, [[5_000_009, "why"]]), wall), {
    floor: 5_000_000,
    ranges,
    attempted,
    reasons: [[5_000_009, "why"]],
  });
});

test("the cursor of a group that keeps up is as small as a number", () => {
  assert.is(new TextDecoder().decode(encode([])), '{"floor":5000000}');
});

test("ten thousand leases that ended together are one run", () => {
  const bytes = encode(Array.from({ length: 10_000 }, (_, i) => attempt(5_000_001 + i, 500)));
  assert.ok(bytes.length < 100, `${bytes.length} bytes`);
  const { attempted } = decodeCursor(bytes, wall);
  assert.is(attempted.length, 10_000);
  assert.equal(attempted.at(-1), attempt(5_010_000, 500));
});

test("a delay waits at most what was left of it, whatever the wall clock did", () => {
  const bytes = encode([attempt(5_000_001, 1000)]);
  const left = (now: number) => decodeCursor(bytes, now).attempted[0].delayMs;
  assert.equal([left(wall), left(wall + 400), left(wall + 5000), left(wall - 60_000)], [1000, 600, 0, 1000]);
});

test.run();
