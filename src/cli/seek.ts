// narthex seek: moves a group to another place of its topic.

import type { Cursor, CursorTarget } from "../client/client.ts";
import { parsePosition, positionText } from "../protocol/position.ts";
import { realClock } from "../runtime/clock.ts";
import { checkGroup, checkTopic, usage } from "./arguments.ts";
import { confirm } from "./confirm.ts";
import type { Context, Register } from "./context.ts";
import { cursorOf, type GroupCursor, leasedOf } from "./groups.ts";
import { idPlace, type Place, placeText, readPlace } from "./place.ts";
import { count, many } from "./table.ts";

interface SeekOptions {
  readonly id?: string;
  readonly yes?: true;
}

export const registerSeek: Register = (program, run) => {
  program
    .command("seek")
    .summary("move a group to another place")
    .description(
      "Move a group: back, and events are delivered again; forward, and events are skipped. Its leases end and the attempts so far are forgotten.",
    )
    .argument("<topic>")
    .argument("<group>")
    .argument(
      "[to]",
      "earliest, latest, a time such as 10m (ago), a position such as 0:12, or the id of the event before",
    )
    .option("--id <id>", "behind the event of this id")
    .option("-y, --yes", "do not ask")
    .addHelpText(
      "after",
      `
Examples:
  narthex seek orders billing earliest
  narthex seek orders billing 2026-05-01T12:00:00Z --yes
  narthex seek orders billing 0:1200,1:1180 --yes`,
    )
    .action((topic: string, group: string, to: string | undefined, options: SeekOptions) =>
      run((context) => {
        if ((to === undefined) === (options.id === undefined)) throw usage("say where to: a place, or --id");
        const place =
          to === undefined ? idPlace("--id", options.id ?? "") : readPlace("the place", to, realClock().wall());
        return seek(context, { topic: checkTopic(topic), group: checkGroup(group), place, yes: options.yes });
      }),
    );
};

interface Move {
  readonly topic: string;
  readonly group: string;
  readonly place: Place;
  readonly yes: boolean | undefined;
}

async function seek(context: Context, { topic, group, place, yes }: Move): Promise<void> {
  const before = await cursorOf(context, topic, group);
  const from = positionText(new Map(before.partitions.map(({ partition, floor }) => [partition, floor])));
  const leased = leasedOf(before);
  const leases = leased === 0 ? "" : ` ${count(leased)} ${leased === 1 ? "lease ends" : "leases end"}.`;
  const plan = `${group} of ${topic} goes from ${from} (lag ${count(before.lag)}) to ${placeText(place)}: ${effectText(before, place)}.${leases}`;
  if (yes && !context.json) context.note(plan);
  await confirm(context, plan, yes);
  const client = await context.client();
  const after = await client.setCursor(topic, group, targetOf(place));
  const to = positionText(after.partitions.map(({ floor }) => floor));
  if (context.json) {
    context.out(
      JSON.stringify({ topic, group, from: { position: from, lag: before.lag }, to: { position: to, lag: after.lag } }),
    );
  } else context.out(`${group} of ${topic} stands at ${to} now, lag ${count(after.lag)}${changeText(before, after)}`);
}

/** What can be said before. Where a time or an id lies only the node knows. */
function effectText({ partitions, lag }: GroupCursor, place: Place): string {
  switch (place.kind) {
    case "earliest": {
      const again = partitions.reduce((sum, { start, end, lag }) => sum + Math.max(0, end - start - lag), 0);
      return again === 0
        ? "nothing that was settled comes again"
        : `${many(again, "settled event")} ${again === 1 ? "comes" : "come"} again`;
    }
    case "latest":
      return lag === 0 ? "nothing is skipped" : `${many(lag, "unsettled event")} ${lag === 1 ? "is" : "are"} skipped`;
    case "offsets": {
      const wanted = parsePosition(place.offsets) ?? new Map<number, number>();
      let again = 0;
      let skipped = 0;
      for (const { partition, floor } of partitions) {
        const moved = (wanted.get(partition) ?? floor) - floor;
        if (moved < 0) again -= moved;
        else skipped += moved;
      }
      return `${count(again)} offsets back, ${count(skipped)} forward`;
    }
    case "ts":
    case "id":
      return "what lies behind it is delivered, again or not, and what lies before it is not";
    default:
      return place satisfies never;
  }
}

function changeText(before: GroupCursor, after: Cursor): string {
  const change = after.lag - before.lag;
  if (change === 0) return "";
  return change > 0
    ? ` (${count(change)} more to deliver than before)`
    : ` (${count(-change)} fewer to deliver than before)`;
}

function targetOf(place: Place): CursorTarget {
  switch (place.kind) {
    case "earliest":
    case "latest":
      return place.kind;
    case "ts":
      return { lastTs: place.ts };
    case "offsets":
      return { offsets: place.offsets };
    case "id":
      return { lastId: place.id };
    default:
      return place satisfies never;
  }
}
