// The benches at a small size, so that they cannot rot.

import { spawnSync } from "node:child_process";
import { test } from "uvu";
import * as assert from "uvu/assert";

for (const bench of ["publish", "client-publish", "subscribe"]) {
  for (const store of ["log", "memory"]) {
    test(`bench/${bench} runs small on the ${store} store and prints what it measured`, () => {
      const env = { ...process.env, N: "2000", TOPIC: "small.bench", STORE: store, WORKERS: "1" };
      const { status, stdout, stderr } = spawnSync(process.execPath, [`dist-bench/${bench}.js`], {
        env,
        encoding: "utf8",
        timeout: 60_000,
      });
      assert.is(status, 0, stderr);
      const result = JSON.parse(stdout);
      assert.equal([result.bench, result.n, result.topic, result.store], [bench, 2000, "small.bench", store]);
      assert.is(result.durability, store === "log" ? "fsync" : "memory");
      for (const name of ["p50", "p90", "p99", "events_per_s"]) assert.ok(result[name] > 0, `${name} ${result[name]}`);
      assert.ok(result.p50 <= result.p90 && result.p90 <= result.p99 && result.p99 <= result.max);
    });
  }
}

test.run();
