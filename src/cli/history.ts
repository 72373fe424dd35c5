// narthex history: who held an event, until when, and how it ended, for each group.

import { eventIdFault } from "../protocol/names.ts";
import { checkTopic, query, usage } from "./arguments.ts";
import type { Context, Register } from "./context.ts";
import { painter } from "./paint.ts";
import { tableLines } from "./table.ts";
import { timeText } from "./times.ts";

interface History {
  readonly topic: string;
  readonly id: string;
  readonly partition: number;
  readonly offset: number;
  readonly ts: number;
  readonly groups: readonly {
    readonly group: string;
    readonly state: string;
    readonly attempts?: number;
    readonly holders: readonly {
      readonly who: string;
      readonly attempt: number;
      /** ISO times. */
      readonly from: string;
      readonly until: string;
      readonly outcome: string;
      readonly reason?: string;
    }[];
  }[];
}

export const registerHistory: Register = (program, run) => {
  program
    .command("history")
    .summary("show who held an event and what became of it")
    .description(
      "Show for each group what became of an event: who held it, until when, with what outcome and reason. The node remembers this for what is unsettled and for what was settled lately.",
    )
    .argument("<topic>")
    .argument("<id>", "of the event")
    .addHelpText("after", "\nExample:\n  narthex history orders order:1")
    .action((topic: string, id: string) =>
      run((context) => {
        const fault = eventIdFault(id);
        if (fault !== undefined) throw usage(fault);
        return history(context, checkTopic(topic), id);
      }),
    );
};

async function history(context: Context, topic: string, id: string): Promise<void> {
  const found = await context.getJson<History>(`/history?${query({ topic, id })}`);
  if (context.json) {
    context.out(JSON.stringify(found));
    return;
  }
  const paint = painter(context);
  context.out(
    `${paint("bold", found.id)} at ${found.partition}:${found.offset} of ${found.topic}, ${timeText(found.ts)}`,
  );
  if (found.groups.length === 0) {
    context.out(`no group on ${found.topic}`);
    return;
  }
  const rows = found.groups.flatMap(({ group, state, attempts, holders }) =>
    holders.length === 0
      ? [[group, state, attempts === undefined ? "" : String(attempts), "", "", "", "", ""]]
      : holders.map(({ who, attempt, from, until, outcome, reason }, i) => [
          i === 0 ? group : "",
          i === 0 ? state : "",
          String(attempt),
          who,
          from,
          until,
          outcome,
          reason ?? "",
        ]),
  );
  const headings = ["group", "state", "attempt", "held by", "from", "until", "outcome", "reason"];
  for (const line of tableLines(headings, rows, (head) => paint("dim", head))) context.out(line);
}
