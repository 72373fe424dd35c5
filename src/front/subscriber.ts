// SUBSCRIBE and everything about the subscriptions of one connection.

import type { SettleBatch } from "../protocol/batch.ts";
import { type Failure, failure, isFailure } from "../protocol/failure.ts";
import type { AckFrame, Corr, MemberFrame, ModackFrame, NackFrame, SubscribeFrame } from "../protocol/frames.ts";
import type { Rights } from "./auth.ts";
import type { Budget } from "./budget.ts";
import { DeliveryRate } from "./delivery.ts";
import type { Caller, Hall, Step } from "./hall.ts";
import { type Starts, startsOf } from "./place.ts";
import { readCursor } from "./reading.ts";
import type { Route } from "./router.ts";
import { Subscription } from "./subscription.ts";

const handleMax = 0xffff;
/** Of the member; the group's own defaults are the lease table's. */
const batchSizeDefault = 100;
const leasesPerWeight = 100;

export class Subscriber {
  private readonly hall: Hall;
  private readonly caller: Caller;
  private readonly budget: Budget;
  private readonly rate: DeliveryRate;
  private readonly byName = new Map<string, Subscription>();
  private readonly byHandle = new Map<number, Subscription>();
  private lastHandle = 0;
  private stalled = false;

  constructor(hall: Hall, caller: Caller) {
    this.hall = hall;
    this.caller = caller;
    this.budget = hall.budgets.connection(`deliver/${caller.id}`);
    this.rate = new DeliveryRate(this.budget, hall.clock);
  }

  get count(): number {
    return this.byName.size;
  }

  // ------------------------------------------------------------------------------------------------------ the whole of them

  /** New credentials: what they do not cover ends. */
  restrict(rights: Rights): void {
    for (const subscription of [...this.byName.values()]) {
      const { topic, group } = subscription;
      if (!rights.subscribe(topic, group)) subscription.end(failure("forbidden", `no right to subscribe to ${topic}`));
    }
  }

  halt(): void {
    for (const subscription of this.byName.values()) subscription.halt();
  }

  stall(stalled: boolean): void {
    this.stalled = stalled;
    for (const subscription of this.byName.values()) subscription.stall(stalled);
  }

  close(cause: "disconnect" | "shutdown"): Promise<unknown> {
    this.hall.settling.flush();
    const left = Promise.all([...this.byName.values()].map((subscription) => subscription.leave(cause)));
    this.byName.clear();
    this.byHandle.clear();
    this.budget.end();
    return left;
  }

  // ------------------------------------------------------------------------------------------------------------- one of them

  subscribe(frame: SubscribeFrame): Step {
    const { caller, hall } = this;
    const { topic, group, corr } = frame;
    if (caller.draining) return caller.refuse(failure("shutting_down", "the node is shutting down"), corr);
    if (!caller.rights.subscribe(topic, group)) {
      return caller.refuse(failure("forbidden", `no right to subscribe to ${topic} as ${group}`), corr);
    }
    if (this.byName.has(nameOf(topic, group))) {
      return caller.refuse(failure("already_subscribed", `already subscribed to ${topic} as ${group}`), corr);
    }
    const most = hall.config.limits.subscriptionsPerConnectionMax;
    if (this.byName.size >= most) {
      return caller.refuse(failure("limit", `a connection has at most ${most} subscriptions`), corr);
    }
    return caller.hold(corr, this.join(frame), (joined) => {
      if (isFailure(joined)) return caller.refuse(joined, corr);
      const { subscription, resumed, position } = joined;
      if (caller.closed || caller.draining) {
        void subscription.leave(caller.closed ? "disconnect" : "shutdown");
        return caller.refuse(failure("shutting_down", "the node is shutting down"), corr);
      }
      if (subscription.ending !== undefined) return caller.refuse(subscription.ending, corr);
      this.byName.set(nameOf(topic, group), subscription);
      if (caller.batches) this.byHandle.set(subscription.handle, subscription);
      const handle = caller.batches ? { handle: subscription.handle } : {};
      caller.ok<"SUBSCRIBE">(corr, { resumed, position, ...handle });
      if (this.stalled) subscription.stall(true);
      subscription.begin();
      return "through";
    });
  }

  /** UNSUBSCRIBE, PAUSE, RESUME. */
  steer({ op, topic, group, corr }: MemberFrame): Step {
    const { caller } = this;
    const subscription = this.byName.get(nameOf(topic, group));
    if (subscription === undefined) return this.notSubscribed(topic, group, corr);
    // What was acked before must be settled before.
    this.hall.settling.flush();
    caller.began();
    const done = () => {
      caller.ended();
      caller.ok(corr);
    };
    if (op === "UNSUBSCRIBE") {
      this.remove(subscription);
      void subscription.leave("unsubscribe").then(done);
    } else {
      void subscription.pause(op === "PAUSE").then(done);
    }
    return "through";
  }

  /** ACK, NACK, MODACK. */
  settle(frame: AckFrame | NackFrame | ModackFrame): Step {
    const { caller, hall } = this;
    const { topic, group, id, corr } = frame;
    const subscription = this.byName.get(nameOf(topic, group));
    if (subscription === undefined) return this.notSubscribed(topic, group, corr);
    const lease = frame.lease === undefined ? {} : { lease: frame.lease };
    // One whose partition is not known is asked of all of them, and counts as that many.
    let weight = 1;
    caller.began();
    const more = (asks: number) => {
      weight += asks;
      caller.began(asks);
    };
    const answer = (result: null | "stale" | Failure) => {
      caller.ended(weight);
      if (result === null) caller.ok(corr);
      else if (result === "stale") caller.ok<"ACK">(corr, { stale: true });
      else caller.refuse(result, corr);
    };
    switch (frame.op) {
      case "ACK":
        hall.settling.settle(subscription, { id, ack: true, ...lease }, more, answer);
        break;
      case "NACK": {
        const reason = frame.reason === undefined ? {} : { reason: frame.reason };
        const delay = frame.delayMs === undefined ? {} : { delayMs: frame.delayMs };
        hall.settling.settle(subscription, { id, ack: false, ...lease, ...reason, ...delay }, more, answer);
        break;
      }
      case "MODACK":
        hall.settling.extend(subscription, { id, extendMs: frame.extendMs, ...lease }, more, answer);
        break;
      default:
        frame satisfies never;
    }
    return "through";
  }

  settleRuns(batch: SettleBatch): Step {
    const { caller } = this;
    const { handle, corr } = batch;
    const subscription = this.byHandle.get(handle);
    if (subscription === undefined) {
      return caller.refuse(failure("not_subscribed", `no subscription has the handle ${handle}`), corr);
    }
    const weight = weightOf(batch);
    caller.began(weight);
    this.hall.settling.runs(subscription, batch, (result) => {
      caller.ended(weight);
      if (isFailure(result)) caller.refuse(result, corr);
      else caller.say(JSON.stringify({ op: "OK", corr, ...(result.length === 0 ? {} : { lost: result }) }));
    });
    return "through";
  }

  private async join(
    frame: SubscribeFrame,
  ): Promise<{ readonly subscription: Subscription; readonly resumed: boolean; readonly position: string } | Failure> {
    const { hall, caller } = this;
    const { topic, group, options } = frame;
    const route = hall.router.peek(topic) ?? (await hall.router.resolve(topic, { create: true }));
    if (isFailure(route)) return route;
    const starts = await this.starts(route, frame);
    if (isFailure(starts)) return starts;
    if (caller.closed) return failure("unavailable", "the connection is closed");
    const handle = this.nextHandle();
    if (handle === undefined) return failure("limit", `a connection has at most ${handleMax} subscriptions`);
    const { config } = hall;
    const subscription: Subscription = new Subscription({
      ...hall,
      outlet: caller.outlet,
      rate: this.rate,
      firstTokens: config.connRate === "off" ? Number.POSITIVE_INFINITY : 0,
      route,
      group,
      ackTimeoutMs: options.ackTimeoutMs ?? config.ackTimeoutMs,
      maxInflight: options.maxInflight ?? config.maxInflight,
      batchSize: options.batchSize ?? batchSizeDefault,
      format: caller.batches ? "batch" : "json",
      handle,
      who: caller.who,
      onEnded: (why) => this.ended(subscription, why),
    });
    const joined = await subscription.join(options.group, starts);
    if (!isFailure(joined)) return { subscription, ...joined };
    if (joined.code === "unknown_topic") hall.router.invalidate(route);
    return joined;
  }

  /** `from` counts only for a group without a cursor: an id that is gone must not keep an old group out. */
  private async starts(route: Route, { group, options }: SubscribeFrame): Promise<Starts | Failure> {
    const { system } = this.hall;
    const starts = await startsOf(system, route, options.from);
    if (!isFailure(starts) || starts.code !== "unknown_id") return starts;
    const cursor = await readCursor(system, route, group);
    if (isFailure(cursor)) return cursor;
    return cursor.exists ? route.partitions.map(() => ({ kind: "latest" }) as const) : starts;
  }

  private nextHandle(): number | undefined {
    if (this.byHandle.size >= handleMax) return undefined;
    do this.lastHandle = (this.lastHandle % handleMax) + 1;
    while (this.byHandle.has(this.lastHandle));
    return this.lastHandle;
  }

  private ended(subscription: Subscription, { code, msg }: Failure): void {
    const { topic, group } = subscription;
    // Before its OK the answer to the SUBSCRIBE says it.
    if (this.byName.get(nameOf(topic, group)) !== subscription) return;
    this.remove(subscription);
    this.hall.counters.refused(code);
    this.caller.say(JSON.stringify({ op: "ERR", code, msg, topic, group }));
  }

  private remove(subscription: Subscription): void {
    this.byName.delete(nameOf(subscription.topic, subscription.group));
    this.byHandle.delete(subscription.handle);
  }

  private notSubscribed(topic: string, group: string, corr: Corr | undefined): Step {
    return this.caller.refuse(failure("not_subscribed", `not subscribed to ${topic} as ${group}`), corr);
  }
}

/** Neither name can contain a space. */
function nameOf(topic: string, group: string): string {
  return `${topic} ${group}`;
}

/** In plain requests: each run crosses the threads as an object, and each lease is looked at. */
function weightOf({ runs }: SettleBatch): number {
  let leases = 0;
  for (const { count } of runs) leases += count;
  return runs.length + Math.floor(leases / leasesPerWeight);
}
