// The way of an event that used up its attempts.

import { test } from "uvu";
import * as assert from "uvu/assert";
import { decodeCursor } from "../../src/actors/cursor.ts";
import { entryKeys } from "../../src/actors/entries.ts";
import { failure } from "../../src/protocol/failure.ts";
import { deadRecord, deadStream, LeaseHarness, record } from "../support/lease-harness.ts";

const text = (bytes: Uint8Array) => new TextDecoder().decode(bytes);

function dying(options: { maxAttempts?: number } = {}): LeaseHarness {
  const h = new LeaseHarness();
  h.member(1, { group: { maxAttempts: options.maxAttempts ?? 1 } });
  return h;
}

test("G6: the copy has payload, key, tags and headers, its origin in headers, and the old id as its cause", () => {
  const h = dying({ maxAttempts: 2 });
  h.publish(
    {},
    { id: "mine", key: "k", ts: 55, payload: { a: 1 }, meta: '{"sid":"s","headers":{"h":"1"},"tags":["t"]}' },
  );
  h.nack(h.take()[1], { reason: "first" });
  h.nack(h.take()[0], { reason: "no stock" });
  assert.is(h.buried.length, 1);
  const [{ pack, stream }] = h.buried;
  assert.equal([stream, pack.count, text(pack.payload(0))], [deadStream, 1, '{"a":1}']);
  const { key, id, ts, meta } = pack.extension(0);
  assert.equal([key, id, ts], ["k", undefined, undefined]);
  assert.equal(JSON.parse(meta!), {
    headers: {
      h: "1",
      "x-dlq-topic": "orders",
      "x-dlq-group": "g",
      "x-dlq-id": "mine",
      "x-dlq-partition": "3",
      "x-dlq-offset": "1",
      "x-dlq-attempts": "2",
      "x-dlq-reason": "no stock",
      "x-dlq-ts": "55",
    },
    tags: ["t"],
    caused_by: ["mine"],
  });
});

test("G6: the copy and the cursor that settles the event are in the same commit", () => {
  const h = dying();
  h.publish({}, {});
  const got = h.take();
  h.holdCommits = true;
  h.nack(got[0]);
  assert.is(h.buried.length, 1);
  assert.is(decodeCursor(h.buried[0].cursor!, 0).floor, 1);
});

test("G6: a crash before that commit leaves the event dying, and it is moved once after the restart", () => {
  const h = dying();
  h.deadLetterAnswer = undefined;
  h.publish({}, {});
  h.nack(h.take()[0], { reason: "why not" });
  assert.is(h.buried.length, 0);
  h.holdCommits = true;
  h.tell({ type: "answer", tag: h.asks[0].tag, answer: deadRecord });
  assert.is(h.buried.length, 0);
  h.holdCommits = false;
  h.deadLetterAnswer = deadRecord;
  h.restart();
  h.member(2);
  assert.equal(h.offsets(2), [1]);
  assert.is(h.buried.length, 1);
  const headers = JSON.parse(h.buried[0].pack.extension(0).meta!).headers;
  assert.equal([headers["x-dlq-offset"], headers["x-dlq-reason"], headers["x-dlq-attempts"]], ["0", "why not", "1"]);
  assert.is(h.cursor().floor, 1);
});

test("G6: what had used up its attempts at a crash is moved right after the restart, with no member at all", () => {
  const h = dying();
  h.deadLetterAnswer = undefined;
  h.publishMany(5);
  const got = h.take();
  h.nack(got[1], { reason: "one" });
  h.nack(got[3], { reason: "three" });
  h.ack(got[4]);
  h.deadLetterAnswer = deadRecord;
  h.restart();
  const moved = h.buried.flatMap(({ pack }) =>
    Array.from({ length: pack.count }, (_, i) => JSON.parse(pack.extension(i).meta!).headers),
  );
  assert.equal(
    moved.map((headers) => [headers["x-dlq-offset"], headers["x-dlq-reason"], headers["x-dlq-attempts"]]),
    [
      ["1", "one", "1"],
      ["3", "three", "1"],
    ],
  );
  assert.equal(
    [h.cursor().floor, h.cursor().ranges],
    [
      0,
      [
        [1, 2],
        [3, 5],
      ],
    ],
  );
  h.restart();
  h.member(2);
  assert.equal(h.offsets(2), [0, 2]);
  assert.is(h.buried.length, 1);
});

test("G6: after a restart the catalog is asked again until it answers, with no member at all", () => {
  const h = dying();
  h.deadLetterAnswer = failure("unavailable", "shard 0 is down");
  h.publish({});
  h.nack(h.take()[0]);
  h.restart();
  h.pass(900);
  h.deadLetterAnswer = deadRecord;
  assert.is(h.buried.length, 0);
  h.pass(100);
  assert.equal([h.buried.length, h.cursor().floor], [1, 1]);
});

test("G6: an event that dies after a restart is met by members before it is moved, and by more attempts", () => {
  for (const ordering of ["none", "key"] as const) {
    for (const maxAttempts of [1, 3]) {
      const h = new LeaseHarness();
      h.member(1, { group: { maxAttempts: 1, ordering } });
      h.publishMany(3, () => ({ key: "k" }));
      h.deadLetterAnswer = undefined;
      h.nack(h.take()[0]);
      h.restart();
      h.member(2, { group: { maxAttempts, ordering } });
      const again = h.take().map(({ offset, attempt }) => [offset, attempt]);
      const rest =
        ordering === "key"
          ? []
          : [
              [1, 1],
              [2, 1],
            ];
      assert.equal(again.sort(), maxAttempts === 1 ? rest : [[0, 2], ...rest]);
      h.tell({ type: "answer", tag: h.asks[0].tag, answer: deadRecord });
      assert.is(h.buried.length, maxAttempts === 1 ? 1 : 0);
      assert.equal(h.offsets(2), ordering === "key" && maxAttempts === 1 ? [1] : []);
    }
  }
});

test("an event that dies after a restart waits its turn where its key is in order by then", () => {
  const h = dying();
  h.publishMany(2, () => ({ key: "k" }));
  h.deadLetterAnswer = undefined;
  h.nack(h.take()[1]);
  h.restart();
  h.member(2, { group: { ordering: "key" } });
  h.tell({ type: "answer", tag: h.asks[0].tag, answer: deadRecord });
  assert.is(h.buried.length, 0);
  h.ack(h.take(2)[0]);
  assert.equal([h.buried.length, h.cursor().floor], [1, 2]);
});

test("fewer attempts end also what no member has come to since the restart", () => {
  const h = dying({ maxAttempts: 3 });
  h.publish({});
  h.nack(h.take()[0]);
  h.restart();
  h.join(2, { group: { maxAttempts: 1 } });
  assert.equal([h.buried.length, h.cursor().floor], [1, 1]);
});

test("a dying event that retention removes after a restart is not moved", () => {
  const h = dying();
  h.deadLetterAnswer = undefined;
  h.publish({});
  h.publish({});
  h.nack(h.take()[0]);
  h.restart();
  h.trim(1);
  h.tell({ type: "answer", tag: h.asks[0].tag, answer: deadRecord });
  assert.equal([h.buried.length, h.cursor().floor], [0, 1]);
});

test("the reason says how the last attempt ended, and is bounded", () => {
  const reasonOf = (end: (h: LeaseHarness) => void) => {
    const h = dying();
    h.publish({});
    end(h);
    return JSON.parse(h.buried[0].pack.extension(0).meta!).headers["x-dlq-reason"];
  };
  assert.is(
    reasonOf((h) => h.pass(1000)),
    "the ack deadline passed",
  );
  assert.is(
    reasonOf((h) => h.leave(1)),
    "the member disconnected",
  );
  assert.is(
    reasonOf((h) => h.leave(1, "unsubscribe")),
    "the member unsubscribed",
  );
  assert.is(
    reasonOf((h) => h.nack(h.take()[0])),
    "nacked without a reason",
  );
  const long = reasonOf((h) => h.nack(h.take()[0], { reason: "☃".repeat(1000) }));
  assert.is(long, "☃".repeat(341));
});

test("the catalog is asked once, and the partition of the dead letters opened before the first append", () => {
  const h = dying();
  h.publish({}, {}, {});
  const got = h.take();
  h.nack(got[0]);
  assert.equal(h.asked, [{ type: "deadLetter", topicId: 7, group: "g" }]);
  assert.equal(h.opened, [{ cell: `partition/${deadStream}`, message: { type: "open", record: deadRecord } }]);
  h.nack(got[1]);
  h.nack(got[2]);
  assert.equal([h.asked.length, h.opened.length, h.buried.length], [1, 1, 3]);
});

test("G6: nothing is moved to a partition of dead letters that could not be opened", () => {
  const h = dying();
  h.openFailure = failure("internal", "the partition failed on this request");
  h.publish({});
  h.nack(h.take()[0]);
  h.pass(999);
  assert.equal([h.opened.length, h.buried.length, h.cursor().floor], [1, 0, 0]);
  h.openFailure = undefined;
  h.pass(1);
  assert.equal([h.opened.length, h.buried.length, h.cursor().floor], [2, 1, 1]);
});

test("when the dead-letter topic was deleted, the catalog is asked for the new one", () => {
  const h = dying();
  h.publish({}, {});
  const got = h.take();
  h.nack(got[0]);
  h.entries.delete(entryKeys.partition(deadStream));
  const anew = { ...deadRecord, id: 12 };
  h.deadLetterAnswer = anew;
  h.nack(got[1]);
  assert.is(h.asked.length, 2);
  assert.equal(h.opened.at(-1)?.message, { type: "open", record: anew });
  assert.is(h.buried[1].stream, 12 * 64 + 3);
});

test("a catalog that refuses, or names a partition elsewhere, is asked again after a second; meanwhile nothing is lost", () => {
  const h = dying();
  h.deadLetterAnswer = failure("unavailable", "shard 0 is down");
  h.publish({}, {});
  const got = h.take();
  h.nack(got[0]);
  h.pass(999);
  assert.is(h.asked.length, 1);
  h.deadLetterAnswer = { ...deadRecord, shards: [0, 0, 0, 0] };
  h.pass(1);
  assert.is(h.asked.length, 2);
  assert.equal([h.cursor().floor, h.total("group_waiting"), h.buried.length], [0, 1 + 1, 0]);
  h.deadLetterAnswer = deadRecord;
  h.pass(1000);
  assert.is(h.cursor().floor, 2);
  assert.is(
    h.buried.reduce((sum, { pack }) => sum + pack.count, 0),
    2,
  );
});

test("a read that fails on the way to the dead letters is tried again", () => {
  const h = dying();
  h.publish({});
  const [got] = h.take();
  h.failRead();
  h.nack(got);
  assert.is(h.buried.length, 0);
  h.pass(1000);
  assert.is(h.buried.length, 1);
});

test("a dying event whose bytes are gone is settled and counted", () => {
  const h = dying();
  for (let i = 0; i < 3; i++) h.publish({});
  const got = h.take();
  h.damage(1);
  h.nack(got[1]);
  assert.equal([h.buried.length, h.total("events_skipped_total")], [0, 1]);
  h.ack(got[0]);
  assert.is(h.cursor().floor, 2);
});

test("many that die together are moved in few appends, in order", () => {
  const h = dying();
  h.publishMany(50);
  h.pass(1000);
  const moved = h.buried.flatMap(({ pack }) => Array.from({ length: pack.count }, (_, i) => text(pack.payload(i))));
  assert.equal(
    moved,
    Array.from({ length: 50 }, (_, n) => `{"n":${n}}`),
  );
  assert.is(h.buried.length, 1);
  assert.is(h.total("events_dead_lettered_total"), 50);
});

test("G7: an ack by the last lease counts until the event is in the dead letters, and not after", () => {
  const h = dying();
  h.deadLetterAnswer = undefined;
  h.publish({}, {});
  const got = h.take();
  h.pass(1000);
  assert.is(h.ack(got[0]), null);
  h.tell({ type: "answer", tag: h.asks[0].tag, answer: deadRecord });
  assert.equal(
    h.buried.map(({ pack }) => text(pack.payload(0))),
    ['{"n":1}'],
  );
  assert.is((h.ack(got[1]) as { code: string }).code, "lease_lost");
  assert.is(h.ack(got[1], { named: false }), "stale");
});

test("G7: an extension by the last lease takes a dying event back", () => {
  const h = dying();
  h.deadLetterAnswer = undefined;
  h.publish({});
  const [got] = h.take();
  h.pass(1000);
  assert.is(h.extend(got, 500), null);
  h.tell({ type: "answer", tag: h.asks[0].tag, answer: deadRecord });
  assert.is(h.buried.length, 0);
  h.pass(500);
  assert.is(h.buried.length, 1);
});

test("fewer attempts end what has used them up, in backoff and ready, and more attempts spare it", () => {
  for (const maxAttempts of [2, 9]) {
    const h = new LeaseHarness();
    h.member(1, { group: { maxAttempts: 5 } });
    h.publishMany(3);
    for (const got of h.take()) h.nack(got);
    const [slow, ready] = h.take();
    h.nack(slow, { delayMs: 100 });
    h.leave(1, "unsubscribe", 5);
    assert.is(ready.attempt, 2);
    h.join(2, { group: { maxAttempts } });
    h.pass(100);
    h.grant(2);
    assert.equal(
      h
        .take(2)
        .map(({ offset, attempt }) => [offset, attempt])
        .sort(),
      maxAttempts === 9
        ? [
            [0, 3],
            [1, 3],
            [2, 2],
          ]
        : [[2, 2]],
    );
    assert.is(h.total("events_dead_lettered_total"), maxAttempts === 9 ? 0 : 2);
  }
});

test("a dead-letter topic has no dead letters: past the last attempt an event goes on, at least a second apart", () => {
  const h = new LeaseHarness({ record: { ...record, deadLetterOf: { topic: "x", group: "y" } } });
  h.member(1, { group: { maxAttempts: 2 } });
  h.publish({});
  h.nack(h.take()[0]);
  assert.is(h.take()[0].attempt, 2);
  h.pass(1000);
  assert.equal(h.take(), []);
  h.pass(999);
  assert.equal(h.take(), []);
  h.pass(1);
  assert.is(h.take()[0].attempt, 3);
  assert.equal([h.asked.length, h.cursor().floor], [0, 0]);
});

test.run();
