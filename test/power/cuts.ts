// Cuts the power at places of a run and opens what a disk may hold then: in memory, on a real disk, once more after a second cut.

import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, relative } from "node:path";
import { realClock } from "../../src/runtime/clock.ts";
import { nodeFiles } from "../../src/store/log/files.ts";
import { openFolder } from "../../src/store/log/folder.ts";
import type { Dice } from "../support/dice.ts";
import { type Cut, MemoryDisk } from "../support/store-files.ts";
import { type Folder, type Left, LoggedDisk } from "./disk.ts";
import type { JournalRecord } from "./journal.ts";
import { compare } from "./promises.ts";
import type { Run } from "./run.ts";
import { folderFault, openFound, probe, probeStream } from "./view.ts";

export interface Counts {
  cuts: number;
  states: number;
  compared: number;
  secondCuts: number;
  onDisk: number;
  readonly byKind: Record<string, number>;
}

export interface CutFault {
  readonly record: number;
  readonly left: Left | string;
  readonly faults: readonly string[];
}

export interface CutOptions {
  /** How many places, besides those at which names are not synced. */
  readonly cuts: number;
  readonly dice: Dice;
  /** Stops after so many states that are wrong. */
  readonly faultsMax: number;
  readonly progress?: (text: string) => void;
}

export function noCounts(): Counts {
  return { cuts: 0, states: 0, compared: 0, secondCuts: 0, onDisk: 0, byKind: {} };
}

const fixed: readonly Left[] = [
  { data: "lost", names: "journal", percent: 0 },
  { data: "kept", names: "journal", percent: 100 },
  { data: "kept", names: "journal", percent: 0 },
  { data: "lost", names: "journal", percent: 100 },
];

function byChance(dice: Dice): readonly Left[] {
  return [
    { data: "sectors", bytes: 512, names: "journal", percent: dice.below(101) },
    { data: "sectors", bytes: 4096, names: "any" },
    { data: "sectors", bytes: 512, names: "any" },
    { data: "torn", names: "any" },
    { data: "kept", names: "any" },
  ];
}

export async function cutRun(run: Run, options: CutOptions, counts = noCounts()): Promise<CutFault[]> {
  const { dice } = options;
  const disk = new LoggedDisk(run.root, run.inode);
  const found: CutFault[] = [];
  const chosen = choose(run.records, options);
  for (const [at, record] of run.records.entries()) {
    if (found.length >= options.faultsMax) break;
    if (chosen.has(at)) {
      counts.cuts++;
      // Just before this record: what was heard until then is promised.
      const moment = record.ns;
      for (const left of [...fixed, ...byChance(dice)]) {
        const faults = await tryState(run, disk.left(left, dice), moment, dice, counts);
        const kind = `${left.data}${left.data === "sectors" ? left.bytes : ""}/${left.names}`;
        counts.byKind[kind] = (counts.byKind[kind] ?? 0) + 1;
        if (faults.length > 0) found.push({ record: at, left, faults });
      }
      options.progress?.(`record ${at} of ${run.records.length}, ${counts.states} states, ${found.length} wrong`);
    }
    disk.apply(record);
  }
  return found;
}

/** Places by chance, half of them around changes of names, and every third of those where a file is used again: they are few among the writes. */
function choose(records: readonly JournalRecord[], { cuts, dice }: CutOptions): Set<number> {
  const chosen = new Set<number>();
  if (cuts >= records.length) return new Set(records.keys());
  const special = [...records.keys()].filter((at) =>
    ["rename", "unlink", "mkdir", "truncate"].includes(records[at].op),
  );
  const again = takesOfUsed(records);
  for (let i = 0; i < cuts / 2 && special.length > 0; i++) {
    const at = dice.pick(i % 3 === 0 && again.length > 0 ? again : special);
    chosen.add(Math.min(records.length - 1, at + dice.below(4)));
  }
  while (chosen.size < cuts) chosen.add(dice.below(records.length));
  return chosen;
}

/** Where the file of a segment in which nothing lived becomes the next segment, with all that it held. */
export function takesOfUsed(records: readonly JournalRecord[]): number[] {
  const used = new Set<number>();
  return [...records.keys()].filter((at) => {
    const record = records[at];
    if (record.op !== "rename") return false;
    if (record.from.endsWith(".log") && record.to.endsWith("spare.tmp")) used.add(record.inode);
    return record.to.endsWith(".log") && used.has(record.inode);
  });
}

async function tryState(run: Run, folder: Folder, moment: bigint, dice: Dice, counts: Counts): Promise<string[]> {
  counts.states++;
  const fault = folderFault(run.root, folder);
  if (fault !== undefined) return [fault];
  try {
    if (dice.below(40) === 0) return await tryOnDisk(run, folder, moment, counts);
    const disk = MemoryDisk.of(folder);
    const faults = await openAndCompare(run, disk, moment, counts);
    if (faults.length > 0 || !dice.chance(25)) return faults;
    return await tryAgain(run, folder, moment, dice, counts);
  } catch (error) {
    return [`the folder cannot be opened: ${error instanceof Error ? error.stack : String(error)}`];
  }
}

async function openAndCompare(run: Run, disk: MemoryDisk, moment: bigint, counts: Counts): Promise<string[]> {
  const opened = await openFound(run.root, disk);
  const { faults, compared } = compare(opened.view, run.facts, moment);
  counts.compared += compared;
  for (const shard of opened.shards) await shard.settled();
  await opened.close();
  return faults;
}

/** The power goes off again, during the recovery or after new commits. */
async function tryAgain(run: Run, folder: Folder, moment: bigint, dice: Dice, counts: Counts): Promise<string[]> {
  counts.secondCuts++;
  const disk = MemoryDisk.of(folder);
  disk.cutAt = 1 + dice.below(60);
  let probes = 0;
  try {
    const opened = await openFound(run.root, disk);
    for (; probes < 3; probes++) await probe(opened);
    for (const shard of opened.shards) await shard.settled();
    disk.cutAt = 0;
  } catch (error) {
    if ((error as { code?: string }).code !== "EPOWER") throw error;
  }
  const kinds: readonly Cut[] = [
    { unsynced: "lost" },
    { unsynced: "kept" },
    { unsynced: "torn", at: 8 * dice.below(64) },
    { unsynced: "scattered", seed: dice.below(1000) },
  ];
  const left = disk.afterCut(dice.pick(kinds), dice.below(disk.pendingNameCount + 1));
  const opened = await openFound(run.root, left);
  const { faults, compared } = compare(opened.view, run.facts, moment);
  counts.compared += compared;
  for (const shard of opened.shards) {
    const end = shard.head(probeStream)?.end ?? 0;
    if (end < probes || end > probes + 1) faults.push(`after a second cut: ${end} of ${probes} probes`);
  }
  await opened.close();
  return faults.map((fault) => `after a second cut: ${fault}`);
}

/** The same with the real files, and the folder's own lock and format. */
async function tryOnDisk(run: Run, folder: Folder, moment: bigint, counts: Counts): Promise<string[]> {
  counts.onDisk++;
  const root = writeFolder(run.root, folder);
  try {
    const held = await openFolder({ path: root, workers: 2, clock: realClock() });
    const opened = await openFound(root, nodeFiles(), held.lock);
    const { faults, compared } = compare(opened.view, run.facts, moment);
    counts.compared += compared;
    await opened.close();
    await held.close();
    return faults;
  } finally {
    rmSync(dirname(root), { recursive: true, force: true });
  }
}

export function writeFolder(root: string, folder: Folder): string {
  const to = join(mkdtempSync(join(tmpdir(), "narthex-power-")), "data");
  mkdirSync(to);
  for (const [path, content] of folder) {
    const target = join(to, relative(root, path));
    mkdirSync(dirname(target), { recursive: true });
    writeFileSync(target, content);
  }
  return to;
}
