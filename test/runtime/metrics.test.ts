// Numbers merged from everywhere, bounded, and printed; and lines of the log.

import { test } from "uvu";
import * as assert from "uvu/assert";
import type { Sample } from "../../src/actors/effects.ts";
import { Exposition } from "../../src/runtime/exposition.ts";
import { createLogger, faultFields } from "../../src/runtime/log.ts";
import { Distribution, LabelBound, mergeSamples, totalsOf } from "../../src/runtime/metrics.ts";
import { ManualClock } from "../support/manual-clock.ts";

function histogram(...values: number[]): Sample["value"] {
  const distribution = new Distribution([1, 10]);
  for (const value of values) distribution.observe(value);
  return distribution.read();
}

test("samples with the same name and labels are added up, in any order of labels", () => {
  const merged = mergeSamples([
    { name: "a_total", labels: { x: "1", y: "2" }, value: 3 },
    { name: "a_total", labels: { y: "2", x: "1" }, value: 4 },
    { name: "a_total", labels: { x: "2" }, value: 5 },
    { name: "h", labels: {}, value: histogram(1, 5) },
    { name: "h", labels: {}, value: histogram(11) },
  ]);
  assert.equal(
    merged.map(({ value }) => value),
    [7, 5, { bounds: [1, 10], counts: [1, 1, 1], sum: 17 }],
  );
});

test("only counters and histograms outlive a thread", () => {
  const samples: Sample[] = [
    { name: "a_total", labels: {}, value: 1 },
    { name: "depth", labels: {}, value: 2 },
    { name: "h", labels: {}, value: histogram(1) },
  ];
  assert.equal(
    totalsOf(samples).map(({ name }) => name),
    ["a_total", "h"],
  );
});

test("past the bound label sets fold into _other, and those who were first stay themselves", () => {
  const bound = new LabelBound(2);
  const sample = (topic: string, value: number): Sample => ({
    name: "a_total",
    labels: { topic, group: topic },
    value,
  });
  const read = (samples: Sample[]) => Object.fromEntries(samples.map(({ labels, value }) => [labels.topic, value]));
  assert.equal(read(bound.apply([sample("a", 1), sample("b", 2), sample("c", 3), sample("d", 4)])), {
    a: 1,
    b: 2,
    _other: 7,
  });
  assert.equal(read(bound.apply([sample("d", 5), sample("c", 4), sample("b", 3), sample("a", 2)])), {
    _other: 9,
    b: 3,
    a: 2,
  });
  // `a` is gone: there is room for one more.
  assert.equal(read(bound.apply([sample("b", 4), sample("e", 6), sample("d", 5)])), { b: 4, e: 6, _other: 5 });
  assert.equal(read(bound.apply([sample("a", 7), sample("e", 6), sample("b", 4)])), { _other: 7, b: 4, e: 6 });
});

test("the text has a type for each metric, cumulated buckets and escaped labels", async () => {
  const text = await new Exposition({ a_total: "How many" }).text([
    { name: "a_total", labels: { topic: 'say "x"' }, value: 3 },
    { name: "depth", labels: {}, value: 2 },
    { name: "h", labels: { worker: "0" }, value: histogram(1, 5, 11) },
  ]);
  const lines = text.split("\n");
  for (const line of [
    "# HELP narthex_a_total How many",
    "# TYPE narthex_a_total counter",
    'narthex_a_total{topic="say \\"x\\""} 3',
    "# TYPE narthex_depth gauge",
    "narthex_depth 2",
    "# TYPE narthex_h histogram",
    'narthex_h_bucket{worker="0",le="1"} 1',
    'narthex_h_bucket{worker="0",le="10"} 2',
    'narthex_h_bucket{worker="0",le="+Inf"} 3',
    'narthex_h_sum{worker="0"} 17',
    'narthex_h_count{worker="0"} 3',
  ]) {
    assert.ok(lines.includes(line), `${line}\n${text}`);
  }
});

test("the log writes one JSON object per line, from its level on", () => {
  const clock = new ManualClock();
  const lines: string[] = [];
  const log = createLogger("warn", (line) => void lines.push(line), clock);
  log.info("no");
  log.warn("one\ntwo", { shard: 3, msg: "other", gone: undefined });
  assert.is(lines.length, 1);
  assert.ok(lines[0].endsWith("}\n") && lines[0].indexOf("\n") === lines[0].length - 1);
  assert.equal(JSON.parse(lines[0]), {
    ts: new Date(clock.wallMs).toISOString(),
    level: "warn",
    msg: "one\ntwo",
    shard: 3,
  });
  createLogger("silent", (line) => void lines.push(line), clock).error("no");
  assert.is(lines.length, 1);
});

test("an error is logged without what a parser quotes of a payload", () => {
  try {
    JSON.parse('{"password": secret}');
    assert.unreachable();
  } catch (error) {
    assert.not.match(JSON.stringify(faultFields(error)), /secret|password/);
  }
  assert.is(faultFields(new Error("disk full")).reason, "disk full");
});

test.run();
