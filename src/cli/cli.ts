// The command line as a whole: which commands there are, what they share, and how each ends. A command is a file of its own
// that registers itself here; what it does it does through its Context.

import { Command, CommanderError } from "commander";
import { helpText } from "../config.ts";
import { registerBench } from "./bench.ts";
import type { Register, Run } from "./context.ts";
import { CliError, exitCodes } from "./context.ts";
import { registerDlq } from "./dlq.ts";
import { registerDoctor } from "./doctor.ts";
import { registerExplain } from "./explain.ts";
import { registerExport } from "./export.ts";
import { explainFailure, type FailureLine } from "./failures.ts";
import { registerGroups } from "./groups.ts";
import { registerHistory } from "./history.ts";
import { registerImport } from "./import.ts";
import { reportFailure, type SharedOptions, watchProcess, withContext } from "./open-context.ts";
import { registerPub } from "./pub.ts";
import { registerReplay } from "./replay.ts";
import { registerSeek } from "./seek.ts";
import { registerSub } from "./sub.ts";
import { registerTail } from "./tail.ts";
import { registerToken } from "./token.ts";
import { registerTopics } from "./topics.ts";

/** In the order of the help. */
const commands: readonly Register[] = [
  registerPub,
  registerSub,
  registerTail,
  registerReplay,
  registerExport,
  registerImport,
  registerTopics,
  registerGroups,
  registerSeek,
  registerExplain,
  registerHistory,
  registerDlq,
  registerBench,
  registerDoctor,
  registerToken,
];

/** Flags that may stand before a command. None of them is a flag of `start`. */
const sharedFlags: readonly string[] = ["--json", "--url", "--token-file", "--quiet", "-q"];

/** Whether a flag in the first place means that a command follows, or the help of all. `--token` is one that people try. */
export function isForCommands(flag: string): boolean {
  return ["--help", "-h", "--token", ...sharedFlags].includes(flag.split("=")[0]);
}

const footer = `
narthex without a command starts a node, as start does. Its flags: narthex start --help

Environment:
  NARTHEX_URL      the node to talk to, such as https://bus.example.com; default http://127.0.0.1:8090
  NARTHEX_TOKEN    its token; WS_TOKEN is taken if this is not set
  NO_COLOR         no colours
  NARTHEX_DEBUG=1  details of errors

Exit codes: 0 fine, 1 refused or failed, 2 wrong usage, 3 no node answers, 4 not found, 130 interrupted
before it was done. A stream that you end is fine: 0.`;

/** Resolves with the exit code; whatever went wrong was said in one line on stderr. */
export async function runCli(argv: readonly string[], version: string): Promise<number> {
  let exitCode: number = exitCodes.ok;
  const reader = watchProcess();
  const program = makeProgram(async (action, { readerOptional = false } = {}) => {
    reader.optional = readerOptional;
    exitCode = await withContext(program.opts<SharedOptions>(), action);
  }, version);
  try {
    if (argv.length === 0 || sharedFlags.includes(argv[0].split("=")[0])) needCommand(program, argv);
    await program.parseAsync(argv, { from: "user" });
    return exitCode;
  } catch (error) {
    return reportFailure(error instanceof CommanderError ? usageFailure(error, program, argv) : explainFailure(error));
  }
}

export function makeProgram(run: Run, version: string): Command {
  const program = new Command("narthex")
    .description("A durable event bus in one process, and the commands to work with it.")
    .usage("[command] [options]")
    .option("--json", "print JSON: one value, or one per line for streams")
    .option("--url <url>", "the node, in place of NARTHEX_URL")
    .option("--token-file <path>", "a file with the token, in place of NARTHEX_TOKEN")
    .option("-q, --quiet", "say nothing on stderr but errors")
    .version(version, "--version", "the version")
    .helpOption("-h, --help", "this text")
    .helpCommand("help [command]", "the help of a command")
    .configureHelp({ showGlobalOptions: true, subcommandTerm: (command) => command.name() })
    // What is wrong is said once, in one line, at the end of runCli.
    .configureOutput({ outputError: () => undefined, writeErr: () => undefined })
    .exitOverride()
    .addHelpText("after", footer);
  // Only for the help: main.ts takes `start` before it comes here.
  program
    .command("start")
    .description("start a node (default)")
    .configureHelp({ formatHelp: () => helpText() });
  for (const register of commands) register(program, run);
  return program;
}

/** `narthex --json` alone means nothing. */
function needCommand(program: Command, argv: readonly string[]): void {
  const names = program.commands.map((command) => command.name());
  if (argv.some((word) => [...names, "--help", "-h", "help", "--version"].includes(word))) return;
  throw new CliError(`a command is missing: ${names.join(", ")}`, exitCodes.usage);
}

function usageFailure(error: CommanderError, program: Command, argv: readonly string[]): FailureLine {
  // Help was asked for and was shown.
  if (error.exitCode === 0) return { line: undefined, exitCode: exitCodes.ok };
  // Not repeated: a token may be part of the message.
  if (error.code === "commander.unknownOption" && argv.some((word) => word.split("=")[0] === "--token")) {
    const line =
      "there is no --token, which others could see in the list of processes: set NARTHEX_TOKEN or give --token-file";
    return { line, exitCode: exitCodes.usage };
  }
  let command = program;
  let help = "narthex";
  for (const word of argv) {
    const next = command.commands.find((known) => known.name() === word);
    if (next === undefined) continue;
    command = next;
    help += ` ${word}`;
  }
  // A command that is only there for its own commands was given none of them.
  const names = command.commands.map((known) => known.name()).join(", ");
  const helpFor = argv.includes("help") ? argv[argv.indexOf("help") + 1] : undefined;
  const missing = helpFor === undefined ? `a command is missing, one of ${names}` : `unknown command '${helpFor}'`;
  const message = error.code === "commander.help" ? missing : error.message;
  const text = message
    .replace(/^error: /, "")
    .replace(/\s*\n\s*/g, " ")
    .replace(/\.$/, "");
  return { line: `${text}: see ${help} --help`, exitCode: exitCodes.usage };
}
