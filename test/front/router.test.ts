import { test } from "uvu";
import * as assert from "uvu/assert";
import { Router } from "../../src/front/router.ts";
import { failure, isFailure } from "../../src/protocol/failure.ts";
import { jumpHash } from "../../src/protocol/jump-hash.ts";
import { FakeSystem, SocketClock } from "../support/fake-system.ts";

function setUp(options: { partitions?: number; autoCreate?: boolean; topicsMax?: number } = {}) {
  const clock = new SocketClock();
  const system = new FakeSystem(clock, { partitions: options.partitions ?? 1 });
  const router = new Router({ system, clock, partitions: 1, autoCreate: true, topicsMax: 100, ...options });
  const resolve = async (topic: string, create = true) => {
    const route = await router.resolve(topic, { create });
    if (isFailure(route)) throw new Error(`${route.code}: ${route.msg}`);
    return route;
  };
  const code = async (topic: string, create = true) => {
    const route = await router.resolve(topic, { create });
    return isFailure(route) ? route.code : "found";
  };
  return { clock, system, router, resolve, code };
}

async function turns(): Promise<void> {
  for (let i = 0; i < 20; i++) await new Promise((next) => setImmediate(next));
}

test("a topic is resolved once, opened at every partition, and remembered", async () => {
  const { system, router, resolve } = setUp({ partitions: 3 });
  assert.is(router.peek("t"), undefined);
  const [a, b] = await Promise.all([resolve("t"), resolve("t")]);
  assert.is(a, b);
  assert.is(router.peek("t"), a);
  assert.is(await resolve("t"), a);
  assert.equal([system.all("resolve").length, system.all("open").length], [1, 3]);
  assert.equal(
    a.partitions.map(({ partition, stream, shard, address }) => [partition, stream, shard, address]),
    [0, 1, 2].map((n) => [n, 64 + n, a.record.shards[n], { shard: a.record.shards[n], cell: `partition/${64 + n}` }]),
  );
});

test("one who may not make the topic does not answer for one who may", async () => {
  const { system, router } = setUp();
  const [no, yes] = await Promise.all([router.resolve("t", { create: false }), router.resolve("t", { create: true })]);
  assert.equal([isFailure(no) && no.code, isFailure(yes)], ["unknown_topic", false]);
  assert.equal(
    system.all("resolve").map(({ message }) => message.create),
    [false, true],
  );
});

test("of the node's own names only dead letters are made, through their source, and AUTO_CREATE off makes none", async () => {
  const { system, router, code } = setUp();
  assert.equal([await code("$sys"), await code("dlq.g"), await code("a.dlq")], Array(3).fill("unknown_topic"));
  assert.equal(await router.resolve("a.dlq.g", { create: false }).then((route) => isFailure(route)), true);
  system.on("deadLetter", ({ topicId, group }) => system.make(`topic-${topicId}.dlq.${group}`));
  const made = await router.resolve("a.dlq.g.h", { create: true });
  const source = await router.resolve("a", { create: false });
  if (isFailure(made) || isFailure(source)) throw new Error("not found");
  assert.is(made.topic, `topic-${source.record.id}.dlq.g.h`);
  const off = setUp({ autoCreate: false });
  assert.equal([await off.code("t"), await off.code("a.dlq.g")], ["unknown_topic", "unknown_topic"]);
});

test("a partition that cannot be opened is the answer, and nothing is remembered", async () => {
  const { system, router, code } = setUp({ partitions: 2 });
  system.on("open", (_, to) =>
    to.cell === "partition/65"
      ? failure("unavailable", "down")
      : { start: 0, end: 0, bytes: 0, lastStoredAt: 0, groups: [], durability: "memory" },
  );
  assert.equal([await code("t"), router.peek("t")], ["unavailable", undefined]);
});

test("a topic that is being deleted cannot be used, nor made until it is gone", async () => {
  const { system, code } = setUp();
  system.topics.set("t", { ...system.make("t"), status: "deleting" });
  assert.equal([await code("t", false), await code("t", true)], ["unknown_topic", "unavailable"]);
});

test("invalidating forgets that route and no newer one", async () => {
  const { router, resolve } = setUp();
  const old = await resolve("t");
  router.invalidate(old);
  const fresh = await resolve("t");
  router.invalidate(old);
  assert.is(router.peek("t"), fresh);
});

test("at most topicsMax routes are remembered", async () => {
  const { router, resolve } = setUp({ topicsMax: 2 });
  for (const topic of ["a", "b", "c"]) await resolve(topic);
  assert.equal(
    ["a", "b", "c"].map((topic) => router.peek(topic) !== undefined),
    [false, true, true],
  );
});

test("a key goes to its partition, an own id to its own, and the rest take turns by turns of the event loop", async () => {
  const { router, resolve } = setUp({ partitions: 4 });
  const route = await resolve("t");
  for (const key of ["a", "b", "customer-7"]) {
    assert.is(router.partitionFor(route, key, "id").partition, jumpHash(key, 4));
    assert.is(router.partitionFor(route, undefined, key).partition, jumpHash(key, 4));
  }
  const seen: number[] = [];
  for (let i = 0; i < 4; i++) {
    const { partition } = router.partitionFor(route, undefined);
    assert.is(router.partitionFor(route, undefined).partition, partition);
    seen.push(partition);
    await new Promise((next) => setImmediate(next));
  }
  assert.equal(seen.sort(), [0, 1, 2, 3]);
});

test("removing marks the topic, drops every partition, then forgets it; the route is gone from the start", async () => {
  const { system, router, resolve } = setUp({ partitions: 2 });
  const route = await resolve("t");
  system.sent.length = 0;
  const removed = router.remove("t");
  assert.is(router.peek("t"), undefined);
  assert.is(await removed, null);
  assert.equal(
    system.sent.map(({ message }) => message.type),
    ["deleteTopic", "drop", "drop", "forget"],
  );
  assert.equal(
    system.all("drop").map(({ to }) => to),
    route.partitions.map(({ address }) => address),
  );
  const gone = await router.remove("nothing");
  assert.is(isFailure(gone) && gone.code, "unknown_topic");
});

test("a deletion that was held up is taken up again until it is finished, whoever asked for it", async () => {
  const { clock, system, router, resolve } = setUp({ partitions: 2 });
  await resolve("t");
  let up = false;
  system.on("drop", () => (up ? null : failure("internal", "failed")));
  const refused = await router.remove("t");
  assert.is(isFailure(refused) && refused.code, "internal");
  clock.advance(1000);
  await turns();
  assert.equal([system.all("drop").length, system.all("forget").length], [4, 0]);
  up = true;
  clock.advance(1000);
  await turns();
  assert.equal([system.all("drop").length, system.all("forget").length], [6, 1]);
  clock.advance(5000);
  await turns();
  assert.is(system.all("drop").length, 6);
});

test("a deletion that is asked for twice and fails for one of the two is taken up again", async () => {
  const { clock, system, router, resolve } = setUp();
  await resolve("t");
  system.hold("forget");
  const removals = [router.remove("t"), router.remove("t")];
  const [failing, ending] = [await system.nth("forget", 0), await system.nth("forget", 1)];
  ending.answer(null);
  assert.is(await removals[1], null);
  failing.answer(failure("unavailable", "its commit failed"));
  assert.is(isFailure(await removals[0]), true);
  system.on("forget", () => null);
  clock.advance(1000);
  await turns();
  assert.equal([system.all("drop").length, system.all("forget").length], [3, 3]);
});

test("a topic that may have been marked is looked for when the catalog does not answer", async () => {
  const { clock, system, router, resolve } = setUp();
  const { record } = await resolve("t");
  system.on("deleteTopic", () => {
    system.topics.set("t", { ...record, status: "deleting" });
    return failure("unavailable", "stored, and the answer is lost");
  });
  const unknown = await router.remove("t");
  assert.is(isFailure(unknown) && unknown.code, "unavailable");
  clock.advance(1000);
  await turns();
  assert.equal([system.all("drop").length, system.all("forget").length], [1, 1]);
});

test("configuring opens every partition with the new record, and our own names must exist first", async () => {
  const { system, router } = setUp({ partitions: 2 });
  const made = await router.configure("t", { settings: {} });
  assert.is(isFailure(made), false);
  assert.is(system.all("open").length, 2);
  assert.is.not(router.peek("t"), undefined);
  const refused = await router.configure("x.dlq.g", { settings: {} });
  assert.is(isFailure(refused) && refused.code, "bad_topic");
  assert.is(system.all("configure").length, 1);
});

test("removing a group drops it at every partition", async () => {
  const { system, router, resolve } = setUp({ partitions: 2 });
  const route = await resolve("t");
  assert.is(await router.removeGroup("t", "g"), null);
  assert.equal(
    system.all("dropGroup").map(({ to }) => to),
    route.partitions.map(({ shard, stream }) => ({ shard, cell: `group/${stream}/g` })),
  );
});

test.run();
