// One connection, from its first byte to its end. Frames are taken in their order: one that has to wait (for the auth hook, for a
// topic that is being resolved, for a budget, for a SUBSCRIBE to be in force) holds those behind it, and when too many wait the
// socket is not read for a while. Answers may come in another order; `corr` tells them apart. In one turn of the event loop a connection
// gets through with so many frames, then the others have their turn: libuv reads up to 2 MiB of a socket before it looks at the next
// one, and small frames by the hundred thousand held everybody else for seconds.

import { batchCorr, type ClientBatch, decodeClientBatch } from "../protocol/batch.ts";
import { type BadFrame, decodeFrame } from "../protocol/decode.ts";
import { errText, okText } from "../protocol/encode.ts";
import { type Failure, failure, isFailure } from "../protocol/failure.ts";
import type { AuthFrame, ClientFrame, Corr, CursorFrame, LatestFrame, OkFields } from "../protocol/frames.ts";
import { faultFields } from "../runtime/log.ts";
import { authenticate, type Granted, type Rights } from "./auth.ts";
import type { Caller, Hall, Step } from "./hall.ts";
import { Outlet, type Peer, type Pipe } from "./outlet.ts";
import { startsOf } from "./place.ts";
import { Publisher } from "./publisher.ts";
import { latestText, readCursor, seekCursor } from "./reading.ts";
import type { Route } from "./router.ts";
import { Subscriber } from "./subscriber.ts";
import { addressOf, whoIs } from "./who.ts";

/** In this order, never back. */
export type Status = "starting" | "authed" | "draining" | "closed";

/** Close codes of our own, and those of RFC 6455 that we use. */
export const closeCodes = { goingAway: 1001, noAuth: 4401, stalled: 4408 } as const;

type Input = ClientFrame | ClientBatch | BadFrame;

/** A few milliseconds of work where frames are as small as can be. What is left in the piece of the socket that was read waits, unread as JSON. */
const framesPerTurnMax = 256;

interface Waiting {
  readonly frame: string | Uint8Array;
  readonly bytes: number;
  /** Once it was looked at. */
  input?: Input;
}

const noRights: Rights = { publish: () => false, subscribe: () => false, admin: false };

export class Session implements Caller {
  readonly id: number;
  /** Monotonic times: of the connection, and of the last ping. */
  readonly since: number;
  pingedAt: number;
  /** Whether anything was heard of the peer since then. */
  alive = true;
  readonly outlet: Outlet;
  batches = false;
  private readonly hall: Hall;
  private readonly peer: Peer;
  private readonly address: string | undefined;
  private status: Status = "starting";
  private granted: Granted | undefined;
  private waiting: Waiting[] = [];
  private waitingBytes = 0;
  private held = false;
  private resuming = false;
  /** The turn of the event loop in which a frame was last handled, and how many were. */
  private turn = -1;
  private handled = 0;
  private yielding = false;
  /** Requests that were handed on and are not answered yet. */
  private underWay = 0;
  private reading = true;
  private stalled = false;
  // Made on first use, so that an idle connection costs little more than its socket.
  private publisher: Publisher | undefined;
  private subscriber: Subscriber | undefined;

  constructor(hall: Hall, { id, peer, pipe }: { readonly id: number; readonly peer: Peer; readonly pipe: Pipe }) {
    this.hall = hall;
    this.id = id;
    this.peer = peer;
    this.address = addressOf(pipe);
    this.since = hall.clock.mono();
    this.pingedAt = this.since;
    const { corks, counters, config } = hall;
    this.outlet = new Outlet({
      peer,
      pipe,
      corks,
      unsentBytesMax: config.limits.unsentBytesMax,
      onFull: (full) => {
        if (full) counters.slowPaused++;
        this.stall(full);
        this.throttle();
      },
      onSent: (frames) => {
        counters.framesOut += frames;
      },
    });
  }

  get who(): string {
    return whoIs(this.id, this.address, this.granted?.identity);
  }

  get subscriptions(): number {
    return this.subscriber?.count ?? 0;
  }

  get draining(): boolean {
    return this.status === "draining";
  }

  get closed(): boolean {
    return this.status === "closed";
  }

  get authed(): boolean {
    return this.granted !== undefined;
  }

  get rights(): Rights {
    return this.granted?.rights ?? noRights;
  }

  /** Something that was asked is being answered: what only waits for its turn does not count. */
  get asks(): boolean {
    return this.underWay > 0 || this.held;
  }

  /** Nothing that was asked waits for its answer. */
  get idle(): boolean {
    return this.underWay === 0 && !this.held && this.waiting.length === 0;
  }

  /** Whether we read from the socket: if not, that nothing is heard of the peer says nothing about it. */
  get listening(): boolean {
    return this.reading;
  }

  // ------------------------------------------------------------------------------------------------------------- coming in

  /** A frame, and how many bytes it came in. */
  receive(frame: string | Uint8Array, bytes: number): void {
    if (this.closed) return;
    this.alive = true;
    this.hall.counters.framesIn++;
    if (this.held || this.full || this.waiting.length > 0 || this.yields()) {
      this.waiting.push({ frame, bytes });
      this.waitingBytes += bytes;
    } else this.handle(this.decode(frame));
    this.throttle();
  }

  resume(step: Step): void {
    if (step === "held") return;
    this.held = false;
    this.takeWaiting();
    this.throttle();
  }

  /** What is under way is as much as may be. Frames that came in one piece of the socket wait; the socket is not read meanwhile. */
  private get full(): boolean {
    return this.underWay >= this.hall.config.limits.pendingPerConnectionMax;
  }

  /** Whether the rest must wait for the next turn of the event loop, which goes on with it. */
  private yields(): boolean {
    const { turns, clock } = this.hall;
    const turn = turns.now();
    if (turn !== this.turn) {
      this.turn = turn;
      this.handled = 0;
    }
    if (this.handled < framesPerTurnMax) return false;
    if (!this.yielding) {
      this.yielding = true;
      clock.soon(() => {
        this.yielding = false;
        if (!this.held) this.takeWaiting();
        this.throttle();
      });
    }
    return true;
  }

  private takeWaiting(): void {
    // One that is answered at once calls this again.
    if (this.resuming) return;
    this.resuming = true;
    let at = 0;
    while (at < this.waiting.length && !this.held && !this.full && !this.yields()) {
      const next = this.waiting[at++];
      this.waitingBytes -= next.bytes;
      this.handle(this.inputOf(next));
    }
    // Closing empties the list in between.
    this.waiting = this.waiting.slice(at);
    this.resuming = false;
  }

  hold<T>(corr: Corr | undefined, promise: Promise<T>, then: (value: T) => Step): Step {
    promise.then(then).then(
      (step) => this.resume(step),
      (error: Error) => {
        this.fault(error, corr);
        this.resume("through");
      },
    );
    return "held";
  }

  behind(topic?: string): number {
    let count = 0;
    for (const one of this.waiting) {
      const input = this.inputOf(one);
      if ("failure" in input || input.op !== "PUBLISH" || !("entry" in input)) break;
      if (topic === undefined || input.topic === topic) count++;
    }
    return count;
  }

  began(weight = 1): void {
    this.underWay += weight;
  }

  ended(weight = 1): void {
    this.underWay -= weight;
    if (this.waiting.length > 0 && !this.held) this.takeWaiting();
    if (!this.reading) this.throttle();
  }

  private decode(frame: string | Uint8Array): Input {
    const { maxPayload, limits } = this.hall.config;
    if (typeof frame === "string") return decodeFrame(frame, { maxPayload });
    const batch = decodeClientBatch(frame, { maxPayload, batchEventsMax: limits.batchEventsMax });
    return isFailure(batch) ? { failure: batch, corr: batchCorr(frame) } : batch;
  }

  private inputOf(waiting: Waiting): Input {
    waiting.input ??= this.decode(waiting.frame);
    return waiting.input;
  }

  private handle(input: Input): void {
    this.handled++;
    try {
      this.held = this.dispatch(input) === "held";
    } catch (error) {
      this.fault(error as Error, input.corr);
    }
  }

  private dispatch(input: Input): Step {
    if ("failure" in input) return this.refuse(input.failure, input.corr);
    if (input.op === "AUTH") return this.authenticate(input);
    if (!this.authed) return this.refuse(failure("unauthorized", "the first frame is AUTH"), input.corr);
    switch (input.op) {
      case "PUBLISH":
        if ("entry" in input) return this.publishes().single(input);
        return this.batches ? this.publishes().batch(input) : this.noBatches(input.corr);
      case "OPEN":
        return this.publishes().open(input.topic, input.corr);
      case "SETTLE":
        return this.batches ? this.subscribes().settleRuns(input) : this.noBatches(input.corr);
      case "SUBSCRIBE":
        return this.subscribes().subscribe(input);
      case "UNSUBSCRIBE":
      case "PAUSE":
      case "RESUME":
        return this.subscribes().steer(input);
      case "ACK":
      case "NACK":
      case "MODACK":
        return this.subscribes().settle(input);
      case "CURSOR":
        return this.cursor(input);
      case "LATEST":
        return this.latest(input);
      case "PING":
        return this.ok<"PING">(input.corr);
      default: {
        const never: never = input;
        return never;
      }
    }
  }

  private publishes(): Publisher {
    this.publisher ??= new Publisher(this.hall, this);
    return this.publisher;
  }

  private subscribes(): Subscriber {
    this.subscriber ??= new Subscriber(this.hall, this);
    return this.subscriber;
  }

  private noBatches(corr: Corr | undefined): Step {
    return this.refuse(failure("bad_frame", "binary frames are for clients that said batch: 1 in AUTH"), corr);
  }

  /** Reads on only while little waits here: nothing is dropped, the peer is made to wait. */
  private throttle(): void {
    if (this.closed) return;
    const { limits, maxFrame } = this.hall.config;
    const pending = this.waiting.length + this.underWay;
    const full =
      pending >= limits.pendingPerConnectionMax || this.waitingBytes >= maxFrame || this.outlet.full || this.yielding;
    if (full && this.reading) {
      this.reading = false;
      this.peer.pause();
    } else if (!full && !this.reading && pending <= limits.pendingPerConnectionMax / 2) {
      this.reading = true;
      this.peer.resume();
    }
  }

  // ---------------------------------------------------------------------------------------------------------------- frames

  /** A refused AUTH changes nothing: who was let in before stays in, with the rights of before. */
  private authenticate({ token, batch, corr }: AuthFrame): Step {
    const { auth, clock, config } = this.hall;
    // Half of what the connection has in all, so that the client hears of a hook that hangs before it is closed for it.
    const answer = authenticate({ auth, clock, deadlineMs: config.limits.authMs / 2 }, token);
    return this.hold(corr, answer, (granted) => {
      if (isFailure(granted)) return this.refuse(granted, corr);
      this.granted = granted;
      if (this.status === "starting") this.status = "authed";
      this.subscriber?.restrict(granted.rights);
      if (!batch) return this.ok<"AUTH">(corr);
      this.batches = true;
      return this.ok<"AUTH">(corr, { batch: 1, max_frame: config.maxFrame, max_payload: config.maxPayload });
    });
  }

  private cursor({ topic, group, set, corr }: CursorFrame): Step {
    const { system, settling } = this.hall;
    return this.read(topic, group, corr, async (route) => {
      if (set === undefined) return readCursor(system, route, group);
      const starts = await startsOf(system, route, set);
      if (isFailure(starts)) return starts;
      settling.flush();
      const moved = await seekCursor(system, route, group, starts);
      // Which event lies below the new floor only reading can say.
      return isFailure(moved) ? moved : readCursor(system, route, group);
    });
  }

  private latest({ topic, keys, after, corr }: LatestFrame): Step {
    return this.read(topic, "", corr, (route) => latestText(this.hall.system, route, { keys, after }, corr));
  }

  private read(
    topic: string,
    group: string,
    corr: Corr | undefined,
    ask: (route: Route) => Promise<object | string | Failure>,
  ): Step {
    if (!this.rights.subscribe(topic, group)) {
      return this.refuse(failure("forbidden", `no right to subscribe to ${topic}`), corr);
    }
    const answer = this.hall.router
      .resolve(topic, { create: false })
      .then((route) => (isFailure(route) ? route : ask(route)));
    return this.hold(corr, answer, (found) => {
      if (isFailure(found)) return this.refuse(found, corr);
      this.say(typeof found === "string" ? found : JSON.stringify({ op: "OK", corr, ...found }));
      return "through";
    });
  }

  // ------------------------------------------------------------------------------------------------------------- going out

  say(frame: string | Uint8Array): void {
    if (!this.closed) this.outlet.send(frame);
  }

  ok<Op extends keyof OkFields>(corr: Corr | undefined, fields?: OkFields[Op]): Step {
    this.say(okText(corr, fields));
    return "through";
  }

  refuse(refused: Failure, corr: Corr | undefined): Step {
    this.hall.counters.refused(refused.code);
    this.say(errText(refused, corr));
    return "through";
  }

  private fault(error: Error, corr: Corr | undefined): void {
    this.hall.log.error("a frame was not handled", { session: this.id, ...faultFields(error) });
    this.refuse(failure("internal", "this frame was not handled, see the log of the node"), corr);
  }

  // ---------------------------------------------------------------------------------------------------------------- ending

  /** The socket takes what it is sent, or not: leases that it has not taken must not count as attempts. */
  stall(stalled: boolean): void {
    if (this.stalled === stalled || this.closed) return;
    this.stalled = stalled;
    this.subscriber?.stall(stalled);
  }

  /** Delivers nothing more, takes ACKs. */
  drain(): void {
    if (this.closed) return;
    this.status = "draining";
    this.subscriber?.halt();
  }

  /** Says why and ends. The peer has a while to answer; nothing of the session is left to wait for it. */
  close(code: number, reason: string, cause: "disconnect" | "shutdown" = "disconnect"): Promise<unknown> {
    const left = this.end(cause);
    this.peer.close(code, reason);
    // Not read, the answer to the close frame would never be seen.
    if (!this.reading) this.peer.resume();
    return left;
  }

  /** The connection is gone or about to be: leases go back. */
  end(cause: "disconnect" | "shutdown" = "disconnect"): Promise<unknown> {
    if (this.closed) return Promise.resolve();
    this.status = "closed";
    this.waiting = [];
    this.publisher?.close();
    return this.subscriber?.close(cause) ?? Promise.resolve();
  }

  ping(now: number): void {
    this.pingedAt = now;
    this.alive = false;
    if (this.peer.readyState === this.peer.OPEN) this.peer.ping();
  }

  terminate(): void {
    void this.end();
    this.peer.terminate();
  }
}
