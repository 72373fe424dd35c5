import { test } from "uvu";
import * as assert from "uvu/assert";
import { Deadlines } from "../../src/actors/deadlines.ts";
import { LeaseRing, leaseState } from "../../src/actors/lease-ring.ts";

function lease(ring: LeaseRing, offset: number, floor: number): number {
  ring.advance(offset + 1, floor);
  const slot = ring.claim(offset);
  ring.token[slot] = offset + 1000;
  ring.until[slot] = offset;
  ring.storedAt[slot] = offset * 2;
  ring.salt[slot] = offset % 1000;
  ring.enter(slot, leaseState.leased);
  return slot;
}

function facts(ring: LeaseRing, offset: number): readonly number[] {
  const slot = ring.slotOf(offset);
  return [ring.owner[slot], ring.state[slot], ring.token[slot], ring.until[slot], ring.storedAt[slot], ring.salt[slot]];
}

test("what is known of an event stays when the ring grows", () => {
  const ring = new LeaseRing(4000);
  for (let offset = 100; offset < 3100; offset++) lease(ring, offset, 100);
  for (let offset = 100; offset < 3100; offset++) {
    assert.equal(facts(ring, offset), [offset, 1, offset + 1000, offset, offset * 2, offset % 1000]);
  }
  assert.is(ring.unsettled, 3000);
});

test("one event that stays unsettled lets millions settle above it", () => {
  const ring = new LeaseRing(300);
  const stays = [5, 6, 40];
  for (let offset = 0; offset < 20_000; offset++) {
    const slot = lease(ring, offset, 5);
    if (!stays.includes(offset)) ring.enter(slot, leaseState.settled);
  }
  for (const offset of stays) {
    assert.equal(facts(ring, offset), [offset, 1, offset + 1000, offset, offset * 2, offset % 1000]);
  }
  assert.equal(ring.unsettledBelow(20_000, 5), stays);
  ring.enter(ring.slotOf(6), leaseState.settled);
  assert.is(ring.slotOf(6), -1);
  assert.equal(ring.unsettledBelow(20_000, 5), [5, 40]);
});

test("many stragglers find place behind the ring, and give it back", () => {
  const ring = new LeaseRing(600);
  for (let round = 0; round < 5; round++) {
    const first = round * 10_000;
    for (let offset = first; offset < first + 10_000; offset++) {
      const slot = lease(ring, offset, first);
      if (offset % 20 !== 0) ring.enter(slot, leaseState.settled);
    }
    const stays = Array.from({ length: 500 }, (_, i) => first + i * 20);
    assert.equal(ring.unsettledBelow(first + 10_000, first), stays);
    for (const offset of stays) ring.enter(ring.slotOf(offset), leaseState.settled);
    assert.is(ring.unsettled, 0);
  }
  assert.ok(ring.state.length < 3000, `${ring.state.length} places for at most 1,012`);
});

test("a settled event keeps its token until its place is used again", () => {
  const ring = new LeaseRing(256);
  ring.enter(lease(ring, 3, 3), leaseState.settled);
  assert.is(ring.token[ring.slotOf(3)], 1003);
  for (let offset = 4; offset < 4 + 256; offset++) ring.enter(lease(ring, offset, offset), leaseState.settled);
  assert.is(ring.slotOf(3), -1);
});

test("an id of the publisher's own is known as long as its event has a place", () => {
  const ring = new LeaseRing(256);
  lease(ring, 0, 0);
  ring.name(0, "mine");
  for (let offset = 1; offset < 2000; offset++) ring.enter(lease(ring, offset, 0), leaseState.settled);
  assert.equal(ring.find("mine"), [0]);
  ring.enter(ring.slotOf(0), leaseState.settled);
  assert.equal(ring.find("mine"), []);
  ring.name(1999, "later");
  for (let offset = 2000; offset < 2300; offset++) ring.enter(lease(ring, offset, offset), leaseState.settled);
  assert.equal(ring.find("later"), []);
});

test("two events never share a place", () => {
  const ring = new LeaseRing(256);
  lease(ring, 0, 0);
  assert.throws(() => ring.claim(256), /taken by 0/);
});

// ---------------------------------------------------------------------------------------------------------- deadlines

function timed(): { ring: LeaseRing; deadlines: Deadlines; add(length: number, offset: number, at: number): void } {
  const ring = new LeaseRing(4096);
  const deadlines = new Deadlines(ring, leaseState.leased);
  return {
    ring,
    deadlines,
    add(length, offset, at) {
      const slot = ring.slotOf(offset) < 0 ? lease(ring, offset, 0) : ring.slotOf(offset);
      ring.alarm[slot] = at;
      deadlines.add(length, offset, 1, at);
    },
  };
}

function fired(deadlines: Deadlines, now: number): number[] {
  const offsets: number[] = [];
  deadlines.fire(now, (offset) => offsets.push(offset));
  return offsets;
}

test("deadlines of different lengths fire in time, each once", () => {
  const { ring, deadlines, add } = timed();
  add(100, 0, 100);
  add(30, 1, 40);
  add(100, 2, 110);
  add(30, 3, 45);
  assert.is(deadlines.earliest(), 40);
  const settle = (offsets: number[]) => {
    for (const offset of offsets) ring.enter(ring.slotOf(offset), leaseState.settled);
    return offsets;
  };
  assert.equal(settle(fired(deadlines, 39)), []);
  assert.equal(settle(fired(deadlines, 45)), [1, 3]);
  assert.is(deadlines.earliest(), 100);
  assert.equal(settle(fired(deadlines, 1000)), [0, 2]);
  assert.is(deadlines.earliest(), Number.POSITIVE_INFINITY);
});

test("a settled or extended event leaves nothing that fires", () => {
  const { ring, deadlines, add } = timed();
  add(10, 0, 10);
  add(10, 1, 10);
  ring.enter(ring.slotOf(0), leaseState.settled);
  ring.alarm[ring.slotOf(1)] = 50;
  deadlines.addAlone(1, 1, 50);
  assert.equal(fired(deadlines, 20), []);
  assert.is(deadlines.earliest(), 50);
  assert.equal(fired(deadlines, 50), [1]);
});

test("more lengths than queues still fire in time", () => {
  const { deadlines, add } = timed();
  for (let i = 0; i < 40; i++) add(1000 - i, i, 1000 - i);
  assert.is(deadlines.earliest(), 961);
  assert.equal(fired(deadlines, 970).sort(), [30, 31, 32, 33, 34, 35, 36, 37, 38, 39]);
});

test("a time that falls behind the one before it still fires in time", () => {
  const { deadlines, add } = timed();
  add(100, 0, 100);
  add(100, 1, 90);
  assert.is(deadlines.earliest(), 90);
  assert.equal(fired(deadlines, 95), [1]);
});

test("dead entries are swept out, however long their time is", () => {
  const { ring, deadlines, add } = timed();
  add(1e9, 0, 1e9);
  for (let i = 1; i < 3000; i++) {
    add(1e9, i, 1e9 + i);
    ring.enter(ring.slotOf(i), leaseState.settled);
    ring.alarm[ring.slotOf(0)] = 2e9 - i;
    deadlines.addAlone(0, 1, 2e9 - i);
  }
  assert.ok(deadlines.entryCount < 300, `${deadlines.entryCount} entries for one lease`);
  assert.is(deadlines.earliest(), 2e9 - 2999);
});

test.run();
