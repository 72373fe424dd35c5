import { test } from "uvu";
import * as assert from "uvu/assert";
import { type ImportState, importId, parseState, stateFault } from "../../src/cli/import-state.ts";
import { eventIdFault } from "../../src/protocol/names.ts";

const state: ImportState = {
  version: 1,
  url: "http://127.0.0.1:8090",
  topic: "orders",
  createdAt: 1_795_000_000_000,
  newIds: false,
  skipStored: false,
  nonce: "0011223344556677",
  beganAt: 1_795_000_000_001,
  end: "0:0",
  begin: "0:0",
  mark: { bytes: 1000, lines: 10, events: 9, skipped: 1, sha256: "ab", position: "0:9,1:4" },
};

test("a state is read as it was written, or not at all", () => {
  assert.equal(parseState(JSON.stringify(state)), state);
  assert.equal(parseState(JSON.stringify({ ...state, createdAt: null })), { ...state, createdAt: null });
  assert.is(parseState(JSON.stringify({ ...state, skipStored: true }))?.skipStored, true);
  // As an earlier version wrote it.
  assert.equal(parseState(JSON.stringify({ ...state, skipStored: undefined })), state);
  const broken: object[] = [
    { version: 2 },
    { topic: 5 },
    { begin: "here" },
    { mark: null },
    { mark: { ...state.mark, position: "" } },
    { mark: { ...state.mark, bytes: "1000" } },
    { nonce: undefined },
  ];
  for (const part of broken)
    assert.is(parseState(JSON.stringify({ ...state, ...part })), undefined, JSON.stringify(part));
  for (const text of ["", "{", "null", "[]"]) assert.is(parseState(text), undefined, text);
});

test("an import is gone on with into the same topic only", () => {
  const wanted = { url: state.url, topic: "orders", createdAt: state.createdAt, newIds: false };
  assert.is(stateFault("o.ndjson", state, wanted), undefined);
  // The same node under another name.
  assert.is(stateFault("o.ndjson", state, { ...wanted, url: "http://bus:8090" }), undefined);
  // It was not made yet when the state was written, or the first event made it.
  assert.is(stateFault("o.ndjson", { ...state, createdAt: null }, wanted), undefined);
  const refused: [Partial<typeof wanted>, RegExp][] = [
    [{ topic: "copy" }, /was being imported into orders: finish that, or remove o.ndjson.import.json/],
    [{ newIds: true }, /without --new-ids: do the same/],
    [{ createdAt: 5 }, /the topic orders was deleted since/],
    [{ createdAt: null }, /the topic orders was deleted since/],
    [{ createdAt: 5, url: "http://bus:8090" }, /the topic orders of http:\/\/127.0.0.1:8090 is another one/],
  ];
  for (const [other, said] of refused) {
    assert.match(stateFault("o.ndjson", state, { ...wanted, ...other }) ?? "", said);
  }
  assert.match(stateFault("o.ndjson", "unreadable", wanted) ?? "", "cannot be read");
});

test("ids that an import makes are allowed, and are the same each time", () => {
  assert.is(eventIdFault(importId(state.nonce, 123_456_789)), undefined);
  assert.is(importId(state.nonce, 7), importId(state.nonce, 7));
  assert.is.not(importId(state.nonce, 7), importId(state.nonce, 8));
});

test.run();
