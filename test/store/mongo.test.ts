import { test } from "uvu";
import type { Store } from "../../src/store/store.ts";
import { storeConformance } from "../conformance/store.ts";
import { openProcess } from "../support/mongo-stores.ts";
import { startMongod, withMongod } from "../support/mongod.ts";

await withMongod("mongo: conformance", async () => {
  const mongod = await startMongod();
  const url = mongod.url();
  const client = await mongod.connect();
  const open = async (): Promise<Store> => (await openProcess(url)).store;
  storeConformance("mongo", {
    kind: "mongo",
    durability: "mongo:majority",
    open,
    reopen: async (store) => {
      await store.close();
      return open();
    },
    // The collections stay, since making them and their indexes takes longer than most tests.
    dispose: async (store) => {
      await store.close();
      const db = client.db(new URL(url).pathname.slice(1));
      await Promise.all((await db.collections()).map((collection) => collection.deleteMany({})));
    },
    end: () => mongod.stop(),
  });
});

// The suite above runs itself; this is the one that says that it was skipped.
test.run();
