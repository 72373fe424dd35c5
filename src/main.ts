// The process: a node (settings in, start lines out, signals, exit code), or a command of the command line.

import { readFileSync } from "node:fs";
import { availableParallelism } from "node:os";
import { exitCodes } from "./cli/context.ts";
import { type Config, helpText, readConfig } from "./config.ts";
import { type OpenNode, startNode } from "./node.ts";
import { faultFields } from "./runtime/log.ts";

function say(line: string): void {
  process.stdout.write(`${line}\n`);
}

/** One line, no stack: what is wrong is in the words. */
function stop(reason: string, exitCode: number = exitCodes.failed): never {
  process.stderr.write(`narthex: ${reason}\n`);
  process.exit(exitCode);
}

function version(): string {
  const manifest = JSON.parse(readFileSync(new URL("../package.json", import.meta.url), "utf8")) as { version: string };
  return manifest.version;
}

function rateText(rate: Config["connRate"]): string {
  return rate === "off" ? "off" : `${rate.burst}/${rate.perSec}`;
}

const durabilities: Readonly<Record<Config["store"], string>> = {
  log: "fsync",
  memory: "memory",
  mongo: "mongo:majority",
};

function announce(node: OpenNode): void {
  const { config } = node;
  const facts = [
    `store=${config.store}`,
    `durability=${durabilities[config.store]}`,
    ...(config.store === "log" ? [`data=${config.dataPath}`] : []),
    `workers=${config.workers}`,
    `auth=${config.token === undefined ? "none" : "token"}`,
    `conn_rate=${rateText(config.connRate)}`,
    `topic_rate=${rateText(config.topicRate)}`,
    `max_payload=${config.maxPayload}`,
    `max_frame=${config.maxFrame}`,
  ];
  for (const { setting, host, port } of node.listening) {
    const name = setting.slice(0, setting.indexOf("_")).toLowerCase();
    say(`narthex ${name.padEnd(6)} http://${host.includes(":") ? `[${host}]` : host}:${port}  ${facts.join(" ")}`);
  }
  if (config.token === undefined) {
    say(
      "narthex warning: running without a token, so only programs on this machine can connect; set WS_TOKEN to change that",
    );
  }
  const missing = node.system.state().filter(({ status }) => status !== "up");
  const reasons = missing.map(({ shard, status, reason }) => `shard ${shard} is ${status}: ${reason}`);
  // It serves what it can and goes on trying.
  say(missing.length === 0 ? "narthex ready" : `narthex not ready yet: ${reasons.join("; ")}`);
}

async function main(): Promise<void> {
  const [first = "start", ...rest] = process.argv.slice(2);
  if (first === "start") return start(rest);
  const { isForCommands, runCli } = await loadCommands();
  // A flag first means a node is to be started, as ever; a word, or a flag that only commands have, means a command.
  if (first.startsWith("-") && !isForCommands(first)) return start([first, ...rest]);
  process.exit(await runCli([first, ...rest], version()));
}

/** A bundle of its own: a node that serves has no use for it, and each megabyte of its heap is marked again and again. */
function loadCommands(): Promise<typeof import("./cli/cli.ts")> {
  return import(new URL("./cli.js", import.meta.url).href);
}

async function start(argv: readonly string[]): Promise<void> {
  const reading = readConfig(process.env, argv, availableParallelism());
  if ("fault" in reading) stop(reading.fault, exitCodes.usage);
  if ("show" in reading) {
    say(reading.show === "help" ? helpText() : version());
    return;
  }
  const failed = (error: Error): never => stop(error.message);
  const node = await startNode(reading, { lost: failed }).catch(failed);
  let signals = 0;
  const end = (signal: string): void => {
    signals++;
    if (signals > 1) {
      say(`narthex: ${signal} again, ending at once`);
      process.exit(1);
    }
    say(`narthex: ${signal}, draining`);
    node.close().then(
      () => process.exit(0),
      (error: Error) => stop(error.message),
    );
  };
  process.on("SIGTERM", () => end("SIGTERM"));
  process.on("SIGINT", () => end("SIGINT"));
  // An uncaught error is a bug. State that may be wrong must not go on acknowledging: what is committed is safe, so end.
  process.on("uncaughtException", (error) => {
    node.log.error("uncaught error, ending", faultFields(error));
    process.exit(70);
  });
  announce(node);
}

await main();
