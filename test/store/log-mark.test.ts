// What was acknowledged and cannot be read any more is damage, also at the very end of the log, where it looks like a write that was
// never finished. What nobody can vouch for is cut as ever, but said, and its bytes are kept.

import { crc32 } from "node:zlib";
import { suite } from "uvu";
import * as assert from "uvu/assert";
import { openLogStore } from "../../src/store/log/log-store.ts";
import { markPath } from "../../src/store/log/mark.ts";
import type { ShardLog } from "../../src/store/log/shard-log.ts";
import { StoreError } from "../../src/store/store.ts";
import { allPayloads, append, block, commitOf } from "../support/store-blocks.ts";
import { type Cut, diskError, MemoryDisk, memoryTable } from "../support/store-files.ts";

const test = suite("log: mark");
const folder = "/data/shard-0";
const mark = markPath(folder);
const segmentPath = (number: number) => `${folder}/${String(number).padStart(12, "0")}.log`;

async function open(disk: MemoryDisk, reports: string[] = [], segmentBytes = 64 * 1024): Promise<ShardLog> {
  const report = (message: string) => reports.push(message);
  const store = openLogStore({
    path: "/data",
    files: disk,
    segmentBytes,
    openTable: async () => memoryTable(),
    report,
  });
  return (await store.openShard(0)) as ShardLog;
}

/** Two commits: the second with an event of each of two streams and an entry. `end` is where its record ends. */
async function twoRecords(
  how: "closed" | "killed",
): Promise<{ disk: MemoryDisk; path: string; from: number; end: number }> {
  const disk = new MemoryDisk();
  const shard = await open(disk);
  const path = segmentPath(1);
  await append(shard, 1, ["a"]);
  await append(shard, 2, ["a"]);
  const from = disk.content(path).length;
  const blocks = [1, 2].map((stream) => block({ stream, first: 1, events: ["b"] }));
  await shard.commit(commitOf({ blocks, puts: [["cursor", Buffer.from("b")]] }));
  const end = disk.content(path).length;
  if (how === "closed") await shard.close();
  return { disk: disk.afterCut({ unsynced: "kept" }), path, from, end };
}

for (const how of ["closed", "killed"] as const) {
  test(`any byte of the last record of a node that was ${how}: reported, offsets kept, and again by the next start`, async () => {
    const { disk, path, from, end } = await twoRecords(how);
    for (let at = from; at < end; at++) {
      const spoiled = disk.afterCut({ unsynced: "kept" });
      const content = Buffer.from(spoiled.content(path));
      content[at] ^= 1 << (at % 8);
      spoiled.setContent(path, content);
      const shard = await open(spoiled);
      const about = `byte ${at}`;
      const found = [await allPayloads(shard, 1), await allPayloads(shard, 2)];
      const whole = found.flat().length === 4;
      assert.ok(shard.epoch >= 2, about);
      if (shard.damage().length === 0) {
        assert.ok(whole && end - at <= 8, `${about} went unnoticed`);
        assert.is(Buffer.from(shard.entry("cursor") ?? []).toString(), "b", about);
        continue;
      }
      assert.match(shard.damage()[0].place, /^000000000001\.log \d+\.\.\d+$/, about);
      for (const stream of [1, 2]) {
        assert.ok((shard.head(stream)?.end ?? 0) >= 2, `${about}: stream ${stream} gives an offset again`);
        const [first, second] = found[stream - 1];
        assert.is(first, "0:a", about);
        const named = shard.damage().some(({ stream: of, from = 0, to = 0 }) => of === stream && from <= 1 && 1 < to);
        assert.ok(second === "1:b" || named, `${about}: nobody says what stream ${stream} lost`);
      }
      await append(shard, 1, ["c"]);
      await shard.settled();
      const [events, ...damage] = [await allPayloads(shard, 1), ...shard.damage()];
      await shard.close();
      assert.equal(spoiled.content(path), content, about);
      const next = await open(spoiled);
      assert.equal(await allPayloads(next, 1), events, about);
      assert.is(next.damage().length > 0, damage.length > 0, about);
    }
  });
}

test("a newest file that was cut, or whose end is zeroes, has lost what the mark says it had", async () => {
  const { disk, path, from, end } = await twoRecords("closed");
  for (const to of [from, from + 8, (from + end) / 2, end - 8]) {
    for (const fill of [false, true]) {
      const spoiled = disk.afterCut({ unsynced: "kept" });
      const content = Buffer.from(spoiled.content(path));
      spoiled.setContent(path, fill ? content.fill(0, to) : content.subarray(0, to));
      const shard = await open(spoiled);
      assert.ok(shard.damage().length > 0, `${fill ? "zero" : "cut"} from ${to}`);
      assert.ok([1, 2].every((stream) => (shard.head(stream)?.end ?? 0) >= 2));
      await append(shard, 1, ["c"]);
      await shard.close();
      const next = await open(spoiled);
      assert.ok(next.damage().length > 0);
      assert.match((await allPayloads(next, 1)).at(-1) ?? "", /:c$/);
    }
  }
});

test("the first record of the newest segment: its epoch is not given again, and what it committed is reported", async () => {
  for (let at = 0; at < 400; at += 7) {
    const disk = new MemoryDisk();
    const before = await open(disk);
    await append(before, 1, ["a"]);
    await before.close();
    const shard = await open(disk);
    await shard.close();
    const path = segmentPath(2);
    const content = Buffer.from(disk.content(path));
    if (at >= content.length) break;
    content[at] ^= 0x10;
    disk.setContent(path, content);
    const next = await open(disk);
    assert.ok(next.epoch > shard.epoch, `byte ${at}: epoch ${next.epoch} again`);
    const found = await allPayloads(next, 1);
    assert.ok(found[0] === "0:a" || next.damage().length > 0, `byte ${at}`);
  }
});

test("a newest segment that is missing, and a shard whose segments are all empty, are refused by name", async () => {
  const { disk, path } = await twoRecords("closed");
  const empty = disk.afterCut({ unsynced: "kept" });
  empty.setContent(path, Buffer.alloc(4096));
  const missing = disk.afterCut({ unsynced: "kept" });
  const shard = await open(missing);
  await shard.close();
  await missing.unlink(segmentPath(2));
  const bare = disk.afterCut({ unsynced: "kept" });
  await bare.unlink(path);
  for (const [spoiled, place] of [
    [empty, mark],
    [missing, segmentPath(2)],
    [bare, mark],
  ] as const) {
    const error = await open(spoiled).then(
      () => undefined,
      (thrown: unknown) => thrown,
    );
    assert.instance(error, StoreError);
    assert.is((error as StoreError).code, "EDAMAGED");
    assert.ok((error as StoreError).message.includes(place), (error as StoreError).message);
  }
});

test("a file of another shard in the place of the newest one does not take the shard over", async () => {
  const { disk, path } = await twoRecords("closed");
  const next = await open(disk);
  await append(next, 1, ["c"]);
  await next.close();
  const other = new MemoryDisk();
  await (await open(other)).close();
  await append(await open(other), 1, ["x"]);
  disk.setContent(segmentPath(2), Buffer.from(other.content(segmentPath(2))));
  const shard = await open(disk);
  assert.equal((await allPayloads(shard, 1)).slice(0, 2), ["0:a", "1:b"]);
  assert.ok((shard.head(1)?.end ?? 0) >= 3 && shard.damage().some(({ place }) => place.startsWith("000000000002.log")));
  assert.ok(disk.paths().includes(path));
});

test("without a mark, or with one that does not check out, a bad last record is cut as ever: but said, and kept", async () => {
  const { disk, path, from, end } = await twoRecords("killed");
  for (const spoil of ["gone", "short", "flipped", "old"] as const) {
    const spoiled = disk.afterCut({ unsynced: "kept" });
    if (spoil === "gone") await spoiled.unlink(mark);
    if (spoil === "short") spoiled.setContent(mark, spoiled.content(mark).subarray(0, 20));
    if (spoil === "flipped") spoiled.setContent(mark, Buffer.from(spoiled.content(mark).map((byte) => byte ^ 4)));
    // What a power cut leaves: the state before the commit.
    if (spoil === "old") {
      const fresh = new MemoryDisk();
      const shard = await open(fresh);
      await append(shard, 1, ["a"]);
      const content = Buffer.from(fresh.content(mark));
      content.set(spoiled.content(mark).subarray(8, 16), 8);
      content.writeUInt32LE(crc32(content.subarray(8)), 4);
      spoiled.setContent(mark, content);
    }
    const content = Buffer.from(spoiled.content(path));
    content[end - 12] ^= 1;
    spoiled.setContent(path, content);
    const reports: string[] = [];
    const shard = await open(spoiled, reports);
    assert.equal(await allPayloads(shard, 1), ["0:a"], spoil);
    assert.equal(shard.damage(), [], spoil);
    const name = `000000000001-${from}.cut`;
    const said = `an unfinished write of ${end - from} bytes at 000000000001.log:${from} was cut, its bytes are in ${name}`;
    assert.equal(reports, [said], spoil);
    assert.equal(spoiled.content(`${folder}/${name}`), content.subarray(from, end), spoil);
    await shard.close();
  }
});

test("a start that is cut off while it writes the last record once more: nothing is lost and nothing is damage", async () => {
  const { disk: before } = await twoRecords("killed");
  const shard = await open(before);
  const events = [1, 2].map((name) => `${name} ${"x".repeat(700)}`);
  await shard.commit(commitOf({ blocks: [1, 2].map((stream) => block({ stream, first: 2, events })) }));
  const expected = [await allPayloads(shard, 1), await allPayloads(shard, 2)];
  let torn = 0;
  for (let step = 1; ; step++) {
    const cutDisk = before.afterCut({ unsynced: "kept" });
    cutDisk.cutAt = step;
    const started = await open(cutDisk).catch(() => undefined);
    const cuts: Cut[] = [{ unsynced: "lost" }, { unsynced: "kept" }];
    for (let at = 0; at < 3600; at += 200) cuts.push({ unsynced: "torn", at });
    for (let seed = 1; seed <= 16; seed++) cuts.push({ unsynced: "scattered", seed });
    for (const cut of cuts) {
      for (let names = 0; names <= cutDisk.pendingNameCount; names++) {
        const about = `step ${step}, ${JSON.stringify(cut)}, ${names} names`;
        const disk = cutDisk.afterCut(cut, names);
        if (disk.paths().includes(segmentPath(3))) torn++;
        for (let start = 0; start < 2; start++) {
          const next = await open(disk);
          assert.equal(next.damage(), [], about);
          assert.equal([await allPayloads(next, 1), await allPayloads(next, 2)], expected, about);
          await next.close();
        }
      }
    }
    if (started !== undefined) break;
  }
  assert.ok(torn > 50);
});

test("what a used file held before is no unfinished write", async () => {
  const disk = new MemoryDisk();
  const reports: string[] = [];
  let shard = await open(disk, reports, 2048);
  for (let i = 0; i < 60; i++) {
    await append(shard, 1, [`event ${i} ${"x".repeat(200)}`]);
    await shard.commit(commitOf({ trims: [[1, i]] }));
    if (i % 3 === 0) await shard.settled();
  }
  assert.ok(
    disk.calls.some(({ op, path }) => op === "rename" && path.endsWith("spare.tmp")),
    "files were used again",
  );
  for (let i = 0; i < 3; i++) {
    await shard.close();
    shard = await open(disk, reports, 2048);
    await append(shard, 1, ["one more"]);
  }
  assert.equal(reports, []);
  await shard.close();
});

/** The first segment has the events of stream 1, and the file that said where it ends has gone. */
async function olderAlone(): Promise<{ disk: MemoryDisk; path: string }> {
  const disk = new MemoryDisk();
  let shard = await open(disk);
  const again = async () => {
    // The newest commit is made again by the next start, in another file.
    await shard.commit(commitOf({ puts: [["last", Buffer.from("")]] }));
    await shard.settled();
    await shard.close();
    shard = await open(disk);
  };
  for (const event of ["a", "b"]) await append(shard, 1, [event]);
  await again();
  await append(shard, 2, ["c"]);
  await again();
  // The file that says where the first one ends goes away with this.
  await shard.commit(commitOf({ trims: [[2, null]] }));
  await again();
  await again();
  await shard.settled();
  await shard.close();
  const path = segmentPath(1);
  assert.not.ok(disk.paths().includes(segmentPath(2)));
  return { disk, path };
}

test("an older file that ends within the head of a record is kept as it is", async () => {
  const { disk, path } = await olderAlone();
  const whole = Buffer.from(disk.content(path));
  const second = whole.indexOf("NXR1", 8);
  for (const bytes of [4, 17, 41, 79]) {
    const spoiled = disk.afterCut({ unsynced: "kept" });
    spoiled.setContent(path, whole.subarray(0, second + bytes));
    for (let start = 0; start < 3; start++) {
      const found = await open(spoiled);
      assert.equal(await allPayloads(found, 1), ["0:a"], `${bytes} bytes`);
      assert.equal([found.damage()[0].from, found.damage()[0].to], [1, 2], `${bytes} bytes`);
      await found.settled();
      await found.close();
    }
    assert.equal(spoiled.content(path), whole.subarray(0, second + bytes), `${bytes} bytes`);
  }
});

test("a foreign file in the place of an older one is set aside, never removed", async () => {
  const { disk, path } = await olderAlone();
  const other = new MemoryDisk();
  await append(await open(other), 1, ["another shard's"]);
  const foreigners = [other.content(path), disk.content(segmentPath(5)), Buffer.from("a note".repeat(50))];
  for (const foreign of foreigners.map((bytes) => Buffer.from(bytes))) {
    const copy = disk.afterCut({ unsynced: "kept" });
    copy.setContent(path, foreign);
    for (let start = 0; start < 2; start++) {
      const shard = await open(copy);
      assert.equal([shard.damage()[0].stream, shard.damage()[0].from, shard.damage()[0].to], [1, 0, 2]);
      await shard.settled();
      await shard.close();
      assert.not.ok(copy.paths().includes(path), "nothing lives in it");
      assert.equal(copy.content(path.replace(".log", ".damaged")), foreign);
    }
  }
});

test("a mark that cannot be written stays behind and hurts no commit", async () => {
  const disk = new MemoryDisk();
  const reports: string[] = [];
  disk.before = (call) => {
    if (call.op === "write" && call.path === mark) throw diskError("ENOSPC");
  };
  const shard = await open(disk, reports);
  await append(shard, 1, ["a"]);
  await append(shard, 1, ["b"]);
  assert.match(reports.join("\n"), /durable stays behind what is durable: .*ENOSPC/);
  await shard.close();
  disk.before = () => undefined;
  assert.equal(await allPayloads(await open(disk), 1), ["0:a", "1:b"]);
});

test.run();
