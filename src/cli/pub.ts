// narthex pub: events from the command line, from a pipe, or one for each line of a pipe.

import type { EventClient, Published, PublishOptions } from "../client/client.ts";
import { RawJson } from "../client/raw-json.ts";
import { eventIdFault } from "../protocol/names.ts";
import { realClock } from "../runtime/clock.ts";
import { checkPublishTopic, collect, collectHeader, usage, wholeNumber } from "./arguments.ts";
import { CliError, type Context, type Register } from "./context.ts";
import { explainFailure } from "./failures.ts";
import { InputTooLong, readStdin, stdinLines } from "./stdin.ts";
import { stdoutDrained } from "./stdout.ts";
import { many } from "./table.ts";
import { timeOption } from "./times.ts";

interface PubOptions {
  readonly key?: string;
  readonly id?: string;
  readonly header?: Readonly<Record<string, string>>;
  readonly tag?: readonly string[];
  readonly ts?: string;
  readonly count?: number;
  readonly lines?: true;
  readonly text?: true;
}

/** Events sent and not yet confirmed. */
const windowMax = 1000;
const inputBytesMax = 64 * 1024 * 1024;
/** Some editors and shells begin a file with it. */
const byteOrderMark = "\ufeff";
const quoting = `put JSON in single quotes, as in: narthex pub orders '{"n":1}' (or send it as a string with --text)`;

export const registerPub: Register = (program, run) => {
  program
    .command("pub")
    .summary("publish an event, or one for each line of stdin")
    .description("Publish an event. The payload is JSON: the second argument, or stdin if that is left out or is -.")
    .argument("<topic>", "is made if it does not exist")
    .argument("[payload]", "JSON")
    .option("-k, --key <key>", "decides the partition; events of one key stay in order")
    .option("--id <id>", "a name of your own: published again within two minutes, it is stored once")
    .option("--header <name=value>", "may be repeated", collectHeader)
    .option("--tag <tag>", "may be repeated", collect)
    .option("--ts <time>", "when it happened: 10m (ago), a date, or milliseconds; default now")
    .option("--count <n>", "publish it so many times", wholeNumber("--count", 1))
    .option("--lines", "stdin has one payload on each line")
    .option("--text", "the payload is text, to be sent as a JSON string")
    .allowExcessArguments()
    .addHelpText(
      "after",
      `
Prints the id of each event once it is stored; with --json the event as it is stored.

Examples:
  narthex pub orders '{"n":1}' --key customer-7
  narthex pub log --text 'the disk is full' --tag alert
  jq -c '.[]' orders.json | narthex pub orders --lines`,
    )
    .action((topic: string, payload: string | undefined, options: PubOptions, { args }: { args: string[] }) =>
      run(
        (context) => {
          if (args.length > 2) throw usage(`the payload came in ${args.length - 1} pieces: ${quoting}`);
          return pub(context, checkPublishTopic(topic), payload, options);
        },
        { readerOptional: true },
      ),
    );
};

async function pub(context: Context, topic: string, argument: string | undefined, options: PubOptions): Promise<void> {
  const publishOptions = checkOptions(options);
  if (options.lines) {
    if (argument !== undefined && argument !== "-") throw usage("--lines reads stdin: leave the payload out");
    return publishAll(context, topic, (signal) => linePayloads(signal, options), publishOptions);
  }
  const text = argument === undefined || argument === "-" ? await readInput(context, argument) : argument;
  const payload = options.text ? text : parsePayload(text, () => `the payload is not JSON: ${quoting}`);
  return publishAll(context, topic, (signal) => repeated(payload, options.count ?? 1, signal), publishOptions);
}

function checkOptions({ key, id, header, tag, ts, count, lines }: PubOptions): PublishOptions {
  if (id !== undefined) {
    const fault = eventIdFault(id);
    if (fault !== undefined) throw usage(`--id: ${fault}`);
    if (lines || (count ?? 1) > 1) throw usage("--id names one event: it does not go with --lines or --count");
  }
  if (lines && count !== undefined) throw usage("--count does not go with --lines");
  return {
    ...(key === undefined ? {} : { key }),
    ...(id === undefined ? {} : { id }),
    ...(header === undefined ? {} : { headers: header }),
    ...(tag === undefined ? {} : { tags: tag }),
    ...(ts === undefined ? {} : { ts: timeOption("--ts", ts, realClock().wall()) }),
  };
}

// ----------------------------------------------------------------------------------------------------------------- payloads

interface Numbered {
  /** From 1; undefined where there is one payload only. */
  readonly line?: number;
  readonly payload: unknown;
}

/** Checked, and published as it was written: a number keeps its digits. In JSON a line break can only stand between tokens. */
function parsePayload(text: string, faultText: (fault: string) => string): RawJson {
  try {
    JSON.parse(text);
  } catch (error) {
    if (error instanceof SyntaxError) throw usage(faultText(syntaxFault(error)));
    throw error;
  }
  return new RawJson(text.trim().replace(/[\r\n]+/g, " "));
}

/** Without the excerpt of the payload that V8 adds. */
function syntaxFault({ message }: SyntaxError): string {
  return message.replace(/, (?:\.\.\.)?".*"(?:\.\.\.)? is not valid JSON$/s, "").replace(/^U/, "u");
}

function withoutMark(text: string): string {
  return text.startsWith(byteOrderMark) ? text.slice(1) : text;
}

async function* linePayloads(signal: AbortSignal, { text }: PubOptions): AsyncGenerator<Numbered> {
  let line = 0;
  for await (const given of stdinLines(signal)) {
    line++;
    const content = line === 1 ? withoutMark(given) : given;
    // A file often ends with an empty line; nobody means an event by it.
    if (!text && content.trim() === "") continue;
    yield { line, payload: text ? content : parsePayload(content, (fault) => `line ${line} is not JSON: ${fault}`) };
  }
}

async function* repeated(payload: unknown, times: number, signal: AbortSignal): AsyncGenerator<Numbered> {
  for (let i = 0; i < times; i++) {
    signal.throwIfAborted();
    yield { payload };
  }
}

async function readInput({ signal }: Context, argument: string | undefined): Promise<string> {
  if (argument === undefined && process.stdin.isTTY) throw usage(`there is no payload: ${quoting}`);
  const text = await readStdin(signal, inputBytesMax).catch((error: Error) => {
    throw error instanceof InputTooLong
      ? usage("stdin is too long for one event: --lines takes one from each line")
      : error;
  });
  // A text keeps its form but for the newline that ends a file; JSON does not care.
  const trimmed = withoutMark(text).replace(/\r?\n$/, "");
  if (trimmed.trim() === "") throw usage(`stdin is empty, and there is no payload: ${quoting}`);
  return trimmed;
}

// --------------------------------------------------------------------------------------------------------------- publishing

/**
 * Ids come out in the order of the payloads, each as soon as it and those before it are stored. The first refusal ends the reading;
 * what was sent behind it may be stored all the same and is shown, because whoever repeats this must know.
 */
async function publishAll(
  context: Context,
  topic: string,
  payloads: (signal: AbortSignal) => AsyncIterable<Numbered>,
  options: PublishOptions,
): Promise<void> {
  const client = await context.client();
  const refusal = new AbortController();
  const shown: Promise<void>[] = [];
  let last = Promise.resolve();
  let stored = 0;
  let refused: unknown;
  const show = async (result: Promise<Published>, line: number | undefined) => {
    try {
      const published = await result;
      stored++;
      context.out(context.json ? storedText(published) : published.id);
      await stdoutDrained();
    } catch (error) {
      refused ??= atLine(error, line);
      refusal.abort();
    }
  };
  try {
    for await (const { line, payload } of payloads(AbortSignal.any([context.signal, refusal.signal]))) {
      if (refusal.signal.aborted) break;
      const result = start(client, topic, payload, options);
      last = last.then(() => show(result, line));
      shown.push(last);
      if (shown.length >= windowMax) await shown.shift();
    }
    await last;
    if (refused === undefined) return;
  } catch (error) {
    await last;
    refused ??= error;
  }
  throw stored === 0 ? refused : withStored(refused, stored);
}

function storedText(published: Published): string {
  const { payload } = published;
  return JSON.stringify(payload instanceof RawJson ? { ...published, payload: JSON.parse(payload.text) } : published);
}

function start(client: EventClient, topic: string, payload: unknown, options: PublishOptions): Promise<Published> {
  const result = client.publish(topic, payload, options);
  // It is looked at when its turn comes; until then a rejection is nobody's.
  result.catch(() => "looked at in its turn");
  return result;
}

function atLine(error: unknown, line: number | undefined): unknown {
  const { line: text, exitCode } = explainFailure(error);
  return line === undefined || text === undefined ? error : new CliError(`line ${line}: ${text}`, exitCode);
}

function withStored(error: unknown, stored: number): unknown {
  const { line: text, exitCode } = explainFailure(error);
  if (text === undefined) return error;
  return new CliError(`${text}; ${many(stored, "event")} ${stored === 1 ? "was" : "were"} stored`, exitCode);
}
