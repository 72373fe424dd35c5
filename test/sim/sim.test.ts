// Thousands of lives of a whole node, one thread and simulated time. What a run is and what is checked in it: run.ts and checker.ts.

import { spawnSync } from "node:child_process";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { expected } from "./expected.ts";
import { seeds } from "./seeds.ts";

const program = "dist-test/sim-sim.entry.js";
const runs = Number(process.env.SIM_RUNS ?? 10_000);

function simulator(...args: string[]) {
  const { status, stdout, stderr } = spawnSync(process.execPath, ["--enable-source-maps", program, ...args], {
    encoding: "utf8",
    maxBuffer: 256 * 1024 * 1024,
  });
  return { status, lines: stdout.trimEnd().split("\n"), stderr };
}

test(`G1–G10: ${runs} simulated lives break no promise, and meet every fault that there is`, () => {
  const { status, lines, stderr } = simulator("--seed", "1000", "--runs", String(runs));
  assert.is(status, 0, [...lines.slice(-400), stderr].join("\n"));
  const met = new Set(lines.map((line) => line.replace(/^ *\d+ {2}/, "")));
  if (runs >= 10_000)
    assert.equal(
      expected.filter((name) => !met.has(name)),
      [],
    );
  console.log(`measured: ${lines.at(-1)}`);
});

test("a seed is always the same life", () => {
  const life = () => simulator("--trace", "--seed", "42").lines.join("\n");
  const first = life();
  assert.match(first, "peace");
  assert.is(life(), first);
});

for (const { seed, fault } of seeds) {
  test(`the life of seed ${seed}, in which once ${fault}`, () => {
    const { status, lines } = simulator("--seed", String(seed), "--runs", "1");
    assert.is(status, 0, lines.slice(-400).join("\n"));
  });
}

test.run();
