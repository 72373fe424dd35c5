import { test } from "uvu";
import * as assert from "uvu/assert";
import { BlockView, blockHeaderBytes, writeBlockHeader } from "../../src/protocol/block.ts";
import type { Failure } from "../../src/protocol/failure.ts";
import { encodePack, mergedBytes, mergePacks, type PackEntry, PackView, packFault } from "../../src/protocol/pack.ts";
import { bytesOf, dice, hexOf, textOf } from "./bytes.ts";

const limits = { payloadBytesMax: 1000, countMax: 100 };

const plain: PackEntry[] = [{ payload: bytesOf("1") }, { payload: bytesOf('{"a":2}') }];
const full: PackEntry = {
  key: "é",
  id: "id-1",
  ts: 1000,
  meta: '{"sid":"s"}',
  payload: bytesOf("null"),
};

/** Entries with every mix of fields, some long, some none. */
function someEntries(random: (bound: number) => number, count: number): PackEntry[] {
  return Array.from({ length: count }, () => {
    const entry: { payload: Uint8Array; key?: string; id?: string; ts?: number; meta?: string } = {
      payload: bytesOf(JSON.stringify("x".repeat(random(40)))),
    };
    if (random(3) === 0) entry.key = ["", "k", "ключ", "\ufeffbom", "😀".repeat(random(100))][random(5)];
    if (random(3) === 0) entry.id = `id-${random(1e6)}`;
    if (random(3) === 0) entry.ts = random(1e9) * 1000;
    if (random(3) === 0) entry.meta = JSON.stringify({ tags: ["ä".repeat(random(50))] });
    return entry;
  });
}

function entriesOf(pack: PackView): PackEntry[] {
  return Array.from({ length: pack.count }, (_, i) => ({ ...pack.extension(i), payload: pack.payload(i).slice() }));
}

/** The same bytes in the middle of a larger buffer, so that a forgotten byteOffset shows. */
function shifted(bytes: Uint8Array, by: number): PackView {
  const room = new Uint8Array(bytes.length + by + 9).fill(0xee).subarray(3);
  room.set(bytes, by);
  return new PackView(room, by);
}

test("a pack without extensions is a header, lengths and payloads", () => {
  assert.is(
    hexOf(encodePack(plain)),
    `02000000 00000000 08000000 00000000 01000000 07000000 ${hexOf(bytesOf('1{"a":2}'))}`.replaceAll(" ", ""),
  );
});

test("an extension is bits, key, id, ts and meta", () => {
  assert.is(
    hexOf(encodePack([full, plain[0]])),
    [
      "02000000 01000000 05000000 1d000000",
      "04000000 01000000",
      "1d000000 00000000",
      hexOf(bytesOf("null1")),
      // bits, length and key, length and id, ts, meta
      "0f 0200c3a9 0469642d31 0000000000408f40",
      hexOf(bytesOf('{"sid":"s"}')),
    ]
      .join("")
      .replaceAll(" ", ""),
  );
});

test("what was packed is read again, wherever the pack lies", () => {
  const random = dice(1);
  for (let round = 0; round < 200; round++) {
    const entries = someEntries(random, 1 + random(12));
    const bytes = encodePack(entries);
    assert.is(packFault(bytes, 0, limits), undefined);
    for (const pack of [new PackView(bytes), shifted(bytes, random(20))]) {
      assert.is(pack.byteLength, bytes.length);
      assert.equal(entriesOf(pack), entries);
      entries.forEach((entry, i) => {
        assert.is(pack.key(i), entry.key);
        assert.is(pack.id(i), entry.id);
        assert.is(pack.ts(i), entry.ts);
        assert.is(pack.payloadLength(i), entry.payload.length);
        assert.equal(pack.strictExtension(i), pack.extension(i));
      });
    }
  }
});

test("a range of a pack is the pack of that range", () => {
  const random = dice(2);
  for (let round = 0; round < 100; round++) {
    const entries = someEntries(random, 1 + random(8));
    const pack = shifted(encodePack(entries), random(20));
    for (let from = 0; from < entries.length; from++) {
      for (let to = from + 1; to <= entries.length; to++) {
        const wanted = encodePack(entries.slice(from, to));
        const target = new Uint8Array(wanted.length + 7).fill(0xaa).subarray(2);
        assert.is(pack.rangeBytes(from, to), wanted.length);
        assert.is(pack.copyRange(from, to, target, 3), wanted.length);
        assert.is(hexOf(target.subarray(3, 3 + wanted.length)), hexOf(wanted));
        assert.is(hexOf(target.subarray(0, 3)), hexOf(new Uint8Array(3).fill(0xaa)));
        assert.is(hexOf(target.subarray(3 + wanted.length)), hexOf(new Uint8Array(2).fill(0xaa)));
      }
    }
  }
});

test("joined packs are the pack of all their events", () => {
  const random = dice(3);
  for (let round = 0; round < 200; round++) {
    const parts = Array.from({ length: 1 + random(5) }, () => someEntries(random, 1 + random(4)));
    const packs = parts.map((entries) => shifted(encodePack(entries), random(9)));
    const wanted = encodePack(parts.flat());
    // What was in the target before must not shine through.
    const target = new Uint8Array(wanted.length + 5).fill(0xff);
    assert.is(mergedBytes(packs), wanted.length);
    mergePacks(packs, target, 5);
    assert.is(hexOf(target.subarray(5)), hexOf(wanted));
  }
});

test("a key is compared without being decoded, and as a text where it is not ASCII", () => {
  const keys = ["", "a", "ab", "aé", "é", "éa", "\u0000", "日本", "\ufeffa"];
  const pack = new PackView(encodePack([...keys.map((key) => ({ key, payload: bytesOf("1") })), ...plain]));
  keys.forEach((key, i) => {
    for (const text of [...keys, "b", "aé!", "日"]) {
      assert.is(pack.keyMatches(i, text, false), key === text, `${key} is ${text}`);
      assert.is(pack.keyMatches(i, text, true), key.startsWith(text), `${key} starts with ${text}`);
    }
  });
  // No key is not the empty key, and has no beginning.
  assert.not(pack.keyMatches(keys.length, "", false));
  assert.not(pack.keyMatches(keys.length, "", true));
});

test("every way in which the lengths of a pack can be wrong is found", () => {
  const good = encodePack([full, plain[0]]);
  const broken: [string, (view: DataView) => void, Failure["code"], RegExp][] = [
    ["no events", (view) => view.setUint32(0, 0, true), "bad_frame", /of 0 events/],
    ["too many", (view) => view.setUint32(0, 101, true), "bad_frame", /1 to 100/],
    ["a count that overflows", (view) => view.setUint32(0, 0xffffffff, true), "bad_frame", /1 to 100/],
    ["other flags", (view) => view.setUint32(4, 3, true), "bad_frame", /flags/],
    ["the highest flag", (view) => view.setUint32(4, 0x80000001, true), "bad_frame", /flags/],
    ["extensions unannounced", (view) => view.setUint32(4, 0, true), "bad_frame", /without the flag/],
    ["payload bytes", (view) => view.setUint32(8, 6, true), "bad_frame", /add up/],
    ["huge payload bytes", (view) => view.setUint32(8, 0xffffffff, true), "bad_frame", /add up/],
    ["extension bytes", (view) => view.setUint32(12, 0x1c, true), "bad_frame", /add up/],
    ["a shifted border", (view) => view.setUint32(16, 5, true), "bad_frame", /add up/],
    ["an empty payload", (view) => view.setUint32(16, 0, true), "bad_frame", /event 0 has no payload/],
    ["a huge payload", (view) => view.setUint32(20, 1001, true), "too_large", /event 1 has 1001 bytes/],
    ["a shifted extension", (view) => view.setUint32(24, 0x1e, true), "bad_frame", /add up/],
    ["no bits", (view) => view.setUint8(37, 0), "bad_frame", /event 0 has a broken extension/],
    ["other bits", (view) => view.setUint8(37, 0x1f), "bad_frame", /broken/],
    ["a key that is too long", (view) => view.setUint16(38, 500, true), "bad_frame", /broken/],
    ["an id that is too long", (view) => view.setUint8(42, 255), "bad_frame", /broken/],
    ["an id up to the end", (view) => view.setUint8(42, 23), "bad_frame", /broken/],
    ["meta without its bit", (view) => view.setUint8(37, 7), "bad_frame", /broken/],
  ];
  assert.is(packFault(good, 0, limits), undefined);
  for (const [name, spoil, code, msg] of broken) {
    const bytes = good.slice();
    spoil(new DataView(bytes.buffer));
    const fault = packFault(bytes, 0, limits);
    assert.is(fault?.code, code, name);
    assert.match(fault?.msg ?? "", msg, name);
  }
  for (let length = 0; length < good.length; length++) {
    assert.ok(packFault(good.subarray(0, length), 0, limits), `cut to ${length}`);
  }
  assert.ok(packFault(new Uint8Array([...good, 0]), 0, limits), "a byte too many");
  const most = Array.from({ length: 100 }, () => plain[0]);
  assert.is(packFault(encodePack(most), 0, limits), undefined);
  assert.ok(packFault(encodePack([...most, plain[0]]), 0, limits));
  assert.is(packFault(encodePack([{ id: "", payload: bytesOf("1") }]), 0, limits), undefined, "a length is enough");
  assert.is(packFault(encodePack([{ payload: new Uint8Array(1000).fill(0x31) }]), 0, limits), undefined);
});

test("a pack with any byte changed is refused or can be read to its end", () => {
  const entries = [full, plain[0], { ...full, key: "k" }];
  const good = encodePack(entries);
  for (let at = 0; at < good.length; at++) {
    for (let value = 0; value < 256; value++) {
      const bytes = good.slice();
      bytes[at] = value;
      if (packFault(bytes, 0, limits) !== undefined) continue;
      const pack = new PackView(bytes);
      assert.is(pack.byteLength, bytes.length);
      const payloads = entriesOf(pack).map((entry) => entry.payload);
      assert.is(
        payloads.reduce((sum, payload) => sum + payload.length, 0),
        pack.payloadBytes,
      );
      for (let i = 0; i < pack.count; i++) {
        assert.is(pack.key(i), pack.extension(i).key);
        assert.is(pack.id(i), pack.extension(i).id);
        assert.equal(pack.ts(i), pack.extension(i).ts);
        pack.strictExtension(i);
      }
    }
  }
});

test("text that is not UTF-8 is told from text that is", () => {
  const bytes = encodePack([full]);
  assert.equal(new PackView(bytes).strictExtension(0), { key: "é", id: "id-1", ts: 1000, meta: '{"sid":"s"}' });
  const key = bytes.indexOf(0xc3);
  bytes[key] = 0xff;
  assert.is(new PackView(bytes).strictExtension(0), undefined);
});

test("a block is a header of 40 bytes and a pack", () => {
  const pack = encodePack([full, plain[0]]);
  const bytes = new Uint8Array(4 + blockHeaderBytes + pack.length).fill(0xff).subarray(4);
  const header = { stream: 321, firstOffset: 2 ** 40, storedAt: 1500, maxTs: 2000, salt: 0x3fff };
  writeBlockHeader(header, bytes, 0);
  bytes.set(pack, blockHeaderBytes);
  assert.is(
    hexOf(bytes.subarray(0, blockHeaderBytes)),
    "0000000000107440 0000000000007042 0000000000709740 0000000000409f40 ff3f 0000 00000000".replaceAll(" ", ""),
  );
  const block = new BlockView(bytes);
  const { stream, firstOffset, storedAt, maxTs, salt } = block;
  assert.equal({ stream, firstOffset, storedAt, maxTs, salt }, header);
  assert.is(block.count, 2);
  assert.is(block.endOffset, 2 ** 40 + 2);
  assert.is(block.ts(0), 1000);
  assert.is(block.ts(1), 1500);
  assert.is(textOf(block.pack.payload(1)), "1");
});

test.run();
