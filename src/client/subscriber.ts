// The consuming half of the client: every subscription, and which member is meant by a topic and a group. The way of an event:
// connection.ts → member.ts → consumer.ts → the handler → settler.ts.

import type { AckResult, Handler, SubscribeOptions, Subscription } from "../bus/event-bus.ts";
import type { Failure } from "../protocol/failure.ts";
import type { ClientClock } from "./clock.ts";
import type { Connection } from "./connection.ts";
import { Consumer } from "./consumer.ts";
import { ClosedError, type NarthexError, RefusedError, refused } from "./errors.ts";
import { type Details, sayable, textOf, type Verb } from "./held-event.ts";
import type { Member } from "./member.ts";

export interface SubscriberOptions {
  readonly clock: ClientClock;
  /** How long a `subscribe` may take, reconnecting included. */
  readonly requestTimeoutMs: number;
  /** For subscriptions that have no `onError`. */
  readonly onError: (error: Error) => void;
}

interface Seat {
  readonly consumer: Consumer;
  readonly member: Member;
}

const nodeOptions = new Set(
  "from ts afterId offsets ackTimeoutMs maxInflight maxInFlight batchSize maxAttempts backoffMs ordering filter ephemeral".split(
    " ",
  ),
);
const ownOptions = new Set("concurrency manualAck autoExtend topics signal onError".split(" "));

export class Subscriber {
  readonly #options: SubscriberOptions;
  readonly #seats = new Map<string, Seat>();
  #connection: Connection | undefined;
  #fault: NarthexError | undefined;

  constructor(options: SubscriberOptions) {
    this.#options = options;
  }

  async subscribe(
    topics: readonly string[],
    group: string,
    handler: Handler | undefined,
    options: SubscribeOptions,
  ): Promise<Subscription> {
    const wire = checked(options);
    const names = [...new Set([topics, options.topics ?? []].flat())];
    if (names.length === 0) throw new RefusedError("bad_topic", "there is no topic to subscribe to");
    if (names.some((name) => typeof name !== "string"))
      throw new RefusedError("bad_topic", "a topic is named by a string");
    if (typeof group !== "string") throw new RefusedError("bad_group", "a group is named by a string");
    const taken = names.find((topic) => this.#seats.has(nameOf(topic, group)));
    if (taken !== undefined) throw new RefusedError("already_subscribed", `already subscribed to ${taken} as ${group}`);
    if (this.#fault !== undefined) throw this.#fault;
    const { clock, requestTimeoutMs, onError } = this.#options;
    const onOver = () => {
      for (const topic of names) this.#seats.delete(nameOf(topic, group));
    };
    const set = { clock, topics: names, group, handler, options, wire, onError, requestMs: requestTimeoutMs, onOver };
    const consumer = new Consumer(set);
    for (const member of consumer.members) this.#seats.set(nameOf(member.topic, group), { consumer, member });
    return consumer.start(this.#connection);
  }

  /** ack, nack and modAck by id. */
  async settle(verb: Verb, topic: string, group: string, id: string, more: Details = {}): Promise<AckResult> {
    const seat = this.#seats.get(nameOf(topic, group));
    if (seat === undefined) return { id, ok: false, err: this.#fault?.code ?? "not_subscribed" };
    const said = sayable(more);
    if (said === undefined || typeof id !== "string") return { id, ok: false, err: "bad_option" };
    return seat.member.settleById(verb, id, said);
  }

  /** This client moves the group: what it had handled is to be handled again. */
  sought(topic: string, group: string): void {
    this.#seats.get(nameOf(topic, group))?.member.sought();
  }

  async steer(verb: "PAUSE" | "RESUME", topic: string, group: string): Promise<void> {
    const seat = this.#seats.get(nameOf(topic, group));
    if (seat === undefined) {
      throw this.#fault ?? new RefusedError("not_subscribed", `not subscribed to ${topic} as ${group}`);
    }
    await seat.member.steer(verb);
  }

  connected(connection: Connection): void {
    this.#connection = connection;
    for (const consumer of this.#consumers()) consumer.connected(connection);
  }

  /** The connection is gone; every question has its answer by now. */
  lost(): void {
    this.#connection = undefined;
    for (const { member } of this.#seats.values()) member.lost();
  }

  /** The node ended a subscription. */
  ended(topic: string, group: string, why: Failure): void {
    const seat = this.#seats.get(nameOf(topic, group));
    const error = refused(why);
    seat?.member.cut(error);
    seat?.consumer.refused(error);
  }

  /** Whether the body of a loop is at work: if it is what waits for `close`, it waits for itself. */
  get looping(): boolean {
    return this.#consumers().some(({ looping }) => looping);
  }

  async close(): Promise<void> {
    this.#fault ??= new ClosedError("closed", "the client was closed");
    await Promise.all(this.#consumers().map((consumer) => consumer.close()));
  }

  fail(error: NarthexError): void {
    this.#fault = error;
    this.#connection = undefined;
    for (const consumer of this.#consumers()) consumer.fail(error);
  }

  #consumers(): Consumer[] {
    return [...new Set([...this.#seats.values()].map(({ consumer }) => consumer))];
  }
}

/** Neither name can contain a space. */
function nameOf(topic: string, group: string): string {
  return `${topic} ${group}`;
}

/** The options that go to the node. What is not known is refused by name: a misspelt one would be found in production. */
function checked(options: SubscribeOptions): { readonly [name: string]: unknown } {
  const wire: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined || ownOptions.has(name)) continue;
    if (!nodeOptions.has(name)) {
      const known = [...nodeOptions, ...ownOptions].join(" ");
      throw new RefusedError("bad_option", `unknown option ${JSON.stringify(name)}, known are ${known}`);
    }
    if (typeof value !== "function") wire[name] = value;
  }
  const { concurrency = 1, signal, topics = [] } = options;
  if (typeof concurrency !== "number" || !(concurrency >= 1)) {
    throw new RefusedError("bad_option", "concurrency must be a number from 1 on");
  }
  if (signal !== undefined && typeof signal?.addEventListener !== "function") {
    throw new RefusedError("bad_option", "signal must be an AbortSignal");
  }
  if (!Array.isArray(topics)) throw new RefusedError("bad_option", "topics must be a list");
  try {
    // As it is now: it is said again on each connection.
    return JSON.parse(JSON.stringify(wire));
  } catch (error) {
    throw new RefusedError("bad_option", `an option is not JSON: ${textOf(error).split("\n")[0]}`);
  }
}
