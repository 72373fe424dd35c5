// One group of one member and then of a hundred, each on a connection of its own: the work that they share must not cost them its rate. WINDOW is
// that of each member.

import { canonicalOnce } from "./support/canonical.ts";
import { printMedians, ratios, takeTurns } from "./support/compare.ts";
import { printRatioGoal } from "./support/report.ts";
import { numbersFrom, settings } from "./support/settings.ts";
import { speechFrom, startNarthex } from "./systems/narthex.ts";

const set = settings({ n: 100_000 });
const speech = speechFrom("library");
const counts = numbersFrom("MEMBERS", [1, 100]);
const rounds = await takeTurns(
  set.pairs,
  counts.map(
    (members) => () =>
      canonicalOnce(
        "consumers",
        () => startNarthex(set, speech),
        set,
        { members, fromQuiet: true },
        `members ${members}`,
      ),
  ),
);
printMedians(rounds);
const last = counts.length - 1;
printRatioGoal(`events/s, ${counts[last]} members / ${counts[0]}`, ratios(rounds, "events/s", last, 0), {
  is: "≥",
  bound: 0.7,
});
