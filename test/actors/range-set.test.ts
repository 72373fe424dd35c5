import { test } from "uvu";
import * as assert from "uvu/assert";
import { RangeSet } from "../../src/actors/range-set.ts";
import { Dice } from "../support/dice.ts";

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

test("whatever is added and removed, it holds what a plain set holds", () => {
  const dice = new Dice(7);
  for (let round = 0; round < 200; round++) {
    const set = new RangeSet();
    const model = new Set<number>();
    for (let step = 0; step < 30; step++) {
      const from = dice.below(40);
      const to = from + dice.below(6);
      if (dice.chance(60)) {
        set.add(from, to);
        for (let i = from; i < to; i++) model.add(i);
      } else {
        let removed = 0;
        for (let i = from; i < to; i++) if (model.delete(i)) removed++;
        assert.is(set.remove(from, to), removed);
      }
      const held = [...model].sort((a, b) => a - b);
      assert.equal(
        [...set].flatMap(([start, end]) => Array.from({ length: end - start }, (_, i) => start + i)),
        held,
      );
      assert.is(set.size, held.length);
      const ranges = [...set];
      for (let i = 1; i < ranges.length; i++) assert.ok(ranges[i - 1][1] < ranges[i][0], "ranges touch");
      for (let i = 0; i < 48; i++) {
        assert.is(set.has(i), model.has(i));
        assert.is(set.nextIn(i), held.find((offset) => offset >= i) ?? Number.POSITIVE_INFINITY);
        assert.is(set.countIn(i, i + 5), held.filter((offset) => offset >= i && offset < i + 5).length);
        let out = i;
        while (model.has(out)) out++;
        assert.is(set.nextOut(i), out);
      }
    }
  }
});

test.run();
