// The small parts by themselves: timers, tail, room, placement.

import { test } from "uvu";
import * as assert from "uvu/assert";
import { BlockView, blockHeaderBytes, writeBlockHeader } from "../../src/protocol/block.ts";
import { encodePack } from "../../src/protocol/pack.ts";
import { shardsOf, workerOf } from "../../src/runtime/placement.ts";
import { Room } from "../../src/runtime/room.ts";
import { Tail } from "../../src/runtime/tail.ts";
import { Alarm, Timers } from "../../src/runtime/timers.ts";
import { ManualClock } from "../support/manual-clock.ts";

function block(stream: number, firstOffset: number, count: number, size = 10): BlockView {
  const pack = encodePack(Array.from({ length: count }, () => ({ payload: new Uint8Array(size) })));
  const bytes = new Uint8Array(blockHeaderBytes + pack.length);
  writeBlockHeader({ stream, firstOffset, storedAt: 1, maxTs: 1, salt: 1 }, bytes, 0);
  bytes.set(pack, blockHeaderBytes);
  return new BlockView(bytes);
}

test("a thousand alarms, moved and cleared, ring as a plain sort says", () => {
  const clock = new ManualClock();
  const timers = new Timers(clock, (run) => run());
  const rung: string[] = [];
  const wanted = new Map<number, number | undefined>();
  const alarms = Array.from({ length: 200 }, (_, n) => new Alarm(() => void rung.push(`${n} at ${clock.mono()}`)));
  for (let step = 0; step < 1000; step++) {
    const n = clock.random(200);
    const at = clock.random(10) === 0 ? undefined : 1001 + clock.random(500);
    timers.set(alarms[n], at);
    wanted.set(n, at);
  }
  clock.advance(600);
  const expected = [...wanted].flatMap(([n, at]) => (at === undefined ? [] : [`${n} at ${at}`]));
  assert.equal([...rung].sort(), expected.sort());
  const times = rung.map((text) => Number(text.split(" at ")[1]));
  assert.equal(
    times,
    [...times].sort((a, b) => a - b),
  );
});

test("an alarm that moves later again and again keeps one entry and one clock timer", () => {
  const clock = new ManualClock();
  const timers = new Timers(clock, (run) => run());
  let rung = 0;
  const alarm = new Alarm(() => void rung++);
  for (let at = 2000; at < 3000; at++) timers.set(alarm, at);
  assert.is(clock.timerCount, 1);
  clock.advance(1998);
  assert.is(rung, 0);
  clock.advance(1);
  assert.is(rung, 1);
  assert.is(clock.timerCount, 0);
});

test("the tail gives what the store would give, or nothing when it begins too early or is not there yet", () => {
  const tail = new Tail(1_000_000);
  for (let n = 0; n < 5; n++) tail.add(block(1, 10 + n * 3, 3));
  tail.add(block(2, 0, 1));
  const read = (from: number, to = 99, bytesMax = 1) => {
    const result = tail.read(1, { from, to, bytesMax });
    return result && [result.blocks.map((each) => each.firstOffset), result.next];
  };
  assert.is(read(9), undefined);
  assert.equal(read(10), [[10], 13]);
  assert.equal(read(15), [[13], 16]);
  assert.equal(read(16), [[16], 19]);
  assert.equal(read(11, 99, 1_000_000), [[10, 13, 16, 19, 22], 25]);
  assert.equal(read(11, 16, 1_000_000), [[10, 13], 16]);
  // The store may have a commit of which the tail was not told.
  assert.is(read(25), undefined);
  assert.is(tail.read(3, { from: 0, to: 1, bytesMax: 1 }), undefined);
});

test("the tail forgets the oldest blocks over its bytes, and what was trimmed", () => {
  const size = block(1, 0, 1, 100).bytes.length;
  const tail = new Tail(3 * size);
  for (let n = 0; n < 3; n++) tail.add(block(1, n, 1, 100));
  tail.add(block(2, 0, 1, 100));
  const first = (stream: number) => {
    for (let from = 0; from < 10; from++) {
      if (tail.read(stream, { from, to: 99, bytesMax: 1 }) !== undefined) return from;
    }
    return undefined;
  };
  assert.equal([first(1), first(2)], [1, 0]);
  tail.trim(1, 2);
  assert.is(first(1), 2);
  tail.trim(1, null);
  assert.is(first(1), undefined);
  for (let n = 1; n < 5; n++) tail.add(block(2, n, 1, 100));
  assert.is(first(2), 2);
});

test("room hands out bytes that do not overlap, in buffers that are all given up at the end of the turn", () => {
  const room = new Room();
  const views = [3, 5, 5000, 1, 2_000_000, 8].map((bytes, n) => room.take(bytes).fill(n + 1));
  for (const [n, view] of views.entries())
    assert.ok(
      view.every((byte) => byte === n + 1),
      `part ${n}`,
    );
  const buffers = new Set(room.seal());
  for (const view of views) assert.ok(buffers.has(view.buffer as ArrayBuffer));
  assert.equal(room.seal(), []);
  assert.not.ok(buffers.has(room.take(1).buffer as ArrayBuffer));
});

test("every shard lies on one worker, and the workers share them evenly", () => {
  for (const [shards, workers] of [
    [1, 1],
    [4, 4],
    [7, 3],
    [2, 5],
  ]) {
    const placed = Array.from({ length: workers }, (_, worker) => shardsOf(worker, shards, workers));
    assert.equal(
      placed.flat().sort(),
      Array.from({ length: shards }, (_, shard) => shard),
    );
    for (const [worker, own] of placed.entries()) for (const shard of own) assert.is(workerOf(shard, workers), worker);
    assert.ok(Math.max(...placed.map((own) => own.length)) - Math.min(...placed.map((own) => own.length)) <= 1);
  }
});

test.run();
