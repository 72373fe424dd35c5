import { suite } from "uvu";
import * as assert from "uvu/assert";
import { blockFacts } from "../../src/store/block-facts.ts";
import { RecordBuffer, type RecordParts, RecordView, readHead } from "../../src/store/log/record.ts";
import { type Scanned, scanSegment } from "../../src/store/log/scan.ts";
import { block } from "../support/store-blocks.ts";
import { MemoryDisk } from "../support/store-files.ts";

const test = suite("log: records");
const lineage = Uint8Array.from([1, 2, 3, 4, 5, 6, 7, 8]);

function parts(over: Partial<RecordParts>): RecordParts {
  const blocks = over.blocks ?? [];
  const facts = blocks.map((bytes) => blockFacts(bytes)!);
  return {
    kind: "commit",
    lineage,
    segment: 3,
    epoch: 2,
    sequence: 9,
    echo: [],
    puts: [],
    trims: [],
    ...over,
    blocks,
    facts,
  };
}

const encode = (over: Partial<RecordParts>) => Buffer.from(new RecordBuffer().encode(parts(over)));

function decode(bytes: Buffer): RecordView {
  const head = readHead(bytes, 0, lineage);
  if (head === undefined || typeof head === "number") throw new Error("no head");
  return new RecordView(bytes, head);
}

test("an empty commit, byte for byte", () => {
  const expected = [
    "4e585231 fdd03452 0102030405060708", // magic, crc, lineage
    "0000000000000840 0000000000000040 0000000000002240", // segment 3, epoch 2, sequence 9
    "50000000 50000000 02000000", // head 80, total 80, kind 2
    "00000000 00000000 00000000 00000000 00000000 00000000 00000000",
  ];
  assert.is(encode({}).toString("hex"), expected.join("").replaceAll(" ", ""));
});

test("everything that goes in comes out", () => {
  const blocks = [
    block({ stream: 1, first: 5, events: ["a", { payload: "b", key: "k" }] }),
    block({ stream: 700, first: 0, events: ["c"] }),
  ];
  const bytes = encode({
    kind: "snapshot",
    state: Buffer.from("state---"),
    echo: [{ stream: 4, end: 2 ** 40 }],
    trims: [
      [1, 3],
      [2, null],
    ],
    puts: [
      ["key é", Buffer.from("value")],
      ["", Buffer.alloc(0)],
      ["gone", null],
    ],
    blocks,
  });
  assert.is(bytes.length % 8, 0);
  const record = decode(bytes);
  const { kind, segment, epoch, sequence, totalBytes } = record.head;
  assert.equal([kind, segment, epoch, sequence, totalBytes], ["snapshot", 3, 2, 9, bytes.length]);
  assert.equal(record.lineage(), lineage);
  assert.is(record.state().toString(), "state---");
  assert.equal(record.echo(), [{ stream: 4, end: 2 ** 40 }]);
  assert.equal(record.trims(), [
    [1, 3],
    [2, null],
  ]);
  assert.equal(
    record.puts().map(([key, value]) => [key, value && Buffer.from(value).toString()]),
    [
      ["key é", "value"],
      ["", ""],
      ["gone", null],
    ],
  );
  const { frames, whole } = record.frames();
  assert.ok(whole);
  assert.equal(
    frames.map((frame) => [frame.stream, frame.firstOffset, frame.count, frame.extended, frame.left]),
    [
      [1, 5, 2, true, 1],
      [700, 0, 1, false, 0],
    ],
  );
  for (const [i, frame] of frames.entries()) assert.equal(record.block(frame), Buffer.from(blocks[i]));
});

test("a head asks for more bytes until it has them, and any flipped bit in it is noticed", () => {
  const bytes = encode({ puts: [["k", Buffer.from("v")]], echo: [{ stream: 1, end: 1 }] });
  const { headBytes } = decode(bytes).head;
  for (let length = 0; length < headBytes; length++) {
    assert.type(readHead(bytes.subarray(0, length), 0, lineage), "number", `${length} bytes`);
  }
  for (let at = 0; at < headBytes; at++) {
    for (let bit = 0; bit < 8; bit++) {
      const spoiled = Buffer.from(bytes);
      spoiled[at] ^= 1 << bit;
      const head = readHead(spoiled, 0, lineage);
      assert.ok(head === undefined || typeof head === "number", `byte ${at} bit ${bit}`);
    }
  }
});

async function scan(content: Buffer): Promise<Scanned[]> {
  const disk = new MemoryDisk();
  await disk.create("/file");
  disk.setContent("/file", content);
  const found: Scanned[] = [];
  for await (const item of scanSegment(await disk.open("/file"), { segment: 3, lineage })) found.push(item);
  return found;
}

const sequences = (found: readonly Scanned[]) =>
  found.map((item) => (item.type === "record" ? item.record.head.sequence : `${item.from}..${item.to}`));

test("what a recycled file held before does not continue it", async () => {
  const next = encode({ sequence: 10 });
  assert.equal(sequences(await scan(Buffer.concat([encode({}), next]))), [9, 10]);
  for (const stale of [
    encode({ sequence: 10, segment: 2 }),
    encode({ sequence: 9 }),
    encode({ sequence: 8 }),
    encode({ sequence: 10, lineage: Uint8Array.from(lineage).reverse() }),
  ]) {
    assert.equal(sequences(await scan(Buffer.concat([encode({}), stale]))), [9]);
    // And is passed over in search of one that does.
    const behind = await scan(Buffer.concat([encode({}), stale, next]));
    assert.equal(sequences(behind), [9, `80..${80 + stale.length}`, 10]);
  }
});

test("a good head far behind zeroes is found, wherever the chunks of the search end", async () => {
  for (const gap of [8, 1024, 1024 * 1024 - 88, 1024 * 1024 - 80, 1024 * 1024 - 8, 1024 * 1024, 3 * 1024 * 1024 + 16]) {
    const found = await scan(Buffer.concat([encode({}), Buffer.alloc(gap), encode({ sequence: 11 })]));
    assert.equal(sequences(found), [9, `80..${80 + gap}`, 11], `gap ${gap}`);
  }
});

test.run();
