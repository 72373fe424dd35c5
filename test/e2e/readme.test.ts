// The README's own blocks, run in an empty folder by somebody who installs the package from a registry. The rules by which blocks are
// run, files are written and outputs are compared stand at the head of test/support/readme.ts:
//
// - `sh` blocks are typed line by line; the block without a language that follows is what they print, character by character but
//   for times, durations, rates, ids and the like; `npx narthex` keeps its terminal, "second terminal" opens another one;
// - other blocks are files where the text names one; `<!-- not run: why -->` leaves a block alone.

import { mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { npmConfig, packCheckout, readerEnv } from "../support/package.ts";
import { requireFreePorts, runDocument, type Step } from "../support/readme.ts";
import { serveRegistry } from "../support/registry.ts";

const work = mkdtempSync(join(tmpdir(), "narthex-reader-"));

test("the README's blocks, pasted line by line into an empty folder, print what the README shows", async () => {
  await requireFreePorts([8090, 8081, 8082, 8083]);
  const folder = join(work, "empty");
  const home = join(work, "home");
  for (const path of [folder, home]) mkdirSync(path);
  const upstream = npmConfig("registry");
  if (upstream === undefined) throw new Error("npm does not say which registry it uses");
  const registry = await serveRegistry(packCheckout(work), upstream);
  try {
    const env = readerEnv(home, registry.url);
    const steps = await runDocument(readFileSync("README.md", "utf8"), { folder, env, commandMs: 60_000 });
    const of = (kind: Step["kind"]) => steps.filter((step) => step.kind === kind);
    const compared = steps.filter((step) => "output" in step && step.output !== undefined);
    assert.ok(of("run").length > 0 && compared.length > 0, "the README shows something that can be run");
    const shown = of("shown").flatMap((step) => ("line" in step ? [step.line] : []));
    console.log(
      `measured: README: ${of("run").length} blocks run, ${compared.length} outputs compared, ` +
        `${of("file").length} files written, not run: ${shown.map((line) => `line ${line}`).join(", ") || "none"}`,
    );
  } finally {
    await registry.close();
  }
});

test.after(() => rmSync(work, { recursive: true, force: true }));
test.run();
