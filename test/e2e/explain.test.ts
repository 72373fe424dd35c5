// GET /explain and GET /history on a real node: situations staged by real clients, and whether the cause and the facts are right.

import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "uvu";
import * as assert from "uvu/assert";
import type { AuthFn } from "../../src/front/auth.ts";
import { eventually } from "../support/deadline.ts";
import { type NodeHere, startHere } from "../support/node-here.ts";
import { dataFolder } from "../support/node-process.ts";
import { type EventFrame, type Frame, PlainClient } from "../support/plain-client.ts";

interface Lease {
  readonly offset: number;
  readonly id: string;
  readonly who: string;
  readonly heldMs: number;
  readonly endsInMs: number;
  readonly endsAt: string;
}

interface Explanation {
  readonly topic: string;
  readonly group: string;
  readonly cause: string;
  readonly sentence: string;
  readonly at: string;
  readonly endsInMs?: number;
  readonly endsAt?: string;
  readonly lag: number;
  readonly waiting: number;
  readonly memberCount: number;
  readonly totals: Record<string, number>;
  readonly members: readonly {
    readonly who: string;
    readonly state: string;
    readonly leased: number;
    readonly window: number;
    readonly unsentBytes: number;
    readonly pausedMs?: number;
    readonly stalledMs?: number;
    readonly rateEmptyMs?: number;
  }[];
  readonly partitions: readonly {
    readonly partition: number;
    readonly cause: string;
    readonly lag: number;
    readonly oldestLease?: Lease;
    readonly backoffEndsInMs?: number;
    readonly keyWait?: { readonly key: string; readonly state: string; readonly offset: number; readonly id: string };
    readonly burialRetryInMs?: number;
    readonly reason?: string;
  }[];
}

async function explain(http: string, topic: string, group: string): Promise<Explanation> {
  const response = await fetch(`${http}/explain?topic=${topic}&group=${group}`);
  const body = (await response.json()) as Explanation;
  assert.is(response.status, 200, JSON.stringify(body));
  assert.equal([body.topic, body.group], [topic, group]);
  assert.ok(Math.abs(Date.parse(body.at) - Date.now()) < 5000, body.at);
  if (body.endsInMs !== undefined) {
    assert.ok(Math.abs(Date.parse(body.at) + body.endsInMs - Date.parse(body.endsAt ?? "")) < 5, "both say the same");
  }
  return body;
}

/** Looks until the cause is this one: what a client did has reached the lease table. */
async function explained(http: string, topic: string, group: string, cause: string): Promise<Explanation> {
  let last: Explanation | undefined;
  try {
    return await eventually(5000, `${cause} of ${topic}`, async () => {
      last = await explain(http, topic, group);
      return last.cause === cause && last;
    });
  } catch (error) {
    throw new Error(`${(error as Error).message}; it was ${last?.cause}: ${last?.sentence}`);
  }
}

/** How the node calls this client, whatever its number. */
function whoIs(client: PlainClient): RegExp {
  const { localPort } = (client.socket as unknown as { _socket: { localPort: number } })._socket;
  return new RegExp(`connection \\d+ from 127\\.0\\.0\\.1:${localPort}\\b`);
}

function nodeOf(t: { here?: NodeHere }): NodeHere {
  if (t.here === undefined) throw new Error("the node did not start");
  return t.here;
}

const unsettledMax = 50;
const shared: { here?: NodeHere } = {};

test.before(async () => {
  shared.here = await startHere({ store: "memory", workers: 1, limits: { unsettledMax } });
});

test.after(() => nodeOf(shared).node.destroy());

/** Opens clients of the shared node and closes them at the end. */
async function withClients(
  count: number,
  run: (http: string, clients: PlainClient[]) => Promise<void>,
  { http, ws }: NodeHere = nodeOf(shared),
): Promise<void> {
  const clients = await Promise.all(Array.from({ length: count }, () => PlainClient.open(ws)));
  try {
    await run(http, clients);
  } finally {
    for (const client of clients) client.socket.terminate();
  }
}

async function publishAll(client: PlainClient, topic: string, count: number, key?: string): Promise<Frame[]> {
  const opts = key === undefined ? undefined : { key };
  return Promise.all(Array.from({ length: count }, (_, n) => client.publish(topic, { n }, opts)));
}

test("unknown_group: names the groups that there are", () =>
  withClients(1, async (http, [client]) => {
    await client.subscribe("orders", "billing");
    await client.subscribe("orders", "audit");
    const { cause, sentence, members } = await explain(http, "orders", "biling");
    assert.is(cause, "unknown_group");
    assert.match(sentence, /^orders has no group biling: .*its groups are audit, billing$/);
    assert.equal(members, []);
  }));

test("no_members: says how many events wait", () =>
  withClients(2, async (http, [client, other]) => {
    await client.subscribe("left", "g");
    await publishAll(other, "left", 3);
    await client.nextMany(3);
    await client.close();
    const { sentence, lag, waiting, memberCount } = await explained(http, "left", "g", "no_members");
    assert.match(sentence, /^g gets nothing new of left: it has no members.*; 3 events wait$/);
    assert.equal([lag, waiting, memberCount], [3, 3, 0]);
  }));

test("paused: says who, since when, and what waits", () =>
  withClients(1, async (http, [client]) => {
    await client.subscribe("still", "g");
    await publishAll(client, "still", 2);
    await client.nextMany(2);
    await client.ok({ op: "PAUSE", topic: "still", group: "g" });
    await publishAll(client, "still", 4);
    const { sentence, members } = await explained(http, "still", "g", "paused");
    assert.match(sentence, whoIs(client));
    assert.match(
      sentence,
      /its only member \(.*\) is paused since \d+ ms and holds 2 events; 4 events wait for RESUME$/,
    );
    assert.equal([members[0].state, members[0].leased], ["paused", 2]);
    await client.ok({ op: "RESUME", topic: "still", group: "g" });
    await client.nextMany(4);
    assert.is((await explain(http, "still", "g")).cause, "all_leased", "and no longer after RESUME");
  }));

test("window_full: says who holds how many of how many, since when and until when", () =>
  withClients(1, async (http, [client]) => {
    await client.subscribe("full", "g", { maxInflight: 5, ackTimeoutMs: 20_000 });
    const stored = await publishAll(client, "full", 12);
    await client.nextMany(5);
    const answer = await explained(http, "full", "g", "window_full");
    assert.match(answer.sentence, whoIs(client));
    assert.match(
      answer.sentence,
      /^g gets nothing new of full: its only member \(.*\) holds 5 of 5 events since \S+ m?s; the oldest lease \(event .*, offset 0\) ends in (1\d(\.\d)?|20) s; 7 events wait/,
    );
    const [{ oldestLease }] = answer.partitions;
    assert.equal([oldestLease?.offset, oldestLease?.id], [0, stored[0].id]);
    assert.match(oldestLease?.who ?? "", whoIs(client));
    assert.ok(answer.endsInMs !== undefined && answer.endsInMs > 10_000 && answer.endsInMs <= 20_000);
    assert.equal([answer.lag, answer.waiting, answer.members[0].window, answer.members[0].leased], [12, 7, 5, 5]);
  }));

test("all_leased: says by whom, each with its number", () =>
  withClients(2, async (http, [first, second]) => {
    await first.subscribe("busy", "g", { maxInflight: 3, batchSize: 3 });
    await publishAll(first, "busy", 3);
    await first.nextMany(3);
    await second.subscribe("busy", "g", { maxInflight: 10 });
    await publishAll(first, "busy", 2);
    await second.nextMany(2);
    const { sentence, waiting, members } = await explained(http, "busy", "g", "all_leased");
    assert.match(sentence, /all 5 events left are leased by 2 members \(3 by connection .*, 2 by connection .*\)/);
    assert.match(sentence, whoIs(first));
    assert.match(sentence, whoIs(second));
    assert.match(sentence, /the oldest lease \(event .*, offset 0\), since \d+ ms, ends in (29(\.\d)?|30) s/);
    assert.is(waiting, 0);
    assert.equal(members.map(({ leased }) => leased).sort(), [2, 3]);
  }));

test("key_order: says which key waits for which event, and who holds it", () =>
  withClients(1, async (http, [client]) => {
    await client.subscribe("lines", "g", { ordering: "key", ackTimeoutMs: 20_000 });
    const [first] = await publishAll(client, "lines", 4, "customer-7");
    await publishAll(client, "lines", 2, "customer-8");
    const held = await client.nextMany(2);
    const { sentence, partitions } = await explained(http, "lines", "g", "key_order");
    assert.match(
      sentence,
      /4 events wait behind earlier ones of their key: of key "customer-7" 3 events wait for event/,
    );
    assert.match(sentence, `event ${first.id} (offset 0), which connection`);
    assert.match(sentence, whoIs(client));
    assert.match(sentence, /holds since \d+ ms; the lease ends in (1\d(\.\d)?|20) s$/);
    assert.equal([partitions[0].keyWait?.key, partitions[0].keyWait?.state], ["customer-7", "leased"]);

    await client.nack(held.find(({ event }) => event.key === "customer-7") as EventFrame, { delay_ms: 30_000 });
    const backing = await explained(http, "lines", "g", "key_order");
    assert.match(backing.sentence, /which comes again after its backoff in (29(\.\d)?|30) s$/);
    assert.is(backing.partitions[0].keyWait?.state, "backoff");
  }));

test("filtered: says what the filter is and how many it kept out", () =>
  withClients(1, async (http, [client]) => {
    await client.subscribe("sieve", "g", { filter: { keyPrefix: "eu-" } });
    await client.publish("sieve", 1, { key: "eu-1" });
    await client.ack(await client.next());
    await publishAll(client, "sieve", 7, "us-1");
    const { sentence, totals, lag } = await explained(http, "sieve", "g", "filtered");
    assert.match(sentence, 'its filter {"keyPrefix":"eu-"} let none of the last 7 events through; nothing waits');
    assert.equal([totals.filtered, totals.acked, lag], [7, 1, 0]);
  }));

test("backoff: says until when, and what is leased besides", () =>
  withClients(1, async (http, [client]) => {
    await client.subscribe("later", "g");
    await publishAll(client, "later", 3);
    const [a, b] = await client.nextMany(3);
    await client.nack(a, { delay_ms: 60_000 });
    await client.nack(b, { delay_ms: 40_000 });
    const { sentence, endsInMs = 0, partitions } = await explained(http, "later", "g", "backoff");
    assert.match(sentence, /2 events wait after a failed attempt, the first until 20\S+Z, (3\d(\.\d)?|40) s from now/);
    assert.match(sentence, /; 1 event is leased by connection/);
    assert.match(sentence, whoIs(client));
    assert.ok(endsInMs > 30_000 && endsInMs <= 40_000, `${endsInMs}`);
    assert.is(partitions[0].backoffEndsInMs, endsInMs);
  }));

test("nothing_to_deliver: with events that are settled, and without any", () =>
  withClients(1, async (http, [client]) => {
    await client.subscribe("done", "g");
    assert.match((await explain(http, "done", "g")).sentence, "there are no events");
    await publishAll(client, "done", 2);
    for (const event of await client.nextMany(2)) await client.ack(event);
    const { cause, sentence, lag } = await explain(http, "done", "g");
    assert.is(cause, "nothing_to_deliver");
    assert.is(sentence, "g gets nothing new of done: it is at the end of the log; nothing waits");
    assert.is(lag, 0);
  }));

test("unsettled_max: says that the bound is reached and what the unsettled events wait for", () =>
  withClients(1, async (http, [client]) => {
    await client.subscribe("deep", "g", { maxInflight: 1000 });
    await publishAll(client, "deep", unsettledMax + 5);
    const events = await client.nextMany(unsettledMax);
    for (const event of events.slice(0, 10)) await client.nack(event, { delay_ms: 60_000 });
    const { sentence } = await explained(http, "deep", "g", "unsettled_max");
    assert.match(
      sentence,
      "50 events are unsettled (40 leased, 10 in backoff), as many as there may be on a partition; 5 events wait until",
    );
  }));

test("alone: an event on its last attempt after a disconnect waits for an idle member, and keeps that one for itself", () =>
  withClients(2, async (http, [first, second]) => {
    await first.subscribe("poison", "g", { maxAttempts: 2, maxInflight: 1, ackTimeoutMs: 20_000 });
    const [poison] = await publishAll(first, "poison", 1);
    await first.next();
    await second.subscribe("poison", "g", { maxInflight: 10, ackTimeoutMs: 20_000 });
    await publishAll(second, "poison", 1);
    const other = await second.next();
    first.socket.terminate();
    const waits = await explained(http, "poison", "g", "alone");
    assert.match(waits.sentence, `event ${poison.id} (offset 0) is on its last attempt after a disconnect`);
    assert.match(waits.sentence, /once a member holds nothing; connection .* holds 1 event; 1 event waits$/);
    assert.match(waits.sentence, whoIs(second));
    await second.ack(other);
    assert.is((await second.next()).event.offset, 0);
    await publishAll(second, "poison", 3);
    const held = await explained(http, "poison", "g", "alone");
    assert.match(held.sentence, whoIs(second));
    assert.match(held.sentence, /holds event \S+ \(offset 0\), .* the lease ends in (1\d(\.\d)?|20) s; 3 events wait$/);
    assert.is(held.members[0].state, "alone");
  }));

test("slow_client: says who does not read, and how much is unsent", () =>
  withClients(2, async (http, [slow, publisher]) => {
    await slow.subscribe("flood", "g", { maxInflight: 1000 });
    (slow.socket as unknown as { _socket: { pause(): void } })._socket.pause();
    const payload = "x".repeat(500_000);
    for (let n = 0; n < 40; n++) await publisher.publish("flood", payload);
    const { sentence, members } = await explained(http, "flood", "g", "slow_client");
    assert.match(sentence, whoIs(slow));
    assert.match(sentence, /its only member \(.*\) does not take what was sent to it, \d+ bytes are unsent/);
    assert.ok(members[0].unsentBytes > 100_000, `${members[0].unsentBytes}`);
    assert.is(members[0].state, "slow_client");
    const stalled = await eventually(5000, "for how long", async () => {
      const answer = await explain(http, "flood", "g");
      return answer.members[0].stalledMs !== undefined && answer;
    });
    assert.match(stalled.sentence, /bytes are unsent since \d+ ms; \d+ events wait$/);
  }));

test("several partitions: the one that holds back the most is named, and each has its own cause", () =>
  withClients(1, async (http, [client]) => {
    const made = await fetch(`${http}/topics/wide`, {
      method: "PUT",
      headers: { "content-type": "application/json" },
      body: '{"partitions":2}',
    });
    assert.is(made.status, 201);
    const keys = Array.from({ length: 20 }, (_, i) => `k${i}`);
    const places = await Promise.all(keys.map(async (key) => ({ key, ...(await client.publish("wide", 0, { key })) })));
    const keyOf = (partition: number) =>
      (places as unknown as { key: string; partition: number }[]).find((one) => one.partition === partition)!.key;
    await client.subscribe("wide", "g", { maxInflight: 1 });
    await client.publish("wide", 1, { key: keyOf(0) });
    const held = await client.next();
    assert.is(held.event.partition, 0);
    await publishAll(client, "wide", 3, keyOf(1));
    const { sentence, partitions, members } = await explained(http, "wide", "g", "window_full");
    assert.match(sentence, /^g gets nothing new of partition 1 of wide: its only member \(.*\) holds 1 of 1 events/);
    assert.match(sentence, `the oldest lease (event ${held.event.id}`);
    assert.match(sentence, "3 events wait");
    assert.equal(
      partitions.map(({ cause }) => cause),
      ["all_leased", "window_full"],
    );
    assert.equal([members.length, members[0].leased], [1, 1]);
  }));

test("rate_limited: says which rate, and when the next event can go", async () => {
  const here = await startHere({ store: "memory", workers: 1, connRate: { burst: 4, perSec: 1 } });
  await withClients(
    3,
    async (http, [client, ...publishers]) => {
      await client.subscribe("slow", "g");
      for (const publisher of publishers) await publishAll(publisher, "slow", 4);
      await client.nextMany(4);
      const { sentence, endsInMs = -1, waiting, members } = await explained(http, "slow", "g", "rate_limited");
      assert.match(sentence, whoIs(client));
      assert.match(
        sentence,
        /its only member \(.*\) has used up the delivery rate of 4\/1 \(CONN_RATE\) until 20\S+Z, \S+ m?s from now; [1-4] events? waits?/,
      );
      assert.ok(endsInMs >= 0 && endsInMs <= 1000, `${endsInMs}`);
      assert.is(members[0].rateEmptyMs, endsInMs);
      assert.ok(waiting >= 1 && waiting <= 4, `${waiting}`);
    },
    here,
  );
  await here.node.destroy();
});

test("dead_letters: says that events wait for their burial, where to, and when it is tried again", async () => {
  const here = await startHere({ store: "memory", workers: 1, limits: { topicsMax: 1 } });
  await withClients(
    1,
    async (http, [client]) => {
      await client.subscribe("only", "g", { maxAttempts: 1 });
      await publishAll(client, "only", 2);
      for (const event of await client.nextMany(2)) await client.nack(event, { reason: "no" });
      const { sentence, partitions } = await explained(http, "only", "g", "dead_letters");
      assert.match(sentence, "2 events have used up their attempts and go to only.dlq.g");
      const failing = await eventually(5000, "the burial failed", async () => {
        const answer = await explain(http, "only", "g");
        return answer.partitions[0].burialRetryInMs !== undefined && answer;
      });
      assert.match(failing.sentence, /; that failed and is tried again in \d.* m?s$/);
      assert.is(partitions[0].cause, "dead_letters");
    },
    here,
  );
  await here.node.destroy();
});

test("draining: says that the node is shutting down", async () => {
  const here = await startHere({ store: "memory", workers: 1, limits: { drainMs: 10_000 } });
  await withClients(
    1,
    async (http, [client]) => {
      await client.subscribe("last", "g", { maxInflight: 1 });
      await publishAll(client, "last", 3);
      const event = await client.next();
      const closed = here.node.close();
      const { sentence } = await explained(http, "last", "g", "draining");
      assert.is(sentence, "g gets nothing new of last: the node is shutting down and only takes acks; 2 events wait");
      await client.ack(event);
      await closed;
    },
    here,
  );
});

for (const [cause, command, pattern] of [
  [
    "read_only",
    "create,write ENOSPC",
    /shard 0 takes no writes \(.*ENOSPC.*\), and nothing is delivered before .*; \d+ events wait$/,
  ],
  ["shard_down", "write,create EIO", /shard 0 is down \(.*EIO.*\)/],
] as const) {
  test(`${cause}: names the shard and its reason`, async () => {
    const data = dataFolder();
    process.env.NARTHEX_FAULT = join(data.path, "fault");
    const hostUrl = new URL("./support-faulty-host.entry.js", import.meta.url);
    const here = await startHere({ workers: 1, dataPath: join(data.path, "store") }, { hostUrl });
    await withClients(
      1,
      async (http, [client]) => {
        await client.subscribe("t", "g", { maxInflight: 1 });
        await publishAll(client, "t", 5);
        await client.next();
        writeFileSync(join(data.path, "fault"), command);
        await client.request({ op: "PUBLISH", topic: "t", payload: 1 });
        const { sentence, partitions } = await explained(http, "t", "g", cause);
        assert.match(sentence, pattern);
        assert.match(partitions[0].reason ?? "", command.split(" ")[1]);
      },
      here,
    );
    await here.node.destroy();
    data.remove();
  });
}

// ---------------------------------------------------------------------------------------------------------------- history

interface History {
  readonly topic: string;
  readonly id: string;
  readonly partition: number;
  readonly offset: number;
  readonly ts: number;
  readonly note: string;
  readonly groups: readonly {
    readonly group: string;
    readonly state: string;
    readonly attempts?: number;
    readonly until?: string;
    readonly at?: string;
    readonly reason?: string;
    readonly holders: readonly {
      readonly who: string;
      readonly attempt: number;
      readonly from: string;
      readonly until: string;
      readonly outcome: string;
      readonly reason?: string;
    }[];
  }[];
}

async function history(http: string, topic: string, id: string): Promise<History> {
  const response = await fetch(`${http}/history?topic=${topic}&id=${id}`);
  const body = (await response.json()) as History;
  assert.is(response.status, 200, JSON.stringify(body));
  return body;
}

test("history: every lease of an event with its holder, its time, its outcome and reason, for each group", () =>
  withClients(3, async (http, [first, second, third]) => {
    const started = Date.now();
    await first.subscribe("story", "g", { ackTimeoutMs: 300 });
    await third.subscribe("story", "h", { maxAttempts: 1 });
    await third.subscribe("story", "sieve", { filter: { key: "other" } });
    await third.subscribe("story", "late", { maxInflight: 1 });
    await third.ok({ op: "PAUSE", topic: "story", group: "late" });
    const { ts, offset } = await first.publish("story", { n: 1 }, { id: "order:1" });

    await first.nack(await first.next(), { reason: "no stock" });
    const again = await first.next();
    assert.is(again.ctx.attempt, 2);
    const held = (await history(http, "story", "order:1")).groups.find(({ group }) => group === "g");
    assert.equal([held?.state, held?.attempts, held?.holders.length], ["leased", 2, 2]);
    const left = Date.parse(held?.until ?? "") - Date.now();
    assert.ok(left > -100 && left <= 300, `${left}`);

    await first.ok({ op: "PAUSE", topic: "story", group: "g" });
    await second.subscribe("story", "g");
    const last = await second.next();
    assert.is(last.ctx.attempt, 3, "after the deadline of the first");
    await second.ack(last);
    const dead = await third.next();
    assert.is(dead.group, "h");
    await third.nack(dead, { reason: "unreadable" });
    const told = await eventually(5000, "it is a dead letter", async () => {
      const answer = await history(http, "story", "order:1");
      return answer.groups.some(({ state }) => state === "dead_lettered") && answer;
    });

    assert.equal([told.topic, told.id, told.partition, told.offset, told.ts], ["story", "order:1", 0, offset, ts]);
    assert.match(told.note, "in memory only");
    assert.equal(
      told.groups.map(({ group, state, attempts, reason }) => [group, state, attempts, reason]),
      [
        ["g", "acked", 3, undefined],
        ["h", "dead_lettered", 1, "unreadable"],
        ["late", "not_reached", 0, undefined],
        ["sieve", "filtered", 0, undefined],
      ],
    );
    const [g, h] = told.groups;
    assert.equal(
      g.holders.map(({ attempt, outcome, reason }) => [attempt, outcome, reason]),
      [
        [1, "nacked", "no stock"],
        [2, "expired", undefined],
        [3, "acked", undefined],
      ],
    );
    assert.match(g.holders[0].who, whoIs(first));
    assert.match(g.holders[1].who, whoIs(first));
    assert.match(g.holders[2].who, whoIs(second));
    assert.equal(
      h.holders.map(({ attempt, outcome, reason }) => [attempt, outcome, reason]),
      [[1, "nacked", "unreadable"]],
    );
    assert.match(h.holders[0].who, whoIs(third));
    // One after the other, each within this test; the second as long as its deadline.
    const times = g.holders.flatMap(({ from, until }) => [Date.parse(from), Date.parse(until)]);
    assert.equal(
      times,
      times.toSorted((a, b) => a - b),
    );
    assert.ok(times[0] >= started - 5 && times[5] <= Date.now() + 5, g.holders[0].from);
    assert.ok(times[3] - times[2] >= 298 && times[3] - times[2] < 2000, `${times[3] - times[2]}`);
    assert.is(g.at, g.holders[2].until);

    await second.close();
    assert.match((await history(http, "story", "order:1")).groups[0].holders[2].who, /^connection \d+ from 127/);
  }));

test("history: after a restart of the node the attempts are known, and whether the event is settled", async () => {
  const data = dataFolder();
  const before = await startHere({ dataPath: data.path, workers: 1 });
  const ids: string[] = [];
  await withClients(
    1,
    async (_http, [client]) => {
      await client.subscribe("kept", "g");
      for (const { id } of await publishAll(client, "kept", 2)) ids.push(String(id));
      const [one, two] = await client.nextMany(2);
      await client.ack(one);
      await client.nack(two, { reason: "later", delay_ms: 60_000 });
    },
    before,
  );
  await before.node.close();
  const after = await startHere({ dataPath: data.path, workers: 1 });
  const told = await Promise.all(ids.map((id) => history(after.http, "kept", id)));
  assert.equal(
    told.map(({ groups }) => groups),
    [[{ group: "g", state: "settled", holders: [] }], [{ group: "g", state: "not_reached", attempts: 1, holders: [] }]],
  );
  await after.node.destroy();
  data.remove();
});

// ---------------------------------------------------------------------------------------------------------------- asking

test("a bad question is refused with its code and the field that is wrong", () =>
  withClients(1, async (http, [client]) => {
    await client.publish("asked", 1, { id: "mine" });
    const refused: [path: string, status: number, code: string | undefined, field: string | undefined][] = [
      ["/explain?group=g", 400, "bad_option", "topic"],
      ["/explain?topic=asked", 400, "bad_option", "group"],
      ["/explain?topic=asked&group=a b", 400, "bad_group", "group"],
      ["/explain?topic=a..b&group=g", 400, "bad_topic", "topic"],
      ["/explain?topic=asked&group=g&id=1", 400, "bad_option", "id"],
      ["/explain?topic=asked&group=g&group=h", 400, "bad_option", "group"],
      ["/explain?topic=nowhere&group=g", 404, "unknown_topic", "topic"],
      ["/history?topic=asked", 400, "bad_option", "id"],
      ["/history?id=mine", 400, "bad_option", "topic"],
      ["/history?topic=asked&id=a b", 400, "bad_option", "id"],
      ["/history?topic=asked&id=mine&group=g", 400, "bad_option", "group"],
      ["/history?topic=asked&id=yours", 404, "unknown_id", "id"],
      ["/history?topic=nowhere&id=mine", 404, "unknown_topic", "topic"],
    ];
    for (const [path, status, code, field] of refused) {
      const response = await fetch(`${http}${path.replace(" ", "%20")}`);
      const body = (await response.json()) as { code?: string; field?: string };
      assert.equal([path, response.status, body.code, body.field], [path, status, code, field]);
    }
    assert.is((await fetch(`${http}/explain?topic=asked&group=g`, { method: "POST" })).status, 405);
    assert.equal((await history(http, "asked", "mine")).groups, []);
  }));

test("who may not subscribe learns nothing, and who may is named by identity", async () => {
  const auth: AuthFn = async (token) => {
    if (token === "anna") return { ok: true, identity: "anna@example" };
    const rights = {
      publish: () => false,
      subscribe: (topic: string, group: string) => topic === "asked" && group !== "g",
      admin: false,
    };
    return token === "bob" ? { ok: true, rights } : { ok: false, code: "bad_token", msg: "no" };
  };
  const here = await startHere({ store: "memory", workers: 1 }, { auth });
  const anna = await PlainClient.open(here.ws, "anna");
  await anna.subscribe("asked", "g");
  await anna.subscribe("asked", "open");
  await anna.publish("asked", 1, { id: "mine" });
  const [event] = (await anna.nextMany(2)).filter(({ group }) => group === "g");
  const ask = async (path: string, token: string) => {
    const response = await fetch(`${here.http}${path}`, { headers: { authorization: `Bearer ${token}` } });
    return { status: response.status, text: await response.text() };
  };
  for (const path of ["/explain?topic=asked&group=g", "/history?topic=other&id=mine"]) {
    assert.is((await ask(path, "bob")).status, 403, path);
    assert.is((await ask(path, "eve")).status, 401, path);
  }
  const unknown = await ask("/explain?topic=asked&group=none", "bob");
  assert.match(unknown.text, 'its groups are open"');
  const { groups } = JSON.parse((await ask("/history?topic=asked&id=mine", "bob")).text) as History;
  assert.equal(
    groups.map(({ group }) => group),
    ["open"],
  );
  const told = await ask("/explain?topic=asked&group=g", "anna");
  assert.match(told.text, /leased by connection \d+ from 127\.0\.0\.1:\d+ as anna@example;/);
  assert.is((await anna.ack(event)).op, "OK");
  anna.socket.terminate();
  await here.node.destroy();
});

test.run();
