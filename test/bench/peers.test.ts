// bench/peers at a small size, with those of the peers that are installed here.

import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { drawBars } from "../../bench/support/bars.ts";

const small = { N: "500", WARM_UP: "100", WORKERS: "1", PAIRS: "1", TOPIC: "small.bench" };

const names: Readonly<Record<string, readonly string[]>> = {
  "redis-server": ["Redis Streams, always", "Redis Streams, everysec"],
  "nats-server": ["NATS JetStream"],
  "rabbitmq-server": ["RabbitMQ, classic queue", "RabbitMQ, quorum queue"],
};

function run(env: Readonly<Record<string, string>>) {
  const { status, stdout, stderr } = spawnSync(process.execPath, ["dist-bench/peers.js"], {
    env: { ...process.env, ...small, ...env },
    encoding: "utf8",
    timeout: 150_000,
  });
  return { status, stdout, stderr };
}

test("the same work by every peer that is installed, its durability and a drawing; a line for each that is not", () => {
  const folder = mkdtempSync(join(tmpdir(), "narthex-test-"));
  try {
    const svg = join(folder, "peers.svg");
    const { status, stdout, stderr } = run({ SVG: svg });
    assert.is(status, 0, stderr);
    const lines = stdout.trimEnd().split("\n");
    const results = lines.filter((line) => line.startsWith("{")).map((line) => JSON.parse(line));
    const skipped = lines.filter((line) => line.startsWith("skipped: "));
    for (const line of skipped) console.log(line);
    const expected = ["narthex", "bare path"];
    for (const [program, systems] of Object.entries(names)) {
      if (!skipped.includes(`skipped: ${program} is not installed (apt-get install ${program})`)) {
        expected.push(...systems);
      }
    }
    // One more where the server can do it.
    const found = results.filter(({ system }) => system !== "NATS JetStream, sync always");
    assert.equal(
      found.map(({ system }) => system),
      expected,
    );
    const drawing = readFileSync(svg, "utf8");
    for (const { system, durability, n, events_per_s, cpu_us_per_event, p50 } of results) {
      assert.is(n, 500);
      assert.ok(events_per_s > 0 && cpu_us_per_event.server > 0 && cpu_us_per_event.client > 0 && p50 > 0, system);
      assert.match(durability, /fsync/);
      assert.ok(drawing.includes(`>${system}</text>`) && drawing.includes(`>${durability}</text>`), system);
      if (system !== "narthex") assert.ok(stdout.includes(`events/s, narthex / ${system}: `), system);
    }
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});

test("one that is not installed is left out, and the others run at a steady pace", () => {
  const { status, stdout, stderr } = run({ PEERS: "redis", PATH: "/nowhere", RATE: "2000" });
  assert.is(status, 0, stderr);
  assert.match(stdout, /^skipped: redis-server is not installed \(apt-get install redis-server\)$/m);
  const results = stdout.split("\n").filter((line) => line.startsWith("{"));
  assert.is(results.length, 2);
  for (const line of results) {
    const { per_second, events_per_s } = JSON.parse(line);
    assert.is(per_second, 2000);
    assert.ok(events_per_s < 2100, `${events_per_s} events/s`);
  }
});

test("a peer that there is not is refused", () => {
  const { status, stderr } = run({ PEERS: "redis,kafka" });
  assert.is(status, 1);
  assert.match(stderr, /PEERS has kafka; there are redis, nats, rabbitmq/);
});

test("the longest bar of a column fills it, the others in proportion, and words are words", () => {
  const bar = (name: string, values: number[]) => ({ name, note: "a < b & c", values, ours: name === "one" });
  const svg = drawBars({
    title: "t",
    columns: ["x", "y"],
    bars: [bar("one", [50, 3]), bar("two", [100, 1])],
    footer: "f",
  });
  const widths = [...svg.matchAll(/<rect class="(bar|bar ours)" .* width="([\d.]+)"/g)].map(([, , text]) =>
    Number(text),
  );
  const [a, b, c, d] = widths;
  assert.is(widths.length, 4);
  assert.ok(Math.abs(a * 2 - c) < 0.2 && Math.abs(d * 3 - b) < 0.3 && Math.abs(b - c) < 0.1, String(widths));
  assert.is(svg.split("a &lt; b &amp; c").length, 3);
});

test.run();
