// narthex topics: which there are, what is in them, making and deleting them.

import { partitionsMax } from "../protocol/stream.ts";
import { byteCount, checkPublishTopic, checkTopic, query, usage, wholeNumber } from "./arguments.ts";
import { confirm } from "./confirm.ts";
import type { Context, Register } from "./context.ts";
import { painter } from "./paint.ts";
import { bytesText, many, tableLines } from "./table.ts";
import { durationOption, durationText, timeText } from "./times.ts";

interface Rate {
  readonly burst: number;
  readonly perSec: number;
}

interface Topic {
  readonly topic: string;
  readonly partitions: number;
  readonly retention?: { readonly ageMs?: number; readonly bytes?: number };
  readonly rate?: Rate | "off";
  readonly maxAttempts?: number;
  readonly createdAt: number;
  readonly deadLetterOf?: { readonly topic: string; readonly group: string };
}

interface TopicDetails extends Topic {
  readonly offsets: readonly {
    readonly partition: number;
    readonly start: number;
    readonly end: number;
    readonly bytes: number;
    readonly lastStoredAt?: number;
  }[];
  readonly groups: readonly { readonly group: string; readonly lag: number; readonly members: number }[];
}

interface CreateOptions {
  readonly partitions?: number;
  readonly retentionAge?: string;
  readonly retentionBytes?: number;
  readonly rate?: string;
  readonly maxAttempts?: number;
}

/** Topics that are asked for at a time. */
const asksMax = 16;

export const registerTopics: Register = (program, run) => {
  const topics = program
    .command("topics")
    .summary("list, show, make and delete topics")
    .description("List the topics, or show one of them.")
    .argument("[topic]", "show this one")
    .addHelpText(
      "after",
      `
Examples:
  narthex topics
  narthex topics orders
  narthex topics create orders --partitions 4 --retention-age 7d
  narthex topics delete orders --yes`,
    )
    .action((topic: string | undefined) =>
      run((context) => (topic === undefined ? list(context) : show(context, checkTopic(topic)))),
    );
  topics
    .command("create")
    .summary("make a topic, or change its settings")
    .description(
      "Make a topic. For one that is there, all settings are replaced but its partitions, which cannot be changed: one that is left out goes back to its default.",
    )
    .argument("<topic>")
    .option("--partitions <n>", `1 to ${partitionsMax}`, wholeNumber("--partitions", 1, partitionsMax))
    .option("--retention-age <duration>", "delete events that are older, such as 7d; default: keep them for ever")
    .option("--retention-bytes <bytes>", "delete the oldest beyond this, such as 10GB", byteCount("--retention-bytes"))
    .option("--rate <burst/perSec>", "events published per topic, such as 1000/500, or off")
    .option("--max-attempts <n>", "deliveries before an event is a dead letter", wholeNumber("--max-attempts", 1, 1000))
    .addHelpText("after", "\nExample:\n  narthex topics create orders --partitions 4 --retention-age 7d --rate off")
    .action((topic: string, options: CreateOptions) =>
      run((context) => create(context, checkPublishTopic(topic), options)),
    );
  topics
    .command("delete")
    .summary("delete a topic with all its events and groups")
    .description("Delete a topic with all its events and groups. A topic of the same name later is another topic.")
    .argument("<topic>")
    .option("-y, --yes", "do not ask")
    .addHelpText("after", "\nExample:\n  narthex topics delete orders --yes")
    .action((topic: string, { yes }: { yes?: true }) => run((context) => remove(context, checkTopic(topic), yes)));
};

// ------------------------------------------------------------------------------------------------------------------ looking

async function list(context: Context): Promise<void> {
  const topics: Topic[] = [];
  let after: string | undefined;
  do {
    const page = await context.getJson<{ readonly topics: readonly Topic[]; readonly next?: string }>(
      `/topics?${query({ after, limit: 1000 })}`,
    );
    topics.push(...page.topics);
    after = page.next;
  } while (after !== undefined);
  const details: TopicDetails[] = [];
  for (let from = 0; from < topics.length; from += asksMax) {
    const some = topics.slice(from, from + asksMax);
    details.push(...(await Promise.all(some.map(({ topic }) => context.getJson<TopicDetails>(`/topics/${topic}`)))));
  }
  if (context.json) {
    context.out(JSON.stringify(details));
    return;
  }
  if (details.length === 0) {
    context.note("no topics yet: narthex pub <topic> '{\"n\":1}' makes one");
    return;
  }
  const paint = painter(context);
  const rows = details.map((details) => {
    const { events, bytes, lastStoredAt } = totals(details);
    const last = lastStoredAt === undefined ? "-" : timeText(lastStoredAt);
    return [details.topic, details.partitions, events, bytesText(bytes), details.groups.length, last];
  });
  const headings = ["topic", "partitions", "events", "size", "groups", "last event"];
  for (const line of tableLines(headings, rows, (head) => paint("dim", head))) context.out(line);
}

function totals({ offsets }: TopicDetails) {
  const stored = offsets.map(({ lastStoredAt }) => lastStoredAt).filter((at) => at !== undefined);
  return {
    events: offsets.reduce((sum, { start, end }) => sum + end - start, 0),
    bytes: offsets.reduce((sum, { bytes }) => sum + bytes, 0),
    lastStoredAt: stored.length === 0 ? undefined : Math.max(...stored),
  };
}

async function show(context: Context, topic: string): Promise<void> {
  const details = await context.getJson<TopicDetails>(`/topics/${topic}`);
  if (context.json) {
    context.out(JSON.stringify(details));
    return;
  }
  const paint = painter(context);
  const { events, bytes } = totals(details);
  const head = (line: string) => paint("dim", line);
  context.out(
    `${paint("bold", topic)}: ${many(events, "event")}, ${bytesText(bytes)}, made ${timeText(details.createdAt)}`,
  );
  context.out(settingsText(details));
  context.out("");
  const offsets = details.offsets.map(({ partition, start, end, bytes, lastStoredAt }) => [
    partition,
    start,
    end,
    bytesText(bytes),
    lastStoredAt === undefined ? "-" : timeText(lastStoredAt),
  ]);
  for (const line of tableLines(["partition", "start", "end", "size", "last event"], offsets, head)) context.out(line);
  context.out("");
  if (details.groups.length === 0) {
    context.out("no groups");
    return;
  }
  const groups = details.groups.map(({ group, lag, members }) => [group, lag, members]);
  for (const line of tableLines(["group", "lag", "members"], groups, head)) context.out(line);
}

function settingsText({ retention, rate, maxAttempts, deadLetterOf }: Topic): string {
  const kept = [
    ...(retention?.ageMs === undefined ? [] : [`for ${durationText(retention.ageMs)}`]),
    ...(retention?.bytes === undefined ? [] : [`up to ${bytesText(retention.bytes)}`]),
  ];
  return [
    `events are kept ${kept.length === 0 ? "for ever" : kept.join(" and ")}`,
    ...(rate === undefined ? [] : [`rate ${rate === "off" ? "off" : `${rate.burst}/${rate.perSec}`}`]),
    ...(maxAttempts === undefined ? [] : [`${maxAttempts} attempts`]),
    ...(deadLetterOf === undefined ? [] : [`dead letters of ${deadLetterOf.topic}, group ${deadLetterOf.group}`]),
  ].join("; ");
}

// ----------------------------------------------------------------------------------------------------------------- changing

async function create(context: Context, topic: string, options: CreateOptions): Promise<void> {
  const { partitions, retentionAge, retentionBytes, rate, maxAttempts } = options;
  if (rate !== undefined && !/^(?:off|[1-9]\d*\/[1-9]\d*)$/.test(rate)) {
    throw usage(`--rate is ${JSON.stringify(rate)}: allowed are burst/perSec such as 1000/500, or off`);
  }
  const retention = {
    ...(retentionAge === undefined ? {} : { ageMs: durationOption("--retention-age", retentionAge) }),
    ...(retentionBytes === undefined ? {} : { bytes: retentionBytes }),
  };
  const settings = {
    ...(partitions === undefined ? {} : { partitions }),
    ...(Object.keys(retention).length === 0 ? {} : { retention }),
    ...(rate === undefined ? {} : { rate }),
    ...(maxAttempts === undefined ? {} : { maxAttempts }),
  };
  const response = await context.http(`/topics/${topic}`, {
    method: "PUT",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(settings),
  });
  const made = (await response.json()) as Topic;
  const created = response.status === 201;
  if (context.json) context.out(JSON.stringify({ ...made, created }));
  else {
    context.out(
      `${topic} ${created ? "was made" : "was there and has these settings now"}: ${many(made.partitions, "partition")}, ${settingsText(made)}`,
    );
  }
}

async function remove(context: Context, topic: string, yes: boolean | undefined): Promise<void> {
  const details = await context.getJson<TopicDetails>(`/topics/${topic}`);
  const { events } = totals(details);
  const all = `${many(events, "event")} and ${many(details.groups.length, "group")}`;
  await confirm(context, `${topic} with ${all} will be deleted for good.`, yes);
  await context.http(`/topics/${topic}`, { method: "DELETE" });
  context.out(context.json ? JSON.stringify({ topic, deleted: true, events }) : `${topic} was deleted`);
}
