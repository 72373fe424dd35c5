// Write concern by topic: what is stored at w:1 may be lost with its primary, and nothing else; the shard finds out and goes on.

import type { MongoClient } from "mongodb";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { type Commit, mayPass, type ShardStore, StoreError } from "../../src/store/store.ts";
import { eventually } from "../support/deadline.ts";
import { openProcess } from "../support/mongo-stores.ts";
import { startMongod, withMongod } from "../support/mongod.ts";
import { allPayloads, append, block, commitOf } from "../support/store-blocks.ts";

const telemetry = 64;
const business = 128;
const bytes = (value: unknown) => new TextEncoder().encode(JSON.stringify(value));
const topics: Commit = commitOf({
  puts: [
    [`partition/${telemetry}`, bytes({ name: "telemetry", settings: { writeConcern: "w:1" } })],
    [`partition/${business}`, bytes({ name: "business", settings: { writeConcern: "majority" } })],
    ["partition/192", bytes({ name: "plain", settings: {} })],
    ["partition/256", bytes({ name: "many", settings: { writeConcern: "w:3" } })],
  ],
});

/** The write concern of each commit that the server is asked for from now on. */
async function concerns(client: MongoClient, url: string, run: () => Promise<void>): Promise<unknown[]> {
  // Each command is a slow one, and is logged.
  await client.db(new URL(url).pathname.slice(1)).command({ profile: 0, slowms: -1 });
  await run();
  const { log } = (await client.db("admin").command({ getLog: "global" })) as unknown as { log: string[] };
  return log
    .map((line) => JSON.parse(line) as { attr?: { command?: { commitTransaction?: number; writeConcern?: unknown } } })
    .flatMap(({ attr }) => (attr?.command?.commitTransaction === 1 ? [attr.command.writeConcern] : []));
}

await withMongod("mongo write concern", () => {
  test("an OK says it by topic; a commit is at w:1 if there is nothing in it but events of such topics", async () => {
    const mongod = await startMongod();
    try {
      const url = mongod.url();
      const client = await mongod.connect();
      const { store } = await openProcess(url);
      const shard = await store.openShard(0);
      const said = (stream: number) => shard.durabilityOf?.(stream);
      assert.is(said(telemetry), "mongo:majority");
      await shard.commit(topics);
      assert.equal([64, 128, 192, 256, 320].map(said), [
        "mongo:w:1",
        "mongo:majority",
        "mongo:majority",
        "mongo:majority",
        "mongo:majority",
      ]);
      const one = (stream: number) => block({ stream, first: shard.head(stream)?.end ?? 0, events: ["e"] });
      const cases: [Commit, unknown][] = [
        [commitOf({ blocks: [one(telemetry)] }), 1],
        [commitOf({ blocks: [one(business)] }), "majority"],
      ];
      const asked = await concerns(client, url, async () => {
        for (const [commit] of cases) await shard.commit(commit);
        const dedupe = ["dedupe/64/1", bytes([])] as const;
        await shard.commit(commitOf({ blocks: [one(telemetry)], puts: [dedupe] }));
        await shard.commit(commitOf({ blocks: [one(telemetry), one(business)] }));
        await shard.commit(commitOf({ blocks: [one(telemetry)], puts: [["cursor/64/g", bytes({})]] }));
        await shard.commit(commitOf({ blocks: [one(telemetry)], trims: [[telemetry, 1]] }));
        await shard.commit(commitOf({ puts: [dedupe] }));
      });
      const ws = asked.map((concern) => (concern as { w?: unknown })?.w);
      assert.equal(ws, [1, "majority", 1, "majority", "majority", "majority", "majority"]);
      await store.close();
    } finally {
      await mongod.stop();
    }
  });

  test("what was stored at w:1 is lost with its primary; the shard finds out, is opened again and has all else", async () => {
    const mongod = await startMongod({ members: 3 });
    try {
      const url = `${mongod.url()}&serverSelectionTimeoutMS=5000`;
      const { store } = await openProcess(url);
      let shard: ShardStore = await store.openShard(0);
      await shard.commit(topics);
      await append(shard, business, ["kept"]);
      await append(shard, telemetry, ["kept"]);
      await shard.commit(commitOf({ puts: [["cursor/64/g", bytes({ floor: 1 })]] }));
      const primary = await mongod.primary();
      const others = mongod.members.filter((member) => member !== primary);
      // They hear of nothing from now on, and the primary is one for as long as it takes to find out that it is alone.
      await Promise.all(others.map((member) => member.kill("SIGKILL")));
      await append(shard, telemetry, ["gone"]);
      assert.is(shard.head(telemetry)?.end, 2);
      await primary.kill("SIGKILL");
      await Promise.all(others.map((member) => member.restart()));
      await mongod.primary();
      const lost = await append(shard, business, ["too late"]).then(
        () => undefined,
        (error: unknown) => error,
      );
      assert.instance(lost, StoreError);
      assert.equal([(lost as StoreError).state, (lost as StoreError).code], ["broken", "ELOST"], String(lost));
      await shard.close();
      shard = await eventually(10_000, "the shard is opened again", () =>
        store.openShard(0).catch((error: unknown) => {
          assert.ok(mayPass(error), String(error));
          return undefined;
        }),
      );
      assert.equal(await allPayloads(shard, telemetry), ["0:kept"]);
      assert.equal(await allPayloads(shard, business), ["0:kept"]);
      assert.is(Buffer.from(shard.entry("cursor/64/g") ?? []).toString(), '{"floor":1}');
      await append(shard, telemetry, ["next"]);
      assert.equal(await allPayloads(shard, telemetry), ["0:kept", "1:next"]);
      await store.close();
    } finally {
      await mongod.stop();
    }
  });
});

test.run();
