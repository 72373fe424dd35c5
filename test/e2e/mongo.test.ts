// A node on MongoDB: G1 to G11, and what the frames and routes promise, against a real server.

import { readFileSync } from "node:fs";
import type { MongoClient } from "mongodb";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { features } from "../conformance/features.ts";
import { guarantees } from "../conformance/guarantees.ts";
import { slowClientCosts } from "../conformance/slow-client.ts";
import { runCli } from "../support/cli-process.ts";
import { eventually } from "../support/deadline.ts";
import { type Mongod, startMongod, withMongod } from "../support/mongod.ts";
import { startHere } from "../support/node-here.ts";
import { runNode, startNode } from "../support/node-process.ts";
import { type Frame, PlainClient } from "../support/plain-client.ts";

let mongod: Mongod;
let client: MongoClient;

const start = (url: string, env: Record<string, string> = {}, args: readonly string[] = []) =>
  startNode({ data: "/nowhere", env: { STORE: "mongo", MONGO_URL: url, ...env }, args });

async function replayed(node: { readonly http: string }, topic: string): Promise<{ id: string; payload: unknown }[]> {
  const response = await fetch(`${node.http}/replay?topic=${topic}&limit=10000`);
  assert.is(response.status, 200);
  return ((await response.json()) as { events: { id: string; payload: unknown }[] }).events;
}

test("the driver is loaded by those who use it: no program imports it at its start", () => {
  for (const program of ["main", "host", "narthex"]) {
    const code = readFileSync(new URL(`./${program}.js`, import.meta.url), "utf8");
    assert.not.match(code, /^import .*"mongodb"/m);
    assert.match(code, 'import("mongodb")');
  }
});

await withMongod("mongo e2e", async () => {
  mongod = await startMongod();
  client = await mongod.connect();
  const url = mongod.url();

  guarantees({ durability: "mongo:majority", start: (env) => start(url, env), end: async () => undefined });
  features({ place: () => ({ store: "mongo", mongoUrl: mongod.url() }), end: async () => undefined });
  slowClientCosts(() => ({ store: "mongo", mongoUrl: mongod.url() }));

  test.after(() => mongod.stop());

  test("G9: what is refused for its rate is not stored, what is not is, in order", async () => {
    const node = await start(mongod.url());
    const publisher = await PlainClient.open(node.wsUrl);
    const answers = await Promise.all(
      Array.from({ length: 260 }, (_, n) => publisher.request({ op: "PUBLISH", topic: "burst", payload: n })),
    );
    const stored = answers.flatMap(({ op }, n) => (op === "OK" ? [n] : []));
    assert.ok(stored.length >= 200 && stored.length < 260, `${stored.length}`);
    assert.ok(answers.every(({ op, code }) => op === "OK" || code === "rate_limited"));
    assert.equal(
      (await replayed(node, "burst")).map(({ payload }) => payload),
      stored,
    );
    await publisher.close();
    await node.kill("SIGTERM");
  });

  test("G11: without its server the node refuses, says why on /health/ready, and goes on by itself when it is back", async () => {
    const alone = await startMongod();
    const mongoUrl = `${alone.url()}&serverSelectionTimeoutMS=500`;
    const { node, http, ws } = await startHere({ store: "mongo", mongoUrl, limits: { mongoCommitMs: 1500 } });
    try {
      const publisher = await PlainClient.open(ws);
      const confirmed: { id: unknown; n: number }[] = [];
      const refusals = new Set<unknown>();
      let going = true;
      const load = (async () => {
        for (let n = 0; going; n++) {
          const answer: Frame = await publisher.request({
            op: "PUBLISH",
            topic: "t",
            payload: n,
            opts: { id: `n-${n}` },
          });
          if (answer.op === "OK") confirmed.push({ id: answer.id, n });
          else refusals.add(answer.code);
        }
      })();
      await eventually(5000, "some are stored", () => confirmed.length > 20);
      await alone.members[0].kill("SIGKILL");
      const reasons = await eventually(30_000, "not ready", async () => {
        const response = await fetch(`${http}/health/ready`);
        return response.status === 503 && ((await response.json()) as { reasons: string[] }).reasons;
      });
      assert.match(reasons.join(), /MongoDB has no primary that answers \(ENOPRIMARY\)/);
      const before = confirmed.length;
      await alone.members[0].restart();
      await eventually(30_000, "ready", async () => (await fetch(`${http}/health/ready`)).status === 200);
      await eventually(10_000, "more are stored", () => confirmed.length > before + 20);
      going = false;
      await load;
      assert.ok(
        [...refusals].every((code) => code === "publish_failed" || code === "unavailable"),
        String([...refusals]),
      );
      const events = await replayed({ http }, "t");
      const ids = events.map(({ id }) => id);
      assert.is(new Set(ids).size, ids.length, "nothing is stored twice");
      for (const { id } of confirmed) assert.ok(ids.includes(String(id)), `${id} is lost`);
      await publisher.close();
    } finally {
      await node.destroy();
      await alone.stop();
    }
  });

  test("events are documents that can be queried, and the start line says where they are but no password", async () => {
    const there = mongod.url();
    const node = await start(there);
    const publisher = await PlainClient.open(node.wsUrl);
    await publisher.publish(
      "orders",
      { n: 1, total: { eur: 12.5 } },
      { key: "customer-7", headers: { a: "b" }, tags: ["t"] },
    );
    await publisher.subscribe("orders", "billing", { from: "earliest" });
    await publisher.ack(await publisher.next());
    const db = client.db(new URL(there).pathname.slice(1));
    const found = await db.collection("events").findOne({ topic: "orders", "payload.total.eur": { $gt: 10 } });
    assert.equal([found?.key, found?.headers, found?.tags, found?.offset], ["customer-7", { a: "b" }, ["t"], 0]);
    const cursor = await db.collection("cursors").findOne({ topic: "orders", group: "billing", "value.floor": 1 });
    assert.is(cursor?.partition, 0);
    assert.match(node.out(), "store=mongo durability=mongo:majority");
    assert.not.match(node.out(), "mongodb://");
    const put = await fetch(`${node.http}/topics/orders`, {
      method: "PUT",
      headers: { "content-type": "application/json" },
      body: '{"writeConcern":"w:1"}',
    });
    assert.is(put.status, 200);
    assert.is((await publisher.publish("orders", 2)).durability, "mongo:w:1");
    assert.is((await publisher.publish("others", 2)).durability, "mongo:majority");
    await publisher.close();
    await node.kill("SIGTERM");
  });

  test("a second node on the same database is not ready while the first is, and takes over when that one has ended", async () => {
    const there = mongod.url();
    const first = await start(there, { WORKERS: "1" });
    const db = client.db(new URL(there).pathname.slice(1));
    // As if the first were on another machine.
    await db
      .collection("owners")
      .updateOne({ _id: 0 as never }, { $set: { "process.boot": "b", "process.host": "h" } });
    const second = await start(there, { WORKERS: "1" });
    assert.match(second.out(), /narthex not ready yet: shard 0 is down: another node has this shard \(EOWNED\)/);
    const publisher = await PlainClient.open(first.wsUrl);
    await publisher.publish("t", 1);
    await publisher.close();
    await first.kill("SIGTERM");
    await eventually(
      10_000,
      "the second is ready",
      async () => (await fetch(`${second.http}/health/ready`)).status === 200,
    );
    assert.equal(
      (await replayed(second, "t")).map(({ payload }) => payload),
      [1],
    );
    await second.kill("SIGTERM");
  });

  test("doctor says what a database has and what it lacks", async () => {
    const there = mongod.url();
    const doctor = async (mongoUrl: string) => {
      const env = {
        STORE: "mongo",
        MONGO_URL: mongoUrl,
        WS_PORT: "0",
        HTTP_PORT: "off",
        OPS_PORT: "off",
        REPLAY_PORT: "off",
      };
      const { code, out } = await runCli(["doctor"], { url: "http://127.0.0.1:9", env });
      return { code, out };
    };
    const fresh = await doctor(there);
    assert.match(fresh.out, /^ok {4}mongo: version \d+\.\d+\.\d+, rs0, at 127\.0\.0\.1:\d+$/m);
    assert.match(fresh.out, /^ok {4}format: nothing in database test-\d+ yet; the first start makes it$/m);
    assert.match(fresh.out, /^ok {4}indexes: none yet/m);
    assert.not.match(fresh.out, /fsync|data:/);
    const db = client.db(new URL(there).pathname.slice(1));
    assert.equal(await db.listCollections().toArray(), [], "doctor changes nothing");
    const node = await start(there, { WORKERS: "2" });
    const running = await doctor(there);
    assert.match(running.out, /^ok {4}format: version 1, 2 shards$/m);
    assert.match(running.out, /^ok {4}indexes: all \d+ are there$/m);
    assert.match(running.out, new RegExp(`^ok {4}owners: .+:${node.child.pid}:[0-9a-f]+ has shards 0, 1;`, "m"));
    await node.kill("SIGTERM");
    assert.match((await doctor(there)).out, /^ok {4}owners: nobody has a shard/m);
    await db.collection("events").dropIndex("id_1");
    await db.collection("events").dropIndex("topic_1_partition_1_offset_1");
    await db.collection("events").createIndex({ topic: 1, partition: 1, offset: 1 });
    const hurt = await doctor(there);
    assert.match(hurt.out, /^warn {2}indexes: index \{"id":1\} of events is missing; the next start makes it$/m);
    assert.match(
      hurt.out,
      /^FAIL {2}indexes: index \{"topic":1,"partition":1,"offset":1\} of events is not unique: drop it/m,
    );
    assert.is(hurt.code, 1);
    const gone = await doctor("mongodb://me:s3cr3t@127.0.0.1:9/bus?serverSelectionTimeoutMS=300");
    assert.match(gone.out, /^FAIL {2}mongo: MongoDB at 127\.0\.0\.1:9 cannot be reached/m);
    assert.not.match(gone.out, "s3cr3t");
  });

  test("a start without a server, or with a standalone one, ends with one line that says what to do", async () => {
    const env = { STORE: "mongo", MONGO_URL: "mongodb://me:s3cr3t@127.0.0.1:9/bus?serverSelectionTimeoutMS=300" };
    const { code, out } = await runNode({ data: "/nowhere", env });
    assert.is(code, 1);
    assert.match(out, /^narthex: MongoDB at 127\.0\.0\.1:9 cannot be reached/);
    assert.not.match(out, "s3cr3t");
    assert.is(out.trim().split("\n").length, 1);
  });
});

test.run();
