// Keeps a second process off a folder. Node has no flock, so this is a file that names its owner, and an owner that is gone
// (kill -9) does not count.
//
// Lock files are numbered and the highest number rules. A file appears with its content in one step (a hard link to a finished
// file), fails to appear where there is one, and is removed only when a higher one is there. So of two processes that find the
// same dead owner, both try to make the same next number and one succeeds. A process that slept since it looked may still
// succeed with a low number whose file was removed meanwhile; then there is a higher one, and it looks once more after taking.
//
// Whether an owner is gone can be asked of the kernel that runs it, by the number and the start time of the process, as long as both
// see the same numbers: the same boot, the same pid namespace. Of an owner elsewhere (another machine, another container) nobody
// here can tell. So an owner counts up in its lock file every few seconds, in place, and whoever cannot judge it otherwise watches
// the counter and takes the folder over when it stands still. The host name alone says little: a container that is made anew has
// another one, and two containers may have the same.
//
// An owner that was stopped (SIGSTOP, a frozen container, a main thread that was kept busy) for so long may wake up after its folder
// was taken over. It finds out with its next beat, and what it does to the files until then is stopped by fence.ts.
//
// A node that was killed on a full disk must be able to start again, so taking the lock may not need a new block. The folder keeps
// a file of one block, mostly the last lock that was done with; where nothing else can be written, that one is written over.

import {
  closeSync,
  existsSync,
  linkSync,
  openSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  renameSync,
  unlinkSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { open } from "node:fs/promises";
import { hostname } from "node:os";
import { join } from "node:path";
import { StoreError } from "../store.ts";
import { codeOf, isFull, plainReason } from "./files.ts";

const attemptsMax = 100;
const spareName = "spare-lock";
/** All owners take the same number of bytes, so that one can be written over another. */
const ownerBytes = 512;
const beatMs = 5000;
/** Of the same width at every beat, so that a reader who meets a write half done still reads an owner. */
const beatDigits = 12;
/** Three beats. Looks are counted and not milliseconds: one who was stopped himself must look once more. */
const looksMax = 15;
const lookMs = (3 * beatMs) / looksMax;
/** The number that Linux gives the pid namespace of a machine that is no container. */
const machineNamespace = "pid:[4026531836]";

/** What tells whether two processes see each other's numbers; "" where the system does not say. */
export interface Place {
  readonly host: string;
  readonly boot: string;
  readonly namespace: string;
}

/** A process, as far as another one can tell whether it is still there. */
export interface ProcessFacts extends Place {
  readonly pid: number;
  /** Tells a process from a later one with the same number; "" where /proc does not say. */
  readonly started: string;
}

interface Owner extends ProcessFacts {
  readonly released: boolean;
  /** Undefined in the lock of a version that did not count. */
  readonly beat: number | undefined;
}

export interface LockClock {
  after(ms: number, run: () => void, options?: { background?: boolean }): { cancel(): void };
}

export interface LockOptions {
  readonly clock: LockClock;
  /** Hears that a start has to wait and why, and of a counter that cannot be written. */
  readonly report?: (message: string) => void;
  /** Hears once that another process has taken the folder over. */
  readonly lost?: (error: StoreError) => void;
  /** In place of where this process runs, for tests. */
  readonly place?: Place;
}

export interface FolderLock {
  /** The folder is ours as long as this file is there. */
  readonly path: string;
  release(): Promise<void>;
}

/** Takes the folder for this process, or throws a StoreError that names the process that has it. */
export async function lockFolder(folder: string, options: LockOptions): Promise<FolderLock> {
  const self: Owner = { ...processHere(), ...options.place, released: false, beat: 0 };
  const draft = join(folder, draftName(self));
  for (let attempt = 0; attempt < attemptsMax; attempt++) {
    const highest = highestLock(folder);
    if (highest > 0) {
      const owner = readOwner(lockPath(folder, highest));
      const verdict = owner === undefined ? "gone" : judge(owner, self);
      if (verdict === "there") throw held(folder, owner!, self, lockPath(folder, highest));
      if (verdict === "unknown") {
        const seen = await watch(folder, highest, owner!, self, options);
        if (seen === "moves") throw held(folder, owner!, self, lockPath(folder, highest));
        if (seen === "changed") continue;
      }
    }
    const mine = highest + 1;
    if (!appear(folder, draft, lockPath(folder, mine), self)) continue;
    if (highestLock(folder) !== mine) {
      removeIfThere(lockPath(folder, mine));
      continue;
    }
    for (const number of lockNumbers(folder)) if (number < mine) setAside(folder, lockPath(folder, number));
    keepSpare(folder, self);
    return new BeatingLock(folder, mine, self, options);
  }
  throw new StoreError("refused", "ELOCKED", `${folder}: other processes keep taking the lock`);
}

class BeatingLock implements FolderLock {
  readonly path: string;
  private readonly folder: string;
  private readonly number: number;
  private readonly options: LockOptions;
  private owner: Owner;
  private status: "held" | "lost" | "released" = "held";
  private timer: { cancel(): void } | undefined;
  private beating: Promise<void> | undefined;
  private failing = false;

  constructor(folder: string, number: number, owner: Owner, options: LockOptions) {
    this.folder = folder;
    this.number = number;
    this.owner = owner;
    this.options = options;
    this.path = lockPath(folder, number);
    this.plan();
  }

  async release(): Promise<void> {
    this.timer?.cancel();
    if (this.status !== "held") return;
    this.status = "released";
    // A beat that is under way would write over the release.
    await this.beating;
    // In its place: a full disk allows it, and what is half written is nobody's lock either.
    if (this.isOurs()) writeOver(this.path, ownerText({ ...this.owner, released: true }));
  }

  private plan(): void {
    const run = () => {
      this.beating = this.beat();
    };
    this.timer = this.options.clock.after(beatMs, run, { background: true });
  }

  private async beat(): Promise<void> {
    let loss: StoreError | undefined;
    try {
      if (this.isOurs()) {
        this.owner = { ...this.owner, beat: (this.owner.beat ?? 0) + 1 };
        await writeBeat(this.path, ownerText(this.owner));
      } else {
        this.checkRemoved();
        loss = this.loss();
        this.status = "lost";
      }
      this.failing = false;
    } catch (error) {
      // Also where it was taken over between the look and the write: the next beat finds that.
      if (!this.failing)
        this.options.report?.(`${this.path} cannot be kept up, so others may take the folder: ${error}`);
      this.failing = true;
    }
    if (this.status === "held") this.plan();
    if (loss !== undefined) this.options.lost?.(loss);
  }

  /**
   * Who takes over lays a lock first. With none but ours, and that gone, nobody has the folder: it is being removed, perhaps since a
   * moment ago, or was cleared by hand.
   */
  private checkRemoved(): void {
    if (![0, this.number].includes(highestLock(this.folder)) || existsSync(this.path)) return;
    throw new StoreError("broken", "ELOST", `${this.path} was removed, and nobody has the folder`);
  }

  private isOurs(): boolean {
    if (highestLock(this.folder) !== this.number) return false;
    const owner = readOwner(this.path);
    return owner !== undefined && isSame(owner, this.owner);
  }

  private loss(): StoreError {
    const owner = readOwner(lockPath(this.folder, highestLock(this.folder)));
    const taker = owner === undefined ? "somebody" : `process ${owner.pid} on host ${owner.host}`;
    const what = `${this.folder} was taken over by ${taker} while this process stood still`;
    return new StoreError("broken", "ELOST", what);
  }
}

/** In the thread pool: a disk that is slow must not stop the front. */
async function writeBeat(path: string, text: string): Promise<void> {
  const file = await open(path, "r+");
  try {
    await file.write(text, 0);
  } finally {
    await file.close();
  }
}

/** Looks at the counter of an owner that cannot be judged otherwise. */
async function watch(
  folder: string,
  number: number,
  owner: Owner,
  self: Owner,
  options: LockOptions,
): Promise<"moves" | "still" | "changed"> {
  // An older version does not count while it runs.
  if (owner.beat === undefined) return "moves";
  const seconds = Math.round((looksMax * lookMs) / 1000);
  options.report?.(
    `${folder} was last used by process ${owner.pid} ${whereabouts(owner, self)}, which cannot be asked from here: ` +
      `waiting up to ${seconds} s to see whether it still runs`,
  );
  for (let look = 0; look < looksMax; look++) {
    await new Promise<void>((resolve) => void options.clock.after(lookMs, resolve));
    if (highestLock(folder) !== number) return "changed";
    const now = readOwner(lockPath(folder, number));
    if (now === undefined || now.released || !isSame(now, owner)) return "changed";
    // One that is spoiled is no number, and stands still as well.
    if (!Object.is(now.beat, owner.beat)) return "moves";
  }
  return "still";
}

function appear(folder: string, draft: string, path: string, owner: Owner): boolean {
  try {
    writeDraft(folder, draft, ownerText(owner));
    linkSync(draft, path);
  } catch (error) {
    setAside(folder, draft);
    if (codeOf(error) === "EEXIST") return false;
    throw new StoreError("refused", codeOf(error), `${path} cannot be made, ${plainReason(error)}`);
  }
  removeIfThere(draft);
  return true;
}

function writeDraft(folder: string, draft: string, text: string): void {
  // One that was left may be a second name of a lock.
  removeIfThere(draft);
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
  return JSON.stringify({ ...owner, beat: String(owner.beat).padStart(beatDigits, "0") }).padEnd(ownerBytes);
}

function held(folder: string, owner: Owner, self: Owner, path: string): StoreError {
  const near = seesEachOther(owner, self);
  const hint = owner.beat === undefined ? `; if that one is gone, remove ${path}` : "";
  const elsewhere = near ? "" : ` ${whereabouts(owner, self)}${hint}`;
  return new StoreError("refused", "ELOCKED", `${folder} is in use by process ${owner.pid}${elsewhere}`);
}

function whereabouts(owner: Owner, self: Owner): string {
  return owner.host === self.host ? `in another container named ${owner.host}` : `on host ${owner.host}`;
}

function judge(owner: Owner, self: Owner): "gone" | "there" | "unknown" {
  return owner.released ? "gone" : judgeProcess(owner, self);
}

/** Whether a process that may have been elsewhere is still there, as seen from this one. */
export function judgeProcess(owner: ProcessFacts, self: ProcessFacts): "gone" | "there" | "unknown" {
  if (seesEachOther(owner, self)) return isAlive(owner) ? "there" : "gone";
  // The name of a machine stays over a reboot. The name of a container is what somebody called it.
  const machines = [owner, self].every(({ namespace }) => namespace === "" || namespace === machineNamespace);
  const rebooted = machines && owner.host === self.host && owner.boot !== self.boot;
  return rebooted ? "gone" : "unknown";
}

/** Whether the number of one process means something to the other. */
function seesEachOther(owner: Place, self: Place): boolean {
  if (owner.boot !== self.boot) return false;
  // A kernel never gives two living namespaces the same number, nor two boots the same id. Where it gives none, the name has to do.
  const known = owner.boot !== "" && owner.namespace !== "" && self.namespace !== "";
  return known ? owner.namespace === self.namespace : owner.host === self.host;
}

function isSame(a: Owner, b: Owner): boolean {
  return (
    a.pid === b.pid &&
    a.started === b.started &&
    a.host === b.host &&
    a.boot === b.boot &&
    a.namespace === b.namespace &&
    !a.released
  );
}

function isAlive(owner: ProcessFacts): boolean {
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

export function processHere(): ProcessFacts {
  return {
    pid: process.pid,
    started: startOf(process.pid),
    host: hostname(),
    boot: bootId(),
    namespace: namespaceHere(),
  };
}

/** Tells this process from all others of this boot. */
export function processId(): string {
  return `${process.pid} ${startOf(process.pid)}`;
}

/** Names this run of the machine; "" where the system does not say. */
export function bootId(): string {
  return readIfThere("/proc/sys/kernel/random/boot_id")?.trim() ?? "";
}

function namespaceHere(): string {
  try {
    return readlinkSync("/proc/self/ns/pid");
  } catch (error) {
    if (["ENOENT", "EACCES", "EINVAL"].includes(codeOf(error))) return "";
    throw error;
  }
}

function readOwner(path: string): Owner | undefined {
  const text = readIfThere(path);
  if (text === undefined) return undefined;
  try {
    const owner = JSON.parse(text) as Partial<Omit<Owner, "beat">> & { beat?: string };
    if (typeof owner.pid !== "number") return undefined;
    const { pid, started = "", boot = "", host = "", namespace = "", released = false, beat } = owner;
    return { pid, started, boot, host, namespace, released, beat: beat === undefined ? undefined : Number(beat) };
  } catch {
    // Links appear whole, so this is what a power cut left of one.
    return undefined;
  }
}

/** Nobody else's: in containers everybody is process 1. */
function draftName({ pid, namespace, host }: Owner): string {
  return `lock.${pid}-${namespace}-${host}.tmp`.replace(/[^\w.-]/g, "");
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
