// What happens to the documents of events: which index each question goes by, what retention and deletion remove, what is said of
// documents that somebody else removed.

import type { Document, MongoClient } from "mongodb";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { placeOf } from "../../src/store/mongo/heads.ts";
import {
  blocksQuery,
  eventsQuery,
  foreignQuery,
  idQuery,
  keyQuery,
  keysQuery,
  type Query,
  timeQuery,
} from "../../src/store/mongo/queries.ts";
import type { MongoShard } from "../../src/store/mongo/shard.ts";
import { eventually } from "../support/deadline.ts";
import { openNamed, openProcess } from "../support/mongo-stores.ts";
import { type Mongod, startMongod, withMongod } from "../support/mongod.ts";
import { allPayloads, append, block, commitOf, payloads } from "../support/store-blocks.ts";

let mongod: Mongod;
let client: MongoClient;
let url: string;
let number = 10;

const events = () => client.db(new URL(url).pathname.slice(1)).collection<Document>("events");
const heads = () => client.db(new URL(url).pathname.slice(1)).collection<Document>("partitions");
const record = (name: string) => new TextEncoder().encode(JSON.stringify({ name }));
const everything = { from: 0, to: Number.POSITIVE_INFINITY, bytesMax: Number.POSITIVE_INFINITY };

/** The stages of the plan that won, from the top. */
function stages(plan: Document): string[] {
  const next = plan.inputStage ?? plan.inputStages?.[0] ?? plan.queryPlan;
  return [...(plan.stage === undefined ? [] : [plan.stage]), ...(next === undefined ? [] : stages(next))];
}

await withMongod("mongo events", () => {
  test.before(async () => {
    mongod = await startMongod();
    client = await mongod.connect();
    url = mongod.url();
  });

  test.after(() => mongod.stop());

  test.before.each(() => void number++);

  test("each question goes by an index and looks at little more than it answers", async () => {
    const { store } = await openProcess(url);
    const shard = await store.openShard(number);
    await shard.commit(commitOf({ puts: [["partition/64", record("plans")]] }));
    for (let n = 0; n < 200; n++) {
      const own = { payload: `k${n}`, key: `key-${n % 50}`, id: `id-${n}`, ts: 5000 + n };
      await append(shard, 64, ["plain", own, "plain", "plain", "plain"], 1000 + n);
      await append(shard, 128, ["of another topic"], 1000 + n);
    }
    const place = placeOf(number, 64, "plans");
    const offsets = { from: 0, to: 1000 };
    const questions: [string, Query, number, Record<string, number>, number][] = [
      ["replay", eventsQuery(place, { from: 300, to: 1000 }), 100, { topic: 1, partition: 1, offset: 1 }, 102],
      ["from a time", timeQuery(place, { from: 495, to: 1000 }, 5099), 1, { topic: 1, partition: 1, offset: 1 }, 5],
      [
        "the block of a time",
        blocksQuery(place, offsets, 5100),
        1,
        { topic: 1, partition: 1, "block.tsMax": 1, offset: 1 },
        3,
      ],
      ["prune", blocksQuery(place, offsets), 20, { topic: 1, partition: 1, "block.tsMax": 1, offset: 1 }, 22],
      ["an id", idQuery(place, offsets, "id-77"), 1, { topic: 1, partition: 1, id: 1 }, 2],
      ["latest of a key", keyQuery(place, offsets, "key-7"), 1, { topic: 1, partition: 1, key: 1, offset: -1 }, 2],
      ["latest by key", keysQuery(place, offsets, "key-2"), 20, { topic: 1, partition: 1, key: 1, offset: -1 }, 22],
      [
        "others in its place",
        foreignQuery(place, { from: 990, to: 1000 }),
        1,
        { topic: 1, partition: 1, offset: 1 },
        12,
      ],
    ];
    for (const [name, { filter, sort }, limit, key, keysMax] of questions) {
      const said = await events().find(filter).sort(sort).limit(limit).explain("executionStats");
      const plan = said.queryPlanner.winningPlan as Document;
      const all = stages(plan);
      assert.ok(all.includes("IXSCAN") && !all.includes("COLLSCAN"), `${name}: ${all.join(" < ")}`);
      const scan = JSON.stringify(said.queryPlanner.winningPlan);
      // Of those that begin with an id any will do: few events have the same one.
      if (name === "an id") assert.match(scan, '"id":1');
      else assert.ok(scan.includes(`"keyPattern":${JSON.stringify(key)}`), `${name}: ${scan}`);
      // A sort in memory would have to look at everything first.
      if (name !== "an id") assert.not.ok(all.includes("SORT"), `${name}: ${all.join(" < ")}`);
      const { totalKeysExamined } = said.executionStats;
      assert.ok(totalKeysExamined <= keysMax, `${name}: ${totalKeysExamined} keys for ${limit}`);
    }
    await store.close();
  });

  test("what retention leaves behind is removed, up to the block that holds the start", async () => {
    const { store } = await openProcess(url);
    const shard = (await store.openShard(number)) as MongoShard;
    for (let n = 0; n < 4; n++) await append(shard, 1, ["a", "b", "c"]);
    await shard.commit(commitOf({ trims: [[1, 7]] }));
    await shard.settled();
    const left = await events()
      .find({ "_id.s": `${number}:1` })
      .sort({ offset: 1 })
      .toArray();
    assert.equal(
      left.map(({ offset }) => offset),
      [6, 7, 8, 9, 10, 11],
    );
    assert.equal(payloads((await shard.read(1, everything)).blocks).length, 6);
    assert.equal(shard.damage(), []);
    await store.close();
  });

  test("bytes and pruneTo are the same after the shard was opened again, once its old blocks are known", async () => {
    const first = await openProcess(url);
    const shard = await first.store.openShard(number);
    for (let n = 0; n < 6; n++) await append(shard, 1, [`a${n}`, `b${n}`], 100 * (n + 1));
    await shard.commit(commitOf({ trims: [[1, 3]] }));
    const size = shard.head(1)!.bytes / 5;
    await first.store.close();
    const { store } = await openProcess(url);
    const again = await store.openShard(number);
    assert.equal(again.head(1), { start: 3, end: 12, lastStoredAt: 600, bytes: 5 * size });
    assert.is(again.pruneTo(1, { storedBefore: 401 }), 3, "nothing is removed that is not known");
    await eventually(2000, "the old blocks are known", () => again.pruneTo(1, { storedBefore: 401 }) === 8);
    assert.is(again.pruneTo(1, { bytesMax: 2 * size }), 8);
    await again.commit(commitOf({ trims: [[1, 8]] }));
    assert.equal(again.head(1), { start: 8, end: 12, lastStoredAt: 600, bytes: 2 * size });
    await store.close();
    // Also where nobody had asked before.
    const { store: third } = await openProcess(url);
    const unasked = await third.openShard(number);
    await unasked.commit(commitOf({ trims: [[1, 10]] }));
    assert.is(unasked.head(1)?.bytes, size);
    await third.close();
  });

  test("from a time, after what had it was removed and ts went back", async () => {
    const { store } = await openProcess(url);
    const shard = await store.openShard(number);
    await append(shard, 1, [{ payload: "far ahead", ts: 9000 }, "a"], 1000);
    await append(shard, 1, ["b", "c"], 1001);
    await append(shard, 1, [{ payload: "d", ts: 5000 }, "e"], 1002);
    assert.is(await shard.findTs(1, 5000), 0);
    await shard.commit(commitOf({ trims: [[1, 1]] }));
    assert.is(await shard.findTs(1, 5000), 4);
    await shard.commit(commitOf({ trims: [[1, 2]] }));
    assert.is(await shard.findTs(1, 5000), 4);
    assert.is(await shard.findTs(1, 9000), 6);
    await store.close();
  });

  test("a removal that was cut off is finished by the next opening", async () => {
    const { store, node } = await openProcess(url);
    const shard = (await store.openShard(number)) as MongoShard;
    for (let n = 0; n < 3; n++) {
      await append(shard, 1, ["a", "b"]);
      await append(shard, 2, ["a", "b"]);
    }
    await shard.settled();
    // As a node leaves it that is killed right after the commit.
    await heads().updateOne({ _id: `${number}:1` as never }, { $set: { start: 4 } });
    await heads().updateOne({ _id: `${number}:2` as never }, { $set: { dropped: true } });
    const next = openNamed(url, node);
    const again = (await next.store.openShard(number)) as MongoShard;
    await again.settled();
    assert.is(await events().countDocuments({ "_id.s": `${number}:1` }), 2);
    assert.is(await events().countDocuments({ "_id.s": `${number}:2` }), 0);
    assert.is(await heads().countDocuments({ _id: `${number}:2` as never }), 0);
    assert.equal([...again.streams()], [1]);
    await next.store.close();
    await store.close();
  });

  test("a topic that is made anew while the events of the old one are still there takes their place", async () => {
    const { store } = await openProcess(url);
    const shard = (await store.openShard(number)) as MongoShard;
    const name = "phoenix";
    await shard.commit(commitOf({ puts: [["partition/64", record(name)]] }));
    await append(shard, 64, ["old 0", "old 1", "old 2"]);
    await shard.settled();
    const kept = await events().find({ topic: name }).toArray();
    await shard.commit(commitOf({ puts: [["partition/64", null]], trims: [[64, null]] }));
    await shard.settled();
    assert.is(await events().countDocuments({ topic: name }), 0);
    // As if the removal had only begun.
    const [document] = await heads()
      .find({ _id: `${number}:64` as never })
      .toArray();
    assert.is(document, undefined);
    await events().insertMany(kept);
    await heads().insertOne({ _id: `${number}:64` as never, stream: 64, topic: name, partition: 0, dropped: true });
    await shard.commit(commitOf({ puts: [["partition/128", record(name)]] }));
    await append(shard, 128, ["new 0", "new 1"]);
    assert.equal(await allPayloads(shard, 128), ["0:new 0", "1:new 1"]);
    assert.equal(shard.damage(), []);
    const there = await events().find({ topic: name }).sort({ offset: 1 }).toArray();
    assert.equal(
      there.map(({ payload }) => payload),
      ["new 0", "new 1", "old 2"],
    );
    assert.is(await shard.findTs(128, 0), 0);
    await store.close();
  });

  test("a document that somebody removed is damage: its block is skipped and said, the others are read", async () => {
    const { store, reports } = await openProcess(url);
    const shard = await store.openShard(number);
    for (let n = 0; n < 4; n++) await append(shard, 1, [`a${n}`, `b${n}`]);
    const remove = (offset: number) => events().deleteOne({ "_id.s": `${number}:1`, offset });
    await remove(3);
    assert.equal(payloads((await shard.read(1, everything)).blocks), ["0:a0", "1:b0", "4:a2", "5:b2", "6:a3", "7:b3"]);
    const [damage] = reports.damages;
    assert.equal([damage.shard, damage.stream, damage.from, damage.to], [number, 1, 2, 4]);
    assert.match(damage.place, "events of topic");
    const inside = await shard.read(1, { ...everything, from: 2 });
    assert.equal([payloads(inside.blocks)[0], inside.next], ["4:a2", 8]);
    await remove(6);
    const tail = await shard.read(1, { ...everything, from: 6 });
    assert.equal([tail.blocks.length, tail.next], [0, 8]);
    assert.is(shard.damage().length, 2);
    // Offsets go on behind it.
    await append(shard, 1, ["e"]);
    assert.equal(payloads((await shard.read(1, { ...everything, from: 6 })).blocks), ["8:e"]);
    assert.is(shard.damage().length, 2);
    await store.close();
  });

  test("a read in the middle of a block gives the whole block, and reads nothing of what is not committed yet", async () => {
    const { store } = await openProcess(url);
    const shard = await store.openShard(number);
    const many = Array.from({ length: 2500 }, (_, n) => `e${n}`);
    await append(shard, 1, many);
    await append(shard, 1, ["last"]);
    const found = await shard.read(1, { from: 1700, to: 1800, bytesMax: 1 });
    assert.equal([found.blocks.length, found.blocks[0].firstOffset, found.next], [1, 0, 2500]);
    const ahead = block({ stream: 1, first: 2501, events: ["ahead"] });
    const reading = shard.commit(commitOf({ blocks: [ahead] }));
    assert.is((await shard.read(1, { ...everything, from: 2500 })).next, 2501);
    await reading;
    assert.is((await shard.read(1, { ...everything, from: 2500 })).next, 2502);
    await store.close();
  });
});

test.run();
