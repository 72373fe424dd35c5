// GET /export as a stream of whole lines. `fetch` hides trailers, and without them a whole export cannot be told from a cut one, so
// this speaks node:http. A connection that dies is made again from the last whole line.

import { createHash, type Hash } from "node:crypto";
import { request as httpRequest, type IncomingMessage } from "node:http";
import { request as httpsRequest } from "node:https";
import { positionText } from "../protocol/position.ts";
import type { Clock } from "../runtime/clock.ts";
import { CliError, exitCodes } from "./context.ts";
import { LineFault, type Trail } from "./export-part.ts";
import { exitCodeOf, tokenAdvice, unreachableLine } from "./failures.ts";
import { LineBlocks } from "./ndjson.ts";
import { notANode } from "./node-answers.ts";
import { pause } from "./pause.ts";

const backoffMsMin = 200;
const backoffMsMax = 3000;
/** A node that sends nothing for so long is taken for gone. */
const silentMsMax = 30_000;
const silentMsMin = 1000;

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

/** How long one answer may be silent: no longer than the user wants to wait in all. Without retries it has its usual time. */
export function silentMs(retryMs: number): number {
  return retryMs === 0 ? silentMsMax : Math.min(silentMsMax, Math.max(silentMsMin, retryMs));
}

/** Ends when everything is written and checked. `hash` gets all bytes; `trail` says where to begin, and has all events at the end. */
export async function streamExport(
  source: ExportSource,
  { trail, hash, sink: target }: { readonly trail: Trail; readonly hash: Hash; readonly sink: ExportSink },
): Promise<void> {
  const { clock, signal, retryMs } = source;
  let movedAt = clock.mono();
  const sink: ExportSink = {
    async write(block) {
      await target.write(block);
      movedAt = clock.mono();
    },
  };
  let backoffMs = backoffMsMin;
  let answered = source.known;
  for (;;) {
    const before = trail.events;
    const leftMs = retryMs === 0 ? 0 : Math.max(silentMsMin, retryMs - (clock.mono() - movedAt));
    const cut = await readOnce(source, { trail, hash, sink, silentMs: silentMs(leftMs) });
    if (cut === undefined) return;
    if (signal.aborted) throw new ExportCut("interrupted");
    if (trail.events > before) backoffMs = backoffMsMin;
    answered ||= cut.answered;
    if (cut.notANode && !answered) throw notANode(source.url);
    // A wrong address is no reason to wait.
    if (!answered) throw new CliError(unreachableLine(source.url, cut.reason), exitCodes.unreachable);
    if (clock.mono() - movedAt + backoffMs > retryMs) {
      if (cut.notANode) throw notANode(source.url);
      throw new ExportCut(cut.reason);
    }
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
  /** Something in front of it said that it is gone. */
  readonly notANode?: true;
}

interface Reading {
  readonly trail: Trail;
  readonly hash: Hash;
  readonly sink: ExportSink;
  readonly silentMs: number;
}

/** One request. Undefined: it came to its end, and count and checksum are right. */
async function readOnce(source: ExportSource, { trail, hash, sink, silentMs: ms }: Reading): Promise<Cut | undefined> {
  const opened = await open(source, exportPath(source, trail), ms);
  if (typeof opened === "string") return { reason: opened, answered: false };
  if (opened.statusCode !== 200) {
    const refused = await readRefusal(opened);
    if (refused === undefined) {
      // A proxy says so while the node behind it is started again.
      const gone = [502, 503, 504].includes(opened.statusCode ?? 0);
      if (!gone) throw notANode(source.url);
      return { reason: `a proxy answered ${opened.statusCode}`, answered: false, notANode: true };
    }
    if (refused.status === 503 || refused.status === 429) return { reason: refused.error, answered: true };
    const line = tokenAdvice(refused.code) ?? refused.error;
    const exitCode =
      refused.code === undefined && refused.status === 404 ? exitCodes.missing : exitCodeOf(refused.code);
    throw new CliError(line, exitCode);
  }
  if (/html/i.test(opened.headers["content-type"] ?? "")) {
    opened.destroy();
    throw notANode(source.url);
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
function open({ url, token, signal }: ExportSource, path: string, ms: number): Promise<IncomingMessage | string> {
  const address = `${url}${path}`;
  const options = {
    headers: { te: "trailers", ...(token === undefined ? {} : { authorization: `Bearer ${token}` }) },
    agent: false,
    signal,
    timeout: ms,
  };
  return new Promise((resolve) => {
    const request = address.startsWith("https:") ? httpsRequest(address, options) : httpRequest(address, options);
    let answer: IncomingMessage | undefined;
    request.on("response", (response) => {
      answer = response;
      resolve(response);
    });
    // Also after the answer has begun: then the stream is what fails.
    request.on("error", (error) => resolve(reasonOf(error)));
    request.on("timeout", () => {
      (answer ?? request).destroy(new Error(`nothing came for ${Math.round(ms / 100) / 10} s`));
    });
    request.end();
  });
}

const refusalBytesMax = 64 * 1024;

/** Undefined: no node speaks like that. */
async function readRefusal(response: IncomingMessage): Promise<Refused | undefined> {
  const status = response.statusCode ?? 0;
  let text = "";
  try {
    for await (const chunk of response as AsyncIterable<Buffer>) {
      text += chunk;
      if (text.length > refusalBytesMax) break;
    }
    const { error, code } = (JSON.parse(text) ?? {}) as { error?: unknown; code?: unknown };
    if (typeof error === "string") return { status, error, code: typeof code === "string" ? code : undefined };
    return undefined;
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    return { status: 503, error: reasonOf(error), code: undefined };
  }
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
