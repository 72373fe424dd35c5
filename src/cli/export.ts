// narthex export: the events of a topic as NDJSON, to a file that is whole and checked or does not exist under its name. What is
// unfinished is in `<file>.part` (export-part.ts), and the same command goes on with it.

import { createHash } from "node:crypto";
import { type FileHandle, open, rename, stat } from "node:fs/promises";
import { basename } from "node:path";
import { parsePosition, positionText } from "../protocol/position.ts";
import { realClock } from "../runtime/clock.ts";
import { checkTopic, usage, wholeNumber } from "./arguments.ts";
import { CliError, type Context, exitCodes, type Register } from "./context.ts";
import { unwritable } from "./disk-faults.ts";
import {
  type AskedRange,
  absent,
  type Found,
  openPart,
  type PartFacts,
  type PartPaths,
  partFault,
  pathsOf,
  readFacts,
  removeIfThere,
  replaceFile,
  syncFolderOf,
  Trail,
  writeFacts,
} from "./export-part.ts";
import { ExportCut, type ExportSink, type ExportSource, silentMs, streamExport } from "./export-stream.ts";
import { withLock } from "./file-lock.ts";
import { getTopic } from "./node-answers.ts";
import { eventsText, isAre, Progress } from "./progress.ts";
import { bytesText } from "./table.ts";
import { timeForms, timeOption } from "./times.ts";

interface ExportOptions {
  readonly output?: string;
  readonly fromTs?: string;
  readonly toTs?: string;
  readonly since?: string;
  readonly force?: true;
  readonly retryS: number;
}

const retryDefaultS = 60;
const retryMaxS = 86_400;
/** How much may be written before what is there is put on record, for whoever goes on with it. */
const checkpointBytes = 16 * 1024 * 1024;
const checkpointMs = 1000;

export const registerExport: Register = (program, run) => {
  program
    .command("export")
    .summary("write the events of a topic to a file, or to stdout")
    .description(
      "Write the events of a topic to a file, or to stdout: one per line, in the order of the log, with a checksum beside the file. An export that was cut goes on when the same command is given again.",
    )
    .argument("<topic>")
    .option("-o, --output <file>", "the file; without it events go to stdout")
    .option("--from-ts <time>", `only events of this time or later: ${timeForms}`)
    .option("--to-ts <time>", "only events of this time or earlier")
    .option("--since <time>", "the same as --from-ts, for a time ago such as 2h")
    .option("--force", "replace a file that exists, and forget an export that was cut")
    .option(
      "--retry-s <seconds>",
      "how long to go on trying when the node is gone",
      wholeNumber("--retry-s", 0, retryMaxS),
      retryDefaultS,
    )
    .addHelpText(
      "after",
      `
Examples:
  $ narthex export orders -o orders.ndjson
  orders.ndjson: 2 events, 312 B, sha256 9f2c…
  $ sha256sum -c orders.ndjson.sha256
  $ narthex export orders --since 2h | jq .payload`,
    )
    .action((topic: string, options: ExportOptions) =>
      run((context) => exportTopic(context, checkTopic(topic), options)),
    );
};

export async function exportTopic(context: Context, topic: string, options: ExportOptions): Promise<void> {
  const asked = askedRange(options);
  const range = resolveRange(asked);
  if (options.output === undefined) {
    if (options.force) throw usage("--force goes with -o");
    return exportToStdout(context, topic, range, options);
  }
  if (options.output === "") throw usage("-o is empty: give the name of a file");
  const retryMs = options.retryS * 1000;
  const { createdAt } = await getTopic(context, topic, { msMax: silentMs(retryMs) });
  const paths = pathsOf(options.output);
  const facts: PartFacts = { version: 1, topic, createdAt, ...asked, ...range, checkpoint: null };
  const lock = { clock: realClock(), taken: `another export writes ${paths.part}` };
  await withLock(paths.lock, lock, () =>
    exportToFile(context, { paths, facts, force: options.force === true, retryMs }),
  ).catch(unwritable(paths.file));
}

interface Range {
  readonly begin: number | null;
  readonly end: number | null;
}

function askedRange({ fromTs, toTs, since }: ExportOptions): AskedRange {
  if (fromTs !== undefined && since !== undefined) throw usage("--from-ts and --since exclude each other");
  return { fromTs: fromTs ?? null, toTs: toTs ?? null, since: since ?? null };
}

function resolveRange({ fromTs, toTs, since }: AskedRange): Range {
  const now = realClock().wall();
  const name = fromTs === null ? "--since" : "--from-ts";
  const text = fromTs ?? since;
  const begin = text === null ? null : timeOption(name, text, now);
  const end = toTs === null ? null : timeOption("--to-ts", toTs, now);
  if (begin !== null && end !== null && end < begin) throw usage(`--to-ts lies before ${name}`);
  return { begin, end };
}

// ------------------------------------------------------------------------------------------------------------------ to stdout

async function exportToStdout(
  context: Context,
  topic: string,
  { begin, end }: Range,
  { retryS }: ExportOptions,
): Promise<void> {
  const trail = new Trail(topic);
  const sink: ExportSink = {
    write: (block) =>
      new Promise((resolve) => {
        if (process.stdout.write(block)) resolve();
        else process.stdout.once("drain", resolve);
      }),
  };
  const source = sourceOf(context, topic, { fromTs: begin, toTs: end, retryMs: retryS * 1000, known: false });
  try {
    await streamExport(source, { trail, hash: createHash("sha256"), sink });
  } catch (error) {
    if (!(error instanceof ExportCut)) throw error;
    const rest = trail.next.size === 0 ? "" : `, up to ${positionText(trail.next)}`;
    throw new CliError(
      `the export was cut after ${eventsText(trail.events)}${rest}: ${error.message}; with -o it could be resumed`,
      context.signal.aborted ? exitCodes.interrupted : exitCodes.failed,
    );
  }
}

function sourceOf(
  context: Context,
  topic: string,
  rest: Pick<ExportSource, "fromTs" | "toTs" | "retryMs" | "known">,
): ExportSource {
  const { url, token, signal } = context;
  let said = false;
  return {
    url,
    token,
    signal,
    clock: realClock(),
    topic,
    ...rest,
    onCut: (reason) => {
      if (!said)
        context.note(`narthex: the export was cut (${reason}), trying again for up to ${rest.retryMs / 1000} s`);
      said = true;
    },
  };
}

// ------------------------------------------------------------------------------------------------------------------ to a file

interface FileExport {
  readonly paths: PartPaths;
  readonly facts: PartFacts;
  readonly force: boolean;
  readonly retryMs: number;
}

async function exportToFile(context: Context, { paths, facts: wanted, force, retryMs }: FileExport): Promise<void> {
  const { facts, found } = await beginOrResume(paths, wanted, force);
  const { trail, hash } = found;
  const { topic } = facts;
  const resumed = trail.events;
  if (resumed > 0) {
    context.note(`narthex: going on behind the ${eventsText(resumed)} that ${isAre(resumed)} in ${paths.part}`);
  }
  const progress = new Progress({
    clock: realClock(),
    tty: context.tty,
    label: topic,
    total: await eventsInAll(context, facts, trail),
    done: resumed,
    events: resumed,
  });
  const part = await open(paths.part, "a");
  const record = new Checkpoints(part, paths.facts, facts, found);
  try {
    const source = sourceOf(context, topic, { fromTs: facts.begin, toTs: facts.end, retryMs, known: true });
    const sink: ExportSink = {
      async write(block) {
        await writeWhole(part, block);
        progress.reach(trail.events);
        if (record.isDue()) await record.write();
      },
    };
    await streamExport(source, { trail, hash, sink });
    await part.sync();
  } catch (error) {
    if (!(error instanceof ExportCut)) throw error;
    await record.write();
    throw new CliError(
      `the export was cut after ${eventsText(trail.events)}: ${error.message}; the same command goes on from there`,
      context.signal.aborted ? exitCodes.interrupted : exitCodes.failed,
    );
  } finally {
    progress.stop();
    await part.close();
  }
  const sha256 = hash.digest("hex");
  // The checksum first: once the file has its name, it is there for whoever looks.
  await replaceFile(paths.checksum, `${sha256}  ${basename(paths.file)}\n`);
  await rename(paths.part, paths.file);
  await syncFolderOf(paths.file);
  await removeIfThere(paths.facts);
  const { events, bytes, next } = trail;
  if (context.json) {
    context.out(JSON.stringify({ topic, file: paths.file, events, bytes, sha256, next: positionText(next), resumed }));
  } else context.out(`${paths.file}: ${eventsText(events)}, ${bytesText(bytes)}, sha256 ${sha256}`);
}

/** The part that is there, if it may be gone on with; else an empty one. */
async function beginOrResume(
  paths: PartPaths,
  wanted: PartFacts,
  force: boolean,
): Promise<{ readonly facts: PartFacts; readonly found: Found }> {
  const { file, part } = paths;
  if (!force && (await sizeOf(file)) !== undefined) throw new CliError(`${file} exists: give another -o, or --force`);
  const size = await sizeOf(part);
  if (!force && size !== undefined && size > 0) {
    const facts = await readFacts(paths.facts);
    const fault =
      facts === undefined
        ? `${part} is there, but not ${paths.facts}, which says what it is: give another -o, or --force to start anew`
        : partFault(file, facts, wanted);
    if (facts === undefined || fault !== undefined) throw new CliError(fault ?? part);
    return { facts, found: await openPart(paths, facts) };
  }
  await removeIfThere(part);
  await writeFacts(paths.facts, wanted);
  return { facts: wanted, found: { trail: new Trail(wanted.topic), hash: createHash("sha256"), looseBytes: 0 } };
}

/** Puts on record what the part has, so that nobody goes on with one that was changed meanwhile. */
class Checkpoints {
  private readonly part: FileHandle;
  private readonly path: string;
  private readonly facts: PartFacts;
  private readonly found: Found;
  private readonly clock = realClock();
  private bytes = 0;
  private at = Number.NEGATIVE_INFINITY;

  constructor(part: FileHandle, path: string, facts: PartFacts, found: Found) {
    this.part = part;
    this.path = path;
    this.facts = facts;
    this.found = found;
  }

  isDue(): boolean {
    return this.found.trail.bytes - this.bytes >= checkpointBytes || this.clock.mono() - this.at >= checkpointMs;
  }

  /** To be called when all of the trail is written. */
  async write(): Promise<void> {
    const { bytes } = this.found.trail;
    const sha256 = this.found.hash.copy().digest("hex");
    // The bytes first: what is on record must not be more than what a power cut leaves.
    await this.part.datasync();
    await writeFacts(this.path, { ...this.facts, checkpoint: { bytes, sha256 } });
    this.bytes = bytes;
    this.at = this.clock.mono();
  }
}

async function sizeOf(path: string): Promise<number | undefined> {
  const facts = await stat(path).catch(absent);
  if (facts !== undefined && !facts.isFile()) throw new CliError(`${path} is not a file: give another -o`);
  return facts?.size;
}

/** What the bar goes up to. With a range nobody knows before. */
async function eventsInAll(context: Context, facts: PartFacts, { events, next }: Trail): Promise<number | undefined> {
  if (facts.begin !== null || facts.end !== null) return undefined;
  const path = `/topics/${encodeURIComponent(facts.topic)}/offsets`;
  const { earliest, latest } = await context.getJson<{ earliest: string; latest: string }>(path);
  const starts = parsePosition(earliest) ?? new Map<number, number>();
  let left = 0;
  for (const [partition, end] of parsePosition(latest) ?? []) {
    left += Math.max(0, end - Math.max(next.get(partition) ?? 0, starts.get(partition) ?? 0));
  }
  return events + left;
}

async function writeWhole(file: FileHandle, block: Buffer): Promise<void> {
  for (let at = 0; at < block.length; ) {
    const { bytesWritten } = await file.write(block, at, block.length - at);
    at += bytesWritten;
  }
}
