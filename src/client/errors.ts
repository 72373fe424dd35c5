// What promises of the client reject with. `code` is stable and documented, the text is for people. Codes of the node are those of
// PROTOCOL.md; the client adds the few below.

import { type Code, codes, type Failure } from "../protocol/failure.ts";

export const clientCodes = {
  /** The connection ended before the answer came, and the client does not reconnect. */
  connection_lost: true,
  /** No connection could be made. */
  connect_failed: true,
  /** Nothing was sent, or what was sent changes nothing: it can be tried again. */
  timeout: true,
  /** A publish was sent and never answered, and has become too old to be sent again safely: it is stored once or not at all. */
  unknown_outcome: false,
  /** The client was closed. */
  closed: false,
  /** More is waiting in the client than it holds (`maxPending`). */
  client_full: true,
} as const;

export type ClientCode = keyof typeof clientCodes;
export type ErrorCode = Code | ClientCode;

export class NarthexError extends Error {
  // Written out: a bundler shortens the names of classes.
  override readonly name: string = "NarthexError";
  readonly code: ErrorCode;
  /** Whether the same call may succeed later. */
  readonly retryable: boolean;
  readonly retryAfterMs: number | undefined;

  constructor(code: ErrorCode, message: string, retryAfterMs?: number) {
    super(message);
    this.code = code;
    this.retryable = { ...codes, ...clientCodes }[code];
    this.retryAfterMs = retryAfterMs;
  }
}

/** The node said no. */
export class RefusedError extends NarthexError {
  override readonly name: string = "RefusedError";
}
/** A lease was over before it was settled. */
export class LeaseLostError extends RefusedError {
  override readonly name = "LeaseLostError";
}
/** No connection, or no longer. */
export class ConnectionError extends NarthexError {
  override readonly name = "ConnectionError";
}
export class TimeoutError extends NarthexError {
  override readonly name = "TimeoutError";
}
export class UnknownOutcomeError extends NarthexError {
  override readonly name = "UnknownOutcomeError";
}
export class ClosedError extends NarthexError {
  override readonly name = "ClosedError";
}

export function refused({ code, msg, retry_after_ms: retryAfterMs }: Failure): RefusedError {
  return new (code === "lease_lost" ? LeaseLostError : RefusedError)(code, msg, retryAfterMs);
}
