import { test } from "uvu";
import * as assert from "uvu/assert";
import { idPartitionMax, idTimeMax, makeId, offsetMax, parseId, saltMax } from "../../src/protocol/ids.ts";

/** The layout once more, as arithmetic on one number of 128 bits. */
function slowId(storedAt: number, offset: number, partition: number, salt: number): string {
  const free = (BigInt(offset) << 24n) | (BigInt(partition) << 14n) | BigInt(salt);
  const value =
    (BigInt(storedAt) << 80n) | (7n << 76n) | ((free >> 62n) << 64n) | (2n << 62n) | (free & ((1n << 62n) - 1n));
  const hex = value.toString(16).padStart(32, "0");
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
}

const values = {
  storedAt: [0, 1, 0xffff, 0x10000, 0xffffffff, 1_760_000_000_123, 0x800000000000, idTimeMax],
  offset: [0, 1, 0xffffff, 0x1000000, 2 ** 31, 2 ** 32 - 1, 2 ** 38 - 1, 2 ** 38, 2 ** 49, offsetMax],
  partition: [0, 1, 63, 512, idPartitionMax],
  salt: [0, 1, 0xff, 0x100, 0x2000, saltMax],
};

test("an id holds time, offset, partition and salt up to the highest of each", () => {
  for (const storedAt of values.storedAt) {
    for (const offset of values.offset) {
      for (const partition of values.partition) {
        for (const salt of values.salt) {
          const id = makeId(storedAt, offset, partition, salt);
          assert.is(id, slowId(storedAt, offset, partition, salt));
          assert.equal(parseId(id), { storedAt, offset, partition, salt });
        }
      }
    }
  }
});

test("the text of an id stays as it is for ever", () => {
  assert.is(makeId(0, 0, 0, 0), "00000000-0000-7000-8000-000000000000");
  assert.is(makeId(idTimeMax, offsetMax, idPartitionMax, saltMax), "ffffffff-ffff-7fff-bfff-ffffffffffff");
  assert.is(makeId(0x0123456789ab, 2 ** 38 + 2 ** 24 + 5, 3, 0x2abc), "01234567-89ab-7001-8001-00000500eabc");
});

test("ids of later offsets in one block sort behind earlier ones", () => {
  const ids = [0, 1, 255, 256, 0xffffff, 0x1000000, 2 ** 38 - 1, 2 ** 38, offsetMax].map((offset) =>
    makeId(1_760_000_000_000, offset, 7, 99),
  );
  assert.equal([...ids].sort(), ids);
});

test("what is not exactly such an id is not parsed", () => {
  const good = makeId(1_760_000_000_000, 12_345, 6, 789);
  assert.ok(parseId(good));
  const bad = [
    "",
    "x",
    good.toUpperCase(),
    good.slice(1),
    `${good}0`,
    ` ${good.slice(1)}`,
    good.replaceAll("-", ""),
    `${good.slice(0, 14)}4${good.slice(15)}`,
    `${good.slice(0, 19)}c${good.slice(20)}`,
    `${good.slice(0, 19)}7${good.slice(20)}`,
    "00000000-0000-7000-8000-00000000000g",
    "00000000+0000-7000-8000-000000000000",
    "é".repeat(36),
  ];
  for (const text of bad) assert.is(parseId(text), undefined, text);
  for (let i = 0; i < good.length; i++) {
    assert.is(parseId(`${good.slice(0, i)}!${good.slice(i + 1)}`), undefined, `at ${i}`);
  }
});

test.run();
