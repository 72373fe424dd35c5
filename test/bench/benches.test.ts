// The benches at a small size, so that they cannot rot.

import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { text as textOf } from "node:stream/consumers";
import { test } from "uvu";
import * as assert from "uvu/assert";
import type { Percentiles } from "../../bench/support/latency.ts";
import type { Result as Printed } from "../../bench/support/report.ts";
import { dataFolder } from "../support/node-process.ts";

const small = {
  N: "2000",
  WARM_UP: "200",
  TOPIC: "small.bench",
  WORKERS: "1",
  PAIRS: "1",
  MS: "5",
  WARM_MEMORY_MB: "1",
};
/** They wait for processes and disks more than they work, and nobody asks here how fast they are. */
const atOnce = 3;

/** As a bench prints it; the fields that not all benches have are there where a test looks at them. */
type Result = Printed & Percentiles & { readonly variant: string };

interface Output {
  readonly results: readonly Result[];
  /** What it says besides. */
  readonly text: string;
}

const waiting: (() => Promise<void>)[] = [];

/** The bench is run when its turn comes, and `check` gets what it printed. */
function benchTest(
  name: string,
  bench: string,
  env: Readonly<Record<string, string>>,
  check: (output: Output) => void,
): void {
  const output = new Promise<Output>((resolve, reject) => {
    waiting.push(() => run(bench, env).then(resolve, reject));
  });
  output.catch(() => undefined);
  test(name, async () => check(await output));
}

async function run(bench: string, env: Readonly<Record<string, string>>): Promise<Output> {
  const child = spawn(process.execPath, [`dist-bench/${bench}.js`], {
    env: { ...process.env, ...small, ...env },
    stdio: ["ignore", "pipe", "pipe"],
    timeout: 60_000,
  });
  const exited = new Promise<number | string>((resolve) => {
    child.on("close", (code, signal) => resolve(signal ?? code ?? -1));
  });
  const [out, errors, code] = await Promise.all([textOf(child.stdout), textOf(child.stderr), exited]);
  assert.is(code, 0, `bench/${bench} ended with ${code}:\n${errors}`);
  const lines = out.trimEnd().split("\n");
  const results = lines.filter((line) => line.startsWith("{")).map((line) => JSON.parse(line) as Result);
  return { results, text: lines.filter((line) => !line.startsWith("{")).join("\n") };
}

async function drain(): Promise<void> {
  for (let next = waiting.shift(); next !== undefined; next = waiting.shift()) await next();
}

const variants = (results: readonly Result[]) => results.map(({ variant }) => variant);

/** The bench says what was wanted of this, and whether it was so. */
function assertGoal(text: string, what: RegExp, goal: string): void {
  const line = text.split("\n").find((candidate) => what.test(candidate));
  assert.ok(line !== undefined, `no line of ${what} in:\n${text}`);
  assert.match(line, new RegExp(`\\d.* · goal ${goal}: (not )?met$`));
}

function assertLatencies({ p50, p90, p99, p999, max }: Result): void {
  const rising = [0, p50, p90, p99, p999, max];
  assert.ok(p50 > 0 && rising.every((ms, i) => i === 0 || ms >= rising[i - 1]), `${rising}`);
}

for (const bench of ["publish", "subscribe"]) {
  for (const [store, speech] of [
    ["log", "thin"],
    ["log", "library"],
    ["log", "plain"],
    ["memory", "thin"],
  ]) {
    const name = `bench/${bench} runs small on the ${store} store, by a ${speech} client, and prints what it measured`;
    benchTest(name, bench, { STORE: store, SPEECH: speech }, ({ results }) => {
      const [result] = results;
      assert.equal([result.bench, result.n, result.topic, result.store], [bench, 2000, "small.bench", store]);
      assert.match(result.durability, store === "log" ? /fsync/ : /memory/);
      assert.ok(result.events_per_s > 0);
      assertLatencies(result);
      const { server = 0, front = 0, workers = 0, client = 0 } = result.cpu_us_per_event;
      // The node's word on its workers is a little older than what the system says of the process.
      const whole = server >= 0.8 * (front + workers);
      assert.ok(client > 0 && front > 0 && workers > 0 && whole, JSON.stringify(result));
    });
  }
}

for (const bench of ["canonical", "plain"]) {
  benchTest(`bench/${bench} runs small against the bare path and prints the ratios`, bench, {}, ({ results, text }) => {
    assert.equal(
      results.map(({ system }) => system.replace(/ \(.*/, "")),
      ["narthex", "bare path"],
    );
    const stored = Number(results[0].stored_bytes_per_event);
    assert.ok(stored > 200 && stored < 600, `${stored} bytes per event of 256`);
    assert.match(text, /server CPU per event, narthex.* \/ bare path.*: \d+\.\d\d \(.*\) in 1 pairs/);
  });
}

const drawing = dataFolder();
const svg = join(drawing.path, "cores.svg");
benchTest(
  "bench/cores works with real client processes and draws what came out",
  "cores",
  { WORKERS: "1,2", PROCESSES: "2", N: "600", SVG: svg },
  ({ results, text }) => {
    assert.equal(
      results.map(({ workers, client_processes, partitions, n }) => [workers, client_processes, partitions, n]),
      [
        [1, 2, 1, 600],
        [2, 2, 1, 600],
      ],
    );
    for (const result of results) {
      assertLatencies(result);
      assert.ok((result.cpu_us_per_event.client ?? 0) > 0);
    }
    assert.match(
      text,
      /^workers 2, client processes 2: the front has [\d.]+ of [\d.]+ µs, \d+ %: no more than [\d,]+ events\/s/m,
    );
    assertGoal(text, /^events\/s, 2 workers \/ 1, client processes 2/, "≥ 0.85 ×");
    const drawn = readFileSync(svg, "utf8");
    drawing.remove();
    assert.match(drawn, /prefers-color-scheme: dark/);
    assert.is(drawn.match(/<circle/g)?.length, 4 * 2 + 1, "a point for each in each of four panels, and a legend");
  },
);

benchTest("bench/fanout runs 1 and 10 groups and gives the ratio of their cost", "fanout", {}, ({ results, text }) => {
  assert.equal(variants(results), ["groups 1", "groups 10"]);
  assert.match(text, /^fanout: fsync before OK, payload 256 B, window 1000, workers 1$/m);
  assertGoal(text, /^server CPU per event, 10 groups \/ 1/, "< 4 ×");
});

benchTest(
  "bench/consumers runs 1 member and several and gives the ratio of their rates",
  "consumers",
  { MEMBERS: "1,20" },
  ({ results, text }) => {
    assert.equal(variants(results), ["members 1", "members 20"]);
    assertGoal(text, /^events\/s, 20 members \/ 1/, "≥ 0.7 ×");
  },
);

benchTest("bench/latency runs at each pace by both systems", "latency", { SECONDS: "0.1" }, ({ results, text }) => {
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

benchTest(
  "bench/backlog catches up with what is stored and compares it with the live rate",
  "backlog",
  {},
  ({ results, text }) => {
    assert.equal(variants(results), ["catching up", "live"]);
    assertGoal(text, /^events\/s, catching up \/ live/, "≥ 2 ×");
  },
);

benchTest(
  "bench/growth measures at each mark, and starts on all that was stored",
  "growth",
  { FROM: "200", SLICE: "100", PAIRS: "2" },
  ({ results, text }) => {
    assert.equal(variants(results), [
      ...["on the way to 200", "at 200 stored", "at 200 stored"],
      ...["on the way to 2000", "at 2000 stored", "at 2000 stored"],
      "start with 2400 stored",
    ]);
    const started = results[6];
    assert.ok(Number(started.start_ms) > 0 && Number(started.start_empty_ms) > 0);
    assertGoal(text, /^server CPU per event, at 2000 \/ at 200/, "≤ 1.25 ×");
    assertGoal(text, /^start with 2400 events/, "< 2 s");
    assertGoal(text, /^stored bytes per event/, "≤ 367 B");
  },
);

benchTest(
  "bench/topics publishes to many topics, and looks at those that are idle",
  "topics",
  { TOPICS: "1,40", QUIET_MS: "20" },
  ({ results, text }) => {
    assert.equal(variants(results), ["active 1", "active 40", "idle 40, made", "idle 40, used"]);
    for (const { timers_more: timers } of results.slice(2)) assert.ok(Math.abs(Number(timers)) < 36, "a timer each");
    assertGoal(text, /^idle 40, made, resident bytes for each topic/, "< 2000 B");
    assertGoal(text, /^idle 40, used, timers for each topic/, "< 0.01");
  },
);

benchTest("bench/sockets opens as many connections as it says", "sockets", { SOCKETS: "300" }, ({ results, text }) => {
  assert.equal(
    results.map(({ variant, connections, client_processes: processes }) => [variant, connections, processes]),
    [["idle connections 300", 300, 1]],
  );
  assertGoal(text, /^resident bytes of the node for each idle connection/, "< 12000 B");
});

for (const [bench, parts] of Object.entries({
  codec: {
    "payloads to a PUBLISH batch": "client",
    "PUBLISH batch, checked": "front",
    "payloads checked to be JSON": "workers",
    "two packs merged": "workers",
    "PUBLISHED, written": "workers",
    "PUBLISHED, read": "client",
    "EVENTS batch, cut from a block": "workers",
    "EVENTS batch to payloads": "client",
    "SETTLE, written": "client",
    "SETTLE, checked": "front",
    "PUBLISH as JSON, checked": "front",
    "OK to it": "front",
    "head of an EVENT as JSON": "workers",
    "ACK as JSON, checked": "front",
  },
  hop: {
    "1 events": "front workers",
    "10 events": "front workers",
    "200 events": "front workers",
    "1000 events": "front workers",
  },
  commit: { "1 events": "workers", "10 events": "workers", "200 events": "workers", "1000 events": "workers" },
  "lease-table": {
    "1 events, batch, acked in order": "workers",
    "10 events, batch, acked in order": "workers",
    "200 events, batch, acked in order": "workers",
    "1000 events, batch, acked in order": "workers",
    "1000 events, batch, acked from behind": "workers",
    "1000 events, json, acked in order": "workers",
  },
  bucket: { "asked for 1": "workers", "asked for 200": "workers" },
})) {
  benchTest(`bench/${bench} measures each of its costs and says whose it is`, bench, {}, ({ results, text }) => {
    assert.equal(Object.fromEntries(results.map((r) => [r.variant, Object.keys(r.cpu_us_per_event).join(" ")])), parts);
    for (const result of results) {
      assert.ok(result.n > 0 && result.events_per_s > 0, JSON.stringify(result));
      if (bench === "hop" || bench === "commit") assertLatencies(result);
    }
    assert.match(text, new RegExp(`^${bench}: (nothing is stored|fsync before OK), payload 256 B, window `, "m"));
  });
}

for (let i = 0; i < atOnce; i++) void drain();
test.run();
