import { test } from "uvu";
import * as assert from "uvu/assert";
import { fnv1a, jump, jumpHash } from "../../src/protocol/jump-hash.ts";
import { mask, slowFnv, slowJump } from "./slow-hash.ts";

function slow(key: string, buckets: number): number {
  return slowJump(slowFnv(key), buckets);
}

const keys = [
  ..."a b foobar customer-7 0 1".split(" "),
  "",
  "é",
  "日本語",
  "😀",
  "a😀b",
  "\ud800",
  "\udc00x",
  "\ud800\ud800\udc00",
  "\uffff",
  "\u07ff\u0800",
  "k".repeat(1024),
];

test("the hash is FNV-1a with its published vectors", () => {
  const hex = (text: string) =>
    fnv1a(text)
      .map((half) => half.toString(16).padStart(8, "0"))
      .join("");
  assert.is(hex(""), "cbf29ce484222325");
  assert.is(hex("a"), "af63dc4c8601ec8c");
  assert.is(hex("foobar"), "85944171f73967e8");
  for (const key of keys) assert.is(hex(key), slowFnv(key).toString(16).padStart(16, "0"), JSON.stringify(key));
});

test("the jump is that of the paper with its known vectors", () => {
  const at = (seed: bigint, buckets: number) => jump(Number(seed >> 32n), Number(seed & 0xffffffffn), buckets);
  assert.is(at(1n, 1), 0);
  assert.is(at(42n, 57), 43);
  assert.is(at(0xdead10ccn, 1), 0);
  assert.is(at(0xdead10ccn, 666), 361);
  assert.is(at(256n, 1024), 520);
  // A state that overflows its low half when 1 is added.
  for (const seed of [0n, 0xffffffffn, 0x100000000n, mask]) assert.is(at(seed, 64), slowJump(seed, 64));
});

test("the partition of a key stays as it is for ever", () => {
  const pinned: [string, number, number, number][] = [
    ["a", 2, 12, 31],
    ["customer-7", 1, 1, 59],
    ["heartbeat", 2, 4, 39],
    ["é", 2, 5, 19],
    ["😀", 0, 13, 36],
    ["host:name:1234", 3, 5, 55],
    ["", 1, 13, 17],
  ];
  for (const [key, of4, of16, of64] of pinned) {
    assert.equal([jumpHash(key, 4), jumpHash(key, 16), jumpHash(key, 64)], [of4, of16, of64], key);
  }
});

test("it agrees with 64-bit arithmetic for many keys", () => {
  for (const key of keys) for (const buckets of [1, 2, 3, 7, 64]) assert.is(jumpHash(key, buckets), slow(key, buckets));
  for (let i = 0; i < 3000; i++) assert.is(jumpHash(`key-${i * 7919}`, 64), slow(`key-${i * 7919}`, 64));
});

test("one more partition only moves keys to it, and short keys spread evenly", () => {
  const counts = new Array<number>(8).fill(0);
  for (let i = 0; i < 8000; i++) {
    const before = jumpHash(`${i}`, 7);
    const after = jumpHash(`${i}`, 8);
    assert.ok(after === before || after === 7);
    counts[after]++;
  }
  for (const count of counts) assert.ok(count > 850 && count < 1150, `${counts}`);
});

test.run();
