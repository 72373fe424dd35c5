// Everything this client publishes: checks each event, lays it out over the lanes of its topic (lane.ts) and sees to it that every call
// is answered. A topic is opened on each connection that has something for it. How many partitions it has decides the lanes; if that
// has changed, the topic was made anew, and what is not stored is laid out anew, in the order of the calls.

import type { Published, PublishOptions } from "../bus/event-bus.ts";
import { nestingMax } from "../protocol/bounds.ts";
import { type Code, isFailure, isRetryable } from "../protocol/failure.ts";
import { jumpHash } from "../protocol/jump-hash.ts";
import { topicCharsMax } from "../protocol/names.ts";
import type { Extension } from "../protocol/pack.ts";
import { nestsTooDeep } from "../protocol/payload.ts";
import { utf8Bytes } from "../protocol/utf8.ts";
import { backoffMs } from "./backoff.ts";
import { Bell } from "./bell.ts";
import type { ClientClock, Timer } from "./clock.ts";
import type { Answer, Ok } from "./connection.ts";
import { type NarthexError, RefusedError, refused } from "./errors.ts";
import { expire, isOpen, Lane, type Link } from "./lane.ts";
import { Outgoing } from "./outgoing.ts";
import { RawJson } from "./raw-json.ts";

export interface PublisherOptions {
  readonly clock: ClientClock;
  /** How long to try, unless the call says otherwise. */
  readonly publishTimeoutMs: number;
  readonly pendingEventsMax: number;
  readonly pendingBytesMax: number;
}

/** Past these lengths an extension has no room for them. */
const keyBytesMax = 0xffff;
const idBytesMax = 0xff;
const noExtension: Extension = {};

export class Publisher {
  readonly #options: PublisherOptions;
  readonly #topics = new Map<string, TopicLanes>();
  #link: Link | undefined;
  #fault: NarthexError | undefined;
  #calls = 0;
  #count = 0;
  #chars = 0;
  /** Topics with something to send when this turn is over. */
  readonly #stirred = new Set<TopicLanes>();
  #dueAt = Number.POSITIVE_INFINITY;
  #timer: Timer | undefined;
  readonly #settled = new Bell();

  constructor(options: PublisherOptions) {
    this.#options = options;
  }

  /** Resolves when the event is stored; never throws. */
  publish(topic: string, payload: unknown, options?: PublishOptions): Promise<Published> {
    // What is thrown in here is a rejection.
    return new Promise((resolve, reject) => {
      this.#take(topic, payload, this.#checked(topic, payload, options), resolve, reject);
    });
  }

  /** Resolves when there is room again. */
  room(): Promise<void> {
    const { pendingEventsMax, pendingBytesMax } = this.#options;
    const full = this.#full;
    return this.#settled.until(
      () => !full || (this.#count <= pendingEventsMax / 2 && this.#chars <= pendingBytesMax / 2),
    );
  }

  /** Resolves when nothing is pending. */
  idle(): Promise<void> {
    return this.#settled.until(() => this.#count === 0);
  }

  connected(link: Link): void {
    this.#link = link;
    for (const topic of this.#topics.values()) topic.connected(link);
  }

  /** The connection is gone, and everything that was asked was answered "lost". */
  lost(): void {
    this.#link = undefined;
    for (const topic of this.#topics.values()) topic.lost();
  }

  /** Rejects everything that is pending, and everything from now on. */
  fail(error: NarthexError): void {
    this.#fault = error;
    this.#link = undefined;
    this.#timer?.cancel();
    for (const topic of this.#topics.values()) {
      topic.lost();
      topic.fail(error, false);
    }
  }

  get #full(): boolean {
    return this.#count >= this.#options.pendingEventsMax || this.#chars >= this.#options.pendingBytesMax;
  }

  #checked(topic: string, payload: unknown, options: PublishOptions | undefined): Checked {
    if (this.#fault !== undefined) throw this.#fault;
    if (typeof topic !== "string" || topic.length > topicCharsMax) {
      throw new RefusedError("bad_topic", `topic must be a string of at most ${topicCharsMax} characters`);
    }
    const text = jsonOf(payload, "bad_json", "payload");
    const bytesMax = this.#link?.maxPayload ?? Number.POSITIVE_INFINITY;
    if (text.length > bytesMax) throw new RefusedError("too_large", `payload has more than ${bytesMax} bytes`);
    const { timeoutMs = this.#options.publishTimeoutMs, ...fields } = options ?? {};
    if (typeof timeoutMs !== "number" || !(timeoutMs > 0))
      throw new RefusedError("bad_option", "timeoutMs must be a number above 0");
    const extension = options === undefined ? noExtension : extensionOf(fields);
    if (this.#full) throw new RefusedError("client_full", `${this.#count} events wait to be stored, there is no room`);
    return { text, extension, timeoutMs };
  }

  #take(
    topic: string,
    payload: unknown,
    { text, extension, timeoutMs }: Checked,
    resolve: (published: Published) => void,
    reject: (error: NarthexError) => void,
  ): void {
    let lanes = this.#topics.get(topic);
    if (lanes === undefined) {
      // Names that cannot be published to are not remembered: there is no end of them.
      lanes = new TopicLanes(topic, this.#options.clock, () => this.#topics.delete(topic));
      if (this.#link !== undefined) lanes.connected(this.#link);
      this.#topics.set(topic, lanes);
    }
    const until = this.#options.clock.mono() + timeoutMs;
    const onSettled = this.#onSettled;
    const number = this.#calls++;
    this.#count++;
    const event = new Outgoing({ number, topic, payload, text, extension, until, resolve, reject, onSettled });
    this.#chars += event.chars;
    lanes.push(event);
    this.#stir(lanes);
    if (until < this.#dueAt) this.#watch(until);
  }

  readonly #onSettled = ({ chars }: Outgoing): void => {
    this.#count--;
    this.#chars -= chars;
    this.#settled.ring();
  };

  /** Calls of one turn travel together. */
  #stir(lanes: TopicLanes): void {
    this.#stirred.add(lanes);
    if (this.#stirred.size > 1) return;
    this.#options.clock.soon(() => {
      const stirred = [...this.#stirred];
      this.#stirred.clear();
      for (const topic of stirred) topic.flush();
    });
  }

  #watch(until: number): void {
    const { clock } = this.#options;
    this.#timer?.cancel();
    this.#dueAt = until;
    const look = () => {
      this.#dueAt = Number.POSITIVE_INFINITY;
      const now = clock.mono();
      let next = Number.POSITIVE_INFINITY;
      for (const topic of this.#topics.values()) next = Math.min(next, topic.expire(now));
      if (next < this.#dueAt) this.#watch(next);
    };
    this.#timer = clock.after(until - clock.mono(), look, true);
  }
}

interface Checked {
  readonly text: string;
  readonly extension: Extension;
  readonly timeoutMs: number;
}

/** What goes with the payload. Refused is only what could not be written down; the rest is for the node to judge. */
function extensionOf({ key, id, ts, sid, headers, tags, caused_by, ...unknown }: PublishOptions): Extension {
  checkText("key", key, keyBytesMax);
  checkText("id", id, idBytesMax);
  if (ts !== undefined && typeof ts !== "number") throw new RefusedError("bad_option", "ts must be a number");
  // Meta has one spelling, this order and nothing empty. What has no place in it goes in too: the node refuses it by name.
  const lists = { headers: unlessEmpty(headers), tags: unlessEmpty(tags), caused_by: unlessEmpty(caused_by) };
  const meta = jsonOf({ sid, ...lists, ...unknown }, "bad_option", "an option");
  return { key, id, ts, meta: meta === "{}" ? undefined : meta };
}

function checkText(name: string, text: unknown, bytesMax: number): void {
  if (text === undefined) return;
  const bytes = typeof text === "string" ? utf8Bytes(text) : -1;
  if (bytes >= 0 && bytes <= bytesMax) return;
  throw new RefusedError("bad_option", `${name} must be a string, well formed and of at most ${bytesMax} bytes`);
}

function unlessEmpty<Value extends object>(value: Value | undefined): Value | undefined {
  return typeof value === "object" && value !== null && Object.keys(value).length === 0 ? undefined : value;
}

function jsonOf(value: unknown, code: Code, what: string): string {
  let text: string | undefined;
  let fault = `is not JSON: ${typeof value}`;
  try {
    text = value instanceof RawJson ? value.text : JSON.stringify(value);
  } catch (error) {
    fault = `is not JSON: ${String((error as Error).message).split("\n")[0]}`;
  }
  if (text !== undefined && !nestsTooDeep(text, nestingMax)) return text;
  throw new RefusedError(code, `${what} ${text === undefined ? fault : `nests deeper than ${nestingMax}`}`);
}

/** One topic: its lanes once it was opened, and what waits until then. */
class TopicLanes {
  readonly #topic: string;
  readonly #clock: ClientClock;
  /** It was never opened, and cannot be. */
  readonly #onRefused: () => void;
  #lanes: readonly Lane[] = [];
  #waiting: Outgoing[] = [];
  /** `quieting`: to be opened again as soon as nothing is under way. */
  #status: "closed" | "opening" | "open" | "quieting" = "closed";
  #link: Link | undefined;
  /** It was opened again because of a refusal, and nothing was stored since. */
  #reopened = false;
  #turn = 0;
  #refusals = 0;
  #timer: Timer | undefined;

  constructor(topic: string, clock: ClientClock, onRefused: () => void) {
    this.#topic = topic;
    this.#clock = clock;
    this.#onRefused = onRefused;
  }

  get #empty(): boolean {
    return this.#waiting.length === 0 && this.#lanes.every(({ empty }) => empty);
  }

  push(event: Outgoing): void {
    if (this.#status === "open") this.#lay(event);
    else this.#waiting.push(event);
  }

  /** At the end of a turn. */
  flush(): void {
    if (this.#status === "closed" && !this.#empty) this.#open();
    for (const lane of this.#lanes) lane.pump();
    // Events without a key take turns among the partitions; those of one turn of the event loop stay together.
    this.#turn++;
  }

  connected(link: Link): void {
    this.#link = link;
    if (!this.#empty) this.#open();
  }

  lost(): void {
    this.#link = undefined;
    this.#status = "closed";
    this.#timer?.cancel();
    for (const lane of this.#lanes) lane.halt();
  }

  fail(error: NarthexError, refused: boolean): void {
    this.#timer?.cancel();
    for (const event of this.#waiting.splice(0)) event.reject(error);
    for (const lane of this.#lanes) lane.fail(error, refused);
  }

  expire(now: number): number {
    const next = expire(this.#waiting, now, (event) => event.timeOut());
    this.#waiting = this.#waiting.filter(isOpen);
    return Math.min(next, ...this.#lanes.map((lane) => lane.expire(now)));
  }

  #open(): void {
    const link = this.#link;
    const topic = this.#topic;
    if (link === undefined) return;
    this.#status = "opening";
    link.ask({ op: "OPEN", topic }, (answer) => {
      if (answer !== "lost" && link === this.#link) this.#opened(link, answer);
    });
  }

  #opened(link: Link, answer: Exclude<Answer, "lost">): void {
    if (isFailure(answer)) {
      this.#status = "closed";
      if (isRetryable(answer)) {
        this.#status = "opening";
        const waitMs = answer.retry_after_ms ?? backoffMs(this.#clock, this.#refusals++);
        this.#timer = this.#clock.after(waitMs, () => this.#open());
      } else {
        this.fail(refused(answer), true);
        if (this.#lanes.length === 0) this.#onRefused();
      }
      return;
    }
    const { handle, partitions, durability } = answer as Ok & {
      handle: number;
      partitions: number;
      durability: string;
    };
    this.#refusals = 0;
    this.#status = "open";
    if (partitions !== this.#lanes.length) this.#layAnew(partitions);
    for (const event of this.#waiting.splice(0)) this.#lay(event);
    for (const lane of this.#lanes) lane.open({ link, handle, durability });
  }

  #layAnew(partitions: number): void {
    this.#waiting = [...this.#lanes.flatMap((lane) => lane.drain()), ...this.#waiting];
    this.#waiting.sort((a, b) => a.call.number - b.call.number);
    this.#lanes = Array.from({ length: partitions }, (_, partition) => {
      const clock = this.#clock;
      return new Lane({
        clock,
        partition,
        onStored: () => {
          this.#reopened = false;
        },
        onUnknownTopic: () => this.#reopen(),
        onQuiet: () => this.#quiet(),
      });
    });
  }

  #lay(event: Outgoing): void {
    const { key, id } = event.call.extension;
    const named = key ?? id;
    const { length } = this.#lanes;
    this.#lanes[named === undefined ? this.#turn % length : jumpHash(named, length)].push(event);
  }

  #reopen(): boolean {
    if (this.#status === "quieting") return true;
    if (this.#reopened || this.#status !== "open") return false;
    this.#reopened = true;
    this.#status = "quieting";
    for (const lane of this.#lanes) lane.halt();
    return true;
  }

  #quiet(): void {
    if (this.#status === "quieting" && this.#lanes.every(({ quiet }) => quiet)) this.#open();
  }
}
