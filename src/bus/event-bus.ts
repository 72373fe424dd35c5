// The one interface of the bus, over a socket (client/) and in process (`node.bus`): what is built on it works with both. Types
// only. `Topics` maps the names of topics to their payloads; without it every payload is `unknown`.

import type { EventRecord } from "../protocol/event.ts";
import type { Filter } from "../protocol/filter.ts";

export type { EventRecord } from "../protocol/event.ts";
export type { Filter } from "../protocol/filter.ts";

/** Any topic, payloads of which nothing is known. */
export type AnyTopics = Record<string, unknown>;

/** What can be published to: the topics of the map. */
export type Topic<Topics extends object> = keyof Topics & string;

/** What can be subscribed to: the topics of the map and their dead letters. */
export type Readable<Topics extends object> = Topic<Topics> | `${Topic<Topics>}.dlq.${string}`;

export type PayloadOf<Topics extends object, Name extends string> = Name extends keyof Topics
  ? Topics[Name]
  : Name extends `${infer Source}.dlq.${string}`
    ? Source extends keyof Topics
      ? Topics[Source]
      : never
    : never;

// ------------------------------------------------------------------------------------------------------------- publishing

export interface PublishOptions {
  /** Events of one key are stored in the order of the calls, and stay in order. */
  readonly key?: string;
  /** A name of your own: published again within two minutes, to the same topic and key, it is stored once. */
  readonly id?: string;
  /** When it happened, in ms since 1970; default: when it is stored. */
  readonly ts?: number;
  readonly headers?: Readonly<Record<string, string>>;
  readonly tags?: readonly string[];
  readonly caused_by?: readonly string[];
  readonly sid?: string;
  /** How long to go on trying, in place of the client's `publishTimeoutMs`. */
  readonly timeoutMs?: number;
}

/** Where the event is stored, with what was given for it. Of a duplicate, position and `ts` are those of the first. */
export interface Published<Payload = unknown> extends EventRecord<Payload> {
  /** What the promise means: `fsync` survives a power cut, `memory` ends with the process. */
  readonly durability: string;
  /** It was stored before, by an earlier publish under the same id. */
  readonly duplicate?: true;
}

export interface Outgoing<Payload = unknown> {
  readonly payload: Payload;
  readonly options?: PublishOptions;
}

// -------------------------------------------------------------------------------------------------------------- consuming

/** The platform's AbortSignal, said so that it also compiles for somebody whose compiler knows none. */
export type Signal = typeof globalThis extends { readonly AbortSignal: { readonly prototype: infer Platform } }
  ? Platform
  : { readonly aborted: boolean; addEventListener(type: "abort", listener: () => void): void };

export interface SubscribeOptions<Payload = unknown, Name extends string = string> {
  /** Where a group begins that has no cursor yet; default `latest`. */
  readonly from?: "latest" | "earliest" | "ts" | "afterId" | "offsets";
  readonly ts?: number;
  readonly afterId?: string;
  /** A position such as `0:1234,1:88`. */
  readonly offsets?: string;
  /** How long a lease lasts; it is extended while the handler runs. */
  readonly ackTimeoutMs?: number;
  /** Events out at a time, for each topic. */
  readonly maxInflight?: number;
  readonly maxInFlight?: number;
  readonly batchSize?: number;
  /** Handlers that run at a time, over all topics of the subscription; default: as many as events are out. */
  readonly concurrency?: number;
  /** The handler's end settles nothing: call `ctx.ack` or `ctx.nack`. */
  readonly manualAck?: boolean;
  /** Whether leases are extended while a handler runs; default true. */
  readonly autoExtend?: boolean;
  /** Of the group, stored with it. */
  readonly maxAttempts?: number;
  readonly backoffMs?: number | readonly number[];
  readonly ordering?: "none" | "key";
  /** Data is applied by the node, for the whole group. A function is applied here, and what it leaves out is acked. */
  readonly filter?: Filter | null | ((event: EventRecord<Payload>) => boolean);
  /** The group ends with its last member. */
  readonly ephemeral?: boolean;
  /** More topics for the same handler. */
  readonly topics?: readonly Name[];
  /** Aborting ends the subscription. */
  readonly signal?: Signal;
  /** What goes wrong where no promise of yours can say it: a handler that threw, a lease that was lost, a refused ack. */
  readonly onError?: (error: Error, event?: EventRecord<Payload>) => void;
}

export interface Context {
  readonly topic: string;
  readonly group: string;
  /** From 1. */
  readonly attempt: number;
  readonly maxAttempts: number;
  readonly ackDeadlineMs: number;
  readonly lease: string;
  /**
   * Aborted when the lease is known to be lost, or the client is destroyed. Not by a lost connection. The handler runs on in any case,
   * and when its event is delivered again to this client it goes on under the new lease: one event has one handler here at a time.
   */
  readonly signal: Signal;
  /** None of these rejects. Without a connection the answer is `connection_lost`, and the event comes again. */
  ack(): Promise<AckResult>;
  nack(reason?: string, delayMs?: number): Promise<AckResult>;
  extend(ms: number): Promise<AckResult>;
}

export type Handler<Payload = unknown> = (event: EventRecord<Payload>, ctx: Context) => unknown;

export interface Delivery<Payload = unknown> {
  readonly event: EventRecord<Payload>;
  readonly ctx: Context;
}

/** `err` is a code such as `lease_lost`. `stale`: it was settled before, nothing was changed. */
export interface AckResult {
  readonly id: string;
  readonly ok: boolean;
  readonly stale?: true;
  readonly err?: string;
}

/**
 * Calling it ends it: nothing new comes, what no handler has begun with goes back at once and counts as no attempt, handlers that run
 * are waited for (so a handler must not wait for it), and their acks are sent.
 *
 * Without a handler it is iterated: what a turn of the loop got is acked when the loop asks for the next (unless `manualAck`). A
 * `break` or a throw ends the subscription, and the event at hand is not acked but goes back, as an attempt. Ending it in the body of a
 * loop waits for nothing: the loop comes to its end with the next turn, and `closed` says when all is over. Several loops share the events.
 */
export interface Subscription<Payload = unknown> extends AsyncIterable<Delivery<Payload>> {
  (): Promise<void>;
  readonly topics: readonly string[];
  readonly group: string;
  /** Whether the group had a cursor when it was subscribed to, on each topic. */
  readonly resumed: boolean;
  /** Settles when the subscription is over: rejects if it ended by itself, for instance because its topic was deleted. */
  readonly closed: Promise<void>;
  pause(): Promise<void>;
  resume(): Promise<void>;
  close(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

// ----------------------------------------------------------------------------------------------------------------- cursors

export interface CursorPosition {
  readonly topic: string;
  readonly lastId?: string;
  readonly lastTs?: number;
}

export interface Cursor extends CursorPosition {
  readonly group: string;
  /** Events that are not settled yet. */
  readonly lag: number;
  readonly partitions: readonly {
    readonly floor: number;
    readonly ranges: readonly (readonly [number, number])[];
    readonly end: number;
  }[];
}

export type CursorTarget =
  | "earliest"
  | "latest"
  | { readonly offsets: string }
  | { readonly lastId?: string; readonly lastTs?: number; readonly topic?: string };

// --------------------------------------------------------------------------------------------------------------------- bus

export interface EventBus<Topics extends object = AnyTopics> {
  /** Resolves when the event is stored. Calls of one turn travel together. */
  publish<Name extends Topic<Topics>>(
    topic: Name,
    payload: Topics[Name],
    options?: PublishOptions,
  ): Promise<Published<Topics[Name]>>;
  /** Publishes all of them, in order, with as many under way as the bus takes; rejects with the first that was refused. */
  publishMany<Name extends Topic<Topics>>(
    topic: Name,
    events: Iterable<Outgoing<Topics[Name]>> | AsyncIterable<Outgoing<Topics[Name]>>,
  ): Promise<Published<Topics[Name]>[]>;

  subscribe<Name extends Readable<Topics>>(
    topic: Name | readonly Name[],
    group: string,
    handler: Handler<PayloadOf<Topics, Name>>,
    options?: SubscribeOptions<PayloadOf<Topics, Name>, Name>,
  ): Promise<Subscription<PayloadOf<Topics, Name>>>;
  subscribe<Name extends Readable<Topics>>(
    topic: Name | readonly Name[],
    group: string,
    options?: SubscribeOptions<PayloadOf<Topics, Name>, Name>,
  ): Promise<Subscription<PayloadOf<Topics, Name>>>;

  /** Of an event that a subscription here holds, by its id. */
  ack(topic: string, group: string, id: string): Promise<AckResult>;
  nack(topic: string, group: string, id: string, reason?: string, delayMs?: number): Promise<AckResult>;
  modAck(topic: string, group: string, id: string, extendMs: number): Promise<AckResult>;
  pause(topic: string, group: string): Promise<void>;
  resume(topic: string, group: string): Promise<void>;

  /** Null for a group without a cursor. */
  getCursor(topic: string, group: string): Promise<Cursor | null>;
  /**
   * Moves the group: attempts so far are forgotten and leases end. An event that a handler is busy with is handled anew when that one
   * has ended. (Moved by somebody else, less than a minute after a client lost its connection, what that client had handled and not got
   * confirmed may be acked without its handler being called again.)
   */
  setCursor(topic: string, group: string, to: CursorTarget): Promise<Cursor>;
  /** The newest event of each of these keys, by key; without `keys` of every key; of an empty list none. */
  latestByKey<Name extends Readable<Topics>>(
    topic: Name,
    keys?: readonly string[],
  ): Promise<Record<string, EventRecord<PayloadOf<Topics, Name>>>>;
}
