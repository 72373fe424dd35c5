// The benches at a small size, so that they cannot rot.

import { spawnSync } from "node:child_process";
import { test } from "uvu";
import * as assert from "uvu/assert";

const small = { N: "2000", WARM_UP: "200", TOPIC: "small.bench", WORKERS: "1", PAIRS: "1" };

/** The lines of JSON that a bench prints, and what it says besides. */
function run(bench: string, env: Readonly<Record<string, string>>) {
  const { status, stdout, stderr } = spawnSync(process.execPath, [`dist-bench/${bench}.js`], {
    env: { ...process.env, ...small, ...env },
    encoding: "utf8",
    timeout: 60_000,
  });
  assert.is(status, 0, stderr);
  const lines = stdout.trimEnd().split("\n");
  const results = lines.filter((line) => line.startsWith("{")).map((line) => JSON.parse(line));
  return { results, text: lines.filter((line) => !line.startsWith("{")).join("\n") };
}

for (const bench of ["publish", "subscribe"]) {
  for (const [store, speech] of [
    ["log", "thin"],
    ["log", "library"],
    ["log", "plain"],
    ["memory", "thin"],
  ]) {
    test(`bench/${bench} runs small on the ${store} store, by a ${speech} client, and prints what it measured`, () => {
      const [result] = run(bench, { STORE: store, SPEECH: speech }).results;
      assert.equal([result.bench, result.n, result.topic, result.store], [bench, 2000, "small.bench", store]);
      assert.match(result.durability, store === "log" ? /fsync/ : /memory/);
      for (const name of ["p50", "p90", "p99", "events_per_s"]) assert.ok(result[name] > 0, `${name} ${result[name]}`);
      assert.ok(result.p50 <= result.p90 && result.p90 <= result.p99 && result.p99 <= result.max);
      const { server, front, workers, client } = result.cpu_us_per_event;
      assert.ok(client > 0 && front > 0 && workers > 0 && server >= front + workers, JSON.stringify(result));
    });
  }
}

for (const bench of ["canonical", "plain"]) {
  test(`bench/${bench} runs small against the bare path and prints the ratios`, () => {
    const { results, text } = run(bench, {});
    assert.equal(
      results.map(({ system }) => system.replace(/ \(.*/, "")),
      ["narthex", "bare path"],
    );
    assert.match(text, /server CPU per event, narthex.* \/ bare path.*: \d+\.\d\d \(.*\) in 1 pairs/);
  });
}

/** Of the measurements of a bench: which they were, in their order. */
const variants = (results: readonly { readonly variant: string }[]) => results.map(({ variant }) => variant);

/** The bench says what was wanted of this, and whether it was so. */
function assertGoal(text: string, what: RegExp, goal: string): void {
  const line = text.split("\n").find((candidate) => what.test(candidate));
  assert.ok(line !== undefined, `no line of ${what} in:\n${text}`);
  assert.match(line, new RegExp(`\\d.* · goal ${goal}: (not )?met$`));
}

test("bench/fanout runs 1 and 10 groups and gives the ratio of their cost", () => {
  const { results, text } = run("fanout", {});
  assert.equal(variants(results), ["groups 1", "groups 10"]);
  assert.match(text, /^fanout: fsync before OK, payload 256 B, window 1000, workers 1$/m);
  assertGoal(text, /^server CPU per event, 10 groups \/ 1/, "< 4 ×");
});

test("bench/consumers runs 1 member and 100 and gives the ratio of their rates", () => {
  const { results, text } = run("consumers", {});
  assert.equal(variants(results), ["members 1", "members 100"]);
  assertGoal(text, /^events\/s, 100 members \/ 1/, "≥ 0.7 ×");
});

test("bench/latency runs at each pace by both systems", () => {
  const { results, text } = run("latency", { SECONDS: "0.1" });
  assert.equal(
    results.map(({ system, variant, n }) => [system, variant, n]),
    [
      ["narthex", "2000/s", 200],
      ["bare path", "2000/s", 200],
      ["narthex", "20000/s", 2000],
      ["bare path", "20000/s", 2000],
    ],
  );
  assertGoal(text, /^p50 at 2000\/s, narthex \/ bare path/, "≤ 1.2 ×");
  assertGoal(text, /^p99 at 2000\/s, narthex \/ bare path/, "≤ 1.5 ×");
});

test("bench/backlog catches up with what is stored and compares it with the live rate", () => {
  const { results, text } = run("backlog", {});
  assert.equal(variants(results), ["catching up", "live"]);
  assertGoal(text, /^events\/s, catching up \/ live/, "≥ 2 ×");
});

test.run();
