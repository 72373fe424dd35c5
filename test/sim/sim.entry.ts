// npm run sim -- --seed N --runs M [--minutes T] [--cpu-hours H] [--jobs J] [--trace]: simulates M runs from seed N on, or as many as
// there is time for, in J processes. A failure prints its seed, the commit, the shortest prefix that still fails and what happened in it. At the end: how often each
// fault, code and transition was met; a long run that never met one of those in `expected.ts` fails.

import { execFileSync, spawn } from "node:child_process";
import { availableParallelism } from "node:os";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { Coverage } from "./coverage.ts";
import { expected } from "./expected.ts";
import { simulate } from "./run.ts";
import { shortest } from "./shrink.ts";

/** What one process reports, as one line of JSON. */
interface Report {
  readonly seed: number;
  readonly runs: number;
  readonly cpuSeconds: number;
  readonly coverage: Readonly<Record<string, number>>;
  readonly failed?: { readonly seed: number; readonly text: string };
}

/** A fresh process after so many, so that what one leaves behind does not add up over hours. */
const chunkRuns = 1000;
/** From so many runs on everything expected must have been met. */
const fullRuns = 10_000;

const { values } = parseArgs({
  options: {
    seed: { type: "string", default: "1" },
    runs: { type: "string", default: "1000" },
    minutes: { type: "string" },
    "cpu-hours": { type: "string" },
    jobs: { type: "string", default: String(availableParallelism()) },
    trace: { type: "boolean", default: false },
    chunk: { type: "boolean", default: false },
  },
});
const first = Number(values.seed);
const runs = Number(values.runs);

// The microtasks of a run can only be driven from outside of one.
setImmediate(() => {
  if (values.chunk) console.log(JSON.stringify(chunk()));
  else if (values.trace) traced();
  else void all();
});

/** One run, told as it happens. */
function traced(): void {
  const { violation } = simulate({ seed: first, trace: (line) => console.log(line) });
  console.log(violation === undefined ? "no violation" : `violation: ${violation}`);
  process.exitCode = violation === undefined ? 0 : 1;
}

/** What a process of its own does. */
function chunk(): Report {
  const coverage = new Coverage();
  let unhandled: unknown;
  process.on("unhandledRejection", (error) => {
    unhandled = error;
  });
  let failed: Report["failed"];
  let seed = first;
  for (; seed < first + runs && failed === undefined; seed++) {
    const outcome = simulate({ seed });
    coverage.add(outcome.coverage.toJSON());
    if (outcome.violation !== undefined) failed = { seed, text: explain(seed, outcome.violation) };
    else if (unhandled !== undefined) failed = { seed, text: `a promise was rejected and nobody looked: ${unhandled}` };
  }
  const { user, system } = process.cpuUsage();
  return {
    seed: first,
    runs: seed - first,
    cpuSeconds: (user + system) / 1e6,
    coverage: coverage.toJSON(),
    ...(failed === undefined ? {} : { failed }),
  };
}

async function all(): Promise<void> {
  const startedAt = performance.now();
  const until = values.minutes === undefined ? Number.POSITIVE_INFINITY : startedAt + Number(values.minutes) * 60_000;
  const cpuSecondsMax = Number(values["cpu-hours"] ?? Number.POSITIVE_INFINITY) * 3600;
  const coverage = new Coverage();
  let next = first;
  let done = 0;
  let cpuSeconds = 0;
  let failed: Report["failed"];
  let saidAt = startedAt;
  const worker = async () => {
    const goesOn = () => performance.now() < until && cpuSeconds < cpuSecondsMax && failed === undefined;
    while (next < first + runs && goesOn()) {
      const seed = next;
      const count = Math.min(chunkRuns, first + runs - next);
      next += count;
      const report = await inProcess(seed, count);
      coverage.add(report.coverage);
      done += report.runs;
      cpuSeconds += report.cpuSeconds;
      failed ??= report.failed;
      if (performance.now() - saidAt < 60_000) continue;
      saidAt = performance.now();
      console.log(`${done} runs, ${cpuSeconds.toFixed(0)} s of CPU`);
    }
  };
  await Promise.all(Array.from({ length: Math.max(1, Number(values.jobs)) }, worker));
  for (const [name, count] of Object.entries(coverage.toJSON())) console.log(`${String(count).padStart(10)}  ${name}`);
  const missed = done < fullRuns ? [] : expected.filter((name) => coverage.count(name) === 0);
  if (missed.length > 0) console.log(`never met: ${missed.join(", ")}`);
  if (failed !== undefined) console.log(failed.text);
  const seconds = ((performance.now() - startedAt) / 1000).toFixed(0);
  const verdict = failed === undefined ? "no violation" : `seed ${failed.seed} FAILED`;
  console.log(
    `${done} runs from seed ${first} on commit ${commit()}: ${verdict}, ${seconds} s, ${cpuSeconds.toFixed(0)} s of CPU`,
  );
  process.exitCode = failed === undefined && missed.length === 0 ? 0 : 1;
}

function inProcess(seed: number, count: number): Promise<Report> {
  const program = fileURLToPath(import.meta.url);
  const args = ["--enable-source-maps", program, "--chunk", "--seed", String(seed), "--runs", String(count)];
  return new Promise((resolve) => {
    const child = spawn(process.execPath, args, { stdio: ["ignore", "pipe", "inherit"] });
    let output = "";
    child.stdout.setEncoding("utf8").on("data", (text: string) => {
      output += text;
    });
    child.on("close", (code, signal) => {
      const line = output.trimEnd().split("\n").at(-1) ?? "";
      if (code === 0 && line.startsWith("{")) resolve(JSON.parse(line) as Report);
      else {
        const text = `the process of the seeds from ${seed} on ended with ${signal ?? code}: ${output.slice(-2000)}`;
        resolve({ seed, runs: 0, cpuSeconds: 0, coverage: {}, failed: { seed, text } });
      }
    });
  });
}

function explain(seed: number, violation: string): string {
  const lines: string[] = [];
  const steps = shortest(seed);
  const again = simulate({ seed, steps, trace: (line) => lines.push(line) });
  return [
    ...lines.slice(-400),
    "",
    `violation: ${violation}`,
    `in the prefix: ${again.violation}`,
    `seed ${seed}, shortest prefix that fails: ${steps} steps, commit ${commit()}`,
  ].join("\n");
}

function commit(): string {
  try {
    const git = (...args: string[]) =>
      execFileSync("git", args, { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] }).trim();
    return (
      git("rev-parse", "--short", "HEAD") + (git("status", "--porcelain", "src", "test/sim") === "" ? "" : " (changed)")
    );
  } catch {
    return "unknown";
  }
}
