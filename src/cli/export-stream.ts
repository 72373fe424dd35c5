// GET /export as a stream of whole lines. `fetch` hides trailers, and without them a whole export cannot be told from a cut one, so
// this speaks node:http. A connection that dies is made again from the last whole line.

import { createHash, type Hash } from "node:crypto";
import { request as httpRequest, type IncomingMessage } from "node:http";
import { request as httpsRequest } from "node:https";
import { positionText } from "../protocol/position.ts";
import type { Clock } from "../runtime/clock.ts";
import { CliError, exitCodes } from "./context.ts";
import { LineFault, type Trail } from "./export-part.ts";
import { exitCodeOf, oneLine, tokenAdvice, unreachableLine } from "./failures.ts";
import { LineBlocks } from "./ndjson.ts";
import { pause } from "./pause.ts";

const backoffMsMin = 200;
const backoffMsMax = 3000;
/** A node that sends nothing for so long is taken for gone. */
const silentMsMax = 30_000;

export interface ExportSource {
  readonly url: string;
  readonly token: string | undefined;
  readonly signal: AbortSignal;
  readonly clock: Clock;
  readonly topic: string;
  readonly fromTs: number | null;
  readonly toTs: number | null;
  /** How long to go on without any progress before giving up. */
  readonly retryMs: number;
  /** The node has answered before: if it is gone now, it is waited for. */
  readonly known: boolean;
  /** The connection is gone, and is tried again. */
  readonly onCut: (reason: string) => void;
}

export interface ExportSink {
  /** Whole lines. The next ones wait for it. */
  write(block: Buffer): Promise<void>;
}

/** Why an export stopped before its end. What was written up to then is whole lines, and can be gone on from. */
export class ExportCut extends Error {}

interface Refused {
  readonly status: number;
  readonly code: string | undefined;
  readonly error: string;
}

/** Ends when everything is written and checked. `hash` gets all bytes; `trail` says where to begin, and has all events at the end. */
export async function streamExport(
  source: ExportSource,
  { trail, hash, sink }: { readonly trail: Trail; readonly hash: Hash; readonly sink: ExportSink },
): Promise<void> {
  const { clock, signal, retryMs } = source;
  let movedAt = clock.mono();
  let backoffMs = backoffMsMin;
  let answered = source.known;
  for (;;) {
    const before = trail.events;
    const cut = await readOnce(source, { trail, hash, sink });
    if (cut === undefined) return;
    if (signal.aborted) throw new ExportCut("interrupted");
    if (trail.events > before) {
      movedAt = clock.mono();
      backoffMs = backoffMsMin;
    }
    answered ||= cut.answered;
    // A wrong address is no reason to wait.
    if (!answered) throw new CliError(unreachableLine(source.url, cut.reason), exitCodes.unreachable);
    if (clock.mono() - movedAt + backoffMs > retryMs) throw new ExportCut(cut.reason);
    source.onCut(cut.reason);
    const waited = await pause(clock, backoffMs * (0.5 + clock.random(1000) / 2000), signal);
    if (!waited) throw new ExportCut("interrupted");
    backoffMs = Math.min(backoffMsMax, backoffMs * 2);
  }
}

interface Cut {
  readonly reason: string;
  /** Whether it was a node that spoke. */
  readonly answered: boolean;
}

/** One request. Undefined: it came to its end, and count and checksum are right. */
async function readOnce(
  source: ExportSource,
  { trail, hash, sink }: { readonly trail: Trail; readonly hash: Hash; readonly sink: ExportSink },
): Promise<Cut | undefined> {
  const opened = await open(source, exportPath(source, trail));
  if (typeof opened === "string") return { reason: opened, answered: false };
  if (opened.statusCode !== 200) {
    const refused = await readRefusal(opened);
    if (refused.status === 503 || refused.status === 429) return { reason: refused.error, answered: true };
    const line = tokenAdvice(refused.code) ?? refused.error;
    const exitCode =
      refused.code === undefined && refused.status === 404 ? exitCodes.missing : exitCodeOf(refused.code);
    throw new CliError(line, exitCode);
  }
  const first = trail.events;
  // The checksum of the answer is that of the whole as long as nothing stood before it.
  const body = trail.bytes === 0 ? hash : createHash("sha256");
  const lines = new LineBlocks();
  try {
    for await (const chunk of opened as AsyncIterable<Buffer>) {
      const block = lines.push(chunk);
      if (block === undefined) continue;
      trail.take(block);
      body.update(block);
      if (body !== hash) hash.update(block);
      await sink.write(block);
    }
  } catch (error) {
    opened.destroy();
    if (error instanceof LineFault) throw new CliError(`${source.url} sent what no export has: ${error.message}`);
    if (error instanceof CliError || isOfDisk(error)) throw error;
    return { reason: reasonOf(error), answered: true };
  }
  const { "x-narthex-count": count, "x-narthex-checksum": checksum } = opened.trailers;
  if (count === undefined || checksum === undefined) {
    throw new CliError(
      `${source.url} ended the export without its checksum: is a proxy in between that drops HTTP trailers?`,
    );
  }
  const whole = lines.rest().length === 0;
  if (!whole || Number(count) !== trail.events - first || checksum !== body.copy().digest("hex")) {
    throw new CliError(
      `what came from ${source.url} is not what it sent (count or checksum differ): start anew with --force`,
    );
  }
  return undefined;
}

function exportPath({ topic, fromTs, toTs }: ExportSource, { next }: Trail): string {
  const query = new URLSearchParams({ topic, ndjson: "1" });
  if (fromTs !== null) query.set("fromTs", String(fromTs));
  if (toTs !== null) query.set("toTs", String(toTs));
  if (next.size > 0) query.set("after", positionText(next));
  return `/export?${query}`;
}

/** The answer once its head is there, or why there is none. */
function open({ url, token, signal }: ExportSource, path: string): Promise<IncomingMessage | string> {
  const address = `${url}${path}`;
  const options = {
    headers: { te: "trailers", ...(token === undefined ? {} : { authorization: `Bearer ${token}` }) },
    agent: false,
    signal,
    timeout: silentMsMax,
  };
  return new Promise((resolve) => {
    const request = address.startsWith("https:") ? httpsRequest(address, options) : httpRequest(address, options);
    request.on("response", resolve);
    // Also after the answer has begun: then the stream is what fails.
    request.on("error", (error) => resolve(reasonOf(error)));
    request.on("timeout", () => request.destroy(new Error(`nothing came for ${silentMsMax / 1000} s`)));
    request.end();
  });
}

const refusalBytesMax = 64 * 1024;

async function readRefusal(response: IncomingMessage): Promise<Refused> {
  const status = response.statusCode ?? 0;
  let text = "";
  try {
    for await (const chunk of response as AsyncIterable<Buffer>) {
      text += chunk;
      if (text.length > refusalBytesMax) break;
    }
    const { error, code } = JSON.parse(text) as { error?: unknown; code?: unknown };
    if (typeof error === "string") return { status, error, code: typeof code === "string" ? code : undefined };
  } catch (error) {
    return { status, error: `the node answered ${status}: ${oneLine(reasonOf(error))}`, code: undefined };
  }
  return { status, error: `the node answered ${status}`, code: undefined };
}

function reasonOf(error: unknown): string {
  const { code, message } = error as NodeJS.ErrnoException;
  return code === "ECONNRESET" || code === "UND_ERR_SOCKET" ? "the connection broke" : (code ?? message);
}

/** Our own files fail with the call that failed; sockets with `read`, `write` or `connect`. */
function isOfDisk(error: unknown): boolean {
  const { code } = error as NodeJS.ErrnoException;
  return code !== undefined && ["ENOSPC", "EIO", "EDQUOT", "EROFS", "EFBIG", "EBADF"].includes(code);
}
