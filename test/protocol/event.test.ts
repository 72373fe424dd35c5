import { test } from "uvu";
import * as assert from "uvu/assert";
import { BlockView, blockHeaderBytes, writeBlockHeader } from "../../src/protocol/block.ts";
import { eventHead, eventId } from "../../src/protocol/event.ts";
import { type Filter, filterMatches } from "../../src/protocol/filter.ts";
import { makeId, offsetMax } from "../../src/protocol/ids.ts";
import { encodePack, type PackEntry } from "../../src/protocol/pack.ts";
import { streamOf } from "../../src/protocol/stream.ts";
import { bytesOf, textOf } from "./bytes.ts";

const header = { stream: streamOf(12, 3), firstOffset: 100, storedAt: 1_760_000_000_000, maxTs: 0, salt: 77 };

function blockOf(entries: PackEntry[], over: Partial<typeof header> = {}): BlockView {
  const pack = encodePack(entries);
  const bytes = new Uint8Array(blockHeaderBytes + pack.length);
  writeBlockHeader({ ...header, ...over }, bytes, 0);
  bytes.set(pack, blockHeaderBytes);
  return new BlockView(bytes);
}

/** As the frames have it: the head, the payload's bytes, a brace. */
function eventText(block: BlockView, index: number): string {
  return `${eventHead(block, index, "orders")}${textOf(block.pack.payload(index))}}`;
}

test("an event without options is its position and its payload", () => {
  const block = blockOf([{ payload: bytesOf("1") }, { payload: bytesOf('{"n":2}') }]);
  const id = makeId(1_760_000_000_000, 101, 3, 77);
  assert.is(eventId(block, 1), id);
  assert.is(
    eventText(block, 1),
    `{"id":"${id}","ts":1760000000000,"topic":"orders","partition":3,"offset":101,"payload":{"n":2}}`,
  );
});

test("what the publisher brought stands between position and payload", () => {
  const meta = '{"sid":"s","headers":{"a":"1"},"tags":["t"],"caused_by":["x"]}';
  const block = blockOf([
    { payload: bytesOf("0") },
    { payload: bytesOf("[]"), key: 'a"\n\u2028é', id: "own:1", ts: 5, meta },
    { payload: bytesOf("0"), ts: 0 },
    { payload: bytesOf("0"), meta: "{}" },
  ]);
  assert.is(eventId(block, 1), "own:1");
  assert.equal(Object.entries(JSON.parse(eventText(block, 1))), [
    ["id", "own:1"],
    ["ts", 5],
    ["topic", "orders"],
    ["partition", 3],
    ["offset", 101],
    ["key", 'a"\n\u2028é'],
    ["sid", "s"],
    ["headers", { a: "1" }],
    ["tags", ["t"]],
    ["caused_by", ["x"]],
    ["payload", []],
  ]);
  assert.is(JSON.parse(eventText(block, 2)).ts, 0);
  assert.is(JSON.parse(eventText(block, 2)).id, makeId(header.storedAt, 102, 3, 77));
  assert.equal(Object.keys(JSON.parse(eventText(block, 3))), ["id", "ts", "topic", "partition", "offset", "payload"]);
});

test("the highest offset is written exactly", () => {
  const block = blockOf([{ payload: bytesOf("0") }], { firstOffset: offsetMax });
  assert.match(eventText(block, 0), `"offset":${offsetMax},`);
  assert.match(eventText(block, 0), makeId(header.storedAt, offsetMax, 3, 77));
});

const meta = '{"sid":"boot-1","headers":{"a":"1","b":"2","":"3"},"tags":["x","y"]}';
const filtered = blockOf([
  { payload: bytesOf("0"), key: "customer-7", meta },
  { payload: bytesOf("0"), key: "customer-7" },
  { payload: bytesOf("0"), meta },
  { payload: bytesOf("0") },
]);

test("all that a filter says must hold", () => {
  const cases: [Filter, boolean[]][] = [
    [{}, [true, true, true, true]],
    [{ key: "customer-7" }, [true, true, false, false]],
    [{ key: "customer" }, [false, false, false, false]],
    [{ keyPrefix: "customer" }, [true, true, false, false]],
    [{ keyPrefix: "customer-77" }, [false, false, false, false]],
    [{ sid: "boot-1" }, [true, false, true, false]],
    [{ sid: "boot-2" }, [false, false, false, false]],
    [{ tags: ["y"] }, [true, false, true, false]],
    [{ tags: ["y", "x"] }, [true, false, true, false]],
    [{ tags: ["y", "z"] }, [false, false, false, false]],
    [{ headers: { a: "1", b: "2" } }, [true, false, true, false]],
    [{ headers: { a: "2" } }, [false, false, false, false]],
    [{ headers: { c: "1" } }, [false, false, false, false]],
    [{ headers: { toString: "1" } }, [false, false, false, false]],
    [{ key: "customer-7", tags: ["x"] }, [true, false, false, false]],
    [{ key: "customer-7", tags: ["z"] }, [false, false, false, false]],
  ];
  for (const [filter, wanted] of cases) {
    assert.equal(
      wanted.map((_, index) => filterMatches(filter, filtered, index)),
      wanted,
      JSON.stringify(filter),
    );
  }
});

test("a filter that asks for no tag and no header lets an event through that has neither, nor anything else", () => {
  const bare = blockOf([{ payload: bytesOf("1") }]);
  assert.ok(filterMatches({ headers: {} }, bare, 0));
  assert.ok(filterMatches({ tags: [] }, bare, 0));
  assert.not(filterMatches({ tags: ["a"] }, bare, 0));
  assert.not(filterMatches({ headers: { a: "1" } }, bare, 0));
  assert.not(filterMatches({ sid: "s" }, bare, 0));
});

test.run();
