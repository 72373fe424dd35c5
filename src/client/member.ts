// One topic of a subscription: a member of the group there, on whichever connection there is. It subscribes, again on each new
// connection, takes the events, and keeps their leases alive for as long as they wait or are worked on.
//
// When the connection is lost, so are the leases. What had not begun is dropped: it comes again. A handler that runs goes on, and if its
// event comes again to this very member it gets the new lease instead of a second handler; so it does when the lease had lapsed. If it
// ends before, its event is remembered for a while, and acked when it comes. Where the group was moved, its event is handled anew, after it.

import type { AckResult } from "../bus/event-bus.ts";
import type { EventsBatch } from "../protocol/batch.ts";
import { isFailure, isRetryable } from "../protocol/failure.ts";
import { positionText } from "../protocol/position.ts";
import { Arrival } from "./arrival.ts";
import { backoffMs } from "./backoff.ts";
import type { ClientClock, Timer } from "./clock.ts";
import type { Connection, Ok } from "./connection.ts";
import { ClosedError, type NarthexError, refused, TimeoutError } from "./errors.ts";
import { ackResult, type Details, type Done, HeldEvent, type Outcome, type Verb } from "./held-event.ts";
import { connectionLost, leaseLost, Settler } from "./settler.ts";
import { within } from "./within.ts";

/** Whose member it is. */
export interface MemberOwner {
  /** Whether events are still wanted. */
  readonly open: boolean;
  joined(): void;
  /** There is something to `shift`. */
  arrived(): void;
  /** The node will not have it. */
  refused(error: NarthexError): void;
  /** An ack that this client made by itself was answered. */
  acked: Done;
}

export interface MemberOptions {
  readonly clock: ClientClock;
  readonly topic: string;
  readonly group: string;
  /** Those of SUBSCRIBE. */
  readonly wire: { readonly [name: string]: unknown };
  readonly autoExtend: boolean;
  /** How long a question may take. */
  readonly requestMs: number;
  readonly owner: MemberOwner;
}

/** Events that were handled and could not be acked: how many are remembered, and for how long. */
const finishedMax = 10_000;
const finishedMs = 60_000;
const leaseMsDefault = 30_000;
const gapsMin = 100;
/** How a verb is said in a frame of its own, and the name of its time there. */
const questions = { ack: ["ACK", "delay_ms"], nack: ["NACK", "delay_ms"], extend: ["MODACK", "extend_ms"] } as const;

export class Member {
  readonly topic: string;
  readonly group: string;
  /** Whether the group had a cursor; undefined until it was joined for the first time. */
  resumed: boolean | undefined;
  paused = false;
  readonly #options: MemberOptions;
  readonly #clock: ClientClock;
  readonly #settler: Settler;
  #connection: Connection | undefined;
  #handle: number | undefined;
  #tries = 0;
  #retry: Timer | undefined;
  #watch: Timer | undefined;
  #queue: HeldEvent[] = [];
  #head = 0;
  /**
   * What is out, with gaps that are swept out when there are many. (A Map costs more than it looks: tables that it has outgrown are held
   * by older ones until a full collection, and with them all that was in them.)
   */
  readonly #held: HeldEvent[] = [];
  #gaps = 0;
  /** The epoch of the leases of each partition: a shard that was opened anew has another, and knows none of the leases before. */
  readonly #epochs: number[] = [];
  /** The highest offset that came, of each partition: nothing behind it can have come before. */
  readonly #top: number[] = [];
  /** What was handled and could not be acked, by its key, and until when. */
  readonly #finished = new Map<string, number>();
  /** Of an ephemeral group, which the node may forget: what comes next in each partition, and what came and is not settled. */
  readonly #next: Map<number, number> | undefined;
  readonly #owed = new Map<string, HeldEvent>();

  constructor(options: MemberOptions) {
    this.#options = options;
    this.topic = options.topic;
    this.group = options.group;
    this.#clock = options.clock;
    const leaseMs = (options.wire.ackTimeoutMs as number | undefined) ?? leaseMsDefault;
    this.#settler = new Settler({ ...options, leaseMs });
    if (options.wire.ephemeral === true) this.#next = new Map();
  }

  // ------------------------------------------------------------------------------------------------------------- connection

  join(connection: Connection): void {
    this.#connection = connection;
    this.#tries = 0;
    this.#subscribe();
  }

  lost(): void {
    this.#detach();
    this.#settler.cut(connectionLost());
    this.#setAdrift(this.#all());
  }

  #setAdrift(list: readonly HeldEvent[]): void {
    const why = connectionLost();
    for (const held of list) {
      held.gone ??= why;
      if (held.stage !== "running") this.forget(held);
    }
  }

  /** Over, at once: by the node's decision or with the client. */
  cut(why: NarthexError): void {
    this.#detach();
    this.#settler.cut(why);
    for (const held of this.#all()) {
      held.lose(why);
      this.forget(held);
    }
    this.#finished.clear();
  }

  /** Nothing new is wanted, and what waits goes back; so does what still comes before the PAUSE is answered. */
  halt(): void {
    this.paused = true;
    this.#retry?.cancel();
    this.#tellPaused(() => undefined);
    this.#putBack();
  }

  async leave(): Promise<void> {
    // The PAUSE is answered then too, so that nothing is under way any more that would count as an attempt.
    await this.#settler.idle();
    // Right behind a SUBSCRIBE that is not answered yet it is in order too: frames are taken one after the other.
    const connection = this.#connection;
    if (connection !== undefined) {
      await new Promise<void>((resolve) => connection.ask(this.#frame("UNSUBSCRIBE"), () => resolve()));
    }
    this.cut(new ClosedError("closed", "the subscription was closed"));
  }

  #detach(): void {
    if (this.#handle !== undefined) this.#connection?.ignore(this.#handle);
    this.#connection = undefined;
    this.#handle = undefined;
    this.#retry?.cancel();
    this.#watch?.cancel();
    this.#watch = undefined;
    this.#drop();
  }

  /** Nobody here has begun with it: said while its lease lives, it is no attempt. */
  #putBack(): void {
    for (const held of this.#queue) {
      const untouched = held.stage === "waiting" && held.settling === undefined && !held.settled;
      if (untouched && held.gone === undefined) this.#settler.add(held, "release", {}, () => undefined);
    }
    this.#drop();
  }

  #drop(): void {
    for (const held of this.#queue.splice(0)) if (held.stage === "waiting") this.forget(held);
    this.#head = 0;
  }

  #frame(op: string): { readonly op: string; readonly topic: string; readonly group: string } {
    return { op, topic: this.topic, group: this.group };
  }

  // ------------------------------------------------------------------------------------------------------------ subscribing

  #subscribe(): void {
    const connection = this.#connection;
    // Behind an UNSUBSCRIBE it would be for ever.
    if (!this.#options.owner.open) return;
    connection?.ask({ ...this.#frame("SUBSCRIBE"), opts: this.#wire() }, (answer) => {
      if (this.#connection !== connection || answer === "lost") return;
      if (!isFailure(answer)) {
        this.#subscribed(connection, answer as Ok);
      } else if (isRetryable(answer)) {
        const pause = backoffMs(this.#clock, this.#tries++, answer.retry_after_ms);
        this.#retry = this.#clock.after(pause, () => this.#subscribe(), this.resumed !== undefined);
      } else {
        this.#connection = undefined;
        this.#options.owner.refused(refused(answer));
      }
    });
  }

  #subscribed(connection: Connection, { handle, resumed, position }: Ok): void {
    this.#handle = handle as number;
    this.#settler.connected({ connection, handle: this.#handle });
    connection.receive(this.#handle, (batch) => this.#take(batch));
    // What was paused stays so; until the node knows, what comes waits here.
    if (this.paused) this.#tellPaused(() => undefined);
    const floors = String(position)
      .split(",")
      .map((place) => place.split(":").map(Number));
    if (this.resumed === undefined) {
      this.resumed = resumed as boolean;
      for (const [partition, floor] of floors) this.#next?.set(partition, floor);
      this.#options.owner.joined();
      return;
    }
    // Below the floor all is settled, only the answer was lost. If it comes again the group was moved, and it is to be handled again.
    const floorOf = new Map(floors as [number, number][]);
    for (const key of this.#finished.keys()) {
      const [partition, offset] = key.split(":").map(Number);
      if (offset < (floorOf.get(partition) ?? 0)) this.#finished.delete(key);
    }
  }

  /** The group was moved by this client. */
  sought(): void {
    this.#finished.clear();
    for (const held of this.#all()) {
      held.outdated = true;
      if (held.gone !== undefined) held.lose(leaseLost());
    }
  }

  /**
   * A group goes on at its cursor, whatever `from` says. One that is ephemeral may be gone with its last connection and begins where
   * this member needs it to. (What others of the group held at that moment, nobody can say.)
   */
  #wire(): { readonly [name: string]: unknown } {
    const { wire } = this.#options;
    if (this.#next === undefined || this.#next.size === 0) return wire;
    const { ts, afterId, ...rest } = wire;
    const wanted = new Map(this.#next);
    for (const { partition, offset } of this.#owed.values()) {
      wanted.set(partition, Math.min(offset, wanted.get(partition) ?? offset));
    }
    return { ...rest, from: "offsets", offsets: positionText(wanted) };
  }

  /** Of no connection it is remembered, and said when there is one. */
  async steer(op: "PAUSE" | "RESUME"): Promise<void> {
    const { owner, requestMs } = this.#options;
    this.paused = op === "PAUSE";
    owner.arrived();
    const told = new Promise<Outcome>((resolve) => this.#tellPaused(resolve));
    const outcome = await within(this.#clock, requestMs, told);
    if (outcome === undefined) throw new TimeoutError("timeout", `no answer to ${op} within ${requestMs} ms`);
    if (typeof outcome !== "string" && outcome.code !== "connection_lost") throw outcome;
  }

  #tellPaused(done: (outcome: Outcome) => void): void {
    // What is so when it is sent: a refused PAUSE must not be said again behind a RESUME.
    this.#settler.ask(() => ({ op: this.paused ? "PAUSE" : "RESUME" }), done);
  }

  // -------------------------------------------------------------------------------------------------------------- events in

  /** The next event that waits, in the order of the log. */
  shift(): HeldEvent | undefined {
    while (!this.paused && this.#head < this.#queue.length) {
      const held = this.#queue[this.#head++];
      if (this.#head === this.#queue.length) {
        this.#queue = [];
        this.#head = 0;
      }
      if (held.gone === undefined && held.stage === "waiting") return held;
    }
    return undefined;
  }

  #take(batch: EventsBatch): void {
    const { owner } = this.#options;
    const { partition, pack } = batch;
    this.#settler.leaseMs = batch.ackDeadlineMs;
    const arrival = new Arrival(this.topic, batch);
    const now = this.#clock.mono();
    const { epoch } = batch;
    if (epoch !== this.#epochs[partition]) {
      this.#epochs[partition] = epoch;
      this.#setAdrift(this.#all().filter((held) => held.partition === partition && held.settling === undefined));
    }
    const before = new Map<number, HeldEvent>();
    if (batch.firstOffset <= this.#top[partition]) {
      for (const held of this.#held) if (held.kept && held.partition === partition) before.set(held.offset, held);
    }
    const last = batch.firstOffset + pack.count - 1;
    this.#top[partition] = Math.max(last, this.#top[partition] ?? 0);
    for (let i = 0; i < pack.count; i++) {
      this.#admit(arrival, i, now + batch.ackDeadlineMs, before.get(batch.firstOffset + i));
    }
    this.#look();
    if (owner.open) owner.arrived();
    else this.#putBack();
  }

  /** `before`: what is held here of the same offset. Of a lease that lapsed unnoticed several copies may wait in the socket. */
  #admit(arrival: Arrival, index: number, until: number, before: HeldEvent | undefined): void {
    const same = before !== undefined && before.key === arrival.key(index) ? before : undefined;
    // Where the group was moved attempts begin anew.
    const isNext = same !== undefined && arrival.batch.attempt > same.attempt;
    const open = same?.stage !== "returned" && same?.settling === undefined ? same : undefined;
    const again = isNext || open?.gone?.code === "connection_lost";
    if (open !== undefined && (open.stage === "waiting" || (again && !open.outdated))) {
      open.adopt(arrival, index, until);
      return;
    }
    // Its handler returned without settling it: what is said of the event from now on means the new lease.
    if (isNext && same.stage === "returned" && same.settling === undefined) {
      same.lose(leaseLost());
      this.forget(same);
    }
    const held = new HeldEvent(this, arrival, index, until);
    this.#held.push(held);
    this.#owe(held);
    if (open !== undefined) {
      open.lose(leaseLost());
      open.outdated = true;
      open.heir = held;
    } else if ((isNext && same.settling === "ack") || (this.#finished.size > 0 && this.#wasFinished(held.key))) {
      held.stage = "returned";
      this.settle(held, "ack", {}, this.#options.owner.acked);
    } else {
      this.#queue.push(held);
    }
  }

  // ---------------------------------------------------------------------------------------------------------------- leases

  settle(held: HeldEvent, verb: Verb, details: Details, done: Done): void {
    if (held.gone !== undefined) {
      done(held, held.gone);
    } else if (verb === "extend") {
      this.#extend(held, details.ms ?? 0, done);
    } else if (held.settled) {
      done(held, "stale");
    } else if (held.settling !== undefined) {
      const first = held.done;
      held.done = (_, outcome) => {
        first?.(held, outcome);
        done(held, outcome === "ok" ? "stale" : outcome);
      };
    } else {
      held.settling = verb;
      held.done = done;
      this.#settler.add(held, verb, details, this.#answered);
    }
  }

  readonly #answered: Done = (held, outcome) => {
    const { settling, done } = held;
    held.settling = undefined;
    held.done = undefined;
    if (typeof outcome === "string") {
      held.settled = true;
      if (this.#next !== undefined && (settling === "ack" || held.lastAttempt)) this.#owed.delete(held.key);
      this.forget(held);
    } else if (outcome.code === "lease_lost") {
      this.#leaseLost(held, outcome);
    } else if (outcome.code === "connection_lost") {
      this.#setAdrift([held]);
    }
    done?.(held, outcome);
  };

  #leaseLost(held: HeldEvent, why: NarthexError): void {
    held.lose(why);
    if (this.#next !== undefined && held.lastAttempt) this.#owed.delete(held.key);
    // A handler that runs may get the next lease.
    if (held.stage !== "running") this.forget(held);
  }

  #extend(held: HeldEvent, ms: number, done: Done): void {
    const until = this.#clock.mono() + ms;
    const { token } = held;
    this.#settler.add(held, "extend", { ms }, (_, outcome) => {
      // It may have another lease by now.
      if (outcome === "ok" && held.token === token) held.until = until;
      const open = held.gone === undefined && !held.settled && held.settling === undefined;
      if (open && typeof outcome !== "string" && outcome.code === "lease_lost") this.#leaseLost(held, outcome);
      done(held, outcome);
    });
  }

  /** Of an event that a subscription here holds, by its id; of others the node says what it knows. */
  settleById(verb: Verb, id: string, { ms, reason }: Details): Promise<AckResult> {
    // Mostly it is one of the oldest.
    const held = this.#held.find((one) => one.kept && one.id === id);
    if (held !== undefined) return held.say(verb, { ms, reason });
    const [op, time] = questions[verb];
    return new Promise((resolve) => {
      this.#settler.ask(
        () => ({ op, id, [time]: ms, reason }),
        (outcome) => resolve(ackResult(id, outcome)),
      );
    });
  }

  /** Nothing more is done here to keep its lease. */
  forget(held: HeldEvent): void {
    if (!held.kept) return;
    held.kept = false;
    if (held.heir !== undefined) this.#queue.push(held.heir);
    if (++this.#gaps < gapsMin || 2 * this.#gaps < this.#held.length) return;
    let to = 0;
    for (const one of this.#held) if (one.kept) this.#held[to++] = one;
    this.#held.length = to;
    this.#gaps = 0;
  }

  /** It was handled, and there was no connection to say so. */
  remember(held: HeldEvent): void {
    this.#finished.set(held.key, this.#clock.mono() + finishedMs);
    for (const oldest of this.#finished.keys()) {
      if (this.#finished.size <= finishedMax) break;
      this.#finished.delete(oldest);
    }
  }

  #wasFinished(key: string): boolean {
    const until = this.#finished.get(key);
    this.#finished.delete(key);
    return until !== undefined && until > this.#clock.mono();
  }

  #owe(held: HeldEvent): void {
    if (this.#next === undefined) return;
    const { partition, offset } = held;
    this.#next.set(partition, Math.max(offset + 1, this.#next.get(partition) ?? 0));
    this.#owed.set(held.key, held);
  }

  #all(): HeldEvent[] {
    return this.#held.filter(({ kept }) => kept);
  }

  /** Looks three times in the length of a lease, and extends what has less than two thirds of it left. */
  #look(): void {
    if (this.#watch !== undefined) return;
    const { leaseMs } = this.#settler;
    const run = () => {
      this.#watch = undefined;
      const now = this.#clock.mono();
      const all = this.#all();
      for (const held of all) {
        if (held.gone !== undefined || held.settling !== undefined) continue;
        if (held.stage === "returned") {
          // Left to `ctx`, and surely too late for it; if not, the node knows by the id.
          if (held.until + leaseMs < now) this.forget(held);
        } else if (this.#options.autoExtend && held.until - now <= (2 * leaseMs) / 3) {
          this.#extend(held, leaseMs, () => undefined);
        }
      }
      if (all.length > 0) this.#look();
    };
    this.#watch = this.#clock.after(leaseMs / 3, run, true);
  }
}
