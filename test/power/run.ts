// Runs the node under the shim for a while, with lives that end in a kill and lives that end in order, and gives what the disk was
// told and what the clients heard.

import { type ChildProcess, spawn } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { within } from "../support/deadline.ts";
import { Dice } from "../support/dice.ts";
import { compilePreload } from "../support/preload.ts";
import { type Facts, noFacts } from "./facts.ts";
import { type JournalRecord, readJournal } from "./journal.ts";
import { Workers } from "./work.ts";

export interface Run {
  readonly root: string;
  readonly inode: number;
  /** The file of `records`. */
  readonly journal: string;
  readonly records: readonly JournalRecord[];
  readonly facts: Facts;
  /** What the nodes said. */
  readonly out: string;
  remove(): void;
}

export interface RunOptions {
  readonly seed: number;
  /** How each life ends: killed after so many changes on disk, or closed after so many milliseconds. */
  readonly lives: readonly ({ readonly killAt: number } | { readonly closeMs: number })[];
  /** How much longer a sync takes at most. */
  readonly syncUs?: number;
}

const program = new URL("./power-power.entry.js", import.meta.url).pathname;

/** Why no run is possible here, or nothing. */
export function whyNot(): string | undefined {
  if (process.platform !== "linux") return "the shim is for Linux";
  const shim = compilePreload("power/shim.c");
  return "missing" in shim ? shim.missing : undefined;
}

export async function runNode(options: RunOptions): Promise<Run> {
  // In memory: how long a sync takes is up to the shim, and no other program's disk has to wait for ours.
  const folder = mkdtempSync(join(existsSync("/dev/shm") ? "/dev/shm" : tmpdir(), "narthex-power-"));
  const [root, journal] = [join(folder, "data"), join(folder, "journal")];
  mkdirSync(root);
  const { ino: inode } = statSync(root);
  const facts = noFacts();
  const dice = new Dice(options.seed);
  let out = "";
  for (const life of options.lives) out += await live({ ...options, root, journal, facts, dice }, life);
  return {
    root,
    inode,
    journal,
    records: readJournal(journal),
    facts,
    out,
    remove: () => rmSync(folder, { recursive: true, force: true }),
  };
}

interface Surroundings extends RunOptions {
  readonly root: string;
  readonly journal: string;
  readonly facts: Facts;
  readonly dice: Dice;
}

async function live(around: Surroundings, life: RunOptions["lives"][number]): Promise<string> {
  const shim = compilePreload("power/shim.c");
  if ("missing" in shim) throw new Error(shim.missing);
  const child = spawn(process.execPath, ["--enable-source-maps", program, "node", around.root], {
    env: {
      PATH: process.env.PATH ?? "",
      UV_USE_IO_URING: "0",
      LD_PRELOAD: shim.path,
      POWER_ROOT: around.root,
      POWER_JOURNAL: around.journal,
      POWER_SYNC_US: String(around.syncUs ?? 2000),
      ...("killAt" in life ? { POWER_DIE_AT: String(life.killAt) } : {}),
    },
    stdio: ["ignore", "pipe", "pipe"],
  });
  let out = "";
  child.stdout.on("data", (chunk) => (out += chunk));
  child.stderr.on("data", (chunk) => (out += chunk));
  const exited = new Promise<void>((resolve) => child.on("close", () => resolve()));
  try {
    await working(child, () => out, exited, around, life);
  } finally {
    child.kill("SIGKILL");
    await exited;
  }
  return out;
}

async function working(
  child: ChildProcess,
  out: () => string,
  exited: Promise<void>,
  { facts, dice }: Surroundings,
  life: RunOptions["lives"][number],
): Promise<void> {
  const port = await within(20_000, "the node serves", Promise.race([portOf(child, out), exited]));
  if (port === undefined) {
    if ("killAt" in life) return;
    throw new Error(`the node ended before it served:\n${out()}`);
  }
  const workers = new Workers(facts, dice, `ws://127.0.0.1:${port}`);
  // What is under way when the node goes has no answer, or an error for one.
  let trouble: unknown;
  const work = workers.run().catch((error: unknown) => {
    trouble = error;
  });
  const timer = "closeMs" in life ? setTimeout(() => workers.stop(), life.closeMs) : undefined;
  await within(120_000, "the clients or the node end", Promise.race([work, exited]));
  clearTimeout(timer);
  workers.stop();
  if ("closeMs" in life) {
    if (trouble !== undefined) throw new Error(`the work failed: ${String(trouble)}\n${out()}`);
    child.kill("SIGTERM");
    await within(20_000, "the node closes", exited);
  } else {
    await within(120_000, "the node dies", exited);
  }
  workers.close();
}

function portOf(child: ChildProcess, out: () => string): Promise<string> {
  return new Promise((resolve) => {
    const look = () => {
      const match = /^power (\d+)$/m.exec(out());
      if (match !== null) resolve(match[1]);
    };
    child.stdout?.on("data", look);
  });
}
