// The Context of a real process: stdout and stderr, the environment, signals, and the way to the node. Closed when the command is.

import { readFileSync } from "node:fs";
import { connect, type EventClient } from "../client/client.ts";
import { frameBounds } from "../protocol/bounds.ts";
import { type Clock, realClock } from "../runtime/clock.ts";
import { type Action, CliError, type Context, exitCodes } from "./context.ts";
import { exitCodeOf, explainFailure, tokenAdvice, unreachableLine } from "./failures.ts";

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
  const unwatch = watchProcess(context);
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
      if (error instanceof SyntaxError) throw notOurs(this.url);
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
    const response = await this.fetch("/health/live", {}, probeMsMax);
    await response.body?.cancel();
    if (!response.ok) throw notOurs(this.url);
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
      if (late.signal.aborted) {
        throw new CliError(`no answer from ${this.url} within ${msMax / 1000} s`, exitCodes.unreachable);
      }
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
    if (error instanceof SyntaxError) return notOurs(url);
    throw error;
  }
  if (typeof fault.error !== "string") return notOurs(url);
  const line = tokenAdvice(fault.code) ?? (fault.code === undefined ? fault.error : `${fault.error} (${fault.code})`);
  return new CliError(line, response.status === 404 ? exitCodes.missing : exitCodeOf(fault.code));
}

function notOurs(url: string): CliError {
  return new CliError(`what answers at ${url} is not a Narthex node: check NARTHEX_URL`, exitCodes.unreachable);
}

// ----------------------------------------------------------------------------------------------------------------- process

/** Signals, readers that go away, and what nobody caught. */
function watchProcess(context: ProcessContext): () => void {
  const interrupt = () => {
    if (context.signal.aborted) process.exit(exitCodes.interrupted);
    context.interrupt();
  };
  const broken = ({ code }: NodeJS.ErrnoException) => {
    // `| head -1` has what it wanted.
    if (code === "EPIPE") process.exit(exitCodes.ok);
    process.stderr.write(`narthex: stdout cannot be written: ${code}\n`);
    process.exit(exitCodes.failed);
  };
  // Without anybody who reads the notes, the work goes on.
  const unheard = () => undefined;
  const uncaught = (error: unknown) => {
    const { line, exitCode, details } = explainFailure(error);
    if (line !== undefined) process.stderr.write(`narthex: ${line}\n`);
    if (process.env.NARTHEX_DEBUG === "1") process.stderr.write(`${details}\n`);
    process.exit(exitCode);
  };
  process.on("SIGINT", interrupt).on("SIGTERM", interrupt);
  process.on("uncaughtException", uncaught).on("unhandledRejection", uncaught);
  process.stdout.on("error", broken);
  process.stderr.on("error", unheard);
  return () => {
    process.off("SIGINT", interrupt).off("SIGTERM", interrupt);
    process.off("uncaughtException", uncaught).off("unhandledRejection", uncaught);
    process.stdout.off("error", broken);
    process.stderr.off("error", unheard);
  };
}

function flushed(): Promise<void> {
  return new Promise((resolve) => void process.stdout.write("", () => resolve()));
}
