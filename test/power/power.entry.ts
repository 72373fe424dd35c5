// npm run power -- --cuts 500 --corruptions 2000 --seed 1
//
// Runs a real node under a library that logs its writes, cuts the power at so many places of that log, and opens what a disk may have
// kept; then spoils the files of that node and of the fixtures, and looks at what a start makes of them. Ends with 1 if anything
// is wrong. `--runs` repeats all of it with the seeds that follow.
//
// With `--keep folder` a run in which anything is wrong is written down there, and `--again folder/seed` judges it once more, cut and
// spoiled at the same places.

import { join } from "node:path";
import { parseArgs } from "node:util";
import { Dice } from "../support/dice.ts";
import { type CorruptionCounts, type CorruptionFault, spoilFolder } from "./corruption.ts";
import { type CutFault, cutRun, noCounts, takesOfUsed } from "./cuts.ts";
import { keepRun, keptRun } from "./kept.ts";
import { servePower } from "./power-node.ts";
import { type Run, runNode, whyNot } from "./run.ts";
import { sourcesOf } from "./sources.ts";

if (process.argv[2] === "node") {
  await servePower(process.argv[3]);
  process.exit(0);
}

const { values } = parseArgs({
  options: {
    cuts: { type: "string", default: "300" },
    corruptions: { type: "string", default: "1000" },
    seed: { type: "string", default: String(Date.now() % 1_000_000) },
    runs: { type: "string", default: "1" },
    share: { type: "string", default: "10" },
    keep: { type: "string" },
    again: { type: "string" },
  },
});
const [cuts, corruptions, firstSeed, runs, sharePercent] = [
  values.cuts,
  values.corruptions,
  values.seed,
  values.runs,
  values.share,
].map(Number);
const say = (text: string) => void process.stdout.write(`${text}\n`);
const progress = (text: string) => process.stderr.isTTY && process.stderr.write(`\r${text}\x1b[K`);

const missing = whyNot();
if (missing !== undefined) {
  say(`not possible here: ${missing}`);
  process.exit(1);
}
let wrong = 0;
if (values.again !== undefined) {
  const { seed, run } = keptRun(values.again);
  wrong = await judge(run, seed);
} else {
  for (let seed = firstSeed; seed < firstSeed + runs; seed++) wrong += await once(seed);
}
process.exit(wrong > 0 ? 1 : 0);

async function once(seed: number): Promise<number> {
  const dice = new Dice(seed);
  const lives = [
    { closeMs: 1500 },
    { killAt: 400 + dice.below(800) },
    { killAt: 300 + dice.below(300) },
    { closeMs: 1500 },
  ];
  const started = performance.now();
  const run = await runNode({ seed, lives });
  say(`power: seed ${seed}, a node with ${lives.length} lives, two of them killed, in ${secondsSince(started)}`);
  let wrong = 1;
  try {
    wrong = await judge(run, seed);
  } finally {
    if (wrong > 0 && values.keep !== undefined) {
      keepRun(run, seed, join(values.keep, String(seed)));
      say(`  to see it again: --again ${join(values.keep, String(seed))}`);
    }
    run.remove();
  }
  return wrong;
}

/** At places by chance that the seed gives. */
async function judge(run: Run, seed: number): Promise<number> {
  say(`  seed ${seed}, ${cuts} cuts, ${corruptions} corruptions by chance in ${summary(run)}`);
  const dice = new Dice(seed);
  const wrong = cuts > 0 ? await cut(run, dice) : 0;
  return corruptions > 0 ? wrong + (await spoil(run, dice)) : wrong;
}

async function cut(run: Run, dice: Dice): Promise<number> {
  const started = performance.now();
  const counts = noCounts();
  const faults = await cutRun(run, { cuts, dice, faultsMax: 5, progress }, counts);
  const { compared, states, secondCuts, onDisk } = counts;
  say(
    `  power loss, ${secondsSince(started)}: ${counts.cuts} cuts, ${states} states of the disk (${secondCuts} with a second cut, ${onDisk} on a real disk),`,
  );
  say(`    ${compared} confirmed things compared; ${listed(counts.byKind)}`);
  say(`    ${faults.length === 0 ? "nothing was lost, nothing else was found" : `${faults.length} states are WRONG`}`);
  for (const fault of faults) sayCut(run, fault);
  return faults.length;
}

function sayCut(run: Run, { record, left, faults }: CutFault): void {
  const { op } = run.records[record];
  say(`    before record ${record} of ${run.records.length} (${op}), left ${JSON.stringify(left)}:`);
  for (const fault of faults.slice(0, 6)) say(`      ${fault}`);
}

async function spoil(run: Run, dice: Dice): Promise<number> {
  const started = performance.now();
  const counts: CorruptionCounts = { total: 0, kinds: {} };
  const faults: CorruptionFault[] = [];
  const sources = await sourcesOf(run, dice);
  for (const source of sources) {
    const count = Math.ceil(corruptions / sources.length);
    faults.push(...(await spoilFolder(source, { dice, count, sharePercent, faultsMax: 5, progress }, counts)));
  }
  say(`  corruption, ${secondsSince(started)}: ${counts.total} in ${sources.length} folders`);
  for (const [kind, outcomes] of Object.entries(counts.kinds)) say(`    ${kind.padEnd(26)} ${listed(outcomes)}`);
  for (const { corruption, fault } of faults) {
    say(`    WRONG: ${corruption.kind} in ${corruption.file} (${corruption.what}): ${fault}`);
  }
  return faults.length;
}

function summary({ records, facts }: Run): string {
  const heard = (list: readonly { heard?: bigint }[]) => list.filter(({ heard: at }) => at !== undefined).length;
  const { publishes, settles, deliveries, seeks, topics } = facts;
  const deleted = topics.filter(({ deletion }) => deletion?.heard !== undefined).length;
  const all = `${heard(publishes)} publishes, ${deliveries.length} deliveries, ${heard(settles)} acks and nacks`;
  const again = takesOfUsed(records).length;
  return `${records.length} changes of files and syncs, ${again} files used again; confirmed: ${all}, ${heard(seeks)} seeks, ${deleted} of ${topics.length} topics deleted`;
}

function listed(sums: Record<string, number | undefined>): string {
  return Object.entries(sums)
    .map(([name, sum]) => `${name} ${sum}`)
    .join(", ");
}

function secondsSince(started: number): string {
  return `${((performance.now() - started) / 1000).toFixed(1)} s`;
}
