// The database as a whole: whether this server will do, which format is there, how many shards. Looked at once, in the main thread,
// before any worker opens a shard. What is wrong stops the start with what to do.

import { hostname } from "node:os";
import type { Db, MongoClient } from "mongodb";
import { StoreError } from "../store.ts";
import { databaseName, hostsOf, loadDriver, makeClient } from "./driver.ts";
import { codeOf, messageOf } from "./failures.ts";
import { formatVersion, makeSchema } from "./schema.ts";

/** Older ones were never tried. */
export const serverMajorMin = 6;
const shardsMax = 1024;

export interface Database {
  /** As many as the largest number of workers that the database has seen. */
  readonly shards: number;
  /** What this process is called in owner documents. */
  readonly node: string;
}

export interface DatabaseOptions {
  readonly url: string;
  readonly workers: number;
  readonly clock: { nonce(bytes: number): string };
}

interface Format {
  readonly _id: "format";
  readonly version: number;
  readonly shards: number;
}

export async function openDatabase({ url, workers, clock }: DatabaseOptions): Promise<Database> {
  const client = await connect(url);
  try {
    const db = client.db(databaseName(url));
    await checkServer(client, url);
    const format = await readFormat(db);
    await makeSchema(db);
    const shards = Math.max(format?.shards ?? 0, workers);
    // Also where it changes nothing: who may not write learns it here.
    await writeFormat(db, shards);
    return { shards, node: `${hostname()}:${process.pid}:${clock.nonce(4)}` };
  } catch (error) {
    throw refusal(error, url);
  } finally {
    await client.close();
  }
}

export async function connect(url: string): Promise<MongoClient> {
  const driver = await loadDriver();
  let client: MongoClient;
  try {
    client = makeClient(driver, url, { patient: true });
  } catch (error) {
    throw new StoreError("refused", "EINVAL", `MONGO_URL cannot be used: ${messageOf(error)}`);
  }
  try {
    return await client.connect();
  } catch (error) {
    await client.close();
    throw refusal(error, url);
  }
}

/** In the words of whoever has to do something about it. */
function refusal(error: unknown, url: string): StoreError {
  const hosts = hostsOf(url);
  const database = databaseName(url);
  const code = codeOf(error);
  const said = messageOf(error);
  switch (code) {
    case "EAUTH":
      return new StoreError(
        "refused",
        code,
        `MongoDB at ${hosts} does not take user or password of MONGO_URL: ${said}`,
      );
    case "EACCES": {
      const grant = `db.grantRolesToUser("<user>", [{ role: "readWrite", db: "${database}" }])`;
      return new StoreError(
        "refused",
        code,
        `the user of MONGO_URL may not use database ${database}, ${grant}: ${said}`,
      );
    }
    case "ENOPRIMARY": {
      const what = `MongoDB at ${hosts} cannot be reached, or has no primary: check MONGO_URL and that it runs`;
      return new StoreError("refused", code, `${what} (${said})`);
    }
    default:
      return error instanceof StoreError ? error : new StoreError("refused", code, `MongoDB at ${hosts}: ${said}`);
  }
}

export interface Server {
  readonly version: string;
  /** The name of its replica set, or "sharded cluster". */
  readonly set: string;
}

/** Throws a StoreError that says what to do. */
export async function checkServer(client: MongoClient, url: string): Promise<Server> {
  const hosts = hostsOf(url);
  const admin = client.db("admin");
  const hello = await admin.command({ hello: 1 });
  const { version } = (await admin.command({ buildInfo: 1 })) as unknown as { readonly version: string };
  if (!(Number.parseInt(version, 10) >= serverMajorMin)) {
    const what = `MongoDB at ${hosts} has version ${version}: install ${serverMajorMin}.0 or newer`;
    throw new StoreError("refused", "EVERSION", what);
  }
  if (hello.msg === "isdbgrid") return { version, set: "sharded cluster" };
  if (typeof hello.setName === "string") return { version, set: hello.setName };
  const what = `MongoDB at ${hosts} is a standalone server, and only a replica set has transactions`;
  const todo = "start it with --replSet rs0, then run once: mongosh --eval 'rs.initiate()' (a set of one will do)";
  throw new StoreError("refused", "ESTANDALONE", `${what}: ${todo}`);
}

async function readFormat(db: Db): Promise<Format | undefined> {
  const format = await db
    .collection<Format>("owners")
    .findOne({ _id: "format" }, { readConcern: { level: "majority" } });
  if (format === null) return undefined;
  const { version, shards } = format;
  if (version > formatVersion) {
    const what = `database ${db.databaseName} has format version ${version}, this program reads up to ${formatVersion}`;
    throw new StoreError("refused", "EFORMAT", `${what}: use a newer one`);
  }
  if (Number.isInteger(version) && Number.isInteger(shards) && shards >= 1 && shards <= shardsMax) return format;
  const what = `the document { _id: "format" } of owners in database ${db.databaseName} is not { version, shards }`;
  throw new StoreError("refused", "EFORMAT", what);
}

async function writeFormat(db: Db, shards: number): Promise<void> {
  const changes = { $setOnInsert: { version: formatVersion }, $max: { shards } };
  const options = { upsert: true, writeConcern: { w: "majority" as const, journal: true } };
  await db.collection<Format>("owners").updateOne({ _id: "format" }, changes, options);
}
