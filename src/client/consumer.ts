// One call of `subscribe`: the handler or the loops that its events go to, and its members, one on each topic.
//
// A loop is a handler turned inside out: an event is at hand from the `next` that gave it to the `next` after it, and is acked then.

import type { Delivery, EventRecord, Handler, SubscribeOptions, Subscription } from "../bus/event-bus.ts";
import type { ClientClock, Timer } from "./clock.ts";
import type { Connection } from "./connection.ts";
import { ClosedError, LeaseLostError, type NarthexError, RefusedError, TimeoutError } from "./errors.ts";
import type { Done, HeldEvent } from "./held-event.ts";
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
  /** How long it may take until all topics are subscribed to. */
  readonly startMs: number;
  readonly onOver: () => void;
}

/** Handlers that return no promise may fill a frame's worth of time: acks and extensions must get out in between. */
const sliceMs = 20;

const asyncDispose: typeof Symbol.asyncDispose =
  Symbol.asyncDispose ?? (Symbol.for("Symbol.asyncDispose") as typeof Symbol.asyncDispose);

export class Consumer {
  readonly members: readonly Member[];
  private readonly set: ConsumerOptions;
  private readonly most: number;
  private readonly filter: ((event: EventRecord<unknown>) => boolean) | undefined;
  private status: "starting" | "live" | "closing" | "over" = "starting";
  /** Handlers that run, and events that loops have at hand. */
  private running = 0;
  private turn = 0;
  /** Why it is over, if nobody here wanted it so. */
  private fault: NarthexError | undefined;
  private closing: Promise<void> | undefined;
  private sleepers: (() => void)[] = [];
  private timer: Timer | undefined;
  private begun: { readonly resolve: (it: Subscription) => void; readonly reject: (error: Error) => void } | undefined;
  private readonly closed: Promise<void>;
  private finish: (error: NarthexError | undefined) => void = () => undefined;
  private readonly onAbort = () => void this.close();

  constructor(set: ConsumerOptions) {
    this.set = set;
    const { clock, group, wire, options } = set;
    const { concurrency, filter, autoExtend = true } = options;
    this.most = concurrency ?? Number.POSITIVE_INFINITY;
    this.filter = typeof filter === "function" ? filter : undefined;
    this.members = set.topics.map((topic) => new Member({ clock, topic, group, wire, autoExtend, owner: this }));
    this.closed = new Promise((resolve, reject) => {
      this.finish = (error) => (error === undefined ? resolve() : reject(error));
    });
    // Nobody has to look at it.
    this.closed.then(undefined, () => undefined);
  }

  /** Resolves when every topic is subscribed to. */
  start(connection: Connection | undefined): Promise<Subscription> {
    const { clock, startMs, topics, options } = this.set;
    return new Promise((resolve, reject) => {
      this.begun = { resolve, reject };
      const late = () => this.giveUp(new TimeoutError("timeout", `not subscribed to ${topics} within ${startMs} ms`));
      this.timer = clock.after(startMs, late);
      options.signal?.addEventListener("abort", this.onAbort);
      if (options.signal?.aborted) this.onAbort();
      else if (connection !== undefined) this.connected(connection);
    });
  }

  connected(connection: Connection): void {
    if (this.open) for (const member of this.members) member.join(connection);
  }

  // ------------------------------------------------------------------------------------------------------- from its members

  get open(): boolean {
    return this.status === "starting" || this.status === "live";
  }

  joined(): void {
    if (this.status !== "starting" || this.members.some(({ resumed }) => resumed === undefined)) return;
    this.status = "live";
    this.timer?.cancel();
    this.begun?.resolve(this.face());
    this.arrived();
  }

  refused(error: NarthexError): void {
    if (this.status === "starting") {
      this.status = "closing";
      // The topics that were subscribed to are left first: the same name may be tried again at once.
      void this.close().then(() => this.begun?.reject(error));
    } else if (this.status === "live") {
      this.fault = error;
      this.finish(error);
      this.report(error);
      void this.close();
    }
  }

  arrived(): void {
    if (this.status !== "live") return;
    const { handler } = this.set;
    if (handler === undefined) {
      this.wake();
      return;
    }
    const { clock } = this.set;
    const until = clock.mono() + sliceMs;
    while (this.running < this.most && this.open) {
      const held = this.pick();
      if (held === undefined) return;
      if (this.wants(held)) this.run(handler, held);
      if (clock.mono() > until) {
        clock.soon(() => this.arrived());
        return;
      }
    }
  }

  /** Of acks that were made here, not by `ctx`. */
  readonly acked: Done = (held, outcome) => {
    if (typeof outcome === "string") return;
    held.member.forget(held);
    if (outcome.code === "connection_lost") held.member.remember(held);
    else this.report(outcome, held.event);
  };

  private readonly nacked: Done = (held, outcome) => {
    if (typeof outcome === "string") return;
    held.member.forget(held);
    if (outcome.code !== "connection_lost") this.report(outcome, held.record);
  };

  // --------------------------------------------------------------------------------------------------------------- handling

  /** Topics take turns. */
  private pick(): HeldEvent | undefined {
    const { members } = this;
    for (let tried = 0; tried < members.length; tried++) {
      this.turn = (this.turn + 1) % members.length;
      const held = members[this.turn].shift();
      if (held !== undefined) return held;
    }
    return undefined;
  }

  /** Reads the event and asks the filter; what is not wanted is settled here. */
  private wants(held: HeldEvent): boolean {
    held.stage = "running";
    try {
      if (this.filter === undefined ? held.event !== undefined : this.filter(held.event)) return true;
      held.stage = "returned";
      held.member.settle(held, "ack", {}, this.acked);
    } catch (error) {
      this.threw(held, error, true);
    }
    return false;
  }

  private run(handler: Handler, held: HeldEvent): void {
    let result: unknown;
    try {
      result = handler(held.event, held);
      if (typeof (result as PromiseLike<unknown> | undefined)?.then !== "function") {
        this.returned(held);
        return;
      }
    } catch (error) {
      this.threw(held, error, false);
      return;
    }
    this.running++;
    Promise.resolve(result).then(
      () => {
        this.returned(held);
        this.ended();
      },
      (error: unknown) => {
        this.threw(held, error, false);
        this.ended();
      },
    );
  }

  private ended(): void {
    this.running--;
    if (this.status === "live") this.arrived();
    else this.wake();
  }

  private returned(held: HeldEvent): void {
    held.stage = "returned";
    if (held.settled || held.settling !== undefined) return;
    const { gone } = held;
    if (this.set.options.manualAck) {
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
  private threw(held: HeldEvent, thrown: unknown, unseen: boolean): void {
    const error = thrown instanceof Error ? thrown : new Error(textOf(thrown));
    held.stage = "returned";
    this.report(error, held.record);
    if (held.settled || held.settling !== undefined) return;
    if (held.gone !== undefined) {
      held.member.forget(held);
    } else if (unseen || !this.set.options.manualAck) {
      const details = error.message === "" ? {} : { reason: error.message };
      held.member.settle(held, "nack", details, this.nacked);
    }
  }

  private async report(error: Error, event?: EventRecord<unknown>): Promise<void> {
    const { options, onError } = this.set;
    if (this.isOver) return;
    try {
      if (options.onError !== undefined) await options.onError(error, event);
      else onError(error);
    } catch {
      // Whoever is told of failures has failed: there is nobody left to tell.
      return;
    }
  }

  // ------------------------------------------------------------------------------------------------------------------ loops

  private iterate(): AsyncIterator<Delivery> {
    if (this.set.handler !== undefined) {
      throw new RefusedError("bad_option", "a subscription that has a handler cannot be iterated");
    }
    let atHand: HeldEvent[] = [];
    const release = (how: (held: HeldEvent) => void) => {
      const all = atHand;
      atHand = [];
      for (const held of all) {
        how(held);
        this.ended();
      }
    };
    return {
      next: async () => {
        release((held) => this.returned(held));
        const held = await this.take();
        if (held === undefined) return { done: true, value: undefined };
        atHand.push(held);
        return { done: false, value: { event: held.event, ctx: held } };
      },
      return: async () => {
        // Left by a break or a throw: it was not done, and goes back with the others.
        release((held) => {
          held.stage = "returned";
        });
        await this.close();
        return { done: true, value: undefined };
      },
    };
  }

  private async take(): Promise<HeldEvent | undefined> {
    for (;;) {
      if (this.fault !== undefined) throw this.fault;
      if (!this.open) return undefined;
      const held = this.pick();
      if (held === undefined) {
        await this.sleep();
      } else if (this.wants(held)) {
        this.running++;
        return held;
      }
    }
  }

  private sleep(): Promise<void> {
    return new Promise((resolve) => void this.sleepers.push(resolve));
  }

  private wake(): void {
    for (const sleeper of this.sleepers.splice(0)) sleeper();
  }

  // ---------------------------------------------------------------------------------------------------------------- the end

  /** Nothing new begins, what runs is waited for, its acks are sent, the rest goes back. */
  close(): Promise<void> {
    if (this.status === "starting") this.giveUp(new ClosedError("closed", "closed before it was subscribed"));
    this.closing ??= this.drain();
    return this.closing;
  }

  /** At once. */
  fail(error: NarthexError): void {
    this.begun?.reject(error);
    // The client was closed: that is no news to whoever did it.
    if (error.code !== "closed") {
      this.fault ??= error;
      this.finish(error);
    }
    this.over();
    for (const member of this.members) member.cut(error);
    this.wake();
  }

  private giveUp(error: NarthexError): void {
    this.status = "closing";
    this.begun?.reject(error);
    void this.close();
  }

  private async drain(): Promise<void> {
    if (this.status === "over") return;
    this.status = "closing";
    this.timer?.cancel();
    for (const member of this.members) member.halt(this.running > 0);
    this.wake();
    while (this.running > 0 && !this.isOver) await this.sleep();
    await Promise.all(this.members.map((member) => member.leave()));
    this.over();
  }

  private get isOver(): boolean {
    return this.status === "over";
  }

  private over(): void {
    if (this.isOver) return;
    this.status = "over";
    this.timer?.cancel();
    this.set.options.signal?.removeEventListener("abort", this.onAbort);
    this.finish(undefined);
    this.wake();
    this.set.onOver();
  }

  // --------------------------------------------------------------------------------------------------------------- its face

  private face(): Subscription {
    const { members, closed } = this;
    const { topics, group } = this.set;
    const steer = async (op: "PAUSE" | "RESUME") => void (await Promise.all(members.map((member) => member.steer(op))));
    const close = () => {
      const done = this.close();
      // Called in the body of a loop it would wait for itself.
      return this.set.handler === undefined && this.running > 0 ? Promise.resolve() : done;
    };
    const face = {
      topics,
      group,
      resumed: members.every(({ resumed }) => resumed),
      closed,
      pause: () => steer("PAUSE"),
      resume: () => steer("RESUME"),
      close,
      [Symbol.asyncIterator]: () => this.iterate(),
      [asyncDispose]: close,
    };
    return Object.assign(() => close(), face) as Subscription;
  }
}

function textOf(thrown: unknown): string {
  try {
    return String(thrown);
  } catch (error) {
    return error instanceof Error ? error.message : "thrown";
  }
}
