// The node as a process, with limits so small that segments end, are rewritten and removed, and names are forgotten, within seconds.
// SIGUSR2 lets one of its worker threads die, the next one each time.

import { availableParallelism } from "node:os";
import { readConfig } from "../../src/config.ts";
import { startNode } from "../../src/node.ts";
import type { Crash } from "../../src/runtime/control.ts";
import { smallLimits } from "./limits.ts";

export async function runSmallNode(): Promise<void> {
  const reading = readConfig(process.env, [], availableParallelism());
  if (!("workers" in reading)) throw new Error(JSON.stringify(reading));
  const config = { ...reading, limits: { ...reading.limits, ...smallLimits } };
  const node = await startNode(config, { testing: true });
  let signals = 0;
  process.on("SIGTERM", () => {
    if (signals++ > 0) process.exit(1);
    node.close().then(
      () => process.exit(0),
      (error: Error) => {
        process.stderr.write(`${error.stack}\n`);
        process.exit(1);
      },
    );
  });
  const ways: readonly Crash[] = ["throw", "exit"];
  let deaths = 0;
  process.on("SIGUSR2", () => {
    node.system.crash(deaths % config.workers, ways[deaths % ways.length]);
    deaths++;
  });
  process.on("uncaughtException", (error) => {
    process.stderr.write(`uncaught: ${error.stack}\n`);
    process.exit(70);
  });
  for (const { setting, host, port } of node.listening) {
    process.stdout.write(`narthex ${setting.slice(0, setting.indexOf("_")).toLowerCase()} http://${host}:${port}\n`);
  }
  process.stdout.write("narthex ready\n");
}
