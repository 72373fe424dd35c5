// The topic that an import goes to, as it is asked about before, between and after.

import { createHash } from "node:crypto";
import { parsePosition, positionText } from "../protocol/position.ts";
import type { Clock } from "../runtime/clock.ts";
import { CliError, type Context, exitCodes } from "./context.ts";
import { Trail } from "./export-part.ts";
import { ExportCut, type ExportSink, streamExport } from "./export-stream.ts";

export interface Target {
  readonly topic: string;
  readonly createdAt: number;
  readonly partitions: number;
  /** Behind its last event. */
  readonly end: string;
}

export function isPosition(text: unknown): text is string {
  return typeof text === "string" && parsePosition(text) !== undefined;
}

/** Undefined: there is no such topic yet. */
export async function findTarget(context: Context, topic: string): Promise<Target | undefined> {
  const path = `/topics/${encodeURIComponent(topic)}`;
  try {
    const { createdAt, offsets } = await context.getJson<{ createdAt: number; offsets: { end: number }[] }>(path);
    return { topic, createdAt, partitions: offsets.length, end: positionText(offsets.map(({ end }) => end)) };
  } catch (error) {
    if (error instanceof CliError && error.exitCode === exitCodes.missing) return undefined;
    throw error;
  }
}

/** Reads what is stored at and behind a position, in blocks of lines; `take` may end it by returning true. */
export async function readBack(
  context: Context,
  clock: Clock,
  { topic, from, retryMs }: { readonly topic: string; readonly from: string; readonly retryMs: number },
  take: (block: Buffer) => boolean | undefined,
): Promise<void> {
  const { url, token } = context;
  const enough = new AbortController();
  const trail = new Trail(topic);
  for (const [partition, offset] of parsePosition(from) ?? []) trail.next.set(partition, offset);
  const sink: ExportSink = {
    async write(block) {
      if (take(block) === true) enough.abort();
    },
  };
  const signal = AbortSignal.any([context.signal, enough.signal]);
  const source = { url, token, signal, clock, topic, fromTs: null, toTs: null, retryMs, known: true };
  try {
    await streamExport({ ...source, onCut: () => undefined }, { trail, hash: createHash("sha256"), sink });
  } catch (error) {
    if (!(error instanceof ExportCut)) throw error;
    if (enough.signal.aborted) return;
    if (context.signal.aborted) throw new CliError("interrupted", exitCodes.interrupted);
    throw new CliError(`${topic} could not be read back: ${error.message}`, exitCodes.unreachable);
  }
}
