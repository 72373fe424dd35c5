// Publish, lease, receive and ack, fsynced: the number we stand for. The client library against the bare path (systems/bare.ts), taking
// turns.

import { compare } from "./support/compare.ts";
import { settings } from "./support/settings.ts";
import { startBare } from "./systems/bare.ts";
import { speechFrom, startNarthex } from "./systems/narthex.ts";

// V8 compiles for a million events on; what is measured is what a node that has run for a while needs.
const set = settings({ n: 500_000, warmUp: 1_000_000 });
await compare("canonical", set, [() => startNarthex(set, speechFrom("library")), () => startBare(set)]);
