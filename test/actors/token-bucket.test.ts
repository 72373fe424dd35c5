import { test } from "uvu";
import * as assert from "uvu/assert";
import type { Lent } from "../../src/actors/messages.ts";
import { TokenBucketActor } from "../../src/actors/token-bucket.ts";
import { Stage } from "../support/actor-stage.ts";

const rate = { burst: 200, perSec: 200 };

function started(): Stage {
  const stage = new Stage();
  stage.run(() => ({ actor: new TokenBucketActor(), effects: [] }));
  return stage;
}

const take = (stage: Stage, need: number) => stage.answer<Lent>({ type: "take", need, rate });

test("G9: the burst is lent once and no more, then the answer says how long to wait, and that is right", () => {
  const stage = started();
  assert.equal(take(stage, 300), { tokens: 200, retryAfterMs: 0 });
  const refused = take(stage, 1);
  assert.equal(refused, { tokens: 0, retryAfterMs: 5 });
  stage.mono += refused.retryAfterMs - 1;
  assert.is(take(stage, 1).tokens, 0, "not a moment earlier");
  stage.mono += 1;
  assert.is(take(stage, 1).tokens, 1);
});

test("beyond the need at most 20 ms of refill are lent", () => {
  assert.is(take(started(), 1).tokens, 1 + 4);
});

test("a debt larger than the burst is paid back in parts, and the wait named is that of a full bucket", () => {
  const stage = started();
  assert.is(take(stage, 1000).tokens, 200);
  assert.equal(take(stage, 800), { tokens: 0, retryAfterMs: 1000 });
  stage.mono += 1000;
  assert.is(take(stage, 800).tokens, 200);
});

test("over time no more passes than burst and rate allow", () => {
  const stage = started();
  let passed = 0;
  for (let ms = 0; ms <= 10_000; ms += 10) {
    passed += take(stage, 50).tokens;
    stage.mono += 10;
  }
  assert.ok(passed <= 200 + 2000, `${passed}`);
  assert.ok(passed >= 200 + 2000 - 10, `${passed}`);
});

test("a changed rate holds from then on", () => {
  const stage = started();
  take(stage, 200);
  stage.mono += 1000;
  assert.is(stage.answer<Lent>({ type: "take", need: 1000, rate: { burst: 10, perSec: 10 } }).tokens, 10);
});

test.run();
