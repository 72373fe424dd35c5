import { test } from "uvu";
import * as assert from "uvu/assert";
import { leaseEpoch, leaseText, parseLease, shardsMax } from "../../src/protocol/lease.ts";

test("a lease comes back from its text", () => {
  for (const epoch of [0, 1, 9, 10, 0xffffffff]) {
    for (const token of [0, 1, 1_000_000, 2 ** 32, Number.MAX_SAFE_INTEGER]) {
      assert.equal(parseLease(leaseText(epoch, token)), { epoch, token });
    }
  }
});

test("two leases never have one text", () => {
  assert.is.not(leaseText(1, 23), leaseText(12, 3));
});

test("no epoch of any shard stands in the names of two shards or epochs", () => {
  const epochs = [0, 1, 2, 63, 64, 65, 2 ** 26 - 1];
  const all = epochs.flatMap((epoch) => Array.from({ length: shardsMax }, (_, shard) => leaseEpoch(epoch, shard)));
  assert.is(new Set(all).size, all.length);
  assert.is(Math.max(...all), 0xffffffff);
});

test("a text that no lease has is not parsed", () => {
  const bad = [
    "",
    "-",
    "1-",
    "-1",
    "1",
    "01-2",
    "1-02",
    "1-2-3",
    "1--2",
    "+1-2",
    "1.0-2",
    "1e3-2",
    "1- 2",
    "a-b",
    "4294967296-1",
    "1-9007199254740992",
    "1-99999999999999999999999999",
    "٣-1",
    `1-2${" ".repeat(100)}`,
  ];
  for (const text of bad) assert.is(parseLease(text), undefined, JSON.stringify(text));
});

test.run();
