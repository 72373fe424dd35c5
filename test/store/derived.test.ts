// The derived index can be taken away, spoiled or exchanged at any time: it is made again from the log.

import { spawnSync } from "node:child_process";
import {
  closeSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { suite } from "uvu";
import * as assert from "uvu/assert";
import { openLmdbTable } from "../../src/store/log/lmdb-table.ts";
import { openLogStore } from "../../src/store/log/log-store.ts";
import type { ShardLog } from "../../src/store/log/shard-log.ts";
import { append, commitOf } from "../support/store-blocks.ts";
import { MemoryDisk, memoryTable } from "../support/store-files.ts";

const test = suite("derived index");
const paths: string[] = [];
const segmentBytes = 4096;

function fresh(): string {
  const path = mkdtempSync(join(tmpdir(), "narthex-derived-"));
  paths.push(path);
  return path;
}

async function open(path: string): Promise<ShardLog> {
  return (await openLogStore({ path, segmentBytes }).openShard(0)) as ShardLog;
}

async function fill(shard: ShardLog, prefix: string): Promise<void> {
  for (let i = 0; i < 100; i++) {
    await append(shard, 1, [{ payload: "p", id: `${prefix}-${i}`, key: `${prefix}-key-${i % 5}` }, "without"]);
  }
  await shard.settled();
}

async function expectFilled(shard: ShardLog, prefix: string): Promise<void> {
  for (const i of [0, 1, 50, 99]) assert.is(await shard.findId(1, `${prefix}-${i}`), 2 * i);
  assert.equal(
    await shard.latest(1, { after: "", limit: 100 }),
    [0, 1, 2, 3, 4].map((i) => ({ key: `${prefix}-key-${i}`, offset: 2 * (95 + i) })),
  );
}

/** What is in the thread pool at this moment may still make a file. */
function removeWhole(folder: string): void {
  for (let tries = 0; existsSync(folder) && tries < 1000; tries++) {
    try {
      rmSync(folder, { recursive: true, force: true });
    } catch (error) {
      assert.is((error as NodeJS.ErrnoException).code, "ENOTEMPTY");
    }
  }
}

test("it is written when segments are sealed, and used by the next run", async () => {
  const path = fresh();
  const shard = await open(path);
  await fill(shard, "a");
  assert.ok(existsSync(join(path, "shard-0/derived")));
  await expectFilled(shard, "a");
  await shard.close();
  const next = await open(path);
  await expectFilled(next, "a");
  await next.close();
});

test("a disk that is full refuses its writes before lmdb meets it, and can be closed while it is full", () => {
  const filler = fileURLToPath(new URL("./store-full-table.entry.js", import.meta.url));
  // Files end at 512 blocks here, which is met like the end of the disk.
  const command = ["-c", 'ulimit -f 512 && exec "$0" "$@"', process.execPath, filler, fresh()];
  const { status, stdout, stderr } = spawnSync("sh", command, { encoding: "utf8" });
  assert.is(stdout, "refused 3\nclosed\n", stderr);
  assert.is(stderr, "", "what lmdb says when it cannot write a page is longer than the place it has for it");
  assert.is(status, 0);
});

test("a missing or spoiled one is made again", async () => {
  const path = fresh();
  const shard = await open(path);
  await fill(shard, "a");
  await shard.close();
  const folder = join(path, "shard-0/derived");
  rmSync(folder, { recursive: true });
  const second = await open(path);
  await expectFilled(second, "a");
  await second.close();
  rmSync(folder, { recursive: true });
  const third = await open(path);
  await third.close();
  rmSync(folder, { recursive: true, force: true });
  cpSync(join(path, "shard-0"), join(path, "copy"), { recursive: true });
  const fourth = await open(path);
  await fourth.findId(1, "x");
  await fourth.close();
  writeFileSync(join(folder, "data.mdb"), "this is no lmdb".repeat(1000));
  const fifth = await open(path);
  await expectFilled(fifth, "a");
  await fifth.close();
});

test("it is kept after a kill and after an orderly end, and made again where something of it may be lost", async () => {
  const path = fresh();
  const shard = await open(path);
  await fill(shard, "a");
  await shard.close();
  const folder = join(path, "shard-0/derived");
  const use = join(folder, "use");
  const made = () => statSync(join(folder, "data.mdb")).ino;
  const look = async () => {
    const next = await open(path);
    await expectFilled(next, "a");
    const opened = JSON.parse(readFileSync(use, "utf8"));
    await next.close();
    return opened;
  };
  const closed = JSON.parse(readFileSync(use, "utf8"));
  assert.is(closed.unclosed, 0);
  const first = made();
  const opened = await look();
  assert.is(opened.unclosed, 1);
  assert.is(made(), first, "after an orderly end");
  const left = (by: object) => writeFileSync(use, JSON.stringify({ ...opened, by: "1 2", ...by }));
  left({});
  assert.is((await look()).unclosed, 2);
  assert.is(made(), first, "after a kill, on the same run of the machine");
  for (const [why, by] of [
    ["the machine was started anew", { boot: "another" }],
    ["the machine does not say", { boot: "" }],
    ["it has ended three processes", { unclosed: 3 }],
  ] as const) {
    const before = made();
    // An inode that is free may be given again.
    const holder = openSync(join(folder, "data.mdb"), "r");
    left(by);
    assert.is((await look()).unclosed, 1);
    assert.is.not(made(), before, why);
    closeSync(holder);
  }
  for (const text of ["", '{"boot":', "null"]) {
    const before = made();
    const holder = openSync(join(folder, "data.mdb"), "r");
    writeFileSync(use, text);
    await look();
    assert.is.not(made(), before, "a word that a power cut left");
    closeSync(holder);
  }
});

test("one that was made from another log is made again", async () => {
  const table = memoryTable();
  const openOn = async (disk: MemoryDisk) =>
    (await openLogStore({ path: "/data", files: disk, segmentBytes, openTable: async () => table }).openShard(
      0,
    )) as ShardLog;
  const [one, two] = [new MemoryDisk(), new MemoryDisk()];
  for (const [disk, prefix] of [
    [one, "a"],
    [two, "b"],
  ] as const) {
    const shard = await openOn(disk);
    await fill(shard, prefix);
    await shard.close();
  }
  assert.ok(table.range(Buffer.from("i"), Buffer.from("l"), 10).length > 0);
  const shard = await openOn(one);
  assert.equal(await shard.latest(1, { keys: ["b-key-1"] }), []);
  assert.is(await shard.findId(1, "b-1"), undefined);
  await expectFilled(shard, "a");
  await shard.close();
});

test("asking again reads only what was committed since", async () => {
  const disk = new MemoryDisk();
  const store = openLogStore({
    path: "/data",
    files: disk,
    segmentBytes: 1 << 20,
    openTable: async () => memoryTable(),
  });
  const shard = await store.openShard(0);
  for (let i = 0; i < 500; i++) await append(shard, 1, [{ payload: "p", id: `id-${i}` }]);
  await shard.findId(1, "nobody");
  let reads = 0;
  disk.before = (call) => {
    if (call.op === "read") reads++;
  };
  for (let i = 0; i < 10; i++) assert.is(await shard.findId(1, `nobody ${i}`), undefined);
  assert.is(reads, 0);
  await append(shard, 1, [{ payload: "p", id: "new" }]);
  assert.is(await shard.findId(1, "new"), 500);
  assert.is(reads, 2, "the tail, and the event itself");
  await store.close();
});

test("a commit does not touch it", async () => {
  let opened = 0;
  const store = openLogStore({
    path: "/data",
    files: new MemoryDisk(),
    openTable: async () => {
      opened++;
      return memoryTable();
    },
  });
  const shard = await store.openShard(0);
  for (let i = 0; i < 100; i++) await append(shard, 1, [{ payload: "p", id: `id-${i}` }]);
  assert.is(opened, 0);
  await store.close();
});

test("entries of trimmed events and deleted streams leave the table", async () => {
  const table = memoryTable();
  const store = openLogStore({ path: "/data", files: new MemoryDisk(), segmentBytes, openTable: async () => table });
  const shard = (await store.openShard(0)) as ShardLog;
  const all = () => table.range(Buffer.from("i"), Buffer.from("l"), 10_000).length;
  await fill(shard, "a");
  for (let i = 0; i < 20; i++) await append(shard, 2, [{ payload: "p", id: `two-${i}` }]);
  await fill(shard, "b");
  assert.ok(all() > 200);
  await shard.commit(
    commitOf({
      trims: [
        [1, 398],
        [2, null],
      ],
    }),
  );
  await shard.settled();
  assert.ok(all() <= 2, String(all()));
  assert.is(await shard.findId(1, "a-5"), undefined);
  assert.is(await shard.findId(1, "b-99"), 398);
  await store.close();
});

test("the folder of a shard that is removed while its index is opened is not made again", async () => {
  const turn = () => new Promise((resolve) => setImmediate(resolve));
  // What is there at some moments on the way; the last is right before lmdb has its turn.
  const moments = [
    ["derived"],
    ["derived/opening"],
    ["derived/room"],
    ["derived/lock.mdb"],
    ["derived/room", "no derived/room"],
  ];
  for (let round = 0; round < 20; round++) {
    for (const moment of moments) {
      const shard = join(fresh(), "shard-0");
      mkdirSync(shard);
      let over = false;
      const opening = openLmdbTable(join(shard, "derived"))
        .catch(() => undefined)
        .finally(() => {
          over = true;
        });
      for (const name of moment) {
        const is = !name.startsWith("no ");
        while (!over && existsSync(join(shard, name.replace("no ", ""))) !== is) await turn();
      }
      removeWhole(shard);
      await (await opening)?.close();
      assert.not(existsSync(shard), `removed at ${moment}`);
    }
  }
});

test.after(() => {
  for (const path of paths) rmSync(path, { recursive: true, force: true });
});
test.run();
