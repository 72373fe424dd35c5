// What of a file the target has already: from an earlier import of it, or from a run of this one that was cut.

import { parsePosition } from "../protocol/position.ts";
import type { Clock } from "../runtime/clock.ts";
import { CliError, type Context, exitCodes } from "./context.ts";
import { readLine } from "./import-line.ts";
import type { Ids, ReadEvent } from "./import-pipeline.ts";
import type { ImportSource } from "./import-source.ts";
import { aheadMax, type ImportState } from "./import-state.ts";
import { hasEvent, readBack, type Target } from "./import-target.ts";
import { Fingerprints } from "./import-verify.ts";
import { eachLine, LineBlocks, LineHead } from "./ndjson.ts";
import { eventsText } from "./progress.ts";

/** Events of the target whose ids are kept in memory for --skip-stored: about half a gigabyte. */
const storedMax = 16_000_000;

/**
 * The node forgets ids after some minutes, so a file that is given again would be stored again. Whether it was imported before is
 * asked of a few of its events.
 */
export async function needFresh(context: Context, source: ImportSource, { topic, end }: Target): Promise<void> {
  if ([...(parsePosition(end)?.values() ?? [])].every((offset) => offset === 0)) return;
  const events = (await source.sample()).map((line) => readLine(line));
  const ids = events.flatMap((event) => (typeof event === "string" || event.id === undefined ? [] : [event.id]));
  const stored = await Promise.all(ids.map((id) => hasEvent(context, topic, id))).catch((error: Error) => {
    // Whoever may publish need not be allowed to read.
    if (!(error instanceof CliError) || error.exitCode !== exitCodes.failed) throw error;
    context.note(`narthex: whether ${topic} has events of this file could not be looked up: ${error.message}`);
    return ids.map(() => false);
  });
  const known = ids[stored.indexOf(true)];
  if (known === undefined) return;
  throw new CliError(
    `${topic} has event ${known} of ${source.name} already: --skip-stored imports only what is not there, --new-ids makes a second copy`,
  );
}

export interface Looking {
  readonly context: Context;
  readonly clock: Clock;
  readonly retryMs: number;
}

/** For --skip-stored: ids that the target had when the import began. */
export async function storedBefore(
  { context, clock, retryMs }: Looking,
  { topic, end, begin, skipStored }: ImportState,
): Promise<Ids> {
  const ids = new Fingerprints();
  if (!skipStored) return ids;
  const ends = parsePosition(end) ?? new Map<number, number>();
  const head = new LineHead();
  try {
    await readBack(context, clock, { topic, from: begin, retryMs }, (block) => {
      eachLine(block, (start, stop) => {
        if (head.read(block, start, stop) && head.offset < (ends.get(head.partition) ?? 0)) ids.add(head.id, ids.size);
      });
      return ids.size > storedMax;
    });
  } catch (error) {
    // There is no such topic yet.
    if (!(error instanceof CliError) || error.exitCode !== exitCodes.missing) throw error;
  }
  if (ids.size <= storedMax) return ids;
  throw new CliError(`${topic} has more than ${eventsText(storedMax)}, too many for --skip-stored to look through`);
}

/** Ids of events behind the mark that the target has: some were sent and not confirmed when it was cut. */
export async function storedBehind(
  { context, clock, retryMs }: Looking,
  state: ImportState,
  { source, read }: { readonly source: ImportSource; readonly read: ReadEvent },
): Promise<Ids> {
  const ids = new Set<string>();
  const blocks = new LineBlocks();
  let index = state.mark.events;
  const add = (line: Buffer) => {
    const event = read(line, index);
    if (typeof event !== "object") return;
    index++;
    if (event.id !== undefined) ids.add(event.id);
  };
  for await (const chunk of source.chunks(state.mark.bytes)) {
    const block = blocks.push(chunk);
    if (block !== undefined) eachLine(block, (start, end) => add(block.subarray(start, end)));
    if (index - state.mark.events >= aheadMax) break;
  }
  const rest = blocks.rest();
  if (rest.length > 0 && index - state.mark.events < aheadMax) add(rest);
  const stored = new Set<string>();
  if (ids.size === 0) return stored;
  const head = new LineHead();
  const from = { topic: state.topic, from: state.mark.position, retryMs };
  try {
    await readBack(context, clock, from, (block) => {
      eachLine(block, (start, end) => {
        if (head.read(block, start, end) && ids.has(head.id)) stored.add(head.id);
      });
      return stored.size === ids.size;
    });
  } catch (error) {
    // It was cut before the first event made the topic.
    if (!(error instanceof CliError) || error.exitCode !== exitCodes.missing) throw error;
  }
  return stored;
}
