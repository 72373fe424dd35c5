// A bucket against exact arithmetic: it never lends more than burst and refill allow, never less than it has, and what it says of waiting
// is right to the millisecond.

import fc from "fast-check";
import { test } from "uvu";
import * as assert from "uvu/assert";
import type { Lent } from "../../src/actors/messages.ts";
import { loanMsMax, TokenBucketActor } from "../../src/actors/token-bucket.ts";
import type { Rate } from "../../src/protocol/rate.ts";
import { Stage } from "../support/actor-stage.ts";
import { runs } from "../support/properties.ts";

/** Tokens in thousandths, as whole numbers: a rate of n per second gives n of these in a millisecond. */
interface Model {
  rate: Rate;
  milli: number | undefined;
  filledAt: number;
  filledBy: Rate;
}

interface Real {
  readonly stage: Stage;
}

class Take implements fc.Command<Model, Real> {
  private readonly need: number;

  constructor(need: number) {
    this.need = need;
  }

  check(): boolean {
    return true;
  }

  run(model: Model, { stage }: Real): void {
    const { need } = this;
    const { rate } = model;
    const held =
      model.milli === undefined
        ? rate.burst * 1000
        : Math.min(rate.burst * 1000, model.milli + (stage.mono - model.filledAt) * model.filledBy.perSec);
    const { tokens, retryAfterMs } = stage.answer<Lent>({ type: "take", need, rate });
    Object.assign(model, { milli: held - tokens * 1000, filledAt: stage.mono, filledBy: rate });
    const whole = Math.floor(held / 1000);
    assert.is(tokens, Math.min(whole, need + Math.floor((rate.perSec * loanMsMax) / 1000)));
    if (whole >= 1) {
      assert.is(retryAfterMs, 0);
      return;
    }
    const wanted = 1000 * Math.max(1, Math.min(need, rate.burst));
    const after = (ms: number) => held + ms * rate.perSec;
    assert.ok(after(retryAfterMs) >= wanted, `${retryAfterMs} ms are too short for ${need}`);
    // Where the doubles round up, a millisecond earlier would be just enough.
    assert.not(after(retryAfterMs - 1) > wanted, `${retryAfterMs - 1} ms would do for ${need}`);
  }

  toString(): string {
    return `take ${this.need}`;
  }
}

class Pass implements fc.Command<Model, Real> {
  private readonly ms: number;

  constructor(ms: number) {
    this.ms = ms;
  }

  check(): boolean {
    return true;
  }

  run(_model: Model, { stage }: Real): void {
    stage.mono += this.ms;
  }

  toString(): string {
    return `pass ${this.ms} ms`;
  }
}

class Change implements fc.Command<Model, Real> {
  private readonly rate: Rate;

  constructor(rate: Rate) {
    this.rate = rate;
  }

  check(): boolean {
    return true;
  }

  run(model: Model): void {
    model.rate = this.rate;
  }

  toString(): string {
    return `rate ${this.rate.burst}/${this.rate.perSec}`;
  }
}

const rates = fc.record({ burst: fc.integer({ min: 1, max: 2000 }), perSec: fc.integer({ min: 1, max: 2000 }) });
const commands = [
  fc.nat(3000).map((need) => new Take(need)),
  fc.nat(20).map((need) => new Take(need)),
  fc.oneof(fc.nat(10), fc.nat(5000)).map((ms) => new Pass(ms)),
  rates.map((rate) => new Change(rate)),
];

test("G9: a bucket lends exactly what burst and refill allow, and says how long to wait to the millisecond", () => {
  fc.assert(
    fc.property(rates, fc.commands(commands, { maxCommands: 60 }), (rate, steps) => {
      const stage = new Stage();
      stage.run(() => ({ actor: new TokenBucketActor(), effects: [] }));
      const model: Model = { rate, milli: undefined, filledAt: stage.mono, filledBy: rate };
      fc.modelRun(() => ({ model, real: { stage } }), steps);
    }),
    runs(1000),
  );
});

test.run();
