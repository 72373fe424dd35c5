// The derived index on npm `lmdb`. Writes are asynchronous only: a thread that dies inside a synchronous transaction leaves the
// environment locked for the whole process, every time; with asynchronous ones 240 deaths blocked nothing.

import { mkdir, open, readdir, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { DerivedTable } from "./derived.ts";

type Lmdb = typeof import("lmdb");

/** Where the first page of an lmdb file has its magic number, and the number. */
const magicAt = 16;
const magic = 0xbeefc0de;

export async function openLmdbTable(folder: string): Promise<DerivedTable> {
  const lmdb = await importLmdb();
  await mkdir(folder, { recursive: true });
  if (await isSuspect(folder)) await remake(folder);
  // lmdb ends the process with SIGSEGV on some files that it cannot read. This file stays behind then, and the next start
  // makes the table again from the log instead of dying again.
  const opening = join(folder, "opening");
  await writeFile(opening, "");
  const table = await openOrRemake(lmdb, folder);
  await rm(opening, { force: true });
  return table;
}

async function openOrRemake(lmdb: Lmdb, folder: string): Promise<DerivedTable> {
  try {
    return new LmdbTable(lmdb, folder);
  } catch {
    // Unreadable, or of another version. A second failure is the caller's.
    await remake(folder);
    return new LmdbTable(lmdb, folder);
  }
}

async function remake(folder: string): Promise<void> {
  await rm(folder, { recursive: true, force: true });
  await mkdir(folder, { recursive: true });
}

async function isSuspect(folder: string): Promise<boolean> {
  const names = await readdir(folder);
  if (names.includes("opening")) return true;
  if (!names.includes("data.mdb")) return names.length > 0;
  const file = await open(join(folder, "data.mdb"), "r");
  try {
    const page = Buffer.alloc(4096);
    const { bytesRead } = await file.read(page, 0, page.length, 0);
    return bytesRead < page.length || page.readUInt32LE(magicAt) !== magic;
  } finally {
    await file.close();
  }
}

async function importLmdb(): Promise<Lmdb> {
  try {
    return await import("lmdb");
  } catch (error) {
    throw new Error(`own ids and latest-by-key need npm lmdb, which cannot be loaded here: ${String(error)}`);
  }
}

class LmdbTable implements DerivedTable {
  private readonly root: ReturnType<Lmdb["open"]>;

  constructor(lmdb: Lmdb, folder: string) {
    // Batching by turn is off: it makes a promise per turn that nobody can get hold of, see `heard`.
    const options = { keyEncoding: "binary", encoding: "binary", maxDbs: 1, eventTurnBatching: false } as const;
    this.root = lmdb.open({ path: folder, ...options });
    // A file that is no lmdb is found out at the first look into it.
    this.root.get(Buffer.from("p"));
  }

  get(key: Buffer): Buffer | undefined {
    const value: Uint8Array | undefined = this.root.getBinary(key);
    return value && Buffer.from(value);
  }

  range(from: Buffer, to: Buffer, limit: number): [Buffer, Buffer][] {
    const found: [Buffer, Buffer][] = [];
    for (const { key, value } of this.root.getRange({ start: from, end: to, limit })) {
      found.push([Buffer.from(key as Uint8Array), Buffer.from(value as Uint8Array)]);
    }
    return found;
  }

  async write(changes: readonly (readonly [Buffer, Buffer | null])[]): Promise<void> {
    const parts = new Set<Promise<unknown>>();
    const whole = this.root.batch(() => {
      for (const [key, value] of changes) parts.add(value === null ? this.root.remove(key) : this.root.put(key, value));
    });
    await heard([whole, ...parts]);
  }

  async clear(): Promise<void> {
    await heard([this.root.clearAsync()]);
  }

  async close(): Promise<void> {
    await this.root.close();
  }
}

/** A commit that fails (the disk is full) rejects several promises, one of them inside the error: one unheard ends the thread. */
async function heard(promises: readonly Promise<unknown>[]): Promise<void> {
  try {
    await Promise.all(promises);
  } catch (error) {
    void Promise.allSettled([(error as { commitError?: Promise<unknown> }).commitError]);
    throw error;
  }
}
