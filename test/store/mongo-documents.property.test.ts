// What goes through documents comes back byte for byte: over the same bytes that a server keeps, and over a real one.

import fc from "fast-check";
import { Binary, BSON } from "mongodb";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { BlockView, blockHeaderBytes, writeBlockHeader } from "../../src/protocol/block.ts";
import { encodePack, type PackEntry } from "../../src/protocol/pack.ts";
import { blockOf, documentsOf, type EventDocument } from "../../src/store/mongo/documents.ts";
import { bsonValue } from "../../src/store/mongo/exact.ts";
import { placeOf } from "../../src/store/mongo/heads.ts";
import { openProcess } from "../support/mongo-stores.ts";
import { startMongod, withMongod } from "../support/mongod.ts";
import { runs } from "../support/properties.ts";
import { commitOf, readAll } from "../support/store-blocks.ts";

const encoder = new TextEncoder();

function blockWith(entries: readonly PackEntry[], { stream = 65, first = 0, storedAt = 1_795_000_000_000 } = {}) {
  const pack = encodePack(entries);
  const bytes = new Uint8Array(blockHeaderBytes + pack.length);
  const header = { stream, firstOffset: first, storedAt, maxTs: storedAt, salt: 77 };
  writeBlockHeader(header, bytes, 0);
  bytes.set(pack, blockHeaderBytes);
  return new BlockView(bytes);
}

function throughBson(documents: readonly EventDocument[]): EventDocument[] {
  return documents.map((document) => {
    return BSON.deserialize(BSON.serialize(document, { ignoreUndefined: true }), {
      promoteBuffers: false,
    }) as EventDocument;
  });
}

function again(block: BlockView): BlockView {
  const place = placeOf(0, block.stream, "orders");
  const documents = documentsOf(block, place, 0, (bytes) => new Binary(bytes));
  const back = throughBson(documents);
  return blockOf(back, back[0].block!, block.stream);
}

const same = (a: Uint8Array, b: Uint8Array) => Buffer.compare(a, b) === 0;
const payload = (text: string): PackEntry => ({ payload: encoder.encode(text) });

/** Names that BSON, the driver or JavaScript treat in a way of their own, among others. */
const name = fc.oneof(
  fc.string({ unit: "binary", maxLength: 6 }),
  fc.constantFrom(
    "$set",
    "$ref",
    "$id",
    "$oid",
    "_bsontype",
    "toBSON",
    "__proto__",
    "constructor",
    "a.b",
    "",
    "1",
    "01",
    "-1",
  ),
  fc.constantFrom("\u0000", "a\u0000b", "\ud800", "length", "key", "_id"),
);

const scalar = fc.oneof(
  fc.string({ unit: "binary", maxLength: 8 }),
  fc.constantFrom("$5.00", '"$a":', "\u0000", "\ud800", "\udfff", "\u2028", "ObjectId"),
  fc.integer().map(String),
  fc.double({ noNaN: true, noDefaultInfinity: true }),
  fc.constantFrom(null, true, false, 0, 2 ** 31, -(2 ** 31) - 1, 2 ** 53, 1e21, 5e-324),
);

const { value } = fc.letrec<{ value: unknown; list: unknown; object: unknown }>((tie) => ({
  value: fc.oneof({ depthSize: "small" }, scalar, tie("list"), tie("object")),
  list: fc.array(tie("value"), { maxLength: 4 }),
  object: fc.array(fc.tuple(name, tie("value")), { maxLength: 4 }).map(Object.fromEntries),
}));

/** As other programs spell JSON. */
const spelled = fc.oneof(
  value.map((json) => JSON.stringify(json)),
  value.map((json) => JSON.stringify(json, null, 1).replaceAll("\n", "")),
  fc.constantFrom(
    "1.0",
    "-0",
    "1e2",
    "12345678901234567890",
    '{"a":1,"a":2}',
    '{"2":1,"1":2}',
    '"\\u0041"',
    '"\\/"',
    " 1 ",
  ),
  fc.constantFrom(
    "[-0.0]",
    '{"a": [1 ,2]}',
    '{"$numberLong":"5"}',
    '{"$ref":"a","$id":1}',
    '"\\ud83d\\ude00"',
    '{"x":{"$gt": 1}}',
  ),
);

const text = fc.string({ unit: "grapheme", minLength: 1, maxLength: 12 });
const meta = fc
  .record(
    {
      sid: text,
      headers: fc.dictionary(fc.oneof(text, fc.constantFrom("$h", "a.b", "_bsontype")), text),
      tags: fc.array(text),
      caused_by: fc.array(text),
    },
    { requiredKeys: [] },
  )
  .map((fields) => JSON.stringify(fields));

const entry = fc.record(
  { payload: spelled.map((json) => encoder.encode(json)), key: text, id: text, ts: fc.nat({ max: 2 ** 40 }), meta },
  { requiredKeys: ["payload"] },
);

test("any block comes back byte for byte", () => {
  const entries = fc.array(entry, { minLength: 1, maxLength: 6 });
  const holds = fc.property(entries, (some) => {
    const block = blockWith(some);
    return same(again(block).bytes, block.bytes);
  });
  fc.assert(holds, runs(3000));
});

test("bytes that are no text, and extensions that are spelled in another way, come back too", () => {
  const raw = blockWith([{ payload: Uint8Array.of(0xff, 0x00, 0x22) }, payload("7,8"), payload("")]);
  assert.ok(same(again(raw).bytes, raw.bytes));
  const odd = blockWith([
    { ...payload("1"), meta: '{"tags":["t"],"sid":"s"}' },
    { ...payload("2"), meta: "no json", ts: -0 },
  ]);
  assert.ok(same(again(odd).bytes, odd.bytes));
  // A batch may have the table of extensions and nothing in it.
  const plain = blockWith([{ ...payload("1"), key: "k" }]);
  const bytes = Uint8Array.from(plain.bytes).subarray(0, plain.bytes.length - 4);
  const view = new DataView(bytes.buffer);
  view.setUint32(blockHeaderBytes + 12, 0, true);
  view.setUint32(blockHeaderBytes + 20, 0, true);
  const empty = new BlockView(bytes);
  assert.is(empty.pack.isWhole(), true);
  assert.ok(same(again(empty).bytes, empty.bytes));
});

test("a payload is a value where that is exact, a value beside its text where only the spelling differs, and else text", () => {
  const kinds = (json: string) => {
    const [document] = documentsOf(blockWith([payload(json)]), placeOf(0, 65, "t"), 0, (bytes) => new Binary(bytes));
    return ["payload", "text"].filter((kind) => kind in document).join("+");
  };
  const expected: [string, string][] = [
    ['{"n":1,"s":"$5.00","f":0.1}', "payload"],
    ["null", "payload"],
    ['"text"', "payload"],
    ['{"a":{"b.c":[1,null]}}', "payload"],
    ['{"n": 1}', "payload+text"],
    ["1.0", "payload+text"],
    ["-0", "payload+text"],
    ["12345678901234567890", "payload+text"],
    ['{"a":1,"a":2}', "payload+text"],
    ['{"2":1,"1":2}', "payload+text"],
    ['{"$set":1}', "text"],
    ['{"\\u0024set":1}', "text"],
    ['{"_bsontype":"ObjectId"}', "text"],
    ['{"toBSON":1}', "text"],
    ['{"__proto__":1}', "text"],
    ['{"a\\u0000":1}', "text"],
    ['"\\ud800"', "text"],
    [`"${"x".repeat(1024 * 1024)}"`, "text"],
  ];
  for (const [json, kind] of expected) assert.is(kinds(json), kind, json.slice(0, 40));
});

test("what is long or deep fits into a document", () => {
  const arrays = `[${"[],".repeat(300_000)}[]]`;
  const deep = `${"[".repeat(64)}${"]".repeat(64)}`;
  const block = blockWith([payload(`[${"0,".repeat(500_000)}0]`), payload(arrays), payload(deep)]);
  const documents = documentsOf(block, placeOf(0, 65, "t"), 0, (bytes) => new Binary(bytes));
  for (const document of documents) assert.ok(BSON.calculateObjectSize(document) < 16 * 1024 * 1024);
  assert.ok(same(again(block).bytes, block.bytes));
  assert.is(bsonValue(arrays)?.exact, true);
});

await withMongod("mongo documents", async () => {
  test("a real server gives back the same bytes", async () => {
    const mongod = await startMongod();
    try {
      const { store } = await openProcess(mongod.url());
      const shard = await store.openShard(0);
      const wanted: Uint8Array[] = [];
      const samples = fc.sample(fc.array(entry, { minLength: 1, maxLength: 5 }), { numRuns: 120, seed: 7 });
      for (const entries of samples) {
        const { bytes } = blockWith(entries, { first: shard.head(65)?.end ?? 0 });
        wanted.push(bytes);
        await shard.commit(commitOf({ blocks: [bytes] }));
      }
      const found = await readAll(shard, 65);
      assert.is(found.length, wanted.length);
      for (const [n, block] of found.entries()) assert.ok(same(block.bytes, wanted[n]), `block ${n}`);
      await store.close();
    } finally {
      await mongod.stop();
    }
  });
});

test.run();
