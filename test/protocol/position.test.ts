import { test } from "uvu";
import * as assert from "uvu/assert";
import { offsetMax } from "../../src/protocol/ids.ts";
import { parsePosition, positionText } from "../../src/protocol/position.ts";

test("a position is the next offset of each partition", () => {
  assert.equal(
    [...(parsePosition("0:1234,1:88") ?? [])],
    [
      [0, 1234],
      [1, 88],
    ],
  );
  assert.equal([...(parsePosition("63:0") ?? [])], [[63, 0]]);
  assert.is(positionText([1234, 88]), "0:1234,1:88");
  assert.is(
    positionText(
      new Map([
        [5, 1],
        [2, offsetMax],
      ]),
    ),
    "5:1,2:1125899906842623",
  );
  assert.is(positionText([]), "");
});

test("the longest position comes back", () => {
  const offsets = Array.from({ length: 64 }, () => offsetMax);
  assert.equal([...(parsePosition(positionText(offsets)) ?? new Map()).values()], offsets);
});

test("what is not well formed is not a position", () => {
  const bad = [
    "",
    ",",
    "0",
    "0:",
    ":1",
    "0:1,",
    ",0:1",
    "0:1,,1:2",
    "0:1,0:2",
    "64:0",
    "0:-1",
    "-1:0",
    "0:1.5",
    "0:1e3",
    "00:1",
    "0:01",
    " 0:1",
    "0:1 ",
    "0:1;1:2",
    "0:1:2",
    "a:b",
    `0:${offsetMax + 1}`,
    "0:99999999999999999999",
    "0:1,".repeat(10_000),
  ];
  for (const text of bad) assert.is(parsePosition(text), undefined, text.slice(0, 50));
});

test.run();
