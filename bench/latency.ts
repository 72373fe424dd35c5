// Events that are due at a steady pace, whatever the answers do: how long each takes from then to its arrival. The node against the bare path, taking
// turns, at each of RATES for SECONDS.

import { compare, ratios } from "./support/compare.ts";
import { printRatioGoal } from "./support/report.ts";
import { numberFrom, numbersFrom, settings } from "./support/settings.ts";
import { startBare } from "./systems/bare.ts";
import { speechFrom, startNarthex } from "./systems/narthex.ts";

const speech = speechFrom("library");
const seconds = numberFrom("SECONDS", 5);
/** At the higher rate the bare path is no measure: it has nothing that could be late. */
const goalPerSecond = 2000;
for (const perSecond of numbersFrom("RATES", [goalPerSecond, 20_000])) {
  const set = { ...settings({ warmUp: 20_000 }), n: Math.ceil(perSecond * seconds) };
  const starts = [() => startNarthex(set, speech), () => startBare(set)];
  const rounds = await compare("latency", set, starts, { perSecond, fromQuiet: true, variant: `${perSecond}/s` });
  if (perSecond !== goalPerSecond) continue;
  printRatioGoal(`p50 at ${perSecond}/s, narthex / bare path`, ratios(rounds, "p50", 0, 1), { is: "≤", bound: 1.2 });
  printRatioGoal(`p99 at ${perSecond}/s, narthex / bare path`, ratios(rounds, "p99", 0, 1), { is: "≤", bound: 1.5 });
}
