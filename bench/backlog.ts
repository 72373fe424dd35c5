// N events that are stored already, and a group that begins with the first of them: how fast it catches up, against the rate at which events are
// published and consumed at the same time, taking turns.

import { within } from "../test/support/deadline.ts";
import { canonicalOnce } from "./support/canonical.ts";
import { printMedians, ratios, takeTurns } from "./support/compare.ts";
import { Arrivals, publishWindow } from "./support/drive.ts";
import { measure, quiet } from "./support/measure.ts";
import { payloadMaker } from "./support/payload.ts";
import { print, printRatioGoal, type Result, resultOf } from "./support/report.ts";
import { settings } from "./support/settings.ts";
import { warmMemory } from "./support/warm.ts";
import { speechFrom, startNarthex } from "./systems/narthex.ts";

const patienceMs = 300_000;
/** More would only make the round longer. */
const liveMax = 200_000;

const set = settings({ n: 200_000, pairs: 3 });
const live = { ...set, n: Math.min(set.n, liveMax) };
const speech = speechFrom("library");
const rounds = await takeTurns(set.pairs, [
  catchUp,
  () => canonicalOnce("backlog", () => startNarthex(live, speech), live, { fromQuiet: true }, "live"),
]);
printMedians(rounds);
printRatioGoal("events/s, catching up / live", ratios(rounds, "events/s", 0, 1), { is: "≥", bound: 2 });

async function catchUp(): Promise<Result> {
  const { n, topic, window, payloadBytes } = set;
  warmMemory();
  const system = await startNarthex(set, speech);
  const publisher = await system.publisher(topic);
  await within(
    patienceMs,
    "the events are stored",
    publishWindow(publisher, { from: 0, to: n, window, make: payloadMaker(payloadBytes) }),
  );
  await publisher.close();
  await quiet(system);
  const arrivals = new Arrivals({ total: n, ordered: true });
  const measured = await measure(system, async () => {
    const consumer = await system.consumer({ topic, group: "late", window, onEvent: arrivals.take });
    await within(patienceMs, "every event arrives", arrivals.until(n));
    await within(patienceMs, "every ack is confirmed", consumer.settled());
    await consumer.close();
  });
  await system.stop();
  const result = resultOf("backlog", system, set, n, measured, undefined, { variant: "catching up" });
  print(result);
  return result;
}
