// N events into TOPIC, each confirmed. Latency: from the call to its confirmation. SPEECH is how the client speaks (systems/narthex.ts).

import { publishWindow } from "./support/drive.ts";
import { Latencies } from "./support/latency.ts";
import { measure } from "./support/measure.ts";
import { payloadMaker } from "./support/payload.ts";
import { print, resultOf } from "./support/report.ts";
import { settings } from "./support/settings.ts";
import { speechFrom, startNarthex } from "./systems/narthex.ts";

const set = settings();
const { n, warmUp, window, topic } = set;
const system = await startNarthex(set, speechFrom("thin"));
const publisher = await system.publisher(topic);
const make = payloadMaker(set.payloadBytes);
const latencies = new Latencies(n);
await publishWindow(publisher, { from: 0, to: warmUp, window, make });
const measured = await measure(system, () =>
  publishWindow(publisher, { from: warmUp, to: warmUp + n, window, make, confirmed: (ms) => latencies.add(ms) }),
);
print(resultOf("publish", system, set, n, measured, latencies.percentiles()));
await publisher.close();
await system.stop();
