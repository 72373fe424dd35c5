// A token bucket alone: the front asks it for what a batch of so many events needs, and gets it.

import type { Env } from "../src/actors/effects.ts";
import { TokenBucketActor } from "../src/actors/token-bucket.ts";
import { costSettings, measureCosts } from "./support/cost.ts";
import { numbersFrom } from "./support/settings.ts";

const set = costSettings("nothing is stored");
const rate = { burst: 1_000_000, perSec: 1_000_000 };
await measureCosts(
  "bucket",
  set,
  numbersFrom("EVENTS", [1, 200]).map((events) => {
    const bucket = new TokenBucketActor();
    const env = { mono: 0, wall: 0, epoch: 1, tokens: () => 1, room: (bytes: number) => new Uint8Array(bytes) };
    const take = () => {
      const [reply] = bucket.receive({ type: "take", need: events, rate }, 1, env satisfies Env);
      if (reply.type !== "reply" || reply.value === null || !("tokens" in reply.value) || reply.value.tokens < events)
        throw new Error("the bucket was empty");
      // Until what it lent is there again.
      env.mono += (reply.value.tokens * 1000) / rate.perSec;
    };
    return { variant: `asked for ${events}`, part: "workers", events, call: take };
  }),
);
