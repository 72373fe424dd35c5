// What comes again waits until the store knows of the attempt that ended, so that over a crash the number never falls.

import { test } from "uvu";
import * as assert from "uvu/assert";
import type { CursorState } from "../../src/actors/messages.ts";
import { type Got, LeaseHarness } from "../support/lease-harness.ts";

const attempts = (got: readonly Got[]) => got.map(({ offset, attempt }) => [offset, attempt]);

/** Members 1 and 2; event 0 is with member 1, and from here on commits wait for the test. */
function leased(options: Parameters<LeaseHarness["member"]>[1] = {}): { h: LeaseHarness; got: Got } {
  const h = new LeaseHarness();
  h.member(1, options);
  h.publish({});
  const [got] = h.take();
  h.member(2, options);
  h.holdCommits = true;
  h.peek = true;
  return { h, got };
}

const ends: Record<string, (h: LeaseHarness, got: Got) => void> = {
  "a deadline": (h) => h.pass(1000),
  "a NACK": (h, got) => void h.nack(got),
  "a disconnect": (h) => h.leave(1),
  "an unsubscribe": (h) => h.leave(1, "unsubscribe"),
};

for (const [name, end] of Object.entries(ends)) {
  test(`G6: after ${name} attempt 2 leaves when the end of attempt 1 is durable, and not before`, () => {
    const { h, got } = leased();
    end(h, got);
    assert.equal(h.take(), []);
    h.beginCommit();
    h.pass(5);
    assert.equal(h.take(), []);
    h.endCommit();
    assert.equal(attempts(h.take()), [[0, 2]]);
  });

  test(`G6: a crash in between takes ${name} back, and no attempt falls`, () => {
    for (const begun of [false, true]) {
      const { h, got } = leased();
      end(h, got);
      if (begun) h.beginCommit();
      h.restart();
      h.member(3);
      assert.equal(attempts(h.take()), [[0, 1]]);
    }
  });
}

test("G6: an attempt that was delivered is not undercut after a crash at once", () => {
  const { h, got } = leased();
  h.nack(got);
  h.commit();
  const [second] = h.take();
  h.nack(second);
  h.restart();
  h.member(3);
  assert.equal([second.attempt, ...attempts(h.take())], [2, [0, 2]]);
});

test("what ends while a commit is under way waits for the next one", () => {
  const { h, got } = leased();
  h.publish({});
  const [other] = h.take();
  h.nack(got);
  h.beginCommit();
  h.nack(other);
  h.endCommit();
  assert.equal(attempts(h.take()), [[0, 2]]);
  assert.equal([h.gathers, h.tells], ["soon", true]);
  h.commit();
  assert.equal(attempts(h.take()), [[1, 2]]);
});

test("one commit covers all that ended, and it hurries only when someone can have an event at once", () => {
  const { h } = leased({ slots: 60 });
  h.publishMany(99);
  h.take();
  const before = h.persistCalls;
  h.leave(1);
  assert.equal([h.gathers, h.tells], ["soon", true]);
  h.commit();
  assert.is(h.persistCalls, before + 1);
  assert.equal(
    h.take(2).map(({ attempt }) => attempt),
    Array.from({ length: 20 }, () => 2),
  );
  assert.equal([h.gathers, h.tells], ["nothing", false]);

  // Nobody is left to take them.
  h.leave(2);
  assert.equal([h.gathers, h.tells], ["later", true]);
  h.member(3);
  assert.is(h.gathers, "soon");
});

test("what waits for its backoff does not hurry, unless the backoff is over first", () => {
  const { h, got } = leased();
  h.nack(got, { delayMs: 5 });
  assert.equal([h.gathers, h.tells], ["later", true]);
  h.pass(5);
  assert.equal([h.gathers, h.tells, h.take()], ["soon", true, []]);
  h.commit();
  assert.equal(attempts(h.take()), [[0, 2]]);
});

test("a backoff goes on when the commit is over", () => {
  const { h, got } = leased();
  h.nack(got, { delayMs: 50 });
  h.commit();
  h.pass(49);
  assert.equal([h.take(), h.gathers], [[], "nothing"]);
  h.pass(1);
  assert.equal(attempts(h.take()), [[0, 2]]);
});

test("acks alone neither hurry nor ask to be told", () => {
  const { h, got } = leased();
  h.ack(got);
  assert.equal([h.gathers, h.tells], ["later", false]);
  h.commit();
  assert.equal([h.gathers, h.cursor().floor], ["nothing", 1]);
});

test("G6: what goes back uncounted comes again at once", () => {
  const shutdown = leased();
  shutdown.h.leave(1, "shutdown");
  assert.equal(attempts(shutdown.h.take(2)), [[0, 1]]);

  const unwritten = leased();
  unwritten.h.leave(1, "disconnect", 0);
  assert.equal(attempts(unwritten.h.take(2)), [[0, 1]]);

  const stalled = leased();
  stalled.h.tell({ type: "flow", member: 1, open: false, stalled: true, written: 0 });
  stalled.h.pass(1000);
  assert.equal(attempts(stalled.h.take(2)), [[0, 1]]);
});

test("G7: a late ACK counts while the event waits for the commit, also one under way", () => {
  for (const begun of [false, true]) {
    const { h, got } = leased();
    h.pass(1000);
    if (begun) h.beginCommit();
    assert.is(h.ack(got), null);
    h.commit();
    assert.equal([h.take(), h.cursor().floor], [[], 1]);
  }
});

test("G7: a late NACK gives the wait of an event that waits for the commit", () => {
  const { h, got } = leased();
  h.pass(1000);
  assert.is(h.nack(got, { delayMs: 30 }), null);
  h.commit();
  assert.equal(h.take(), []);
  h.pass(30);
  assert.equal(attempts(h.take()), [[0, 2]]);
});

test("G7: a lease extended in between ends anew, and the commit that held its first end is not enough", () => {
  const { h, got } = leased();
  h.pass(1000);
  h.beginCommit();
  assert.is(h.extend(got, 10), null);
  h.pass(10);
  h.endCommit();
  assert.equal(h.take(), []);
  h.commit();
  assert.equal(attempts(h.take()), [[0, 2]]);
});

test("a seek forgets what waits for the commit", () => {
  const { h, got } = leased();
  h.nack(got);
  h.beginCommit();
  assert.is(h.ask<CursorState>({ type: "seek", to: { kind: "earliest" } }).floor, 0);
  assert.equal(attempts(h.take()), [[0, 1]]);
  h.endCommit();
  h.commit();
  assert.equal([h.take(), h.cursor().leased], [[], 1]);
});

test("retention and the end of the group take along what waits for the commit", () => {
  const trimmed = leased();
  trimmed.h.nack(trimmed.got);
  trimmed.h.trim(1);
  trimmed.h.commit();
  assert.equal([trimmed.h.take(), trimmed.h.cursor().floor], [[], 1]);

  const dropped = leased();
  dropped.h.nack(dropped.got);
  dropped.h.tell({ type: "dropGroup" });
  assert.equal([dropped.h.take(), dropped.h.stopped, dropped.h.cursor().exists], [[], 1, false]);
});

test("what comes again keeps its place before fresh events, and others use the slots that it does not need", () => {
  const alone = new LeaseHarness();
  alone.member(1, { slots: 1 });
  alone.publishMany(3);
  const [first] = alone.take();
  alone.nack(first);
  assert.equal(attempts(alone.take()), [[0, 2]]);

  const h = new LeaseHarness();
  h.member(1, { slots: 3 });
  h.publishMany(3);
  const got = h.take();
  h.holdCommits = true;
  h.peek = true;
  h.nack(got[1]);
  h.publishMany(3);
  assert.equal(h.take(), []);
  h.ack(got[0]);
  assert.equal(attempts(h.take()), [[3, 1]]);
  h.commit();
  assert.equal(attempts(h.take()), [[1, 2]]);
});

test("G6: the last attempt after a disconnect is delivered alone, once it is durable", () => {
  const { h } = leased({ group: { maxAttempts: 2 } });
  h.tell({ type: "flow", member: 1, open: false, stalled: false, written: 1 });
  h.publish({});
  assert.equal(h.offsets(2), [1]);
  h.leave(1);
  h.commit();
  assert.equal(h.take(), []);
  h.settle(2, { id: h.idOf(1), ack: true });
  assert.equal(attempts(h.take()), [[0, 2]]);
});

test("fewer attempts end what waits for the commit", () => {
  const { h, got } = leased({ group: { maxAttempts: 5 } });
  h.nack(got);
  h.member(3, { group: { maxAttempts: 1 } });
  h.commit();
  assert.equal([h.take(), h.total("events_dead_lettered_total")], [[], 1]);
});

test.run();
