// The front's side of the token buckets. The bucket itself is an actor, so that a budget holds for the whole node; the front
// holds a slice that the bucket lent, and only an empty slice costs an ask. Requests that come while an ask is under way wait
// behind it in their order.
//
// The need of an ask names those that wait here and those that the caller says are right behind (`behind`), since a session does
// not start a frame before the one in front of it got through. What is lent may be less; then the bucket is empty, and those that
// were in the need are refused without another ask, each with the time at which the refill will have reached it.
//
// A batch is admitted as soon as there is one token and may overdraw: the debt is kept here as a negative slice and collected with
// the next ask. While it is open the bucket may reach its brim, and what would have flowed over pays the debt as well, as it
// would if the bucket itself were overdrawn.
//
// What a bucket lends beyond the need is at most 20 ms of refill. It stays here until it is used: letting it lapse would charge
// a client that publishes every 25 ms five times.
//
// If the shard of a bucket is down, the budget goes on alone, on a bucket of its own with a tenth of a second as its burst:
// publishing to the other shards must not stop because the bucket lived on this one, nor may the limit fall away.

import { type Address, bucketCell, type Lent } from "../actors/messages.ts";
import type { Config } from "../config.ts";
import { type Failure, failure, isFailure } from "../protocol/failure.ts";
import { jumpHash } from "../protocol/jump-hash.ts";
import type { Rate } from "../protocol/rate.ts";
import type { Clock } from "../runtime/clock.ts";
import type { System } from "../runtime/system.ts";
import type { Route } from "./router.ts";

const aloneMs = 100;

type Done = (refused: Failure | undefined) => void;

interface Waiting {
  readonly need: number;
  readonly done: Done;
  readonly behind: (() => number) | undefined;
}

export interface BudgetOptions {
  readonly system: System;
  readonly clock: Clock;
  /** Unique in the node: the bucket cell is named by it. */
  readonly name: string;
  readonly rate: Rate | "off";
  /** What an operator would change, for the refusal: `CONN_RATE`, `TOPIC_RATE`, `the rate of topic x`. */
  readonly setting: string;
}

export class Budget {
  readonly rate: Rate | "off";
  private readonly options: BudgetOptions;
  private slice = 0;
  private waiting: Waiting[] = [];
  private asking = false;
  private used = false;
  private over = false;
  /** Since when the bucket has been filling from nothing; undefined while it is not known to be empty. */
  private emptyAt: number | undefined;
  /** After an ask that got less than it needed: how many of its requests are still to come, and what those refused may expect. */
  private covered = 0;
  private promised = 0;
  /** While the bucket cannot be reached. */
  private alone: { tokens: number; at: number } | undefined;

  constructor(options: BudgetOptions) {
    this.options = options;
    this.rate = options.rate;
  }

  /**
   * Undefined: admitted at once. A failure: refused at once. "later": `done` gets either, after the calls before it. `behind` says
   * how many single events the caller holds back behind this one.
   */
  take(need: number, done: Done, behind?: () => number): undefined | Failure | "later" {
    if (this.rate === "off") return undefined;
    if (!this.asking) {
      if (this.slice >= 1) {
        this.slice -= need;
        this.covered = Math.max(0, this.covered - need);
        if (this.slice < 0) this.ask(this.rate);
        return undefined;
      }
      if (need === 1 && this.covered > 0) {
        const refused = this.refuseNext(this.rate, need);
        if (refused !== undefined) return refused;
      }
    }
    this.waiting.push({ need, done, behind });
    if (!this.asking) this.ask(this.rate);
    return "later";
  }

  /** Up to `need` tokens for deliveries, which may come in parts: how many, or 0 and after which time to ask again. */
  lend(need: number, done: (tokens: number, retryAfterMs: number) => void): void {
    const { rate } = this;
    if (rate === "off") {
      done(Number.POSITIVE_INFINITY, 0);
      return;
    }
    this.used = true;
    this.options.system.ask(this.address(), { type: "take", need, rate }, (answer) => {
      if (this.over) this.end();
      const { tokens, retryAfterMs } = isFailure(answer) ? this.lendAlone(rate, need) : answer;
      done(tokens, retryAfterMs);
    });
  }

  /** For what was admitted here and then refused elsewhere. */
  giveBack(count: number): void {
    if (this.rate !== "off") this.slice += count;
  }

  /** The bucket cell is not needed any more. Whoever still asks has just gone, and its cell is ended again after the answer. */
  end(): void {
    this.over = true;
    if (this.used) this.options.system.tell(this.address(), { type: "endBucket" });
    this.used = false;
  }

  private address(): Address {
    return { shard: jumpHash(this.options.name, this.options.system.shards), cell: bucketCell(this.options.name) };
  }

  private ask(rate: Rate): void {
    this.asking = true;
    this.used = true;
    // What this turn still brings joins the ask.
    this.options.clock.soon(() => {
      this.overflow(rate);
      const count = this.waiting.length;
      let need = -this.slice;
      for (const one of this.waiting) need += one.need + (one.behind?.() ?? 0);
      need = Math.ceil(need);
      this.options.system.ask(this.address(), { type: "take", need, rate }, (answer) => {
        if (!isFailure(answer)) this.alone = undefined;
        if (this.over) this.end();
        this.settle(rate, count, need, isFailure(answer) ? this.lendAlone(rate, need) : answer);
      });
    });
  }

  private overflow(rate: Rate): void {
    if (this.slice >= 0 || this.emptyAt === undefined) return;
    const full = (rate.burst * 1000) / rate.perSec;
    const over = this.options.clock.mono() - this.emptyAt - full;
    if (over <= 0) return;
    this.slice = Math.min(0, this.slice + (over * rate.perSec) / 1000);
    this.emptyAt += over;
  }

  private lendAlone(rate: Rate, need: number): Lent {
    const now = this.options.clock.mono();
    const most = Math.max(1, Math.min(rate.burst, (rate.perSec * aloneMs) / 1000));
    this.alone ??= { tokens: most, at: now };
    this.alone.tokens = Math.min(most, this.alone.tokens + ((now - this.alone.at) * rate.perSec) / 1000);
    this.alone.at = now;
    const whole = Math.floor(this.alone.tokens + 1e-6);
    if (whole < 1) {
      const missing = Math.max(1, Math.min(need, rate.burst)) - this.alone.tokens;
      return { tokens: 0, retryAfterMs: Math.ceil((missing * 1000) / rate.perSec) };
    }
    const tokens = Math.min(whole, need);
    this.alone.tokens -= tokens;
    return { tokens, retryAfterMs: 0 };
  }

  /** Decides for the first `count` that wait: they are what this ask was for. */
  private settle(rate: Rate, count: number, need: number, { tokens, retryAfterMs }: Lent): void {
    const now = this.options.clock.mono();
    const decided = this.waiting.slice(0, count);
    this.waiting = this.waiting.slice(count);
    let singles = 0;
    for (const one of decided) singles += one.need;
    this.covered = tokens < need ? Math.max(0, need + this.slice - singles) : 0;
    this.promised = 0;
    if (tokens >= need) this.emptyAt = undefined;
    else if (tokens > 0) this.emptyAt = now;
    // Nothing lent: the bucket says how long the whole need takes, at most a burst. Counted back from there it was empty.
    else this.emptyAt = now + retryAfterMs - (Math.min(Math.max(1, need), rate.burst) * 1000) / rate.perSec;
    this.slice += tokens;
    const verdicts = decided.map((one) => {
      if (this.slice < 1) return this.refuseNext(rate, one.need) ?? this.refusal(rate, 1);
      this.slice -= one.need;
      return undefined;
    });
    this.asking = false;
    if (this.waiting.length > 0) this.ask(rate);
    for (let i = 0; i < decided.length; i++) decided[i].done(verdicts[i]);
  }

  /** The refill pays the debt and then those refused, one after the other; undefined once it should have reached this one. */
  private refuseNext(rate: Rate, need: number): Failure | undefined {
    this.covered = Math.max(0, this.covered - need);
    const tokens = Math.max(0, -this.slice) + this.promised + 1;
    this.promised += need;
    const now = this.options.clock.mono();
    const wait = (this.emptyAt ?? now) + (tokens * 1000) / rate.perSec - now;
    return wait > 0 ? this.refusal(rate, wait) : undefined;
  }

  private refusal(rate: Rate, waitMs: number): Failure {
    const text = `over ${this.options.setting} (${rate.burst}/${rate.perSec})`;
    return failure("rate_limited", text, Math.max(1, Math.ceil(waitMs)));
  }
}

/** Makes budgets and keeps those of the topics, which all sessions and HTTP share. */
export class Budgets {
  private readonly options: { readonly system: System; readonly clock: Clock; readonly config: Config };
  private readonly topics = new Map<number, Budget>();

  constructor(options: { readonly system: System; readonly clock: Clock; readonly config: Config }) {
    this.options = options;
  }

  /** Under CONN_RATE. `name` is unique in the node; whoever asks for it ends it. */
  connection(name: string): Budget {
    return this.make(name, this.options.config.connRate, "CONN_RATE");
  }

  topic(route: Route): Budget {
    const { id, name, settings } = route.record;
    const rate = settings.rate ?? this.options.config.topicRate;
    const known = this.topics.get(id);
    if (known !== undefined && sameRate(known.rate, rate)) return known;
    known?.end();
    // A bucket keeps the rate it was made with, so another rate is another bucket.
    const bucket = rate === "off" ? `topic/${id}` : `topic/${id}/${rate.burst}/${rate.perSec}`;
    const budget = this.make(bucket, rate, settings.rate === undefined ? "TOPIC_RATE" : `the rate of topic ${name}`);
    this.topics.delete(id);
    this.topics.set(id, budget);
    if (this.topics.size > this.options.config.limits.topicsMax) {
      for (const [oldest, unused] of this.topics) {
        unused.end();
        this.topics.delete(oldest);
        break;
      }
    }
    return budget;
  }

  /** The topic is deleted, and its number will not come again. */
  forget(topicId: number): void {
    this.topics.get(topicId)?.end();
    this.topics.delete(topicId);
  }

  private make(name: string, rate: Rate | "off", setting: string): Budget {
    const { system, clock } = this.options;
    return new Budget({ system, clock, name, rate, setting });
  }
}

function sameRate(a: Rate | "off", b: Rate | "off"): boolean {
  if (a === "off" || b === "off") return a === b;
  return a.burst === b.burst && a.perSec === b.perSec;
}
