// narthex tail: what comes to topics, live. It looks through a group of its own that ends with it, so that nobody else notices.

import type { Filter } from "../client/client.ts";
import type { EventRecord } from "../protocol/event.ts";
import { realClock } from "../runtime/clock.ts";
import { checkTopic, collect, collectHeader, usage, wholeNumber } from "./arguments.ts";
import { CliError, type Context, exitCodes, type Register } from "./context.ts";
import { eventPrinter } from "./event-lines.ts";
import { oneLine } from "./failures.ts";
import { readPlace, subscribeFrom } from "./place.ts";
import { stdoutColumns, stdoutDrained } from "./stdout.ts";
import { aborted } from "./sub.ts";

interface TailOptions {
  readonly key?: string;
  readonly keyPrefix?: string;
  readonly tag?: readonly string[];
  readonly header?: Readonly<Record<string, string>>;
  readonly grep?: string;
  readonly since?: string;
  readonly max?: number;
  readonly full?: true;
}

const groupNonceBytes = 6;

export const registerTail: Register = (program, run) => {
  program
    .command("tail")
    .summary("follow topics live, without disturbing any group")
    .description("Print events as they are published, until Ctrl-C. No other group is touched.")
    .argument("<topic...>")
    .option("-k, --key <key>", "only events of this key")
    .option("--key-prefix <text>", "only events whose key begins with this")
    .option("--tag <tag>", "only events with this tag; may be repeated", collect)
    .option("--header <name=value>", "only events with this header; may be repeated", collectHeader)
    .option("--grep <regex>", "only events whose payload, as compact JSON, matches this")
    .option(
      "--since <place>",
      "begin earlier: 10m (ago), a date, earliest, or a position; default: what comes from now on",
    )
    .option("-n, --max <n>", "end after so many events", wholeNumber("--max", 1))
    .option("--full", "all of each event, also where it is wider than the terminal")
    .addHelpText(
      "after",
      `
Examples:
  narthex tail orders
  narthex tail orders payments --since 10m --key-prefix customer-
  narthex tail orders --grep '"status":"failed"' --json | jq .payload`,
    )
    .action((topics: readonly string[], options: TailOptions) =>
      run((context) => tail(context, [...new Set(topics.map(checkTopic))], options)),
    );
};

async function tail(context: Context, topics: readonly string[], options: TailOptions): Promise<number> {
  const { max = Number.POSITIVE_INFINITY } = options;
  const clock = realClock();
  const from = subscribeFrom(readPlace("--since", options.since ?? "latest", clock.wall()));
  const filter = filterOf(options);
  const wanted = grepOf(options);
  // A subscription makes the topic that it names. Whoever only looks must not make one by a slip of the keyboard.
  for (const topic of topics) await needTopic(context, topic);
  const client = await context.client();
  const print = eventPrinter(context, {
    topics,
    full: options.full === true,
    columns: stdoutColumns(),
  });
  let printed = 0;
  let finish: () => void = () => undefined;
  const done = new Promise<void>((resolve) => {
    finish = resolve;
  });
  const seen = new SeenOffsets();
  const handle = async (event: EventRecord<unknown>) => {
    if (!seen.isNew(event) || !wanted(event) || printed >= max) return;
    printed++;
    print(event);
    await stdoutDrained();
    if (printed >= max) finish();
  };
  const subscription = await client.subscribe(topics, `tail-${clock.nonce(groupNonceBytes)}`, handle, {
    ...from,
    ephemeral: true,
    ...(filter === undefined ? {} : { filter }),
    // Without an event it is the end of the subscription, which `closed` says too.
    onError: (error, event) => {
      if (event !== undefined) context.note(`narthex: ${event.id}: ${oneLine(error.message)}`);
    },
  });
  if (context.tty && !context.json) context.note(`following ${topics.join(", ")}; Ctrl-C ends it`);
  await Promise.race([done, aborted(context.signal), subscription.closed]);
  await subscription.close();
  return context.signal.aborted && max !== Number.POSITIVE_INFINITY ? exitCodes.interrupted : exitCodes.ok;
}

async function needTopic(context: Context, topic: string): Promise<void> {
  try {
    await context.http(`/topics/${topic}/offsets`);
  } catch (error) {
    if (!(error instanceof CliError) || error.exitCode !== exitCodes.missing) throw error;
    throw new CliError(
      `there is no topic ${topic}: publish to it, or make it with: narthex topics create ${topic}`,
      exitCodes.missing,
    );
  }
}

/** Applied by the node. */
function filterOf({ key, keyPrefix, tag, header }: TailOptions): Filter | undefined {
  const filter = {
    ...(key === undefined ? {} : { key }),
    ...(keyPrefix === undefined ? {} : { keyPrefix }),
    ...(tag === undefined ? {} : { tags: tag }),
    ...(header === undefined ? {} : { headers: header }),
  };
  return Object.keys(filter).length === 0 ? undefined : filter;
}

function grepOf({ grep }: TailOptions): (event: EventRecord<unknown>) => boolean {
  if (grep === undefined) return () => true;
  try {
    const pattern = new RegExp(grep, "u");
    return ({ payload }) => pattern.test(JSON.stringify(payload));
  } catch (error) {
    if (error instanceof SyntaxError)
      throw usage("--grep is not a regular expression: special characters need a backslash");
    throw error;
  }
}

/** After a lost connection some events come again, or all of them if the group has ended meanwhile: each is shown once. */
class SeenOffsets {
  private readonly next = new Map<string, number>();

  isNew({ topic, partition, offset }: EventRecord<unknown>): boolean {
    const place = `${topic}/${partition}`;
    if (offset < (this.next.get(place) ?? 0)) return false;
    this.next.set(place, offset + 1);
    return true;
  }
}
