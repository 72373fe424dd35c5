// The data folder as a whole: who has it, which format it has, how many shards. Opened once, in the main thread, before any
// worker opens a shard.
//
//   format.json      { "version": 1, "shards": 4 }
//   lock.N           lock.ts, as is spare-lock
//   shard-0/ …       shard-log.ts: 000000000001.log …, spare, derived/ (lmdb)
//                    durable             how far the log is known to be on disk (mark.ts)
//                    *.damaged, *.cut    set aside, for you to look at: a file with a stretch that does not check out, and what an
//                                        unfinished write left (unfinished.ts)

import { accessSync, constants, mkdirSync, statSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { StoreError } from "../store.ts";
import { codeOf, type Files, nodeFiles, plainReason } from "./files.ts";
import { type LockOptions, lockFolder } from "./lock.ts";

export const formatVersion = 1;
/** More cannot be meant: a shard per worker. */
const shardsMax = 1024;

export interface Folder {
  /** As many as the largest number of workers the folder has seen. */
  readonly shards: number;
  /** The file that says it is ours; see fence.ts. */
  readonly lock: string;
  close(): Promise<void>;
}

export interface FolderOptions extends LockOptions {
  readonly path: string;
  readonly workers: number;
  readonly files?: Files;
}

interface Format {
  readonly version: number;
  readonly shards: number;
}

export async function openFolder(options: FolderOptions): Promise<Folder> {
  const path = resolve(options.path);
  const files = options.files ?? nodeFiles();
  if (!Number.isInteger(options.workers) || options.workers < 1 || options.workers > shardsMax) {
    throw new StoreError("refused", "EINVAL", `${options.workers} workers, allowed are 1 to ${shardsMax}`);
  }
  makeFolder(path);
  const lock = await lockFolder(path, options);
  try {
    const format = await readFormat(path, files);
    const shards = Math.max(format?.shards ?? 0, options.workers);
    if (shards !== format?.shards) await writeFormat(path, files, { version: formatVersion, shards });
    return {
      shards,
      lock: lock.path,
      close: () => lock.release(),
    };
  } catch (error) {
    await lock.release();
    throw error;
  }
}

function makeFolder(path: string): void {
  try {
    makeMissing(path);
    accessSync(path, constants.R_OK | constants.W_OK | constants.X_OK);
  } catch (error) {
    const what = `the data folder ${path} cannot be used, ${plainReason(error)}: choose another with NARTHEX_DATA`;
    throw new StoreError("refused", codeOf(error), what);
  }
}

/** Step by step: the recursive mkdir of Node never returns where a folder that is there takes no new names, as /proc. */
function makeMissing(path: string): void {
  if (isFolder(path)) return;
  const parent = dirname(path);
  if (parent !== path) makeMissing(parent);
  try {
    mkdirSync(path);
  } catch (error) {
    // Somebody else has made it since we looked.
    if (codeOf(error) !== "EEXIST" || !isFolder(path)) throw error;
  }
}

function isFolder(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.isDirectory() ?? false;
}

async function readFormat(folder: string, files: Files): Promise<Format | undefined> {
  const path = join(folder, "format.json");
  const names = await files.list(folder);
  if (!names.includes("format.json")) {
    // Shards without it are the work of somebody else, or of a restore that forgot it: guessing could misplace topics.
    if (names.some((name) => name.startsWith("shard-"))) {
      throw new StoreError("refused", "EFORMAT", `${folder} has shards but no format.json`);
    }
    return undefined;
  }
  const format = parseFormat(await readWhole(path, files));
  if (format === undefined)
    throw new StoreError("refused", "EFORMAT", `${path} is not readable as { version, shards }`);
  if (format.version > formatVersion) {
    const what = `${folder} has format version ${format.version}, this program reads up to ${formatVersion}: use a newer one`;
    throw new StoreError("refused", "EFORMAT", what);
  }
  // It is written before the shards are made, so it is not what this program wrote; and nobody would open the others.
  const beyond = names.find((name) => Number(/^shard-(\d+)$/.exec(name)?.[1]) >= format.shards);
  if (beyond !== undefined) {
    const what = `${path} says that there are ${format.shards} shards, and there is ${join(folder, beyond)}`;
    throw new StoreError("refused", "EFORMAT", what);
  }
  return format;
}

function parseFormat(text: string): Format | undefined {
  let format: Partial<Format> | null;
  try {
    format = JSON.parse(text) as Partial<Format> | null;
  } catch {
    return undefined;
  }
  if (!Number.isInteger(format?.version) || Number(format?.version) < 1) return undefined;
  // What a newer version has besides its number is not ours to judge.
  if (Number(format?.version) > formatVersion) return { version: Number(format?.version), shards: 0 };
  const shards = Number(format?.shards);
  return Number.isInteger(shards) && shards >= 1 && shards <= shardsMax
    ? { version: Number(format?.version), shards }
    : undefined;
}

async function readWhole(path: string, files: Files): Promise<string> {
  const file = await files.open(path);
  try {
    const bytes = Buffer.alloc(await file.size());
    await file.read(bytes, 0);
    return bytes.toString("utf8");
  } finally {
    await file.close();
  }
}

/** The old one or the new one, whatever happens in between. */
async function writeFormat(folder: string, files: Files, format: Format): Promise<void> {
  const draft = join(folder, "format.json.tmp");
  if ((await files.list(folder)).includes("format.json.tmp")) await files.unlink(draft);
  const file = await files.create(draft);
  try {
    await file.write(Buffer.from(`${JSON.stringify(format)}\n`), 0);
    await file.datasync();
  } finally {
    await file.close();
  }
  await files.rename(draft, join(folder, "format.json"));
  await files.syncFolder(folder);
}
