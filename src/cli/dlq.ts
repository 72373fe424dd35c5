// narthex dlq: which groups have dead letters, what is in them and why, and publishing them again.

import { realClock } from "../runtime/clock.ts";
import { checkGroup, checkPublishTopic, checkTopic, collect, query, wholeNumber } from "./arguments.ts";
import type { Context, Register } from "./context.ts";
import { type DeadLetter, matches, readLetters } from "./dead-letters.ts";
import { oneLine } from "./failures.ts";
import { painter } from "./paint.ts";
import { redrive } from "./redrive.ts";
import { cut, tableLines } from "./table.ts";
import { timeForms, timeOption, timeText } from "./times.ts";

interface ShowOptions {
  readonly limit: number;
  readonly since?: string;
  readonly reason?: string;
  readonly key?: string;
}

interface RedriveFlags {
  readonly id?: readonly string[];
  readonly reason?: string;
  readonly key?: string;
  readonly since?: string;
  readonly until?: string;
  readonly limit?: number;
  readonly rate?: number;
  readonly to?: string;
  readonly create?: true;
  readonly dryRun?: true;
}

const showDefault = 100;
const rateMax = 1_000_000;
const previewWidth = 60;
const reasonWidth = 40;
/** Topics that are asked for at a time. */
const asksMax = 16;

export const registerDlq: Register = (program, run) => {
  const dlq = program
    .command("dlq")
    .summary("list, show and redrive dead letters")
    .description("Dead letters: events that a group could not handle in as many attempts as it has.")
    .addHelpText(
      "after",
      `
Examples:
  narthex dlq list
  narthex dlq show orders billing --reason timeout
  narthex dlq redrive orders billing --reason timeout --dry-run`,
    );
  dlq
    .command("list")
    .summary("groups that have dead letters")
    .description("List the dead-letter topics: of which topic and group, how many, from when to when.")
    .argument("[topic]", "only those of this topic")
    .addHelpText("after", "\nExample:\n  narthex dlq list orders")
    .action((topic: string | undefined) =>
      run((context) => list(context, topic === undefined ? undefined : checkTopic(topic))),
    );
  dlq
    .command("show")
    .summary("the dead letters of a group")
    .description("Show dead letters, oldest first: id, when, attempts, reason, key and the beginning of the payload.")
    .argument("<topic>")
    .argument("<group>")
    .option("--limit <n>", "so many at most", wholeNumber("--limit", 1), showDefault)
    .option("--since <time>", `dead since: ${timeForms}`)
    .option("--reason <text>", "only those with this in the reason")
    .option("--key <key>", "only those of this key")
    .addHelpText("after", "\nExample:\n  narthex dlq show orders billing --since 2h --reason timeout")
    .action((topic: string, group: string, options: ShowOptions) =>
      run((context) => show(context, checkTopic(topic), checkGroup(group), options)),
    );
  dlq
    .command("redrive")
    .summary("publish dead letters again")
    .description(
      "Publish dead letters once more to the topic that they came from, with their key, tags and headers. One that was redriven before is left alone. ALL groups of the topic get them, not only the one that failed: look at it with --dry-run first.",
    )
    .argument("<topic>")
    .argument("<group>")
    .option("--id <id>", "only this one (its own id, or that of the event it was); may be repeated", collect)
    .option("--reason <text>", "only those with this in the reason")
    .option("--key <key>", "only those of this key")
    .option("--since <time>", `dead since: ${timeForms}`)
    .option("--until <time>", "dead until")
    .option("--limit <n>", "so many at most", wholeNumber("--limit", 1))
    .option("--rate <n>", "events per second at most", wholeNumber("--rate", 1, rateMax))
    .option("--to <topic>", "publish them to this topic instead")
    .option("--create", "make the topic anew if it was deleted")
    .option("--dry-run", "only say what would be done")
    .addHelpText(
      "after",
      `
Examples:
  narthex dlq redrive orders billing --reason timeout --dry-run
  narthex dlq redrive orders billing --since 2h --rate 50`,
    )
    .action((topic: string, group: string, flags: RedriveFlags) =>
      run((context) => redriveFrom(context, checkTopic(topic), checkGroup(group), flags)),
    );
};

// --------------------------------------------------------------------------------------------------------------------- list

interface Topic {
  readonly topic: string;
  readonly deadLetterOf?: { readonly topic: string; readonly group: string };
}

interface Row {
  readonly topic: string;
  readonly source: string;
  readonly group: string;
  readonly events: number;
  readonly oldest?: number;
  readonly newest?: number;
}

async function list(context: Context, source: string | undefined): Promise<void> {
  const found: Row[] = [];
  let after: string | undefined;
  do {
    const page = await context.getJson<{ topics: Topic[]; next?: string }>(`/topics?${query({ after, limit: 1000 })}`);
    const dead = page.topics.filter(
      ({ deadLetterOf }) => deadLetterOf && (source ?? deadLetterOf.topic) === deadLetterOf.topic,
    );
    for (let from = 0; from < dead.length; from += asksMax) {
      found.push(...(await Promise.all(dead.slice(from, from + asksMax).map((topic) => describe(context, topic)))));
    }
    after = page.next;
  } while (after !== undefined);
  if (context.json) {
    context.out(JSON.stringify(found));
    return;
  }
  if (found.length === 0) {
    context.note(source === undefined ? "no group has dead letters" : `no group has dead letters on ${source}`);
    return;
  }
  const rows = found.map(({ source: topic, group, events, oldest, newest }) => [
    topic,
    group,
    events,
    oldest === undefined ? "-" : timeText(oldest),
    newest === undefined ? "-" : timeText(newest),
  ]);
  const paint = painter(context);
  const lines = tableLines(["topic", "group", "events", "oldest", "newest"], rows, (line) => paint("dim", line));
  for (const line of lines) context.out(line);
}

async function describe(context: Context, { topic, deadLetterOf }: Topic): Promise<Row> {
  const path = `/topics/${encodeURIComponent(topic)}`;
  const { offsets } = await context.getJson<{ offsets: { start: number; end: number; lastStoredAt?: number }[] }>(path);
  const events = offsets.reduce((sum, { start, end }) => sum + end - start, 0);
  const row = { topic, source: deadLetterOf?.topic ?? "", group: deadLetterOf?.group ?? "", events };
  if (events === 0) return row;
  const first = await context.getJson<{ events: { ts: number }[] }>(`/replay?${query({ topic, limit: 1 })}`);
  const newest = Math.max(...offsets.map(({ lastStoredAt }) => lastStoredAt ?? 0));
  return { ...row, oldest: first.events[0]?.ts ?? newest, newest };
}

// --------------------------------------------------------------------------------------------------------------------- show

async function show(context: Context, topic: string, group: string, options: ShowOptions): Promise<void> {
  const { limit, reason, key } = options;
  const since = options.since === undefined ? null : timeOption("--since", options.since, realClock().wall());
  const shown: DeadLetter[] = [];
  let more = false;
  await readLetters(context, { topic, group, since, until: null }, async (letters) => {
    for (const letter of letters) {
      if (!matches(letter, { reason, key })) continue;
      more = shown.length === limit;
      if (more) break;
      shown.push(letter);
    }
    return more;
  });
  if (context.json) {
    for (const letter of shown) context.out(letterJson(letter));
    return;
  }
  if (shown.length === 0) context.note("no dead letter is like that");
  else {
    const paint = painter(context);
    const rows = shown.map(({ id, ts, attempts, reason: why, key: of, payload }) => [
      id,
      timeText(ts),
      attempts,
      cut(oneLine(why), reasonWidth),
      of === undefined ? "-" : oneLine(of),
      cut(oneLine(payload), previewWidth),
    ]);
    const head = ["id", "dead since", "attempts", "reason", "key", "payload"];
    for (const line of tableLines(head, rows, (text) => paint("dim", text))) context.out(line);
  }
  if (more) context.note(`there are more: --limit is ${limit}`);
}

function letterJson({
  id,
  ts,
  topic,
  group,
  eventId,
  attempts,
  reason,
  key,
  tags,
  headers,
  payload,
}: DeadLetter): string {
  const head = JSON.stringify({ id, ts, topic, group, event_id: eventId, attempts, reason, key, tags, headers });
  return `${head.slice(0, -1)},"payload":${payload}}`;
}

// ------------------------------------------------------------------------------------------------------------------ redrive

async function redriveFrom(context: Context, topic: string, group: string, flags: RedriveFlags): Promise<void> {
  const now = realClock().wall();
  const { id, reason, key, limit, rate, to } = flags;
  await redrive(context, {
    range: {
      topic,
      group,
      since: flags.since === undefined ? null : timeOption("--since", flags.since, now),
      until: flags.until === undefined ? null : timeOption("--until", flags.until, now),
    },
    filter: { ids: id === undefined ? undefined : new Set(id), reason, key },
    limit,
    rate,
    to: to === undefined ? undefined : checkPublishTopic(to),
    create: flags.create === true,
    dryRun: flags.dryRun === true,
  });
}
