// narthex groups: how far the groups of a topic are, and deleting one.

import { realClock } from "../runtime/clock.ts";
import { checkGroup, checkTopic, query, usage } from "./arguments.ts";
import { confirm } from "./confirm.ts";
import { CliError, type Context, exitCodes, type Register } from "./context.ts";
import { painter } from "./paint.ts";
import { pause } from "./pause.ts";
import { type Cell, many, tableLines } from "./table.ts";
import { durationText, timeText } from "./times.ts";

export interface GroupCursor {
  readonly group: string;
  readonly lag: number;
  readonly members: number;
  readonly lastId?: string;
  readonly lastTs?: number;
  readonly oldestLeaseMs?: number;
  readonly partitions: readonly {
    readonly partition: number;
    readonly floor: number;
    readonly ranges: readonly (readonly [number, number])[];
    readonly start: number;
    readonly end: number;
    readonly lag: number;
    readonly leased: number;
    readonly waiting: number;
  }[];
}

const watchMs = 1000;

export const registerGroups: Register = (program, run) => {
  const groups = program
    .command("groups")
    .summary("show how far the groups of a topic are")
    .description(
      "Show the groups of a topic: events not yet settled (lag), events held by members (in flight), events waiting for their next attempt, how long the oldest lease has been held, and members.",
    )
    .argument("<topic>")
    .option("-w, --watch", "draw it again every second; with --json one line each second")
    .addHelpText(
      "after",
      `
Examples:
  narthex groups orders
  narthex groups orders --watch
  narthex groups delete orders billing --yes`,
    )
    .action((topic: string, { watch }: { watch?: true }) =>
      run((context) => (watch ? watchGroups(context, checkTopic(topic)) : showGroups(context, checkTopic(topic)))),
    );
  groups
    .command("delete")
    .summary("delete a group with its cursor")
    .description("Delete a group with its cursor and end its subscriptions. The events stay.")
    .argument("<topic>")
    .argument("<group>")
    .option("-y, --yes", "do not ask")
    .addHelpText("after", "\nExample:\n  narthex groups delete orders billing --yes")
    .action((topic: string, group: string, { yes }: { yes?: true }) =>
      run((context) => remove(context, checkTopic(topic), checkGroup(group), yes)),
    );
};

async function showGroups(context: Context, topic: string): Promise<void> {
  const cursors = await cursorsOf(context, topic);
  if (context.json) {
    context.out(JSON.stringify({ topic, groups: cursors }));
    return;
  }
  for (const line of groupLines(context, topic, cursors)) context.out(line);
}

async function watchGroups(context: Context, topic: string): Promise<void> {
  if (!context.json && !process.stdout.isTTY) {
    throw usage("--watch draws on a terminal: with --json it gives one line each second");
  }
  const clock = realClock();
  let clear = "\u001b[2J";
  while (!context.signal.aborted) {
    const cursors = await cursorsOf(context, topic).catch((error: unknown) => {
      if (!context.signal.aborted) throw error;
    });
    if (cursors === undefined) return;
    if (context.json) context.out(JSON.stringify({ topic, at: clock.wall(), groups: cursors }));
    else {
      const lines = [`${topic}, ${timeText(clock.wall())}; Ctrl-C ends it`, "", ...groupLines(context, topic, cursors)];
      // To the top, each line cleared to its right and the rest below: without a blank screen in between nothing flickers.
      process.stdout.write(`${clear}\u001b[H${lines.map((line) => `${line}\u001b[K\n`).join("")}\u001b[J`);
      clear = "";
    }
    await pause(clock, watchMs, context.signal);
  }
}

export async function cursorsOf(context: Context, topic: string): Promise<readonly GroupCursor[]> {
  const cursors: GroupCursor[] = [];
  let after: string | undefined;
  do {
    const page = await context.getJson<{ readonly cursors: readonly GroupCursor[]; readonly next?: string }>(
      `/cursors?${query({ topic, after, limit: 1000 })}`,
    );
    cursors.push(...page.cursors);
    after = page.next;
  } while (after !== undefined);
  return cursors;
}

/** One group, or exit code 4. */
export async function cursorOf(context: Context, topic: string, group: string): Promise<GroupCursor> {
  const cursors = await cursorsOf(context, topic);
  const cursor = cursors.find((one) => one.group === group);
  if (cursor !== undefined) return cursor;
  throw new CliError(`${topic} has no group ${group}: see them with narthex groups ${topic}`, exitCodes.missing);
}

export function leasedOf({ partitions }: GroupCursor): number {
  return partitions.reduce((sum, { leased }) => sum + leased, 0);
}

function groupLines(context: Context, topic: string, cursors: readonly GroupCursor[]): readonly string[] {
  if (cursors.length === 0) return [`${topic} has no groups: a subscription makes one`];
  const paint = painter(context);
  const rows = cursors.map((cursor): Cell[] => [
    cursor.group,
    cursor.lag,
    leasedOf(cursor),
    cursor.partitions.reduce((sum, { waiting }) => sum + waiting, 0),
    cursor.oldestLeaseMs === undefined ? "-" : durationText(cursor.oldestLeaseMs),
    cursor.members,
    cursor.lastTs === undefined ? "-" : timeText(cursor.lastTs),
  ]);
  const headings = ["group", "lag", "in flight", "waiting", "oldest lease", "members", "settled up to"];
  return tableLines(headings, rows, (head) => paint("dim", head));
}

async function remove(context: Context, topic: string, group: string, yes: boolean | undefined): Promise<void> {
  const { lag, members } = await cursorOf(context, topic, group);
  const left = `${many(lag, "unsettled event")} and ${many(members, "member")}`;
  await confirm(context, `the group ${group} of ${topic} with ${left} will be deleted, its cursor for good.`, yes);
  await context.http(`/topics/${topic}/groups/${group}`, { method: "DELETE" });
  context.out(
    context.json ? JSON.stringify({ topic, group, deleted: true }) : `the group ${group} of ${topic} was deleted`,
  );
}
