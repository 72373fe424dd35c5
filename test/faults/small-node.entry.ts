// The node as a process of its own, as src/main.ts makes it, with limits that the environment of a user cannot set: small segments and
// short times. FAULT_LIMITS holds them as JSON.

import { readConfig } from "../../src/config.ts";
import { startNode } from "../../src/node.ts";
import { faultFields } from "../../src/runtime/log.ts";

const say = (line: string) => void process.stdout.write(`${line}\n`);
const stop = (error: Error): never => {
  process.stderr.write(`narthex: ${error.message}\n`);
  process.exit(1);
};

const reading = readConfig(process.env, [], 1);
if (!("limits" in reading)) throw new Error(JSON.stringify(reading));
const limits = { ...reading.limits, ...(JSON.parse(process.env.FAULT_LIMITS ?? "{}") as object) };
const node = await startNode({ ...reading, limits }, { lost: stop }).catch(stop);
process.on("SIGTERM", () => void node.close().then(() => process.exit(0), stop));
process.on("uncaughtException", (error) => {
  node.log.error("uncaught error, ending", faultFields(error));
  process.exit(70);
});
for (const { setting, host, port } of node.listening) {
  say(`narthex ${setting.slice(0, setting.indexOf("_")).toLowerCase().padEnd(6)} http://${host}:${port}`);
}
const missing = node.system.state().filter(({ status }) => status !== "up");
const reasons = missing.map(({ shard, status, reason }) => `shard ${shard} is ${status}: ${reason}`);
say(missing.length === 0 ? "narthex ready" : `narthex not ready yet: ${reasons.join("; ")}`);
