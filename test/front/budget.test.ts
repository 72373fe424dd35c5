import type { Duplex } from "node:stream";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { defaultConfig } from "../../src/config.ts";
import { Budget, Budgets } from "../../src/front/budget.ts";
import type { Route } from "../../src/front/router.ts";
import { type Failure, failure } from "../../src/protocol/failure.ts";
import type { Rate } from "../../src/protocol/rate.ts";
import { FakeSystem } from "../support/fake-system.ts";
import { startFront } from "../support/front-stage.ts";
import { ManualClock } from "../support/manual-clock.ts";
import { PlainClient } from "../support/plain-client.ts";

class TurnClock extends ManualClock {
  override soon(run: () => void): void {
    setImmediate(run);
  }
}

function setUp(rate: Rate | "off") {
  const clock = new TurnClock();
  const system = new FakeSystem(clock);
  const budget = new Budget({ system, clock, name: "b", rate, setting: "CONN_RATE" });
  const take = (need = 1, behind?: () => number) =>
    new Promise<Failure | undefined>((resolve) => {
      const verdict = budget.take(need, resolve, behind);
      if (verdict !== "later") resolve(verdict);
    });
  return { clock, system, budget, take };
}

test("300 at once under 200/200: 200 pass, and each of the others passes after the time it was told, in one ask each way", async () => {
  const { clock, system, take } = setUp({ burst: 200, perSec: 200 });
  const verdicts = await Promise.all(Array.from({ length: 300 }, () => take()));
  assert.is(verdicts.filter((refused) => refused === undefined).length, 200);
  assert.ok(verdicts.slice(0, 200).every((refused) => refused === undefined));
  assert.is(system.all("take").length, 1);
  const waits = verdicts.slice(200).map((refused) => refused?.retry_after_ms ?? 0);
  assert.equal([waits[0], waits[99]], [5, 500]);
  for (const refused of verdicts.slice(200)) {
    assert.is(refused?.code, "rate_limited");
    assert.match(refused?.msg ?? "", /CONN_RATE \(200\/200\)/);
  }
  let passed = 0;
  for (const wait of waits) {
    clock.advance(wait - passed);
    passed = wait;
    assert.is(await take(), undefined, `after ${wait} ms`);
  }
});

test("what the caller holds back behind is asked for with it and refused without another ask", async () => {
  const { system, take } = setUp({ burst: 10, perSec: 10 });
  let left = 14;
  const verdicts = [];
  for (let i = 0; i < 15; i++) {
    verdicts.push(await take(1, () => left));
    left--;
  }
  assert.equal(
    verdicts.map((refused) => refused?.retry_after_ms),
    [...new Array(10).fill(undefined), 100, 200, 300, 400, 500],
  );
  assert.is(system.all("take").length, 1);
  await take();
  assert.is(system.all("take").length, 2);
});

test("a client just under the rate is never refused, however its publishes lie", async () => {
  for (const everyMs of [6, 25, 40]) {
    const { clock, take } = setUp({ burst: 20, perSec: 200 });
    for (let i = 0; i < 400; i++) {
      assert.is(await take(), undefined, `number ${i}, every ${everyMs} ms`);
      clock.advance(everyMs);
    }
  }
});

test("the long-run rate holds: asking all the time gives the burst and then the refill", async () => {
  const { clock, take } = setUp({ burst: 50, perSec: 100 });
  let admitted = 0;
  for (let ms = 0; ms < 10_000; ms += 2) {
    if ((await take()) === undefined) admitted++;
    clock.advance(2);
  }
  assert.ok(admitted >= 50 + 990 && admitted <= 50 + 1002, `${admitted} were admitted`);
});

test("a batch passes while there is a token and the debt is waited for, also beyond the burst", async () => {
  const { clock, take } = setUp({ burst: 100, perSec: 100 });
  assert.is(await take(700), undefined);
  const refused = await take(5);
  assert.is(refused?.code, "rate_limited");
  const wait = refused?.retry_after_ms ?? 0;
  assert.ok(wait >= 6000 && wait <= 6020, `told to wait ${wait} ms`);
  clock.advance(wait - 50);
  assert.is((await take())?.code, "rate_limited");
  clock.advance(50);
  assert.is(await take(5), undefined);
});

test("requests that come while an ask is under way wait behind it, in order", async () => {
  const { system, budget } = setUp({ burst: 3, perSec: 1 });
  system.hold("take");
  const order: string[] = [];
  const take = (name: string) =>
    budget.take(1, (refused) => order.push(`${name} ${refused === undefined ? "passes" : "is refused"}`));
  assert.equal([take("a"), take("b")], ["later", "later"]);
  const first = await system.nth("take", 0);
  assert.is(first.message.need, 2);
  assert.is(take("c"), "later");
  first.answer({ tokens: 2, retryAfterMs: 0 });
  const second = await system.nth("take", 1);
  assert.equal(order, ["a passes", "b passes"]);
  second.answer({ tokens: 0, retryAfterMs: 1000 });
  await new Promise((resolve) => setImmediate(() => setImmediate(resolve)));
  assert.equal(order, ["a passes", "b passes", "c is refused"]);
});

test("without its bucket a budget goes on alone, at the rate and with a small burst", async () => {
  const { clock, system, take } = setUp({ burst: 200, perSec: 200 });
  system.on("take", () => failure("unavailable", "the shard is down"));
  const at = async () => {
    const verdicts = await Promise.all(Array.from({ length: 50 }, () => take()));
    return verdicts.filter((refused) => refused === undefined).length;
  };
  assert.is(await at(), 20);
  assert.is(await at(), 0);
  clock.advance(50);
  assert.is(await at(), 10);
});

test("off costs nothing", async () => {
  const { system, budget } = setUp("off");
  for (let i = 0; i < 1000; i++)
    assert.is(
      budget.take(1000, () => undefined),
      undefined,
    );
  assert.is(system.sent.length, 0);
});

test("a topic has one budget until its rate is changed, and says which setting refuses", async () => {
  const clock = new TurnClock();
  const system = new FakeSystem(clock);
  const config = defaultConfig({ topicRate: { burst: 1, perSec: 1 } });
  const budgets = new Budgets({ system, clock, config });
  const route = (settings: object): Route => {
    const record = { ...system.make("t"), id: 1, settings };
    return { topic: "t", record, partitions: [], durability: "memory" };
  };
  const plain = budgets.topic(route({}));
  assert.is(budgets.topic(route({})), plain);
  const own = budgets.topic(route({ rate: { burst: 2, perSec: 1 } }));
  assert.is.not(own, plain);
  assert.is(budgets.topic(route({ rate: { burst: 2, perSec: 1 } })), own);
  const messages = await Promise.all(
    [plain, own].map(async (budget) => {
      const verdicts = await Promise.all(
        [1, 2, 3].map(() => new Promise<Failure | undefined>((resolve) => void budget.take(1, resolve))),
      );
      return verdicts[2]?.msg;
    }),
  );
  assert.equal(messages, ["over TOPIC_RATE (1/1)", "over the rate of topic t (2/1)"]);
  assert.is(budgets.topic(route({ rate: "off" })).rate, "off");
});

test("300 PUBLISH frames in one go on one connection: the first 200 are stored in order, the others refused and right about when", async () => {
  const stage = await startFront({ connRate: { burst: 200, perSec: 200 }, topicRate: { burst: 1000, perSec: 1000 } });
  const client = await PlainClient.open(stage.url);
  await client.publish("t", "warm");
  stage.clock.advance(1000);
  stage.system.sent.length = 0;
  // In one write: what comes in a second one may find the bucket a little later, and is told another time.
  const { _socket: below } = client.socket as unknown as { readonly _socket: Duplex };
  below.cork();
  const asked = Array.from({ length: 300 }, (_, n) => client.request({ op: "PUBLISH", topic: "t", payload: n }));
  below.uncork();
  const answers = await Promise.all(asked);
  const stored = answers.filter(({ op }) => op === "OK");
  const refused = answers.filter(({ code }) => code === "rate_limited");
  assert.ok(stored.length >= 200 && stored.length <= 205, `${stored.length} were stored`);
  assert.is(stored.length + refused.length, 300);
  assert.equal(
    stored.map(({ offset }) => offset),
    stored.map((_, n) => n + 1),
  );
  assert.ok(answers.slice(0, stored.length).every(({ op }) => op === "OK"));
  assert.ok(stage.system.all("take").length < 10, `${stage.system.all("take").length} asks`);
  assert.match(String(refused[0].msg), /CONN_RATE/);
  stage.clock.advance(Math.max(...refused.map(({ retry_after_ms }) => Number(retry_after_ms))));
  below.cork();
  const more = refused.map((_, n) => client.request({ op: "PUBLISH", topic: "t", payload: n }));
  below.uncork();
  const again = await Promise.all(more);
  assert.ok(again.every(({ op }) => op === "OK"));
  await client.close();
  await stage.close();
});

test("a topic over its rate gives the connection back what it took", async () => {
  const stage = await startFront({ connRate: { burst: 4, perSec: 1 }, topicRate: { burst: 1, perSec: 1 } });
  const client = await PlainClient.open(stage.url);
  const publish = async (topic: string) => {
    const { op, code, msg } = await client.request({ op: "PUBLISH", topic, payload: 1 });
    return op === "OK" ? "OK" : `${code} ${/CONN_RATE|TOPIC_RATE/.exec(String(msg))?.[0]}`;
  };
  const limited = "rate_limited TOPIC_RATE";
  assert.equal([await publish("a"), await publish("a"), await publish("a")], ["OK", limited, limited]);
  assert.equal([await publish("b"), await publish("c"), await publish("d")], ["OK", "OK", "OK"]);
  assert.is(await publish("e"), "rate_limited CONN_RATE");
  await client.close();
  await stage.close();
});

test.run();
