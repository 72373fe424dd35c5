// Publish, lease, receive and ack, fsynced: the number we stand for. The client library against the bare path (systems/bare.ts), taking
// turns.

import { compare } from "./support/compare.ts";
import { settings } from "./support/settings.ts";
import { startBare } from "./systems/bare.ts";
import { speechFrom, startNarthex } from "./systems/narthex.ts";

const set = settings({ n: 200_000 });
await compare("canonical", set, [() => startNarthex(set, speechFrom("library")), () => startBare(set)]);
