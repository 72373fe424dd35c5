// narthex bench: how fast this node is from here, through the client library as an application uses it. Publishes to a topic of its own
// and consumes from it at the same time, then deletes it.

import { connect, type EventClient } from "../client/client.ts";
import { type Clock, realClock } from "../runtime/clock.ts";
import { checkPublishTopic, wholeNumber } from "./arguments.ts";
import { CliError, type Context, exitCodes, type Register } from "./context.ts";
import { findTopic } from "./node-answers.ts";
import { Progress } from "./progress.ts";
import { readRefusals } from "./refusal-watch.ts";
import { count } from "./table.ts";
import { durationText } from "./times.ts";

interface BenchOptions {
  readonly events: number;
  readonly payload: number;
  readonly window: number;
  readonly topic?: string;
  readonly partitions: number;
  readonly maxS: number;
}

const eventsMax = 10_000_000;
const payloadMax = 1_048_576;
const inflightMax = 10_000;
const deleteMsMax = 10_000;

export const registerBench: Register = (program, run) => {
  program
    .command("bench")
    .summary("measure the node from here")
    .description(
      "Publish and consume events through the client library, on a topic that is deleted afterwards, and print rates and latencies.",
    )
    .option("--events <n>", "how many", wholeNumber("--events", 1, eventsMax), 20_000)
    .option("--payload <bytes>", "of each event", wholeNumber("--payload", 16, payloadMax), 256)
    .option("--window <n>", "events under way, each way", wholeNumber("--window", 1, inflightMax), 1000)
    .option("--partitions <n>", "of the topic", wholeNumber("--partitions", 1, 64), 1)
    .option("--topic <topic>", "its name, which must be free; default bench.<random>")
    .option("--max-s <seconds>", "stop publishing after so long", wholeNumber("--max-s", 1, 3600), 60)
    .addHelpText("after", "\nExample:\n  narthex bench --events 100000 --payload 1024 --window 2000")
    .action((options: BenchOptions) => run((context) => bench(context, options)));
};

async function bench(context: Context, options: BenchOptions): Promise<void> {
  const clock = realClock();
  const topic = checkPublishTopic(options.topic ?? `bench.${clock.nonce(4)}`);
  const path = `/topics/${encodeURIComponent(topic)}`;
  await makeTopic(context, path, topic, options.partitions);
  try {
    const before = await readRefusals(context);
    const measured = await measure(context, clock, topic, options);
    const limited = ((await readRefusals(context))?.limited ?? 0) > (before?.limited ?? 0);
    print(context, topic, options, { ...measured, limited });
  } finally {
    await deleteTopic(context, clock, path, topic);
  }
}

async function makeTopic(context: Context, path: string, topic: string, partitions: number): Promise<void> {
  const init = { method: "PUT", headers: { "content-type": "application/json" }, body: JSON.stringify({ partitions }) };
  if ((await findTopic(context, topic)) !== undefined)
    throw new CliError(`${topic} exists, and bench deletes its topic: give another --topic`, exitCodes.usage);
  await context.http(path, init);
}

/** Also after the user ended it, so not through the context, which then refuses. */
async function deleteTopic(context: Context, clock: Clock, path: string, topic: string): Promise<void> {
  const late = new AbortController();
  const timer = clock.after(deleteMsMax, () => late.abort());
  const headers = context.token === undefined ? {} : { authorization: `Bearer ${context.token}` };
  try {
    const answer = await fetch(context.url + path, { method: "DELETE", headers, signal: late.signal });
    if (!answer.ok)
      context.note(`narthex: ${topic} could not be deleted (${answer.status}): narthex topics delete ${topic}`);
  } catch (error) {
    context.note(
      `narthex: ${topic} could not be deleted (${(error as Error).message}): narthex topics delete ${topic}`,
    );
  } finally {
    timer.cancel();
  }
}

// --------------------------------------------------------------------------------------------------------------- measuring

interface Measured {
  readonly published: number;
  readonly durability: string;
  readonly publishMs: number;
  readonly deliverMs: number;
  /** In ms, sorted. */
  readonly acks: Float64Array;
  readonly deliveries: Float64Array;
  readonly cpuUsPerEvent: number;
}

async function measure(context: Context, clock: Clock, topic: string, options: BenchOptions): Promise<Measured> {
  const publisher = await context.client();
  // A connection of its own, as a consumer would have.
  const consumer = await connect(context.url, { token: context.token });
  const progress = new Progress({ clock, tty: context.tty, label: topic, total: options.events });
  try {
    return await new Run(context, clock, { topic, options, publisher, consumer, progress }).run();
  } finally {
    progress.stop();
    await consumer.close();
  }
}

interface RunParts {
  readonly topic: string;
  readonly options: BenchOptions;
  readonly publisher: EventClient;
  readonly consumer: EventClient;
  readonly progress: Progress;
}

class Run {
  private readonly context: Context;
  private readonly clock: Clock;
  private readonly parts: RunParts;
  private readonly sentAt: Float64Array;
  private readonly acks: Float64Array;
  private readonly deliveries: Float64Array;
  private acked = 0;
  private delivered = 0;
  private durability = "";

  constructor(context: Context, clock: Clock, parts: RunParts) {
    this.context = context;
    this.clock = clock;
    this.parts = parts;
    const { events } = parts.options;
    this.sentAt = new Float64Array(events);
    this.acks = new Float64Array(events);
    this.deliveries = new Float64Array(events).fill(-1);
  }

  async run(): Promise<Measured> {
    const { clock } = this;
    const { topic, options, consumer } = this.parts;
    let all: () => void = () => undefined;
    const handled = new Promise<void>((resolve) => {
      all = resolve;
    });
    let published = options.events;
    const subscription = await consumer.subscribe(
      topic,
      "bench",
      (event) => {
        const { n } = event.payload as { n: number };
        // Redelivered, it was counted before.
        if (this.deliveries[n] >= 0) return;
        this.deliveries[n] = clock.mono() - this.sentAt[n];
        if (++this.delivered >= published) all();
      },
      { from: "earliest", ephemeral: true, maxInflight: options.window, batchSize: Math.min(options.window, 1000) },
    );
    const cpuBefore = process.cpuUsage();
    const startedAt = clock.mono();
    published = await this.publishAll(startedAt);
    const publishMs = clock.mono() - startedAt;
    if (this.delivered >= published) all();
    await this.orLate(handled, options.maxS * 1000);
    const deliverMs = clock.mono() - startedAt;
    const cpu = process.cpuUsage(cpuBefore);
    await subscription.close();
    return {
      published,
      durability: this.durability,
      publishMs,
      deliverMs,
      acks: this.acks.subarray(0, published).sort(),
      deliveries: this.deliveries.subarray(0, published).sort(),
      cpuUsPerEvent: (cpu.user + cpu.system) / published,
    };
  }

  /** As many lanes as the window is wide, each with one event under way. Gives how many were published. */
  private async publishAll(startedAt: number): Promise<number> {
    const { clock, context } = this;
    const { topic, options, publisher, progress } = this.parts;
    const filler = "x".repeat(Math.max(0, options.payload - '{"n":1000000,"f":""}'.length));
    let next = 0;
    const lane = async (): Promise<void> => {
      while (next < options.events && clock.mono() - startedAt < options.maxS * 1000) {
        if (context.signal.aborted) throw new CliError("interrupted", exitCodes.interrupted);
        const n = next++;
        this.sentAt[n] = clock.mono();
        const { durability } = await publisher.publish(topic, { n, f: filler });
        this.acks[n] = clock.mono() - this.sentAt[n];
        this.durability = durability;
        progress.reach(++this.acked);
      }
    };
    await Promise.all(Array.from({ length: Math.min(options.window, options.events) }, lane));
    return next;
  }

  private async orLate(handled: Promise<void>, ms: number): Promise<void> {
    const { signal } = this.context;
    let stop: (error: CliError) => void = () => undefined;
    const failed = new Promise<never>((_, reject) => {
      stop = reject;
    });
    const timer = this.clock.after(ms, () =>
      stop(
        new CliError(
          `only ${count(this.delivered)} events were delivered within ${durationText(ms)} of the last publish`,
        ),
      ),
    );
    const abort = () => stop(new CliError("interrupted", exitCodes.interrupted));
    signal.addEventListener("abort", abort, { once: true });
    try {
      await Promise.race([handled, failed]);
    } finally {
      timer.cancel();
      signal.removeEventListener("abort", abort);
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------- printing

/** Of sorted values: the smallest that so large a share of them does not exceed. */
export function percentile(sorted: Float64Array, share: number): number {
  return sorted.length === 0 ? Number.NaN : sorted[Math.min(sorted.length - 1, Math.ceil(sorted.length * share) - 1)];
}

function percentiles(sorted: Float64Array) {
  const at = (share: number) => Math.round(percentile(sorted, share) * 100) / 100;
  return { p50: at(0.5), p90: at(0.9), p99: at(0.99), "p99.9": at(0.999) };
}

function print(
  context: Context,
  topic: string,
  { payload, window, partitions }: BenchOptions,
  measured: Measured & { readonly limited: boolean },
): void {
  const { published, durability, limited } = measured;
  const publish = { rate: Math.round((published / measured.publishMs) * 1000), ...percentiles(measured.acks) };
  const deliver = { rate: Math.round((published / measured.deliverMs) * 1000), ...percentiles(measured.deliveries) };
  const cpu = Math.round(measured.cpuUsPerEvent * 10) / 10;
  if (context.json) {
    context.out(
      JSON.stringify({
        topic,
        events: published,
        payload_bytes: payload,
        window,
        partitions,
        durability,
        publish_per_s: publish.rate,
        publish_ms: percentiles(measured.acks),
        deliver_per_s: deliver.rate,
        deliver_ms: percentiles(measured.deliveries),
        client_cpu_us_per_event: cpu,
        rate_limited: limited,
      }),
    );
    return;
  }
  const of = partitions === 1 ? "1 partition" : `${partitions} partitions`;
  context.out(
    `${count(published)} events of ${count(payload)} B, ${of}, durability ${durability}, window ${count(window)}, in ${durationText(measured.deliverMs)}`,
  );
  const line = (name: string, what: string, { rate, ...rest }: typeof publish) =>
    `${name}  ${`${count(rate)} events/s`.padEnd(18)}  ${Object.entries(rest)
      .map(([share, ms]) => `${share} ${ms} ms`)
      .join("  ")}  (${what})`;
  context.out(line("publish", "publish to ack", publish));
  context.out(line("deliver", "publish to handler", deliver));
  context.out(`client   ${cpu} µs of CPU per event, published and consumed`);
  if (limited) {
    context.out(
      "This measures the node's rate limits: it refused publishes for them. For the node itself, start it with CONN_RATE=off TOPIC_RATE=off.",
    );
  }
}
