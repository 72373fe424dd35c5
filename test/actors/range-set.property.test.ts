// Whatever is added to and removed from a range set, it holds what a plain set of numbers holds, as the fewest ranges there can be.

import fc from "fast-check";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { RangeSet } from "../../src/actors/range-set.ts";
import { runs } from "../support/properties.ts";

const offsetMax = 48;

class Change implements fc.Command<Set<number>, RangeSet> {
  private readonly what: "add" | "remove" | "clear";
  private readonly from: number;
  private readonly to: number;

  constructor(what: "add" | "remove" | "clear", from: number, length: number) {
    this.what = what;
    this.from = from;
    this.to = from + length;
  }

  check(): boolean {
    return true;
  }

  run(model: Set<number>, set: RangeSet): void {
    let changed = 0;
    for (let offset = this.from; offset < this.to; offset++) {
      if (this.what === "add") model.add(offset);
      else if (this.what === "remove" && model.delete(offset)) changed++;
    }
    if (this.what === "add") set.add(this.from, this.to);
    else if (this.what === "remove") assert.is(set.remove(this.from, this.to), changed);
    else {
      model.clear();
      set.clear();
    }
    compare(set, model);
  }

  toString(): string {
    return `${this.what} ${this.from}..${this.to}`;
  }
}

function compare(set: RangeSet, model: ReadonlySet<number>): void {
  const held = [...model].sort((a, b) => a - b);
  const ranges = [...set];
  assert.equal(
    ranges.flatMap(([from, to]) => Array.from({ length: to - from }, (_, i) => from + i)),
    held,
  );
  assert.equal([set.size, set.rangeCount], [held.length, ranges.length]);
  for (const [i, [from, to]] of ranges.entries()) {
    assert.ok(from < to, "an empty range");
    assert.ok(i === 0 || ranges[i - 1][1] < from, "two ranges that touch");
  }
  assert.is(set.first, held[0] ?? Number.POSITIVE_INFINITY);
  assert.is(set.firstEnd, ranges[0]?.[1] ?? Number.POSITIVE_INFINITY);
  for (let offset = 0; offset <= offsetMax; offset++) {
    assert.is(set.has(offset), model.has(offset));
    assert.is(set.nextIn(offset), held.find((other) => other >= offset) ?? Number.POSITIVE_INFINITY);
    let out = offset;
    while (model.has(out)) out++;
    assert.is(set.nextOut(offset), out);
    const to = offset + (offset % 7);
    assert.is(set.countIn(offset, to), held.filter((other) => other >= offset && other < to).length);
  }
}

const offsets = fc.nat(offsetMax - 10);
const lengths = fc.nat(10);
const commands = [
  fc.tuple(offsets, lengths).map(([from, length]) => new Change("add", from, length)),
  fc.tuple(offsets, lengths).map(([from, length]) => new Change("add", from, length)),
  fc.tuple(offsets, lengths).map(([from, length]) => new Change("remove", from, length)),
  fc.constant(new Change("clear", 0, 0)),
];

test("whatever is added and removed, it holds what a plain set holds", () => {
  fc.assert(
    fc.property(fc.commands(commands, { maxCommands: 60 }), (changes) => {
      fc.modelRun(() => ({ model: new Set<number>(), real: new RangeSet() }), changes);
    }),
    runs(400),
  );
});

test.run();
