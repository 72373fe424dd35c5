// A process that fills the table of the derived index until writing fails, and goes on a few times: prints "refused <times>", closes
// it, and prints "closed". A rejection that nobody heard ends it before that.

import { openLmdbTable } from "../../src/store/log/lmdb-table.ts";

const refusalsWanted = 3;
const value = Buffer.alloc(1000);
const table = await openLmdbTable(process.argv[2]);
let refused = 0;
for (let n = 0; refused < refusalsWanted && n < 100; n++) {
  const changes = Array.from({ length: 100 }, (_, i) => [Buffer.from(`${n}-${i}`), value] as const);
  const [result] = await Promise.allSettled([table.write(changes)]);
  if (result.status === "rejected") refused++;
  await new Promise((resolve) => setImmediate(resolve));
}
console.log(`refused ${refused}`);
// What keeps a process alive is not looked at here, and a close that never ends keeps none.
await table.close();
console.log("closed");
process.exit(0);
