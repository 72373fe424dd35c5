// The database around the events: collections, indexes, what makes a start impossible and what it says then.

import type { Document, MongoClient } from "mongodb";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { realClock } from "../../src/runtime/clock.ts";
import { openDatabase } from "../../src/store/mongo/database.ts";
import { inspectDatabase } from "../../src/store/mongo/inspection.ts";
import { collectionNames, indexes } from "../../src/store/mongo/schema.ts";
import { StoreError } from "../../src/store/store.ts";
import { openProcess } from "../support/mongo-stores.ts";
import { type Mongod, startMongod, withMongod } from "../support/mongod.ts";
import { append } from "../support/store-blocks.ts";

let mongod: Mongod;
let client: MongoClient;

const open = (url: string, workers = 1) => openDatabase({ url, workers, clock: realClock() });
const databaseOf = (url: string) => client.db(new URL(url).pathname.slice(1));

async function refusal(promise: Promise<unknown>): Promise<StoreError> {
  try {
    await promise;
  } catch (error) {
    assert.instance(error, StoreError, String(error));
    return error as StoreError;
  }
  throw new Error("expected a refusal");
}

await withMongod("mongo schema", () => {
  test.before(async () => {
    mongod = await startMongod();
    client = await mongod.connect();
  });

  test.after(() => mongod.stop());

  test("a start makes all collections and indexes, by key pattern, and another one changes nothing", async () => {
    const url = mongod.url();
    await open(url);
    const db = databaseOf(url);
    const names = (await db.listCollections().toArray()).map(({ name }) => name).sort();
    assert.equal(names, [...collectionNames].sort());
    const patterns = async () => {
      const found: string[] = [];
      for (const name of names) {
        for (const index of await db.collection(name).indexes()) {
          const { key, unique, expireAfterSeconds: ttl } = index;
          found.push(
            `${name} ${JSON.stringify(key)}${unique ? " unique" : ""}${ttl === undefined ? "" : ` ttl ${ttl}`}`,
          );
        }
      }
      return found;
    };
    const made = await patterns();
    for (const wanted of [
      'events {"topic":1,"ts":1,"id":1}',
      'events {"topic":1,"key":1,"ts":1}',
      'events {"id":1}',
      'events {"topic":1,"partition":1,"offset":1} unique',
      'events {"topic":1,"partition":1,"id":1}',
      'cursors {"_id":1}',
      'dedupe {"expireAt":1} ttl 0',
      'outbox {"status":1,"lease_until":1}',
      'outbox {"ts":1}',
    ]) {
      assert.ok(made.includes(wanted), `${wanted} is not among\n${made.join("\n")}`);
    }
    assert.is(made.length, indexes.length + collectionNames.length);
    await open(url);
    assert.equal(await patterns(), made);
  });

  test("an index that was dropped is made again, one that is different is refused by name with what to do", async () => {
    const url = mongod.url();
    await open(url);
    const events = databaseOf(url).collection("events");
    await events.dropIndex("topic_1_ts_1_id_1");
    await events.dropIndex("topic_1_partition_1_offset_1");
    await events.createIndex({ topic: 1, partition: 1, offset: 1 }, { name: "by_hand" });
    const refused = await refusal(open(url));
    assert.is(refused.code, "EINDEX");
    assert.match(refused.message, /\{"topic":1,"partition":1,"offset":1\} of events is not unique/);
    assert.match(refused.message, 'db.events.dropIndex("by_hand")');
    await events.dropIndex("by_hand");
    await open(url);
    const keys = (await events.indexes()).map(({ key }) => JSON.stringify(key));
    assert.ok(keys.includes('{"topic":1,"ts":1,"id":1}'));
  });

  test("the shards are as many as the largest number of workers, and a newer format is refused", async () => {
    const url = mongod.url();
    assert.is((await open(url, 2)).shards, 2);
    assert.is((await open(url, 5)).shards, 5);
    assert.is((await open(url, 1)).shards, 5);
    const owners = databaseOf(url).collection<Document>("owners");
    await owners.updateOne({ _id: "format" as never }, { $set: { shards: "many" } });
    assert.is((await refusal(open(url))).code, "EFORMAT");
    await owners.updateOne({ _id: "format" as never }, { $set: { version: 2, shards: 5 } });
    const newer = await refusal(open(url, 9));
    assert.is(newer.code, "EFORMAT");
    assert.match(newer.message, /version 2.*up to 1.*use a newer one/);
    assert.is((await owners.findOne({ _id: "format" as never }))?.shards, 5);
  });

  test("a URL without a database means narthex", async () => {
    const url = mongod.url().replace(/\/test-\d+\?/, "/?");
    await open(url);
    assert.ok((await client.db("narthex").listCollections().toArray()).length > 0);
  });

  test("a standalone server is refused with the line that makes it a set", async () => {
    const alone = await startMongod({ standalone: true });
    try {
      const refused = await refusal(open(alone.url()));
      assert.is(refused.code, "ESTANDALONE");
      assert.match(refused.message, /standalone.*--replSet rs0.*rs\.initiate\(\)/);
    } finally {
      await alone.stop();
    }
  });

  test("a version that is too old is refused with the one to install", async () => {
    // The server says what it is told to say: an older one would have to be had for this.
    const { checkServer } = await import("../../src/store/mongo/database.ts");
    const old = {
      db: () => ({
        command: async (question: Document) => ("hello" in question ? { setName: "rs0" } : { version: "5.0.31" }),
      }),
    } as unknown as MongoClient;
    const refused = await refusal(checkServer(old, "mongodb://h"));
    assert.is(refused.code, "EVERSION");
    assert.match(refused.message, /5\.0\.31.*install 6\.0 or newer/);
  });

  test("a server that does not answer is refused within the time of the URL, and no password is said", async () => {
    const refused = await refusal(open("mongodb://me:s3cr3t@127.0.0.1:9/bus?serverSelectionTimeoutMS=300"));
    assert.is(refused.code, "ENOPRIMARY");
    assert.match(refused.message, /127\.0\.0\.1:9 cannot be reached/);
    assert.not.match(refused.message, "s3cr3t");
    const wrong = await refusal(open("mongodb://me:s3cr3t@a/bus?nonsense=1"));
    assert.is(wrong.code, "EINVAL");
    assert.not.match(wrong.message, "s3cr3t");
  });

  test("missing rights and a wrong password are refused with what to grant", async () => {
    const guarded = await startMongod({ root: { user: "root", password: "r00t" } });
    try {
      const admin = await guarded.connect();
      const url = guarded.url();
      const name = new URL(url).pathname.slice(1);
      const roles = { reader: [{ role: "read", db: name }], stranger: [], writer: [{ role: "readWrite", db: name }] };
      for (const [user, granted] of Object.entries(roles)) {
        await admin.db("admin").command({ createUser: user, pwd: "pw", roles: granted });
      }
      const as = (user: string, password = "pw") => url.replace("root:r00t", `${user}:${password}`);
      for (const user of ["reader", "stranger"]) {
        const refused = await refusal(open(as(user)));
        assert.is(refused.code, "EACCES", refused.message);
        assert.match(refused.message, `grantRolesToUser("<user>", [{ role: "readWrite", db: "${name}" }])`);
      }
      const rights = async (user: string) => (await inspectDatabase(as(user))).missingRights;
      assert.equal(await rights("reader"), ["insert", "update", "remove", "createCollection", "createIndex"]);
      assert.ok((await rights("stranger")).includes("find"));
      assert.equal([await rights("writer"), (await inspectDatabase(url)).missingRights], [[], []]);
      const wrong = await refusal(open(as("writer", "wr0ng")));
      assert.is(wrong.code, "EAUTH", wrong.message);
      assert.not.match(wrong.message, "wr0ng");
      // What is to be granted is enough for all that a store does.
      const { store } = await openProcess(as("writer"));
      const shard = await store.openShard(0);
      await append(shard, 1, ["a"]);
      await store.close();
      const again = await openProcess(as("writer"));
      assert.is((await again.store.openShard(0)).head(1)?.end, 1);
      await again.store.close();
      // The reader comes when all is made.
      assert.is((await refusal(open(as("reader")))).code, "EACCES");
    } finally {
      await guarded.stop();
    }
  });
});

test.run();
