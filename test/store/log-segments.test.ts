// What happens to segments in time: footers, removal, rewriting, recycling, and readers meanwhile.

import { suite } from "uvu";
import * as assert from "uvu/assert";
import { openLogStore } from "../../src/store/log/log-store.ts";
import type { ShardLog } from "../../src/store/log/shard-log.ts";
import { allPayloads, append, block, commitOf, dump, payloads } from "../support/store-blocks.ts";
import { diskError, MemoryDisk, memoryTable } from "../support/store-files.ts";

const test = suite("log: segments");
const reports: string[] = [];

async function open(disk: MemoryDisk, segmentBytes = 4096): Promise<ShardLog> {
  const report = (message: string) => reports.push(message);
  const store = openLogStore({
    path: "/data",
    files: disk,
    segmentBytes,
    report,
    openTable: async () => memoryTable(),
  });
  return (await store.openShard(0)) as ShardLog;
}

const segments = (disk: MemoryDisk) => disk.paths().filter((path) => path.endsWith(".log"));
const reads = (disk: MemoryDisk, found: Map<string, number>) => {
  disk.before = (call) => {
    if (call.op === "read") found.set(call.path, (found.get(call.path) ?? 0) + 1);
  };
};

test("opening reads the newest segment and the footers of the others", async () => {
  const disk = new MemoryDisk();
  const shard = await open(disk);
  for (let i = 0; i < 200; i++) await append(shard, i % 3, [`event ${i}`, "x".repeat(100)]);
  await shard.settled();
  const expected = JSON.stringify(await dump(shard));
  await shard.close();
  const found = new Map<string, number>();
  reads(disk, found);
  const next = await open(disk);
  const names = segments(disk).slice(0, -2);
  assert.ok(names.length > 10);
  // The trailer and the runs.
  for (const name of names) assert.is(found.get(name), 2, name);
  assert.is(JSON.stringify(await dump(next)), expected);
  await next.close();
});

test("a footer that does not check out costs a scan, nothing else", async () => {
  const disk = new MemoryDisk();
  const shard = await open(disk);
  for (let i = 0; i < 100; i++) await append(shard, i % 3, [`event ${i}`, "x".repeat(100)]);
  await shard.settled();
  const expected = JSON.stringify(await dump(shard));
  await shard.close();
  for (const back of [1, 20, 90]) {
    const spoiled = disk.afterCut({ unsynced: "kept" });
    for (const name of segments(spoiled).slice(0, -1)) {
      const content = Buffer.from(spoiled.content(name));
      content[content.length - back] ^= 1;
      spoiled.setContent(name, content);
    }
    const next = await open(spoiled);
    assert.is(JSON.stringify(await dump(next)), expected, `${back} bytes before the end`);
    assert.equal(next.damage(), []);
    await next.close();
  }
});

test("a footer whose sync fails is let be: its file is not written to again, and nothing is lost", async () => {
  const disk = new MemoryDisk();
  const shard = await open(disk);
  let footing = "";
  let failed: string | undefined;
  const more: string[] = [];
  disk.before = ({ op, path }) => {
    if (path === failed && ["write", "truncate", "datasync"].includes(op)) more.push(op);
    if (failed !== undefined) return;
    if (op === "truncate") footing = path;
    if (op !== "datasync" || path !== footing) return;
    failed = path;
    throw diskError("EIO");
  };
  for (let i = 0; i < 100; i++) {
    await append(shard, i % 3, [`event ${i}`, "x".repeat(100)]);
    await shard.settled();
  }
  const expected = JSON.stringify(await dump(shard));
  await shard.close();
  assert.ok(failed !== undefined);
  assert.equal(more, []);
  assert.equal(reports.splice(0), ["/data/shard-0: footers: Error: EIO: made by the test"]);
  const next = await open(disk.afterCut({ unsynced: "lost" }));
  assert.is(JSON.stringify(await dump(next)), expected);
  assert.equal(next.damage(), []);
  await next.close();
});

test("segments in which nothing lives go away, and their files are used again", async () => {
  const disk = new MemoryDisk();
  const shard = await open(disk);
  for (let i = 0; i < 400; i++) {
    const first = shard.head(1)?.end ?? 0;
    const blocks = [block({ stream: 1, first, events: [`event ${i}`, "x".repeat(100)] })];
    await shard.commit(commitOf({ blocks, trims: first > 10 ? [[1, first - 10]] : [] }));
    await shard.settled();
  }
  assert.ok(segments(disk).length <= 4, segments(disk).join(" "));
  assert.equal((await allPayloads(shard, 1))[0], "788:event 394");
  const created = disk.calls.filter((call) => call.op === "create").length;
  assert.ok(created < 10, `${created} files were made for about 30 segments`);
  await shard.close();
  assert.equal((await allPayloads(await open(disk), 1)).length, 12);
});

test("a segment of which less than half lives is rewritten, byte for byte, and once is enough", async () => {
  const disk = new MemoryDisk();
  const shard = await open(disk);
  for (let i = 0; i < 120; i++) {
    const blocks = [block({ stream: 1, first: i, events: ["x".repeat(150)] })];
    if (i % 10 === 0) blocks.push(block({ stream: 2, first: i / 10, events: [`keep ${i}`] }));
    await shard.commit(commitOf({ blocks }));
  }
  await shard.settled();
  const before = segments(disk).reduce((sum, path) => sum + disk.content(path).length, 0);
  await shard.commit(commitOf({ trims: [[1, 119]] }));
  await shard.settled();
  const after = segments(disk).reduce((sum, path) => sum + disk.content(path).length, 0);
  assert.ok(after < before / 2, `${before} bytes before, ${after} after`);
  const expected = Array.from({ length: 12 }, (_, i) => `${i}:keep ${10 * i}`);
  assert.equal(await allPayloads(shard, 2), expected);
  for (let i = 0; i < 3; i++) {
    await shard.commit(commitOf({ trims: [[1, 119]] }));
    await shard.settled();
  }
  const copies = disk.calls
    .filter((call) => call.op === "create" && call.path.endsWith(".log.tmp"))
    .map((call) => call.path);
  assert.ok(copies.length > 3);
  assert.is(copies.length, new Set(copies).size, "nothing is rewritten twice");
  await shard.close();
  const next = await open(disk);
  assert.equal(await allPayloads(next, 2), expected);
  assert.equal(next.head(2)?.bytes, shard.head(2)?.bytes);
  await next.close();
});

test("readers go on unharmed while segments are rewritten and removed under them", async () => {
  const disk = new MemoryDisk();
  const shard = await open(disk);
  const wrong: string[] = [];
  let stop = false;
  const reader = (async () => {
    while (!stop) {
      for (const stream of [1, 2]) {
        const from = shard.head(stream)?.start ?? 0;
        const { blocks } = await shard.read(stream, { from, to: Number.POSITIVE_INFINITY, bytesMax: 2000 });
        for (const event of payloads(blocks)) {
          const [offset, text] = event.split(":");
          if (text !== `s${stream}-${offset}`) wrong.push(event);
        }
      }
      await new Promise((resolve) => setImmediate(resolve));
    }
  })();
  for (let i = 0; i < 300; i++) {
    const blocks = [block({ stream: 1, first: i, events: [`s1-${i}`] })];
    if (i % 7 === 0) blocks.push(block({ stream: 2, first: i / 7, events: [`s2-${i / 7}`] }));
    await shard.commit(commitOf({ blocks, trims: i > 20 ? [[1, i - 20]] : [] }));
    await new Promise((resolve) => setImmediate(resolve));
  }
  stop = true;
  await reader;
  assert.equal(wrong, []);
  assert.equal(shard.damage(), []);
  assert.equal(
    await allPayloads(shard, 2),
    Array.from({ length: 43 }, (_, i) => `${i}:s2-${i}`),
  );
  await shard.close();
});

test("the index of sealed segments is coarse and finds everything", async () => {
  const disk = new MemoryDisk();
  const shard = await open(disk, 2 * 1024 * 1024);
  for (let i = 0; i < 12_000; i++) {
    await append(shard, 1, [{ payload: `event ${i}`, ts: 5000 + i }, "x".repeat(60)], 1000 + i);
    if (i % 100 === 0) await append(shard, 2, [`other ${i}`]);
  }
  await shard.settled();
  assert.ok(segments(disk).length >= 3);
  for (const offset of [0, 1, 777, 2500, 14_001, 23_998, 23_999]) {
    const { blocks } = await shard.read(1, { from: offset, to: offset + 1, bytesMax: 1 });
    const wanted = offset % 2 === 0 ? `${offset}:event ${offset / 2}` : `${offset}:${"x".repeat(60)}`;
    assert.ok(payloads(blocks).includes(wanted), `offset ${offset}`);
    assert.is(blocks.length, 1);
  }
  for (const i of [0, 5, 999, 11_999]) assert.is(await shard.findTs(1, 5000 + i), 2 * i);
  // About, in whole runs: never an event that is too young, never much more than was asked for.
  const start = shard.pruneTo(1, { storedBefore: 2000 });
  assert.ok(start < 2000 && start > 1000, String(start));
  await shard.close();
});

test.after(() => assert.equal(reports, []));
test.run();
