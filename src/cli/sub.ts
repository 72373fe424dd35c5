// narthex sub: a member of a group. It prints what it gets, or gives each event to a command, and acks what went well.

import type { Context as Lease, SubscribeOptions } from "../client/client.ts";
import { frameBounds } from "../protocol/bounds.ts";
import type { EventRecord } from "../protocol/event.ts";
import { realClock } from "../runtime/clock.ts";
import { checkGroup, checkTopic, usage, wholeNumber } from "./arguments.ts";
import { type Context, exitCodes, type Register } from "./context.ts";
import { eventPrinter } from "./event-lines.ts";
import { type CommandEnd, Commands } from "./exec.ts";
import { oneLine } from "./failures.ts";
import { readPlace, subscribeFrom } from "./place.ts";
import { stdoutColumns, stdoutDrained } from "./stdout.ts";
import { durationOption } from "./times.ts";

interface SubOptions {
  readonly group: string;
  readonly from?: string;
  readonly max?: number;
  readonly ack: boolean;
  readonly exec?: string;
  readonly concurrency?: number;
  readonly ackTimeout?: string;
  readonly maxAttempts?: number;
  readonly backoff?: string;
  readonly ordered?: true;
  readonly full?: true;
}

/** Events out at a time where nothing else says it. */
const windowDefault = 100;
const ackTimeoutBounds = { msMin: frameBounds.ackTimeoutMsMin, msMax: frameBounds.ackTimeoutMsMax };

export const registerSub: Register = (program, run) => {
  program
    .command("sub")
    .summary("consume events as a member of a group")
    .description(
      "Consume events as a member of a group: each event goes to one member, and what is printed is acked. With --exec a command gets each event.",
    )
    .argument("<topic...>", "made if they do not exist")
    .requiredOption("-g, --group <group>", "whose cursor to move")
    .option(
      "--from <place>",
      "where a new group begins: latest (default), earliest, a time such as 10m (ago), a position such as 0:12, or the id of the event before",
    )
    .option("-n, --max <n>", "end after so many events", wholeNumber("--max", 1))
    .option("--no-ack", "settle nothing: what is printed comes again, and counts as an attempt")
    .option(
      "--exec <command>",
      "run this in a shell for each event, with the payload on stdin: exit code 0 acks, any other nacks",
    )
    .option("--concurrency <n>", "commands at a time; default 1", wholeNumber("--concurrency", 1, 1000))
    .option("--ack-timeout <duration>", "how long a lease lasts, such as 30s; extended while a command runs")
    .option(
      "--max-attempts <n>",
      "of the group: deliveries before an event is a dead letter",
      wholeNumber("--max-attempts", 1, frameBounds.maxAttemptsMax),
    )
    .option("--backoff <duration>", "of the group: wait before the next attempt")
    .option("--ordered", "of the group: an event waits until the one before it of the same key is settled")
    .option("--full", "all of each event, also where it is wider than the terminal")
    .addHelpText(
      "after",
      `
A command has NARTHEX_TOPIC, NARTHEX_GROUP, NARTHEX_ID, NARTHEX_KEY and NARTHEX_ATTEMPT in its environment. Ctrl-C lets what runs
end first; a second one does not.

Examples:
  narthex sub orders --group billing --from earliest
  narthex sub orders --group mail --exec './send-mail.sh' --concurrency 4 --backoff 10s
  narthex sub orders --group once --max 1 --json | jq .payload`,
    )
    .action((topics: readonly string[], options: SubOptions) =>
      run((context) => sub(context, [...new Set(topics.map(checkTopic))], options)),
    );
};

async function sub(context: Context, topics: readonly string[], options: SubOptions): Promise<number> {
  const { max = Number.POSITIVE_INFINITY, exec, concurrency } = options;
  if (exec === undefined && concurrency !== undefined) throw usage("--concurrency goes with --exec");
  if (exec !== undefined && !options.ack) throw usage("--exec settles each event: --no-ack does not go with it");
  const group = checkGroup(options.group);
  const window = windowOf(options);
  const subscribeOptions = optionsOf(options, window);
  const client = await context.client();
  const print = printerOf(context, topics, options);
  const commands = new Commands({ toStderr: context.json });
  const turns = new Turns(max, window);

  /** Resolves with how to settle it, if it is to be settled. */
  const work = async (event: EventRecord<unknown>, lease: Lease): Promise<Settlement | undefined> => {
    if (exec !== undefined) return settlementOf(context, event, lease, await commands.run(exec, event, lease));
    print(event, { attempt: lease.attempt });
    await stdoutDrained();
    return options.ack ? () => lease.ack() : undefined;
  };
  const handle = async (event: EventRecord<unknown>, lease: Lease) => {
    // More can only come where several topics are subscribed to; it goes back when this ends.
    if (!turns.take()) return;
    const settle = await work(event, lease);
    if (turns.allTaken) await (await subscribing).pause();
    if (settle !== undefined) {
      await turns.allowed();
      await settle();
    }
    turns.finish();
  };
  const subscribing = client.subscribe(topics, group, handle, {
    ...subscribeOptions,
    // Without an event it is the end of the subscription, which `closed` says too.
    onError: (error, event) => {
      if (event !== undefined) context.note(`narthex: ${event.id}: ${oneLine(error.message)}`);
    },
  });
  try {
    const subscription = await subscribing;
    await Promise.race([turns.done, aborted(context.signal), subscription.closed]);
    if (commands.size > 0) context.note("narthex: waiting for what runs to end; Ctrl-C again ends it at once");
    turns.allowAll();
    await subscription.close();
  } finally {
    commands.close();
  }
  return context.signal.aborted && max !== Number.POSITIVE_INFINITY ? exitCodes.interrupted : exitCodes.ok;
}

type Settlement = () => Promise<unknown>;

/**
 * With --max nothing more than that may be leased, because what goes back unprinted may have cost an attempt. The node gives out
 * what is acked plus a window, so the acks of the last window wait until everything has come and the subscription is paused.
 * A window of one makes them wait for nobody; large numbers would be slow that way.
 */
function windowOf({ max, exec, concurrency }: SubOptions): number {
  if (exec !== undefined) return Math.min(concurrency ?? 1, max ?? Number.POSITIVE_INFINITY);
  if (max === undefined) return windowDefault;
  return max > windowDefault ? windowDefault : 1;
}

function optionsOf(options: SubOptions, window: number): SubscribeOptions {
  const { from, ack, max, ackTimeout, maxAttempts, backoff, ordered } = options;
  const shown = !ack && max !== undefined ? Math.min(max, frameBounds.maxInflightMax) : window;
  return {
    manualAck: true,
    maxInflight: shown,
    ...(from === undefined ? {} : subscribeFrom(readPlace("--from", from, realClock().wall()))),
    ...(ackTimeout === undefined
      ? {}
      : { ackTimeoutMs: durationOption("--ack-timeout", ackTimeout, ackTimeoutBounds) }),
    ...(maxAttempts === undefined ? {} : { maxAttempts }),
    ...(backoff === undefined
      ? {}
      : { backoffMs: durationOption("--backoff", backoff, { msMax: frameBounds.delayMsMax }) }),
    ...(ordered === undefined ? {} : { ordering: "key" }),
  };
}

function printerOf(context: Context, topics: readonly string[], { full }: SubOptions) {
  return eventPrinter(context, { topics, full: full === true, columns: stdoutColumns() });
}

function settlementOf(
  context: Context,
  event: EventRecord<unknown>,
  lease: Lease,
  end: CommandEnd,
): Settlement | undefined {
  const { id, topic } = event;
  if (context.json) {
    const { attempt } = lease;
    context.out(JSON.stringify({ id, topic, attempt, ok: end.kind === "ok", ms: end.ms, ...reasonOf(end) }));
  }
  // The lease is somebody else's by now: there is nothing to settle.
  if (end.kind === "lost") return undefined;
  if (end.kind === "ok") return () => lease.ack();
  if (!context.json) context.note(`narthex: ${id}: ${end.reason} (attempt ${lease.attempt} of ${lease.maxAttempts})`);
  return () => lease.nack(end.reason);
}

function reasonOf(end: CommandEnd): { readonly reason?: string } {
  return end.kind === "ok" ? {} : { reason: end.reason };
}

/** Counts events up to `max`, and holds the settling of the last ones back until all have come. */
class Turns {
  /** All of them are done with. */
  readonly done: Promise<void>;
  private readonly max: number;
  private readonly window: number;
  private readonly all: Promise<void>;
  private taken = 0;
  private settled = 0;
  private finished = 0;
  private resolveDone: () => void = () => undefined;
  private resolveAll: () => void = () => undefined;

  constructor(max: number, window: number) {
    this.max = max;
    this.window = window;
    this.done = new Promise((resolve) => {
      this.resolveDone = resolve;
    });
    this.all = new Promise((resolve) => {
      this.resolveAll = resolve;
    });
  }

  /** Whether this one is wanted. */
  take(): boolean {
    if (this.taken >= this.max) return false;
    this.taken++;
    return true;
  }

  get allTaken(): boolean {
    return this.taken >= this.max;
  }

  /** Resolves when one more may be settled. The subscription is paused when all were taken. */
  allowed(): Promise<void> {
    if (this.allTaken) this.allowAll();
    if (this.settled + this.window >= this.max) return this.all;
    this.settled++;
    return Promise.resolve();
  }

  allowAll(): void {
    this.resolveAll();
  }

  finish(): void {
    this.finished++;
    if (this.finished >= this.max) this.resolveDone();
  }
}

export function aborted(signal: AbortSignal): Promise<void> {
  if (signal.aborted) return Promise.resolve();
  return new Promise((resolve) => signal.addEventListener("abort", () => resolve(), { once: true }));
}
