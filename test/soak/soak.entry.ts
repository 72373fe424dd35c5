// npm run soak -- --minutes 60 [--rate 150] [--seed 1] [--svg soak.svg] [--leak heap:1024]
//
// A node under mixed load for as long as is said. Ends with 1 if anything grows (see judge.ts and measures.ts), or if an event was lost,
// changed, or came again after it was settled. `--leak` has the node leak on purpose (see probe.ts), to see that it is found.

import { writeFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { shortness } from "./judge.ts";
import { chartsOf, svgOf, textOf } from "./picture.ts";
import { isGood, type SoakReport, soak } from "./run.ts";

const { values } = parseArgs({
  options: {
    minutes: { type: "string", default: "60" },
    rate: { type: "string", default: "150" },
    seed: { type: "string", default: String(Date.now() % 1_000_000) },
    svg: { type: "string", default: "soak.svg" },
    leak: { type: "string" },
  },
});

function numberFrom(name: "minutes" | "rate" | "seed", least: number): number {
  const number = Number(values[name]);
  if (Number.isFinite(number) && number >= least) return number;
  console.error(`soak: --${name} must be a number of ${least} or more, not ${values[name]}`);
  process.exit(2);
}

const minutes = numberFrom("minutes", 0.2);
const rate = numberFrom("rate", 1);
const seed = numberFrom("seed", 0);
const { leak, svg } = values;

console.log(
  `soak: ${minutes} minutes, ${rate} events a second, seed ${seed}${leak === undefined ? "" : `, leaking ${leak}`}`,
);
const report = await soak({ minutes, rate, seed, leak, say: (text) => console.log(text) });
const good = isGood(report);
print(report);
writeFileSync(svg, svgOf(chartsOf(report.series, report.verdicts), report.span, titleOf(report)));
console.log(`\nthe curves: ${svg}`);
console.log(good ? "soak: steady, nothing lost" : "soak: FAILED");
process.exitCode = good ? 0 : 1;

function titleOf({ span, totals }: SoakReport): string {
  const found = good ? "steady, nothing lost" : "FAILED";
  return `narthex soak: ${(span.seconds / 60).toFixed(1)} minutes, ${totals.published} events published, ${totals.delivered} delivered: ${found}`;
}

function print({ series, verdicts, span, totals, counts, faults, faultCount }: SoakReport): void {
  const factor = shortness(span);
  console.log(
    `\nslopes per day, fitted from ${(span.warmUpSeconds / 60).toFixed(1)} to ${(span.seconds / 60).toFixed(1)} min` +
      (factor > 1 ? `; bounds are ${factor.toFixed(1)} times those of an hour` : ""),
  );
  console.log(textOf(chartsOf(series, verdicts)));
  console.log(
    `\n${totals.published} published and read back from the log, ${totals.delivered} delivered, ` +
      `of these ${totals.again} again, ${totals.dead} dead letters`,
  );
  console.log([...counts].map(([what, count]) => `${count} ${what}`).join(", "));
  for (const { finding, measure } of verdicts) {
    if (finding !== "steady") console.log(`${finding.toUpperCase()}: ${measure.name} (${measure.why})`);
  }
  console.log(faultCount === 0 ? "no fault" : `${faultCount} FAULTS:\n${faults.join("\n")}`);
}
