// A commit of the log alone: a block of so many events, one write and one fdatasync, one after the other. What prepares and seals segments in
// the background is counted with it.

import { blockHeaderBytes, writeBlockHeader } from "../src/protocol/block.ts";
import { encodePack } from "../src/protocol/pack.ts";
import { openLogStore } from "../src/store/log/log-store.ts";
import { dataFolder } from "../test/support/node-process.ts";
import { costSettings, measureCosts } from "./support/cost.ts";
import { payloadBytes, payloadMaker } from "./support/payload.ts";
import { numbersFrom } from "./support/settings.ts";

const set = costSettings("fsync before OK", { store: "log" });
const make = payloadMaker(set.payloadBytes);
const folder = dataFolder();
const store = openLogStore({ path: folder.path });
const shard = await store.openShard(0);
await measureCosts(
  "commit",
  set,
  numbersFrom("EVENTS", [1, 10, 200, 1000]).map((events, i) => {
    const stream = 64 * (i + 1);
    const pack = encodePack(Array.from({ length: events }, (_, n) => ({ payload: payloadBytes(make(n, n)) })));
    const commit = () => {
      const block = new Uint8Array(blockHeaderBytes + pack.length);
      const firstOffset = shard.head(stream)?.end ?? 0;
      writeBlockHeader({ stream, firstOffset, storedAt: 1, maxTs: 1, salt: 7 }, block, 0);
      block.set(pack, blockHeaderBytes);
      return shard.commit({ blocks: [block], puts: [], trims: [] });
    };
    return { variant: `${events} events`, part: "workers", events, call: commit };
  }),
);
await store.close();
folder.remove();
