// Leases that are given back unused: nobody has begun with the event, so that is no attempt.

import { test } from "uvu";
import * as assert from "uvu/assert";
import type { EventFacts, LeaseRun, RunsSettled } from "../../src/actors/messages.ts";
import { type Got, LeaseHarness } from "../support/lease-harness.ts";

const attempts = (got: readonly Got[]) => got.map(({ offset, attempt }) => [offset, attempt]);
const runOf = ({ offset, epoch, token }: Got): LeaseRun => ({ offset, count: 1, epoch, token });

function release(h: LeaseHarness, ...got: Got[]): readonly LeaseRun[] {
  return h.ask<RunsSettled>({ type: "settleRuns", member: 1, verb: "release", runs: got.map(runOf) }).lost;
}

/** As a client does before it gives back what it has: otherwise it would get that again. */
function pauseMember(h: LeaseHarness, member: number): void {
  h.tell({ type: "flow", member, open: false, stalled: false, written: 1000 });
}

test("what is released comes again at once, before fresh events, as the attempt that it was", () => {
  const h = new LeaseHarness();
  h.member(1, { slots: 4, group: { maxAttempts: 2, backoffMs: 500 } });
  h.publishMany(6);
  const got = h.take();
  h.nack(got[2], { delayMs: 0 });
  const [again] = h.take();
  assert.equal(attempts([...got, again]), [
    [0, 1],
    [1, 1],
    [2, 1],
    [3, 1],
    [2, 2],
  ]);
  pauseMember(h, 1);
  assert.equal(release(h, got[1], again, got[3]), []);
  h.member(2);
  assert.equal(attempts(h.take(2)), [
    [1, 1],
    [2, 2],
    [3, 1],
    [4, 1],
    [5, 1],
  ]);
  assert.is(h.cursor().leased, 6);
  assert.is(h.total("events_nacked_total"), 1);
  assert.is(h.total("events_redelivered_total"), 2, "both times the one that had been attempted");
});

test("with one attempt nothing that is released becomes a dead letter", () => {
  const h = new LeaseHarness();
  h.member(1, { group: { maxAttempts: 1 } });
  h.publishMany(3);
  const got = h.take();
  pauseMember(h, 1);
  release(h, ...got.slice(1));
  h.leave(1, "unsubscribe");
  h.member(2);
  assert.equal(attempts(h.take()), [
    [1, 1],
    [2, 1],
  ]);
  assert.is(h.total("events_dead_lettered_total"), 1, "the one that was not released");
});

test("a lease ends with its release: whatever names it afterwards is lost", () => {
  const h = new LeaseHarness();
  h.member(1);
  h.publishMany(1);
  const [got] = h.take();
  pauseMember(h, 1);
  release(h, got);
  for (const verb of ["ack", "nack", "release"] as const) {
    assert.equal(h.ask({ type: "settleRuns", member: 1, verb, runs: [runOf(got)] }), { lost: [runOf(got)] }, verb);
  }
  assert.is(h.ack(got, { named: false }), "stale");
  h.member(2);
  const [next] = h.take();
  assert.equal(release(h, got), [runOf(got)]);
  assert.is(h.ack(next), null);
  assert.equal(release(h, next), [], "settled by this lease: no news");
  assert.is(h.cursor().floor, 1);
});

test("a released event stays in front of its key", () => {
  const h = new LeaseHarness();
  h.member(1, { group: { ordering: "key" } });
  h.publish({ key: "k" }, { key: "k" });
  const [got] = h.take();
  pauseMember(h, 1);
  release(h, got);
  h.member(2);
  const [next] = h.take();
  assert.equal(attempts([next]), [[0, 1]]);
  h.ack(next);
  assert.equal(attempts(h.take()), [[1, 1]]);
});

test("an event that must be alone is so again, and frees its member", () => {
  const h = new LeaseHarness();
  h.member(1, { group: { maxAttempts: 2 } });
  h.publishMany(1);
  h.leave(1);
  h.take();
  h.member(1);
  const [alone] = h.take();
  assert.equal(attempts([alone]), [[0, 2]]);
  h.publishMany(1);
  assert.equal(h.take(), []);
  pauseMember(h, 1);
  release(h, alone);
  h.member(2);
  assert.equal(attempts(h.take(2)), [[0, 2]]);
  h.tell({ type: "flow", member: 1, open: true, stalled: false, written: 1000 });
  assert.equal(attempts(h.take(1)), [[1, 1]]);
});

for (const maxAttempts of [1, 5]) {
  test(`past its deadline a release takes the attempt back, of ${maxAttempts}`, () => {
    const h = new LeaseHarness();
    h.deadLetterAnswer = undefined;
    h.member(1, { group: { maxAttempts, backoffMs: 700 } });
    h.publishMany(1);
    const [got] = h.take();
    pauseMember(h, 1);
    h.pass(1000);
    assert.is(h.storedAttempts(0), 1);
    assert.equal(release(h, got), []);
    assert.is(h.storedAttempts(0), 0);
    h.member(2);
    assert.equal(attempts(h.take()), [[0, 1]]);
    h.pass(999);
    assert.equal([h.cursor().leased, h.buried.length], [1, 0]);
  });
}

test("G6: over a crash a released attempt does not fall below what was seen", () => {
  for (const lapsed of [false, true]) {
    const h = new LeaseHarness();
    h.member(1);
    h.publishMany(1);
    h.nack(h.take()[0]);
    const [second] = h.take();
    assert.is(second.attempt, 2);
    h.holdCommits = true;
    h.peek = true;
    pauseMember(h, 1);
    if (lapsed) {
      h.pass(1000);
      h.beginCommit();
    }
    release(h, second);
    h.member(2);
    assert.equal(attempts(h.take()), [[0, 2]], "it waits for no commit");
    h.restart();
    h.member(3);
    assert.equal(attempts(h.take()), [[0, 2]]);
  }
});

test("history says who gave it back", () => {
  const h = new LeaseHarness();
  h.member(1);
  h.publishMany(2);
  const got = h.take();
  pauseMember(h, 1);
  release(h, got[0]);
  h.pass(1000);
  release(h, got[1]);
  const told = (offset: number) => {
    const { state, attempts, holdings } = h.ask<EventFacts>({ type: "history", offset });
    return [state, attempts, ...holdings.map(({ who, attempt, outcome, counted }) => [who, attempt, outcome, counted])];
  };
  assert.equal(told(0), ["ready", 0, ["client 1", 1, "released", false]]);
  assert.equal(told(1), ["ready", 0, ["client 1", 1, "expired", true], ["client 1", 1, "released", false]]);
});

test.run();
