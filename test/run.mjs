// `npm test`: builds the tests and runs each file in a process of its own. `npm test -- lease store` runs the files whose
// path or built name contains one of the words. TEST_TIMEOUT_S is the time that one file may take; the simulation may take twice that.
//
// What uvu does, as this file has to know it (uvu 0.5.6, dist/index.mjs):
// - it prints Total, Passed and Skipped at the very end, then sets process.exitCode and never exits by itself: a file that
//   leaves a socket or a timer open hangs after its totals;
// - a throw in a `before` hook, or in an `after.each` hook, is swallowed and the exit code is 0: only Passed < Total tells;
// - a throw in an `after` hook, an early process.exit and a forgotten test.run() print no totals at all.

import { spawn } from "node:child_process";
import { fileURLToPath } from "node:url";
import { buildTests, testEntries } from "../build.mjs";

const root = fileURLToPath(new URL("..", import.meta.url));
const concurrency = 2;
const timeoutMs = Number(process.env.TEST_TIMEOUT_S ?? 180) * 1000;
const graceMs = 5000;
const outputCharsMax = 8 * 1024 * 1024;

const totalsPattern = /^ {2}Total: +(\d+)\n {2}Passed: +(\d+)\n {2}Skipped: +(\d+)\n/gm;
// uvu writes a bullet per test without a newline, so what a test prints may stand behind some of them.
const saidPattern = /^(?:.*[•✘] )?((?:skipped|measured): .*)$/gm;
// biome-ignore lint/suspicious/noControlCharactersInRegex: the escape character is what an ANSI sequence starts with
const ansiPattern = /\x1b\[[0-9;]*m/g;

const sum = { passed: 0, failed: 0, skipped: 0 };
const live = new Set();

for (const signal of ["SIGINT", "SIGTERM"]) {
  process.on(signal, () => {
    for (const child of live) killGroup(child);
    process.exit(1);
  });
}

const words = process.argv.slice(2);
const wants = (name, path) => words.length === 0 || words.some((word) => name.includes(word) || path.includes(word));

try {
  const names = Object.entries(testEntries())
    .filter(([name, path]) => name.endsWith(".test") && wants(name, path))
    .map(([name]) => name);
  if (names.length === 0) console.log(`no test file matches: ${words.join(" ")}`);
  await buildTests(words.length > 0 ? wants : undefined);
  const alone = names.filter((name) => /^(e2e|bench|sim|crash|power|faults|hostile|soak)-/.test(name));
  const together = names.filter((name) => !alone.includes(name));
  await Promise.all(Array.from({ length: concurrency }, () => drain(together)));
  await drain(alone);
} catch (error) {
  // esbuild has printed what is wrong in the sources.
  if (!error.errors) console.log(error);
  console.log("FAIL  the tests could not be built");
  sum.failed++;
}
console.log(`${sum.passed} passed, ${sum.failed} failed, ${sum.skipped} skipped`);
process.exitCode = sum.failed > 0 || sum.passed === 0 ? 1 : 0;

async function drain(names) {
  for (let name = names.shift(); name !== undefined; name = names.shift()) report(name, await runFile(name));
}

/** Runs one file to its end. `trouble` is what went wrong beyond the tests that uvu counted. */
function runFile(name) {
  return new Promise((resolve) => {
    const startedMs = performance.now();
    // A process group of its own, so that the nodes which a test starts end with it.
    const child = spawn(process.execPath, ["--enable-source-maps", `dist-test/${name}.js`], {
      cwd: root,
      detached: true,
      stdio: ["ignore", "pipe", "pipe"],
    });
    live.add(child);
    let output = "";
    let trouble = "";
    let grace;
    const stop = (reason) => {
      trouble ||= reason;
      killGroup(child);
      // A grandchild that left the group may hold the pipes.
      child.stdout.destroy();
      child.stderr.destroy();
    };
    const patienceMs = name.startsWith("sim-") ? 2 * timeoutMs : timeoutMs;
    const deadline = setTimeout(() => stop(`no end within ${patienceMs / 1000} s, killed`), patienceMs);
    for (const stream of [child.stdout, child.stderr]) {
      stream.setEncoding("utf8");
      stream.on("data", (text) => {
        output = (output + text.replace(ansiPattern, "")).slice(-outputCharsMax);
        if (output.slice(-text.length - 200).search(totalsPattern) >= 0) {
          grace ??= setTimeout(() => stop(`left handles open: alive ${graceMs / 1000} s after its totals`), graceMs);
        }
      });
    }
    child.on("error", (error) => {
      trouble ||= String(error);
    });
    child.on("exit", (code, signal) => {
      clearTimeout(grace);
      if (signal) trouble ||= `ended by ${signal}`;
      else if (code !== 0) trouble ||= `exit code ${code}`;
      killGroup(child);
    });
    child.on("close", () => {
      clearTimeout(deadline);
      clearTimeout(grace);
      live.delete(child);
      resolve({ output, trouble, seconds: (performance.now() - startedMs) / 1000 });
    });
  });
}

function report(name, { output, trouble, seconds }) {
  const counts = { passed: 0, failed: 0, skipped: 0 };
  const totals = [...output.matchAll(totalsPattern)];
  for (const [, total, passed, skipped] of totals) {
    counts.passed += Number(passed);
    counts.failed += Number(total) - Number(passed);
    counts.skipped += Number(skipped);
  }
  if (totals.length === 0) trouble ||= "printed no totals (is test.run() missing?)";
  // A failed test also makes uvu's exit code 1; only trouble that no failed test explains counts by itself.
  const explained = counts.failed > 0 && trouble === "exit code 1";
  if (trouble && !explained) counts.failed++;
  for (const key of Object.keys(sum)) sum[key] += counts[key];

  const line = `${counts.passed} passed, ${counts.failed} failed, ${counts.skipped} skipped`;
  const verdict = counts.failed > 0 ? "FAIL" : "ok  ";
  console.log(`${verdict}  ${name}  ${line}  ${seconds.toFixed(1)} s${trouble && !explained ? `  (${trouble})` : ""}`);
  if (counts.failed > 0) console.log(output.trimEnd().replace(/^/gm, "      "));
  else for (const [, text] of output.matchAll(saidPattern)) console.log(`      ${text}`);
}

function killGroup(child) {
  if (child.pid === undefined) return;
  try {
    process.kill(-child.pid, "SIGKILL");
  } catch (error) {
    if (error.code !== "ESRCH") throw error;
  }
}
