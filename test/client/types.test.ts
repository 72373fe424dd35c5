// The types refuse what they should: test/types/bus.types.ts compiles as it is, and without its expectations the compiler complains
// about exactly the lines below them.

import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { test } from "uvu";
import * as assert from "uvu/assert";

const folder = "test/types";
const source = readFileSync(join(folder, "bus.types.ts"), "utf8");

function compile(project: string): { readonly status: number | null; readonly out: string } {
  const { status, stdout, stderr } = spawnSync(
    process.execPath,
    ["node_modules/typescript/bin/tsc", "--noEmit", "--pretty", "false", "-p", project],
    { encoding: "utf8" },
  );
  return { status, out: stdout + stderr };
}

test("what the types allow compiles, and each expectation of an error is met", () => {
  const { status, out } = compile(folder);
  assert.is(out, "");
  assert.is(status, 0);
});

test("without the expectations exactly those lines do not compile", () => {
  // Inside test/, so that packages are found.
  const place = mkdtempSync(join("test", "types-"));
  try {
    const file = join(place, "bus.types.ts");
    writeFileSync(file, source.replaceAll("@ts-expect-error", "expected:"));
    writeFileSync(
      join(place, "tsconfig.json"),
      JSON.stringify({ extends: resolve("tsconfig.json"), include: [], files: ["bus.types.ts"] }),
    );
    const { out } = compile(place);
    const lines = source.split("\n");
    const wanted = lines.flatMap((line, index) => (line.includes("@ts-expect-error") ? [index + 2] : []));
    const refused = new Set([...out.matchAll(/bus\.types\.ts\((\d+),\d+\): error/g)].map(([, line]) => Number(line)));
    assert.equal(
      [...refused].sort((a, b) => a - b),
      wanted,
    );
    assert.ok(wanted.length >= 18, `${wanted.length} expectations`);
  } finally {
    rmSync(place, { recursive: true, force: true });
  }
});

test.run();
