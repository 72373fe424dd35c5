// MongoDB as a Store. It lives in a worker thread and has one client there; database.ts has looked at the server before, once, in the
// main thread.

import type { MongoClient } from "mongodb";
import type { Store, StoreClock, StoreEvents } from "../store.ts";
import { type Driver, databaseName, loadDriver, makeClient } from "./driver.ts";
import { type MongoShard, openMongoShard } from "./shard.ts";

export interface MongoStoreOptions extends StoreEvents {
  readonly url: string;
  /** The name of the process, as others see it. */
  readonly node: string;
  readonly clock: StoreClock;
  /** How long a commit is tried. */
  readonly commitMs: number;
}

export function openMongoStore({ url, node, clock, commitMs, report, damaged }: MongoStoreOptions): Store {
  /** The last life of each. */
  const open = new Map<number, MongoShard>();
  let connecting: Promise<{ driver: Driver; client: MongoClient }> | undefined;
  const connect = async () => {
    const driver = await loadDriver();
    return { driver, client: makeClient(driver, url) };
  };
  return {
    kind: "mongo",
    async openShard(shard) {
      connecting ??= connect();
      const { driver, client } = await connecting;
      const db = client.db(databaseName(url));
      const opened = await openMongoShard({
        shard,
        node,
        driver,
        client,
        db,
        clock,
        commitMs,
        events: { report, damaged },
      });
      open.set(shard, opened);
      return opened;
    },
    async close() {
      await Promise.all([...open.values()].map((shard) => shard.close()));
      await (await connecting)?.client.close();
    },
  };
}
