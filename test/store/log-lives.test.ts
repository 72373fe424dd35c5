// A shard that lives several times and is cut off each time, also while it starts: by a death, a power cut of any kind, or a disk that is
// full now and then. What was acknowledged is there, what was under way is there whole or not at all, and nothing is called damage.

import { suite } from "uvu";
import * as assert from "uvu/assert";
import { openLogStore } from "../../src/store/log/log-store.ts";
import type { ShardLog } from "../../src/store/log/shard-log.ts";
import { StoreError, type Trim } from "../../src/store/store.ts";
import { Dice } from "../support/dice.ts";
import { allPayloads, block, commitOf } from "../support/store-blocks.ts";
import { type Cut, diskError, MemoryDisk, memoryTable } from "../support/store-files.ts";

const test = suite("log: lives");
const streams = [1, 2, 3];
const lives = 8;
const runs = 200;

/** What a shard holds: the events of each stream, the first of them that was not trimmed, and how many commits there were. */
interface Model {
  readonly events: readonly (readonly string[])[];
  readonly starts: readonly number[];
  readonly commits: number;
}

const empty: Model = { events: [[], [], []], starts: [0, 0, 0], commits: -1 };

async function held(shard: ShardLog): Promise<Model> {
  const all = await Promise.all(streams.map((stream) => allPayloads(shard, stream)));
  const heads = streams.map((stream) => shard.head(stream) ?? { start: 0, end: 0 });
  return {
    events: all.map((events, i) => [
      ...events.filter((event) => Number.parseInt(event, 10) >= heads[i].start),
      `${heads[i].end} end`,
    ]),
    starts: heads.map(({ start }) => start),
    commits: Number(Buffer.from(shard.entry("commits") ?? Buffer.from("-1")).toString()),
  };
}

/** The model in the same form. */
function expected({ events, starts, commits }: Model): Model {
  const named = events.map((list, i) => [
    ...list.map((event, at) => `${at}:${event}`).slice(starts[i]),
    `${list.length} end`,
  ]);
  return { events: named, starts, commits };
}

class Life {
  /** What was acknowledged, and what it is with the commit under way. */
  sure = empty;
  perhaps: Model | undefined;
  disk = new MemoryDisk();
  private readonly dice: Dice;
  private readonly segmentBytes: number;

  constructor(dice: Dice) {
    this.dice = dice;
    this.segmentBytes = dice.pick([1024, 2048, 4096, 16_384]);
  }

  async live(): Promise<void> {
    const { dice, disk } = this;
    disk.cutAt = dice.below(6) === 0 ? Number.POSITIVE_INFINITY : disk.step + 1 + dice.below(dice.pick([12, 60]));
    const full = dice.below(4) === 0;
    disk.before = ({ op }) => {
      if (full && (op === "write" || op === "create") && dice.below(12) === 0) throw diskError("ENOSPC");
    };
    let shard: ShardLog | undefined;
    try {
      shard = await this.open();
      assert.equal(shard.damage(), []);
      const found = await held(shard);
      if (this.perhaps !== undefined && found.commits === this.perhaps.commits) this.sure = this.perhaps;
      this.perhaps = undefined;
      assert.equal(found, expected(this.sure));
      for (let left = dice.below(25); left > 0; left--) await this.commit(shard);
    } catch (error) {
      const code = (error as { code?: string }).code ?? "";
      if (!["EPOWER", "ENOSPC"].includes(code)) throw error;
    }
    await shard?.close().catch(() => undefined);
    const cuts: Cut[] = [
      { unsynced: "lost" },
      { unsynced: "kept" },
      { unsynced: "torn", at: dice.below(4000) },
      { unsynced: "scattered", seed: dice.below(1_000_000) },
    ];
    this.disk = disk.afterCut(dice.pick(cuts), dice.below(disk.pendingNameCount + 1));
  }

  private async open(): Promise<ShardLog> {
    const { disk: files, segmentBytes } = this;
    const store = openLogStore({ path: "/data", files, segmentBytes, openTable: async () => memoryTable() });
    return (await store.openShard(0)) as ShardLog;
  }

  private async commit(shard: ShardLog): Promise<void> {
    const { dice, sure } = this;
    const events = sure.events.map((list) => [...list]);
    const starts = [...sure.starts];
    const commits = sure.commits + 1;
    const blocks: Uint8Array[] = [];
    for (const stream of streams) {
      if (dice.below(2) === 0) continue;
      const bytes = dice.below(dice.pick([100, 100, 100, 1500]));
      const more = Array.from(
        { length: 1 + dice.below(3) },
        (_, n) => `${commits}.${n}${dice.pick(["x", "\0"]).repeat(bytes)}`,
      );
      blocks.push(block({ stream, first: events[stream - 1].length, events: more }));
      events[stream - 1].push(...more);
    }
    const trims: Trim[] = [];
    const trimmed = dice.below(2 * streams.length);
    if (trimmed < streams.length) {
      const end = sure.events[trimmed].length;
      const start = starts[trimmed] + dice.below(end - starts[trimmed] + 1);
      if (start > starts[trimmed]) trims.push([streams[trimmed], start]);
      starts[trimmed] = start;
    }
    this.perhaps = { events, starts, commits };
    try {
      await shard.commit(commitOf({ blocks, trims, puts: [["commits", Buffer.from(`${commits}`)]] }));
      this.sure = this.perhaps;
    } catch (error) {
      if (!(error instanceof StoreError && error.state === "refused")) throw error;
    }
    this.perhaps = undefined;
    if (dice.below(5) === 0) await shard.settled();
  }
}

test("what was acknowledged outlives every one of them", async () => {
  let seen = 0;
  for (let seed = 1; seed <= runs; seed++) {
    const life = new Life(new Dice(seed));
    try {
      for (let n = 0; n < lives; n++) await life.live();
    } catch (error) {
      console.log(`seed ${seed}`);
      throw error;
    }
    seen += life.sure.commits + 1;
  }
  console.log(`measured: ${runs * lives} lives, ${seen} commits acknowledged`);
  assert.ok(seen > 10 * runs);
});

test.run();
