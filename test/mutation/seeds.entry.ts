// node build.mjs --run-entry mutation/seeds --seed N --runs M [--jobs J]: simulates M runs from seed N on, until the first violation, and
// prints what came of it as one line of JSON. Unlike `npm run sim` it looks for no shorter prefix, which costs more than finding the seed.

import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { simulate } from "../sim/run.ts";

/** What a child says after each run, and what is said at the end of all. */
export interface Said {
  readonly runs: number;
  readonly failed?: { readonly seed: number; readonly violation: string };
}

/** A run takes a fraction of a second. One that does not end in this time, also on a machine that has much to do, never will. */
const runMsMax = 60_000;

const { values } = parseArgs({
  options: {
    seed: { type: "string", default: "1" },
    runs: { type: "string", default: "600" },
    jobs: { type: "string", default: "1" },
    step: { type: "string" },
  },
});
const first = Number(values.seed);
const end = first + Number(values.runs);

// The microtasks of a run can only be driven from outside of one.
setImmediate(() => {
  if (values.step !== undefined) run(Number(values.step));
  else void all(Math.max(1, Number(values.jobs)));
});

function run(step: number): void {
  let unhandled: unknown;
  process.on("unhandledRejection", (error) => {
    unhandled ??= error;
  });
  let runs = 0;
  let seed = first;
  const next = () => {
    const rejected = `a promise was rejected and nobody looked: ${unhandled}`;
    if (unhandled !== undefined) return say({ runs, failed: { seed: seed - step, violation: rejected } });
    if (seed >= end) return;
    const { violation } = simulate({ seed });
    runs++;
    if (violation !== undefined) return say({ runs, failed: { seed, violation } });
    say({ runs });
    seed += step;
    setImmediate(next);
  };
  next();
}

function say(said: Said): void {
  console.log(JSON.stringify(said));
}

async function all(jobs: number): Promise<void> {
  const children = new Set<ReturnType<typeof spawn>>();
  let runs = 0;
  let failed: Said["failed"];
  // No more jobs than runs.
  const one = (seed: number) =>
    new Promise<void>((resolve) => {
      const args = ["--seed", String(seed), "--runs", String(end - seed), "--step", String(jobs)];
      const child = spawn(process.execPath, ["--enable-source-maps", fileURLToPath(import.meta.url), ...args], {
        stdio: ["ignore", "pipe", "pipe"],
      });
      children.add(child);
      let own = 0;
      let trouble = "";
      const over = (violation: string) => {
        failed ??= { seed: seed + own * jobs, violation };
        for (const other of children) other.kill("SIGKILL");
      };
      const hangs = () => over(`the run does not end within ${runMsMax / 1000} s`);
      let watch = setTimeout(hangs, runMsMax);
      child.stderr.setEncoding("utf8").on("data", (text: string) => {
        trouble = (trouble + text).slice(-2000);
      });
      createInterface({ input: child.stdout }).on("line", (line) => {
        clearTimeout(watch);
        watch = setTimeout(hangs, runMsMax);
        const said = JSON.parse(line) as Said;
        runs += said.runs - own;
        own = said.runs;
        if (said.failed === undefined) return;
        failed ??= said.failed;
        over(said.failed.violation);
      });
      child.on("close", (code, signal) => {
        clearTimeout(watch);
        children.delete(child);
        if (code !== 0 && failed === undefined) over(`the process ended with ${signal ?? code}: ${trouble}`);
        resolve();
      });
    });
  await Promise.all(Array.from({ length: Math.min(jobs, end - first) }, (_, job) => one(first + job)));
  say(failed === undefined ? { runs } : { runs, failed });
}
