// A server that is somebody else's program: looked for, started on loopback with a folder of its own, and ended by its id.

import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { within } from "../../test/support/deadline.ts";
import { isProgram, onPath } from "../../test/support/programs.ts";
import { processMicros } from "./cpu.ts";

/** Where Debian puts servers, which is not on everybody's PATH. */
const serverFolders = ["/usr/sbin", "/usr/local/sbin"];
const startMs = 60_000;
const endMs = 20_000;

/** The path of a program, or undefined. */
export function findProgram(name: string): string | undefined {
  return [...onPath(name), ...serverFolders.map((folder) => join(folder, name))].find(isProgram);
}

/** What a program says of its version, as three numbers. */
export function versionOf(program: string): string {
  const { stdout } = spawnSync(program, ["--version"], { encoding: "utf8" });
  return /\d+\.\d+\.\d+/.exec(stdout)?.[0] ?? "of unknown version";
}

/** One that was free a moment ago: for programs that cannot be asked which one they got. */
export function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const probe = createServer();
    probe.on("error", reject);
    probe.listen(0, "127.0.0.1", () => {
      const { port } = probe.address() as { port: number };
      probe.close(() => resolve(port));
    });
  });
}

export interface ServerProcess {
  /** Of the process and all that it started, in microseconds. */
  micros(): number;
  stop(): Promise<void>;
}

export interface ServerOptions {
  readonly program: string;
  readonly args?: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
  readonly cwd: string;
  /** What it prints when it serves. */
  readonly ready: RegExp;
}

export async function startServer({ program, args = [], env = {}, cwd, ready }: ServerOptions): Promise<ServerProcess> {
  const child = spawn(program, args, {
    cwd,
    env: { PATH: process.env.PATH ?? "", ...env },
    stdio: ["ignore", "pipe", "pipe"],
  });
  const killed = () => child.kill("SIGKILL");
  process.on("exit", killed);
  const ended = new Promise<string>((resolve) => {
    child.on("error", (error) => resolve(error.message));
    child.on("close", (code, signal) => resolve(`ended with ${signal ?? code}`));
  });
  const output = printed(child, ready);
  const failed = ended.then((how) => {
    throw new Error(`${program} ${how} before it served:\n${output.text()}`);
  });
  await within(startMs, `${program} serves`, Promise.race([output.seen, failed]));
  // From here on its end is what stop() waits for.
  failed.catch(() => undefined);
  const pid = child.pid as number;
  return {
    micros: () => processMicros(familyOf(pid)),
    async stop() {
      child.kill("SIGKILL");
      await within(endMs, `${program} ends`, ended);
      process.off("exit", killed);
    },
  };
}

function printed(child: ChildProcess, ready: RegExp): { seen: Promise<void>; text: () => string } {
  let text = "";
  const seen = new Promise<void>((resolve) => {
    let serves = false;
    const take = (chunk: Buffer) => {
      // What a server prints later is read, so that it never waits, and dropped.
      if (serves) return;
      text += chunk;
      serves = ready.test(text);
      if (serves) resolve();
    };
    child.stdout?.on("data", take);
    child.stderr?.on("data", take);
  });
  return { seen, text: () => text };
}

/** A process, its children, their children … */
function familyOf(pid: number): number[] {
  const parents = new Map<number, number>();
  for (const name of readdirSync("/proc")) {
    if (!/^\d+$/.test(name)) continue;
    const parent = parentOf(Number(name));
    if (parent !== undefined) parents.set(Number(name), parent);
  }
  const family = [pid];
  for (const one of family) for (const [child, parent] of parents) if (parent === one) family.push(child);
  return family;
}

function parentOf(pid: number): number | undefined {
  try {
    // The name, in brackets, may have brackets and spaces of its own.
    const [, parent] = readFileSync(`/proc/${pid}/stat`, "utf8")
      .replace(/^.*\) /s, "")
      .split(" ");
    return Number(parent);
  } catch (error) {
    // It ended since the folder was read.
    if (["ENOENT", "ESRCH"].includes((error as NodeJS.ErrnoException).code ?? "")) return undefined;
    throw error;
  }
}
