// A token bucket for the whole node: the front holds only short loans from it. What a batch overdraws stays with the front as a
// debt that its next ask includes, so a bucket never lends what it does not have.

import type { Rate } from "../protocol/rate.ts";
import type { Actor, Effect, Env, Notice, Ref } from "./effects.ts";
import type { Lent, Message } from "./messages.ts";

/** What is lent beyond the need of the moment, in time of refill. */
export const loanMsMax = 20;

export class TokenBucketActor implements Actor {
  private rate: Rate | undefined;
  private tokens = 0;
  private filledAt = 0;

  receive(message: Message | Notice, ref: Ref, env: Env): readonly Effect[] {
    switch (message.type) {
      case "take":
        this.fill(message.rate, env.mono);
        return [{ type: "reply", to: ref, value: this.lend(message.need, message.rate) }];
      case "endBucket":
        return [{ type: "reply", to: ref, value: null }, { type: "stop" }];
      default:
        throw new Error(`a token bucket does not take ${message.type}`);
    }
  }

  private fill(rate: Rate, mono: number): void {
    if (this.rate === undefined) {
      this.tokens = rate.burst;
    } else {
      this.tokens = Math.min(rate.burst, this.tokens + ((mono - this.filledAt) * this.rate.perSec) / 1000);
    }
    this.rate = rate;
    this.filledAt = mono;
  }

  private lend(need: number, rate: Rate): Lent {
    // Rounding of the refill must not refuse the client that waited exactly as long as it was told.
    const whole = Math.floor(this.tokens + 1e-6);
    if (whole < 1) {
      const missing = Math.max(1, Math.min(need, rate.burst)) - this.tokens;
      return { tokens: 0, retryAfterMs: Math.max(1, Math.ceil((missing * 1000) / rate.perSec)) };
    }
    const spare = Math.floor((rate.perSec * loanMsMax) / 1000);
    const lent = Math.min(whole, need + spare);
    this.tokens -= lent;
    return { tokens: lent, retryAfterMs: 0 };
  }
}
