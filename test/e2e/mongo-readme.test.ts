// What the README shows of MongoDB, run as it is written: the start, each query, and the document of an event.

import { readFileSync } from "node:fs";
import { type Db, MongoClient } from "mongodb";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { startMongod, withMongod } from "../support/mongod.ts";
import { startNode } from "../support/node-process.ts";
import { PlainClient } from "../support/plain-client.ts";
import { readBlocks } from "../support/readme.ts";

const section = /^## MongoDB$(.*?)^## /ms.exec(readFileSync("README.md", "utf8"))?.[1] ?? "";
const blocks = readBlocks(section);
const blockIn = (language: string) => blocks.find((block) => block.language === language)?.text ?? "";

/** `db` as mongosh has it: collections are its members. */
function shellOf(db: Db): unknown {
  return new Proxy({}, { get: (_, name) => db.collection(String(name)) });
}

/** Names and kinds, without what cannot be the same twice. */
function shape(value: unknown): unknown {
  if (typeof value !== "object" || value === null) return typeof value;
  return Object.fromEntries(Object.entries(value).map(([name, member]) => [name, shape(member)]));
}

await withMongod("the README on MongoDB", () => {
  test("the start, the queries and the document of the README are what they are shown to be", async () => {
    const mongod = await startMongod();
    try {
      const [, shown, database] =
        /MONGO_URL="(mongodb:\/\/127\.0\.0\.1:27017\/(\w+)\?replicaSet=rs0)" npx narthex$/.exec(blockIn("sh")) ?? [];
      assert.ok(shown, blockIn("sh"));
      const url = shown.replace("127.0.0.1:27017", mongod.members[0].host);
      const node = await startNode({ data: "/nowhere", env: { STORE: "mongo", MONGO_URL: url, WORKERS: "1" } });
      const plain = (text: string) => text.replace(/127\.0\.0\.1:\d+/, "");
      assert.is(plain(node.out().split("\n")[0]), plain(blockIn("").split("\n")[0]));
      const client = await PlainClient.open(node.wsUrl);
      await client.publish("orders", { n: 1 });
      await client.publish("orders", { n: 2 }, { key: "customer-7" });
      await client.subscribe("orders", "billing", { from: "earliest" });
      for (const event of await client.nextMany(2)) await client.ack(event);
      await client.close();
      const mongo = await new MongoClient(url).connect();
      assert.is(mongo.db().databaseName, database);
      const queries = blockIn("js").split("\n");
      assert.ok(queries.length >= 5);
      const db = shellOf(mongo.db());
      for (const query of queries) {
        const found = await new Function("db", `return ${query}.toArray()`)(db);
        assert.ok(found.length > 0, query);
        if (query.includes("customer-7")) {
          const wanted = JSON.parse(blockIn("json"));
          assert.equal(shape(found[0]), shape(wanted));
          const { _id, topic, offset, payload, block } = found[0];
          assert.equal(
            { _id, topic, offset, payload },
            { _id: wanted._id, topic: wanted.topic, offset: wanted.offset, payload: wanted.payload },
          );
          assert.is(block.bytes, wanted.block.bytes);
        }
      }
      await mongo.close();
      await node.kill("SIGTERM");
    } finally {
      await mongod.stop();
    }
  });
});

test.run();
