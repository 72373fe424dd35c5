import { test } from "uvu";
import * as assert from "uvu/assert";
import { RangeSet } from "../../src/actors/range-set.ts";

function of(...ranges: [number, number][]): RangeSet {
  const set = new RangeSet();
  for (const [from, to] of ranges) set.add(from, to);
  return set;
}

test("ranges that touch or overlap become one", () => {
  assert.equal([...of([1, 3], [3, 5])], [[1, 5]]);
  assert.equal([...of([3, 5], [1, 3])], [[1, 5]]);
  assert.equal([...of([1, 3], [6, 8], [2, 7])], [[1, 8]]);
  assert.equal(
    [...of([1, 2], [4, 5], [7, 8], [3, 6])],
    [
      [1, 2],
      [3, 6],
      [7, 8],
    ],
  );
});

test("a removal cuts ranges apart", () => {
  const set = of([1, 10]);
  assert.is(set.remove(4, 6), 2);
  assert.equal(
    [...set],
    [
      [1, 4],
      [6, 10],
    ],
  );
  assert.is(set.remove(0, 7), 4);
  assert.equal([...set], [[7, 10]]);
  assert.is(set.remove(20, 30), 0);
});

test("the next offset inside and outside is found", () => {
  const set = of([2, 4], [6, 8]);
  assert.equal(
    [0, 2, 3, 4, 6, 7].map((offset) => set.nextIn(offset)),
    [2, 2, 3, 6, 6, 7],
  );
  assert.is(set.nextIn(8), Number.POSITIVE_INFINITY);
  assert.equal(
    [0, 2, 3, 4, 6, 8].map((offset) => set.nextOut(offset)),
    [0, 4, 4, 4, 8, 8],
  );
  assert.equal([set.first, set.firstEnd], [2, 4]);
  assert.is(new RangeSet().first, Number.POSITIVE_INFINITY);
});

test.run();
