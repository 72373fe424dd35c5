// The records of the log: what goes in comes out, in any combination; cut anywhere or with any bytes changed, a record is one of which
// less is there, or one whose spoilt part is told from the good ones. Nothing that is wrong is taken for right.

import fc from "fast-check";
import { suite } from "uvu";
import * as assert from "uvu/assert";
import { blockFacts } from "../../src/store/block-facts.ts";
import {
  align8,
  blockChecksOut,
  RecordBuffer,
  type RecordParts,
  RecordView,
  readHead,
  recordBytes,
} from "../../src/store/log/record.ts";
import type { Put, Trim } from "../../src/store/store.ts";
import { counts, runs, wellFormed } from "../support/properties.ts";
import { block } from "../support/store-blocks.ts";

const test = suite("log: any records");
const plain = { noNullPrototype: true } as const;
const streams = counts(2 ** 40);
const some = fc.uint8Array({ maxLength: 20 });

const blocks = fc
  .record(
    { stream: streams, first: counts(2 ** 50), events: fc.array(wellFormed(0, 8), { minLength: 1, maxLength: 3 }) },
    plain,
  )
  .map(block);

const records: fc.Arbitrary<RecordParts> = fc
  .record(
    {
      kind: fc.constantFrom("snapshot" as const, "commit" as const, "copy" as const),
      lineage: fc.uint8Array({ minLength: 8, maxLength: 8 }),
      segment: counts(2 ** 40),
      epoch: counts(2 ** 32),
      sequence: counts(2 ** 50),
      state: some,
      echo: fc.array(fc.record({ stream: streams, end: counts(2 ** 50) }, plain), { maxLength: 3 }),
      puts: fc.array(fc.tuple(wellFormed(0, 8), fc.option(some)) as fc.Arbitrary<Put>, { maxLength: 4 }),
      trims: fc.array(fc.tuple(streams, fc.option(counts(2 ** 50))) as fc.Arbitrary<Trim>, { maxLength: 3 }),
      blocks: fc.array(blocks, { maxLength: 3 }),
    },
    plain,
  )
  .map((parts) => ({ ...parts, facts: parts.blocks.map((bytes) => blockFacts(bytes)!) }));

/** One buffer for all, as the log has it: what an earlier record left in it must not show. */
const buffer = new RecordBuffer();
const encode = (parts: RecordParts) => Buffer.from(buffer.encode(parts));

function contents(view: RecordView): unknown {
  const { frames, whole } = view.frames();
  return {
    head: view.head,
    lineage: [...view.lineage()],
    state: [...view.state()],
    echo: view.echo(),
    trims: view.trims(),
    puts: view.puts().map(([key, value]) => [key, value && [...value]]),
    blocks: frames.map((frame) => [frame, blockChecksOut(view.bytes, frame), [...view.block(frame)]]),
    whole,
  };
}

test("everything that goes into a record comes out of it", () => {
  fc.assert(
    fc.property(records, (parts) => {
      const bytes = encode(parts);
      assert.equal([bytes.length, bytes.length], [recordBytes(parts), align8(bytes.length)]);
      const head = readHead(bytes, 0, parts.lineage);
      if (head === undefined || typeof head === "number") throw new Error("no head");
      const { kind, segment, epoch, sequence } = parts;
      assert.equal([head.kind, head.segment, head.epoch, head.sequence], [kind, segment, epoch, sequence]);
      const view = new RecordView(bytes, head);
      assert.equal(view.lineage(), parts.lineage);
      assert.equal([...view.state()], [...parts.state!]);
      assert.equal(view.echo(), parts.echo);
      assert.equal(view.trims(), parts.trims);
      assert.equal(
        view.puts().map(([key, value]) => [key, value && [...value]]),
        parts.puts.map(([key, value]) => [key, value && [...value]]),
      );
      const { frames, whole } = view.frames();
      assert.ok(whole);
      assert.equal(
        frames.map((frame) => [blockChecksOut(bytes, frame), frame.stream, frame.firstOffset, frame.count]),
        parts.facts.map(({ stream, firstOffset, count }) => [true, stream, firstOffset, count]),
      );
      for (const [i, frame] of frames.entries()) assert.ok(view.block(frame).equals(parts.blocks[i]), `block ${i}`);
      const end = frames.at(-1) === undefined ? head.headBytes : frames.at(-1)!.blockAt + frames.at(-1)!.blockBytes;
      assert.ok(
        bytes.subarray(end).every((byte) => byte === 0),
        "something stands behind the last block",
      );
      assert.equal(
        buffer.framesAt,
        frames.map(({ blockAt }) => blockAt - 40),
      );
    }),
    runs(500),
  );
});

test("a record that is cut asks for the rest of its head, then gives the blocks that are whole", () => {
  fc.assert(
    fc.property(records, fc.nat(), (parts, at) => {
      const bytes = encode(parts);
      const good = readHead(bytes, 0, parts.lineage);
      if (good === undefined || typeof good === "number") throw new Error("no head");
      const cut = bytes.subarray(0, at % bytes.length);
      const head = readHead(cut, 0, parts.lineage);
      if (cut.length < good.headBytes) {
        assert.type(head, "number");
        assert.ok(Number(head) > cut.length, "asks for what is there");
        return;
      }
      assert.equal(head, good);
      const { frames, whole } = new RecordView(cut, good).frames();
      const all = new RecordView(bytes, good).frames().frames;
      const there = all.filter(({ blockAt, blockBytes }) => blockAt + blockBytes <= cut.length);
      assert.equal([frames, whole], [there, there.length === all.length]);
    }),
    runs(800),
  );
});

test("bytes that were changed are found where they are, and what is not touched stays good", () => {
  const changes = fc.array(fc.tuple(fc.nat(), fc.integer({ min: 1, max: 255 })), { minLength: 1, maxLength: 3 });
  fc.assert(
    fc.property(records, changes, (parts, spoils) => {
      const bytes = encode(parts);
      const good = readHead(bytes, 0, parts.lineage);
      if (good === undefined || typeof good === "number") throw new Error("no head");
      const spoilt = Buffer.from(bytes);
      for (const [at, by] of spoils) spoilt[at % bytes.length] ^= by;
      const touched = (from: number, to: number) => !spoilt.subarray(from, to).equals(bytes.subarray(from, to));
      const head = readHead(spoilt, 0, parts.lineage);
      if (touched(0, good.headBytes)) {
        assert.ok(head === undefined || typeof head === "number", "a spoilt head passes");
        return;
      }
      assert.equal(head, good);
      const view = new RecordView(spoilt, good);
      const before = new RecordView(bytes, good).frames().frames;
      const { frames } = view.frames();
      const lost = before.findIndex(({ blockAt }) => touched(blockAt - 40, blockAt));
      assert.equal(frames, lost < 0 ? before : before.slice(0, lost));
      for (const frame of frames)
        assert.is(blockChecksOut(spoilt, frame), !touched(frame.blockAt, frame.blockAt + frame.blockBytes));
      if (!spoilt.equals(bytes)) return;
      assert.equal(contents(view), contents(new RecordView(bytes, good)));
    }),
    runs(1500),
  );
});

test("a block that stands where another one should is not taken for it", () => {
  fc.assert(
    fc.property(records, blocks, fc.integer({ min: 2, max: 4 }), fc.nat(), (parts, one, count, at) => {
      const same = Array.from({ length: count }, () => one);
      const bytes = encode({ ...parts, blocks: same, facts: same.map((bytes) => blockFacts(bytes)!) });
      const head = readHead(bytes, 0, parts.lineage);
      if (head === undefined || typeof head === "number") throw new Error("no head");
      const { frames } = new RecordView(bytes, head).frames();
      const [from, to] = [at % count, (at + 1) % count];
      const start = (i: number) => frames[i].blockAt - 40;
      bytes.copy(bytes, start(to), start(from), frames[from].blockAt + frames[from].blockBytes);
      const found = new RecordView(bytes, head).frames();
      assert.equal([found.frames.length, found.whole], [to, false]);
    }),
    runs(150),
  );
});

test("no bytes at all are read beyond their end", () => {
  const lineage = new Uint8Array(8);
  const start = Buffer.from("4e585231", "hex");
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 200 }), fc.boolean(), (more, posing) => {
      const bytes = posing ? Buffer.concat([start, more]) : Buffer.from(more);
      const head = readHead(bytes, 0, posing ? undefined : lineage);
      assert.ok(head === undefined || typeof head === "number");
    }),
    runs(1500),
  );
});

test.run();
