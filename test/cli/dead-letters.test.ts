import { test } from "uvu";
import * as assert from "uvu/assert";
import { type DeadLetter, deadLetterOf, matches, redriveId } from "../../src/cli/dead-letters.ts";
import { readLine } from "../../src/cli/import-line.ts";
import { eventIdFault } from "../../src/protocol/names.ts";

const letter: DeadLetter = {
  id: "01a1ee96-0457-7000-8000-000000000000",
  ts: 1_795_004_171_351,
  topic: "orders",
  group: "billing",
  eventId: "order:1",
  attempts: 5,
  reason: "Timeout of the bank",
  key: "customer-7",
  tags: undefined,
  headers: undefined,
  payload: "1",
};

test("a dead letter gets the same id each time it is redriven, and no two get the same", () => {
  assert.is(redriveId(letter.id), `redrive:${letter.id}`);
  const ids = ["a", "a".repeat(120), "a".repeat(121), "a".repeat(127), "a".repeat(128), `${"a".repeat(127)}b`];
  for (const id of ids) {
    assert.is(redriveId(id), redriveId(id));
    assert.is(eventIdFault(redriveId(id)), undefined, id);
  }
  assert.is(new Set(ids.map(redriveId)).size, ids.length);
});

test("where a dead letter came from is in its headers, and those of the publisher are kept apart", () => {
  const line = readLine(
    Buffer.from(
      '{"id":"l1","ts":9,"topic":"orders.dlq.billing","partition":0,"offset":0,"key":"k","headers":{"traceparent":"00","x-dlq-topic":"orders","x-dlq-group":"billing","x-dlq-id":"order:1","x-dlq-partition":"0","x-dlq-offset":"4","x-dlq-attempts":"3","x-dlq-reason":"no stock","x-dlq-ts":"5"},"tags":["eu"],"caused_by":["order:1"],"payload":{"n":1.0}}',
    ),
  );
  assert.equal(deadLetterOf(line as Exclude<typeof line, string>), {
    id: "l1",
    ts: 9,
    topic: "orders",
    group: "billing",
    eventId: "order:1",
    attempts: 3,
    reason: "no stock",
    key: "k",
    tags: ["eu"],
    headers: { traceparent: "00" },
    payload: '{"n":1.0}',
  });
});

test("dead letters are chosen by id, reason and key, all of which must hold", () => {
  assert.ok(matches(letter, {}));
  assert.ok(matches(letter, { ids: new Set([letter.id]) }));
  assert.ok(matches(letter, { ids: new Set(["order:1"]) }));
  assert.not(matches(letter, { ids: new Set(["order:2"]) }));
  assert.ok(matches(letter, { reason: "timeout" }));
  assert.not(matches(letter, { reason: "refused" }));
  assert.ok(matches(letter, { key: "customer-7", reason: "bank" }));
  assert.not(matches(letter, { key: "customer", reason: "bank" }));
  assert.not(matches({ ...letter, key: undefined }, { key: "customer-7" }));
});

test.run();
