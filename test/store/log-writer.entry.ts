// Commits events to shard 0 of a folder until it is killed, and prints each offset once it is acknowledged. Runs as a process
// or as a thread.

import { writeSync } from "node:fs";
import { parentPort, workerData } from "node:worker_threads";
import { openLogStore } from "../../src/store/log/log-store.ts";
import { append } from "../support/store-blocks.ts";

const path: string = parentPort === null ? process.argv[2] : workerData;
const tell = (text: string) => (parentPort === null ? writeSync(1, `${text}\n`) : parentPort.postMessage(text));
const shard = await openLogStore({ path, segmentBytes: 32 * 1024 }).openShard(0);
for (;;) {
  const end = shard.head(1)?.end ?? 0;
  await append(shard, 1, [{ payload: `event ${end}`, id: `id-${end}`, key: `key-${end % 10}` }, "x".repeat(end % 500)]);
  tell(String(end));
}
