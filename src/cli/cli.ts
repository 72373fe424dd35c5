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
import { explainFailure } from "./failures.ts";
import { registerGroups } from "./groups.ts";
import { registerHistory } from "./history.ts";
import { registerImport } from "./import.ts";
import { type SharedOptions, withContext } from "./open-context.ts";
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
export const sharedFlags: readonly string[] = ["--json", "--url", "--token-file", "--quiet", "-q"];

const footer = `
narthex without a command starts a node, as start does. Its flags: narthex start --help

Environment:
  NARTHEX_URL      the node to talk to, such as https://bus.example.com; default http://127.0.0.1:8090
  NARTHEX_TOKEN    its token; WS_TOKEN is taken if this is not set
  NO_COLOR         no colours
  NARTHEX_DEBUG=1  details of errors

Exit codes: 0 fine, 1 refused or failed, 2 wrong usage, 3 no node answers, 4 not found, 130 interrupted`;

/** Resolves with the exit code; whatever went wrong was said in one line on stderr. */
export async function runCli(argv: readonly string[]): Promise<number> {
  let exitCode: number = exitCodes.ok;
  const program = makeProgram(async (action) => {
    exitCode = await withContext(program.opts<SharedOptions>(), action);
  });
  try {
    if (argv.length === 0 || sharedFlags.includes(argv[0])) needCommand(program, argv);
    await program.parseAsync(argv, { from: "user" });
    return exitCode;
  } catch (error) {
    const failure = error instanceof CommanderError ? usageFailure(error, program, argv) : explainFailure(error);
    if (failure.line !== undefined) process.stderr.write(`narthex: ${failure.line}\n`);
    if (failure.details !== undefined && process.env.NARTHEX_DEBUG === "1") {
      process.stderr.write(`${failure.details}\n`);
    }
    return failure.exitCode;
  }
}

export function makeProgram(run: Run): Command {
  const program = new Command("narthex")
    .description("A durable event bus in one process, and the commands to work with it.")
    .usage("[command] [options]")
    .option("--json", "print JSON: one value, or one per line for streams")
    .option("--url <url>", "the node, in place of NARTHEX_URL")
    .option("--token-file <path>", "a file with the token, in place of NARTHEX_TOKEN")
    .option("-q, --quiet", "say nothing on stderr but errors")
    .helpOption("-h, --help", "this text")
    .helpCommand("help [command]", "the help of a command")
    .configureHelp({ showGlobalOptions: true, subcommandTerm: (command) => command.name() })
    // What is wrong is said once, in one line, at the end of runCli.
    .configureOutput({ outputError: () => undefined })
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
  if (argv.some((word) => names.includes(word) || word === "--help" || word === "-h" || word === "help")) return;
  throw new CliError(`a command is missing: ${names.join(", ")}`, exitCodes.usage);
}

interface Failure {
  readonly line: string | undefined;
  readonly exitCode: number;
  readonly details?: string;
}

function usageFailure({ exitCode, message }: CommanderError, program: Command, argv: readonly string[]): Failure {
  // Help was asked for and was shown.
  if (exitCode === 0) return { line: undefined, exitCode: exitCodes.ok };
  const command = program.commands.find((known) => argv.includes(known.name()));
  const help = command === undefined ? "narthex --help" : `narthex ${command.name()} --help`;
  const text = message
    .replace(/^error: /, "")
    .replace(/\s*\n\s*/g, " ")
    .replace(/\.$/, "");
  return { line: `${text}: see ${help}`, exitCode: exitCodes.usage };
}
