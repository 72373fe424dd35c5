// A process that takes a folder, on a clock that runs ten times as fast, as if it ran at the place given, and with "write" commits
// to shard 0 without end. Says what happens to it, a line each: waits, open, acked <offset>, failed <code>, lost, refused.

import { writeSync } from "node:fs";
import { realClock } from "../../src/runtime/clock.ts";
import { openFolder } from "../../src/store/log/folder.ts";
import type { LockClock, Place } from "../../src/store/log/lock.ts";
import { openLogStore } from "../../src/store/log/log-store.ts";
import { StoreError } from "../../src/store/store.ts";
import { append } from "../support/store-blocks.ts";

const [path, place, work] = process.argv.slice(2);
const real = realClock();
const clock: LockClock = { after: (ms, run, options) => real.after(ms / 10, run, options) };
const say = (line: string) => writeSync(1, `${line}\n`);

try {
  const folder = await openFolder({
    path,
    workers: 1,
    clock,
    report: (message) => say(`waits ${message}`),
    lost: (error) => say(`lost ${error.code} ${error.message}`),
    ...(place === "here" ? {} : { place: JSON.parse(place) as Place }),
  });
  say("open");
  process.stdin.resume();
  process.stdin.on("end", () => void folder.close().then(() => process.exit(0)));
  if (work === "write") await write(folder.lock);
} catch (error) {
  if (!(error instanceof StoreError)) throw error;
  say(`refused ${error.code} ${error.message}`);
}

async function write(lock: string): Promise<void> {
  const shard = await openLogStore({ path, segmentBytes: 32 * 1024, lock }).openShard(0);
  for (;;) {
    const end = shard.head(1)?.end ?? 0;
    try {
      await append(shard, 1, [`event ${end}`]);
    } catch (error) {
      say(`failed ${(error as StoreError).code}`);
      return;
    }
    say(`acked ${end}`);
  }
}
