// One subscription of one connection: a seat at the lease table of each partition, and the window that they share. It outlives the
// tables: when a shard comes back or a table was started anew, it takes a new seat there, and the client notices nothing but
// redeliveries.

import type { Address, GroupOptions, Joined, Signal, Start } from "../actors/messages.ts";
import { type Failure, isFailure, isRetryable } from "../protocol/failure.ts";
import type { SubscribeOptions } from "../protocol/frames.ts";
import { positionText } from "../protocol/position.ts";
import type { Rate } from "../protocol/rate.ts";
import { type Clock, sleep, type Timer } from "../runtime/clock.ts";
import type { System } from "../runtime/system.ts";
import { type DeliveryRate, Seat } from "./delivery.ts";
import type { Outlet } from "./outlet.ts";
import type { Starts } from "./place.ts";
import type { Route, RoutePartition } from "./router.ts";
import { Slots } from "./slots.ts";

/** All live subscriptions, and whom a signal is for. Members are numbered over all connections and never twice. */
export class Members {
  readonly subscriptions = new Set<Subscription>();
  private readonly seats = new Map<number, { readonly seat: Seat; readonly subscription: Subscription }>();
  private last = 0;

  next(): number {
    return ++this.last;
  }

  set(seat: Seat, subscription: Subscription): void {
    this.seats.set(seat.member, { seat, subscription });
  }

  delete(seat: Seat): void {
    this.seats.delete(seat.member);
  }

  /** Signals for a seat that is no more are dropped: what they bring was not written, and goes back with the leave. */
  signal(signal: Signal): void {
    const found = this.seats.get(signal.member);
    if (found !== undefined) found.subscription.signal(found.seat, signal);
  }

  /** Those of one group of a topic. */
  of(topicId: number, group: string): Subscription[] {
    return [...this.subscriptions].filter((one) => one.group === group && one.route.record.id === topicId);
  }

  /** The tables of a shard are gone until it is up again. */
  shardDown(shard: number): void {
    for (const subscription of this.subscriptions) subscription.lost((seat) => seat.place.shard === shard);
  }

  shardUp(shard: number): void {
    for (const subscription of this.subscriptions) subscription.renew((seat) => seat.place.shard === shard);
  }

  cellRestarted({ shard, cell }: Address): void {
    for (const subscription of this.subscriptions) {
      subscription.renew(({ address }) => address.shard === shard && address.cell === cell);
    }
  }
}

export interface SubscriptionOptions {
  readonly system: System;
  readonly clock: Clock;
  readonly members: Members;
  readonly outlet: Outlet;
  readonly rate: DeliveryRate;
  /** Whether the node delivers at all by rate: Infinity where CONN_RATE is off, else 0, and tables ask. */
  readonly firstTokens: number;
  readonly route: Route;
  readonly group: string;
  readonly ackTimeoutMs: number;
  readonly maxInflight: number;
  readonly batchSize: number;
  readonly format: "json" | "batch";
  readonly handle: number;
  /** In words, for the operator. */
  readonly who: string;
  /** It is over, and not because the client wanted so. */
  readonly onEnded: (failure: Failure) => void;
}

/** What the front knows of a subscription, for the operator. */
export interface SubscriptionFacts {
  readonly who: string;
  /** How many events it may hold at a time. */
  readonly window: number;
  /** For how long it has been paused, and for how long its socket has taken too little. */
  readonly pausedMs?: number;
  readonly stalledMs?: number;
  readonly unsentBytes: number;
  /** Of deliveries to its connection, and for how much longer nothing is left of it. */
  readonly rate: Rate | "off";
  readonly rateEmptyMs?: number;
  /** By partition, its number at the lease table; undefined while it has no seat there. */
  readonly members: readonly (number | undefined)[];
}

const backoffMsMin = 50;
const backoffMsMax = 5000;

export class Subscription {
  route: Route;
  readonly topic: string;
  readonly group: string;
  readonly handle: number;
  readonly seats: Seat[];
  private readonly options: SubscriptionOptions;
  private readonly slots: Slots<Seat>;
  private readonly retries = new Map<number, { tries: number; timer: Timer | undefined }>();
  private status: "joining" | "live" | "over" = "joining";
  private effective: Partial<GroupOptions> = {};
  private readonly floors: number[];
  /** Since when. */
  private pausedAt: number | undefined;
  private stalledAt: number | undefined;
  private halted = false;
  private timer: Timer | undefined;
  private readonly refusedFlows = new Map<Seat, Promise<void>>();

  constructor(options: SubscriptionOptions) {
    this.options = options;
    this.route = options.route;
    this.topic = options.route.topic;
    this.group = options.group;
    this.handle = options.handle;
    this.floors = options.route.partitions.map(() => 0);
    this.slots = new Slots({
      max: options.maxInflight,
      grant: (seat, slots) => seat.grant({ slots }),
      recall: (seat, slots) => options.system.tell(seat.address, { type: "recall", member: seat.member, slots }),
    });
    this.seats = options.route.partitions.map((place) => this.sit(place));
    options.members.subscriptions.add(this);
  }

  /**
   * Joins at the first partition, which decides about the options, then at all others with what it decided. Nothing is delivered before
   * `begin`. After a failure no seat is left.
   */
  async join(
    asked: SubscribeOptions["group"],
    starts: Starts,
  ): Promise<{ readonly resumed: boolean; readonly position: string } | Failure> {
    const lead = await this.joinAt(this.seats[0], asked, starts[0] ?? { kind: "earliest" }, false);
    if (isFailure(lead)) {
      this.leave("unsubscribe");
      return lead;
    }
    // The group was ended before the answer was there: a seat taken from now on would be left by nobody.
    if (this.ending !== undefined) return this.ending;
    this.effective = lead.options;
    const others = await Promise.all(
      this.seats
        .slice(1)
        .map((seat, i) => this.joinAt(seat, lead.options, starts[i + 1] ?? { kind: "earliest" }, false)),
    );
    const failed = others.find(isFailure);
    if (failed !== undefined) {
      this.leave("unsubscribe");
      return failed;
    }
    return { resumed: lead.resumed, position: positionText(this.floors) };
  }

  /** Why the node ended it. */
  ending: Failure | undefined;

  /** Lets the events come: the OK to the SUBSCRIBE is written. */
  begin(): void {
    if (this.status !== "joining") return;
    this.status = "live";
    for (const seat of this.seats) {
      if (seat.status === "joined") this.open(seat);
      // Lost between its join and this moment, while nobody delivered to it.
      else if (seat.status === "gone") this.rejoin(seat.place.partition);
    }
  }

  /** `pause`: the client wants nothing new. Resolves when nothing that was under way before can come any more. */
  async pause(paused: boolean): Promise<void> {
    this.pausedAt = paused ? (this.pausedAt ?? this.options.clock.mono()) : undefined;
    await Promise.all(this.seats.map((seat) => this.sureFlow(seat)));
  }

  /** The node is being shut down: leases go on, deliveries end. */
  halt(): void {
    this.halted = true;
    this.tellFlow();
  }

  /** Whether the socket takes what is sent. */
  stall(stalled: boolean): void {
    if (stalled === (this.stalledAt !== undefined)) return;
    this.stalledAt = stalled ? this.options.clock.mono() : undefined;
    this.tellFlow();
    if (!stalled) for (const seat of this.seats) seat.topUp();
  }

  facts(): SubscriptionFacts {
    const { who, maxInflight, outlet, rate, clock } = this.options;
    const now = clock.mono();
    return {
      who,
      window: maxInflight,
      ...(this.pausedAt === undefined ? {} : { pausedMs: now - this.pausedAt }),
      ...(this.stalledAt === undefined ? {} : { stalledMs: now - this.stalledAt }),
      unsentBytes: outlet.unsent,
      rate: rate.rate,
      ...(rate.emptyUntil === undefined ? {} : { rateEmptyMs: Math.max(0, rate.emptyUntil - now) }),
      members: this.seats.map(({ status, member }) => (status === "joined" ? member : undefined)),
    };
  }

  leave(cause: "unsubscribe" | "disconnect" | "shutdown"): Promise<unknown> {
    if (this.status === "over") return Promise.resolve();
    this.status = "over";
    this.options.members.subscriptions.delete(this);
    this.timer?.cancel();
    for (const { timer } of this.retries.values()) timer?.cancel();
    const { system } = this.options;
    return Promise.all(
      this.seats.map((seat) => {
        const { status, member } = seat;
        // What was handed to a socket that lives on leaves before the OK to the UNSUBSCRIBE, whether or not it has been told so.
        const written = cause === "unsubscribe" ? seat.sent : seat.written;
        this.vacate(seat);
        if (status === "new" || status === "gone") return null;
        const message = { type: "leave", member, written, cause } as const;
        return system.request(seat.address, message).then((answer) => {
          // Not told, the table would lease events to nobody for ever.
          if (isFailure(answer) && answer.code === "overloaded") system.tell(seat.address, message);
        });
      }),
    );
  }

  /** Tables that cannot be reached: what lies there is lost, and others may use its slots. */
  lost(there: (seat: Seat) => boolean): void {
    for (const seat of this.seats) if (seat.status === "joined" && there(seat)) this.vacate(seat);
  }

  /** Tables that were started anew and have forgotten us. */
  renew(there: (seat: Seat) => boolean): void {
    for (const seat of [...this.seats]) {
      if (!there(seat)) continue;
      if (this.status === "live") this.rejoin(seat.place.partition);
      else if (seat.status === "joined") this.vacate(seat);
    }
  }

  /** The topic has more partitions than when we joined. */
  grow(route: Route): void {
    const known = this.route.partitions.length;
    if (this.status !== "live" || route.record.id !== this.route.record.id || route.partitions.length <= known) return;
    this.route = route;
    for (const place of route.partitions.slice(known)) {
      const seat = this.sit(place);
      this.vacate(seat);
      this.seats.push(seat);
      this.floors.push(0);
      this.rejoin(place.partition);
    }
    // The only one had all slots, and what it wanted was not noted.
    if (known === 1) this.slots.want(this.seats[0], this.options.clock.mono());
  }

  private rejoin(partition: number): void {
    if (this.status !== "live") return;
    const old = this.seats[partition];
    if (old.status !== "gone") {
      // Should it be known there after all, it must not keep its leases.
      const { member, written } = old;
      this.options.system.tell(old.address, { type: "leave", member, written, cause: "disconnect" });
      this.vacate(old);
    }
    const retry = this.retries.get(partition) ?? { tries: 0, timer: undefined };
    retry.timer?.cancel();
    retry.timer = undefined;
    this.retries.set(partition, retry);
    const seat = this.sit(old.place);
    this.seats[partition] = seat;
    // Only a group that is not stored would begin anew; then it begins where it was when we joined.
    const start: Start = { kind: "offset", offset: this.floors[partition] };
    void this.joinAt(seat, this.effective, start, true).then((joined) => {
      if (this.seats[partition] !== seat || this.status !== "live") return;
      if (!isFailure(joined)) {
        this.retries.delete(partition);
        // The answer and the news that the table is lost again may have crossed.
        if (seat.status === "joined") this.open(seat);
        return;
      }
      if (!isRetryable(joined) && joined.code !== "internal") {
        this.end(joined);
        return;
      }
      this.vacate(seat);
      const wait = Math.min(backoffMsMax, backoffMsMin * 2 ** retry.tries++);
      const { clock } = this.options;
      retry.timer = clock.after(wait + clock.random(backoffMsMin), () => this.rejoin(partition), { background: true });
    });
  }

  signal(seat: Seat, signal: Signal): void {
    const now = this.options.clock.mono();
    switch (signal.type) {
      case "events":
        seat.deliver(signal);
        if (this.seats.length > 1) {
          this.slots.delivered(seat, now);
          this.watch(now);
        }
        return;
      case "want":
        if (signal.tokens) this.options.rate.want(seat);
        if (signal.bytes) seat.wantBytes();
        // With one partition all slots lie there already.
        if (signal.slots && this.seats.length > 1) {
          this.slots.want(seat, now);
          this.watch(now);
        }
        return;
      case "overdue":
        // It came behind the events that it asks for.
        this.options.system.tell(seat.address, { type: "handed", member: seat.member, handed: seat.sent });
        return;
      case "release":
        this.slots.released(seat, signal.slots, now);
        this.watch(now);
        return;
      case "ended":
        this.end(signal.failure);
        return;
      default:
        signal satisfies never;
    }
  }

  end(failure: Failure): void {
    if (this.status === "over") return;
    this.ending = failure;
    void this.leave("unsubscribe");
    this.options.onEnded(failure);
  }

  private sit(place: RoutePartition): Seat {
    const { system, outlet, members, group, route } = this.options;
    const seat = new Seat({ system, outlet, place, group, member: members.next(), seats: route.partitions.length });
    members.set(seat, this);
    return seat;
  }

  private async joinAt(
    seat: Seat,
    options: Partial<GroupOptions>,
    start: Start,
    rejoin: boolean,
  ): Promise<Joined | Failure> {
    const { system, ackTimeoutMs, batchSize, format, handle, who } = this.options;
    const { member } = seat;
    seat.status = "joining";
    const own = { ackTimeoutMs, batchSize, format, handle, who };
    const joined = await system.request(seat.address, { type: "join", member, options, start, ...own, rejoin });
    if (isFailure(joined) || seat.status !== "joining") return joined;
    seat.status = "joined";
    if (!rejoin) this.floors[seat.place.partition] = joined.floor;
    return joined;
  }

  private open(seat: Seat): void {
    const single = this.seats.length === 1;
    this.slots.add(seat);
    if (single) seat.held = this.slots.max;
    if (!this.flows) this.options.system.tell(seat.address, this.flow(seat));
    seat.begin(seat.held, this.options.firstTokens);
  }

  private vacate(seat: Seat): void {
    seat.status = "gone";
    this.options.members.delete(seat);
    this.options.rate.forget(seat);
    this.slots.remove(seat);
    if (this.status === "live" && this.seats.length > 1) this.slots.serve(this.options.clock.mono());
  }

  private get flows(): boolean {
    return this.pausedAt === undefined && this.stalledAt === undefined && !this.halted;
  }

  private flow(seat: Seat) {
    const stalled = this.stalledAt !== undefined;
    return { type: "flow", member: seat.member, open: this.flows, stalled, written: seat.written } as const;
  }

  /** Asks until the table has taken it. What is sent later says what is so by then, so all that were refused share one more try. */
  private async sureFlow(seat: Seat): Promise<void> {
    if (seat.status !== "joined") return;
    const { system, clock } = this.options;
    const answer = await system.request(seat.address, this.flow(seat));
    // Also after its deadline: a front that stood still for so long hears that before it hears what the table had posted.
    if (!isFailure(answer) || !isRetryable(answer)) return;
    let again = this.refusedFlows.get(seat);
    if (again === undefined) {
      again = sleep(clock, answer.retry_after_ms ?? backoffMsMin).then(() => {
        this.refusedFlows.delete(seat);
        return this.sureFlow(seat);
      });
      this.refusedFlows.set(seat, again);
    }
    await again;
  }

  private tellFlow(): void {
    for (const seat of this.seats) {
      if (seat.status === "joined") this.options.system.tell(seat.address, this.flow(seat));
    }
  }

  /** Looks at the slots again when time alone may have freed one. */
  private watch(now: number): void {
    if (this.timer !== undefined) return;
    const wait = this.slots.waitMs(now);
    if (wait === undefined) return;
    const look = () => {
      this.timer = undefined;
      if (this.status !== "live") return;
      const later = this.options.clock.mono();
      this.slots.serve(later);
      this.watch(later);
    };
    this.timer = this.options.clock.after(wait, look, { background: true });
  }
}
