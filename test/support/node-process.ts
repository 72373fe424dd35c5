// The built node as a process of its own, on free ports and a data folder of its own, killed and started at will.

import { type ChildProcess, spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { within } from "./deadline.ts";

export interface NodeProcess {
  readonly child: ChildProcess;
  readonly wsUrl: string;
  /** By the names of the start lines: ws, http, ops, replay. */
  readonly ports: Readonly<Record<string, number>>;
  readonly http: string;
  out(): string;
  /** Sends the signal and resolves with the exit code, or the signal that ended it. */
  kill(signal: NodeJS.Signals): Promise<number | string>;
  readonly exited: Promise<number | string>;
}

const main = new URL("./main.js", import.meta.url).pathname;

export function dataFolder(): { path: string; remove: () => void } {
  const path = mkdtempSync(join(tmpdir(), "narthex-test-"));
  return { path, remove: () => rmSync(path, { recursive: true, force: true }) };
}

export interface StartOptions {
  readonly data: string;
  readonly env?: Record<string, string>;
  readonly args?: readonly string[];
  /** A program that runs node, such as strace with its arguments. */
  readonly under?: readonly string[];
  /** In place of the node's own: the name of a built program beside it. */
  readonly program?: string;
  /** False: positions in stacks are those of the built file, and the start takes a third less of the processor. */
  readonly sourceMaps?: boolean;
  /** Flags of node itself. */
  readonly nodeFlags?: readonly string[];
}

/** Starts and waits for nothing. */
export function launch({ data, env, args, under, program, sourceMaps = true, nodeFlags = [] }: StartOptions) {
  const path = program === undefined ? main : new URL(`./${program}.js`, import.meta.url).pathname;
  const flags = [...nodeFlags, ...(sourceMaps ? ["--enable-source-maps"] : [])];
  const command = [...(under ?? []), process.execPath, ...flags, path, ...(args ?? [])];
  const child = spawn(command[0], command.slice(1), {
    env: {
      PATH: process.env.PATH ?? "",
      WS_PORT: "0",
      HTTP_PORT: "0",
      OPS_PORT: "0",
      REPLAY_PORT: "0",
      NARTHEX_DATA: data,
      LOG_LEVEL: "warn",
      ...env,
    },
    stdio: ["ignore", "pipe", "pipe"],
  });
  let text = "";
  const listeners = new Set<() => void>();
  const take = (chunk: Buffer) => {
    text += chunk;
    for (const listener of listeners) listener();
  };
  child.stdout.on("data", take);
  child.stderr.on("data", take);
  const exited = new Promise<number | string>((resolve) => {
    child.on("close", (code, signal) => resolve(signal ?? code ?? -1));
  });
  const seen = (pattern: RegExp) =>
    new Promise<RegExpMatchArray>((resolve) => {
      const look = () => {
        const match = text.match(pattern);
        if (match === null) return;
        listeners.delete(look);
        resolve(match);
      };
      listeners.add(look);
      look();
    });
  return { child, exited, seen, out: () => text };
}

/** Starts and waits until it serves. */
export async function startNode(options: StartOptions): Promise<NodeProcess> {
  const { child, exited, seen, out } = launch(options);
  const failed = exited.then((code) => {
    throw new Error(`the node ended with ${code} before it served:\n${out()}`);
  });
  await within(20_000, "the node serves", Promise.race([seen(/narthex (not )?ready/), failed]));
  failed.catch(() => undefined);
  const ports: Record<string, number> = {};
  for (const [, name, port] of out().matchAll(/^narthex (ws|http|ops|replay) +https?:\/\/[^:]+:(\d+)/gm))
    ports[name] = Number(port);
  return {
    child,
    ports,
    wsUrl: `ws://127.0.0.1:${ports.ws}`,
    http: `http://127.0.0.1:${ports.ws}`,
    out,
    exited,
    kill(signal) {
      child.kill(signal);
      return within(20_000, `the node ends after ${signal}`, exited);
    },
  };
}

/** Starts one that is expected to end by itself. */
export async function runNode(options: StartOptions): Promise<{ code: number | string; out: string }> {
  const { child, exited, out } = launch(options);
  try {
    return { code: await within(20_000, "the node ends by itself", exited), out: out() };
  } finally {
    child.kill("SIGKILL");
  }
}
