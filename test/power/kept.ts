// A run on disk: how long things take differs from run to run, so one that failed is repeated from what was written down, not from
// its seed.

import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Facts } from "./facts.ts";
import { readJournal } from "./journal.ts";
import type { Run } from "./run.ts";

interface Kept extends Pick<Run, "root" | "inode" | "out"> {
  readonly seed: number;
  readonly facts: Facts;
}

const namesIn = (folder: string) => ({ journal: join(folder, "journal"), about: join(folder, "run.json") });

export function keepRun(run: Run, seed: number, folder: string): void {
  mkdirSync(folder, { recursive: true });
  const { journal, about } = namesIn(folder);
  const { root, inode, out, facts } = run;
  const kept: Kept = { seed, root, inode, out, facts };
  copyFileSync(run.journal, journal);
  // Times are beyond what a number holds exactly.
  const spelled = (_: string, value: unknown) => (typeof value === "bigint" ? `${value}ns` : value);
  writeFileSync(about, JSON.stringify(kept, spelled));
}

export function keptRun(folder: string): { readonly seed: number; readonly run: Run } {
  const { journal, about } = namesIn(folder);
  const read = (_: string, value: unknown) =>
    typeof value === "string" && /^\d+ns$/.test(value) ? BigInt(value.slice(0, -2)) : value;
  const { seed, ...rest } = JSON.parse(readFileSync(about, "utf8"), read) as Kept;
  return { seed, run: { ...rest, journal, records: readJournal(journal), remove: () => undefined } };
}
