// What went wrong at the driver or the server, in the words that stores have for it. Told by labels, codes and classes of errors, never
// by their text.

import { StoreError } from "../store.ts";

interface ServerError {
  readonly name?: string;
  readonly message?: string;
  readonly code?: number | string;
  readonly codeName?: string;
  /** Of an error of the socket, which the driver sometimes hands on as it is. */
  readonly syscall?: string;
  hasErrorLabel?(label: string): boolean;
}

/** No answer, or none from a server that may take writes: it may come back by itself. */
const unreachableNames = new Set([
  "MongoServerSelectionError",
  "MongoNetworkError",
  "MongoNetworkTimeoutError",
  "MongoNotConnectedError",
  "MongoPoolClearedError",
  "PoolClearedOnNetworkError",
  "MongoPoolClosedError",
  "MongoWaitQueueTimeoutError",
  "MongoTopologyClosedError",
  "MongoOperationTimeoutError",
]);

/** Step-downs, shutdowns and time limits, by the numbers of the server. */
const passingCodes = new Set<number | string>([
  // Our own word for all of them.
  "ENOPRIMARY",
  6,
  7,
  24,
  50,
  64,
  89,
  91,
  112,
  133,
  134,
  189,
  202,
  216,
  246,
  251,
  262,
  317,
  9001,
  10_107,
  11_600,
  11_601,
  11_602,
  13_435,
  13_436,
]);

/** Of Node's sockets and streams, where there was no call of the system that failed: the other end had gone before. */
const goneCodes = new Set<number | string>([
  "EPIPE",
  "ECONNRESET",
  "ERR_SOCKET_CLOSED",
  "ERR_STREAM_DESTROYED",
  "ERR_STREAM_PREMATURE_CLOSE",
  "ERR_STREAM_WRITE_AFTER_END",
]);

const codes: Readonly<Record<number, string>> = {
  13: "EACCES",
  18: "EAUTH",
  8000: "EAUTH",
  10334: "EFBIG",
  14031: "ENOSPC",
  17419: "EFBIG",
};

export function hasLabel(error: unknown, label: string): boolean {
  return (error as ServerError | null)?.hasErrorLabel?.(label) === true;
}

export function isDuplicate(error: unknown): boolean {
  return (error as ServerError | null)?.code === 11_000;
}

/** Whether it may be gone a moment later, without anybody doing anything. */
export function isPassing(error: unknown): boolean {
  const { name, code, syscall } = error as ServerError;
  if (hasLabel(error, "TransientTransactionError") || hasLabel(error, "RetryableWriteError")) return true;
  if (syscall !== undefined) return true;
  if (unreachableNames.has(name ?? "")) return true;
  return code !== undefined && (passingCodes.has(code) || goneCodes.has(code));
}

export function codeOf(error: unknown): string {
  if (error instanceof StoreError) return error.code;
  const { code, codeName, name } = error as ServerError;
  const known = typeof code === "number" ? codes[code] : undefined;
  if (known !== undefined) return known;
  if (isPassing(error)) return "ENOPRIMARY";
  return codeName ?? name ?? "EMONGO";
}

/** `doing` says what was tried, as in "shard 3 could not be opened". */
export function storeError(error: unknown, state: StoreError["state"], doing: string): StoreError {
  if (error instanceof StoreError) return error;
  return new StoreError(state, codeOf(error), `${doing}: ${messageOf(error)}`);
}

export function messageOf(error: unknown): string {
  return (error as ServerError | null)?.message ?? String(error);
}
