// The node that loses its power: a process of its own, as it is built, but with segments so small that they are sealed, rewritten,
// used again and removed all the time.

import { once } from "node:events";
import { defaultConfig } from "../../src/config.ts";
import { startNode } from "../../src/node.ts";

export const segmentBytes = 64 * 1024;
export const dedupeMs = 4000;
export const shards = 2;

/** Serves until it is told to end. */
export async function servePower(data: string): Promise<void> {
  const base = defaultConfig();
  const node = await startNode({
    ...base,
    wsPort: 0,
    httpPort: "off",
    opsPort: "off",
    replayPort: "off",
    workers: shards,
    dataPath: data,
    connRate: "off",
    topicRate: "off",
    logLevel: "warn",
    limits: { ...base.limits, segmentBytes, dedupeMs, pruneEveryMs: 150, drainMs: 300 },
  });
  process.stdout.write(`power ${node.listening[0].port}\n`);
  await once(process, "SIGTERM");
  await node.close();
}
