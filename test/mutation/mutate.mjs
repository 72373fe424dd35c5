// npm run mutate -- [--only name,name] [--runs N] [--seed S] [--jobs J] [--trust] [--list]: how strong the simulator and the tests are.
//
// Applies the faults of mutations.mjs one at a time to a copy of this checkout and asks whether anything notices: first the simulator,
// N runs or up to its first violation, then the tests named by the fault, then all quick ones, up to the first file that fails. Before that
// the copy as it is must pass the same (`--trust` leaves that out). Exits with 1 if a fault survives all of it.
//
// Nothing of the checkout is touched: what git lists is copied to a folder of its own, node_modules is linked.

import { spawn, spawnSync } from "node:child_process";
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { availableParallelism, tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { testEntries } from "../../build.mjs";
import { editsOf, faultOf, mutations } from "./mutations.mjs";

const root = fileURLToPath(new URL("../..", import.meta.url));
/**
 * What runs in seconds, in simulated time and the same each time. Tests of real threads, processes and browsers are left out, since on
 * a machine that has much to do their deadlines would find faults where there are none, and so are properties, whose dice fall anew.
 */
const quickFolders = ["actors", "store", "runtime", "protocol", "front", "client"];
const quickWords = Object.entries(testEntries())
  .filter(([name, path]) => name.endsWith(".test") && quickFolders.includes(path.split("/")[1]))
  .map(([name]) => name)
  .filter((name) => !/^runtime-(system|pool)\.|\.property\./.test(name))
  .concat("e2e-bus-inside.test");
const simMsMax = 20 * 60_000;
const testsMsMax = 10 * 60_000;

const { values } = parseArgs({
  options: {
    only: { type: "string", multiple: true, default: [] },
    runs: { type: "string", default: "600" },
    seed: { type: "string", default: "1" },
    jobs: { type: "string", default: String(availableParallelism()) },
    trust: { type: "boolean", default: false },
    list: { type: "boolean", default: false },
  },
});

const names = values.only.flatMap((text) => text.split(","));
const unknown = names.filter((name) => !mutations.some((mutation) => mutation.name === name));
if (unknown.length > 0) {
  console.error(`no mutation is named ${unknown.join(", ")}`);
  process.exit(1);
}
const chosen = names.length === 0 ? mutations : mutations.filter(({ name }) => names.includes(name));

const live = new Set();
let copy;
for (const signal of ["SIGINT", "SIGTERM"]) {
  process.on(signal, () => {
    for (const child of live) killGroup(child);
    if (copy !== undefined) rmSync(copy, { recursive: true, force: true });
    process.exit(1);
  });
}

if (values.list) for (const { name, promise, fault } of chosen) console.log(`${name.padEnd(34)} ${promise}: ${fault}`);
else process.exitCode = await measure();

async function measure() {
  const rotten = chosen.flatMap((mutation) =>
    editsOf(mutation)
      .map((edit) => faultOf(edit, readFileSync(join(root, edit.file), "utf8")))
      .filter((fault) => fault !== undefined)
      .map((fault) => `${mutation.name}: ${fault}`),
  );
  if (rotten.length > 0) {
    console.error(rotten.join("\n"));
    return 1;
  }
  copy = mkdtempSync(join(tmpdir(), "narthex-mutate-"));
  try {
    fillCopy(copy);
    if (!values.trust) {
      console.log(`${values.runs} runs from seed ${values.seed}, and the quick tests, without any fault`);
      const found = await ask([]);
      if (found !== undefined) {
        console.log(`the source as it is does not pass:\n${found.what}`);
        return 1;
      }
    }
    const results = [];
    for (const mutation of chosen) {
      const result = await tryOne(mutation);
      results.push(result);
      console.log(line(result));
    }
    return report(results);
  } finally {
    rmSync(copy, { recursive: true, force: true });
  }
}

/** What git knows and what is new and not ignored, as it is in the work tree. */
function fillCopy(to) {
  const listed = spawnSync("git", ["ls-files", "-z", "--cached", "--others", "--exclude-standard"], {
    cwd: root,
    encoding: "utf8",
  });
  if (listed.status !== 0) throw new Error(`git ls-files: ${listed.stderr}`);
  for (const file of listed.stdout.split("\0").filter((path) => path !== "")) {
    mkdirSync(dirname(join(to, file)), { recursive: true });
    copyFileSync(join(root, file), join(to, file));
  }
  symlinkSync(join(root, "node_modules"), join(to, "node_modules"));
}

async function tryOne(mutation) {
  const startedMs = performance.now();
  const edits = editsOf(mutation);
  const before = new Map(edits.map(({ file }) => [file, readFileSync(join(copy, file), "utf8")]));
  for (const { file, find, replace } of edits) {
    const path = join(copy, file);
    // A function, since `$` means something in a replacement text.
    writeFileSync(
      path,
      readFileSync(path, "utf8").replace(find, () => replace),
    );
  }
  try {
    const found = await ask(mutation.words ?? []);
    return { mutation, found, seconds: (performance.now() - startedMs) / 1000 };
  } finally {
    for (const [file, text] of before) writeFileSync(join(copy, file), text);
  }
}

/** What notices that something is wrong: the simulator, else a test; undefined if nothing does. */
async function ask(words) {
  const sim = await simulator();
  if (sim !== undefined) return { by: "simulator", ...sim };
  for (const some of words.length === 0 ? [quickWords] : [words, quickWords]) {
    const test = await tests(some);
    if (test !== undefined) return { by: "test", what: test };
  }
  return undefined;
}

async function simulator() {
  const { seed, runs, jobs } = values;
  const args = ["build.mjs", "--run-entry", "mutation/seeds", "--seed", seed, "--runs", runs, "--jobs", jobs];
  const { output, trouble } = await run(args, { msMax: simMsMax });
  const last = output.trimEnd().split("\n").at(-1) ?? "";
  // A fault that cannot be built shows nothing, and must not count as found.
  if (!last.startsWith("{")) throw new Error(`the simulator gave no verdict: ${trouble}\n${output.slice(-2000)}`);
  const { failed, runs: done } = JSON.parse(last);
  return failed && { what: `seed ${failed.seed}: ${failed.violation.split("\n")[0]}`, runs: done };
}

/** The first file that fails, and what of it. */
async function tests(words) {
  const { output, trouble } = await run(["test/run.mjs", ...words], { msMax: testsMsMax, until: /^FAIL {2}.*\n/m });
  const file = /^FAIL {2}(.+?)(?: {2}|$)/m.exec(output)?.[1];
  if (file === undefined && trouble === undefined) return undefined;
  if (file === undefined || !file.endsWith(".test")) throw new Error(`no verdict of the tests: ${trouble ?? file}`);
  const first = /^ +FAIL {2}(.+)$/m.exec(output.slice(output.indexOf(`FAIL  ${file}`)))?.[1];
  return first === undefined ? file : `${file}: ${first.trim()}`;
}

/** Runs a program of the copy to its end, or until its output says enough. */
function run(args, { msMax, until }) {
  return new Promise((resolve) => {
    const env = { ...process.env, NO_COLOR: "1" };
    // A process group of its own, so that what it starts ends with it.
    const child = spawn(process.execPath, args, { cwd: copy, env, detached: true, stdio: ["ignore", "pipe", "pipe"] });
    live.add(child);
    let output = "";
    let trouble;
    const deadline = setTimeout(() => {
      trouble = `no end within ${msMax / 1000} s`;
      killGroup(child);
    }, msMax);
    let enough = false;
    for (const stream of [child.stdout, child.stderr]) {
      stream.setEncoding("utf8").on("data", (text) => {
        output += text;
        if (enough || until === undefined || !until.test(output)) return;
        enough = true;
        // It ends the groups of those that it has started.
        child.kill("SIGTERM");
      });
    }
    child.on("close", (code) => {
      clearTimeout(deadline);
      live.delete(child);
      if (code !== 0 && !enough) trouble ??= `exit code ${code}`;
      resolve({ output, trouble });
    });
  });
}

function killGroup(child) {
  try {
    process.kill(-child.pid, "SIGKILL");
  } catch (error) {
    if (error.code !== "ESRCH") throw error;
  }
}

function line({ mutation, found, seconds }) {
  const { name, promise } = mutation;
  const after = found?.runs === undefined ? "" : ` (${found.runs} runs)`;
  const caught = found === undefined ? "SURVIVED" : `${found.by}, ${found.what}${after}`;
  return `${name.padEnd(34)} ${promise.padEnd(20)} ${seconds.toFixed(0).padStart(4)} s  ${caught}`;
}

function report(results) {
  const survivors = results.filter(({ found }) => found === undefined);
  const bySim = results.filter(({ found }) => found?.by === "simulator").length;
  console.log("");
  console.log(`| fault | breaks | caught by | after |\n|---|---|---|---|`);
  for (const { mutation, found, seconds } of results) {
    const what =
      found === undefined ? "**nothing**" : `${found.by}: ${found.what.replaceAll("|", "\\|").slice(0, 140)}`;
    const after = found?.runs === undefined ? `${seconds.toFixed(0)} s` : `${found.runs} runs`;
    console.log(`| ${mutation.fault} (\`${mutation.name}\`) | ${mutation.promise} | ${what} | ${after} |`);
  }
  const byTests = results.length - bySim - survivors.length;
  console.log(
    `\n${results.length} faults: ${bySim} caught by the simulator, ${byTests} by tests, ${survivors.length} survived`,
  );
  if (survivors.length > 0) console.log(`survived: ${survivors.map(({ mutation }) => mutation.name).join(", ")}`);
  return survivors.length > 0 ? 1 : 0;
}
