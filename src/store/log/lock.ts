// Keeps a second process off a folder. Node has no flock, so this is a file that names its owner, and an owner that is gone
// (kill -9) does not count.
//
// Lock files are numbered and the highest number rules. A file appears with its content in one step (a hard link to a finished
// file), fails to appear where there is one, and is removed only when a higher one is there. So of two processes that find the
// same dead owner, both try to make the same next number and one succeeds. A process that slept since it looked may still
// succeed with a low number whose file was removed meanwhile; then there is a higher one, and it looks once more after taking.

import { linkSync, readdirSync, readFileSync, renameSync, unlinkSync, writeFileSync } from "node:fs";
import { hostname } from "node:os";
import { join } from "node:path";
import { StoreError } from "../store.ts";
import { codeOf } from "./files.ts";

const attemptsMax = 100;

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
    if (!appear(draft, lockPath(folder, mine), self)) continue;
    if (highestLock(folder) !== mine) {
      unlinkSync(lockPath(folder, mine));
      continue;
    }
    for (const number of lockNumbers(folder)) if (number < mine) removeIfThere(lockPath(folder, number));
    return {
      release() {
        writeFileSync(draft, JSON.stringify({ ...self, released: true }));
        renameSync(draft, lockPath(folder, mine));
      },
    };
  }
  throw new StoreError("refused", "ELOCKED", `${folder}: other processes keep taking the lock`);
}

function appear(draft: string, path: string, owner: Owner): boolean {
  writeFileSync(draft, JSON.stringify(owner));
  try {
    linkSync(draft, path);
    return true;
  } catch (error) {
    if (codeOf(error) === "EEXIST") return false;
    throw new StoreError("refused", codeOf(error), `${path} could not be made: ${String(error)}`);
  } finally {
    removeIfThere(draft);
  }
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
