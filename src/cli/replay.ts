// narthex replay: what is stored of a topic, in order, from the log and not through a group.

import type { EventRecord } from "../protocol/event.ts";
import { parsePosition } from "../protocol/position.ts";
import { realClock } from "../runtime/clock.ts";
import { checkTopic, query, usage, wholeNumber } from "./arguments.ts";
import type { Context, Register } from "./context.ts";
import { eventPrinter } from "./event-lines.ts";
import { idPlace, type Place, readPlace } from "./place.ts";
import { stdoutColumns, stdoutDrained } from "./stdout.ts";
import { timeOption } from "./times.ts";

interface ReplayOptions {
  readonly from?: string;
  readonly id?: string;
  readonly since?: string;
  readonly until?: string;
  readonly limit?: number;
  readonly full?: true;
}

interface Page {
  readonly events: readonly EventRecord<unknown>[];
  readonly next: string;
}

const pageEventsMax = 1000;

export const registerReplay: Register = (program, run) => {
  program
    .command("replay")
    .summary("print what is stored of a topic")
    .description("Print the stored events of a topic in order and end. No group is touched.")
    .argument("<topic>")
    .option("--from <place>", "earliest (default), a time, a position such as 0:12, or the id of the event before")
    .option("--id <id>", "begin behind the event of this id")
    .option("--since <time>", "the same as --from with a time: 10m (ago), a date, or milliseconds")
    .option("--until <time>", "leave out events that are later than this")
    .option("-n, --limit <n>", "end after so many events", wholeNumber("--limit", 1))
    .option("--full", "all of each event, also where it is wider than the terminal")
    .addHelpText(
      "after",
      `
Examples:
  narthex replay orders --since 1h
  narthex replay orders --from 0:100 --limit 10
  narthex replay orders --json | jq .payload`,
    )
    .action((topic: string, options: ReplayOptions) =>
      run((context) => replay(context, checkTopic(topic), options, realClock().wall())),
    );
};

async function replay(context: Context, topic: string, options: ReplayOptions, now: number): Promise<void> {
  const place = startOf(options, now);
  const until = options.until === undefined ? undefined : timeOption("--until", options.until, now);
  const print = eventPrinter(context, {
    topics: [topic],
    full: options.full === true,
    columns: stdoutColumns(),
  });
  // On a topic that is being published to, "all" is what is there now.
  const { latest } = await context.getJson<{ readonly latest: string }>(`/topics/${topic}/offsets`);
  const ends = parsePosition(latest) ?? new Map<number, number>();
  let after = place.kind === "offsets" ? place.offsets : place.kind === "latest" ? latest : undefined;
  let left = options.limit ?? Number.POSITIVE_INFINITY;
  while (left > 0 && !reached(after, ends)) {
    const page = await context.getJson<Page>(
      `/replay?${query({ topic, ...startQuery(place), after, limit: Math.min(pageEventsMax, left) })}`,
    );
    if (page.events.length === 0) return;
    for (const event of page.events) {
      const fresh = event.offset >= (ends.get(event.partition) ?? 0);
      if (fresh || (until !== undefined && event.ts > until)) continue;
      print(event);
      left--;
    }
    await stdoutDrained();
    after = page.next;
  }
}

function startOf({ from, id, since }: ReplayOptions, now: number): Place {
  if ([from, id, since].filter((given) => given !== undefined).length > 1) {
    throw usage("--from, --id and --since all say where to begin: give one of them");
  }
  if (id !== undefined) return idPlace("--id", id);
  if (since !== undefined)
    return since === "earliest" ? { kind: since } : { kind: "ts", ts: timeOption("--since", since, now) };
  return from === undefined ? { kind: "earliest" } : readPlace("--from", from, now);
}

function startQuery(place: Place): Readonly<Record<string, string | number>> {
  if (place.kind === "ts") return { from: "ts", ts: place.ts };
  if (place.kind === "id") return { from: "afterId", afterId: place.id };
  return { from: "earliest" };
}

/** Whether a position is at or behind the end in every partition. */
function reached(after: string | undefined, ends: ReadonlyMap<number, number>): boolean {
  if (after === undefined) return false;
  const at = parsePosition(after) ?? new Map<number, number>();
  return [...ends].every(([partition, end]) => (at.get(partition) ?? 0) >= end);
}
