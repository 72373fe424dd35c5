// The mongod that the tests of the MongoDB store run against (test/support/mongod.ts).

import { test } from "uvu";
import * as assert from "uvu/assert";
import { startMongod, withMongod } from "../support/mongod.ts";
import { findMongod, withoutMongod } from "../support/mongod-binary.ts";

await withMongod("mongod", () => {
  test("MONGOD is the one that counts, and a wrong one is said", async () => {
    assert.equal(await findMongod({ MONGOD: process.execPath }), { path: process.execPath });
    assert.match(JSON.stringify(await findMongod({ MONGOD: "/nowhere/mongod" })), "is no program");
  });

  test("without one the tests are skipped, unless it is required", () => {
    assert.is(withoutMongod({}), "skip");
    assert.is(withoutMongod({ NARTHEX_REQUIRE_MONGOD: "0" }), "skip");
    assert.is(withoutMongod({ NARTHEX_REQUIRE_MONGOD: "1" }), "fail");
  });

  test("a set of one takes transactions, each url is a database of its own", async () => {
    const mongod = await startMongod();
    try {
      const client = await mongod.connect();
      const notes = client.db("notes").collection("notes");
      await client.withSession((session) =>
        session.withTransaction(async () => {
          await notes.insertOne({ n: 1 }, { session });
          await notes.insertOne({ n: 2 }, { session });
        }),
      );
      assert.is(await notes.countDocuments(), 2);
      assert.not.equal(mongod.url(), mongod.url());
    } finally {
      await mongod.stop();
    }
  });

  test("a set of three has another primary soon after the first was killed", async () => {
    const mongod = await startMongod({ members: 3 });
    try {
      const first = await mongod.primary();
      await first.kill("SIGKILL");
      assert.is(first.alive, false);
      const next = await mongod.primary();
      assert.is.not(next.host, first.host);
      await first.restart();
      assert.is(first.alive, true);
    } finally {
      await mongod.stop();
    }
  });
});

test.run();
