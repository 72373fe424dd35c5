// The command line as a process of its own, as a user runs it: nothing of it is a terminal.

import { type ChildProcess, spawn } from "node:child_process";
import { within } from "./deadline.ts";

const main = new URL("./main.js", import.meta.url).pathname;

export interface CliOptions {
  /** The node to talk to. */
  readonly url?: string;
  readonly env?: Readonly<Record<string, string>>;
  /** What it reads; nothing if left out. With `null` its stdin stays open. */
  readonly stdin?: string | null;
}

export interface CliResult {
  readonly code: number | string;
  readonly out: string;
  readonly err: string;
}

export interface CliProcess {
  readonly child: ChildProcess;
  out(): string;
  err(): string;
  /** Resolves once stdout matches. */
  printed(pattern: RegExp): Promise<RegExpMatchArray>;
  /** Resolves once stderr matches. */
  noted(pattern: RegExp): Promise<RegExpMatchArray>;
  readonly ended: Promise<CliResult>;
}

export function startCli(args: readonly string[], { url, env, stdin }: CliOptions = {}): CliProcess {
  const child = spawn(process.execPath, [main, ...args], {
    env: { PATH: process.env.PATH ?? "", ...(url === undefined ? {} : { NARTHEX_URL: url }), ...env },
    stdio: [stdin === undefined ? "ignore" : "pipe", "pipe", "pipe"],
  });
  const texts = { out: "", err: "" };
  const listeners = new Set<() => void>();
  const take = (name: "out" | "err") => (chunk: Buffer) => {
    texts[name] += chunk;
    for (const listener of listeners) listener();
  };
  child.stdout?.on("data", take("out"));
  child.stderr?.on("data", take("err"));
  if (typeof stdin === "string") child.stdin?.end(stdin);
  const ended = new Promise<CliResult>((resolve) => {
    child.on("close", (code, signal) => resolve({ code: signal ?? code ?? -1, ...texts }));
  });
  const seen = (name: "out" | "err", pattern: RegExp) => {
    const match = new Promise<RegExpMatchArray>((resolve, reject) => {
      const look = () => {
        const found = texts[name].match(pattern);
        if (found === null) return;
        listeners.delete(look);
        resolve(found);
      };
      listeners.add(look);
      look();
      ended.then(({ code, out, err }) => reject(new Error(`ended with ${code} before ${pattern}:\n${out}${err}`)));
    });
    return within(20_000, `${args.join(" ")} prints ${pattern}`, match);
  };
  return {
    child,
    out: () => texts.out,
    err: () => texts.err,
    printed: (pattern) => seen("out", pattern),
    noted: (pattern) => seen("err", pattern),
    ended,
  };
}

/** Runs it to its end. */
export async function runCli(args: readonly string[], options: CliOptions = {}): Promise<CliResult> {
  const { child, ended } = startCli(args, options);
  try {
    return await within(30_000, `narthex ${args.join(" ")} ends`, ended);
  } finally {
    child.kill("SIGKILL");
  }
}
