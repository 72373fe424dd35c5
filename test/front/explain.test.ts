// From facts to a cause and a sentence: a table of situations, each a change to one in which all is well.

import { readFileSync } from "node:fs";
import { test } from "uvu";
import * as assert from "uvu/assert";
import type { GroupFacts, LeaseFacts, MemberFacts, WaitCounts } from "../../src/actors/messages.ts";
import { type Cause, causes, diagnose, type PartitionSituation, type Situation } from "../../src/front/explain.ts";
import { explain } from "../../src/front/explain-answer.ts";
import { duration } from "../../src/front/explain-words.ts";
import type { SubscriptionFacts } from "../../src/front/subscription.ts";
import { addressOf, whoIs } from "../../src/front/who.ts";
import { failure } from "../../src/protocol/failure.ts";

const at = Date.parse("2026-03-01T12:00:00.000Z");
const none: WaitCounts = { leased: 0, ready: 0, alone: 0, backoff: 0, blocked: 0, dying: 0, fresh: 0 };
const lease: LeaseFacts = { offset: 3, id: "e3", member: 1, who: "A", attempt: 1, heldMs: 14_000, endsInMs: 16_000 };

function member(changes: Partial<MemberFacts> = {}): MemberFacts {
  const credit = { slots: 10, tokens: Number.POSITIVE_INFINITY, bytes: 1000, leases: 0 };
  return { member: 1, who: "A", open: true, stalled: false, ...credit, reserved: false, ...changes };
}

/** One member, nothing stored unless `counts` says so. */
function group(changes: Partial<GroupFacts> = {}): GroupFacts {
  const counts = changes.counts ?? none;
  const lag = Object.values(counts).reduce((sum, count) => sum + count, 0);
  return {
    exists: true,
    options: { maxAttempts: 5, backoffMs: 0, ordering: "none", filter: null, ephemeral: false },
    floor: 0,
    start: 0,
    end: lag,
    lag,
    counts,
    totals: { delivered: 0, redelivered: 0, acked: 0, nacked: 0, expired: 0, deadLettered: 0, filtered: 0, skipped: 0 },
    filteredInRow: 0,
    unsettledMax: 100,
    room: 100,
    members: [member()],
    ...changes,
  };
}

function subscription(changes: Partial<SubscriptionFacts> = {}): SubscriptionFacts {
  return { who: "A", window: 10, unsentBytes: 0, rate: "off", members: [1], ...changes };
}

function partition(facts: PartitionSituation["facts"], changes: Partial<PartitionSituation> = {}): PartitionSituation {
  return { partition: 0, shard: 0, status: "up", reason: undefined, facts, ...changes };
}

function situation(facts: PartitionSituation["facts"], changes: Partial<Situation> = {}): Situation {
  return {
    topic: "orders",
    group: "billing",
    at,
    draining: false,
    subscriptions: [subscription()],
    partitions: [partition(facts)],
    otherGroups: [],
    ...changes,
  };
}

const fresh = (count: number): WaitCounts => ({ ...none, fresh: count });
const two = [subscription(), subscription({ who: "B", members: [2] })];
const full = { slots: 0, leases: 10 };

/** What is so, and what is said of it; `nothing` stands for how most sentences begin. */
const nothing = "billing gets nothing new of orders: ";
const cases: [name: string, cause: Cause, situation: Situation, sentence: string][] = [
  [
    "the node is shutting down, whatever else is so",
    "draining",
    situation(group({ counts: fresh(3), members: [] }), { draining: true, subscriptions: [] }),
    `${nothing}the node is shutting down and only takes acks; 3 events wait`,
  ],
  [
    "the shard is down",
    "shard_down",
    situation(failure("unavailable", "down"), {
      partitions: [partition(failure("unavailable", "x"), { shard: 2, status: "down", reason: "EIO" })],
    }),
    `${nothing}shard 2 is down (EIO); how many events wait there is not known meanwhile`,
  ],
  [
    "the shard is being opened",
    "shard_down",
    situation(group(), { partitions: [partition(failure("unavailable", "x"), { status: "opening" })] }),
    `${nothing}shard 0 is being opened; how many events wait there is not known meanwhile`,
  ],
  [
    "the disk is full",
    "read_only",
    situation(group(), {
      partitions: [
        partition(group({ counts: fresh(2), members: [] }), { status: "read-only", reason: "the disk is full" }),
      ],
    }),
    `${nothing}shard 0 takes no writes (the disk is full), and nothing is delivered before it takes writes again; 2 events wait`,
  ],
  [
    "the table does not answer",
    "unreachable",
    situation(failure("unavailable", "no answer within 10000 ms")),
    `${nothing}the lease table of partition 0 does not answer (no answer within 10000 ms)`,
  ],
  [
    "there is no such group",
    "unknown_group",
    situation(group({ exists: false, members: [] }), { subscriptions: [], otherGroups: ["audit", "mail"] }),
    "orders has no group billing: nobody has subscribed under this name, or it was deleted; its groups are audit, mail",
  ],
  [
    "there is no group at all",
    "unknown_group",
    situation(group({ exists: false, members: [] }), { subscriptions: [] }),
    "orders has no group billing: nobody has subscribed under this name, or it was deleted; the topic has no groups",
  ],
  [
    "the table was started anew and its member is on the way back",
    "rejoining",
    situation(group({ counts: fresh(2), members: [] }), { subscriptions: [subscription({ members: [undefined] })] }),
    `${nothing}its only member (A) is just being joined; 2 events wait`,
  ],
  [
    "nobody is subscribed, also while nothing waits",
    "no_members",
    situation(group({ members: [] }), { subscriptions: [] }),
    `${nothing}it has no members, nobody is subscribed; nothing waits`,
  ],
  [
    "all members are paused, although everything is leased",
    "paused",
    situation(group({ counts: { ...none, leased: 2 }, members: [member({ leases: 2, open: false })] }), {
      subscriptions: [subscription({ pausedMs: 65_000 })],
    }),
    `${nothing}its only member (A) is paused since 1 min 5 s and holds 2 events; nothing waits`,
  ],
  [
    "the socket takes nothing, although everything is leased",
    "slow_client",
    situation(group({ counts: { ...none, leased: 2 }, members: [member({ leases: 2, stalled: true, open: false })] }), {
      subscriptions: [subscription({ stalledMs: 3000, unsentBytes: 1_100_000 })],
    }),
    `${nothing}its only member (A) does not take what was sent to it, 1100000 bytes are unsent since 3 s; nothing waits`,
  ],
  [
    "the bytes are used up and the socket has not taken them",
    "slow_client",
    situation(group({ counts: fresh(4), members: [member({ bytes: -5, leases: 1 })] }), {
      subscriptions: [subscription({ unsentBytes: 200_000 })],
    }),
    `${nothing}its only member (A) does not take what was sent to it, 200000 bytes are unsent; 4 events wait`,
  ],
  [
    "reads fail",
    "reads_failing",
    situation(group({ counts: fresh(1), readRetryInMs: 800 })),
    `${nothing}the log cannot be read just now and is tried again in 800 ms; 1 event waits`,
  ],
  [
    "too many are unsettled, also if the window is full too",
    "unsettled_max",
    situation(
      group({ counts: { ...none, leased: 60, backoff: 30, blocked: 10, fresh: 7 }, room: 0, members: [member(full)] }),
    ),
    `${nothing}100 events are unsettled (60 leased, 30 in backoff, 10 behind others of their key), as many as there may be on a partition; 7 events wait until some of them are settled`,
  ],
  [
    "what comes again may come although too many are unsettled",
    "delivering",
    situation(group({ counts: { ...none, backoff: 99, ready: 1, fresh: 7 }, room: 0 })),
    "billing gets events of orders: 107 events wait and are on the way to A",
  ],
  [
    "a member holds an event alone",
    "alone",
    situation(group({ counts: { ...none, leased: 1, fresh: 2 }, members: [member({ leases: 1, alone: lease })] })),
    `${nothing}A holds event e3 (offset 3), on its last attempt after a disconnect, and nothing beside it until it is settled or the lease ends in 16 s; 2 events wait`,
  ],
  [
    "an event waits for a member that holds nothing",
    "alone",
    situation(
      group({
        counts: { ...none, leased: 4, alone: 1 },
        nextAlone: { offset: 7, id: "e7" },
        members: [member({ leases: 4, slots: 6, reserved: true })],
      }),
    ),
    `${nothing}event e7 (offset 7) is on its last attempt after a disconnect and is delivered alone, once a member holds nothing; A holds 4 events; 1 event waits`,
  ],
  [
    "the only member holds all it may",
    "window_full",
    situation(group({ counts: { ...none, leased: 10, fresh: 5 }, oldestLease: lease, members: [member(full)] })),
    `${nothing}its only member (A) holds 10 of 10 events since 14 s; the oldest lease (event e3, offset 3) ends in 16 s; 5 events wait`,
  ],
  [
    "it holds all it may, and has got something only now",
    "window_full",
    situation(
      group({
        counts: { ...none, leased: 10, fresh: 5 },
        oldestLease: { ...lease, heldMs: 40 },
        deliveredMsAgo: 12,
        members: [member(full)],
      }),
    ),
    `${nothing}its only member (A) holds 10 of 10 events since 40 ms; the oldest lease (event e3, offset 3) ends in 16 s; 5 events wait; the last one was delivered 12 ms ago`,
  ],
  [
    "one member is paused and the others are full",
    "window_full",
    situation(
      group({
        counts: { ...none, leased: 20, fresh: 5 },
        oldestLease: lease,
        members: [member(full), member({ ...full, member: 2, who: "B" }), member({ member: 3, who: "C", open: false })],
      }),
      { subscriptions: [...two, subscription({ who: "C", members: [3], pausedMs: 5 })] },
    ),
    `${nothing}its 2 members (A, B), besides 1 that is paused, hold 20 of 20 events since 14 s; the oldest lease (event e3, offset 3) ends in 16 s; 5 events wait`,
  ],
  [
    "most lack one thing, and one lacks another",
    "window_full",
    situation(
      group({
        counts: { ...none, leased: 20, fresh: 5 },
        members: [
          member({ tokens: 0 }),
          member({ ...full, member: 2, who: "B" }),
          member({ ...full, member: 3, who: "C" }),
        ],
      }),
      {
        subscriptions: [
          subscription({ rate: { burst: 5, perSec: 5 }, rateEmptyMs: 10 }),
          subscription({ who: "B", members: [2] }),
          subscription({ who: "C", members: [3] }),
        ],
      },
    ),
    `${nothing}its 2 members (B, C), besides 1 that is rate_limited, hold 20 of 20 events; 5 events wait`,
  ],
  [
    "one of two can take something",
    "delivering",
    situation(
      group({ counts: { ...none, leased: 10, fresh: 1 }, members: [member(full), member({ member: 2, who: "B" })] }),
      { subscriptions: two },
    ),
    "billing gets events of orders: 1 event waits and is on the way to B",
  ],
  [
    "the window has room and the slots are on their way",
    "delivering",
    situation(group({ counts: fresh(1), members: [member({ slots: 0 })] })),
    "billing gets events of orders: 1 event waits and is on the way to A",
  ],
  [
    "the delivery rate is used up",
    "rate_limited",
    situation(group({ counts: fresh(5), members: [member({ tokens: 0 })] }), {
      subscriptions: [subscription({ rate: { burst: 200, perSec: 100 }, rateEmptyMs: 50 })],
    }),
    `${nothing}its only member (A) has used up the delivery rate of 200/100 (CONN_RATE) until 2026-03-01T12:00:00.050Z, 50 ms from now; 5 events wait`,
  ],
  [
    "tokens are missing, but the budget has some",
    "delivering",
    situation(group({ counts: fresh(5), members: [member({ tokens: 0 })] }), {
      subscriptions: [subscription({ rate: { burst: 200, perSec: 100 } })],
    }),
    "billing gets events of orders: 5 events wait and are on the way to A",
  ],
  [
    "keys wait for an event that is held",
    "key_order",
    situation(
      group({
        counts: { ...none, leased: 3, blocked: 2, backoff: 1 },
        keyWait: { key: 'c"7', waiting: 2, offset: 3, id: "e3", state: "leased", lease },
      }),
    ),
    `${nothing}2 events wait behind earlier ones of their key: of key "c\\"7" 2 events wait for event e3 (offset 3), which A holds since 14 s; the lease ends in 16 s`,
  ],
  [
    "keys wait for an event in backoff",
    "key_order",
    situation(
      group({
        counts: { ...none, blocked: 1, backoff: 1 },
        keyWait: { key: "k", waiting: 1, offset: 3, id: "e3", state: "backoff", backoffEndsInMs: 2500 },
        backoffEndsInMs: 2500,
      }),
    ),
    `${nothing}1 event waits behind an earlier one of its key: of key "k" 1 event waits for event e3 (offset 3), which comes again after its backoff in 2.5 s`,
  ],
  [
    "keys wait for an event that dies",
    "key_order",
    situation(
      group({
        counts: { ...none, blocked: 1, dying: 1 },
        keyWait: { key: "k", waiting: 1, offset: 3, id: "e3", state: "dying" },
      }),
    ),
    `${nothing}1 event waits behind an earlier one of its key: of key "k" 1 event waits for event e3 (offset 3), which is on its way to the dead letters`,
  ],
  [
    "some wait for their next attempt, most are leased",
    "backoff",
    situation(
      group({
        counts: { ...none, leased: 9, backoff: 2 },
        backoffEndsInMs: 3_780_000,
        members: [member({ leases: 9 })],
      }),
    ),
    `${nothing}2 events wait after a failed attempt, the first until 2026-03-01T13:03:00.000Z, 1 h 3 min from now; 9 events are leased by A`,
  ],
  [
    "what is left goes to the dead letters, and cannot",
    "dead_letters",
    situation(group({ counts: { ...none, dying: 2 }, burialRetryInMs: 700 })),
    `${nothing}2 events have used up their attempts and go to orders.dlq.billing; that failed and is tried again in 700 ms`,
  ],
  [
    "all is leased, by several",
    "all_leased",
    situation(
      group({
        counts: { ...none, leased: 5 },
        oldestLease: lease,
        members: [member({ leases: 2 }), member({ leases: 3, member: 2, who: "B" })],
      }),
      { subscriptions: two },
    ),
    `${nothing}all 5 events left are leased by 2 members (3 by B, 2 by A); the oldest lease (event e3, offset 3), since 14 s, ends in 16 s`,
  ],
  [
    "the filter let nothing through",
    "filtered",
    situation(
      group({
        filteredInRow: 1200,
        options: { maxAttempts: 5, backoffMs: 0, ordering: "none", filter: { tags: ["eu"] }, ephemeral: false },
      }),
    ),
    `${nothing}its filter {"tags":["eu"]} let none of the last 1200 events through; nothing waits`,
  ],
  [
    "everything is settled",
    "nothing_to_deliver",
    situation(group({ end: 9, floor: 9 })),
    `${nothing}it is at the end of the log; nothing waits`,
  ],
  [
    "what it had ended as dead letters",
    "nothing_to_deliver",
    situation(group({ end: 9, floor: 9, totals: { ...group().totals, deadLettered: 3 } })),
    `${nothing}it is at the end of the log, and 3 events are dead letters (narthex dlq show orders billing); nothing waits`,
  ],
];

for (const [name, cause, staged, sentence] of cases) {
  test(`${cause}: ${name}`, () => {
    const answer = explain(staged) as { cause: string; sentence: string };
    assert.equal([answer.cause, answer.sentence], [cause, sentence]);
  });
}

test("every cause has a case above, and a line in PROTOCOL.md in the same order", () => {
  assert.equal(new Set(cases.map(([, cause]) => cause)), new Set(causes));
  const lines = readFileSync("PROTOCOL.md", "utf8").split("\n");
  const first = lines.findIndex((line) => line.startsWith("| cause |")) + 2;
  assert.ok(first > 2, "no table of causes");
  const rows = lines.slice(
    first,
    lines.findIndex((line, i) => i >= first && !line.startsWith("|")),
  );
  assert.equal(
    rows.map((row) => row.split("|")[1].trim()),
    causes.map((cause) => `\`${cause}\``),
  );
});

// --------------------------------------------------------------------------------------------------------- partitions

function causeOver(...partitions: PartitionSituation[]): [Cause, number[]] {
  const { cause, concerned } = diagnose(situation(group(), { partitions }));
  return [cause, concerned.map((finding) => finding.partition)];
}

const backing = (count: number) => group({ counts: { ...none, backoff: count } });
const blocked = (count: number) => group({ counts: { ...none, blocked: count } });
const leased = (count: number) => group({ counts: { ...none, leased: count } });
const flowing = group({ counts: fresh(1000) });

test("of several partitions that hold events back the cause with the most of them is named", () => {
  const at = (number: number, facts: GroupFacts) => partition(facts, { partition: number });
  assert.equal(causeOver(at(0, backing(3)), at(1, blocked(4)), at(2, backing(2))), ["backoff", [0, 2]]);
  assert.equal(causeOver(at(0, backing(3)), at(1, blocked(3))), ["key_order", [1]], "of equals the first in order");
  assert.equal(causeOver(at(0, flowing), at(1, backing(1))), ["backoff", [1]], "flow here explains no wait there");
  assert.equal(causeOver(at(0, flowing), at(1, leased(9)), at(2, group())), ["delivering", [0]]);
  assert.equal(causeOver(at(0, group()), at(1, leased(1))), ["all_leased", [1]]);
  assert.equal(causeOver(at(0, group()), at(1, group({ exists: false, members: [] }))), ["nothing_to_deliver", [0]]);
  const down = partition(failure("unavailable", "x"), { partition: 1, status: "down" });
  assert.equal(causeOver(at(0, backing(500)), down), ["shard_down", [1]], "a fault comes before all");
});

test("a sentence about some partitions says which, and the answer has each", () => {
  const staged = situation(group(), {
    partitions: [0, 1, 2, 3].map((number) => partition(number % 2 === 0 ? backing(2) : group(), { partition: number })),
  });
  const answer = explain(staged) as { sentence: string; waiting: number; partitions: { cause: string }[] };
  assert.match(answer.sentence, /^billing gets nothing new of partitions 0, 2 of orders: 4 events wait after/);
  assert.is(answer.waiting, 4);
  assert.equal(
    answer.partitions.map(({ cause }) => cause),
    ["backoff", "nothing_to_deliver", "backoff", "nothing_to_deliver"],
  );
});

test("a window that is full on another partition is full here too", () => {
  const staged = situation(group(), {
    subscriptions: [subscription({ window: 1, members: [1, 2] })],
    partitions: [
      partition(
        group({ counts: { ...none, leased: 1 }, oldestLease: lease, members: [member({ slots: 0, leases: 1 })] }),
      ),
      partition(group({ counts: fresh(2), members: [member({ member: 2, slots: 0 })] }), { partition: 1 }),
    ],
  });
  const answer = explain(staged) as { cause: string; sentence: string; endsInMs: number; endsAt: string };
  assert.is(answer.cause, "window_full");
  assert.is(
    answer.sentence,
    "billing gets nothing new of partition 1 of orders: its only member (A) holds 1 of 1 events since 14 s; the oldest lease (event e3, offset 3) ends in 16 s; 2 events wait",
  );
  assert.equal([answer.endsInMs, answer.endsAt], [16_000, "2026-03-01T12:00:16.000Z"]);
});

// -------------------------------------------------------------------------------------------------------------- numbers

test("the answer has the numbers behind the sentence, instants both ways", () => {
  const staged = situation(
    group({
      counts: { ...none, leased: 10, fresh: 5 },
      oldestLease: lease,
      backoffEndsInMs: 10.4,
      members: [member(full), member({ member: 9, who: "gone", leases: 0 })],
    }),
    { subscriptions: [subscription({ rate: { burst: 4, perSec: 2 } })] },
  );
  assert.equal(JSON.parse(JSON.stringify(explain(staged))).members, [
    { who: "A", state: "window_full", leased: 10, window: 10, unsentBytes: 0, rate: "4/2" },
    { who: "gone", state: "leaving", leased: 0 },
  ]);
  const [{ oldestLease, backoffEndsInMs, backoffEndsAt, fresh: waiting }] = JSON.parse(
    JSON.stringify(explain(staged)),
  ).partitions;
  assert.equal(oldestLease, {
    offset: 3,
    id: "e3",
    who: "A",
    attempt: 1,
    heldMs: 14_000,
    endsInMs: 16_000,
    endsAt: "2026-03-01T12:00:16.000Z",
  });
  assert.equal([backoffEndsInMs, backoffEndsAt, waiting], [10, "2026-03-01T12:00:00.010Z", 5]);
});

test("a group of very many members lists a hundred and counts all", () => {
  const numbers = Array.from({ length: 250 }, (_, i) => i);
  const staged = situation(group({ counts: fresh(1), members: numbers.map((n) => member({ member: n, ...full })) }), {
    subscriptions: numbers.map((n) => subscription({ who: `m${n}`, members: [n] })),
  });
  const answer = explain(staged) as { sentence: string; memberCount: number; members: unknown[] };
  assert.equal([answer.memberCount, answer.members.length], [250, 100]);
  assert.match(answer.sentence, "its 250 members (m0, m1, m2 and 247 more) hold 2500 of 2500 events");
});

test("durations are said as people do", () => {
  const said = [0, 0.4, 999, 1000, 1540, 9949, 9950, 59_400, 60_000, 125_000, 3_599_000, 3_600_000, 90_000_000];
  assert.equal(said.map(duration), [
    "0 ms",
    "0 ms",
    "999 ms",
    "1 s",
    "1.5 s",
    "9.9 s",
    "10 s",
    "59 s",
    "1 min",
    "2 min 5 s",
    "59 min 59 s",
    "1 h",
    "25 h",
  ]);
});

test("a connection is named by its number, its address and its identity", () => {
  const from = (remoteAddress?: string) => addressOf({ remoteAddress, remotePort: 50312 });
  assert.is(whoIs(12, from("::ffff:127.0.0.1"), undefined), "connection 12 from 127.0.0.1:50312");
  assert.is(whoIs(12, from("fe80::1"), "anna"), "connection 12 from [fe80::1]:50312 as anna");
  assert.is(whoIs(3, from(), ""), "connection 3 inside the node");
  assert.is(whoIs(3, "x", `a\nb\u202e${"c".repeat(200)}`), `connection 3 from x as a?b?${"c".repeat(96)}`);
});

test.run();
