// One thing goes wrong at a time: a torn tail, a flipped byte, a write or a sync that fails, a full disk.

import { suite } from "uvu";
import * as assert from "uvu/assert";
import { openLogStore } from "../../src/store/log/log-store.ts";
import { markPath } from "../../src/store/log/mark.ts";
import type { ShardLog } from "../../src/store/log/shard-log.ts";
import { StoreError } from "../../src/store/store.ts";
import { allPayloads, append, block, commitOf, dump, payloads } from "../support/store-blocks.ts";
import { type Call, diskError, MemoryDisk, memoryTable } from "../support/store-files.ts";

const test = suite("log: faults");
const segmentPath = (number: number) => `/data/shard-0/${String(number).padStart(12, "0")}.log`;

async function open(disk: MemoryDisk, segmentBytes = 64 * 1024): Promise<ShardLog> {
  const store = openLogStore({ path: "/data", files: disk, segmentBytes, openTable: async () => memoryTable() });
  return (await store.openShard(0)) as ShardLog;
}

async function failure(promise: Promise<unknown>): Promise<StoreError> {
  try {
    await promise;
  } catch (error) {
    assert.instance(error, StoreError);
    return error as StoreError;
  }
  throw new Error("expected a StoreError");
}

/** A copy of the disk as it is now, everything synced. */
const copyOf = (disk: MemoryDisk) => disk.afterCut({ unsynced: "kept" });

/** Three commits in one segment: where each record begins and ends in the file. */
async function threeRecords(): Promise<{ disk: MemoryDisk; path: string; edges: number[] }> {
  const disk = new MemoryDisk();
  const shard = await open(disk);
  const path = segmentPath(1);
  const edges = [disk.content(path).length];
  for (const name of ["a", "b", "c"]) {
    const blocks = [
      block({ stream: 1, first: shard.head(1)?.end ?? 0, events: [`${name}1`, `${name}2`] }),
      block({ stream: 2, first: shard.head(2)?.end ?? 0, events: [`${name}3`] }),
    ];
    await shard.commit(commitOf({ blocks, puts: [["last", Buffer.from(name)]] }));
    edges.push(disk.content(path).length);
  }
  await shard.close();
  return { disk, path, edges };
}

test("a commit is one write and one fdatasync, and then says so in the mark", async () => {
  const disk = new MemoryDisk();
  const shard = await open(disk, 64 * 1024 * 1024);
  await append(shard, 1, ["first"]);
  const before = disk.calls.length;
  for (let i = 0; i < 20; i++) {
    const blocks = [1, 2, 3].map((stream) =>
      block({ stream, first: shard.head(stream)?.end ?? 0, events: ["a", "b"] }),
    );
    await shard.commit(commitOf({ blocks, puts: [["k", Buffer.from("v")]], trims: [[1, i]] }));
  }
  await shard.settled();
  const ops = disk.calls.slice(before).map(({ op, path }) => (path.endsWith("/durable") ? `${op} mark` : op));
  assert.equal(ops, Array.from({ length: 20 }, () => ["write", "datasync", "write mark"]).flat());
  await shard.close();
});

test("a segment and its name are synced before its first commit is acknowledged", async () => {
  const disk = new MemoryDisk();
  const shard = await open(disk, 1024);
  for (let i = 0; i < 30; i++) {
    await append(shard, 1, [`event ${i}`, "x".repeat(100)]);
    const next = await open(disk.afterCut({ unsynced: "lost" }), 1024);
    assert.is((await allPayloads(next, 1)).length, 2 * (i + 1));
    await next.close();
  }
  await shard.close();
});

test("a tail that is torn at any byte, and was not acknowledged, is an unfinished write: cut, not reported, and the rest is whole", async () => {
  const { disk, path, edges } = await threeRecords();
  const [, , second, third] = edges;
  await disk.unlink(markPath("/data/shard-0"));
  for (let at = second; at < third; at++) {
    for (const rest of ["cut off", "zero"] as const) {
      const torn = copyOf(disk);
      const content = Buffer.from(torn.content(path));
      // Padding at the end of a record is not part of what it says.
      if (rest === "zero" && content.subarray(at).every((byte) => byte === 0)) continue;
      torn.setContent(path, rest === "zero" ? content.fill(0, at) : content.subarray(0, at));
      const shard = await open(torn);
      const about = `${rest} at ${at}`;
      const whole = rest === "cut off" && content.subarray(at, third).every((byte) => byte === 0);
      const events = ["0:a1", "1:a2", "2:b1", "3:b2", ...(whole ? ["4:c1", "5:c2"] : [])];
      assert.equal(await allPayloads(shard, 1), events, about);
      assert.equal(shard.damage(), [], about);
      await append(shard, 1, ["new"]);
      const last = `${events.length}:new`;
      const next = await open(torn);
      assert.equal(await allPayloads(next, 1), [...events, last], about);
      assert.is(Buffer.from(next.entry("last") ?? []).toString(), whole ? "c" : "b", about);
    }
  }
});

test("a flipped byte in the middle is damage: reported, its offsets kept, everything else whole", async () => {
  const { disk, path, edges } = await threeRecords();
  const [, first, second] = edges;
  let lostBlocks = 0;
  for (let at = first; at < second; at++) {
    const spoiled = copyOf(disk);
    const content = Buffer.from(spoiled.content(path));
    content[at] ^= 0x40;
    spoiled.setContent(path, content);
    const about = `byte ${at}`;
    const shard = await open(spoiled);
    const padding = shard.damage().length === 0;
    if (padding) assert.ok(second - at <= 8, `${about} went unnoticed`);
    for (const [stream, all] of [
      [1, ["0:a1", "1:a2", "2:b1", "3:b2", "4:c1", "5:c2"]],
      [2, ["0:a3", "1:b3", "2:c3"]],
    ] as const) {
      const found = await allPayloads(shard, stream);
      const lost = all.filter((event) => !found.includes(event));
      assert.equal(
        found,
        all.filter((event) => !lost.includes(event)),
        about,
      );
      assert.ok(
        lost.every((event) => event.includes(":b")),
        `${about}: ${lost}`,
      );
      assert.is(shard.head(stream)?.end, all.length, about);
      const reported = shard.damage().filter((damage) => damage.stream === stream);
      if (lost.length > 0) {
        lostBlocks++;
        const from = Number(lost[0].split(":")[0]);
        assert.ok(
          reported.some((damage) => damage.from === from && damage.to === from + lost.length),
          about,
        );
      } else assert.equal(reported, [], about);
    }
    assert.is(Buffer.from(shard.entry("last") ?? []).toString(), "c", about);
    // Offsets go on behind the gap, the bytes stay, and the report does too.
    const reports = shard.damage().map(({ stream, from, to }) => [stream, from, to]);
    await append(shard, 1, ["new"]);
    await shard.close();
    const next = await open(spoiled);
    assert.is((await allPayloads(next, 1)).at(-1), "6:new", about);
    assert.equal(
      next
        .damage()
        .map(({ stream, from, to }) => [stream, from, to])
        .sort(),
      reports.sort(),
      about,
    );
    assert.equal(spoiled.content(path), content, about);
    if (!padding) {
      const { blocks, next: goOn } = await next.read(1, { from: 2, to: 4, bytesMax: 1 });
      assert.ok(goOn >= 4 && payloads(blocks).every((event) => event.includes(":b")), about);
    }
  }
  assert.ok(lostBlocks > 50);
});

test("the last record of an older segment is known to be acknowledged: bad, it is damage and no unfinished write", async () => {
  const { disk, path, edges } = await threeRecords();
  const shard = await open(disk);
  await append(shard, 1, ["d"]);
  await shard.close();
  // The third record was in doubt and stands in the next segment as well; here the second one is the last that counts.
  const content = Buffer.from(disk.content(path).subarray(0, edges[2]));
  content[content.lastIndexOf('"b1"')] ^= 1;
  disk.setContent(path, content);
  const next = await open(disk);
  assert.equal(await allPayloads(next, 1), ["0:a1", "1:a2", "4:c1", "5:c2", "6:d"]);
  assert.equal(await allPayloads(next, 2), ["0:a3", "1:b3", "2:c3"]);
  const [damage, ...more] = next.damage();
  assert.equal([damage.stream, damage.from, damage.to, more.length], [1, 2, 4, 0]);
  assert.match(damage.place, /^000000000001\.log /);
});

test("several records lost at once: streams that nobody saw again skip as many offsets as could have been there", async () => {
  const disk = new MemoryDisk();
  const shard = await open(disk);
  const path = segmentPath(1);
  await append(shard, 1, ["a"]);
  await append(shard, 2, ["kept"]);
  const from = disk.content(path).length;
  await append(shard, 2, ["lost 1"]);
  await append(shard, 1, ["lost 2"]);
  await append(shard, 3, ["lost 3"]);
  const to = disk.content(path).length;
  await append(shard, 3, ["c"]);
  await append(shard, 1, ["d"]);
  await append(shard, 1, ["e"]);
  await shard.close();
  disk.setContent(path, Buffer.from(disk.content(path)).fill(0xee, from, to));
  const next = await open(disk);
  assert.equal(await allPayloads(next, 1), ["0:a", "2:d", "3:e"]);
  assert.equal(await allPayloads(next, 3), ["1:c"]);
  assert.equal(await allPayloads(next, 2), ["0:kept"]);
  const end = next.head(2)?.end ?? 0;
  assert.ok(end >= 2, `stream 2 would give offset ${end} again`);
  assert.ok(next.damage().some((damage) => damage.stream === 2 && damage.from === 1 && damage.to === end));
  await append(next, 2, ["new"]);
  assert.equal(await allPayloads(next, 2), ["0:kept", `${end}:new`]);
});

test("a record that is lost from its middle on, and the one behind it: the first one's streams keep their offsets", async () => {
  const disk = new MemoryDisk();
  const shard = await open(disk);
  const path = segmentPath(1);
  for (const stream of [1, 2]) await append(shard, stream, ["a"]);
  const from = disk.content(path).length;
  await shard.commit(commitOf({ blocks: [1, 2].map((stream) => block({ stream, first: 1, events: ["b"] })) }));
  const to = disk.content(path).length;
  for (const event of ["c", "d", "e"]) await append(shard, 1, [event]);
  await shard.close();
  const content = Buffer.from(disk.content(path));
  // From the event of stream 1 into the next head.
  disk.setContent(path, content.fill(0, content.indexOf('"b"', from), to + 8));
  const next = await open(disk);
  assert.equal(await allPayloads(next, 2), ["0:a"]);
  const end = next.head(2)?.end ?? 0;
  assert.ok(end >= 2, `stream 2 would give offset ${end} again`);
  assert.equal((await allPayloads(next, 1)).slice(-2), ["3:d", "4:e"]);
  await next.close();
});

test("the snapshot of the newest segment may be unreadable: the one before it tells the same", async () => {
  const disk = new MemoryDisk();
  const shard = await open(disk, 1024);
  for (let i = 0; i < 12; i++) {
    await append(shard, i % 2, [`event ${i}`, "x".repeat(60)]);
    await shard.commit(commitOf({ puts: [[`k${i}`, Buffer.from("v")]] }));
  }
  await append(shard, 5, ["in the newest"]);
  const expected = JSON.stringify(await dump(shard));
  await shard.close();
  const newest = disk.paths().findLast((path) => path.endsWith(".log")) ?? "";
  const content = Buffer.from(disk.content(newest));
  content[100] ^= 1;
  disk.setContent(newest, content);
  const next = await open(disk, 1024);
  const found = (await dump(next)) as { streams: Record<string, { end: number }>; entries: object };
  const wanted = JSON.parse(expected) as typeof found;
  assert.ok(next.damage().length > 0);
  assert.equal(Object.keys(found.streams), Object.keys(wanted.streams));
  for (const stream of Object.keys(wanted.streams)) assert.is(found.streams[stream].end, wanted.streams[stream].end);
});

test("a shard without any readable snapshot is refused, not taken for a new one", async () => {
  const { disk, path } = await threeRecords();
  const content = Buffer.from(disk.content(path));
  content[20] ^= 1;
  disk.setContent(path, content);
  const error = await failure(open(disk));
  assert.is(error.code, "EDAMAGED");
  assert.equal(disk.content(path), content);
});

test("a payload that looks like a record never becomes one", async () => {
  const disk = new MemoryDisk();
  const shard = await open(disk);
  const path = segmentPath(1);
  await append(shard, 1, ["a"]);
  // Another shard's records: segment, epoch, sequence and checksums are just what would follow here. Only the lineage is not.
  const other = new MemoryDisk();
  const stranger = await open(other);
  await append(stranger, 1, ["x"]);
  const from = other.content(path).length;
  for (const name of ["y", "z"]) await append(stranger, 1, [name]);
  const fake = other.content(path).subarray(from);
  for (const junk of [0, 64]) {
    const tampered = copyOf(disk);
    tampered.setContent(path, Buffer.concat([disk.content(path), Buffer.alloc(junk, 7), fake]));
    const next = await open(tampered);
    assert.equal(await allPayloads(next, 1), ["0:a"]);
    assert.equal(next.damage(), []);
  }
});

for (const [op, code] of [
  ["write", "EIO"],
  ["datasync", "EIO"],
  ["datasync", "ENOSPC"],
] as const) {
  test(`a ${op} that fails with ${code} breaks the shard, and the next one goes on in a new segment`, async () => {
    const disk = new MemoryDisk();
    const shard = await open(disk);
    await append(shard, 1, ["a"]);
    await append(shard, 1, ["b"]);
    disk.before = (call) => {
      if (call.op === op && call.path.endsWith(".log")) throw diskError(code);
    };
    const error = await failure(append(shard, 1, ["c"]));
    assert.equal([error.state, error.code], ["broken", code]);
    disk.before = () => undefined;
    assert.is((await failure(append(shard, 1, ["d"]))).state, "broken");
    assert.equal(await allPayloads(shard, 1), ["0:a", "1:b"], "not acknowledged, not seen");
    await shard.close();
    const failed = Buffer.from(disk.content(segmentPath(1)));
    const next = await open(disk);
    const found = await allPayloads(next, 1);
    assert.equal(found, op === "write" ? ["0:a", "1:b"] : ["0:a", "1:b", "2:c"]);
    await append(next, 1, ["e"]);
    assert.equal(disk.content(segmentPath(1)), failed, "nothing is written to the file whose sync failed");
    // The pages of the failed sync may never have reached the disk. What the new shard showed is durable all the same.
    const cut = disk.afterCut({ unsynced: "lost" });
    if (op === "datasync") assert.ok(cut.content(segmentPath(1)).length < failed.length, "the model does lose them");
    assert.equal(await allPayloads(await open(cut), 1), [...found, `${found.length}:e`]);
  });
}

test("a full disk while the next segment is prepared: commits go on while there is room, then are refused, then go on", async () => {
  const disk = new MemoryDisk();
  const shard = await open(disk, 4096);
  let full = true;
  const size = (call: Call) => disk.content(call.path).length;
  disk.before = (call) => {
    // What is there can be written over; nothing new fits.
    if (full && call.op === "create") throw diskError("ENOSPC");
    if (full && call.op === "write" && call.path.endsWith(".log") && size(call) + (call.bytes ?? 0) > 3000)
      throw diskError("ENOSPC");
  };
  const stored: string[] = [];
  let refused: StoreError | undefined;
  for (let i = 0; refused === undefined; i++) {
    await append(shard, 1, [`e${i}`]).then(
      () => stored.push(`${i}:e${i}`),
      (error: StoreError) => (refused = error),
    );
  }
  assert.equal([refused.state, refused.code], ["refused", "ENOSPC"]);
  assert.ok(stored.length > 10);
  for (let i = 0; i < 3; i++) assert.is((await failure(append(shard, 1, ["no"]))).code, "ENOSPC");
  assert.equal(await allPayloads(shard, 1), stored);
  full = false;
  for (let i = stored.length; i < 60; i++) {
    await append(shard, 1, [`e${i}`]);
    stored.push(`${i}:e${i}`);
  }
  await shard.settled();
  assert.equal(await allPayloads(shard, 1), stored);
  await shard.close();
  assert.equal(await allPayloads(await open(disk, 4096), 1), stored);
});

test("a disk that is full when a segment is full: refused with nothing stored, and no file is left behind", async () => {
  const disk = new MemoryDisk();
  const shard = await open(disk, 1024);
  await append(shard, 1, ["x".repeat(700)]);
  await shard.settled();
  const files = disk.paths();
  for (const op of ["create", "write"] as const) {
    disk.before = (call) => {
      if (call.op === op || (call.op === "rename" && op === "create")) throw diskError("ENOSPC");
    };
    const error = await failure(append(shard, 1, ["y".repeat(700)]));
    assert.equal([error.state, error.code], ["refused", "ENOSPC"]);
    disk.before = () => undefined;
    assert.equal(
      disk.paths().filter((path) => path.endsWith(".log")),
      files.filter((path) => path.endsWith(".log")),
    );
  }
  await append(shard, 1, ["z"]);
  assert.equal(
    (await allPayloads(shard, 1)).map((event) => event.slice(0, 3)),
    ["0:x", "1:z"],
  );
  await shard.close();
});

test("a shard that cannot be opened says so and can be opened later", async () => {
  const { disk } = await threeRecords();
  disk.before = (call) => {
    if (call.op === "write") throw diskError("ENOSPC");
  };
  const error = await failure(open(disk));
  assert.is(error.code, "ENOSPC");
  disk.before = () => undefined;
  assert.is((await allPayloads(await open(disk), 1)).length, 6);
});

test("a read that fails is refused and works later; a block that rots after it was indexed is skipped and reported", async () => {
  const disk = new MemoryDisk();
  const shard = await open(disk);
  for (const name of ["a", "b", "c"]) await append(shard, 1, [name]);
  disk.before = (call) => {
    if (call.op === "read") throw diskError("EIO");
  };
  assert.is((await failure(shard.read(1, { from: 0, to: 9, bytesMax: 1 }))).code, "EIO");
  disk.before = () => undefined;
  const path = segmentPath(1);
  const content = Buffer.from(disk.content(path));
  content[content.lastIndexOf('"b"') + 1] ^= 1;
  disk.setContent(path, content);
  assert.equal(await allPayloads(shard, 1), ["0:a", "2:c"]);
  const [damage] = shard.damage();
  assert.equal([damage.shard, damage.stream, damage.from, damage.to], [0, 1, 1, 2]);
  await append(shard, 1, ["d"]);
  assert.equal(await allPayloads(shard, 1), ["0:a", "2:c", "3:d"]);
  await shard.close();
});

test("a damaged segment is set aside when nothing in it lives, never deleted", async () => {
  const { disk, path, edges } = await threeRecords();
  const content = Buffer.from(disk.content(path));
  content[edges[2] - 20] ^= 1;
  disk.setContent(path, content);
  const shard = await open(disk, 1024);
  assert.ok(shard.damage().length > 0);
  await shard.commit(
    commitOf({
      trims: [
        [1, 6],
        [2, 3],
      ],
    }),
  );
  for (let i = 0; i < 20; i++) await append(shard, 1, [`later ${i}`, "x".repeat(80)]);
  await shard.settled();
  await append(shard, 1, ["end"]);
  await shard.settled();
  assert.not.ok(disk.paths().includes(path));
  assert.equal(disk.content(path.replace(".log", ".damaged")), content);
  await shard.close();
});

test("a foreign file in the place of an older segment is set aside, never removed", async () => {
  const { disk, path } = await threeRecords();
  for (let start = 0; start < 2; start++) {
    const shard = await open(disk);
    await append(shard, 1, [`start ${start}`]);
    await shard.settled();
    await shard.close();
  }
  const other = new MemoryDisk();
  await append(await open(other), 1, ["another shard's"]);
  const foreigners = [
    other.content(path),
    disk.content(segmentPath(3)),
    Buffer.from("a note".repeat(50)),
    Buffer.alloc(0),
  ];
  for (const foreign of foreigners.map((bytes) => Buffer.from(bytes))) {
    const copy = copyOf(disk);
    copy.setContent(path, foreign);
    const shard = await open(copy);
    assert.ok(shard.damage().some(({ stream, from }) => stream === 1 && from === 0));
    for (let i = 0; i < 3; i++) {
      await append(shard, 1, ["x".repeat(70_000)]);
      await shard.settled();
    }
    assert.not.ok(copy.paths().includes(path), "nothing lives in it");
    assert.equal(copy.content(path.replace(".log", ".damaged")), foreign);
    await shard.close();
  }
});

test("a commit and a state larger than a segment", async () => {
  const disk = new MemoryDisk();
  const shard = await open(disk, 1024);
  await shard.commit(commitOf({ puts: [["big", Buffer.alloc(5000, 1)]] }));
  await append(shard, 1, ["x".repeat(9000)]);
  for (let i = 0; i < 40; i++) await append(shard, 1, [`e${i}`, "y".repeat(200)]);
  await shard.settled();
  const expected = JSON.stringify(await dump(shard));
  assert.ok(
    disk.paths().filter((path) => path.endsWith(".log")).length < 10,
    "a large state does not begin a segment per commit",
  );
  await shard.close();
  const next = await open(disk, 1024);
  assert.is(JSON.stringify(await dump(next)), expected);
});

test("a commit in doubt is not taken for certain because the start after it was cut off while it wrote", async () => {
  const disk = new MemoryDisk();
  const shard = await open(disk);
  await append(shard, 1, ["certain"]);
  disk.before = ({ op, path }) => {
    if (op === "datasync" && path === segmentPath(1)) throw diskError("EIO");
  };
  await failure(append(shard, 1, ["in doubt"]));
  disk.before = () => undefined;
  await shard.close();
  // What the next start would write first; a process that was killed had written all but the end of it.
  const honest = copyOf(disk);
  await (await open(honest)).close();
  const snapshot = honest.content(segmentPath(2));
  const half = await disk.create(segmentPath(2));
  await half.write(snapshot.subarray(0, snapshot.length - 40), 0);
  await half.close();

  const next = await open(disk);
  const found = await allPayloads(next, 1);
  assert.equal(found, ["0:certain", "1:in doubt"]);
  await next.close();
  // Whoever has read it must find it again, also after a power cut: a sync that failed is not made good by a later one.
  const later = await open(disk.afterCut({ unsynced: "lost" }));
  assert.equal(await allPayloads(later, 1), found);
  assert.equal(later.damage(), []);
  await later.close();
});

test.run();
