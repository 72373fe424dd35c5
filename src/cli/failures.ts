// What went wrong, as one line and an exit code. Codes of the node decide, texts are only passed on.

import { NarthexError } from "../client/errors.ts";
import { CliError, exitCodes } from "./context.ts";

export interface FailureLine {
  /** Undefined where there is nothing to say: the user interrupted it. */
  readonly line: string | undefined;
  readonly exitCode: number;
  /** For NARTHEX_DEBUG. */
  readonly details?: string;
}

/** Of the node's code, or of the client's. */
export function exitCodeOf(code: string | undefined): number {
  switch (code) {
    case "unknown_topic":
    case "unknown_id":
      return exitCodes.missing;
    case "bad_topic":
    case "bad_group":
    case "bad_option":
    case "bad_frame":
    case "bad_json":
      return exitCodes.usage;
    case "connect_failed":
    case "connection_lost":
      return exitCodes.unreachable;
    default:
      return exitCodes.failed;
  }
}

/** What the node says of a token, turned into what to do about it. */
export function tokenAdvice(code: string | undefined): string | undefined {
  if (code === "unauthorized") return "the node wants a token: set NARTHEX_TOKEN or give --token-file";
  if (code === "bad_token") return "the node does not take this token: check NARTHEX_TOKEN or --token-file";
  return undefined;
}

export function unreachableLine(url: string, reason?: string): string {
  // What OpenSSL makes of an answer in plain text.
  if (reason === "ERR_SSL_WRONG_VERSION_NUMBER" || reason === "ERR_SSL_PACKET_LENGTH_TOO_LONG") {
    return `what answers at ${url} does not speak TLS: try ${url.replace(/^https/, "http")}`;
  }
  const why = reason === undefined || reason === "ECONNREFUSED" ? "" : ` (${reason})`;
  return `no node answers at ${url}${why}: is it running? start one with: npx narthex`;
}

export function explainFailure(error: unknown): FailureLine {
  const details = error instanceof Error ? (error.stack ?? error.message) : String(error);
  if (error instanceof CliError) return { line: oneLine(error.message), exitCode: error.exitCode, details };
  if (error instanceof NarthexError) {
    const line = tokenAdvice(error.code) ?? `${error.message} (${error.code})`;
    return { line: oneLine(line), exitCode: exitCodeOf(error.code), details };
  }
  if (error instanceof Error && error.name === "AbortError") {
    return { line: undefined, exitCode: exitCodes.interrupted, details };
  }
  const message = error instanceof Error ? error.message : String(error);
  return { line: `${oneLine(message)} (set NARTHEX_DEBUG=1 for details)`, exitCode: exitCodes.failed, details };
}

/** Names and messages may come from others: nothing of them may move the cursor or start a second line. */
export function oneLine(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: those are what is taken out
  return text.replace(/ *[\u0000-\u001f\u007f-\u009f\u2028\u2029]+ */g, " ").trim();
}
