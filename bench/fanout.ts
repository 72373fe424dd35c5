// One topic, one group and then ten: what it costs to hand each event to ten times as many. An event is stored once and copied from the same block for
// each of them.

import { canonicalOnce } from "./support/canonical.ts";
import { printMedians, ratios, takeTurns } from "./support/compare.ts";
import { printRatioGoal } from "./support/report.ts";
import { numbersFrom, settings } from "./support/settings.ts";
import { speechFrom, startNarthex } from "./systems/narthex.ts";

const set = settings({ n: 50_000 });
const speech = speechFrom("library");
const counts = numbersFrom("GROUPS", [1, 10]);
const rounds = await takeTurns(
  set.pairs,
  counts.map(
    (groups) => () =>
      canonicalOnce("fanout", () => startNarthex(set, speech), set, { groups, fromQuiet: true }, `groups ${groups}`),
  ),
);
printMedians(rounds);
const last = counts.length - 1;
printRatioGoal(
  `server CPU per event, ${counts[last]} groups / ${counts[0]}`,
  ratios(rounds, "server CPU per event", last, 0),
  { is: "<", bound: 4 },
);
