// One call of `subscribe`: the handler or the loops that its events go to, and its members, one on each topic.
//
// A loop is a handler turned inside out: an event is at hand from the `next` that gave it to the `next` after it, and is acked then.

import type { Delivery, EventRecord, Handler, SubscribeOptions, Subscription } from "../bus/event-bus.ts";
import { Bell } from "./bell.ts";
import type { ClientClock, Timer } from "./clock.ts";
import type { Connection } from "./connection.ts";
import { deferred } from "./deferred.ts";
import { ClosedError, LeaseLostError, type NarthexError, RefusedError, TimeoutError } from "./errors.ts";
import { type Done, type HeldEvent, textOf } from "./held-event.ts";
import { Member } from "./member.ts";

export interface ConsumerOptions {
  readonly clock: ClientClock;
  readonly topics: readonly string[];
  readonly group: string;
  readonly handler: Handler | undefined;
  readonly options: SubscribeOptions;
  /** Those of them that the node is to know. */
  readonly wire: { readonly [name: string]: unknown };
  /** Where the options have no `onError`. */
  readonly onError: (error: Error) => void;
  /** How long a question may take, and until all topics are subscribed to. */
  readonly requestMs: number;
  readonly onOver: () => void;
}

/** Handlers that return no promise may fill a frame's worth of time: acks and extensions must get out in between. */
const sliceMs = 20;

const asyncDispose: typeof Symbol.asyncDispose =
  Symbol.asyncDispose ?? (Symbol.for("Symbol.asyncDispose") as typeof Symbol.asyncDispose);

export class Consumer {
  readonly members: readonly Member[];
  readonly #set: ConsumerOptions;
  readonly #most: number;
  readonly #filter: ((event: EventRecord<unknown>) => boolean) | undefined;
  #status: "starting" | "live" | "closing" | "over" = "starting";
  /** Handlers that run, and events that loops have at hand. Counted before they begin: a handler may call us. */
  #running = 0;
  #starting = false;
  #turn = 0;
  /** Why it is over, if nobody here wanted it so. */
  #fault: NarthexError | undefined;
  #closing: Promise<void> | undefined;
  /** There are events, or fewer handlers, or it ends. */
  readonly #changed = new Bell();
  #timer: Timer | undefined;
  readonly #begun = deferred<Subscription>();
  readonly #closed = deferred<void>();
  readonly #onAbort = () => void this.close();

  constructor(set: ConsumerOptions) {
    this.#set = set;
    const { clock, group, wire, options, requestMs } = set;
    const { concurrency, filter, autoExtend = true } = options;
    this.#most = concurrency ?? Number.POSITIVE_INFINITY;
    this.#filter = typeof filter === "function" ? filter : undefined;
    this.members = set.topics.map(
      (topic) => new Member({ clock, topic, group, wire, autoExtend, requestMs, owner: this }),
    );
  }

  /** Resolves when every topic is subscribed to. */
  start(connection: Connection | undefined): Promise<Subscription> {
    const { clock, requestMs, topics, options } = this.#set;
    const late = () => this.#giveUp(new TimeoutError("timeout", `not subscribed to ${topics} within ${requestMs} ms`));
    this.#timer = clock.after(requestMs, late);
    options.signal?.addEventListener("abort", this.#onAbort);
    if (options.signal?.aborted) this.#onAbort();
    else if (connection !== undefined) this.connected(connection);
    return this.#begun.promise;
  }

  connected(connection: Connection): void {
    if (this.open) for (const member of this.members) member.join(connection);
  }

  // ------------------------------------------------------------------------------------------------------- from its members

  get open(): boolean {
    return this.#status === "starting" || this.#status === "live";
  }

  joined(): void {
    if (this.#status !== "starting" || this.members.some(({ resumed }) => resumed === undefined)) return;
    this.#status = "live";
    this.#timer?.cancel();
    this.#begun.resolve(this.#face());
    this.arrived();
  }

  refused(error: NarthexError): void {
    if (this.#status === "starting") {
      this.#status = "closing";
      // The topics that were subscribed to are left first: the same name may be tried again at once.
      void this.close().then(() => this.#begun.reject(error));
    } else if (this.#status === "live") {
      this.#fault = error;
      this.#closed.reject(error);
      this.#report(error);
      void this.close();
    }
  }

  arrived(): void {
    if (this.#status !== "live") return;
    const { handler, clock } = this.#set;
    if (handler === undefined) {
      this.#changed.ring();
      return;
    }
    // Called by a handler, or at its end: the loop below goes on anyway.
    if (this.#starting) return;
    this.#starting = true;
    const until = clock.mono() + sliceMs;
    while (this.#running < this.#most && this.open) {
      const held = this.#pick();
      if (held === undefined) break;
      this.#running++;
      if (this.#wants(held)) this.#run(handler, held);
      else this.#ended();
      if (clock.mono() > until) {
        clock.soon(() => this.arrived());
        break;
      }
    }
    this.#starting = false;
  }

  /** Of acks that were made here, not by `ctx`. */
  readonly acked: Done = (held, outcome) => {
    if (typeof outcome === "string") return;
    held.member.forget(held);
    if (outcome.code === "connection_lost") held.member.remember(held);
    else this.#report(outcome, held.event);
  };

  readonly #nacked: Done = (held, outcome) => {
    if (typeof outcome === "string") return;
    held.member.forget(held);
    if (outcome.code !== "connection_lost") this.#report(outcome, held.record);
  };

  // --------------------------------------------------------------------------------------------------------------- handling

  /** Topics take turns. */
  #pick(): HeldEvent | undefined {
    const { members } = this;
    for (let tried = 0; tried < members.length; tried++) {
      this.#turn = (this.#turn + 1) % members.length;
      const held = members[this.#turn].shift();
      if (held !== undefined) return held;
    }
    return undefined;
  }

  /** Reads the event and asks the filter; what is not wanted is settled here. */
  #wants(held: HeldEvent): boolean {
    held.stage = "running";
    try {
      if (this.#filter === undefined ? held.event !== undefined : this.#filter(held.event)) return true;
      held.stage = "returned";
      held.member.settle(held, "ack", {}, this.acked);
    } catch (error) {
      this.#threw(held, error, true);
    }
    return false;
  }

  #run(handler: Handler, held: HeldEvent): void {
    let result: unknown;
    try {
      result = handler(held.event, held);
      if (typeof (result as PromiseLike<unknown> | undefined)?.then !== "function") {
        this.#returned(held);
        this.#ended();
        return;
      }
    } catch (error) {
      this.#threw(held, error, false);
      this.#ended();
      return;
    }
    Promise.resolve(result).then(
      () => {
        this.#returned(held);
        this.#ended();
      },
      (error: unknown) => {
        this.#threw(held, error, false);
        this.#ended();
      },
    );
  }

  #ended(): void {
    this.#running--;
    if (this.#status === "live") this.arrived();
    else this.#changed.ring();
  }

  #returned(held: HeldEvent): void {
    held.stage = "returned";
    if (held.settled || held.settling !== undefined) return;
    const { gone } = held;
    if (this.#set.options.manualAck) {
      if (gone !== undefined) held.member.forget(held);
    } else if (gone === undefined) {
      // It can be made again, and here it would live on until the ack is answered.
      held.record = undefined;
      held.member.settle(held, "ack", {}, this.acked);
    } else if (gone.code === "connection_lost" || gone instanceof LeaseLostError) {
      this.acked(held, gone);
    }
  }

  /** With `manualAck` what a handler throws settles nothing; if no handler saw the event (`unseen`), nobody else will. */
  #threw(held: HeldEvent, thrown: unknown, unseen: boolean): void {
    const reason = textOf(thrown);
    held.stage = "returned";
    void this.#report(thrown instanceof Error ? thrown : new Error(reason), held.record);
    if (held.settled || held.settling !== undefined) return;
    if (held.gone !== undefined) {
      held.member.forget(held);
    } else if (unseen || !this.#set.options.manualAck) {
      held.member.settle(held, "nack", { reason: reason || undefined }, this.#nacked);
    }
  }

  async #report(error: Error, event?: EventRecord<unknown>): Promise<void> {
    const { options, onError } = this.#set;
    if (this.#isOver) return;
    try {
      if (options.onError !== undefined) await options.onError(error, event);
      else await onError(error);
    } catch {
      // Whoever is told of failures has failed: there is nobody left to tell.
      return;
    }
  }

  // ------------------------------------------------------------------------------------------------------------------ loops

  #iterate(): AsyncIterator<Delivery> {
    if (this.#set.handler !== undefined) {
      throw new RefusedError("bad_option", "a subscription that has a handler cannot be iterated");
    }
    let atHand: HeldEvent[] = [];
    const release = (how: (held: HeldEvent) => void) => {
      const all = atHand;
      atHand = [];
      for (const held of all) {
        how(held);
        this.#ended();
      }
    };
    return {
      next: async () => {
        release((held) => this.#returned(held));
        const held = await this.#take();
        if (held === undefined) return { done: true, value: undefined };
        atHand.push(held);
        return { done: false, value: { event: held.event, ctx: held } };
      },
      return: async () => {
        // Left by a break or a throw: it was begun and not done, so it goes back as an attempt.
        release((held) => {
          held.stage = "returned";
        });
        await this.close();
        return { done: true, value: undefined };
      },
    };
  }

  async #take(): Promise<HeldEvent | undefined> {
    for (;;) {
      if (this.#fault !== undefined) throw this.#fault;
      if (!this.open) return undefined;
      const held = this.#pick();
      if (held === undefined) {
        await this.#changed.next();
      } else {
        this.#running++;
        if (this.#wants(held)) return held;
        this.#ended();
      }
    }
  }

  // ---------------------------------------------------------------------------------------------------------------- the end

  /** The body of a loop is at work. */
  get looping(): boolean {
    return this.#set.handler === undefined && this.#running > 0;
  }

  /** Nothing new begins and what has not begun goes back at once, uncounted; what runs is waited for and its acks are sent. */
  close(): Promise<void> {
    if (this.#status === "starting") this.#giveUp(new ClosedError("closed", "closed before it was subscribed"));
    this.#closing ??= this.#drain();
    return this.#closing;
  }

  /** At once. */
  fail(error: NarthexError): void {
    this.#begun.reject(error);
    // The client was closed: that is no news to whoever did it.
    if (error.code !== "closed") {
      this.#fault ??= error;
      this.#closed.reject(error);
    }
    this.#over();
    for (const member of this.members) member.cut(error);
    this.#changed.ring();
  }

  #giveUp(error: NarthexError): void {
    this.#status = "closing";
    this.#begun.reject(error);
    void this.close();
  }

  async #drain(): Promise<void> {
    if (this.#status === "over") return;
    this.#status = "closing";
    this.#timer?.cancel();
    for (const member of this.members) member.halt();
    this.#changed.ring();
    await this.#changed.until(() => this.#running === 0 || this.#isOver);
    await Promise.all(this.members.map((member) => member.leave()));
    this.#over();
  }

  get #isOver(): boolean {
    return this.#status === "over";
  }

  #over(): void {
    if (this.#isOver) return;
    this.#status = "over";
    this.#timer?.cancel();
    this.#set.options.signal?.removeEventListener?.("abort", this.#onAbort);
    this.#closed.resolve();
    this.#changed.ring();
    this.#set.onOver();
  }

  // --------------------------------------------------------------------------------------------------------------- its face

  #face(): Subscription {
    const { members } = this;
    const { topics, group } = this.#set;
    const steer = async (op: "PAUSE" | "RESUME") => void (await Promise.all(members.map((member) => member.steer(op))));
    const close = () => {
      const done = this.close();
      // Called in the body of a loop it would wait for itself.
      return this.looping ? Promise.resolve() : done;
    };
    const face = {
      topics,
      group,
      resumed: members.every(({ resumed }) => resumed),
      closed: this.#closed.promise,
      pause: () => steer("PAUSE"),
      resume: () => steer("RESUME"),
      close,
      [Symbol.asyncIterator]: () => this.#iterate(),
      [asyncDispose]: close,
    };
    return Object.assign(() => close(), face) as Subscription;
  }
}
