// N events through TOPIC: published, leased, received and acknowledged. Latency: from the call of publish to the event's arrival. SPEECH is how
// the clients speak (systems/narthex.ts).

import { canonical } from "./support/canonical.ts";
import { print, resultOf } from "./support/report.ts";
import { settings } from "./support/settings.ts";
import { speechFrom, startNarthex } from "./systems/narthex.ts";

const set = settings();
const system = await startNarthex(set, speechFrom("thin"));
const { measured, latency } = await canonical(system, set);
print(resultOf("subscribe", system, set, set.n, measured, latency));
await system.stop();
