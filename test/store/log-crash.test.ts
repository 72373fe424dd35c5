// The power is cut at every step of a workload that commits, rolls, trims, removes and rewrites. Whatever the disk makes of
// what was not synced, the next start finds every acknowledged commit byte for byte, the one in flight wholly or not at all,
// and goes on from there.

import { createHash } from "node:crypto";
import { suite } from "uvu";
import * as assert from "uvu/assert";
import { openLogStore } from "../../src/store/log/log-store.ts";
import type { ShardLog } from "../../src/store/log/shard-log.ts";
import { openMemoryStore } from "../../src/store/memory.ts";
import type { Commit } from "../../src/store/store.ts";
import { block, commitOf, dump } from "../support/store-blocks.ts";
import { type Cut, MemoryDisk, memoryTable } from "../support/store-files.ts";

const test = suite("log: power cuts");
const segmentBytes = 2048;

async function open(disk: MemoryDisk, shard = 0): Promise<ShardLog> {
  const store = openLogStore({ path: "/data", files: disk, segmentBytes, openTable: async () => memoryTable() });
  return (await store.openShard(shard)) as ShardLog;
}

/** Streams of different fates: 1 is trimmed all the time, 2 keeps everything, 3 is deleted, 4 is large. */
function script(): Commit[] {
  const ends = new Map<number, number>();
  const add = (stream: number, events: string[]) => {
    const first = ends.get(stream) ?? 0;
    ends.set(stream, first + events.length);
    return block({ stream, first, events, storedAt: 1000 + first });
  };
  const commits: Commit[] = [];
  for (let i = 0; i < 48; i++) {
    const blocks = [add(1, [`one-${i}`, "x".repeat(40 * (i % 5))])];
    if (i % 3 === 0) blocks.push(add(2, [`two-${i}`]));
    if (i < 6) blocks.push(add(3, [`three-${i}`]));
    if (i === 9) blocks.push(add(4, ["y".repeat(3000)]));
    const puts: Commit["puts"] = [
      [`cursor/${i % 3}`, Buffer.from(String(i))],
      ["once", i === 4 ? Buffer.from("here") : i === 12 ? null : Buffer.from(`v${i}`)],
    ];
    const trims: Commit["trims"][number][] = [];
    if (i > 3) trims.push([1, 2 * i - 4]);
    if (i === 8) trims.push([3, null]);
    commits.push(commitOf({ blocks, puts: [...puts], trims }));
  }
  return commits;
}

const commits = script();

/** What the shard holds after so many commits, by another implementation. */
async function statesOf(all: readonly Commit[]): Promise<string[]> {
  const shard = await openMemoryStore().openShard(0);
  const states = [JSON.stringify(await dump(shard))];
  for (const commit of all) {
    await shard.commit(commit);
    states.push(JSON.stringify(await dump(shard)));
  }
  return states;
}

const states = await statesOf(commits);

/** Runs the script from `from` on until it ends or the power goes off, and gives how many commits are acknowledged. */
async function run(disk: MemoryDisk, from: number): Promise<{ done: number; epoch: number }> {
  let done = from;
  let epoch = 0;
  try {
    const shard = await open(disk);
    epoch = shard.epoch;
    for (; done < commits.length; done++) {
      await shard.commit(commits[done]);
      // Now and then the background comes to its end, so that rewrites and removals are cut as well.
      if (done % 4 === 3) await shard.settled();
    }
    await shard.close();
  } catch (error) {
    if (!Number.isFinite(disk.cutAt)) throw error;
  }
  return { done, epoch };
}

/** A shard that was opened once: all runs that begin with it write the same bytes. */
async function openedOnce(): Promise<MemoryDisk> {
  const disk = new MemoryDisk();
  await (await open(disk)).close();
  return disk;
}

const opened = await openedOnce();

interface CutRun {
  readonly disk: MemoryDisk;
  readonly acked: number;
  readonly epoch: number;
}

/** At each step of the first open there is, then at each step of the workload: what was cut there, before anybody looks at it. */
async function allCutRuns(): Promise<CutRun[]> {
  const runs: CutRun[] = [];
  for (const begin of [() => new MemoryDisk(), () => opened.afterCut({ unsynced: "kept" })]) {
    const whole = begin();
    if (begin().paths().length === 0) await (await open(whole)).close();
    else await run(whole, 0);
    for (let step = 1; step <= whole.step; step++) {
      const disk = begin();
      disk.cutAt = step;
      const { done, epoch } = await run(disk, 0);
      runs.push({ disk, acked: done, epoch });
    }
  }
  return runs;
}

const cutRuns = await allCutRuns();

/** The states that were judged, each with what was acknowledged: many cuts leave the same. */
const judged = new Set<string>();

function isNew(disk: MemoryDisk, { acked, epoch }: CutRun): boolean {
  const hash = createHash("sha1").update(`${acked} ${epoch}`);
  for (const path of disk.paths()) hash.update(`${path} ${disk.content(path).length} `).update(disk.content(path));
  const name = hash.digest("hex");
  if (judged.has(name)) return false;
  judged.add(name);
  return true;
}

/** Opens what a cut left and says how many commits it holds; never fewer than were acknowledged, never more than were asked for. */
async function check(disk: MemoryDisk, acked: number, about: string): Promise<number> {
  const shard = await open(disk);
  const found = JSON.stringify(await dump(shard));
  const held = found === states[acked] ? acked : found === states[acked + 1] ? acked + 1 : -1;
  if (held < 0) assert.is(found, states[acked], about);
  assert.equal(shard.damage(), [], about);
  await shard.close();
  return held;
}

const cuts: readonly Cut[] = [
  { unsynced: "lost" },
  { unsynced: "kept" },
  { unsynced: "torn", at: 33 },
  { unsynced: "torn", at: 260 },
  { unsynced: "scattered", seed: 1 },
  { unsynced: "scattered", seed: 5 },
];

for (const cut of cuts) {
  test(`at every step, with what was not synced ${JSON.stringify(cut)}`, async () => {
    assert.ok(cutRuns.length > 250, `the workload has ${cutRuns.length} steps`);
    for (const [at, before] of cutRuns.entries()) {
      for (let names = 0; names <= before.disk.pendingNameCount; names++) {
        const about = `cut ${at}, ${names} names kept`;
        const left = before.disk.afterCut(cut, names);
        if (!isNew(left, before)) continue;
        const held = await check(left, before.acked, about);
        // And the rest of the script goes on from there, over one more start.
        const after = await run(left, held);
        assert.is(after.done, commits.length, about);
        assert.ok(after.epoch > before.epoch, about);
        assert.is(await check(left, commits.length, about), commits.length, about);
      }
    }
  });
}

test("and again while the next start recovers", async () => {
  for (let at = 2; at < cutRuns.length; at += 5) {
    const { disk, acked } = cutRuns[at];
    for (let second = 1; second <= 12; second++) {
      const cut: Cut = { unsynced: "scattered", seed: at };
      const left = disk.afterCut(cut, at % 2);
      left.cutAt = second;
      await open(left)
        .then((shard) => shard.settled())
        .catch(() => undefined);
      const about = `cuts ${at} and ${second}`;
      // What the first start kept it must keep, whether or not it came to tell anybody.
      await check(left.afterCut({ unsynced: second % 3 === 0 ? "kept" : "lost" }), acked, about);
      await check(left.afterCut({ unsynced: "torn", at: 100 }, 1), acked, about);
    }
  }
});

test("the workload does what it is for: segments are rolled, removed, rewritten and used again", async () => {
  const disk = new MemoryDisk();
  await run(disk, 0);
  const ops = (op: string, pattern: RegExp) =>
    disk.calls.filter((call) => call.op === op && pattern.test(call.path)).length;
  assert.ok(ops("rename", /\d\.log$/) > 3, "segments begin from a spare, or end in a rewrite");
  assert.ok(ops("create", /\.log\.tmp$/) > 0, "a rewrite");
  assert.ok(ops("unlink", /\.log$/) + ops("rename", /spare\.tmp$/) > 0, "a removal");
  assert.ok(judged.size > 800, `${judged.size} states were judged`);
  process.stdout.write(`measured: ${cutRuns.length} cuts left ${judged.size} different states\n`);
});

test.run();
