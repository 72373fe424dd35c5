// The lock of a data folder where its owner cannot be asked: it ran on another machine or in another container. What is decided on
// this machine by process numbers is in folder.test.ts.

import { type ChildProcessWithoutNullStreams, spawn, spawnSync } from "node:child_process";
import {
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  unlinkSync,
  writeFileSync,
} from "node:fs";
import { readFile } from "node:fs/promises";
import { hostname, tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { suite } from "uvu";
import * as assert from "uvu/assert";
import { nodeFiles } from "../../src/store/log/files.ts";
import { type FolderLock, lockFolder, type Place } from "../../src/store/log/lock.ts";
import { openLogStore } from "../../src/store/log/log-store.ts";
import { StoreError } from "../../src/store/store.ts";
import { eventually, within } from "../support/deadline.ts";
import { ManualClock } from "../support/manual-clock.ts";
import { allPayloads, append } from "../support/store-blocks.ts";

const test = suite("lock");
const program = fileURLToPath(new URL("./store-lock-owner.entry.js", import.meta.url));
const machine = "pid:[4026531836]";
const here: Place = { host: "a", boot: "boot-1", namespace: machine };
const elsewhere: Place = { host: "b", boot: "boot-2", namespace: machine };
const children = new Set<ChildProcessWithoutNullStreams>();
const paths: string[] = [];

function fresh(): string {
  const path = mkdtempSync(join(tmpdir(), "narthex-lock-"));
  paths.push(path);
  return path;
}

interface Taking {
  readonly clock: ManualClock;
  readonly said: string[];
  readonly lost: StoreError[];
  readonly result: Promise<FolderLock | StoreError>;
  verdict(): FolderLock | StoreError | undefined;
}

/** Begins to take the folder; time passes only by `look` and `beat`. */
function take(path: string, place: Place): Taking {
  const clock = new ManualClock();
  const said: string[] = [];
  const lost: StoreError[] = [];
  let verdict: FolderLock | StoreError | undefined;
  const options = {
    clock,
    place,
    report: (message: string) => void said.push(message),
    lost: (error: StoreError) => void lost.push(error),
  };
  const result = lockFolder(path, options).catch((error: unknown) => {
    if (error instanceof StoreError) return error;
    throw error;
  });
  void result.then((value) => {
    verdict = value;
  });
  return { clock, said, lost, result, verdict: () => verdict };
}

async function taken(path: string, place: Place): Promise<Taking & { lock: FolderLock }> {
  const taking = take(path, place);
  const lock = await taking.result;
  if (lock instanceof StoreError) throw lock;
  return { ...taking, lock };
}

const turn = () => new Promise((resolve) => setImmediate(resolve));

/** So many looks, a second apart, with all that each of them sets off. */
async function looks(taking: Taking, count: number): Promise<void> {
  for (let i = 0; i < count && taking.verdict() === undefined; i++) {
    await turn();
    taking.clock.advance(1000);
    await turn();
  }
}

async function beat(owner: Taking & { lock: FolderLock }): Promise<void> {
  const before = readFileSync(owner.lock.path, "utf8");
  owner.clock.advance(5000);
  await eventually(5000, "the counter is written", () => readFileSync(owner.lock.path, "utf8") !== before);
  // The next beat is planned once this one is through.
  await eventually(5000, "the next beat is planned", () => owner.clock.timerCount > 0);
}

function refusalOf(taking: Taking): string {
  const verdict = taking.verdict();
  if (!(verdict instanceof StoreError)) throw new Error("expected a refusal");
  assert.is(verdict.code, "ELOCKED");
  return verdict.message;
}

const locks = (path: string) => readdirSync(path).filter((name) => /^lock\.\d+$/.test(name));

test("an owner counts up in its file every five seconds: in place, nothing else of it changes", async () => {
  const path = fresh();
  const owner = await taken(path, here);
  const before = { text: readFileSync(owner.lock.path, "utf8"), ...statSync(owner.lock.path) };
  assert.is(JSON.parse(before.text).beat, "000000000000");
  owner.clock.advance(4999);
  await turn();
  assert.is(readFileSync(owner.lock.path, "utf8"), before.text);
  owner.clock.advance(1);
  await eventually(5000, "the first beat", () => readFileSync(owner.lock.path, "utf8") !== before.text);
  const after = { text: readFileSync(owner.lock.path, "utf8"), ...statSync(owner.lock.path) };
  assert.is(after.text, before.text.replace("000000000000", "000000000001"));
  assert.is(after.ino, before.ino);
  assert.is(after.size, before.size);
  await eventually(5000, "the next beat is planned", () => owner.clock.timerCount > 0);
  await owner.lock.release();
  assert.is(owner.clock.timerCount, 0);
});

test("an owner elsewhere whose counter stands still for three beats is taken over, and one line says what is waited for", async () => {
  const path = fresh();
  const owner = await taken(path, elsewhere);
  const next = take(path, here);
  await looks(next, 14);
  assert.is(next.verdict(), undefined);
  assert.equal(next.said, [
    `${path} was last used by process ${process.pid} on host b, which cannot be asked from here: waiting up to 15 s to see whether it still runs`,
  ]);
  await looks(next, 1);
  const lock = next.verdict() as FolderLock;
  assert.is(lock.path, join(path, "lock.2"));
  assert.equal(locks(path), ["lock.2"]);
  assert.is(next.said.length, 1);
  await lock.release();
  await owner.lock.release();
});

test("an owner elsewhere that counts is refused by name, and loses nothing", async () => {
  const path = fresh();
  const owner = await taken(path, elsewhere);
  const next = take(path, here);
  await looks(next, 10);
  assert.is(next.verdict(), undefined);
  await beat(owner);
  await looks(next, 1);
  assert.is(refusalOf(next), `${path} is in use by process ${process.pid} on host b`);
  assert.equal(locks(path), ["lock.1"]);
  await beat(owner);
  assert.equal(owner.lost, []);
  await owner.lock.release();
});

test("an owner elsewhere that ends while it is watched is followed at once", async () => {
  const path = fresh();
  const owner = await taken(path, elsewhere);
  const next = take(path, here);
  await looks(next, 2);
  await owner.lock.release();
  await looks(next, 1);
  assert.is((next.verdict() as FolderLock).path, join(path, "lock.2"));
});

test("of two that watch the same dead owner from different places one gets the folder, the other is refused", async () => {
  const path = fresh();
  await taken(path, elsewhere);
  const one = take(path, here);
  const two = take(path, { ...here, host: "c", namespace: "pid:[7]" });
  for (let i = 0; i < 15; i++) {
    await looks(one, 1);
    await looks(two, 1);
  }
  const first = { ...one, lock: one.verdict() as FolderLock };
  assert.is(first.lock.path, join(path, "lock.2"));
  assert.is(two.verdict(), undefined);
  await beat(first);
  await looks(two, 1);
  assert.match(refusalOf(two), "on host a");
});

test("in another container with the same name the process numbers mean something else, so it is watched", async () => {
  const path = fresh();
  await taken(path, { ...here, namespace: "pid:[4026532001]" });
  const next = take(path, { ...here, namespace: "pid:[4026532002]" });
  await looks(next, 14);
  assert.is(next.verdict(), undefined);
  assert.match(next.said[0]!, "in another container named a");
  await looks(next, 1);
  assert.is((next.verdict() as FolderLock).path, join(path, "lock.2"));
});

test("a machine that changed its name still knows its processes", async () => {
  const path = fresh();
  await taken(path, here);
  const next = take(path, { ...here, host: "renamed" });
  await turn();
  assert.is(refusalOf(next), `${path} is in use by process ${process.pid}`);
});

test("after a reboot a machine takes its folder at once; a container cannot know and watches", async () => {
  const path = fresh();
  await taken(path, here);
  const rebooted = await taken(path, { ...here, boot: "boot-9" });
  assert.is(rebooted.lock.path, join(path, "lock.2"));
  assert.equal(rebooted.said, []);
  const container = take(path, { ...here, boot: "boot-10", namespace: "pid:[4026532001]" });
  await looks(container, 1);
  assert.is(container.verdict(), undefined);
  assert.is(container.said.length, 1);
});

test("the lock of a version that did not count holds until somebody removes it", async () => {
  const path = fresh();
  const old = { pid: 1, started: "5", boot: "boot-2", host: "b", released: false };
  writeFileSync(join(path, "lock.3"), JSON.stringify(old).padEnd(512));
  const next = take(path, here);
  await turn();
  const lock = join(path, "lock.3");
  assert.is(refusalOf(next), `${path} is in use by process 1 on host b; if that one is gone, remove ${lock}`);
  assert.equal(next.said, []);
});

test("an owner that lost its folder hears it once, with its next beat, and leaves the new lock alone", async () => {
  const path = fresh();
  const owner = await taken(path, elsewhere);
  const next = take(path, here);
  await looks(next, 15);
  const lock = next.verdict() as FolderLock;
  const text = readFileSync(lock.path, "utf8");
  assert.equal(owner.lost, []);
  owner.clock.advance(5000);
  await turn();
  assert.equal(
    owner.lost.map((error) => `${error.code} ${error.message}`),
    [`ELOST ${path} was taken over by process ${process.pid} on host a while this process stood still`],
  );
  owner.clock.advance(60_000);
  await turn();
  assert.is(owner.lost.length, 1);
  await owner.lock.release();
  assert.is(readFileSync(lock.path, "utf8"), text);
  assert.equal(locks(path), ["lock.2"]);
});

test("a lock that was removed by hand, or while its folder is being removed, is nobody's takeover: it is said once, and the beats go on", async () => {
  const path = fresh();
  const owner = await taken(path, here);
  unlinkSync(owner.lock.path);
  owner.clock.advance(5000);
  await turn();
  rmSync(path, { recursive: true });
  owner.clock.advance(5000);
  await turn();
  assert.equal(owner.lost, []);
  assert.is(owner.said.length, 1);
  assert.match(owner.said[0] ?? "", `${owner.lock.path} cannot be kept up`);
  assert.match(owner.said[0] ?? "", "was removed, and nobody has the folder");
  assert.is(owner.clock.timerCount, 1);
});

test("a lock that is gone between the look at the names and the look at the file is no takeover either", async () => {
  const path = fresh();
  const owner = await taken(path, here);
  unlinkSync(owner.lock.path);
  // A name without a file: what a removal that is under way looks like.
  symlinkSync(join(path, "gone"), owner.lock.path);
  owner.clock.advance(5000);
  await turn();
  assert.equal(owner.lost, []);
  assert.match(owner.said[0] ?? "", "was removed, and nobody has the folder");
  assert.is(owner.clock.timerCount, 1);
});

test("after a removal by hand whoever takes the folder has it, also under a lower number", async () => {
  const path = fresh();
  await (await taken(path, here)).lock.release();
  const owner = await taken(path, here);
  assert.is(owner.lock.path, join(path, "lock.2"));
  unlinkSync(owner.lock.path);
  const next = await taken(path, elsewhere);
  assert.is(next.lock.path, join(path, "lock.1"));
  owner.clock.advance(5000);
  await turn();
  assert.match(owner.lost[0]?.message ?? "", "was taken over by process");
});

test("a beat under way does not undo a release", async () => {
  const path = fresh();
  const owner = await taken(path, here);
  owner.clock.advance(5000);
  await owner.lock.release();
  // Whatever the beat still had to do in the thread pool comes before these.
  for (let i = 0; i < 20; i++) await readFile(owner.lock.path);
  assert.is(JSON.parse(readFileSync(owner.lock.path, "utf8")).released, true);
  assert.is(owner.clock.timerCount, 0);
});

test("a commit that was written before the takeover is acknowledged and found; one after it fails and leaves no trace", async () => {
  const path = fresh();
  const owner = await taken(path, elsewhere);
  const old = openLogStore({ path, lock: owner.lock.path });
  const stale = await old.openShard(0);
  await append(stale, 1, ["before"]);
  const next = take(path, here);
  await looks(next, 15);
  const lock = next.verdict() as FolderLock;
  const fresher = openLogStore({ path, lock: lock.path });
  const shard = await fresher.openShard(0);
  const segment = join(path, "shard-0", "000000000001.log");
  const bytes = readFileSync(segment);
  const failed = await append(stale, 1, ["after"]).catch((error: unknown) => error);
  assert.is((failed as StoreError).code, "ELOST");
  assert.is((failed as StoreError).state, "broken");
  assert.ok(readFileSync(segment).equals(bytes));
  assert.equal(await allPayloads(shard, 1), ["0:before"]);
  await append(shard, 1, ["new owner"]);
  const reopened = await old.openShard(0).catch((error: unknown) => error);
  assert.is((reopened as StoreError).code, "ELOST");
  await fresher.close();
  const again = openLogStore({ path });
  const found = await again.openShard(0);
  assert.equal(await allPayloads(found, 1), ["0:before", "1:new owner"]);
  assert.equal(found.damage(), []);
  await again.close();
  await old.close();
});

test("a commit whose fdatasync ends after the takeover is not acknowledged", async () => {
  const path = fresh();
  const owner = await taken(path, elsewhere);
  const files = nodeFiles();
  let atSync = async (): Promise<void> => undefined;
  const gated = {
    ...files,
    async create(name: string) {
      const file = await files.create(name);
      const datasync = file.datasync.bind(file);
      file.datasync = async () => {
        await datasync();
        await atSync();
      };
      return file;
    },
  };
  const store = openLogStore({ path, files: gated, lock: owner.lock.path });
  const shard = await store.openShard(0);
  let successor: FolderLock | undefined;
  atSync = async () => {
    const next = take(path, here);
    await looks(next, 15);
    successor = next.verdict() as FolderLock;
  };
  const failed = await append(shard, 1, ["in doubt"]).catch((error: unknown) => error);
  assert.is((failed as StoreError).code, "ELOST");
  // It was on disk before anybody could look, so it may count, like every answer that got lost.
  const other = openLogStore({ path, lock: successor!.path });
  assert.equal(await allPayloads(await other.openShard(0), 1), ["0:in doubt"]);
  await other.close();
  await store.close();
});

// ---------------------------------------------------------------------------------------------------------------------
// Real processes, on a clock that runs ten times as fast

function start(args: readonly string[], under: readonly string[] = []) {
  const command = [...under, process.execPath, "--enable-source-maps", program, ...args];
  const child = spawn(command[0]!, command.slice(1));
  children.add(child);
  child.stderr.pipe(process.stderr);
  const lines: string[] = [];
  createInterface(child.stdout).on("line", (line) => void lines.push(line));
  const saw = (word: string) =>
    eventually(20_000, `${word} among ${lines.slice(-5).join(" | ")}`, () =>
      lines.find((line) => line.startsWith(word)),
    );
  const gone = new Promise<void>((resolve) => child.once("exit", () => resolve()));
  return { child, lines, saw, gone };
}

async function acknowledged(lines: readonly string[]): Promise<number[]> {
  return lines.flatMap((line) => (line.startsWith("acked ") ? [Number(line.slice(6))] : []));
}

test("a process that was stopped wakes up without its folder: it writes nothing more, and all it acknowledged is there", async () => {
  const path = fresh();
  const one = start([path, JSON.stringify(elsewhere), "write"]);
  await one.saw("acked 50");
  one.child.kill("SIGSTOP");
  const two = start([path, "here"]);
  assert.match(await two.saw("waits"), "on host b");
  await two.saw("open");
  one.child.kill("SIGCONT");
  assert.is(await one.saw("failed"), "failed ELOST");
  assert.match(await one.saw("lost"), `ELOST ${path} was taken over by process ${two.child.pid} on host ${hostname()}`);
  const acked = await acknowledged(one.lines);
  const store = openLogStore({ path, segmentBytes: 32 * 1024 });
  const shard = await store.openShard(0);
  const found = new Set(await allPayloads(shard, 1));
  assert.equal(
    acked.filter((offset) => !found.has(`${offset}:event ${offset}`)),
    [],
  );
  assert.equal(shard.damage(), []);
  await store.close();
  two.child.stdin.end();
  await within(10_000, "the second ends", two.gone);
});

test("a process that lives and counts elsewhere is not taken over", async () => {
  const path = fresh();
  const one = start([path, JSON.stringify(elsewhere), "write"]);
  await one.saw("acked 5");
  const two = start([path, "here"]);
  assert.is(await two.saw("refused"), `refused ELOCKED ${path} is in use by process ${one.child.pid} on host b`);
  const seen = (await acknowledged(one.lines)).at(-1)!;
  await one.saw(`acked ${seen + 5}`);
});

const unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
const canUnshare = spawnSync(unshare[0]!, [...unshare.slice(1), "true"]).status === 0;
if (!canUnshare) console.log("skipped: process numbers of a real container: unshare is not allowed here");
(canUnshare ? test : test.skip)("in a pid namespace of its own a node finds out as in a container", async () => {
  const path = fresh();
  const one = start([path, "here"], unshare);
  await one.saw("open");
  const owner = JSON.parse(readFileSync(join(path, "lock.1"), "utf8"));
  assert.is(owner.pid, 1);
  assert.is.not(owner.namespace, machine);
  const refused = start([path, "here"], unshare);
  assert.match(await refused.saw("waits"), `process 1 in another container named ${hostname()}`);
  assert.match(await refused.saw("refused"), `in use by process 1 in another container named ${hostname()}`);
  one.child.kill("SIGKILL");
  await one.gone;
  const next = start([path, "here"], unshare);
  assert.match(await next.saw("waits"), "in another container");
  await next.saw("open");
  next.child.kill("SIGKILL");
});

test.after(() => {
  for (const child of children) {
    child.kill("SIGCONT");
    child.kill("SIGKILL");
  }
  for (const path of paths) rmSync(path, { recursive: true, force: true });
});
test.run();
