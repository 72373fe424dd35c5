// What every command of the command line is given and how it fails, so that a command is a function of its arguments and this.

import type { Command } from "commander";
import type { EventClient } from "../client/client.ts";

/** What each command is given. */
export interface Context {
  /** `--json`: one JSON value on stdout, or one per line for streams. */
  readonly json: boolean;
  /** stdout is a terminal, NO_COLOR is unset, and it is not `--json`. */
  readonly color: boolean;
  /** stderr is a terminal: progress bars go there. */
  readonly tty: boolean;
  /** http(s):// base of the node, without a slash at its end. */
  readonly url: string;
  /** Never shown, never part of a URL. */
  readonly token: string | undefined;
  /** SIGINT or SIGTERM: finish cleanly. A second one ends the process at once. */
  readonly signal: AbortSignal;
  /** stdout and a newline. A reader that went away ends the process quietly with exit code 0; see RunOptions. */
  out(line: string): void;
  /** stderr, for people; silent with `--quiet`. */
  note(line: string): void;
  /** A request to the node. Not 2xx becomes a CliError with the node's code in one line; unreachable is exit code 3. */
  http(path: string, init?: RequestInit): Promise<Response>;
  getJson<T>(path: string): Promise<T>;
  /** A connected client, the same one each time; closed at the end by whoever runs the command. */
  client(): Promise<EventClient>;
}

/** One line for the user; no stack trace. */
export class CliError extends Error {
  readonly exitCode: number;

  constructor(message: string, exitCode: number = exitCodes.failed) {
    super(message);
    this.name = "CliError";
    this.exitCode = exitCode;
  }
}

/** 0 fine, 1 refused or failed, 2 wrong usage, 3 the node cannot be reached, 4 what was asked for does not exist, 130 interrupted. */
export const exitCodes = { ok: 0, failed: 1, usage: 2, unreachable: 3, missing: 4, interrupted: 130 } as const;

/** What a command does, once its arguments are read. A number is the exit code; nothing means 0. */
export type Action = (context: Context) => Promise<void> | Promise<number>;

export interface RunOptions {
  /** The work is more than what it prints: a reader that goes away, as `| head -1` does, does not end it. */
  readonly readerOptional?: boolean;
}

/** Runs the action in a fresh context, closes what it opened, and turns what went wrong into one line and an exit code. */
export type Run = (action: Action, options?: RunOptions) => Promise<void>;

/**
 * Each command's file exports one of these, `register<Name>`. It makes `program.command(…)` with a description, its arguments,
 * `.addHelpText("after", …)` with an example, and `.action((argument, options) => run((context) => …))`. The options that all
 * commands share (`--json --url --token-file --quiet`) are the program's own and show in the help of each.
 */
export type Register = (program: Command, run: Run) => void;
