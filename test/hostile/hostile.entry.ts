// npm run hostile -- --frames N --seed S [--minutes M] [--attacks-every N]: frames of a grammar against a node in a process of its own, with
// every attack at full size between them, and a client beside them that must not notice. Prints what was answered how often, and what
// memory and file descriptors were; exits 1 on anything that is not as it should be, with the seeds that repeat it.

import { parseArgs } from "node:util";
import { type Attack, attacks } from "./attacks.ts";
import { runCampaign } from "./campaign.ts";
import type { Control } from "./control.ts";
import { type Baseline, type Spare, shown, Target } from "./target.ts";

const { values } = parseArgs({
  options: {
    frames: { type: "string", default: "100000" },
    seed: { type: "string", default: "1" },
    minutes: { type: "string" },
    size: { type: "string", default: "10" },
    "attacks-every": { type: "string", default: "50000" },
  },
});

/**
 * From here on nothing may grow that has not a bound: the newest blocks in memory (16 MiB or 8,192 blocks a shard), the durable groups
 * and dead-letter topics of the grammar, two minutes of ids, 1,024 ends of leases for each group and partition are all there.
 */
const primedAfter = 160_000;
/**
 * The process may grow by more than it holds: buffers of reads from the disk live until they are collected, and glibc keeps what it once had
 * for them. Of 600 MiB in the heaps of one worker's arena 415 MiB were free when they were looked at, two of nine heaps wholly.
 */
const spare: Spare = { heldBytes: 64 * 2 ** 20, rssBytes: 1024 * 2 ** 20 };

async function main(): Promise<void> {
  const seed = Number(values.seed);
  const frames = Number(values.frames);
  const size = Number(values.size);
  const every = Number(values["attacks-every"]);
  const until =
    values.minutes === undefined ? Number.POSITIVE_INFINITY : performance.now() + Number(values.minutes) * 60_000;
  const target = await Target.start();
  console.log(`hostile: seed ${seed}, ${frames} frames, attacks of size ${size} every ${every} frames`);
  let before: Baseline | undefined;
  let nextAttacks = every;
  const counts = new Map<string, number>();
  const attack = async ({ name, run }: Attack, control: Control) => {
    let over = false;
    const running = run(target, size).finally(() => {
      over = true;
    });
    // Whatever fails is thrown by the second await; the control client is heard first.
    running.catch(() => undefined);
    try {
      while (!over) await control.round(15_000);
      await running;
    } catch (error) {
      throw new Error(`during "${name}": ${error instanceof Error ? error.message : error}`);
    }
    counts.set(name, (counts.get(name) ?? 0) + 1);
  };
  const started = performance.now();
  try {
    const { sent, tally, slowestMs } = await runCampaign({
      target,
      seed,
      frames,
      attackers: 32,
      msMax: 30_000,
      until,
      onRound: async (sent, control) => {
        if (sent >= nextAttacks) {
          nextAttacks += every;
          for (const one of attacks) await attack(one, control);
          const fault = target.fault();
          if (fault !== undefined) throw new Error(`after the attacks: ${fault}`);
          const now =
            before === undefined
              ? await target.baseline()
              : await target.backTo(before, spare, `${sent} frames and the attacks`);
          if (sent >= primedAfter) before ??= now;
          const seconds = (performance.now() - started) / 1000;
          console.log(
            `${sent} frames, ${seconds.toFixed(0)} s: ${shown(now)}, slowest round ${control.slowestMs.toFixed(0)} ms`,
          );
        }
      },
    });
    const end =
      before === undefined ? await target.baseline() : await target.backTo(before, spare, `all ${sent} frames`);
    console.log(`at the end: ${shown(end)}${before === undefined ? "" : `; to compare with: ${shown(before)}`}`);
    for (const [name, count] of [...tally].sort()) console.log(`${String(count).padStart(9)}  ${name}`);
    for (const [name, count] of counts) console.log(`${String(count).padStart(9)}  attack: ${name}`);
    const byCode = new Map<string, number>();
    for (const [name, count] of tally) {
      const code = name.slice(name.indexOf(" → ") + 3);
      byCode.set(code, (byCode.get(code) ?? 0) + count);
    }
    console.log(
      [...byCode]
        .sort((a, b) => b[1] - a[1])
        .map(([code, count]) => `${code} ${count}`)
        .join(", "),
    );
    console.log(
      `${sent} frames answered, slowest round of the control client ${slowestMs.toFixed(0)} ms, seeds from ${seed}`,
    );
  } catch (error) {
    console.log(error instanceof Error ? error.message : error);
    console.log(target.node.out().slice(-1500));
    process.exitCode = 1;
  } finally {
    await target.stop();
  }
}

await main();
