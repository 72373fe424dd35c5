import { test } from "uvu";
import * as assert from "uvu/assert";
import {
  checkNodeVersion,
  checkOpenFiles,
  checkRates,
  checkToken,
  clockFinding,
  formatVersionMax,
  readSettings,
  syncFinding,
} from "../../src/cli/doctor-local.ts";
import { clockFindings, metricFindings, readyFinding } from "../../src/cli/doctor-remote.ts";
import type { Finding } from "../../src/cli/finding.ts";
import { type Config, defaultConfig } from "../../src/config.ts";
import { formatVersion } from "../../src/store/log/folder.ts";

function is(finding: Finding, status: Finding["status"], text: string | RegExp): void {
  assert.is(finding.status, status, `${finding.check}: ${finding.text}`);
  assert.match(finding.text, text);
}

test("doctor reads the formats that the store reads", () => {
  assert.is(formatVersionMax, formatVersion);
});

test("a Node that is too old is named with the one to install", () => {
  for (const version of ["v20.19.0", "v20.20.2", "v22.0.0", "v100.1.2"]) is(checkNodeVersion(version), "ok", version);
  for (const version of ["v20.18.9", "v18.20.0"]) is(checkNodeVersion(version), "FAIL", "install Node 20.19 or newer");
});

test("settings that would stop a start are said in the words of the start", () => {
  const wrong = readSettings({ WS_PORT: "banana" });
  is(wrong as Finding, "FAIL", /^WS_PORT is "banana": allowed are/);
  is(readSettings({ HOST: "0.0.0.0" }) as Finding, "FAIL", "WS_TOKEN is not set");
  const right = readSettings({ WS_PORT: "9000", WS_TOKEN: "hidden-token" }) as Config;
  is(checkToken(right), "ok", /^set;/);
  assert.not.match(checkToken(right).text, "hidden-token");
  is(checkToken(defaultConfig()), "ok", "only programs on this machine");
  is(checkRates(defaultConfig()), "ok", "CONN_RATE=200/200 TOPIC_RATE=1000/1000, the careful defaults");
  is(checkRates(defaultConfig({ connRate: "off", topicRate: "off" })), "ok", /TOPIC_RATE=off$/);
});

test("a disk that is too fast or too slow is doubted", () => {
  is(syncFinding([0.3, 0.4, 0.5, 2], "/data"), "ok", "p50 0.40 ms, p99 2.00 ms");
  is(syncFinding([0.001, 0.002, 0.003], "/data"), "warn", "does not keep its word");
  is(syncFinding([30, 40, 50], "/data"), "warn", "use a faster disk");
});

test("a low limit of open files comes with the command that raises it", () => {
  const limits = (soft: string) =>
    `Limit   Soft Limit   Hard Limit\nMax open files            ${soft}    1048576    files\n`;
  is(checkOpenFiles(limits("1024")), "warn", "ulimit -n");
  is(checkOpenFiles(limits("1048576")), "ok", "1048576");
  is(checkOpenFiles(limits("unlimited")), "ok", "unlimited");
  is(checkOpenFiles(undefined), "ok", "cannot be read");
});

test("a clock that jumps, or is years off, is found", () => {
  const wall = Date.UTC(2026, 10, 18);
  is(clockFinding({ mono: 0, wall }, { mono: 200, wall: wall + 201 }), "ok", "runs evenly");
  is(clockFinding({ mono: 0, wall }, { mono: 200, wall: wall + 5200 }), "warn", "moved 5,000 ms");
  is(clockFinding({ mono: 0, wall }, { mono: 200, wall: wall - 3800 }), "warn", "moved -4,000 ms");
  is(clockFinding({ mono: 0, wall: 0 }, { mono: 200, wall: 200 }), "FAIL", "1970-01-01");
});

test("the node's clock is compared to the second", () => {
  const wall = Date.UTC(2026, 10, 18, 12, 0, 0, 700);
  assert.equal(clockFindings(null, wall), []);
  is(clockFindings("Wed, 18 Nov 2026 12:00:00 GMT", wall)[0], "ok", "agrees");
  is(clockFindings("Wed, 18 Nov 2026 12:01:00 GMT", wall)[0], "warn", "60 s ahead of");
  is(clockFindings("Wed, 18 Nov 2026 11:00:00 GMT", wall)[0], "warn", "3,600 s behind");
});

test("what the node says of itself is turned into what to do", () => {
  is(readyFinding("http://n", { ready: true, shards: [{ shard: 0, status: "up" }] }), "ok", "1 shard up");
  is(readyFinding("http://n", { ready: false, reasons: ["shard 0 is read-only"] }), "FAIL", "shard 0 is read-only");
  is(readyFinding("http://n", { ready: true, shards: [], damage: [{}] }), "warn", "1 damaged");
  is(readyFinding("http://n", { ready: true, shards: [{ shard: 0, status: "up", failed: [1] }] }), "warn", "gave up 1");
  const well = metricFindings(
    'narthex_loop_lag_ms{thread="front",quantile="0.99"} 4.2\nnarthex_worker_restarts_total 0\n',
  );
  assert.equal(
    well.map(({ status }) => status),
    ["ok", "ok", "ok"],
  );
  const ill = metricFindings(
    [
      'narthex_loop_lag_ms{thread="front",quantile="0.99"} 4.2',
      'narthex_loop_lag_ms{thread="worker-0",quantile="0.99"} 400',
      'narthex_worker_restarts_total{worker="0"} 2',
      'narthex_commit_failures_total{worker="0"} 1',
      'narthex_refusals_total{code="rate_limited"} 12',
    ].join("\n"),
  );
  assert.equal(
    ill.map(({ status, check }) => `${status} ${check}`),
    ["warn event loop", "warn restarts", "warn commits", "warn rate limits"],
  );
  is(ill[0], "warn", "400 ms late");
});

test.run();
