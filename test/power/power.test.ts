// A bounded part of `npm run power`: a real node under the shim with one life that is killed, the power cut at places of its log, and
// its files spoiled.

import { suite } from "uvu";
import * as assert from "uvu/assert";
import { Dice } from "../support/dice.ts";
import { type CorruptionCounts, spoilFolder } from "./corruption.ts";
import { cutRun, noCounts } from "./cuts.ts";
import { runNode, whyNot } from "./run.ts";
import { fixture, sourcesOf } from "./sources.ts";

const test = suite("power: loss and corruption");
const seed = 1;
const missing = whyNot();

if (missing !== undefined) {
  // Said, so that a run without it does not pass for one with it.
  test(`skipped: ${missing}`, () => void process.stdout.write(`skipped: power loss: ${missing}\n`));
} else {
  test("what clients heard from a real node holds after a power loss, and its spoiled files say so", async () => {
    const dice = new Dice(seed);
    const run = await runNode({ seed, lives: [{ killAt: 500 }, { closeMs: 300 }] });
    try {
      const counts = noCounts();
      assert.equal(await cutRun(run, { cuts: 8, dice, faultsMax: 3 }, counts), []);
      assert.is(counts.states, 9 * counts.cuts);
      assert.ok(counts.compared > 1000, `${counts.compared} things were compared`);
      const sums: CorruptionCounts = { total: 0, kinds: {} };
      const source = (await sourcesOf(run, dice))[1];
      assert.equal(await spoilFolder(source, { dice, count: 40, sharePercent: 2, faultsMax: 3 }, sums), []);
      assert.ok(sums.total > 100, `${sums.total} corruptions`);
    } finally {
      run.remove();
    }
  });
}

test("spoiled files of earlier releases are read, reported or refused", async () => {
  const counts: CorruptionCounts = { total: 0, kinds: {} };
  const source = await fixture("test/store/fixtures/v1");
  const options = { dice: new Dice(seed), count: 300, sharePercent: 50, faultsMax: 3 };
  assert.equal(await spoilFolder(source, options, counts), []);
  const outcomes = Object.values(counts.kinds).flatMap((kind) => Object.keys(kind));
  assert.ok(outcomes.includes("reported") && outcomes.includes("same"), JSON.stringify(counts));
});

test.run();
