// A few rounds of the harness in the suite, and proof that it can fail: each kind of loss, told to the journal by hand, is seen.
// `npm run crash -- --rounds 1000` is the long run.

import { test } from "uvu";
import * as assert from "uvu/assert";
import type { EventFrame } from "../support/plain-client.ts";
import { logEnvironment } from "./environment.ts";
import type { Exported } from "./exporting.ts";
import type { CursorAnswer, GroupPlan } from "./group-facts.ts";
import { GroupModel } from "./group-model.ts";
import { Journal } from "./journal.ts";
import { crashRun } from "./run.ts";
import { Publication, type Stored, TopicLog } from "./topic-log.ts";

const plan: GroupPlan = { name: "g", maxAttempts: 3, backoffMs: 0, ackTimeoutMs: 10_000 };

/** A topic of one partition with events 1 to `count`, all confirmed, and a group on it. */
function journalled(count: number, more: Partial<GroupPlan> = {}, leases = new Set<string>()) {
  const journal = new Journal();
  const log = new TopicLog({ name: "t", partitions: 1, retentionMs: undefined, journal, leases });
  log.shards = [0];
  const group = new GroupModel({ ...plan, ...more }, log, journal);
  const events: Stored[] = [];
  for (let n = 1; n <= count; n++) {
    const facts = { n, log, key: "k", ownId: `own:${n}`, tags: undefined, lane: "plain c1" };
    const publication = new Publication(facts);
    log.add(publication);
    log.sent(publication);
    const place = { id: `own:${n}`, ts: 1000 + n, partition: 0, offset: n - 1 };
    log.confirmed(publication, place, "c1");
    events.push({ ...place, topic: "t", key: "k", payload: publication.payload });
  }
  const read = (found: readonly Stored[] = events): Exported => ({ events: found, next: [found.length] });
  const verify = (found: Exported) => log.verify(found, log.expectation(true), performance.now());
  const deliver = (offset: number, attempt: number, lease: string, member = "c1") => {
    const ctx = { attempt, max_attempts: group.plan.maxAttempts, ack_deadline_ms: 10_000, lease };
    return group.delivered({ topic: "t", group: "g", event: events[offset], ctx } as EventFrame, member);
  };
  const cursor = (floor: number, ranges: readonly (readonly [number, number])[] = []): CursorAnswer => ({
    exists: true,
    lag: 0,
    partitions: [{ floor, ranges, end: count }],
  });
  return { journal, log, group, events, read, verify, deliver, cursor };
}

test("the journal sees a log that lost, doubled, moved or invented an event", () => {
  const whole = journalled(4);
  whole.verify(whole.read());
  whole.verify(whole.read());
  assert.is(whole.journal.violation, undefined);
  const spoil = (change: (events: Stored[]) => Stored[], reason: RegExp) => {
    const one = journalled(4);
    assert.throws(() => one.verify(one.read(change(structuredClone(one.events)))), reason);
  };
  spoil((events) => events.slice(0, 3), /ends at 3, known are 4/);
  spoil((events) => [...events, { ...events[3], offset: 4 }], /stored twice/);
  spoil((events) => events.map((event) => ({ ...event, payload: { n: 9, pad: "" } })), /nobody published/);
  spoil((events) => events.map((event, i) => ({ ...event, ts: i === 2 ? 7 : event.ts })), /was confirmed as own:3/);
  spoil((events) => events.filter(({ offset }) => offset !== 1), /stands where 1 belongs/);
  spoil(([a, b, c, d]) => [a, { ...c, offset: 1 }, { ...b, offset: 2 }, d], /was confirmed|behind/);
});

test("the journal sees a log that changed after it was read, and an event that was refused", () => {
  const one = journalled(2);
  one.verify(one.read());
  const other = one.events.map((event) => ({ ...event, ts: event.ts + 1 }));
  assert.throws(() => one.verify(one.read(other)), /it was/);
  const two = journalled(1);
  const { log } = two;
  const refused = new Publication({ n: 2, log, key: undefined, ownId: undefined, tags: undefined, lane: undefined });
  log.add(refused);
  log.sent(refused);
  log.refused(refused, "publish_failed", "c1");
  const stored = { id: "x", ts: 1, topic: "t", partition: 0, offset: 1, payload: refused.payload };
  assert.throws(() => two.verify(two.read([...two.events, stored])), /refused with publish_failed/);
});

test("the journal sees a settled event that comes again, a doubled lease, a token used twice, attempts that fall or jump", () => {
  const acked = journalled(2);
  const held = acked.deliver(0, 1, "1-1");
  acked.group.ackSent(held, "named");
  acked.group.ackAnswered(held, held, "ok");
  assert.throws(() => acked.deliver(0, 1, "2-1"), /was acked as 1-1/);

  const doubled = journalled(2);
  doubled.deliver(0, 1, "1-1");
  assert.throws(() => doubled.deliver(0, 2, "1-2", "c2"), /c1 holds it as 1-1/);

  const made = journalled(1);
  assert.throws(() => made.group.subscribed(true, "0:0", made.group.known()), /nobody made it/);

  const token = journalled(2);
  token.deliver(0, 1, "1-1");
  assert.throws(() => token.deliver(1, 1, "1-1"), /given before/);
  // Another topic of the same shard.
  const leases = new Set<string>();
  journalled(1, {}, leases).deliver(0, 1, "1-1");
  assert.throws(() => journalled(1, {}, leases).deliver(0, 1, "1-1"), /given before/);

  const nacked = (attempt: number) => {
    const one = journalled(2);
    const first = one.deliver(0, 1, "1-1");
    one.group.nackSent(first, "no");
    one.group.nackAnswered(first, first, "ok");
    one.deliver(0, attempt, "2-1");
    one.group.settleDoubts();
  };
  nacked(2);
  assert.throws(() => nacked(1), /this is 2 at least/);
  assert.throws(() => nacked(3), /this is 2 at most/);

  const cut = journalled(2);
  cut.deliver(0, 1, "1-1");
  cut.deliver(0, 1, "2-1");
  cut.group.settleDoubts();
});

test("the journal sees a cursor that forgot an ack, covers what nobody settled, or fell", () => {
  const one = journalled(4);
  one.verify(one.read());
  const held = one.deliver(1, 1, "1-1");
  one.group.ackSent(held, "named");
  one.group.ackAnswered(held, held, "ok");
  const check = (answer: CursorAnswer) => {
    one.group.checkCursor(answer, { at: performance.now() + 1, ends: [4] });
    one.group.settleDoubts();
  };
  check(one.cursor(0, [[1, 2]]));
  assert.throws(() => check(one.cursor(0)), /1 was acked as 1-1/);
  const two = journalled(4);
  two.verify(two.read());
  two.group.checkCursor(two.cursor(2), { at: performance.now() + 1, ends: [4] });
  assert.throws(() => two.group.settleDoubts(), /covered, and nobody settled it/);
  const three = journalled(4);
  three.group.moved(three.cursor(3));
  assert.throws(() => three.group.checkCursor(three.cursor(1), { at: 0, ends: [4] }), /the floor fell/);
});

test("the journal sees a dead letter that is doubled, of nobody, or of an event that was acked", () => {
  const letter = (offset: number, at: number, events: readonly Stored[]): Stored => ({
    ...events[offset],
    topic: "t.dlq.g",
    id: `dead-${at}`,
    offset: at,
    caused_by: [events[offset].id],
    headers: {
      "x-dlq-topic": "t",
      "x-dlq-group": "g",
      "x-dlq-id": events[offset].id,
      "x-dlq-partition": "0",
      "x-dlq-offset": String(offset),
      "x-dlq-attempts": "3",
      "x-dlq-reason": "the ack deadline passed",
      "x-dlq-ts": String(events[offset].ts),
    },
  });
  const read = (one: ReturnType<typeof journalled>, letters: readonly Stored[]) => {
    one.verify(one.read());
    one.group.letters.verify({ events: letters, next: [letters.length] }, new Map(), []);
    one.group.settleDoubts();
  };
  const dying = () => {
    const one = journalled(2);
    for (const attempt of [1, 2, 3]) one.deliver(0, attempt, `${attempt}-1`);
    return one;
  };
  const fine = dying();
  read(fine, [letter(0, 0, fine.events)]);
  const twice = dying();
  assert.throws(() => read(twice, [letter(0, 0, twice.events), letter(0, 1, twice.events)]), /not the first/);
  const early = dying();
  assert.throws(() => read(early, [letter(1, 0, early.events)]), /only 0 attempts/);
  const acked = dying();
  const held = acked.group.stateOf(0, 0, 1).held[2];
  acked.group.ackSent(held, "named");
  acked.group.ackAnswered(held, held, "ok");
  assert.throws(() => read(acked, [letter(0, 0, acked.events)]), /was acked as 3-1/);
});

test("a few rounds of SIGKILL under load", async () => {
  const environment = logEnvironment();
  const { violation, rounds, seconds, table } = await crashRun({
    rounds: 8,
    roundsMin: 4,
    minutes: 0.4,
    seed: 11,
    workersMax: 3,
    environment,
  });
  if (violation !== undefined) console.log(violation.story);
  assert.is(violation?.what, undefined);
  const of = (name: string) => table.find(([row]) => row === name)?.[1] ?? 0;
  assert.ok(rounds >= 4, `${rounds} rounds`);
  const least = {
    "publishes confirmed": 150,
    "confirmed publishes found at their place": 100,
    "acks: confirmed": 100,
    "nacks: confirmed": 5,
    redeliveries: 10,
    "cursors compared": 10,
  };
  for (const [name, count] of Object.entries(least)) assert.ok(of(name) >= count, `${name}: ${of(name)}`);
  console.log(`measured: ${rounds} kills, ${of("publishes confirmed")} publishes confirmed, ${seconds.toFixed(0)} s`);
});

test.run();
