// The derived index on npm `lmdb`. Writes are asynchronous only: a thread that dies inside a synchronous transaction leaves the
// environment locked for the whole process, every time; with asynchronous ones 240 deaths blocked nothing.
//
// lmdb syncs nothing here. What it has written before an fdatasync that fails may be gone from the file, and it goes on with what it
// believes to be there: sooner or later an assertion of its own ends the process. So the system writes the pages when it likes, and
// the file counts only as long as nothing can have been lost: after an orderly end, which syncs it once, or within one boot. After a power
// cut it is made again from the log.

import { accessSync } from "node:fs";
import { type FileHandle, mkdir, open, readdir, readFile, rm, stat, statfs, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { DerivedTable } from "./derived.ts";
import { codeOf } from "./files.ts";
import { bootId, processId } from "./lock.ts";

type Lmdb = typeof import("lmdb");
type Changes = readonly (readonly [Buffer, Buffer | null])[];

/** Where the first page of an lmdb file has its magic number, and the number. */
const magicAt = 24;
const magic = 0xbeefc0de;
/** More than lmdb writes while it makes a table, and than its list of readers takes. */
const roomBytes = 256 * 1024;
const lockBytes = 64 * 1024;
/** What it opens, and one to spare. */
const descriptors = 4;
/** Beyond that a quota is believed to have room. */
const probeBytesMax = 1024 * 1024;
const pageBytes = 4096;
/** Of a change at most: the page that it lies in and the one above. */
const pagesPerChange = 2;
/** What an entry takes in a page, besides itself, with the pages as empty as they may be. */
const entryFactor = 4;
const useName = "use";
/** Whoever ended without closing it may have been ended by it. */
const unclosedMax = 3;

/** How it was last used. */
interface Use {
  /** Of the machine; "" where it has no name. */
  readonly boot: string;
  /** By which process. */
  readonly by: string;
  /** How many processes opened it and did not close it. */
  readonly unclosed: number;
}

const closed: Use = { boot: "", by: "", unclosed: 0 };

export async function openLmdbTable(folder: string): Promise<DerivedTable> {
  const lmdb = await importLmdb();
  await makeFolder(folder);
  const self = { boot: bootId(), by: processId() };
  const before = await useOf(folder);
  const kept = before !== undefined && mayBeUsed(before, self) && !(await isSuspect(folder));
  if (!kept) await remake(folder);
  const unclosed = !kept ? 1 : before.unclosed + (before.by === self.by ? 0 : 1);
  await writeUse(folder, { ...self, unclosed });
  // lmdb ends the process with SIGSEGV on some files that it cannot read. This file stays behind then, and the next start
  // makes the table again from the log instead of dying again.
  const opening = join(folder, "opening");
  await writeFile(opening, "");
  await tryOut(folder);
  const table = await openOrRemake(lmdb, folder);
  await rm(opening, { force: true });
  return table;
}

/**
 * Where opening fails, lmdb 3.5 frees a part of itself twice, which ends the process: no room, no descriptors, a disk that takes no
 * writes. So all that it needs is tried before, and what is missing fails here. The list of readers is memory that is mapped, where a
 * block that cannot be had is a SIGBUS: the blocks are written first.
 */
async function tryOut(folder: string): Promise<void> {
  const probe = join(folder, "room");
  const files: FileHandle[] = [];
  try {
    while (files.length < descriptors) files.push(await open(probe, "w"));
    await writeWhole(files[0], roomBytes, 0);
    const lock = await open(join(folder, "lock.mdb"), "a+");
    files.push(lock);
    const { size } = await lock.stat();
    if (size < lockBytes) await writeWhole(lock, lockBytes - size, size);
  } finally {
    for (const file of files) await file.close();
    await rm(probe, { force: true });
  }
}

/**
 * Where a page cannot be written, lmdb 3.5 writes a message of up to 120 characters into 100 bytes, which ends the process sooner or
 * later. So room for the changes is looked for before each of its commits: what the disk says is free, and what it takes. A disk
 * that fails in between is still met by lmdb itself.
 */
async function tryRoom(folder: string, changes: Changes): Promise<void> {
  const { size } = await stat(join(folder, "data.mdb"));
  const bytes = changes.reduce((sum, [key, value]) => sum + key.length + (value?.length ?? 0), 0);
  const pages = Math.min(changes.length * pagesPerChange * pageBytes, size + entryFactor * bytes);
  const { bavail, bsize } = await statfs(folder);
  if (bavail * bsize < pages + roomBytes) throw fault("ENOSPC", `no room for ${changes.length} changes in ${folder}`);
  const probe = join(folder, "room");
  const file = await open(probe, "w");
  try {
    await writeWhole(file, Math.min(pages, probeBytesMax) + roomBytes, 0);
  } finally {
    await file.close();
    await rm(probe, { force: true });
  }
}

function fault(code: string, message: string): Error {
  return Object.assign(new Error(message), { code });
}

async function writeWhole(file: FileHandle, bytes: number, position: number): Promise<void> {
  const zeroes = Buffer.alloc(bytes);
  for (let done = 0; done < bytes; ) {
    done += (await file.write(zeroes, done, bytes - done, position + done)).bytesWritten;
  }
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
  await makeFolder(folder);
}

/** Not the folder of the shard: where that was removed, one with nothing but an index in it would pass for it. */
async function makeFolder(folder: string): Promise<void> {
  try {
    await mkdir(folder);
  } catch (error) {
    if (codeOf(error) !== "EEXIST") throw error;
  }
}

/** False where it may lack something that was written, and where it has ended too many processes that opened it. */
function mayBeUsed(before: Use, self: Omit<Use, "unclosed">): boolean {
  if (before.unclosed === 0 || before.by === self.by) return true;
  return before.boot !== "" && before.boot === self.boot && before.unclosed < unclosedMax;
}

async function useOf(folder: string): Promise<Use | undefined> {
  try {
    const use: unknown = JSON.parse(await readFile(join(folder, useName), "utf8"));
    return typeof use === "object" && use !== null ? (use as Use) : undefined;
  } catch (error) {
    if (error instanceof SyntaxError || codeOf(error) === "ENOENT") return undefined;
    throw error;
  }
}

/** Durable before anything else changes, so that a power cut cannot leave a word of closing with a file that is in use. */
async function writeUse(folder: string, use: Use): Promise<void> {
  const file = await open(join(folder, useName), "w");
  try {
    await file.writeFile(JSON.stringify(use));
    await file.sync();
  } finally {
    await file.close();
  }
}

async function syncData(folder: string): Promise<void> {
  const file = await open(join(folder, "data.mdb"), "r+");
  try {
    await file.sync();
  } finally {
    await file.close();
  }
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
  private readonly folder: string;
  private readonly root: ReturnType<Lmdb["open"]>;

  constructor(lmdb: Lmdb, folder: string) {
    this.folder = folder;
    // lmdb makes what is not there, all the way down: see `makeFolder`.
    accessSync(folder);
    // Batching by turn is off: it makes a promise per turn that nobody can get hold of, see `heard`.
    // Syncs beside its commits would be waited for when it is closed, and after a commit that failed the last one never ends.
    const how = { eventTurnBatching: false, noSync: true, overlappingSync: false } as const;
    const options = { keyEncoding: "binary", encoding: "binary", maxDbs: 1, ...how } as const;
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

  async write(changes: Changes): Promise<void> {
    await tryRoom(this.folder, changes);
    const parts = new Set<Promise<unknown>>();
    const whole = this.root.batch(() => {
      for (const [key, value] of changes) parts.add(value === null ? this.root.remove(key) : this.root.put(key, value));
    });
    await heard([whole, ...parts]);
  }

  async clear(): Promise<void> {
    await tryRoom(this.folder, []);
    await heard([this.root.clearAsync()]);
  }

  async close(): Promise<void> {
    await this.root.close();
    try {
      await syncData(this.folder);
      await writeUse(this.folder, closed);
    } catch {
      // It may lack something now: the next one makes it again.
      await rm(this.folder, { recursive: true, force: true });
    }
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
