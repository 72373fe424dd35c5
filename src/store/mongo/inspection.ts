// What can be said about the database of MONGO_URL without changing anything in it: for `narthex doctor`.

import type { Db, Document, MongoClient } from "mongodb";
import { checkServer, connect, type Database, type Server } from "./database.ts";
import { databaseName, hostsOf } from "./driver.ts";
import { type OwnerDocument, ownersOf } from "./owner.ts";
import { formatVersion, type IndexFault, indexes, indexFaults } from "./schema.ts";

export interface Inspection {
  readonly hosts: string;
  readonly database: string;
  readonly server: Server;
  /** What the user of the URL may not do there, as the server names it. */
  readonly missingRights: readonly string[];
  /** Undefined where no node has ever been started on it. */
  readonly format: { readonly version: number; readonly versionMax: number; readonly shards: number } | undefined;
  readonly indexes: { readonly wanted: number; readonly faults: readonly IndexFault[] };
  readonly owners: readonly Owner[];
}

export interface Owner {
  readonly shard: number;
  readonly node: Database["node"];
  /** Whether it was heard of so lately that nobody else may have the shard. */
  readonly alive: boolean;
}

const actions = [
  "find",
  "insert",
  "update",
  "remove",
  "createCollection",
  "createIndex",
  "listCollections",
  "listIndexes",
] as const;

/** Throws a StoreError where a start would be refused before it comes so far. */
export async function inspectDatabase(url: string): Promise<Inspection> {
  const client = await connect(url);
  try {
    const server = await checkServer(client, url);
    const database = databaseName(url);
    const db = client.db(database);
    const missing = await missingRights(client, database);
    const around = { hosts: hostsOf(url), database, server, missingRights: missing };
    const nothing = { format: undefined, indexes: { wanted: indexes.length, faults: [] }, owners: [] };
    if (missing.includes("find") || missing.includes("listIndexes")) return { ...around, ...nothing };
    const format = await db.collection("owners").findOne({ _id: "format" as never });
    return {
      ...around,
      format: format === null ? undefined : { ...versionOf(format), versionMax: formatVersion },
      indexes: { wanted: indexes.length, faults: await indexFaults(db) },
      owners: await ownersIn(db),
    };
  } finally {
    await client.close();
  }
}

function versionOf({ version, shards }: Document): { readonly version: number; readonly shards: number } {
  return { version: Number(version), shards: Number(shards) };
}

/** Without access control everybody may do everything, and the server names no user. */
async function missingRights(client: MongoClient, database: string): Promise<readonly string[]> {
  const { authInfo } = (await client
    .db(database)
    .command({ connectionStatus: 1, showPrivileges: true })) as unknown as {
    readonly authInfo: {
      readonly authenticatedUsers: readonly unknown[];
      readonly authenticatedUserPrivileges: readonly Privilege[];
    };
  };
  if (authInfo.authenticatedUsers.length === 0) return [];
  const granted = new Set(
    authInfo.authenticatedUserPrivileges
      .filter((privilege) => covers(privilege, database))
      .flatMap((one) => one.actions),
  );
  return granted.has("anyAction") ? [] : actions.filter((action) => !granted.has(action));
}

interface Privilege {
  readonly resource: { readonly db?: string; readonly collection?: string; readonly anyResource?: boolean };
  readonly actions: readonly string[];
}

/** Of the whole database: what is granted for some collections only is not looked into. */
function covers({ resource }: Privilege, database: string): boolean {
  return resource.anyResource === true || (resource.collection === "" && ["", database].includes(resource.db ?? "-"));
}

async function ownersIn(db: Db): Promise<readonly Owner[]> {
  const found = await ownersOf(db)
    .aggregate<OwnerDocument & { readonly alive: boolean }>([
      { $match: { _id: { $type: "number" } } },
      { $set: { alive: { $gte: ["$until", "$$NOW"] } } },
      { $sort: { _id: 1 } },
    ])
    .toArray();
  return found.map(({ _id, node, alive }) => ({ shard: _id, node, alive }));
}
