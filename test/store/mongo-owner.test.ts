// Who may write a shard, and that a commit is stored once whatever happens to it on the way: against a real server that is told to fail.

import type { Document, MongoClient } from "mongodb";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { mayPass, type ShardStore, type Store, StoreError } from "../../src/store/store.ts";
import { eventually } from "../support/deadline.ts";
import { openNamed, openProcess } from "../support/mongo-stores.ts";
import { type Mongod, startMongod, withMongod } from "../support/mongod.ts";
import { allPayloads, append, block, commitOf, payloads } from "../support/store-blocks.ts";

let mongod: Mongod;
let client: MongoClient;
/** One database: making its collections takes longer than most tests. Each test has a shard of its own in it. */
let url: string;
let number = 10;

async function failure(promise: Promise<unknown>): Promise<StoreError> {
  try {
    await promise;
  } catch (error) {
    assert.instance(error, StoreError, String(error));
    return error as StoreError;
  }
  throw new Error("expected a StoreError");
}

/** The server fails so many of these commands, or does them and says that it failed. */
async function failCommands(times: number, data: Document): Promise<void> {
  const mode = times === 0 ? "off" : { times };
  await client.db("admin").command({ configureFailPoint: "failCommand", mode, data: { appName: "narthex", ...data } });
}

const database = () => client.db(new URL(url).pathname.slice(1));
const events = () => database().collection<Document>("events");
const ofShard = () => ({ topic: `$${number}:0` });
const put = (key: string, value: string) => commitOf({ puts: [[key, new TextEncoder().encode(value)]] });

await withMongod("mongo owners", () => {
  test.before(async () => {
    mongod = await startMongod();
    client = await mongod.connect();
    url = mongod.url();
  });

  test.before.each(() => void number++);

  test.after(() => mongod.stop());

  test.after.each(() => failCommands(0, { failCommands: [] }));

  test("an owner document has node, epoch and until, and the format its shards", async () => {
    const { store, node } = await openProcess(url, { workers: 3 });
    const shard = await store.openShard(number);
    const owners = database().collection<Document>("owners");
    const owner = await owners.findOne({ _id: number as never });
    assert.is(owner?.node, node);
    assert.is(owner?.epoch, shard.epoch);
    assert.ok(owner?.until > new Date(Date.now() + 1000));
    const format = await owners.findOne({ _id: "format" as never });
    assert.equal([format?.version, format?.shards], [1, 3]);
    await store.close();
  });

  test("of two lives of a node the older one is fenced off: nothing of it is stored", async () => {
    const first = await openProcess(url);
    const old = await first.store.openShard(number);
    await append(old, 1, ["a"]);
    const second = openNamed(url, first.node);
    const now = await second.store.openShard(number);
    assert.ok(now.epoch > old.epoch);
    const fenced = await failure(append(old, 1, ["from the old one"]));
    assert.equal([fenced.state, fenced.code], ["broken", "EFENCED"]);
    assert.equal([(await failure(append(old, 1, ["again"]))).code], ["ESTALE"]);
    await append(now, 1, ["b"]);
    assert.equal(await allPayloads(now, 1), ["0:a", "1:b"]);
    // The old one gives nothing back that is not its own.
    await first.store.close();
    await append(now, 1, ["c"]);
    assert.equal(await allPayloads(now, 1), ["0:a", "1:b", "2:c"]);
    await second.store.close();
  });

  test("of two that commit at the same time one is stored", async () => {
    const { store, node } = await openProcess(url);
    let shard = await store.openShard(number);
    const rivals: Store[] = [];
    for (let round = 0; round < 20; round++) {
      const rival = openNamed(url, node);
      rivals.push(rival.store);
      const before = shard.head(1)?.end ?? 0;
      const claim = rival.store.openShard(number);
      const outcome = await append(shard, 1, [`round ${round}`]).then(
        () => "stored",
        (error: StoreError) => error.code,
      );
      shard = await claim;
      const after = shard.head(1)?.end ?? 0;
      // One that is turned away in the moment of its commit may have been stored: that is what "broken" says.
      if (outcome === "stored") assert.is(after - before, 1, `round ${round}`);
      else assert.ok(outcome === "EFENCED" && after - before <= 1, `round ${round}: ${outcome}, ${after - before}`);
    }
    const texts = await allPayloads(shard, 1);
    assert.is(new Set(texts.map((text) => text.slice(text.indexOf(":")))).size, texts.length, "nothing is there twice");
    for (const rival of rivals) await rival.close();
    await store.close();
  });

  test("another node is refused by name as long as the first is alive, and has the shard at once when that one has closed", async () => {
    const first = await openProcess(url);
    await first.store.openShard(number);
    // As from a machine of which this one knows nothing.
    const owners = database().collection<Document>("owners");
    await owners.updateOne(
      { _id: number as never },
      { $set: { "process.boot": "elsewhere", "process.host": "elsewhere" } },
    );
    const second = await openProcess(url);
    const refused = await failure(second.store.openShard(number));
    assert.is(refused.code, "EOWNED");
    assert.match(refused.message, first.node);
    assert.is(mayPass(refused), true);
    await first.store.close();
    const shard = await second.store.openShard(number);
    await append(shard, 1, ["a"]);
    await second.store.close();
  });

  test("an owner elsewhere that says nothing any more is waited for, and then its shard is taken", async () => {
    const first = await openProcess(url);
    const lost = await first.store.openShard(number);
    const owners = database().collection<Document>("owners");
    const elsewhere = { "process.boot": "elsewhere", "process.host": "elsewhere", until: new Date(Date.now() + 1500) };
    // Its beats stop, as those of a machine that lost its power.
    await failCommands(1000, { failCommands: ["update"], errorCode: 11_601 });
    await owners.updateOne({ _id: number as never }, { $set: elsewhere });
    const second = await openProcess(url).catch(() => openNamed(url, "another"));
    assert.is((await failure(second.store.openShard(number))).code, "EOWNED");
    const shard = await eventually<ShardStore>(5000, "the shard is taken", () =>
      second.store.openShard(number).catch((error: StoreError) => {
        assert.is(error.code, "EOWNED");
        return undefined;
      }),
    );
    await failCommands(0, { failCommands: [] });
    assert.ok(shard.epoch > lost.epoch);
    assert.is((await failure(append(lost, 1, ["late"]))).state, "broken");
    await second.store.close();
    await first.store.close();
  });

  test("a transaction that a killed owner left open does not hold up the next one", async () => {
    const { store, node } = await openProcess(url);
    const shard = await store.openShard(number);
    await append(shard, 1, ["a"]);
    // Its commit hangs on the server behind an insert, with the owner document written.
    await failCommands(1, { failCommands: ["insert"], blockConnection: true, blockTimeMS: 3000 });
    const hanging = append(shard, 1, ["never"]).then(
      () => "stored",
      (error: StoreError) => error.state,
    );
    const open = () =>
      client
        .db("admin")
        .aggregate([
          { $currentOp: { allUsers: true, idleSessions: true } },
          { $match: { transaction: { $exists: true } } },
        ])
        .toArray();
    await eventually(2000, "a transaction is open", async () => (await open()).length > 0);
    const startedAt = performance.now();
    const next = openNamed(url, node);
    const now = await next.store.openShard(number);
    assert.ok(performance.now() - startedAt < 2500, "it did not wait for the transaction");
    assert.equal(await allPayloads(now, 1), ["0:a"]);
    assert.is(await hanging, "broken");
    assert.equal(await allPayloads(now, 1), ["0:a"]);
    assert.is(await events().countDocuments(ofShard()), 1);
    await next.store.close();
    await store.close();
  });

  const faults: [string, number, Document][] = [
    [
      "the connection breaks before the commit is done",
      1,
      { failCommands: ["commitTransaction"], closeConnection: true },
    ],
    ["it breaks three times", 3, { failCommands: ["commitTransaction"], closeConnection: true }],
    [
      "the commit is done and the answer says that the server shuts down",
      3,
      { failCommands: ["commitTransaction"], writeConcernError: { code: 91, errmsg: "shutting down" } },
    ],
    [
      "the commit is done and the majority does not say so in time",
      2,
      {
        failCommands: ["commitTransaction"],
        writeConcernError: { code: 64, errmsg: "waiting for replication timed out" },
      },
    ],
    ["the server says that the primary has stepped down", 2, { failCommands: ["commitTransaction"], errorCode: 189 }],
    ["the first write meets a step-down", 2, { failCommands: ["update"], errorCode: 10_107 }],
    ["the events meet a broken connection", 2, { failCommands: ["insert"], closeConnection: true }],
    [
      "the events meet a conflict",
      2,
      { failCommands: ["insert"], errorCode: 112, errorLabels: ["TransientTransactionError"] },
    ],
  ];
  for (const [name, times, data] of faults) {
    test(`stored once: ${name}`, async () => {
      const { store } = await openProcess(url);
      const shard = await store.openShard(number);
      await append(shard, 1, ["a"]);
      await failCommands(times, data);
      await append(shard, 1, ["b", "c"]);
      await failCommands(0, { failCommands: [] });
      await append(shard, 1, ["d"]);
      assert.equal(await allPayloads(shard, 1), ["0:a", "1:b", "2:c", "3:d"]);
      assert.is(await events().countDocuments(ofShard()), 4);
      await store.close();
    });
  }

  test("a commit that the server refuses is not stored, and the shard goes on", async () => {
    const { store } = await openProcess(url);
    const shard = await store.openShard(number);
    await append(shard, 1, ["a"]);
    await failCommands(1, { failCommands: ["insert"], errorCode: 14_031 });
    const refused = await failure(append(shard, 1, ["b"]));
    assert.equal([refused.state, refused.code], ["refused", "ENOSPC"]);
    await append(shard, 1, ["c"]);
    assert.equal(await allPayloads(shard, 1), ["0:a", "1:c"]);
    await store.close();
  });

  test("entries and heads of a commit that fails in its middle are not stored either", async () => {
    const { store, node } = await openProcess(url);
    const shard = await store.openShard(number);
    await shard.commit(put("cursor/1/g", "1"));
    await append(shard, 1, ["a"]);
    // The events are inserted by then.
    const namespace = `${database().databaseName}.cursors`;
    await failCommands(1, { failCommands: ["update"], namespace, errorCode: 13 });
    const both = { ...put("cursor/1/g", "2"), blocks: [block({ stream: 1, first: 1, events: ["b"] })] };
    assert.equal([(await failure(shard.commit(both))).code], ["EACCES"]);
    const next = openNamed(url, node);
    const now = await next.store.openShard(number);
    assert.is(Buffer.from(now.entry("cursor/1/g") ?? []).toString(), "1");
    assert.equal(now.head(1), shard.head(1));
    assert.equal(await allPayloads(now, 1), ["0:a"]);
    assert.is(await events().countDocuments(ofShard()), 1);
    await next.store.close();
    await store.close();
  });

  test("documents that somebody else put where events go are never written over", async () => {
    const { store } = await openProcess(url);
    const shard = await store.openShard(number);
    await append(shard, 1, ["a"]);
    const [mine] = await events().find(ofShard()).toArray();
    await events().insertOne({ ...mine, _id: { ...mine._id, o: 1 } as never, offset: 1 });
    const refused = await failure(append(shard, 1, ["b"]));
    assert.equal([refused.state], ["refused"]);
    assert.match(refused.message, "E11000");
    assert.is(await events().countDocuments(ofShard()), 2);
    const found = await shard.read(1, { from: 0, to: 9, bytesMax: 1_000_000 });
    assert.equal([payloads(found.blocks), found.next], [["0:a"], 1], "what this shard has not committed is not read");
    // Nor those of another stream that has not ended.
    await append(shard, 64, ["x"]);
    await events().updateOne({ "_id.s": `${number}:1`, offset: 1 }, { $set: { offset: 7 } });
    await events().insertOne({
      ...mine,
      _id: { s: "99:64", o: 1 } as never,
      topic: `$${number}:1`,
      partition: 0,
      offset: 1,
    });
    assert.match((await failure(append(shard, 64, ["y"]))).message, "E11000");
    assert.is(await events().countDocuments({ "_id.s": "99:64" }), 1);
    await store.close();
  });

  test("without an answer a commit is given up after a while, as not stored or as unknown", async () => {
    const alone = await startMongod();
    try {
      const { store } = await openProcess(`${alone.url()}&serverSelectionTimeoutMS=500`, { commitMs: 2000 });
      const shard = await store.openShard(number);
      await append(shard, 1, ["a"]);
      await alone.members[0].kill("SIGKILL");
      const startedAt = performance.now();
      const lost = await failure(append(shard, 1, ["b"]));
      assert.equal([lost.state, lost.code, mayPass(lost)], ["refused", "ENOPRIMARY", true], lost.stack);
      assert.ok(performance.now() - startedAt < 6000);
      assert.is((await failure(shard.read(1, { from: 0, to: 1, bytesMax: 1 }))).code, "ENOPRIMARY");
      await alone.members[0].restart();
      await alone.primary();
      await append(shard, 1, ["c"]);
      assert.equal(await allPayloads(shard, 1), ["0:a", "1:c"]);
      await store.close();
    } finally {
      await alone.stop();
    }
  });
});

test.run();
