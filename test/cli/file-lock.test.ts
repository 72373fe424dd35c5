import { spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { hostname, tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { CliError } from "../../src/cli/context.ts";
import { takeLock, withLock } from "../../src/cli/file-lock.ts";
import { realClock } from "../../src/runtime/clock.ts";

const folder = mkdtempSync(join(tmpdir(), "narthex-lock-"));
const path = join(folder, "a.part.lock");
const options = { clock: realClock(), taken: "another export writes a.part" };

test.after(() => rmSync(folder, { recursive: true }));

async function refusal(): Promise<string> {
  const error = await takeLock(path, options).then(
    () => undefined,
    (reason: Error) => reason,
  );
  assert.instance(error, CliError);
  return (error as CliError).message;
}

test("one at a time has it, and the next one when that has given it back", async () => {
  const release = await takeLock(path, options);
  assert.is(await refusal(), `another export writes a.part (process ${process.pid})`);
  await release();
  assert.equal(readdirSync(folder), []);
  await (await takeLock(path, options))();
});

test("it is given back also when the work fails", async () => {
  const failed = await withLock(path, options, async () => {
    assert.ok(existsSync(path));
    throw new Error("broken");
  }).catch((error: Error) => error.message);
  assert.is(failed, "broken");
  assert.equal(readdirSync(folder), []);
});

test("of many that come at once, one gets it", async () => {
  const got = await Promise.allSettled(Array.from({ length: 8 }, () => takeLock(path, options)));
  const held = got.filter((one) => one.status === "fulfilled");
  assert.is(held.length, 1);
  await held[0].value();
});

test("an owner that is dead, or whose number another process has by now, does not count", async () => {
  const { pid } = spawnSync(process.execPath, ["-e", ""]);
  const host = hostname();
  const stale = [
    { pid, started: "1", host },
    { pid: process.pid, started: "1", host },
  ];
  for (const owner of process.platform === "linux" ? stale : stale.slice(0, 1)) {
    writeFileSync(path, JSON.stringify(owner));
    const release = await takeLock(path, options);
    assert.is((JSON.parse(readFileSync(path, "utf8")) as { pid: number }).pid, process.pid);
    await release();
    assert.equal(readdirSync(folder), []);
  }
});

test("a lock without a name, left by a process that was killed while it made it, does not count", async () => {
  writeFileSync(path, "");
  await (await takeLock(path, options))();
  assert.equal(readdirSync(folder), []);
});

test("nobody here knows whether an owner on another machine runs", async () => {
  writeFileSync(path, JSON.stringify({ pid: 7, started: "1", host: "elsewhere" }));
  assert.is(
    await refusal(),
    `another export writes a.part (process 7 on elsewhere): if it is not running any more, remove ${path}`,
  );
  rmSync(path);
});

test.run();
