// There and back between the front and a worker: a publish of so many events over the front's own link, in the envelope of a node, its bytes
// transferred, to a worker that answers at once. One at a time, so that nothing shares the post.

import { Worker } from "node:worker_threads";
import { isFailure } from "../src/protocol/failure.ts";
import { encodePack } from "../src/protocol/pack.ts";
import { realClock } from "../src/runtime/clock.ts";
import { Link } from "../src/runtime/link.ts";
import { loggerOver } from "../src/runtime/log.ts";
import { costSettings, measureCosts } from "./support/cost.ts";
import { payloadBytes, payloadMaker } from "./support/payload.ts";
import { numbersFrom } from "./support/settings.ts";

const set = costSettings("nothing is stored", { workers: 1 });
const make = payloadMaker(set.payloadBytes);
const worker = new Worker(new URL("./support-echo.entry.js", import.meta.url));
const link = new Link({
  worker: 0,
  clock: realClock(),
  log: loggerOver("warn", (level, msg) => console.error(level, msg)),
  limits: { workerInflightMax: 1000, workerInflightBytesMax: 64 * 1024 * 1024, askMs: 10_000 },
  post: (message, transfer) => worker.postMessage(message, transfer),
  item: () => undefined,
});
worker.on("message", (post) => link.receive(post));

await measureCosts(
  "hop",
  set,
  numbersFrom("EVENTS", [1, 10, 200, 1000]).map((events) => {
    const pack = encodePack(Array.from({ length: events }, (_, i) => ({ payload: payloadBytes(make(i, i)) })));
    return { variant: `${events} events`, part: "threads", events, call: () => hop(pack) };
  }),
);
await worker.terminate();

function hop(bytes: Uint8Array): Promise<void> {
  return new Promise((resolve, reject) => {
    const pack = link.take(bytes.length);
    pack.set(bytes);
    const refused = link.ask(
      { shard: 0, cell: "partition/64" },
      { type: "publish", pack, unparsed: false },
      (answer) => {
        if (isFailure(answer)) reject(new Error(answer.msg));
        else resolve();
      },
    );
    if (refused !== undefined) reject(new Error(refused.msg));
  });
}
