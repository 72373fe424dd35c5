// Everything this client publishes: checks each event, lays it out over the lanes of its topic (lane.ts) and sees to it that every call
// is answered. A topic is opened on each connection that has something for it. How many partitions it has decides the lanes; if that
// has changed, the topic was made anew, and what is not stored is laid out anew, in the order of the calls.

import type { Published, PublishOptions } from "../bus/event-bus.ts";
import { frameBounds } from "../protocol/bounds.ts";
import { codes, type Failure, failure, isFailure } from "../protocol/failure.ts";
import { jumpHash } from "../protocol/jump-hash.ts";
import { publishTopicFault } from "../protocol/names.ts";
import { decodePublishOptions } from "../protocol/options.ts";
import type { Extension } from "../protocol/pack.ts";
import { nestsTooDeep } from "../protocol/payload.ts";
import { backoffMs } from "./backoff.ts";
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

const noExtension: Extension = {};
const noPayload = new Uint8Array(0);

export class Publisher {
  private readonly options: PublisherOptions;
  private readonly topics = new Map<string, TopicLanes>();
  private link: Link | undefined;
  private fault: NarthexError | undefined;
  private calls = 0;
  private count = 0;
  private chars = 0;
  /** Topics with something to send when this turn is over. */
  private readonly stirred = new Set<TopicLanes>();
  private dueAt = Number.POSITIVE_INFINITY;
  private timer: Timer | undefined;
  private readonly waiters: { readonly enough: () => boolean; readonly resolve: () => void }[] = [];

  constructor(options: PublisherOptions) {
    this.options = options;
  }

  /** Resolves when the event is stored; never throws. */
  publish(topic: string, payload: unknown, options?: PublishOptions): Promise<Published> {
    return new Promise((resolve, reject) => {
      const checked = this.check(topic, payload, options);
      if ("text" in checked) this.take(topic, payload, checked, resolve, reject);
      else reject(checked);
    });
  }

  /** Resolves when there is room again. */
  room(): Promise<void> {
    const { pendingEventsMax, pendingBytesMax } = this.options;
    return this.full
      ? this.wait(() => this.count <= pendingEventsMax / 2 && this.chars <= pendingBytesMax / 2)
      : Promise.resolve();
  }

  /** Resolves when nothing is pending. */
  idle(): Promise<void> {
    return this.count > 0 ? this.wait(() => this.count === 0) : Promise.resolve();
  }

  connected(link: Link): void {
    this.link = link;
    for (const topic of this.topics.values()) topic.connected(link);
  }

  /** The connection is gone, and everything that was asked was answered "lost". */
  lost(): void {
    this.link = undefined;
    for (const topic of this.topics.values()) topic.lost();
  }

  /** Rejects everything that is pending, and everything from now on. */
  fail(error: NarthexError): void {
    this.fault = error;
    this.link = undefined;
    this.timer?.cancel();
    for (const topic of this.topics.values()) {
      topic.lost();
      topic.fail(error, false);
    }
  }

  private get full(): boolean {
    return this.count >= this.options.pendingEventsMax || this.chars >= this.options.pendingBytesMax;
  }

  private wait(enough: () => boolean): Promise<void> {
    return new Promise((resolve) => this.waiters.push({ enough, resolve }));
  }

  private check(topic: string, payload: unknown, options: PublishOptions | undefined): Checked | NarthexError {
    if (this.fault !== undefined) return this.fault;
    const fault = this.topics.has(topic) ? undefined : publishTopicFault(topic);
    if (fault !== undefined) return refused(failure("bad_topic", fault));
    const text = jsonOf(payload);
    if (typeof text !== "string") return refused(text);
    const bytesMax = this.link?.maxPayload ?? Number.POSITIVE_INFINITY;
    if (text.length > bytesMax) return refused(failure("too_large", `payload has more than ${bytesMax} bytes`));
    const { publishTimeoutMs } = this.options;
    const checked = options
      ? checkOptions(options, publishTimeoutMs)
      : { extension: noExtension, ms: publishTimeoutMs };
    if (isFailure(checked)) return refused(checked);
    if (this.full) return new RefusedError("client_full", `${this.count} events wait to be stored, there is no room`);
    return { text, ...checked };
  }

  private take(
    topic: string,
    payload: unknown,
    { text, extension, ms }: Checked,
    resolve: (published: Published) => void,
    reject: (error: NarthexError) => void,
  ): void {
    let lanes = this.topics.get(topic);
    if (lanes === undefined) {
      // Names that cannot be published to are not remembered: there is no end of them.
      lanes = new TopicLanes(topic, this.options.clock, () => this.topics.delete(topic));
      if (this.link !== undefined) lanes.connected(this.link);
      this.topics.set(topic, lanes);
    }
    const until = this.options.clock.mono() + ms;
    const { onSettled } = this;
    const number = this.calls++;
    this.count++;
    this.chars += text.length;
    const event = new Outgoing({ number, topic, payload, text, extension, until, resolve, reject, onSettled });
    lanes.push(event);
    this.stir(lanes);
    if (until < this.dueAt) this.watch(until);
  }

  private readonly onSettled = ({ call }: Outgoing): void => {
    this.count--;
    this.chars -= call.text.length;
    if (this.waiters.length === 0) return;
    const waiters = this.waiters.splice(0);
    for (const waiter of waiters) waiter.enough() ? waiter.resolve() : this.waiters.push(waiter);
  };

  /** Calls of one turn travel together. */
  private stir(lanes: TopicLanes): void {
    this.stirred.add(lanes);
    if (this.stirred.size > 1) return;
    this.options.clock.soon(() => {
      const stirred = [...this.stirred];
      this.stirred.clear();
      for (const topic of stirred) topic.flush();
    });
  }

  private watch(until: number): void {
    const { clock } = this.options;
    this.timer?.cancel();
    this.dueAt = until;
    const look = () => {
      this.dueAt = Number.POSITIVE_INFINITY;
      const now = clock.mono();
      let next = Number.POSITIVE_INFINITY;
      for (const topic of this.topics.values()) next = Math.min(next, topic.expire(now));
      if (next < this.dueAt) this.watch(next);
    };
    this.timer = clock.after(until - clock.mono(), look, true);
  }
}

interface Checked {
  readonly text: string;
  readonly extension: Extension;
  readonly ms: number;
}

function checkOptions(options: PublishOptions, publishTimeoutMs: number): Omit<Checked, "text"> | Failure {
  const given: { [name: string]: unknown } = {};
  for (const [name, value] of Object.entries(options)) if (value !== undefined) given[name] = value;
  const { timeoutMs: ms = publishTimeoutMs, ...fields } = given;
  if (!((ms as number) > 0)) return failure("bad_option", "timeoutMs must be a number above 0");
  const extension = decodePublishOptions(fields, noPayload);
  return isFailure(extension) ? extension : { extension, ms: ms as number };
}

function jsonOf(payload: unknown): string | Failure {
  let text: string | undefined;
  try {
    text = payload instanceof RawJson ? payload.text : JSON.stringify(payload);
  } catch (error) {
    return failure("bad_json", `payload is not JSON: ${String((error as Error).message).split("\n")[0]}`);
  }
  if (text === undefined) return failure("bad_json", `payload is not JSON: ${typeof payload}`);
  const { nestingMax } = frameBounds;
  return nestsTooDeep(text, nestingMax) ? failure("bad_json", `payload nests deeper than ${nestingMax}`) : text;
}

/** One topic: its lanes once it was opened, and what waits until then. */
class TopicLanes {
  private readonly topic: string;
  private readonly clock: ClientClock;
  /** It was never opened, and cannot be. */
  private readonly onRefused: () => void;
  private lanes: readonly Lane[] = [];
  private waiting: Outgoing[] = [];
  /** `quieting`: to be opened again as soon as nothing is under way. */
  private status: "closed" | "opening" | "open" | "quieting" = "closed";
  private link: Link | undefined;
  /** It was opened again because of a refusal, and nothing was stored since. */
  private reopened = false;
  private turn = 0;
  private refusals = 0;
  private timer: Timer | undefined;

  constructor(topic: string, clock: ClientClock, onRefused: () => void) {
    this.topic = topic;
    this.clock = clock;
    this.onRefused = onRefused;
  }

  private get empty(): boolean {
    return this.waiting.length === 0 && this.lanes.every(({ empty }) => empty);
  }

  push(event: Outgoing): void {
    if (this.status === "open") this.lay(event);
    else this.waiting.push(event);
  }

  /** At the end of a turn. */
  flush(): void {
    if (this.status === "closed" && !this.empty) this.open();
    for (const lane of this.lanes) lane.pump();
    // Events without a key take turns among the partitions; those of one turn of the event loop stay together.
    this.turn++;
  }

  connected(link: Link): void {
    this.link = link;
    if (!this.empty) this.open();
  }

  lost(): void {
    this.link = undefined;
    this.status = "closed";
    this.timer?.cancel();
    for (const lane of this.lanes) lane.halt();
  }

  fail(error: NarthexError, refused: boolean): void {
    this.timer?.cancel();
    for (const event of this.waiting.splice(0)) event.reject(error);
    for (const lane of this.lanes) lane.fail(error, refused);
  }

  expire(now: number): number {
    const next = expire(this.waiting, now, (event) => event.timeOut());
    this.waiting = this.waiting.filter(isOpen);
    return Math.min(next, ...this.lanes.map((lane) => lane.expire(now)));
  }

  private open(): void {
    const { link, topic } = this;
    if (link === undefined) return;
    this.status = "opening";
    link.ask({ op: "OPEN", topic }, (answer) => {
      if (answer !== "lost" && link === this.link) this.opened(link, answer);
    });
  }

  private opened(link: Link, answer: Exclude<Answer, "lost">): void {
    if (isFailure(answer)) {
      this.status = "closed";
      if (codes[answer.code].retryable) {
        this.status = "opening";
        const waitMs = answer.retry_after_ms ?? backoffMs(this.clock, this.refusals++);
        this.timer = this.clock.after(waitMs, () => this.open());
      } else {
        this.fail(refused(answer), true);
        if (this.lanes.length === 0) this.onRefused();
      }
      return;
    }
    const { handle, partitions, durability } = answer as Ok & {
      handle: number;
      partitions: number;
      durability: string;
    };
    this.refusals = 0;
    this.status = "open";
    if (partitions !== this.lanes.length) this.layAnew(partitions);
    for (const event of this.waiting.splice(0)) this.lay(event);
    for (const lane of this.lanes) lane.open({ link, handle, durability });
  }

  private layAnew(partitions: number): void {
    this.waiting = [...this.lanes.flatMap((lane) => lane.drain()), ...this.waiting];
    this.waiting.sort((a, b) => a.call.number - b.call.number);
    this.lanes = Array.from({ length: partitions }, (_, partition) => {
      const { clock } = this;
      return new Lane({
        clock,
        partition,
        onStored: () => {
          this.reopened = false;
        },
        onUnknownTopic: () => this.reopen(),
        onQuiet: () => this.quiet(),
      });
    });
  }

  private lay(event: Outgoing): void {
    const { key, id } = event.call.extension;
    const named = key ?? id;
    const { length } = this.lanes;
    this.lanes[named === undefined ? this.turn % length : jumpHash(named, length)].push(event);
  }

  private reopen(): boolean {
    if (this.status === "quieting") return true;
    if (this.reopened || this.status !== "open") return false;
    this.reopened = true;
    this.status = "quieting";
    for (const lane of this.lanes) lane.halt();
    return true;
  }

  private quiet(): void {
    if (this.status === "quieting" && this.lanes.every(({ quiet }) => quiet)) this.open();
  }
}
