// One command at a time for one file: `<file>.lock` says which process has it, for as long as it runs. A process that was killed leaves
// it behind, and the next one takes it over.

import { readFileSync, writeFileSync } from "node:fs";
import { readFile, rename, unlink } from "node:fs/promises";
import { hostname } from "node:os";
import { type Clock, sleep } from "../runtime/clock.ts";
import { CliError } from "./context.ts";
import { absent } from "./export-part.ts";

interface Owner {
  readonly pid: number;
  /** When the process began, as the system counts it; empty where it does not say. Numbers of processes are given again. */
  readonly started: string;
  readonly host: string;
  readonly nonce: string;
}

export interface LockOptions {
  readonly clock: Clock;
  /** What to say if another one has it. */
  readonly taken: string;
}

const triesMax = 20;
/** An owner writes its name at once; a lock that stays without one was made by a process that was killed just then. */
const namelessTries = 5;
const tryEveryMs = 20;

/** Runs with the lock held. What the file system refuses is thrown as it is. */
export async function withLock<T>(path: string, options: LockOptions, run: () => Promise<T>): Promise<T> {
  const release = await takeLock(path, options);
  try {
    return await run();
  } finally {
    await release();
  }
}

/** Resolves with how to give it back. */
export async function takeLock(path: string, { clock, taken }: LockOptions): Promise<() => Promise<void>> {
  const self: Owner = {
    pid: process.pid,
    started: startOf(process.pid) ?? "",
    host: hostname(),
    nonce: clock.nonce(8),
  };
  const text = `${JSON.stringify(self)}\n`;
  for (let tries = 0; tries < triesMax; tries++) {
    if (make(path, text)) return () => release(path, text);
    const found = await readFile(path, "utf8").catch(absent);
    if (found === undefined) continue;
    const owner = ownerOf(found);
    if (owner !== undefined && owner.host !== self.host) {
      throw new CliError(
        `${taken} (process ${owner.pid} on ${owner.host}): if it is not running any more, remove ${path}`,
      );
    }
    if (owner !== undefined && isAlive(owner)) throw new CliError(`${taken} (process ${owner.pid})`);
    if (owner !== undefined || tries >= namelessTries) await takeAway(path, found, `${path}.${self.nonce}`);
    else await sleep(clock, tryEveryMs);
  }
  throw new CliError(taken);
}

function make(path: string, text: string): boolean {
  try {
    writeFileSync(path, text, { flag: "wx" });
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "EEXIST") return false;
    throw error;
  }
}

/** Two may find the same dead owner. The slower one must not take away what the faster one has made meanwhile. */
async function takeAway(path: string, dead: string, aside: string): Promise<void> {
  const moved = await rename(path, aside).then(() => true, absent);
  if (moved === undefined) return;
  const text = await readFile(aside, "utf8");
  if (text !== dead) make(path, text);
  await unlink(aside);
}

async function release(path: string, text: string): Promise<void> {
  const found = await readFile(path, "utf8").catch(absent);
  if (found === text) await unlink(path).catch(absent);
}

// ------------------------------------------------------------------------------------------------------------------- owners

function ownerOf(text: string): Owner | undefined {
  try {
    const owner = JSON.parse(text) as Partial<Owner> | null;
    return Number.isInteger(owner?.pid) && typeof owner?.host === "string" ? (owner as Owner) : undefined;
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
}

/** Whether there is a process of this number, whosoever it is. */
export function isRunning(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "EPERM";
  }
}

function isAlive({ pid, started }: Owner): boolean {
  if (!isRunning(pid)) return false;
  const now = startOf(pid);
  return now === undefined || !started || now === started;
}

/** Field 22 of /proc/pid/stat; the name in field 2 may contain anything, so the count starts behind its last bracket. */
function startOf(pid: number): string | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "latin1");
    const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
    // One that has ended and was not collected yet.
    return fields[0] === "Z" ? "ended" : fields[19];
  } catch {
    // Not every system has it.
    return undefined;
  }
}
