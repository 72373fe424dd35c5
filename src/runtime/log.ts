// One JSON object per line. Fields are scalars only, so that no message, payload or token can slip in as a whole, and an Error is
// logged through `faultFields`, because the text of some errors quotes what they choked on.

import type { Clock } from "./clock.ts";

export const logLevels = ["debug", "info", "warn", "error"] as const;
export type LogLevel = (typeof logLevels)[number];
export type LogFields = Readonly<Record<string, string | number | boolean | undefined>>;

export interface Logger {
  debug(msg: string, fields?: LogFields): void;
  info(msg: string, fields?: LogFields): void;
  warn(msg: string, fields?: LogFields): void;
  error(msg: string, fields?: LogFields): void;
}

const textCharsMax = 2000;
const reasonCharsMax = 300;
const stackLinesMax = 8;

/** `write` gets whole lines; main.ts gives it stderr. */
export function createLogger(level: LogLevel | "silent", write: (line: string) => void, clock: Clock): Logger {
  return loggerOver(level, (at, msg, fields) => {
    const line: Record<string, string | number | boolean> = {
      ts: new Date(clock.wall()).toISOString(),
      level: at,
      msg,
    };
    for (const [name, value] of Object.entries(fields)) {
      if (value === undefined || name in line) continue;
      line[name] = typeof value === "string" ? value.slice(0, textCharsMax) : value;
    }
    write(`${JSON.stringify(line)}\n`);
  });
}

/** A logger that hands on what passes the level: to a stream here, to the front in a worker. */
export function loggerOver(
  level: LogLevel | "silent",
  emit: (level: LogLevel, msg: string, fields: LogFields) => void,
): Logger {
  const lowest = level === "silent" ? logLevels.length : logLevels.indexOf(level);
  const at =
    (own: LogLevel) =>
    (msg: string, fields: LogFields = {}): void => {
      if (logLevels.indexOf(own) >= lowest) emit(own, msg, fields);
    };
  return { debug: at("debug"), info: at("info"), warn: at("warn"), error: at("error") };
}

/** What may be said of an error: its name, where it was thrown, and its text, except that of a parser. */
export function faultFields(error: unknown): LogFields {
  if (!(error instanceof Error)) return { error: typeof error };
  const stack = (error.stack ?? "").split("\n").filter((line) => /^\s+at /.test(line));
  return {
    error: error.name,
    reason: reasonOf(error),
    stack: stack
      .slice(0, stackLinesMax)
      .map((line) => line.trim())
      .join(" | "),
  };
}

/** The same in words, for an operator. */
export function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return "something that is not an Error was thrown";
  // JSON.parse quotes the text around the fault.
  if (error instanceof SyntaxError) return "SyntaxError";
  return error.message.slice(0, reasonCharsMax);
}
