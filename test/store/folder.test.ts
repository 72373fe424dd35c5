import { type ChildProcessWithoutNullStreams, spawn } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { Worker } from "node:worker_threads";
import { suite } from "uvu";
import * as assert from "uvu/assert";
import { realClock } from "../../src/runtime/clock.ts";
import { type Folder, openFolder } from "../../src/store/log/folder.ts";
import { openLogStore } from "../../src/store/log/log-store.ts";
import { StoreError } from "../../src/store/store.ts";
import { allPayloads, append } from "../support/store-blocks.ts";

const test = suite("folder");
const holder = fileURLToPath(new URL("./store-folder-holder.entry.js", import.meta.url));
const writer = fileURLToPath(new URL("./store-log-writer.entry.js", import.meta.url));
const children = new Set<ChildProcessWithoutNullStreams>();
const paths: string[] = [];

function fresh(): string {
  const path = mkdtempSync(join(tmpdir(), "narthex-folder-"));
  paths.push(path);
  return path;
}

const open = (options: { path: string; workers: number }): Promise<Folder> =>
  openFolder({ ...options, clock: realClock() });

function start(
  program: string,
  ...args: string[]
): { child: ChildProcessWithoutNullStreams; lines: AsyncIterator<string> } {
  const child = spawn(process.execPath, [program, ...args]);
  children.add(child);
  child.stderr.pipe(process.stderr);
  return { child, lines: createInterface(child.stdout)[Symbol.asyncIterator]() };
}

async function firstLine(lines: AsyncIterator<string>): Promise<string> {
  return (await lines.next()).value ?? "";
}

const gone = (child: ChildProcessWithoutNullStreams) =>
  new Promise<void>((resolve) => (child.exitCode !== null ? resolve() : child.once("exit", () => resolve())));

async function refusal(promise: Promise<unknown>): Promise<StoreError> {
  try {
    await promise;
  } catch (error) {
    assert.instance(error, StoreError);
    return error as StoreError;
  }
  throw new Error("expected a StoreError");
}

test("a folder is made, and opened again after it was closed", async () => {
  const path = join(fresh(), "deeper", "data");
  const folder = await open({ path, workers: 2 });
  assert.is(folder.shards, 2);
  assert.equal(JSON.parse(readFileSync(join(path, "format.json"), "utf8")), { version: 1, shards: 2 });
  await folder.close();
  await (await open({ path, workers: 2 })).close();
});

test("the number of shards is the largest number of workers ever", async () => {
  const path = fresh();
  const seen: number[] = [];
  for (const workers of [1, 4, 2, 5, 1]) {
    const folder = await open({ path, workers });
    seen.push(folder.shards);
    await folder.close();
  }
  assert.equal(seen, [1, 4, 4, 5, 5]);
});

test("a folder that cannot be used is refused with a reason, and at once", async () => {
  const path = fresh();
  writeFileSync(join(path, "file"), "");
  for (const [where, code, why] of [
    ["/proc/narthex", "ENOENT", "no folder can be made there"],
    ["/proc/narthex/a/b", "ENOENT", "no folder can be made there"],
    [join(path, "file"), "EEXIST", "a file is in its place"],
    [join(path, "file/a"), "ENOTDIR", "a file is in its place"],
  ]) {
    const error = await refusal(open({ path: where, workers: 1 }));
    assert.is(error.code, code);
    const what = `the data folder ${where} cannot be used, because ${why} (${code}): choose another with NARTHEX_DATA`;
    assert.is(error.message, what);
  }
});

test("the same process is refused as well", async () => {
  const path = fresh();
  const folder = await open({ path, workers: 1 });
  const error = await refusal(open({ path, workers: 1 }));
  assert.is(error.code, "ELOCKED");
  assert.match(error.message, path);
  assert.match(error.message, `process ${process.pid}`);
  await folder.close();
  await (await open({ path, workers: 1 })).close();
});

test("a second process is refused by name; once the first is killed or ends, the folder is free", async () => {
  const path = fresh();
  const one = start(holder, path, "3");
  assert.is(await firstLine(one.lines), "open 3");
  const error = await refusal(open({ path, workers: 1 }));
  assert.is(error.code, "ELOCKED");
  assert.is(error.message, `${path} is in use by process ${one.child.pid}`);
  const two = start(holder, path, "1");
  assert.is(await firstLine(two.lines), `refused ELOCKED ${path} is in use by process ${one.child.pid}`);
  one.child.kill("SIGKILL");
  await gone(one.child);
  const three = start(holder, path, "1");
  assert.is(await firstLine(three.lines), "open 3");
  three.child.stdin.end();
  await gone(three.child);
  await (await open({ path, workers: 1 })).close();
});

test("of many that find the same dead owner one gets the folder", async () => {
  const path = fresh();
  const dead = start(holder, path, "1");
  await firstLine(dead.lines);
  dead.child.kill("SIGKILL");
  await gone(dead.child);
  const crowd = Array.from({ length: 6 }, () => start(holder, path, "1"));
  const answers = await Promise.all(crowd.map(({ lines }) => firstLine(lines)));
  assert.is(answers.filter((answer) => answer === "open 1").length, 1, answers.join("\n"));
  assert.is(answers.filter((answer) => answer.startsWith("refused ELOCKED")).length, 5, answers.join("\n"));
  assert.is(readdirSync(path).filter((name) => name.startsWith("lock.")).length, 1);
});

test("a process with the number of a dead owner is not taken for it", async () => {
  const path = fresh();
  await (await open({ path, workers: 1 })).close();
  const [lock] = readdirSync(path).filter((name) => name.startsWith("lock."));
  const owner = JSON.parse(readFileSync(join(path, lock), "utf8"));
  writeFileSync(join(path, lock), JSON.stringify({ ...owner, released: false, started: "1" }));
  await (await open({ path, workers: 1 })).close();
});

test("a lock that a power cut emptied is nobody's", async () => {
  const path = fresh();
  writeFileSync(join(path, "lock.7"), "");
  await (await open({ path, workers: 1 })).close();
});

for (const [name, content] of [
  ["a newer version", '{"version":2,"layout":"new"}'],
  ["no JSON", "{version"],
  ["no shards", '{"version":1}'],
] as const) {
  test(`format.json with ${name} is refused and left alone`, async () => {
    const path = fresh();
    writeFileSync(join(path, "format.json"), content);
    const error = await refusal(open({ path, workers: 3 }));
    assert.is(error.code, "EFORMAT");
    assert.match(error.message, path);
    if (name === "a newer version") assert.match(error.message, "format version 2, this program reads up to 1");
    assert.is(readFileSync(join(path, "format.json"), "utf8"), content);
  });
}

test("shards without a format.json are refused", async () => {
  const path = fresh();
  const store = openLogStore({ path });
  await (await store.openShard(0)).close();
  assert.is((await refusal(open({ path, workers: 1 }))).code, "EFORMAT");
});

async function expectWritten(path: string, acked: number): Promise<void> {
  const store = openLogStore({ path, segmentBytes: 32 * 1024 });
  const shard = await store.openShard(0);
  const found = await allPayloads(shard, 1);
  assert.ok(found.length >= acked + 2, `${found.length} events, acknowledged up to ${acked}`);
  for (let i = 0; i < found.length; i += 2) assert.is(found[i], `${i}:event ${i}`);
  assert.equal(shard.damage(), []);
  assert.is(await shard.findId(1, `id-${acked}`), acked);
  assert.is(await shard.findId(1, "id-0"), 0);
  await append(shard, 1, [{ payload: `event ${found.length}`, id: "after" }, "x"]);
  assert.is(await shard.findId(1, "after"), found.length);
  await store.close();
}

test("kill -9 of the process loses nothing that was acknowledged", async () => {
  const path = fresh();
  for (const commits of [1, 60, 300]) {
    const { child, lines } = start(writer, path);
    let acked = -1;
    for (let i = 0; i < commits; i++) acked = Number(await firstLine(lines));
    child.kill("SIGKILL");
    // What it told before it died counts as well.
    for (let line = await lines.next(); !line.done; line = await lines.next()) acked = Number(line.value);
    await expectWritten(path, acked);
  }
});

test("a thread that is terminated at any moment loses nothing, and the next one in this process opens the shard", async () => {
  const path = fresh();
  for (const commits of [1, 60, 300]) {
    const worker = new Worker(writer, { workerData: path });
    let acked = -1;
    let left = commits;
    await new Promise<void>((resolve, reject) => {
      worker.once("error", reject);
      worker.on("message", (text: string) => {
        acked = Number(text);
        if (--left === 0) resolve();
      });
    });
    await worker.terminate();
    await expectWritten(path, acked);
  }
});

test.after(() => {
  for (const child of children) child.kill("SIGKILL");
  for (const path of paths) rmSync(path, { recursive: true, force: true });
});
test.run();
