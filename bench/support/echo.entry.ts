// A worker that answers each publish of a post at once, in one post, as a host would when everything is stored.

import { parentPort } from "node:worker_threads";
import { PackView } from "../../src/protocol/pack.ts";
import type { Item, ToFront, ToHost } from "../../src/runtime/envelope.ts";

parentPort?.on("message", ({ mail }: ToHost) => {
  const items: Item[] = [];
  for (const { id, message } of mail) {
    if (message.type !== "publish") throw new Error(`nobody posts ${message.type} here`);
    const { count } = new PackView(message.pack);
    const runs = [{ index: 0, count, offset: 0, storedAt: 1, salt: 7 }];
    items.push({ type: "answer", id, answer: { durability: "memory", runs } });
  }
  parentPort?.postMessage({ items, tells: 0 } satisfies ToFront);
});
