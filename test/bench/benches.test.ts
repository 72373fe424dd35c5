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

test.run();
