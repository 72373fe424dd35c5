import { createHash } from "node:crypto";
import { test } from "uvu";
import * as assert from "uvu/assert";
import {
  ChangedPart,
  LineFault,
  type PartFacts,
  parseFacts,
  partFault,
  scanPart,
  Trail,
} from "../../src/cli/export-part.ts";
import { eachLine, LineBlocks, LineHead } from "../../src/cli/ndjson.ts";

const line = (partition: number, offset: number, rest = "", topic = "orders") =>
  `{"id":"01a1ee96-0457-7000-8000-0000000${partition}${offset}","ts":1795004171351,"topic":"${topic}","partition":${partition},"offset":${offset},${rest}"payload":{"n":${offset},"text":"é\\"}"}}\n`;

const lines = [
  line(0, 7),
  line(1, 3, '"key":"partition\\":9,","headers":{"payload":"x"},'),
  line(0, 8),
  line(2, 0, '"tags":["a"],'),
  line(1, 4),
  line(0, 10),
];
const whole = Buffer.from(lines.join(""));

async function* inPieces(bytes: Buffer, size: number): AsyncGenerator<Buffer> {
  for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size);
}

const sha256 = (bytes: Buffer) => createHash("sha256").update(bytes).digest("hex");

test("lines come out whole, however the bytes come in", () => {
  for (let size = 1; size <= whole.length; size++) {
    const blocks = new LineBlocks();
    const found: string[] = [];
    for (let at = 0; at < whole.length; at += size) {
      const block = blocks.push(whole.subarray(at, at + size));
      if (block !== undefined) eachLine(block, (start, end) => found.push(`${block.toString("utf8", start, end)}\n`));
    }
    assert.equal(found, lines, `in pieces of ${size}`);
    assert.is(blocks.rest().length, 0);
  }
});

test("what stands behind the last newline is kept apart", () => {
  const blocks = new LineBlocks();
  assert.is(blocks.push(Buffer.from("a")), undefined);
  assert.is(blocks.push(Buffer.from("b\nc\nd"))?.toString(), "ab\nc\n");
  assert.is(blocks.push(Buffer.from("e")), undefined);
  assert.is(blocks.rest().toString(), "de");
});

test("the beginning of a line says which event it is", () => {
  const head = new LineHead();
  const bytes = Buffer.from(lines[1]);
  assert.ok(head.read(bytes, 0, bytes.length - 1));
  assert.equal(
    [head.id, head.topic, head.partition, head.offset],
    ["01a1ee96-0457-7000-8000-000000013", "orders", 1, 3],
  );
  assert.ok(head.isOf(Buffer.from("orders")));
  for (const other of ["order", "orders2", "Orders"]) assert.not(head.isOf(Buffer.from(other)), other);
});

test("a line that no node wrote is told from one that a node wrote", () => {
  const head = new LineHead();
  const wrong = [
    "",
    "{}",
    "not JSON",
    '{"payload":1}',
    ' {"id":"a","ts":1,"topic":"t","partition":0,"offset":0,"payload":1}',
    '{"id":"","ts":1,"topic":"t","partition":0,"offset":0,"payload":1}',
    '{"id":"a","ts":-1,"topic":"t","partition":0,"offset":0,"payload":1}',
    '{"id":"a","ts":1,"topic":"t","partition":x,"offset":0,"payload":1}',
    '{"id":"a","ts":1,"topic":"t","partition":0,"offset":99999999999999999999,"payload":1}',
    '{"id":"a","ts":1,"topic":"t","partition":0,"offset":5',
    "\0".repeat(100),
  ];
  for (const text of wrong) assert.not(head.read(Buffer.from(text), 0, Buffer.byteLength(text)), text);
});

test("a part that was cut at any byte of its last two lines goes on behind its last whole line", async () => {
  const firstOfLast = whole.length - Buffer.byteLength(lines[5]);
  const firstOfLastTwo = firstOfLast - Buffer.byteLength(lines[4]);
  for (let cut = firstOfLastTwo; cut <= whole.length; cut++) {
    const { trail, hash, looseBytes } = await scanPart(inPieces(whole.subarray(0, cut), 64), "orders");
    const kept = cut === whole.length ? whole.length : cut >= firstOfLast ? firstOfLast : firstOfLastTwo;
    assert.is(trail.bytes, kept, `cut at ${cut}`);
    assert.is(looseBytes, cut - kept, `cut at ${cut}`);
    assert.is(trail.events, kept === whole.length ? 6 : kept === firstOfLast ? 5 : 4);
    assert.is(hash.digest("hex"), sha256(whole.subarray(0, kept)));
    const next = new Map([
      [0, kept === whole.length ? 11 : 9],
      [1, kept === firstOfLastTwo ? 4 : 5],
      [2, 1],
    ]);
    assert.equal(trail.next, next, `cut at ${cut}`);
  }
});

test("a part is what was written up to its checkpoint, or it is refused", async () => {
  const bytes = Buffer.byteLength(lines.slice(0, 3).join(""));
  const checkpoint = { bytes, sha256: sha256(whole.subarray(0, bytes)) };
  const cut = whole.subarray(0, whole.length - 5);
  // What one byte changes a checksum shows: both events would pass for exported ones.
  const edited = Buffer.from(cut.toString("utf8").replace('"n":8', '"n":9'));
  for (const size of [1, 64, 1000]) {
    const { trail, hash } = await scanPart(inPieces(cut, size), "orders", checkpoint);
    assert.is(trail.events, 5);
    assert.is(hash.digest("hex"), sha256(whole.subarray(0, trail.bytes)), `in pieces of ${size}`);
    for (const wrong of [edited, whole.subarray(0, bytes - 1), Buffer.from(lines.slice(1).join(""))]) {
      const error = await scanPart(inPieces(wrong, size), "orders", checkpoint).catch((reason: Error) => reason);
      assert.instance(error, ChangedPart);
    }
  }
  const all = { bytes: whole.length, sha256: sha256(whole) };
  assert.is((await scanPart(inPieces(whole, 64), "orders", all)).trail.events, 6);
});

test("a part with lines that do not belong there is refused", async () => {
  const refused: [string, RegExp][] = [
    [line(0, 1) + line(0, 1), /line 2 \(0:1\) stands behind a later event/],
    [line(0, 5) + line(1, 1) + line(0, 4), /line 3 \(0:4\)/],
    [line(0, 1) + line(0, 2, "", "payments"), /line 2 is an event of payments/],
    [`${line(0, 1)}hello\n`, /line 2 is not an exported event/],
  ];
  for (const [text, said] of refused) {
    try {
      await scanPart(inPieces(Buffer.from(text), 1000), "orders");
      assert.unreachable(text);
    } catch (error) {
      assert.instance(error, LineFault);
      assert.match((error as Error).message, said);
    }
  }
  // Offsets that are missing were removed by retention, or lie outside of the range.
  const trail = new Trail("orders");
  trail.take(Buffer.from(line(0, 1) + line(0, 100)));
  assert.equal(trail.next, new Map([[0, 101]]));
});

const facts: PartFacts = {
  version: 1,
  topic: "orders",
  createdAt: 1_795_000_000_000,
  fromTs: null,
  toTs: null,
  since: "2h",
  begin: 1_794_990_000_000,
  end: null,
  checkpoint: { bytes: 5, sha256: "ab" },
};

test("a part is gone on with by the same command only", () => {
  assert.is(partFault("o.ndjson", facts, facts), undefined);
  // The moment that 2h meant is the part's.
  assert.is(partFault("o.ndjson", facts, { ...facts, begin: 5 } as PartFacts), undefined);
  assert.match(
    partFault("o.ndjson", facts, { ...facts, topic: "payments" }) ?? "",
    "is an export of orders: give another -o, or --force",
  );
  for (const other of [{ since: null }, { since: "3h" }, { fromTs: "2026-05-01" }, { toTs: "2026-05-01" }]) {
    assert.match(
      partFault("o.ndjson", facts, { ...facts, ...other }) ?? "",
      "was begun with --since 2h: give the same again",
    );
  }
  const plain = { ...facts, since: null };
  assert.match(partFault("o.ndjson", plain, facts) ?? "", "was begun without a range");
  assert.match(
    partFault("o.ndjson", facts, { ...facts, createdAt: 1 }) ?? "",
    "of another topic orders, made at 2026-",
  );
});

test("what was written beside a part is read as it was, or not at all", () => {
  assert.equal(parseFacts(JSON.stringify(facts)), facts);
  // As an earlier version wrote it.
  const { checkpoint: _checkpoint, ...older } = facts;
  assert.equal(parseFacts(JSON.stringify(older)), { ...facts, checkpoint: null });
  for (const text of [
    "",
    "{",
    "null",
    "[]",
    '{"version":2}',
    '{"version":1,"topic":"a"}',
    '{"version":1,"createdAt":1}',
  ])
    assert.is(parseFacts(text), undefined, text);
});

test.run();
