// The topic that an import goes to, as it is asked about before, between and after.

import { createHash } from "node:crypto";
import { parsePosition, positionText } from "../protocol/position.ts";
import type { Clock } from "../runtime/clock.ts";
import { query } from "./arguments.ts";
import { CliError, type Context, exitCodes } from "./context.ts";
import { Trail } from "./export-part.ts";
import { ExportCut, type ExportSink, streamExport } from "./export-stream.ts";
import { findTopic } from "./node-answers.ts";

export interface Target {
  readonly topic: string;
  readonly createdAt: number;
  readonly partitions: number;
  readonly retains: boolean;
  /** Of the first event that it still has. */
  readonly start: string;
  /** Behind its last event. */
  readonly end: string;
}

export function isPosition(text: unknown): text is string {
  return typeof text === "string" && parsePosition(text) !== undefined;
}

/** Undefined: there is no such topic yet. */
export async function findTarget(context: Context, topic: string): Promise<Target | undefined> {
  const found = await findTopic(context, topic);
  if (found === undefined) return undefined;
  const { createdAt, offsets, retention = {} } = found;
  return {
    topic,
    createdAt,
    partitions: offsets.length,
    retains: retention.ageMs !== undefined || retention.bytes !== undefined,
    start: positionText(offsets.map(({ start }) => start)),
    end: positionText(offsets.map(({ end }) => end)),
  };
}

/** Whether the topic has an event with this id. */
export async function hasEvent(context: Context, topic: string, id: string): Promise<boolean> {
  try {
    await context.http(`/replay?${query({ topic, from: "afterId", afterId: id, limit: 1 })}`);
    return true;
  } catch (error) {
    // No such event, or no such topic.
    if (error instanceof CliError && error.exitCode === exitCodes.missing) return false;
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
