// A process that takes a folder and keeps it: prints "open <shards>", or the code and message of the refusal.

import { realClock } from "../../src/runtime/clock.ts";
import { openFolder } from "../../src/store/log/folder.ts";
import { StoreError } from "../../src/store/store.ts";

const [path, workers] = process.argv.slice(2);
try {
  const folder = await openFolder({ path, workers: Number(workers), clock: realClock() });
  console.log(`open ${folder.shards}`);
  process.stdin.resume();
  process.stdin.on("end", async () => {
    await folder.close();
    process.exit(0);
  });
} catch (error) {
  if (!(error instanceof StoreError)) throw error;
  console.log(`refused ${error.code} ${error.message}`);
}
