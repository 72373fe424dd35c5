import { test } from "uvu";
import * as assert from "uvu/assert";
import { percentile } from "../../src/cli/bench.ts";
import { metricSum, metricValues } from "../../src/cli/metrics-text.ts";
import { eventsText, Pace, Progress } from "../../src/cli/progress.ts";
import { ManualClock } from "../support/manual-clock.ts";

function reachEvery(clock: ManualClock, pace: Pace, ms: number, from: number, step: number, times: number): number {
  let done = from;
  for (let i = 0; i < times; i++) {
    clock.advance(ms);
    done += step;
    pace.reach(done);
  }
  return done;
}

test("the rate is that of the last seconds, and so is the time left", () => {
  const clock = new ManualClock();
  const pace = new Pace(clock);
  assert.is(pace.rate(), 0);
  assert.is(pace.leftMs(1000), undefined);
  // 100 in each second for 20 s, then 1000 in each second for 20 s.
  let done = reachEvery(clock, pace, 100, 0, 10, 200);
  assert.is(Math.round(pace.rate()), 100);
  assert.is(Math.round(pace.leftMs(done + 100) as number), 1000);
  done = reachEvery(clock, pace, 100, done, 100, 200);
  assert.is(Math.round(pace.rate()), 1000);
  assert.is(Math.round(pace.leftMs(done + 5000) as number), 5000);
  assert.is(pace.leftMs(done), 0);
});

test("what was there before counts as done and not for the rate", () => {
  const clock = new ManualClock();
  const pace = new Pace(clock, 900_000);
  reachEvery(clock, pace, 500, 900_000, 50, 4);
  assert.is(Math.round(pace.rate()), 100);
  assert.is(Math.round(pace.leftMs(901_200) as number), 10_000);
});

test("a rate that falls to nothing is seen to fall", () => {
  const clock = new ManualClock();
  const pace = new Pace(clock);
  reachEvery(clock, pace, 1000, 0, 1000, 10);
  const before = pace.rate();
  clock.advance(20_000);
  assert.ok(pace.rate() < before / 3, `${pace.rate()}`);
});

test("without a terminal nothing is drawn, and the numbers are there all the same", () => {
  const clock = new ManualClock();
  const progress = new Progress({ clock, tty: false, label: "orders", total: 100 });
  clock.advance(1000);
  progress.reach(50);
  assert.is(progress.rate, 50);
  progress.stop();
});

test("numbers of events are written as people read them", () => {
  assert.equal([0, 1, 2, 1_234_567].map(eventsText), ["0 events", "1 event", "2 events", "1,234,567 events"]);
});

test("percentiles are values that were measured", () => {
  const values = new Float64Array(1000).map((_, i) => i + 1);
  assert.equal(
    [0.5, 0.9, 0.99, 0.999, 1].map((share) => percentile(values, share)),
    [500, 900, 990, 999, 1000],
  );
  assert.is(percentile(new Float64Array([7]), 0.5), 7);
  assert.ok(Number.isNaN(percentile(new Float64Array(0), 0.5)));
});

test("metrics are found by name and labels", () => {
  const text = [
    "# HELP narthex_refusals_total refusals",
    "# TYPE narthex_refusals_total counter",
    'narthex_refusals_total{code="rate_limited",worker="0"} 3',
    'narthex_refusals_total{code="rate_limited",worker="1"} 4',
    'narthex_refusals_total{code="overloaded"} 100',
    "narthex_refusals_total_other 1000",
    "narthex_connections 2",
  ].join("\n");
  assert.is(metricSum(text, "narthex_refusals_total", { code: "rate_limited" }), 7);
  assert.is(metricSum(text, "narthex_refusals_total"), 107);
  assert.is(metricSum(text, "narthex_connections"), 2);
  assert.is(metricSum(text, "narthex_refusals_total", { code: "limit" }), undefined);
  assert.equal(metricValues(text, "narthex_refusals_total", { worker: "1" }), [4]);
});

test.run();
