// The canonical work by clients that speak JSON, one event in a frame, pipelined: the node against a bare server that takes the same frames,
// taking turns.

import { compare } from "./support/compare.ts";
import { settings } from "./support/settings.ts";
import { startBare } from "./systems/bare.ts";
import { startNarthex } from "./systems/narthex.ts";

const set = settings({ n: 50_000 });
await compare("plain", set, [() => startNarthex(set, "plain"), () => startBare(set, "plain")]);
