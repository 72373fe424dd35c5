// Keeps a second process off a folder. Node has no flock, so this is a file that names its owner, and an owner that is gone
// (kill -9) does not count.
//
// Lock files are numbered and the highest number rules. A file appears with its content in one step (a hard link to a finished
// file), fails to appear where there is one, and is removed only when a higher one is there. So of two processes that find the
// same dead owner, both try to make the same next number and one succeeds. A process that slept since it looked may still
// succeed with a low number whose file was removed meanwhile; then there is a higher one, and it looks once more after taking.
//
// A node that was killed on a full disk must be able to start again, so taking the lock may not need a new block. The folder keeps
// a file of one block, mostly the last lock that was done with; where nothing else can be written, that one is written over.

import {
  closeSync,
  linkSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  unlinkSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { hostname } from "node:os";
import { join } from "node:path";
import { StoreError } from "../store.ts";
import { codeOf, isFull } from "./files.ts";

const attemptsMax = 100;
const spareName = "spare-lock";
/** All owners take the same number of bytes, so that one can be written over another. */
const ownerBytes = 512;

interface Owner {
  readonly pid: number;
  /** Tells a process from a later one with the same number; "" where /proc does not say. */
  readonly started: string;
  readonly boot: string;
  readonly host: string;
  readonly released: boolean;
}

export interface FolderLock {
  release(): void;
}

/** Takes the folder for this process, or throws a StoreError that names the process that has it. */
export function lockFolder(folder: string): FolderLock {
  const self: Owner = {
    pid: process.pid,
    started: startOf(process.pid),
    boot: bootId(),
    host: hostname(),
    released: false,
  };
  const draft = join(folder, `lock.${process.pid}.tmp`);
  for (let attempt = 0; attempt < attemptsMax; attempt++) {
    const highest = highestLock(folder);
    if (highest > 0) {
      const owner = readOwner(lockPath(folder, highest));
      if (owner !== undefined && holds(owner)) throw held(folder, owner, lockPath(folder, highest));
    }
    const mine = highest + 1;
    if (!appear(folder, draft, lockPath(folder, mine), self)) continue;
    if (highestLock(folder) !== mine) {
      removeIfThere(lockPath(folder, mine));
      continue;
    }
    for (const number of lockNumbers(folder)) if (number < mine) setAside(folder, lockPath(folder, number));
    keepSpare(folder, self);
    return {
      // In its place: a full disk allows it, and what is half written is nobody's lock either.
      release: () => writeOver(lockPath(folder, mine), ownerText({ ...self, released: true })),
    };
  }
  throw new StoreError("refused", "ELOCKED", `${folder}: other processes keep taking the lock`);
}

function appear(folder: string, draft: string, path: string, owner: Owner): boolean {
  try {
    writeDraft(folder, draft, ownerText(owner));
    linkSync(draft, path);
  } catch (error) {
    setAside(folder, draft);
    if (codeOf(error) === "EEXIST") return false;
    throw new StoreError("refused", codeOf(error), `${path} could not be made: ${String(error)}`);
  }
  removeIfThere(draft);
  return true;
}

function writeDraft(folder: string, draft: string, text: string): void {
  try {
    writeFileSync(draft, text);
  } catch (error) {
    if (!isFull(error)) throw error;
    removeIfThere(draft);
    if (!readdirSync(folder).includes(spareName)) throw error;
    renameSync(join(folder, spareName), draft);
    writeOver(draft, text);
  }
}

function writeOver(path: string, text: string): void {
  const fd = openSync(path, "r+");
  try {
    writeSync(fd, text, 0);
  } finally {
    closeSync(fd);
  }
}

/** Removes a file that is no lock (any more); its block is kept. */
function setAside(folder: string, path: string): void {
  try {
    renameSync(path, join(folder, spareName));
  } catch (error) {
    if (codeOf(error) !== "ENOENT") throw error;
  }
}

function keepSpare(folder: string, owner: Owner): void {
  if (readdirSync(folder).includes(spareName)) return;
  try {
    writeFileSync(join(folder, spareName), ownerText({ ...owner, released: true }));
  } catch (error) {
    // The lock is taken; only the next start on a full disk would miss it.
    if (!isFull(error)) throw error;
  }
}

function ownerText(owner: Owner): string {
  return JSON.stringify(owner).padEnd(ownerBytes);
}

function held(folder: string, owner: Owner, path: string): StoreError {
  const elsewhere = owner.host === hostname() ? "" : ` on host ${owner.host}; if that one is gone, remove ${path}`;
  return new StoreError("refused", "ELOCKED", `${folder} is in use by process ${owner.pid}${elsewhere}`);
}

/** Whether the owner may still be running. Of another host nobody here can tell. */
function holds(owner: Owner): boolean {
  if (owner.released) return false;
  if (owner.host !== hostname()) return true;
  if (owner.boot !== bootId()) return false;
  if (!isRunning(owner.pid)) return false;
  const started = startOf(owner.pid);
  return started === "" || owner.started === "" || started === owner.started;
}

function isRunning(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return codeOf(error) === "EPERM";
  }
}

/** Field 22 of /proc/pid/stat; the name in field 2 may contain anything, so the count starts behind its last bracket. */
function startOf(pid: number): string {
  const stat = readIfThere(`/proc/${pid}/stat`);
  if (stat === undefined) return "";
  return stat.slice(stat.lastIndexOf(")") + 2).split(" ")[19] ?? "";
}

function bootId(): string {
  return readIfThere("/proc/sys/kernel/random/boot_id")?.trim() ?? "";
}

function readOwner(path: string): Owner | undefined {
  const text = readIfThere(path);
  if (text === undefined) return undefined;
  try {
    const owner = JSON.parse(text) as Partial<Owner>;
    if (typeof owner.pid !== "number") return undefined;
    const { pid, started = "", boot = "", host = "", released = false } = owner;
    return { pid, started, boot, host, released };
  } catch {
    // Links appear whole, so this is what a power cut left of one.
    return undefined;
  }
}

function lockPath(folder: string, number: number): string {
  return join(folder, `lock.${number}`);
}

function lockNumbers(folder: string): number[] {
  return readdirSync(folder).flatMap((name) => {
    const match = /^lock\.(\d+)$/.exec(name);
    return match ? [Number(match[1])] : [];
  });
}

function highestLock(folder: string): number {
  return Math.max(0, ...lockNumbers(folder));
}

function readIfThere(path: string): string | undefined {
  try {
    return readFileSync(path, "utf8");
  } catch (error) {
    if (codeOf(error) === "ENOENT" || codeOf(error) === "ESRCH") return undefined;
    throw error;
  }
}

function removeIfThere(path: string): void {
  try {
    unlinkSync(path);
  } catch (error) {
    if (codeOf(error) !== "ENOENT") throw error;
  }
}
