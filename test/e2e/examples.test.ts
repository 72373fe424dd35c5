// The programs of examples/, run as their first lines say. What each prints is what a reader is promised.

import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { within } from "../support/deadline.ts";

test.before(() => {
  // They import the package by its name, which is what was built into dist/.
  const { status, stderr } = spawnSync(process.execPath, ["build.mjs"], { encoding: "utf8" });
  assert.is(status, 0, stderr);
});

async function run(program: string): Promise<string[]> {
  const child: ChildProcess = spawn(process.execPath, [program], { stdio: ["ignore", "pipe", "pipe"] });
  let out = "";
  let err = "";
  child.stdout?.on("data", (chunk) => (out += chunk));
  child.stderr?.on("data", (chunk) => (err += chunk));
  try {
    const code = await within(30_000, `${program} ends`, new Promise((resolve) => child.on("close", resolve)));
    assert.is(code, 0, `${out}\n${err}`);
    assert.is(err.replace(/^\{.*"level":"info".*\n/gm, ""), "");
    return out.trimEnd().split("\n");
  } finally {
    child.kill("SIGKILL");
  }
}

test("a work queue with retries and dead letters", async () => {
  const lines = await run("examples/work-queue.mjs");
  assert.is(lines.at(-1), "every job is settled");
  assert.equal(lines.slice(0, -1).sort(), [
    "job-1 done at attempt 1",
    "job-2 done at attempt 1",
    "job-3 done at attempt 2",
    "job-4 is a dead letter after 3 attempts: the printer is on fire",
    "job-5 done at attempt 1",
  ]);
});

test("a fan-out to three groups", async () => {
  assert.equal(await run("examples/fan-out.mjs"), [
    "billing got 1, 2, 3",
    "shipping got 1, 2, 3",
    "analytics got 1, 2, 3",
  ]);
});

test("a request that survives kill -9 of the node", async () => {
  assert.equal(await run("examples/survives-kill.mjs"), [
    "stored at offset 0",
    "the node was killed",
    "the node is back",
    "stored at offset 1",
    "billing got order 1",
    "billing got order 2",
  ]);
});

test.run();
