// The whole machinery at small size: a real node under the mixed load for some seconds. It leaks files on purpose, which must be found;
// and nothing may be lost. Of the other slopes a run this short says nothing.

import { test } from "uvu";
import * as assert from "uvu/assert";
import { measures } from "./measures.ts";
import { chartsOf, svgOf, textOf } from "./picture.ts";
import { isGood, soak, verdictsOf } from "./run.ts";

test("a short run measures everything, loses nothing, and finds the files that are leaked", async () => {
  const said: string[] = [];
  const report = await soak({
    minutes: 0.22,
    rate: 60,
    seed: 1,
    leak: "files:40",
    say: (text) => void said.push(text),
  });
  assert.equal(report.faults, []);
  const { published, delivered, again } = report.totals;
  assert.ok(published > 100 && delivered > published && again > 0, JSON.stringify(report.totals));
  for (const what of ["nacked", "topics made and deleted", "members cut off", "events replayed", "short connections"])
    assert.ok((report.counts.get(what) ?? 0) > 0, what);
  for (const { name } of measures) {
    const judged = report.verdicts.filter(
      ({ measure }) => measure.name === name || measure.name.startsWith(`${name} `),
    );
    assert.ok(judged.length > 0, `${name} is not measured`);
    for (const { finding, measure } of judged) assert.is.not(finding, "not measured", measure.name);
  }
  const findingOf = (name: string, from = report.verdicts) =>
    from.find(({ measure }) => measure.name === name)?.finding;
  assert.is(findingOf("files"), "grows");
  assert.not(isGood(report));

  // The same curves with a slope on one of them.
  const steep = [...report.series].map(([name, points]) => {
    const leaked = points.map(({ seconds, value }) => ({ seconds, value: value + 5 * seconds }));
    return [name, name === "live heap main" ? leaked : points] as const;
  });
  assert.is(findingOf("live heap main", verdictsOf(new Map(steep), report.span)), "grows");

  const charts = chartsOf(report.series, report.verdicts);
  assert.is(textOf(charts).split("\n").length, charts.length);
  const svg = svgOf(charts, report.span, "short");
  assert.not.match(svg, /NaN|Infinity/);
});

test.run();
