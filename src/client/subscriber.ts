// The consuming half of the client: every subscription, and which member is meant by a topic and a group. The way of an event:
// connection.ts → member.ts → consumer.ts → the handler → settler.ts.

import type { AckResult, Handler, SubscribeOptions, Subscription } from "../bus/event-bus.ts";
import type { Failure } from "../protocol/failure.ts";
import type { ClientClock } from "./clock.ts";
import type { Connection } from "./connection.ts";
import { Consumer } from "./consumer.ts";
import { ClosedError, type NarthexError, RefusedError, refused } from "./errors.ts";
import type { Details, Verb } from "./held-event.ts";
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
  private readonly options: SubscriberOptions;
  private readonly seats = new Map<string, Seat>();
  private connection: Connection | undefined;
  private fault: NarthexError | undefined;

  constructor(options: SubscriberOptions) {
    this.options = options;
  }

  async subscribe(
    topics: readonly string[],
    group: string,
    handler: Handler | undefined,
    options: SubscribeOptions,
  ): Promise<Subscription> {
    const wire = checked(options);
    const names = [...new Set([...topics, ...(options.topics ?? [])])];
    if (names.length === 0) throw new RefusedError("bad_topic", "there is no topic to subscribe to");
    const taken = names.find((topic) => this.seats.has(nameOf(topic, group)));
    if (taken !== undefined) throw new RefusedError("already_subscribed", `already subscribed to ${taken} as ${group}`);
    if (this.fault !== undefined) throw this.fault;
    const { clock, requestTimeoutMs, onError } = this.options;
    const onOver = () => {
      for (const topic of names) this.seats.delete(nameOf(topic, group));
    };
    const set = { clock, topics: names, group, handler, options, wire, onError, startMs: requestTimeoutMs, onOver };
    const consumer = new Consumer(set);
    for (const member of consumer.members) this.seats.set(nameOf(member.topic, group), { consumer, member });
    return consumer.start(this.connection);
  }

  /** ack, nack and modAck by id. */
  async settle(verb: Verb, topic: string, group: string, id: string, more: Details = {}): Promise<AckResult> {
    const seat = this.seats.get(nameOf(topic, group));
    if (seat === undefined) return { id, ok: false, err: this.fault?.code ?? "not_subscribed" };
    return seat.member.settleById(verb, id, more);
  }

  async steer(verb: "PAUSE" | "RESUME", topic: string, group: string): Promise<void> {
    const seat = this.seats.get(nameOf(topic, group));
    if (seat === undefined) {
      throw this.fault ?? new RefusedError("not_subscribed", `not subscribed to ${topic} as ${group}`);
    }
    await seat.member.steer(verb);
  }

  connected(connection: Connection): void {
    this.connection = connection;
    for (const consumer of this.consumers()) consumer.connected(connection);
  }

  /** The connection is gone; every question has its answer by now. */
  lost(): void {
    this.connection = undefined;
    for (const { member } of this.seats.values()) member.lost();
  }

  /** The node ended a subscription. */
  ended(topic: string, group: string, why: Failure): void {
    const seat = this.seats.get(nameOf(topic, group));
    const error = refused(why);
    seat?.member.cut(error);
    seat?.consumer.refused(error);
  }

  async close(): Promise<void> {
    this.fault ??= new ClosedError("closed", "the client was closed");
    await Promise.all(this.consumers().map((consumer) => consumer.close()));
  }

  fail(error: NarthexError): void {
    this.fault = error;
    this.connection = undefined;
    for (const consumer of this.consumers()) consumer.fail(error);
  }

  private consumers(): Consumer[] {
    return [...new Set([...this.seats.values()].map(({ consumer }) => consumer))];
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
  const { concurrency } = options;
  if (concurrency !== undefined && !(concurrency >= 1)) {
    throw new RefusedError("bad_option", "concurrency must be a number from 1 on");
  }
  return wire;
}
