// narthex import: the lines of an export published again, each with its id, time, key and headers, in the order of the file. It can be
// killed at any moment and goes on when the same command is given again (import-state.ts); at the end the target is read back and
// compared (import-verify.ts).

import { createHash, type Hash } from "node:crypto";
import { createReadStream } from "node:fs";
import type { EventClient } from "../client/client.ts";
import { NarthexError } from "../client/errors.ts";
import { type Clock, realClock } from "../runtime/clock.ts";
import { checkPublishTopic, usage, wholeNumber } from "./arguments.ts";
import { CliError, type Context, exitCodes, type Register } from "./context.ts";
import { diskReason, unwritable } from "./disk-faults.ts";
import { removeIfThere } from "./export-part.ts";
import { explainFailure } from "./failures.ts";
import { takeLock } from "./file-lock.ts";
import { readLine } from "./import-line.ts";
import { Pipeline, type PipelineEnd, type ReadEvent } from "./import-pipeline.ts";
import { type ImportSource, isBlank, standardInput, wholeFile } from "./import-source.ts";
import { type ImportState, importId, readState, stateFault, statePath, writeState } from "./import-state.ts";
import { needFresh, storedBefore, storedBehind } from "./import-stored.ts";
import { findTarget, hasEvent } from "./import-target.ts";
import { type Verdict, verifyImport } from "./import-verify.ts";
import { pause } from "./pause.ts";
import { eventsText, isAre, Progress, wasWere } from "./progress.ts";
import { RefusalWatch } from "./refusal-watch.ts";
import { bytesText } from "./table.ts";
import { durationText } from "./times.ts";

interface ImportOptions {
  readonly topic?: string;
  readonly rate?: number;
  readonly verify: boolean;
  readonly newIds?: true;
  readonly skipStored?: true;
  readonly skipBad?: true;
  readonly retryS: number;
}

/** Longer than the two minutes for which a node may ask to wait when it has too many ids to remember. */
const retryDefaultS = 180;
const retryMaxS = 86_400;
const rateMax = 1_000_000;
const badShownMax = 5;

export const registerImport: Register = (program, run) => {
  program
    .command("import")
    .summary("publish the lines of a file that export wrote")
    .description(
      "Publish the lines of a file that export wrote, each with its id, time, key and headers, in the order of the file, then read them back and compare. If a checksum is beside the file, the file must match it. An import that was cut goes on when the same command is given again, without storing an event twice. A file that was imported before is refused, unless --skip-stored or --new-ids is given.",
    )
    .argument("<file>", "NDJSON, - for stdin; a line needs at least a payload")
    .option("--topic <topic>", "publish to this topic, whatever the lines say")
    .option("--rate <n>", "events per second at most", wholeNumber("--rate", 1, rateMax))
    .option("--no-verify", "do not read the events back and compare them with the file")
    .option("--new-ids", "give the events new ids, for a second copy in the same topic")
    .option("--skip-stored", "leave out events that the topic has already, for a file that was imported before")
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
Examples:
  $ narthex import orders.ndjson
  orders: 2 events from orders.ndjson, sha256 9f2c…, the export of orders is now identical to the file
  $ narthex export orders | narthex --url http://127.0.0.1:9090 import - --topic orders-copy`,
    )
    .action((file: string, options: ImportOptions) => run((context) => importFile(context, file, options)));
};

export async function importFile(context: Context, file: string, options: ImportOptions): Promise<void> {
  if (file === "") throw usage("the name of the file is empty");
  if (options.topic !== undefined) checkPublishTopic(options.topic);
  if (options.newIds && options.skipStored) throw usage("--new-ids and --skip-stored exclude each other");
  const { topic, verify } = options;
  if (file === "-" && verify) {
    context.note("narthex: stdin cannot be read twice, so what is stored is not compared with it");
  }
  const source = file === "-" ? await standardInput(topic) : await wholeFile(context, file, topic);
  const { path } = source;
  const imported = new Import(context, source, options);
  if (path === undefined) return imported.run();
  const lock = { clock: realClock(), taken: `another import reads ${path}` };
  const release = await takeLock(`${statePath(path)}.lock`, lock).catch(unwritableState(path));
  try {
    await imported.run();
  } finally {
    await release();
  }
}

function unwritableState(path: string): (error: Error) => never {
  return unwritable(statePath(path), ", and an import keeps there how far it is; it can be given on stdin instead");
}

// ----------------------------------------------------------------------------------------------------------------- the import

interface Start {
  readonly state: ImportState;
  /** Of the file up to its mark. */
  readonly hash: Hash;
  /** It was cut, in this run or an earlier one: events behind the mark may be stored. */
  readonly uncertain: boolean;
}

class Import {
  private readonly context: Context;
  private readonly source: ImportSource;
  private readonly options: ImportOptions;
  private readonly clock: Clock = realClock();
  private createdAt: number | null = null;
  private bad = 0;

  constructor(context: Context, source: ImportSource, options: ImportOptions) {
    this.context = context;
    this.source = source;
    this.options = options;
  }

  async run(): Promise<void> {
    const client = await this.context.client();
    const { state, hash, uncertain } = await this.beginOrResume();
    const resumed = state.mark.events;
    const progress = new Progress({
      clock: this.clock,
      tty: this.context.tty,
      label: state.topic,
      total: this.source.bytes,
      done: state.mark.bytes,
      events: state.mark.events,
    });
    const watch = new RefusalWatch(this.context, this.clock);
    const startedAt = this.clock.mono();
    let done: { state: ImportState; storedBefore: number };
    try {
      done = await this.publishAll(client, { state, hash, uncertain, progress, watch });
    } finally {
      progress.stop();
      watch.stop();
    }
    const seconds = (this.clock.mono() - startedAt) / 1000;
    await this.finish(done, resumed, seconds);
  }

  // ----------------------------------------------------------------------------------------------------------- where to begin

  private async beginOrResume(): Promise<Start> {
    const { context, source, options, clock } = this;
    const target = await findTarget(context, source.topic);
    this.createdAt = target?.createdAt ?? null;
    const newIds = options.newIds === true;
    const skipStored = options.skipStored === true;
    const found = source.path === undefined ? undefined : await readState(source.path);
    if (found === undefined || source.path === undefined) {
      if (target !== undefined && !newIds && !skipStored) await needFresh(context, source, target);
      const position = target?.end ?? "0:0";
      const state: ImportState = {
        version: 1,
        url: context.url,
        topic: source.topic,
        createdAt: this.createdAt,
        newIds,
        skipStored,
        nonce: clock.nonce(8),
        beganAt: clock.wall(),
        end: position,
        begin: skipStored ? (target?.start ?? position) : position,
        mark: { bytes: 0, lines: 0, events: 0, skipped: 0, sha256: createHash("sha256").digest("hex"), position },
      };
      // Before the first event is sent, or nobody would know the nonce that its id was made of.
      await this.save(state).catch(source.path === undefined ? undefined : unwritableState(source.path));
      return { state, hash: createHash("sha256"), uncertain: false };
    }
    const fault = stateFault(source.path, found, {
      url: context.url,
      topic: source.topic,
      createdAt: this.createdAt,
      newIds,
    });
    if (fault !== undefined || found === "unreadable") throw new CliError(fault ?? source.path);
    const hash = await this.hashUpTo(found);
    if (found.mark.events > 0) {
      const { events } = found.mark;
      context.note(`narthex: going on behind the ${eventsText(events)} that ${wasWere(events)} imported before`);
    }
    if (!skipStored || found.skipStored) return { state: found, hash, uncertain: true };
    // All of the target is looked through then, also what was there before the import began.
    return { state: { ...found, skipStored, begin: target?.start ?? found.begin }, hash, uncertain: true };
  }

  /** The file must still be the one of which a part was imported. */
  private async hashUpTo({ mark }: ImportState): Promise<Hash> {
    const { path = "", bytes = 0 } = this.source;
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
    const { path } = this.source;
    if (path === undefined) return;
    // A topic that the first event made.
    if (this.createdAt === null && state.mark.events > 0) this.createdAt = await this.madeAt(state.topic);
    await writeState(path, { ...state, createdAt: this.createdAt });
  }

  /** Null: the node is gone just now; the next mark will tell. */
  private madeAt(topic: string): Promise<number | null> {
    return findTarget(this.context, topic).then(
      (target) => target?.createdAt ?? null,
      (error: Error) => {
        if (error instanceof CliError) return null;
        throw error;
      },
    );
  }

  // --------------------------------------------------------------------------------------------------------------- publishing

  private async publishAll(
    client: EventClient,
    start: Start & { readonly progress: Progress; readonly watch: RefusalWatch },
  ): Promise<{ state: ImportState; storedBefore: number }> {
    const { clock, context, source, options } = this;
    let { state, hash, uncertain } = start;
    const looking = { context, clock, retryMs: options.retryS * 1000 };
    const before = await storedBefore(looking, state);
    let notStored = 0;
    let movedAt = clock.mono();
    for (;;) {
      const stored = uncertain
        ? await storedBehind(looking, state, { source, read: this.reader(state, undefined) })
        : new Set<string>();
      const pipeline = new Pipeline({
        client,
        clock,
        signal: context.signal,
        state,
        hash,
        read: this.reader(state, client),
        storedBefore: before,
        stored,
        rate: options.rate,
        skip: options.skipBad ? (line, fault) => this.skipped(line, fault) : undefined,
        save: (latest) => this.save(latest),
        onProgress: (events, bytes) => {
          start.progress.reach(events, bytes);
          start.watch.reach(events);
        },
      });
      const end = await pipeline.run(source.chunks(state.mark.bytes));
      notStored += pipeline.storedBefore;
      if (end.kind === "done") return { state: pipeline.state, storedBefore: notStored };
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
    if (this.bad <= badShownMax) this.context.note(`narthex: ${this.source.name}:${line} ${fault}: passed over`);
    if (this.bad === badShownMax + 1) this.context.note("narthex: more lines are passed over without a word");
  }

  /** Undefined: trying again changes nothing. */
  private retryAfter(end: PipelineEnd): number | undefined {
    if (end.kind !== "refused" || !(end.error instanceof NarthexError) || this.source.path === undefined)
      return undefined;
    const { code, retryable, retryAfterMs } = end.error;
    return retryable || code === "unknown_outcome" ? (retryAfterMs ?? 1000) : undefined;
  }

  private failure(end: PipelineEnd, { mark }: ImportState): CliError {
    const { name, path } = this.source;
    const sofar =
      path === undefined
        ? `${eventsText(mark.events)} or more were imported`
        : `${eventsText(mark.events)} ${isAre(mark.events)} imported; the same command goes on from there`;
    switch (end.kind) {
      case "interrupted":
        return new CliError(`interrupted: ${sofar}`, exitCodes.interrupted);
      case "bad":
        return new CliError(
          `${name}:${end.line} ${end.fault}; nothing behind it was imported: correct it and give the same command again, or add --skip-bad`,
        );
      case "unsaved":
        return new CliError(`${statePath(name)} cannot be written (${diskReason(end.error)}): ${sofar}`);
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
    const { context, source, options } = this;
    const { events, bytes, sha256, skipped } = state.mark;
    const verdict = options.verify && source.path !== undefined ? await this.verify(source.path, state) : undefined;
    if (verdict?.kind === "missing") throw await this.difference(source.name, state.topic, verdict);
    if (source.path !== undefined) await removeIfThere(statePath(source.path));
    if (context.json) {
      const { topic } = state;
      const verified = verdict?.kind ?? false;
      const reordered = verdict?.kind === "same" ? verdict.reordered : 0;
      context.out(
        JSON.stringify({
          topic,
          file: source.name,
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
      `${state.topic}: ${eventsText(events)} from ${source.name} (${bytesText(bytes)} in ${durationText(seconds * 1000)})`,
      `sha256 ${sha256}`,
      ...(skipped > 0 ? [`${skipped} lines passed over`] : []),
      ...(storedBefore > 0
        ? [`${eventsText(storedBefore)} ${wasWere(storedBefore)} there before and not stored again`]
        : []),
    ];
    if (verdict?.kind === "identical") facts.push(`the export of ${state.topic} is now identical to the file`);
    if (verdict?.kind === "same") facts.push("all are in the topic with the same contents");
    if (verdict?.kind === "same" && verdict.reordered > 0)
      facts.push(`${verdict.reordered} in another order than in the file`);
    context.out(facts.join(", "));
  }

  private async verify(file: string, state: ImportState): Promise<Verdict> {
    const { context, clock, options } = this;
    const { topic, begin } = state;
    const retryMs = options.retryS * 1000;
    try {
      const read = this.reader(state, undefined);
      return await verifyImport({ context, clock, file, topic, begin, retryMs, read });
    } catch (error) {
      if (!(error instanceof CliError)) throw error;
      const rest = "all events are imported, only not compared with the file; --no-verify leaves that out";
      throw new CliError(`${error.message}: ${rest}`, error.exitCode);
    }
  }

  private async difference(
    name: string,
    topic: string,
    { line, id }: { readonly line: number; readonly id: string },
  ): Promise<CliError> {
    const there = await hasEvent(this.context, topic, id);
    const target = there ? undefined : await findTarget(this.context, topic);
    const gone = target?.retains
      ? `is not stored; the retention of ${topic} may have removed it (--no-verify leaves the comparison out)`
      : "is not stored";
    const what = there ? "is stored with other contents (an older event has its id? --new-ids)" : gone;
    return new CliError(`${name}:${line} differs: the event ${id} ${what}`);
  }
}

function failureText(end: PipelineEnd): string {
  if (end.kind !== "refused") return end.kind;
  return explainFailure(end.error).line ?? end.error.message;
}
