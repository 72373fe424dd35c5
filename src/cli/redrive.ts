// narthex dlq redrive: dead letters published once more to where they came from. The id of each says which dead letter it was, so that
// what was redriven before is found in the target and left alone, however long ago that was.

import type { EventClient } from "../client/client.ts";
import { RawJson } from "../client/raw-json.ts";
import { type Clock, realClock } from "../runtime/clock.ts";
import { CliError, type Context, exitCodes } from "./context.ts";
import {
  type DeadLetter,
  type LetterFilter,
  type LetterRange,
  matches,
  readLetters,
  redriveId,
} from "./dead-letters.ts";
import { hasEvent } from "./import-target.ts";
import { findTopic } from "./node-answers.ts";
import { pause } from "./pause.ts";
import { eventsText, Progress } from "./progress.ts";

export interface RedriveOptions {
  readonly range: LetterRange;
  readonly filter: LetterFilter;
  /** Dead letters at most. */
  readonly limit: number | undefined;
  /** Per second. */
  readonly rate: number | undefined;
  /** In place of the topic that each came from. */
  readonly to: string | undefined;
  /** A topic that was deleted meanwhile is made anew. */
  readonly create: boolean;
  readonly dryRun: boolean;
}

/** Asked for, and published, at a time. */
const togetherMax = 64;

interface Counts {
  matched: number;
  redriven: number;
  before: number;
}

export async function redrive(context: Context, options: RedriveOptions): Promise<void> {
  const { range, filter, limit = Number.POSITIVE_INFINITY, to, create, dryRun } = options;
  const client = dryRun ? undefined : await context.client();
  const counts: Counts = { matched: 0, redriven: 0, before: 0 };
  const clock = realClock();
  const progress = new Progress({ clock, tty: context.tty, label: "redrive", total: undefined });
  const pacer = new Pacer(clock, options.rate, context.signal);
  const targets = new Set<string>();
  const found = new Set<string>();
  const checked = new Set<string>();
  try {
    await readLetters(context, range, async (letters) => {
      const wanted = letters.filter((letter) => matches(letter, filter));
      for (const { id, eventId, topic } of wanted) {
        found.add(id).add(eventId);
        if (create || to !== undefined || checked.has(topic)) continue;
        await needTopic(context, topic);
        checked.add(topic);
      }
      for (let from = 0; from < wanted.length; from += togetherMax) {
        const some = wanted.slice(from, from + togetherMax);
        const isThere = await Promise.all(
          // One that was redriven is in the target under the id that it gets each time.
          some.map((letter) => hasEvent(context, to ?? letter.topic, redriveId(letter.id))),
        );
        counts.before += isThere.filter((there) => there).length;
        counts.matched += some.length;
        const fresh = some.filter((_, i) => !isThere[i]).slice(0, limit - counts.redriven);
        for (const { topic } of fresh) targets.add(to ?? topic);
        if (client !== undefined) await publishAll(client, fresh, to, pacer);
        counts.redriven += fresh.length;
        progress.reach(counts.redriven);
        if (counts.redriven >= limit) return true;
      }
      return false;
    });
  } finally {
    progress.stop();
  }
  await report(context, options, counts, [...targets]);
  const absent = [...(filter.ids ?? [])].filter((id) => !found.has(id));
  if (absent.length > 0 && counts.redriven < limit) {
    const chosen = filter.reason === undefined && filter.key === undefined ? "" : " that is like that";
    const line = `the group ${range.group} has no dead letter ${absent.join(", ")}${chosen} on ${range.topic}`;
    throw new CliError(line, exitCodes.missing);
  }
}

/** Publishing would make it, with the settings of any new topic and without its groups. */
async function needTopic(context: Context, topic: string): Promise<void> {
  if ((await findTopic(context, topic)) !== undefined) return;
  throw new CliError(
    `${topic} does not exist any more: --create makes it anew, --to publishes them to another topic`,
    exitCodes.missing,
  );
}

async function publishAll(
  client: EventClient,
  letters: readonly DeadLetter[],
  to: string | undefined,
  pacer: Pacer,
): Promise<void> {
  const sent: Promise<unknown>[] = [];
  for (const { id, topic, key, tags, headers, payload } of letters) {
    if (!(await pacer.next())) throw new CliError("interrupted: the same command goes on", exitCodes.interrupted);
    sent.push(
      client.publish(to ?? topic, new RawJson(payload), {
        id: redriveId(id),
        caused_by: [id],
        ...(key === undefined ? {} : { key }),
        ...(tags === undefined ? {} : { tags }),
        ...(headers === undefined ? {} : { headers }),
      }),
    );
    // Whatever fails is thrown below; until then nobody else hears of it.
    sent.at(-1)?.catch((error: Error) => error);
  }
  await Promise.all(sent);
}

class Pacer {
  private readonly clock: Clock;
  private readonly rate: number | undefined;
  private readonly signal: AbortSignal;
  private readonly startedAt: number;
  private count = 0;

  constructor(clock: Clock, rate: number | undefined, signal: AbortSignal) {
    this.clock = clock;
    this.rate = rate;
    this.signal = signal;
    this.startedAt = clock.mono();
  }

  /** Resolves when the next may go; false: it is over. */
  async next(): Promise<boolean> {
    if (this.signal.aborted) return false;
    if (this.rate === undefined) return true;
    const due = this.startedAt + (this.count++ / this.rate) * 1000;
    const waitMs = due - this.clock.mono();
    return waitMs <= 1 || pause(this.clock, waitMs, this.signal);
  }
}

// ------------------------------------------------------------------------------------------------------------------ the end

async function report(
  context: Context,
  { range: { topic, group }, dryRun }: RedriveOptions,
  { matched, redriven, before }: Counts,
  targets: readonly string[],
): Promise<void> {
  const groups = dryRun ? await groupsOf(context, targets) : undefined;
  if (context.json) {
    context.out(
      JSON.stringify({
        topic,
        group,
        to: targets,
        matched,
        redriven,
        redriven_before: before,
        dry_run: dryRun,
        ...(groups === undefined ? {} : { groups }),
      }),
    );
    return;
  }
  const where = targets.length === 0 ? "" : ` to ${targets.join(", ")}`;
  const skipped = before === 0 ? "" : `; ${before} of ${matched} were redriven before and are left alone`;
  if (!dryRun) {
    context.out(`redrove ${eventsText(redriven)}${where}${skipped}`);
    return;
  }
  context.out(`would redrive ${eventsText(redriven)}${where}${skipped}`);
  if (redriven > 0) {
    const all = groups?.length ? `all groups there would get them: ${groups.join(", ")}` : "no group reads there yet";
    context.out(`not only ${group}: ${all}`);
  }
}

async function groupsOf(context: Context, topics: readonly string[]): Promise<string[]> {
  const names = new Set<string>();
  for (const topic of topics) {
    try {
      const found = await context.getJson<{ groups: { group: string }[] }>(`/topics/${encodeURIComponent(topic)}`);
      for (const { group } of found.groups) names.add(group);
    } catch (error) {
      if (!(error instanceof CliError) || error.exitCode !== exitCodes.missing) throw error;
    }
  }
  return [...names].sort();
}
