// Dead letters as they stand in `<topic>.dlq.<group>`: read from the log and not through a group, so that looking at them changes
// nothing, and told apart by what the node wrote into their headers.

import { createHash, hash } from "node:crypto";
import { deadLetterTopic, eventIdCharsMax } from "../protocol/names.ts";
import { realClock } from "../runtime/clock.ts";
import { CliError, type Context, exitCodes } from "./context.ts";
import { Trail } from "./export-part.ts";
import { ExportCut, streamExport } from "./export-stream.ts";
import { type LineEvent, readLine } from "./import-line.ts";
import { eachLine } from "./ndjson.ts";

export interface DeadLetter {
  readonly id: string;
  /** When it became one. */
  readonly ts: number;
  /** Where it was published, and under which id. */
  readonly topic: string;
  readonly group: string;
  readonly eventId: string;
  readonly attempts: number;
  readonly reason: string;
  readonly key: string | undefined;
  readonly tags: readonly string[] | undefined;
  /** Those of the publisher. */
  readonly headers: Readonly<Record<string, string>> | undefined;
  /** JSON, as it was published. */
  readonly payload: string;
}

const headerPrefix = "x-dlq-";
const readRetryMs = 30_000;

export function deadLetterOf({ id, ts, key, tags, headers = {}, payload }: LineEvent): DeadLetter | undefined {
  if (id === undefined || ts === undefined) return undefined;
  const own = Object.entries(headers).filter(([name]) => !name.startsWith(headerPrefix));
  return {
    id,
    ts,
    topic: headers["x-dlq-topic"] ?? "",
    group: headers["x-dlq-group"] ?? "",
    eventId: headers["x-dlq-id"] ?? "",
    attempts: Number(headers["x-dlq-attempts"] ?? 0),
    reason: headers["x-dlq-reason"] ?? "",
    key,
    tags,
    headers: own.length === 0 ? undefined : Object.fromEntries(own),
    payload,
  };
}

export interface LetterFilter {
  /** Its own id, or that of the event it was. */
  readonly ids?: ReadonlySet<string> | undefined;
  /** A part of the reason, in any case. */
  readonly reason?: string | undefined;
  readonly key?: string | undefined;
}

export function matches({ id, eventId, reason, key }: DeadLetter, filter: LetterFilter): boolean {
  if (filter.ids !== undefined && !filter.ids.has(id) && !filter.ids.has(eventId)) return false;
  if (filter.reason !== undefined && !reason.toLowerCase().includes(filter.reason.toLowerCase())) return false;
  return filter.key === undefined || key === filter.key;
}

/**
 * The id under which a dead letter is published again: always the same, so that doing it twice stores it once. Its own id is in it
 * where there is room.
 */
export function redriveId(id: string): string {
  const plain = `redrive:${id}`;
  return plain.length <= eventIdCharsMax ? plain : `redrive:sha256:${hash("sha256", id, "hex")}`;
}

// ----------------------------------------------------------------------------------------------------------------- reading

export interface LetterRange {
  readonly topic: string;
  readonly group: string;
  /** When it became a dead letter, in ms since 1970, both inclusive. */
  readonly since: number | null;
  readonly until: number | null;
}

/** Hands over dead letters in the order of the log, some at a time; `take` ends it by resolving with true. */
export async function readLetters(
  context: Context,
  { topic, group, since, until }: LetterRange,
  take: (letters: readonly DeadLetter[]) => Promise<boolean>,
): Promise<void> {
  const letterTopic = deadLetterTopic(topic, group);
  await needLetters(context, topic, group);
  const enough = new AbortController();
  const { url, token } = context;
  const signal = AbortSignal.any([context.signal, enough.signal]);
  const source = { url, token, signal, clock: realClock(), topic: letterTopic, fromTs: since, toTs: until };
  const sink = {
    async write(block: Buffer) {
      if (signal.aborted) return;
      const letters: DeadLetter[] = [];
      eachLine(block, (start, end) => {
        const event = readLine(block.subarray(start, end));
        const letter = typeof event === "string" ? undefined : deadLetterOf(event);
        if (letter !== undefined) letters.push(letter);
      });
      if (await take(letters)) enough.abort();
    },
  };
  try {
    await streamExport(
      { ...source, retryMs: readRetryMs, known: true, onCut: () => undefined },
      { trail: new Trail(letterTopic), hash: createHash("sha256"), sink },
    );
  } catch (error) {
    if (!(error instanceof ExportCut)) throw error;
    if (enough.signal.aborted) return;
    if (context.signal.aborted) throw new CliError("interrupted", exitCodes.interrupted);
    throw new CliError(`the dead letters could not be read: ${error.message}`, exitCodes.unreachable);
  }
}

async function needLetters(context: Context, topic: string, group: string): Promise<void> {
  try {
    await context.http(`/topics/${encodeURIComponent(deadLetterTopic(topic, group))}/offsets`);
  } catch (error) {
    if (!(error instanceof CliError) || error.exitCode !== exitCodes.missing) throw error;
    throw new CliError(`the group ${group} has no dead letters on ${topic}: see narthex dlq list`, exitCodes.missing);
  }
}
