// What `import "narthex/client"` gives, in Node and in a browser: a bus over one connection that is made again whenever it is lost.
// Publishing is in publisher.ts, consuming in subscriber.ts; here is the connection's life and what is asked of a node once.

import type {
  AckResult,
  AnyTopics,
  Cursor,
  CursorTarget,
  EventBus,
  EventRecord,
  Handler,
  Outgoing,
  PayloadOf,
  Published,
  PublishOptions,
  Readable,
  SubscribeOptions,
  Subscription,
  Topic,
} from "../bus/event-bus.ts";
import { latestKeysMax } from "../protocol/bounds.ts";
import { backoffMs } from "./backoff.ts";
import { type ClientClock, clientClock, type Timer } from "./clock.ts";
import { Connection, type Ok } from "./connection.ts";
import { deferred } from "./deferred.ts";
import { dial as dialSocket } from "./dial-node.ts";
import { ClosedError, ConnectionError, NarthexError, RefusedError, TimeoutError } from "./errors.ts";
import { textOf } from "./held-event.ts";
import { Publisher } from "./publisher.ts";
import { Subscriber } from "./subscriber.ts";
import type { Dial } from "./wire.ts";
import { within } from "./within.ts";

export type * from "../bus/event-bus.ts";
export * from "./errors.ts";

export type ClientStatus = "connecting" | "open" | "reconnecting" | "closed";

export interface ClientOptions {
  /** Asked for at every connection where it is a function, so that it can be a fresh one. */
  readonly token?: string | (() => string | Promise<string>) | undefined;
  /** How long the first connection may take; default 10 s. */
  readonly connectTimeoutMs?: number;
  /** How long a question may take, reconnecting included; default 15 s. */
  readonly requestTimeoutMs?: number;
  /** How long to try to publish an event, reconnecting included; default 60 s, at most 100 s. */
  readonly publishTimeoutMs?: number;
  /** How long `close` waits for handlers and for what is not confirmed; default 10 s. */
  readonly closeTimeoutMs?: number;
  /** Default true: a lost connection is made again, with growing pauses. */
  readonly reconnect?: boolean;
  readonly reconnectMinMs?: number;
  readonly reconnectMaxMs?: number;
  /** Events that may wait to be confirmed, and their bytes; past it `publish` rejects with `client_full`. */
  readonly maxPending?: number;
  readonly maxPendingBytes?: number;
  readonly onStatus?: (status: ClientStatus, reason: string) => void;
  /** What goes wrong where no promise can say it, and no subscription has an `onError` of its own. */
  readonly onError?: (error: Error) => void;
  /** @internal */
  readonly dial?: Dial;
  /** @internal */
  readonly clock?: ClientClock;
}

const defaults = {
  connectTimeoutMs: 10_000,
  requestTimeoutMs: 15_000,
  publishTimeoutMs: 60_000,
  closeTimeoutMs: 10_000,
  reconnectMinMs: 50,
  reconnectMaxMs: 5000,
  maxPending: 100_000,
  maxPendingBytes: 64 * 1024 * 1024,
};
/** The node remembers for 120 s what was published under which name; nothing is sent again past this. */
const publishTimeoutMsMax = 100_000;
const silentMs = 20_000;
const answerMs = 30_000;
const openMsMax = 10_000;
/** A connection that lived so long was a good one. */
const steadyMs = 1000;

const optionNames = new Set([...Object.keys(defaults), "token", "reconnect", "onStatus", "onError", "dial", "clock"]);

/** A client that is connected, or a rejection that says why not. */
export async function connect<Topics extends object = AnyTopics>(
  url: string,
  options: ClientOptions = {},
): Promise<EventClient<Topics>> {
  const client = new EventClient<Topics>(url, options);
  await client.ready();
  return client;
}

export class EventClient<Topics extends object = AnyTopics> implements EventBus<Topics> {
  readonly #url: string;
  readonly #options: ClientOptions & typeof defaults;
  readonly #clock: ClientClock;
  readonly #publisher: Publisher;
  readonly #subscriber: Subscriber;
  #connection: Connection | undefined;
  /** The connection, or the next one; rejected once there will be none. */
  #live = deferred<Connection>();
  #state: ClientStatus = "connecting";
  #firstUntil: number;
  #failures = 0;
  #openedAt = 0;
  #retry: Timer | undefined;
  #fault: NarthexError | undefined;
  #closing: Promise<void> | undefined;

  /** Connects by itself; calls wait for the connection. */
  constructor(url: string, tokenOrOptions?: string | ClientOptions) {
    const given = typeof tokenOrOptions === "string" ? { token: tokenOrOptions } : (tokenOrOptions ?? {});
    this.#options = { ...defaults, ...checked(given) };
    this.#url = this.#options.dial === undefined ? socketUrl(url) : url;
    this.#clock = this.#options.clock ?? clientClock();
    const clock = this.#clock;
    const { requestTimeoutMs, publishTimeoutMs, maxPending, maxPendingBytes, connectTimeoutMs } = this.#options;
    this.#publisher = new Publisher({
      clock,
      publishTimeoutMs: Math.min(publishTimeoutMs, publishTimeoutMsMax),
      pendingEventsMax: maxPending,
      pendingBytesMax: maxPendingBytes,
    });
    this.#subscriber = new Subscriber({ clock, requestTimeoutMs, onError: (error) => this.#options.onError?.(error) });
    this.#firstUntil = clock.mono() + connectTimeoutMs;
    void this.#open();
  }

  get status(): ClientStatus {
    return this.#state;
  }

  /** Bytes of one payload that the node takes, while there is a connection. */
  get maxPayload(): number | undefined {
    return this.#connection?.maxPayload || undefined;
  }

  /** Resolves once there is a connection; rejects if the first one cannot be had, or after the client was closed. */
  async ready(): Promise<void> {
    await this.#live.promise;
  }

  // -------------------------------------------------------------------------------------------------------------- the bus

  publish<Name extends Topic<Topics>>(
    topic: Name,
    payload: Topics[Name],
    options?: PublishOptions,
  ): Promise<Published<Topics[Name]>> {
    if (this.#closing !== undefined) return Promise.reject(closed());
    return this.#publisher.publish(topic, payload, options) as Promise<Published<Topics[Name]>>;
  }

  async publishMany<Name extends Topic<Topics>>(
    topic: Name,
    events: Iterable<Outgoing<Topics[Name]>> | AsyncIterable<Outgoing<Topics[Name]>>,
  ): Promise<Published<Topics[Name]>[]> {
    const results: Promise<Published<Topics[Name]>>[] = [];
    let refused: Error | undefined;
    for await (const { payload, options, ...rest } of events) {
      // A key beside the payload, where it is in exported events, would be lost without a word.
      for (const name in rest) throw new RefusedError("bad_option", `${name} of an event belongs into its options`);
      await this.#publisher.room();
      if (refused !== undefined) break;
      const result = this.publish(topic, payload, options);
      result.catch((error: Error) => {
        refused ??= error;
      });
      results.push(result);
    }
    return Promise.all(results);
  }

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
  subscribe(
    topic: string | readonly string[],
    group: string,
    handlerOrOptions?: Handler<never> | SubscribeOptions<never>,
    maybeOptions?: SubscribeOptions<never>,
  ): Promise<Subscription<never>> {
    const handler = typeof handlerOrOptions === "function" ? (handlerOrOptions as Handler) : undefined;
    const options = ((handler === undefined ? handlerOrOptions : maybeOptions) ?? {}) as SubscribeOptions;
    const topics = typeof topic === "string" ? [topic] : topic;
    if (this.#closing !== undefined) return Promise.reject(closed());
    return this.#subscriber.subscribe(topics, group, handler, options) as Promise<Subscription<never>>;
  }

  ack(topic: string, group: string, id: string): Promise<AckResult> {
    return this.#subscriber.settle("ack", topic, group, id);
  }

  nack(topic: string, group: string, id: string, reason?: string, delayMs?: number): Promise<AckResult> {
    return this.#subscriber.settle("nack", topic, group, id, { reason, ms: delayMs });
  }

  modAck(topic: string, group: string, id: string, extendMs: number): Promise<AckResult> {
    return this.#subscriber.settle("extend", topic, group, id, { ms: extendMs });
  }

  pause(topic: string, group: string): Promise<void> {
    return this.#subscriber.steer("PAUSE", topic, group);
  }

  resume(topic: string, group: string): Promise<void> {
    return this.#subscriber.steer("RESUME", topic, group);
  }

  async getCursor(topic: string, group: string): Promise<Cursor | null> {
    const cursor = await this.#request({ op: "CURSOR", topic, group }).catch((error: NarthexError) => {
      if (error.code === "unknown_topic") return undefined;
      throw error;
    });
    return cursor?.exists ? cursorOf(topic, group, cursor) : null;
  }

  async setCursor(topic: string, group: string, to: CursorTarget): Promise<Cursor> {
    // Events may come before the answer does, and what ends meanwhile counts as little.
    this.#subscriber.sought(topic, group);
    const cursor = await this.#request({ op: "CURSOR", topic, group, set: targetOf(to) });
    this.#subscriber.sought(topic, group);
    return cursorOf(topic, group, cursor);
  }

  async latestByKey<Name extends Readable<Topics>>(
    topic: Name,
    keys?: readonly string[],
  ): Promise<Record<string, EventRecord<PayloadOf<Topics, Name>>>> {
    // A key may be `__proto__`: nothing is inherited here.
    const found: Record<string, EventRecord<PayloadOf<Topics, Name>>> = Object.create(null);
    // At least once, also for no keys: the node has to say whether it has the topic.
    for (let from = 0; from === 0 || (keys !== undefined && from < keys.length); from += latestKeysMax) {
      const some = keys?.slice(from, from + latestKeysMax);
      let after: unknown;
      do {
        const page = await this.#request({ op: "LATEST", topic, keys: some, after });
        for (const event of page.events as EventRecord<PayloadOf<Topics, Name>>[]) found[event.key as string] = event;
        after = page.next;
      } while (after !== undefined);
    }
    return found;
  }

  /** Resolves when everything published so far is stored or was refused. */
  flush(): Promise<void> {
    return this.#publisher.idle();
  }

  /** Shows the node a fresh token on the connection that is there; what it no longer allows ends. */
  async reauthenticate(): Promise<void> {
    const ms = this.#options.requestTimeoutMs;
    const connection = await this.#connected(ms);
    const shown = this.#token().then(({ text }) => connection.authenticate(text));
    const answer = await within(
      this.#clock,
      ms,
      shown.then(() => true),
    );
    if (answer === undefined) throw new TimeoutError("timeout", `no answer to AUTH within ${ms} ms`);
  }

  // --------------------------------------------------------------------------------------------------------------- the end

  /**
   * Waits for handlers, acks and publishes under way (at most `closeTimeoutMs`), then ends. What is left rejects with `closed`. While
   * the body of a loop over a subscription runs, it waits for the publishes only, and the client ends after that body.
   */
  close(): Promise<void> {
    this.#closing ??= this.#drain();
    return this.#closing;
  }

  /** Ends at once: everything that is pending rejects with `closed`. */
  destroy(): void {
    this.#end(closed());
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  async #drain(): Promise<void> {
    // Before the first connection there is nobody to wait for.
    if (this.#state === "open" || this.#state === "reconnecting") {
      const ms = this.#options.closeTimeoutMs;
      const { looping } = this.#subscriber;
      const all = within(this.#clock, ms, Promise.all([this.#subscriber.close(), this.#publisher.idle()]));
      // Called in the body of a loop it would wait for itself: the loop ends with its next turn, and then the client.
      if (looping) {
        void all.then(() => this.destroy());
        await within(this.#clock, ms, this.#publisher.idle());
        return;
      }
      await all;
    }
    this.destroy();
  }

  #end(error: NarthexError): void {
    if (this.#state === "closed") return;
    this.#fault = error;
    this.#retry?.cancel();
    const connection = this.#connection;
    this.#disconnect();
    this.#become("closed", error.message);
    this.#live.reject(error);
    this.#publisher.fail(error);
    this.#subscriber.fail(error);
    connection?.close();
  }

  // -------------------------------------------------------------------------------------------------------- the connection

  async #open(): Promise<void> {
    const openMs = Math.min(openMsMax, this.#options.connectTimeoutMs);
    let connection: Connection;
    try {
      // The end of the client ends this wait too.
      const ended = this.#live.promise as Promise<never>;
      const token = await within(this.#clock, openMs, Promise.race([this.#token(), ended]));
      if (token === undefined) throw new ConnectionError("connect_failed", `no token within ${openMs} ms`);
      if (this.#state === "closed") return;
      connection = new Connection({
        dial: this.#options.dial ?? dialSocket,
        url: this.#url,
        token: token.text,
        clock: this.#clock,
        openMs,
        silentMs,
        answerMs,
        onLost: (lost, reason) => this.#lost(lost, reason),
        onEnded: (topic, group, why) => this.#subscriber.ended(topic, group, why),
      });
      this.#connection = connection;
      await connection.opened;
    } catch (error) {
      this.#failed(error);
      return;
    }
    this.#opened(connection);
  }

  #opened(connection: Connection): void {
    // Closed, or lost in the same turn.
    if (!connection.live) return;
    this.#openedAt = this.#clock.mono();
    this.#become("open", "connected");
    this.#publisher.connected(connection);
    this.#subscriber.connected(connection);
    this.#live.resolve(connection);
  }

  #disconnect(): void {
    if (this.#state === "open") this.#live = deferred();
    this.#connection = undefined;
  }

  #failed(error: unknown): void {
    if (this.#state === "closed") return;
    this.#disconnect();
    const fault = error instanceof NarthexError ? error : new ConnectionError("connect_failed", textOf(error));
    // A token that a function gives may be good the next time; one that was given as text stays what it is.
    const hopeless = fault instanceof RefusedError && !fault.retryable && typeof this.#options.token !== "function";
    const first = this.#state === "connecting";
    if (hopeless || (first && (this.#clock.mono() >= this.#firstUntil || this.#options.reconnect === false))) {
      this.#end(fault);
      return;
    }
    this.#again();
  }

  #lost(connection: Connection, reason: string): void {
    if (this.#connection !== connection) return;
    // One that ended at once is no sign that the node is well: the pauses go on growing.
    if (this.#clock.mono() - this.#openedAt >= steadyMs) this.#failures = 0;
    this.#disconnect();
    this.#publisher.lost();
    this.#subscriber.lost();
    if (this.#options.reconnect === false) {
      this.#end(new ConnectionError("connection_lost", `the connection to ${this.#url} was lost: ${reason}`));
      return;
    }
    this.#become("reconnecting", reason);
    this.#again();
  }

  #again(): void {
    const clock = this.#clock;
    const { reconnectMinMs, reconnectMaxMs } = this.#options;
    const pause = backoffMs(clock, this.#failures++, 0, reconnectMinMs, reconnectMaxMs);
    const first = this.#state === "connecting" ? Math.max(1, this.#firstUntil - clock.mono()) : pause;
    this.#retry = clock.after(Math.min(first, pause), () => void this.#open());
  }

  #become(state: ClientStatus, reason: string): void {
    this.#state = state;
    const { onStatus } = this.#options;
    // On a turn of its own: what it throws is its caller's, and nothing here is half done.
    if (onStatus !== undefined) this.#clock.soon(() => onStatus(state, reason));
  }

  async #token(): Promise<{ readonly text: string | undefined }> {
    const { token } = this.#options;
    return { text: typeof token === "function" ? await token() : token };
  }

  async #connected(ms: number): Promise<Connection> {
    const connection = await within(this.#clock, ms, this.#live.promise);
    if (connection === undefined) throw new TimeoutError("timeout", `no connection to ${this.#url}`);
    return connection;
  }

  /** A question that may be asked again: over lost connections and refusals that pass, until its time is over. */
  async #request(frame: { readonly op: string; readonly [field: string]: unknown }): Promise<Ok> {
    const clock = this.#clock;
    const until = clock.mono() + this.#options.requestTimeoutMs;
    for (let tries = 0; ; tries++) {
      const connection = await this.#connected(until - clock.mono());
      try {
        const answer = await within(this.#clock, until - clock.mono(), connection.request(frame));
        if (answer !== undefined) return answer;
        throw new TimeoutError("timeout", `no answer to ${frame.op} within ${this.#options.requestTimeoutMs} ms`);
      } catch (error) {
        const { retryable, retryAfterMs } = error as NarthexError;
        const pause = backoffMs(clock, tries, retryAfterMs);
        if (!retryable || this.#fault !== undefined || clock.mono() + pause >= until) throw this.#fault ?? error;
        await new Promise<void>((resolve) => void clock.after(pause, resolve));
      }
    }
  }
}

function closed(): ClosedError {
  return new ClosedError("closed", "the client was closed");
}

function checked(options: ClientOptions): ClientOptions {
  const given = Object.entries(options).filter(([, value]) => value !== undefined);
  for (const [name, value] of given) {
    if (!optionNames.has(name)) throw new RefusedError("bad_option", `${name} is no option of a client`);
    if (name in defaults && !((value as number) > 0)) {
      throw new RefusedError("bad_option", `${name} must be a number above 0`);
    }
  }
  return Object.fromEntries(given);
}

/** http and https are taken for what they mean. */
function socketUrl(text: string): string {
  const url = URL.canParse(text) ? new URL(text) : undefined;
  const protocol = url?.protocol.replace(/^http/, "ws");
  if (url === undefined || (protocol !== "ws:" && protocol !== "wss:")) {
    throw new RefusedError(
      "bad_option",
      `${JSON.stringify(text)} is no address of a node, such as ws://127.0.0.1:8090`,
    );
  }
  if (url.username !== "" || url.password !== "") {
    throw new RefusedError("bad_option", "a token does not belong into the address: give it as an option");
  }
  url.protocol = protocol;
  url.hash = "";
  return url.href;
}

function cursorOf(topic: string, group: string, { op, corr, exists, ...cursor }: Ok): Cursor {
  return { ...(cursor as unknown as Cursor), topic, group };
}

/** A cursor that was read can be given back as it is. */
function targetOf(to: CursorTarget): unknown {
  return typeof to === "string" || "offsets" in to ? to : { lastId: to.lastId, lastTs: to.lastTs };
}
