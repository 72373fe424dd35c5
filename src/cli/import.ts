// narthex import: the lines of an export published again, each with its id, time, key and headers, in the order of the file. It can be
// killed at any moment and goes on when the same command is given again (import-state.ts); at the end the target is read back and
// compared (import-verify.ts).

import { createHash, type Hash } from "node:crypto";
import { createReadStream } from "node:fs";
import { readFile, stat } from "node:fs/promises";
import type { EventClient } from "../client/client.ts";
import { NarthexError } from "../client/errors.ts";
import { publishTopicFault } from "../protocol/names.ts";
import { type Clock, realClock } from "../runtime/clock.ts";
import { checkPublishTopic, usage, wholeNumber } from "./arguments.ts";
import { CliError, type Context, exitCodes, type Register } from "./context.ts";
import { absent, removeIfThere } from "./export-part.ts";
import { explainFailure } from "./failures.ts";
import { readLine } from "./import-line.ts";
import { Pipeline, type PipelineEnd, type ReadEvent } from "./import-pipeline.ts";
import { aheadMax, type ImportState, importId, readState, stateFault, statePath, writeState } from "./import-state.ts";
import { findTarget, readBack } from "./import-target.ts";
import { verifyImport } from "./import-verify.ts";
import { eachLine, LineBlocks, LineHead } from "./ndjson.ts";
import { pause } from "./pause.ts";
import { eventsText, Progress } from "./progress.ts";
import { RateWatch } from "./rate-watch.ts";
import { bytesText } from "./table.ts";
import { durationText } from "./times.ts";

interface ImportOptions {
  readonly topic?: string;
  readonly rate?: number;
  readonly verify: boolean;
  readonly newIds?: true;
  readonly skipBad?: true;
  readonly retryS: number;
}

/** Longer than the two minutes for which a node may ask to wait when it has too many ids to remember. */
const retryDefaultS = 180;
const retryMaxS = 86_400;
const rateMax = 1_000_000;
const chunkBytes = 256 * 1024;
const badShownMax = 5;

export const registerImport: Register = (program, run) => {
  program
    .command("import")
    .description("publish the lines of a file that export wrote, or of stdin with -")
    .argument("<file>", "NDJSON; a line needs at least a payload")
    .option("--topic <topic>", "publish to this topic, whatever the lines say")
    .option("--rate <n>", "events per second at most", wholeNumber("--rate", 1, rateMax))
    .option("--no-verify", "do not read the events back and compare them with the file")
    .option("--new-ids", "give the events new ids, for a second copy in the same topic")
    .option("--skip-bad", "pass over lines that are no events, and count them")
    .option(
      "--retry-s <seconds>",
      "how long to go on trying when the node is gone or full",
      wholeNumber("--retry-s", 0, retryMaxS),
      retryDefaultS,
    )
    .addHelpText(
      "after",
      `
If orders.ndjson.sha256 is there, the file must match it. An import that was cut goes on when the same command is given again,
without storing an event twice.

Examples:
  $ narthex import orders.ndjson
  orders: 2 events from orders.ndjson, sha256 9f2c…, the export of orders is now identical to the file
  $ narthex export orders | narthex --url http://127.0.0.1:9090 import - --topic orders-copy`,
    )
    .action((file: string, options: ImportOptions) => run((context) => importFile(context, file, options)));
};

export async function importFile(context: Context, file: string, options: ImportOptions): Promise<void> {
  if (options.topic !== undefined) checkPublishTopic(options.topic);
  const job = file === "-" ? await standardInput(context, options) : await wholeFile(context, file, options);
  await new Import(context, job, options).run();
}

// ------------------------------------------------------------------------------------------------------------- what to import

interface Job {
  /** As it is called in messages. */
  readonly name: string;
  /** Where it can be read again; undefined for stdin. */
  readonly path: string | undefined;
  readonly bytes: number | undefined;
  readonly topic: string;
  chunks(from: number): AsyncIterable<Buffer>;
}

async function standardInput(context: Context, { topic, verify }: ImportOptions): Promise<Job> {
  if (process.stdin.isTTY) throw usage("stdin is a terminal: give a file, or pipe an export in");
  const [first, chunks] = await peek(process.stdin);
  if (verify) context.note("narthex: stdin cannot be read twice, so what is stored is not compared with it");
  return {
    name: "stdin",
    path: undefined,
    bytes: undefined,
    topic: topic ?? topicOf("stdin", first),
    chunks: () => chunks,
  };
}

async function wholeFile(context: Context, path: string, { topic }: ImportOptions): Promise<Job> {
  const facts = await stat(path).catch(absent);
  if (facts === undefined) throw new CliError(`${path} does not exist`, exitCodes.missing);
  if (!facts.isFile()) throw new CliError(`${path} is not a file`, exitCodes.usage);
  await checkSum(context, path, facts.size);
  const beginning = createReadStream(path);
  const [first] = await peek(beginning);
  beginning.destroy();
  return {
    name: path,
    path,
    bytes: facts.size,
    topic: topic ?? topicOf(path, first),
    chunks: (from) => createReadStream(path, { start: from, highWaterMark: chunkBytes }),
  };
}

/** The first line that is not blank, and all bytes, the first ones too. */
async function peek(source: AsyncIterable<Buffer>): Promise<[first: Buffer, all: AsyncIterable<Buffer>]> {
  const iterator = source[Symbol.asyncIterator]();
  const seen: Buffer[] = [];
  const blocks = new LineBlocks();
  let first: Buffer | undefined;
  while (first === undefined) {
    const { value, done } = await iterator.next();
    if (done) break;
    seen.push(value);
    const block = blocks.push(value);
    if (block !== undefined) first = firstLine(block);
  }
  async function* all(): AsyncGenerator<Buffer> {
    yield* seen;
    for (let next = await iterator.next(); !next.done; next = await iterator.next()) yield next.value;
  }
  return [first ?? firstLine(blocks.rest()) ?? Buffer.alloc(0), all()];
}

function firstLine(block: Buffer): Buffer | undefined {
  for (let start = 0; start < block.length; ) {
    const found = block.indexOf(0x0a, start);
    const end = found < 0 ? block.length : found;
    if (!isBlank(block.subarray(start, end))) return block.subarray(start, end);
    start = end + 1;
  }
  return undefined;
}

function isBlank(line: Buffer): boolean {
  for (const byte of line) if (byte > 0x20) return false;
  return true;
}

function topicOf(name: string, line: Buffer): string {
  if (line.length === 0) throw new CliError(`${name} is empty: there is nothing to import`);
  const event = readLine(line);
  const topic = typeof event === "string" ? undefined : event.topic;
  if (typeof event === "string" || topic === undefined) {
    const what = typeof event === "string" ? `the first line of ${name} ${event}` : `${name} names no topic`;
    throw new CliError(`${what}: give --topic`, typeof event === "string" ? exitCodes.failed : exitCodes.usage);
  }
  const fault = publishTopicFault(topic);
  if (fault !== undefined) throw new CliError(`${name} is of ${topic}, where nobody can publish: give --topic`);
  return topic;
}

/** Against the file that export wrote beside it, before anything is published. */
async function checkSum(context: Context, path: string, size: number): Promise<void> {
  const text = await readFile(`${path}.sha256`, "utf8").catch(absent);
  if (text === undefined) return;
  const wanted = /^\\?([0-9a-f]{64})\b/i.exec(text)?.[1]?.toLowerCase();
  if (wanted === undefined) throw new CliError(`${path}.sha256 is no checksum file: remove it to import without one`);
  const hash = createHash("sha256");
  const progress = new Progress({ clock: realClock(), tty: context.tty, label: "checking", total: size });
  let bytes = 0;
  for await (const chunk of createReadStream(path, { highWaterMark: 1024 * 1024 }) as AsyncIterable<Buffer>) {
    if (context.signal.aborted) throw new CliError("interrupted", exitCodes.interrupted);
    hash.update(chunk);
    bytes += chunk.length;
    progress.reach(0, bytes);
  }
  progress.stop();
  if (hash.digest("hex") === wanted) return;
  throw new CliError(
    `${path} does not match ${path}.sha256, so nothing was imported: export it again, or remove the checksum if the file was changed on purpose`,
  );
}

// ----------------------------------------------------------------------------------------------------------------- the import

class Import {
  private readonly context: Context;
  private readonly job: Job;
  private readonly options: ImportOptions;
  private readonly clock: Clock = realClock();
  private createdAt: number | null = null;
  private bad = 0;

  constructor(context: Context, job: Job, options: ImportOptions) {
    this.context = context;
    this.job = job;
    this.options = options;
  }

  async run(): Promise<void> {
    const client = await this.context.client();
    const { state, hash, resumed } = await this.beginOrResume();
    const progress = new Progress({
      clock: this.clock,
      tty: this.context.tty,
      label: state.topic,
      total: this.job.bytes,
      done: state.mark.bytes,
      events: state.mark.events,
    });
    const watch = new RateWatch(this.context, this.clock);
    const startedAt = this.clock.mono();
    let done: { state: ImportState; storedBefore: number };
    try {
      done = await this.publishAll(client, { state, hash, resumed, progress, watch });
    } finally {
      progress.stop();
      watch.stop();
    }
    const seconds = (this.clock.mono() - startedAt) / 1000;
    await this.finish(done, resumed, seconds);
  }

  // ----------------------------------------------------------------------------------------------------------- where to begin

  private async beginOrResume(): Promise<{ state: ImportState; hash: Hash; resumed: number }> {
    const { context, job, options, clock } = this;
    const target = await findTarget(context, job.topic);
    this.createdAt = target?.createdAt ?? null;
    const newIds = options.newIds === true;
    const found = job.path === undefined ? undefined : await readState(job.path);
    if (found === undefined || job.path === undefined) {
      const position = target?.end ?? "0:0";
      const state: ImportState = {
        version: 1,
        url: context.url,
        topic: job.topic,
        createdAt: this.createdAt,
        newIds,
        nonce: clock.nonce(8),
        beganAt: clock.wall(),
        end: position,
        begin: position,
        mark: { bytes: 0, lines: 0, events: 0, skipped: 0, sha256: createHash("sha256").digest("hex"), position },
      };
      // Before the first event is sent, or nobody would know the nonce that its id was made of.
      await this.save(state);
      return { state, hash: createHash("sha256"), resumed: 0 };
    }
    const fault = stateFault(job.path, found, {
      url: context.url,
      topic: job.topic,
      createdAt: this.createdAt,
      newIds,
    });
    if (fault !== undefined || found === "unreadable") throw new CliError(fault ?? job.path);
    const hash = await this.hashUpTo(found);
    if (found.mark.events > 0) {
      context.note(`narthex: going on behind the ${eventsText(found.mark.events)} that were imported before`);
    }
    return { state: found, hash, resumed: found.mark.events };
  }

  /** The file must still be the one of which a part was imported. */
  private async hashUpTo({ mark }: ImportState): Promise<Hash> {
    const { path = "", bytes = 0 } = this.job;
    const hash = createHash("sha256");
    if (mark.bytes > 0 && mark.bytes <= bytes) {
      for await (const chunk of createReadStream(path, { end: mark.bytes - 1, highWaterMark: 1024 * 1024 })) {
        hash.update(chunk as Buffer);
      }
    }
    if (hash.copy().digest("hex") === mark.sha256) return hash;
    throw new CliError(
      `${path} has changed since a part of it was imported: restore it, or remove ${statePath(path)} to import all of it anew`,
    );
  }

  private async save(state: ImportState): Promise<void> {
    const { path } = this.job;
    if (path === undefined) return;
    // A topic that the first event made.
    if (this.createdAt === null && state.mark.events > 0) {
      this.createdAt = (await findTarget(this.context, state.topic))?.createdAt ?? null;
    }
    await writeState(path, { ...state, createdAt: this.createdAt });
  }

  // --------------------------------------------------------------------------------------------------------------- publishing

  private async publishAll(
    client: EventClient,
    start: {
      readonly state: ImportState;
      readonly hash: Hash;
      readonly resumed: number;
      readonly progress: Progress;
      readonly watch: RateWatch;
    },
  ): Promise<{ state: ImportState; storedBefore: number }> {
    const { clock, context, job, options } = this;
    let { state, hash } = start;
    let storedBefore = 0;
    let movedAt = clock.mono();
    // Whatever was cut before, in this run or an earlier one, may have left events behind the mark.
    let uncertain = state.mark.events > 0 || start.resumed > 0 || state.createdAt !== null;
    for (;;) {
      const stored = uncertain ? await this.storedBehind(state) : new Set<string>();
      const pipeline = new Pipeline({
        client,
        clock,
        signal: context.signal,
        state,
        hash,
        read: this.reader(state, client),
        stored,
        rate: options.rate,
        skip: options.skipBad ? (line, fault) => this.skipped(line, fault) : undefined,
        save: (latest) => this.save(latest),
        onProgress: (events, bytes) => {
          start.progress.reach(events, bytes);
          start.watch.reach(events);
        },
      });
      const end = await pipeline.run(job.chunks(state.mark.bytes));
      storedBefore += pipeline.storedBefore;
      if (end.kind === "done") return { state: pipeline.state, storedBefore };
      if (pipeline.state.mark.events > state.mark.events) movedAt = clock.mono();
      ({ state, hashAtMark: hash } = pipeline);
      const waitMs = this.retryAfter(end);
      if (waitMs === undefined || clock.mono() + waitMs - movedAt > options.retryS * 1000)
        throw this.failure(end, state);
      context.note(`narthex: ${failureText(end)}; trying again`);
      if (!(await pause(clock, waitMs, context.signal))) throw this.failure({ kind: "interrupted" }, state);
      uncertain = true;
    }
  }

  /** Ids of events behind the mark that the target has: some were sent and not confirmed when it was cut. */
  private async storedBehind(state: ImportState): Promise<Set<string>> {
    const { context, clock, job, options } = this;
    const ids = new Set<string>();
    const read = this.reader(state, undefined);
    const blocks = new LineBlocks();
    let index = state.mark.events;
    const add = (line: Buffer) => {
      const event = read(line, index);
      if (typeof event !== "object") return;
      index++;
      if (event.id !== undefined) ids.add(event.id);
    };
    for await (const chunk of job.chunks(state.mark.bytes)) {
      const block = blocks.push(chunk);
      if (block !== undefined) eachLine(block, (start, end) => add(block.subarray(start, end)));
      if (index - state.mark.events >= aheadMax) break;
    }
    const rest = blocks.rest();
    if (rest.length > 0 && index - state.mark.events < aheadMax) add(rest);
    const stored = new Set<string>();
    if (ids.size === 0 || (await findTarget(context, state.topic)) === undefined) return stored;
    const head = new LineHead();
    const from = { topic: state.topic, from: state.mark.position, retryMs: options.retryS * 1000 };
    await readBack(context, clock, from, (block) => {
      eachLine(block, (start, end) => {
        if (head.read(block, start, end) && ids.has(head.id)) stored.add(head.id);
      });
      return stored.size === ids.size;
    });
    return stored;
  }

  /** How a line of the file becomes what is published: its topic is checked, its id and time are filled in. */
  private reader(state: ImportState, client: EventClient | undefined): ReadEvent {
    const anyTopic = this.options.topic !== undefined;
    return (line, index) => {
      if (isBlank(line)) return undefined;
      const event = readLine(line);
      if (typeof event === "string") return event;
      if (!anyTopic && event.topic !== undefined && event.topic !== state.topic) {
        return `is an event of ${event.topic}, the first was one of ${state.topic}: give --topic to put all into one`;
      }
      const payloadMax = client?.maxPayload;
      if (payloadMax !== undefined && event.payload.length * 3 > payloadMax) {
        const bytes = Buffer.byteLength(event.payload);
        if (bytes > payloadMax) return `payload has ${bytes} bytes, the node takes ${payloadMax} (MAX_PAYLOAD)`;
      }
      const id = state.newIds || event.id === undefined ? importId(state.nonce, index) : event.id;
      return { ...event, id, ts: event.ts ?? state.beganAt };
    };
  }

  private skipped(line: number, fault: string): void {
    this.bad++;
    if (this.bad <= badShownMax) this.context.note(`narthex: ${this.job.name}:${line} ${fault}: passed over`);
    if (this.bad === badShownMax + 1) this.context.note("narthex: more lines are passed over without a word");
  }

  /** Undefined: trying again changes nothing. */
  private retryAfter(end: PipelineEnd): number | undefined {
    if (end.kind !== "refused" || !(end.error instanceof NarthexError) || this.job.path === undefined) return undefined;
    const { code, retryable, retryAfterMs } = end.error;
    return retryable || code === "unknown_outcome" ? (retryAfterMs ?? 1000) : undefined;
  }

  private failure(end: PipelineEnd, { mark }: ImportState): CliError {
    const { name, path } = this.job;
    const sofar =
      path === undefined
        ? `${eventsText(mark.events)} or more were imported`
        : `${eventsText(mark.events)} are imported; the same command goes on from there`;
    switch (end.kind) {
      case "interrupted":
        return new CliError(`interrupted: ${sofar}`, exitCodes.interrupted);
      case "bad":
        return new CliError(
          `${name}:${end.line} ${end.fault}; nothing behind it was imported: correct it and give the same command again, or add --skip-bad`,
        );
      case "unsaved":
        return new CliError(`${statePath(name)} cannot be written (${end.error.message}): ${sofar}`);
      default: {
        const { exitCode } = explainFailure(end.kind === "refused" ? end.error : undefined);
        return new CliError(
          `${failureText(end)}: ${sofar}`,
          exitCode === exitCodes.usage ? exitCodes.failed : exitCode,
        );
      }
    }
  }

  // ------------------------------------------------------------------------------------------------------------------ the end

  private async finish(
    { state, storedBefore }: { state: ImportState; storedBefore: number },
    resumed: number,
    seconds: number,
  ): Promise<void> {
    const { context, job, options } = this;
    const { events, bytes, sha256, skipped } = state.mark;
    const verdict = options.verify && job.path !== undefined ? await this.verify(job.path, state) : undefined;
    if (job.path !== undefined) await removeIfThere(statePath(job.path));
    if (context.json) {
      const { topic } = state;
      const verified = verdict?.kind ?? false;
      const reordered = verdict?.kind === "same" ? verdict.reordered : 0;
      context.out(
        JSON.stringify({
          topic,
          file: job.name,
          events,
          bytes,
          sha256,
          resumed,
          skipped,
          stored_before: storedBefore,
          verified,
          reordered,
          seconds: Math.round(seconds * 1000) / 1000,
        }),
      );
      return;
    }
    const facts = [
      `${state.topic}: ${eventsText(events)} from ${job.name} (${bytesText(bytes)} in ${durationText(seconds * 1000)})`,
      `sha256 ${sha256}`,
      ...(skipped > 0 ? [`${skipped} lines passed over`] : []),
      ...(storedBefore > 0 ? [`${eventsText(storedBefore)} were there before and not stored again`] : []),
    ];
    if (verdict?.kind === "identical") facts.push(`the export of ${state.topic} is now identical to the file`);
    if (verdict?.kind === "same") facts.push("all are in the topic with the same contents");
    if (verdict?.kind === "same" && verdict.reordered > 0)
      facts.push(`${verdict.reordered} in another order than in the file`);
    context.out(facts.join(", "));
  }

  private async verify(file: string, state: ImportState) {
    const { context, clock, options } = this;
    const verdict = await verifyImport({
      context,
      clock,
      file,
      topic: state.topic,
      begin: state.begin,
      retryMs: options.retryS * 1000,
      read: this.reader(state, undefined),
    });
    if (verdict.kind !== "missing") return verdict;
    const path = `/replay?topic=${encodeURIComponent(state.topic)}&from=afterId&afterId=${encodeURIComponent(verdict.id)}&limit=1`;
    const there = await context.http(path).then(
      () => true,
      (error: Error) => {
        if (error instanceof CliError && error.exitCode === exitCodes.missing) return false;
        throw error;
      },
    );
    const what = there ? "is stored with other contents (an older event has its id? --new-ids)" : "is not stored";
    throw new CliError(`${file}:${verdict.line} differs: the event ${verdict.id} ${what}`);
  }
}

function failureText(end: PipelineEnd): string {
  if (end.kind !== "refused") return end.kind;
  return explainFailure(end.error).line ?? end.error.message;
}
