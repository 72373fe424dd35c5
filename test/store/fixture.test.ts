// A folder that each released format wrote opens and holds exactly what was put there. To make the folder of a new version:
// NARTHEX_FIXTURE=test/store/fixtures/v2 node dist-test/store-fixture.test.js

import { cpSync, mkdirSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { suite } from "uvu";
import * as assert from "uvu/assert";
import { realClock } from "../../src/runtime/clock.ts";
import { openFolder } from "../../src/store/log/folder.ts";
import { openLogStore } from "../../src/store/log/log-store.ts";
import type { ShardLog } from "../../src/store/log/shard-log.ts";
import { allPayloads, append, block, commitOf } from "../support/store-blocks.ts";

const test = suite("log: folders of every release");
const fixtures = join(process.cwd(), "test/store/fixtures");
const segmentBytes = 1024;

/** Footers, a rewritten segment, a removed stream, a start that moved, keys, ids, entries, two shards. */
async function make(path: string): Promise<void> {
  rmSync(path, { recursive: true, force: true });
  mkdirSync(path, { recursive: true });
  const folder = await openFolder({ path, workers: 2, clock: realClock() });
  const store = openLogStore({ path, segmentBytes });
  const shard = (await store.openShard(0)) as ShardLog;
  for (let i = 0; i < 12; i++) {
    const first = shard.head(64)?.end ?? 0;
    const events = [
      { payload: `one ${i}`, key: `k${i % 3}`, id: `id-${i}`, ts: 500 + i, meta: '{"tags":["t"]}' },
      `plain ${i}`,
    ];
    const blocks = [block({ stream: 64, first, storedAt: 1000 + i, events })];
    if (i < 6) blocks.push(block({ stream: 65, first: i, events: ["x".repeat(120)] }));
    if (i < 3) blocks.push(block({ stream: 66, first: i, events: ["gone"] }));
    await shard.commit(commitOf({ blocks, puts: [[`cursor/${i % 2}`, Buffer.from(`at ${i}`)]] }));
    await shard.settled();
  }
  await shard.commit(
    commitOf({
      puts: [["cursor/0", null]],
      trims: [
        [65, 5],
        [66, null],
        [64, 3],
      ],
    }),
  );
  await shard.settled();
  await append(shard, 64, ["last"], 2000);
  await shard.settled();
  await shard.close();
  const other = await store.openShard(1);
  await append(other, 128, ["in the other shard"]);
  await other.close();
  await store.close();
  await folder.close();
  // The lock belongs to a process, and the derived index is made again.
  for (const name of readdirSync(path)) if (name.startsWith("lock.")) rmSync(join(path, name));
  for (const name of ["shard-0/derived", "shard-1/derived"]) rmSync(join(path, name), { recursive: true, force: true });
}

async function expectContent(path: string): Promise<void> {
  const folder = await openFolder({ path, workers: 1, clock: realClock() });
  assert.is(folder.shards, 2);
  const store = openLogStore({ path, segmentBytes });
  const shard = await store.openShard(0);
  assert.equal(shard.damage(), []);
  assert.equal([...shard.streams()], [64, 65]);
  const all = Array.from({ length: 12 }, (_, i) => [`${2 * i}:one ${i}`, `${2 * i + 1}:plain ${i}`]).flat();
  assert.equal(await allPayloads(shard, 64), [...all.slice(2), "24:last"]);
  assert.equal(await allPayloads(shard, 65), [`5:${"x".repeat(120)}`]);
  const { start, end, lastStoredAt } = shard.head(64) ?? {};
  assert.equal([start, end, lastStoredAt], [3, 25, 2000]);
  assert.equal(
    [...shard.entries("")].map(([key, value]) => [key, Buffer.from(value).toString()]),
    [["cursor/1", "at 11"]],
  );
  assert.is(await shard.findId(64, "id-7"), 14);
  assert.is(await shard.findId(64, "id-1"), undefined);
  assert.is(await shard.findTs(64, 505), 3);
  assert.equal(await shard.latest(64, { keys: ["k2"] }), [{ key: "k2", offset: 22 }]);
  const { blocks } = await shard.read(64, { from: 22, to: 23, bytesMax: 1 });
  assert.equal(blocks[0].pack.extension(0), { key: "k2", id: "id-11", ts: 511, meta: '{"tags":["t"]}' });
  await append(shard, 64, ["goes on"], 2001);
  assert.is((await allPayloads(shard, 64)).at(-1), "25:goes on");
  const other = await store.openShard(1);
  assert.equal(await allPayloads(other, 128), ["0:in the other shard"]);
  await store.close();
  await folder.close();
}

const wanted = process.env.NARTHEX_FIXTURE;
if (wanted !== undefined) await make(wanted);

for (const version of readdirSync(fixtures)) {
  test(`${version} opens and holds what it held`, async () => {
    const path = mkdtempSync(join(tmpdir(), "narthex-fixture-"));
    cpSync(join(fixtures, version), path, { recursive: true });
    await expectContent(path);
    rmSync(path, { recursive: true });
  });
}

test("what this version writes has the same content, with every kind of record in it", async () => {
  const path = mkdtempSync(join(tmpdir(), "narthex-fixture-"));
  await make(path);
  await expectContent(path);
  rmSync(path, { recursive: true });
});

test.run();
