// The judge on made-up curves: it must see a leak of 1 KiB/s in an hour of noise, and nothing where there is only noise.

import { test } from "uvu";
import * as assert from "uvu/assert";
import { Dice } from "../support/dice.ts";
import { Faults, GroupAudit, TopicAudit } from "./audit.ts";
import { LatencyHistogram } from "./histogram.ts";
import { type Finding, judge, type Point, type Span, theilSen } from "./judge.ts";
import { measureOf } from "./measures.ts";
import { chartsOf, svgOf, textOf } from "./picture.ts";
import { verdictsOf, warmUpSeconds } from "./run.ts";

const hour: Span = { warmUpSeconds: warmUpSeconds(3600), seconds: 3600 };
const seeds = 200;

interface Curve {
  readonly base: number;
  readonly perSecond?: number;
  /** Either way, of each sample. */
  readonly noise: number;
  /** Of one sample in twenty. */
  readonly spike?: number;
  /** What caches add until they are full; in most of the warm-up. */
  readonly fills?: number;
  readonly everySeconds?: number;
}

function curve(
  seed: number,
  span: Span,
  { base, perSecond = 0, noise, spike = 0, fills = 0, everySeconds = 30 }: Curve,
): Point[] {
  const dice = new Dice(seed);
  const points: Point[] = [];
  for (let seconds = 0; seconds <= span.seconds; seconds += everySeconds) {
    const filled = fills * (1 - Math.exp((-8 * seconds) / span.warmUpSeconds));
    const wild = dice.chance(5) ? spike : 0;
    const value = base + filled + perSecond * seconds + wild + ((dice.below(2001) - 1000) / 1000) * noise;
    points.push({ seconds, value });
  }
  return points;
}

function findings(name: string, span: Span, shape: Curve): Map<Finding, number> {
  const found = new Map<Finding, number>();
  const measure = measureOf(name)!;
  for (let seed = 1; seed <= seeds; seed++) {
    const { finding } = judge(measure, curve(seed, span, shape), span);
    found.set(finding, (found.get(finding) ?? 0) + 1);
  }
  return found;
}

const heap: Curve = { base: 12, noise: 0.4, spike: 6, fills: 15 };
const kibibyte = 1 / 1024;

test("an hour of noise is steady, and a leak of 1 KiB/s in it is found, in each of 200 runs", () => {
  assert.equal([...findings("live heap worker-1", hour, heap)], [["steady", seeds]]);
  assert.equal([...findings("live heap worker-1", hour, { ...heap, perSecond: kibibyte })], [["grows", seeds]]);
  assert.equal([...findings("external main", hour, { ...heap, perSecond: kibibyte })], [["grows", seeds]]);
});

test("one descriptor in ten minutes is found among connections that come and go", () => {
  const open: Curve = { base: 26, noise: 3, everySeconds: 5 };
  assert.equal([...findings("files", hour, { ...open, noise: 1 })], [["steady", seeds]]);
  assert.equal([...findings("files", hour, { ...open, noise: 1, perSecond: 1 / 600 })], [["grows", seeds]]);
  assert.is(findings("sockets", hour, open).get("grows"), undefined);
});

test("latencies that double in the hour are found, and a busy neighbour at the end of it is not taken for that", () => {
  const quiet: Curve = { base: 5, noise: 2, spike: 100, everySeconds: 5 };
  assert.equal([...findings("OK p50", hour, quiet)], [["steady", seeds]]);
  assert.equal([...findings("OK p50", hour, { ...quiet, perSecond: 5 / 3600 })], [["grows", seeds]]);
  const points = curve(1, hour, quiet).map(({ seconds, value }) => ({
    seconds,
    value: seconds > 3200 ? 20 * value : value,
  }));
  assert.is(judge(measureOf("OK p50")!, points, hour).finding, "steady");
});

test("a rate that falls is found, and one that rises is not", () => {
  const rate: Curve = { base: 150, noise: 10, everySeconds: 5 };
  assert.equal([...findings("published", hour, rate)], [["steady", seeds]]);
  assert.equal([...findings("published", hour, { ...rate, perSecond: -30 / 3600 })], [["grows", seeds]]);
  assert.equal([...findings("published", hour, { ...rate, perSecond: 30 / 3600 })], [["steady", seeds]]);
});

test("a run that is too noisy or too short to exclude a leak says so and is not good", () => {
  const found = findings("live heap main", hour, { ...heap, noise: 30 });
  assert.ok((found.get("steady") ?? 0) < seeds / 20, JSON.stringify([...found]));
  const points = curve(1, hour, { ...heap, everySeconds: 900 });
  assert.is(judge(measureOf("live heap main")!, points, hour).finding, "not measured");
});

test("in a run of three minutes the bounds are twenty times as wide", () => {
  const short: Span = { warmUpSeconds: warmUpSeconds(180), seconds: 180 };
  const shape: Curve = { ...heap, fills: 0, noise: 0.1, everySeconds: 1.8 };
  assert.equal([...findings("live heap main", short, { ...shape, perSecond: kibibyte })], [["steady", seeds]]);
  assert.equal([...findings("live heap main", short, { ...shape, perSecond: 30 * kibibyte })], [["grows", seeds]]);
});

test("the line goes through the middle, whatever a quarter of the points does", () => {
  const points = Array.from({ length: 40 }, (_, i) => ({ seconds: i, value: i % 4 === 0 ? 1000 * i : 3 + 2 * i }));
  const { slope, low, high } = theilSen(points.map((point, i) => (i % 8 === 0 ? { ...point, value: -500 } : point)));
  assert.ok(Math.abs(slope - 2) < 0.5, `${slope}`);
  assert.ok(low <= slope && slope <= high);
});

test("a quantile is right within the width of a bucket", () => {
  const histogram = new LatencyHistogram();
  assert.is(histogram.quantile(0.5), undefined);
  for (let ms = 1; ms <= 1000; ms++) histogram.add(ms);
  for (const share of [0.5, 0.9, 0.99, 1]) {
    const error = histogram.quantile(share)! / (1000 * share);
    assert.ok(error > 0.93 && error < 1.07, `${share}: ${error}`);
  }
});

test("a curve becomes a chart with its slope, and a line of text", () => {
  const name = "live heap main";
  const series = new Map([[name, curve(1, hour, { ...heap, perSecond: kibibyte })]]);
  const charts = chartsOf(series, verdictsOf(series, hour));
  assert.match(textOf(charts), /^live heap main [▁▂▃▄▅▆▇█]{48} \S+ MiB +grows: \+\d/);
  const svg = svgOf(charts, hour, "a <title>");
  assert.match(svg, /a &lt;title>/);
  assert.match(svg, /live heap main \[MiB\]/);
  assert.not.match(svg, /NaN|Infinity/);
});

function audited() {
  const faults = new Faults();
  const topic = new TopicAudit("t", 1, faults);
  const group = new GroupAudit("g", topic, faults);
  const at = (offset: number) => ({ partition: 0, offset });
  const marks = [topic.issue(1), topic.issue(1), topic.issue(2)];
  return { faults, topic, group, at, marks };
}

test("what is lost, doubled, changed, or comes again after its ack is told", () => {
  const told = (run: (parts: ReturnType<typeof audited>) => void) => {
    const parts = audited();
    run(parts);
    return parts.faults.list.join("; ");
  };
  const all = ({ topic, group, at, marks }: ReturnType<typeof audited>) => {
    for (const [offset, mark] of marks.entries()) {
      topic.inLog(at(offset), mark);
      group.deliver(at(offset), mark, 1);
      group.settle(at(offset), 0);
    }
  };
  const good = audited();
  all(good);
  good.topic.finish();
  good.group.finish();
  assert.equal(good.faults.list, []);
  assert.match(
    told(({ topic, at, marks }) => topic.inLog(at(0), marks[1])),
    /is 1\/1, not \/0/,
  );
  assert.match(
    told(({ topic, at, marks }) => topic.inLog(at(1), marks[0])),
    /1 comes where 0 should/,
  );
  assert.match(
    told(({ topic }) => topic.finish()),
    /line 1 has 0 events, published were 2/,
  );
  assert.match(
    told(({ topic, at }) => topic.holds(at(0), { line: 1, n: 7 }, "OK")),
    /1\/7 was never published/,
  );
  const changed = told(({ topic, at, marks }) => {
    topic.holds(at(0), marks[0], "OK");
    topic.holds(at(0), marks[1], "g");
  });
  assert.match(changed, /is 1\/1, and was said to be 1\/0/);
  const unseen = told(({ topic, group, at, marks }) => {
    topic.inLog(at(0), marks[0]);
    group.finish();
  });
  assert.match(unseen, /0:0 was never delivered/);
  const twice = (settle: boolean, attempt: number) =>
    told(({ group, at, marks }) => {
      group.deliver(at(0), marks[0], 1);
      if (settle) group.settle(at(0), 0);
      group.deliver(at(0), marks[0], attempt);
    });
  assert.match(twice(true, 2), /came as attempt 2 although it was settled/);
  assert.match(twice(false, 1), /came as attempt 1 after attempt 1/);
  assert.is(twice(false, 2), "");
  assert.match(
    told(({ group, at }) => group.bury(at(0), 2, 3)),
    /never delivered.*after 2 attempts of 3.*no poison/s,
  );
});

test.run();
