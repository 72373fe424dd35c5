// The one place that loads the driver, and only when a store is asked for: a node on its own log never pays for it.

import type { MongoClient, MongoClientOptions } from "mongodb";

export type Driver = typeof import("mongodb");

/** Where the URL names no database. */
const databaseDefault = "narthex";

/** Each waits at most so long, unless the URL says otherwise; a commit as a whole has a deadline of its own. */
const timeouts = {
  serverSelectionTimeoutMS: 5000,
  connectTimeoutMS: 5000,
  socketTimeoutMS: 10_000,
  waitQueueTimeoutMS: 5000,
  maxPoolSize: 16,
} as const;

export function loadDriver(): Promise<Driver> {
  return import("mongodb");
}

/** Connects to nothing yet. `patient`: an answer may take long, as that to the making of an index. */
export function makeClient(driver: Driver, url: string, { patient = false } = {}): MongoClient {
  const said = new Set(queryNames(url));
  const options: MongoClientOptions = {
    appName: "narthex",
    ignoreUndefined: true,
    // Whatever the URL says: what is read here decides what is written.
    readPreference: "primary",
    writeConcern: { w: "majority", journal: true },
    retryReads: true,
    retryWrites: true,
    ...Object.fromEntries(Object.entries(timeouts).filter(([name]) => !said.has(name.toLowerCase()))),
    ...(patient ? { socketTimeoutMS: 0 } : {}),
  };
  return new driver.MongoClient(url, options);
}

export function databaseName(url: string): string {
  const path = /^[a-z+]+:\/\/[^/?]+\/([^?]+)/.exec(url)?.[1];
  return path === undefined ? databaseDefault : decodeURIComponent(path);
}

/** The hosts of a URL, without whoever logs in there. */
export function hostsOf(url: string): string {
  const authority = /^[a-z+]+:\/\/([^/?]*)/.exec(url)?.[1] ?? "";
  return authority.slice(authority.lastIndexOf("@") + 1);
}

function queryNames(url: string): string[] {
  const query = url.split("?")[1] ?? "";
  return query.split("&").map((part) => part.split("=")[0].toLowerCase());
}
