// One event that is here under a lease, from its arrival to its settling. It is also the Context of its handler: one object for each
// event, and what is rarely asked for (the record, the signal, the promises) is made when it is asked for.

import type { AckResult, Context, EventRecord } from "../bus/event-bus.ts";
import { leaseText } from "../protocol/lease.ts";
import type { Arrival } from "./arrival.ts";
import type { NarthexError } from "./errors.ts";
import type { Member } from "./member.ts";

export type Verb = "ack" | "nack" | "extend";

/** The delay of a nack or the length of an extension, and why. */
export interface Details {
  readonly ms?: number | undefined;
  readonly reason?: string | undefined;
}

/** What became of an ack, a nack or an extension. `stale`: it had been settled before. */
export type Outcome = "ok" | "stale" | NarthexError;
export type Done = (held: HeldEvent, outcome: Outcome) => void;

/** More has no place in a frame; the node allows less. */
const msMax = 2 ** 31;

export class HeldEvent implements Context {
  /** `returned`: the handler is done with it, or never gets it. */
  stage: "waiting" | "running" | "returned" = "waiting";
  /** What is being said of it to the node, and whether that was taken. */
  settling: "ack" | "nack" | undefined;
  settled = false;
  /** Whom to tell what came of it. */
  done: Done | undefined;
  /** Why the lease is not ours any more. While the handler runs there may be another one (`adopt`). */
  gone: NarthexError | undefined;
  /** The group was moved since it came: what comes again is to be handled anew. */
  outdated = false;
  /** The same event, that came anew and is to begin when this one has ended. */
  heir: HeldEvent | undefined;
  /** The record, once it was made. */
  record: EventRecord<unknown> | undefined;
  /** Whether its member still looks after it. */
  kept = true;
  /** When the lease ends, by our clock and if nothing is done. */
  until: number;
  readonly member: Member;
  #arrival: Arrival;
  #index: number;
  #controller: AbortController | undefined;

  constructor(member: Member, arrival: Arrival, index: number, until: number) {
    this.member = member;
    this.#arrival = arrival;
    this.#index = index;
    this.until = until;
  }

  // ------------------------------------------------------------------------------------------------------------ the event

  get partition(): number {
    return this.#arrival.batch.partition;
  }

  get offset(): number {
    return this.#arrival.batch.firstOffset + this.#index;
  }

  get epoch(): number {
    return this.#arrival.batch.epoch;
  }

  get token(): number {
    return this.#arrival.batch.token + this.#index;
  }

  get id(): string {
    return this.record?.id ?? this.#arrival.id(this.#index);
  }

  /** Throws where the payload is not JSON, which no node stores. */
  get event(): EventRecord<unknown> {
    this.record ??= this.#arrival.record(this.#index);
    return this.record;
  }

  /** Names the event itself, whatever its lease. */
  get key(): string {
    return this.#arrival.key(this.#index);
  }

  get lastAttempt(): boolean {
    return this.attempt >= this.maxAttempts;
  }

  // ------------------------------------------------------------------------------------------------------------ the lease

  /** Goes on under another lease, which replaces one that broke. */
  adopt(arrival: Arrival, index: number, until: number): void {
    this.#arrival = arrival;
    this.#index = index;
    this.until = until;
    this.gone = undefined;
  }

  /** The lease is lost for good. */
  lose(why: NarthexError): void {
    this.gone = why;
    this.#controller?.abort(why);
  }

  // ---------------------------------------------------------------------------------------------------------- the context

  get topic(): string {
    return this.member.topic;
  }

  get group(): string {
    return this.member.group;
  }

  get attempt(): number {
    return this.#arrival.batch.attempt;
  }

  get maxAttempts(): number {
    return this.#arrival.batch.maxAttempts;
  }

  get ackDeadlineMs(): number {
    return this.#arrival.batch.ackDeadlineMs;
  }

  get lease(): string {
    return leaseText(this.epoch, this.token);
  }

  get signal(): AbortSignal {
    if (this.#controller === undefined) {
      this.#controller = new AbortController();
      if (this.gone !== undefined && this.gone.code !== "connection_lost") this.#controller.abort(this.gone);
    }
    return this.#controller.signal;
  }

  // Getters, so that `({ ack }) => ack()` works too.

  get ack(): () => Promise<AckResult> {
    return () => this.say("ack", {});
  }

  get nack(): (reason?: string, delayMs?: number) => Promise<AckResult> {
    return (reason, ms) => this.say("nack", { reason, ms });
  }

  get extend(): (ms: number) => Promise<AckResult> {
    return (ms) => this.say("extend", { ms });
  }

  say(verb: Verb, details: Details): Promise<AckResult> {
    const { id } = this;
    return new Promise((resolve) => {
      const said = sayable(details);
      if (said === undefined) resolve({ id, ok: false, err: "bad_option" });
      else this.member.settle(this, verb, said, (_, outcome) => resolve(ackResult(id, outcome)));
    });
  }
}

/** As it can be written down, whatever a caller without types gave; undefined where the time is none. */
export function sayable({ ms, reason }: Details): Details | undefined {
  if (ms !== undefined && !(Number.isInteger(ms) && ms >= 0 && ms <= msMax)) return undefined;
  return { ms, reason: reason === undefined || reason === null ? undefined : textOf(reason) };
}

/** What can be said of anything that is thrown, or given as a reason. */
export function textOf(thrown: unknown): string {
  try {
    return String((thrown as Partial<Error> | null | undefined)?.message ?? thrown);
  } catch {
    return "an error that has no text";
  }
}

export function ackResult(id: string, outcome: Outcome): AckResult {
  if (outcome === "ok") return { id, ok: true };
  return outcome === "stale" ? { id, ok: true, stale: true } : { id, ok: false, err: outcome.code };
}
