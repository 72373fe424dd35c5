// A front that is slower than a lease: its deadline passes while the event has not been handed to a socket, so nobody may have seen it.

import { test } from "uvu";
import * as assert from "uvu/assert";
import { type Got, LeaseHarness } from "../support/lease-harness.ts";

/** Member 1, whose lease lasts a second, was given one event, and the front has not come to it when the second is over. */
function overdue(): { h: LeaseHarness; got: Got } {
  const h = new LeaseHarness();
  h.member(1);
  h.frontHangs = true;
  h.publish({});
  const [got] = h.take();
  h.pass(1000);
  return { h, got };
}

const asks = (h: LeaseHarness) => h.takeSignals("overdue").map(({ member }) => member);
const attempts = (h: LeaseHarness) => h.take().map(({ attempt }) => attempt);

test("G6: what never reached the socket of a member that left was no attempt, however late the front was", () => {
  const { h } = overdue();
  h.member(2);
  assert.equal(attempts(h), []);
  h.leave(1, "disconnect", 0);
  assert.equal(attempts(h), [1]);
  assert.is(h.total("events_expired_total"), 0);
});

test("G6: an event does not die of deadlines that its front was too slow for", () => {
  const h = new LeaseHarness();
  for (let member = 1; member <= 5; member++) {
    h.member(member, { group: { maxAttempts: 2 } });
    h.frontHangs = true;
    if (member === 1) h.publish({});
    assert.equal(attempts(h), [1]);
    h.pass(1500);
    h.leave(member, "disconnect", 0);
    h.frontGoesOn();
  }
  assert.equal(h.buried, []);
});

test("G6: once the front says that it handed the event on, the lease is over and counted", () => {
  const { h } = overdue();
  h.member(2);
  assert.equal(asks(h), [1]);
  h.pass(300);
  assert.equal(attempts(h), []);
  h.frontGoesOn();
  assert.equal(attempts(h), [2]);
  assert.is(h.total("events_expired_total"), 1);
});

test("the front is asked once for all leases that end together, and again each second", () => {
  const h = new LeaseHarness();
  h.member(1);
  h.frontHangs = true;
  h.publishMany(20);
  h.pass(1000);
  assert.equal(asks(h), [1]);
  h.pass(999);
  assert.equal(asks(h), []);
  h.pass(1);
  assert.equal(asks(h), [1]);
});

test("what is known to have been handed on is not asked for", () => {
  const h = new LeaseHarness();
  h.member(1);
  h.publishMany(2);
  h.tell({ type: "flow", member: 1, open: true, stalled: false, written: 2 });
  h.pass(1000);
  assert.equal(asks(h), []);
  assert.is(h.total("events_expired_total"), 2);
});

test("an answer that does not know of the event yet ends nothing", () => {
  const { h } = overdue();
  h.member(2);
  h.tell({ type: "handed", member: 1, handed: 0 });
  assert.equal(attempts(h), []);
  h.tell({ type: "handed", member: 1, handed: 1 });
  assert.equal(attempts(h), [2]);
});

test("a lease that waits for the front is held: it can be acked, nacked and extended", () => {
  const acked = overdue();
  assert.is(acked.h.ack(acked.got), null);
  acked.h.frontGoesOn();
  acked.h.pass(5000);
  assert.equal(attempts(acked.h), []);

  const nacked = overdue();
  nacked.h.nack(nacked.got);
  assert.equal(attempts(nacked.h), [2]);
  nacked.h.frontGoesOn();
  assert.equal(attempts(nacked.h), []);

  const extended = overdue();
  extended.h.extend(extended.got, 3000);
  extended.h.frontGoesOn();
  extended.h.pass(2999);
  assert.equal(attempts(extended.h), []);
  extended.h.pass(1);
  assert.equal(attempts(extended.h), [2]);
});

test("G8: when its socket turns out to take nothing, the lease ends uncounted and is void", () => {
  const { h, got } = overdue();
  h.member(2);
  h.tell({ type: "flow", member: 1, open: false, stalled: true, written: 0 });
  const [again] = h.take();
  assert.equal([again.member, again.attempt], [2, 1]);
  const late = h.ack(got);
  assert.is(late !== null && late !== "stale" && late.code, "lease_lost");
});

test("a seek takes what waits for the front along", () => {
  const { h } = overdue();
  h.ask({ type: "seek", to: { kind: "earliest" } });
  assert.equal(attempts(h), [1]);
  h.frontGoesOn();
  assert.equal(attempts(h), []);
  assert.is(h.total("events_expired_total"), 0);
});

test.run();
