// The Context of a real process: stdout and stderr, the environment, signals, and the way to the node. Closed when the command is.

import { readFileSync } from "node:fs";
import { connect, type EventClient } from "../client/client.ts";
import { frameBounds } from "../protocol/bounds.ts";
import { type Clock, realClock } from "../runtime/clock.ts";
import { type Action, CliError, type Context, exitCodes } from "./context.ts";
import { exitCodeOf, explainFailure, type FailureLine, tokenAdvice, unreachableLine } from "./failures.ts";
import { notANode } from "./node-answers.ts";

/** As commander names them. */
export interface SharedOptions {
  readonly json?: true;
  readonly url?: string;
  readonly tokenFile?: string;
  readonly quiet?: true;
}

type Environment = Readonly<Record<string, string | undefined>>;

const defaultUrl = "http://127.0.0.1:8090";
/** Until the head of an answer comes; its body may take as long as it takes. */
const answerMsMax = 30_000;
const probeMsMax = 5000;
const tokenFileBytesMax = 64 * 1024;

/** Runs the action and resolves with its exit code; what it throws goes on to the caller. */
export async function withContext(options: SharedOptions, action: Action): Promise<number> {
  const context = new ProcessContext(options, process.env);
  const unwatch = watchSignals(context);
  try {
    const code = (await action(context)) ?? exitCodes.ok;
    await context.close();
    await flushed();
    return code;
  } catch (error) {
    context.destroy();
    await flushed();
    // What breaks because the user ended it is no failure to report.
    if (context.signal.aborted && !(error instanceof CliError)) return exitCodes.interrupted;
    throw error;
  } finally {
    unwatch();
  }
}

class ProcessContext implements Context {
  readonly json: boolean;
  readonly color: boolean;
  readonly tty: boolean;
  readonly url: string;
  readonly token: string | undefined;
  private readonly quiet: boolean;
  private readonly clock: Clock = realClock();
  private readonly ending = new AbortController();
  private asking: Promise<void> | undefined;
  private connecting: Promise<EventClient> | undefined;
  private connected: EventClient | undefined;

  constructor(options: SharedOptions, env: Environment) {
    this.json = options.json === true;
    this.quiet = options.quiet === true;
    this.color = wantsColor(process.stdout.isTTY, env) && !this.json;
    this.tty = process.stderr.isTTY === true && !this.quiet;
    this.url = nodeUrl(options.url, env);
    this.token = nodeToken(options.tokenFile, env);
  }

  get signal(): AbortSignal {
    return this.ending.signal;
  }

  out(line: string): void {
    process.stdout.write(`${line}\n`);
  }

  note(line: string): void {
    if (!this.quiet) process.stderr.write(`${line}\n`);
  }

  async http(path: string, init: RequestInit = {}): Promise<Response> {
    await this.needNode();
    const response = await this.fetch(path, init, answerMsMax);
    if (!response.ok) throw await refusedBy(this.url, response);
    return response;
  }

  async getJson<T>(path: string): Promise<T> {
    const response = await this.http(path);
    const text = await response.text().catch((error: unknown) => {
      if (this.signal.aborted) throw error;
      const line = `the connection to ${this.url} was lost before its answer was complete`;
      throw new CliError(line, exitCodes.unreachable);
    });
    try {
      return JSON.parse(text) as T;
    } catch (error) {
      if (error instanceof SyntaxError) throw notANode(this.url);
      throw error;
    }
  }

  client(): Promise<EventClient> {
    this.connecting ??= this.connect();
    return this.connecting;
  }

  /** The first signal: whoever listens finishes. */
  interrupt(): void {
    this.ending.abort();
  }

  async close(): Promise<void> {
    await this.connected?.close();
  }

  destroy(): void {
    this.connected?.destroy();
  }

  private async connect(): Promise<EventClient> {
    // A client goes on trying, as it should once it runs. A node that is not there at all is to be said at once.
    await this.needNode();
    let lost = false;
    const client = await connect(this.url, {
      token: this.token,
      onStatus: (status) => {
        if (status === "reconnecting" && !lost) this.note("narthex: the connection was lost, trying to get it back");
        else if (status === "open" && lost) this.note("narthex: connected again");
        lost = status === "reconnecting";
      },
    });
    this.connected = client;
    return client;
  }

  /** Asks before the first request, until it was answered once. Behind it every answer is that of a node, whatever else may listen on such a port. */
  private needNode(): Promise<void> {
    this.asking ??= this.askLive().catch((error: unknown) => {
      this.asking = undefined;
      throw error;
    });
    return this.asking;
  }

  private async askLive(): Promise<void> {
    const late = new AbortController();
    const timer = this.clock.after(probeMsMax, () => late.abort());
    try {
      const response = await this.fetch("/health/live", { signal: late.signal }, probeMsMax);
      if (!response.ok || !(await saysLive(response))) throw notANode(this.url);
    } catch (error) {
      if (!late.signal.aborted || this.signal.aborted || error instanceof CliError) throw error;
      throw noAnswer(this.url, probeMsMax);
    } finally {
      timer.cancel();
      // What is not read of it would keep the socket.
      late.abort();
    }
  }

  private async fetch(path: string, init: RequestInit, msMax: number): Promise<Response> {
    const late = new AbortController();
    const timer = this.clock.after(msMax, () => late.abort());
    const signals = [this.signal, late.signal, ...(init.signal ? [init.signal] : [])];
    const headers = new Headers(init.headers);
    if (this.token !== undefined) headers.set("authorization", `Bearer ${this.token}`);
    try {
      return await fetch(this.url + path, { ...init, headers, signal: AbortSignal.any(signals) });
    } catch (error) {
      if (this.signal.aborted || init.signal?.aborted) throw error;
      if (late.signal.aborted) throw noAnswer(this.url, msMax);
      throw new CliError(unreachableLine(this.url, reasonOf(error)), exitCodes.unreachable);
    } finally {
      timer.cancel();
    }
  }
}

// ------------------------------------------------------------------------------------------------------------ what is given

export function wantsColor(isTerminal: boolean | undefined, env: Environment): boolean {
  return isTerminal === true && !env.NO_COLOR && env.TERM !== "dumb";
}

/** As a base that a path can be put behind. */
export function nodeUrl(option: string | undefined, env: Environment): string {
  const name = option === undefined ? "NARTHEX_URL" : "--url";
  const text = option ?? (env.NARTHEX_URL || defaultUrl);
  const url = URL.canParse(text) ? new URL(text) : undefined;
  // Not repeated: it has a secret in it.
  if (url !== undefined && (url.username !== "" || url.password !== "")) {
    throw new CliError(`${name} has a password in it: put the token into NARTHEX_TOKEN instead`, exitCodes.usage);
  }
  const protocol = url?.protocol.replace(/^ws/, "http");
  if (url === undefined || (protocol !== "http:" && protocol !== "https:") || url.search !== "" || url.hash !== "") {
    throw new CliError(`${name} must be the address of a node, such as ${defaultUrl}`, exitCodes.usage);
  }
  return `${protocol}//${url.host}${url.pathname.replace(/\/+$/, "")}`;
}

export function nodeToken(file: string | undefined, env: Environment): string | undefined {
  if (file !== undefined) return checkedToken(readTokenFile(file), `the file of --token-file`);
  const name = env.NARTHEX_TOKEN ? "NARTHEX_TOKEN" : "WS_TOKEN";
  return env[name] ? checkedToken(env[name], name) : undefined;
}

function readTokenFile(path: string): string {
  try {
    const text = readFileSync(path);
    if (text.length > tokenFileBytesMax) throw new CliError("the file of --token-file is too large", exitCodes.usage);
    return text.toString("utf8").trim();
  } catch (error) {
    if (error instanceof CliError) throw error;
    const { code } = error as NodeJS.ErrnoException;
    throw new CliError(`--token-file ${JSON.stringify(path)} cannot be read: ${code}`, exitCodes.usage);
  }
}

/** What cannot be a header is refused here: later it would be part of an error's text. */
function checkedToken(token: string, from: string): string {
  if (token.length <= frameBounds.tokenCharsMax && /^[\x21-\x7e]+$/.test(token)) return token;
  const rule = `1 to ${frameBounds.tokenCharsMax} visible ASCII characters without spaces`;
  throw new CliError(`${from} does not hold a token: allowed are ${rule}`, exitCodes.usage);
}

// ---------------------------------------------------------------------------------------------------------------- refusals

function reasonOf(error: unknown): string {
  const { message, cause } = error as Error & { cause?: { readonly code?: string; readonly message?: string } };
  return cause?.code ?? cause?.message ?? message;
}

async function refusedBy(url: string, response: Response): Promise<CliError> {
  const text = await response.text().catch((error: Error) => error.message);
  let fault: { readonly error?: unknown; readonly code?: string };
  try {
    fault = JSON.parse(text) ?? {};
  } catch (error) {
    if (error instanceof SyntaxError) return notANode(url);
    throw error;
  }
  if (typeof fault.error !== "string") return notANode(url);
  const line = tokenAdvice(fault.code) ?? (fault.code === undefined ? fault.error : `${fault.error} (${fault.code})`);
  return new CliError(line, response.status === 404 ? exitCodes.missing : exitCodeOf(fault.code));
}

async function saysLive(response: Response): Promise<boolean> {
  if (!response.headers.get("content-type")?.startsWith("application/json")) return false;
  try {
    const answer = (await response.json()) as { readonly live?: unknown } | null;
    return answer?.live === true;
  } catch (error) {
    if (error instanceof SyntaxError) return false;
    throw error;
  }
}

function noAnswer(url: string, msMax: number): CliError {
  return new CliError(`no answer from ${url} within ${msMax / 1000} s`, exitCodes.unreachable);
}

// ----------------------------------------------------------------------------------------------------------------- process

/** The first signal lets the command finish, the second ends the process. */
function watchSignals(context: ProcessContext): () => void {
  const interrupt = () => {
    if (context.signal.aborted) process.exit(exitCodes.interrupted);
    context.interrupt();
  };
  process.on("SIGINT", interrupt).on("SIGTERM", interrupt);
  return () => process.off("SIGINT", interrupt).off("SIGTERM", interrupt);
}

/** Readers that go away, and what nobody caught. For as long as the process lives: help is written without a context. */
export function watchProcess(): { optional: boolean } {
  const reader = { optional: false };
  process.stdout.on("error", ({ code }: NodeJS.ErrnoException) => {
    if (code === "EPIPE") {
      if (reader.optional) return;
      // `| head -1` has what it wanted.
      process.exit(exitCodes.ok);
    }
    process.stderr.write(`narthex: stdout cannot be written: ${code}\n`);
    process.exit(exitCodes.failed);
  });
  // Without anybody who reads the notes, the work goes on.
  process.stderr.on("error", () => undefined);
  const uncaught = (error: unknown) => process.exit(reportFailure(explainFailure(error)));
  process.on("uncaughtException", uncaught).on("unhandledRejection", uncaught);
  return reader;
}

/** Says it in one line, with details for whoever asked for them, and returns the exit code. */
export function reportFailure({ line, exitCode, details }: FailureLine): number {
  if (line !== undefined) process.stderr.write(`narthex: ${line}\n`);
  if (details !== undefined && process.env.NARTHEX_DEBUG === "1") process.stderr.write(`${details}\n`);
  return exitCode;
}

function flushed(): Promise<void> {
  return new Promise((resolve) => void process.stdout.write("", () => resolve()));
}
