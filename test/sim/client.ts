// A client of the simulated node: a socket that delays, stops taking and breaks, frames as a plain client sends them, and what it
// remembers of them. It handles what it gets after a while, well or badly; each thing it does is told to the checker.

import type { Front } from "../../src/front/front.ts";
import type { Peer, Pipe } from "../../src/front/outlet.ts";
import type { Heard } from "../../src/front/server.ts";
import type { Checker, Hit } from "./checker.ts";
import type { Coverage } from "./coverage.ts";
import type { EventFrame, Lease } from "./group-state.ts";
import { Scope, type World } from "./world.ts";

export interface Publication {
  readonly n: number;
  readonly client: number;
  readonly library: boolean;
  readonly topic: string;
  readonly key: string | undefined;
  readonly ownId: string | undefined;
  readonly sentWall: number;
  stored?: { readonly stream: number; readonly offset: number };
  refused?: string;
  confirmed?: boolean;
}

export interface Ask {
  readonly op: string;
  readonly sentAt: number;
  readonly publication?: Publication;
  readonly settle?: SettleAsk;
  readonly latest?: LatestAsk;
  readonly subscription?: Subscription;
}

/** The newest event of each key, and what those were when it was asked, by stream. */
export interface LatestAsk {
  readonly topic: string;
  readonly keys: readonly string[] | undefined;
  readonly newest: ReadonlyMap<number, ReadonlyMap<string, number>>;
}

/** An ACK, NACK or MODACK. */
export interface SettleAsk {
  readonly op: "ACK" | "NACK" | "MODACK";
  readonly by: string;
  readonly topic: string;
  readonly group: string;
  readonly id: string;
  /** The lease that it names. */
  readonly token: string | undefined;
  readonly sentAt: number;
  /** What it may have meant at the lease tables that it has reached. */
  readonly hits: Hit[];
}

export interface Subscription {
  readonly name: string;
  readonly client: SimClient;
  readonly topic: string;
  readonly group: string;
  readonly maxInflight: number;
  status: "joining" | "live" | "paused" | "leaving" | "over";
  readonly leases: Set<Lease>;
  /** What was sent last of PAUSE and RESUME, by number: their answers may come the other way round. */
  steered: number;
}

/** How a client treats what it gets, in percent; the rest is left lying. */
export interface Manners {
  readonly ack: number;
  readonly nack: number;
  readonly extend: number;
  readonly unnamed: number;
  readonly late: number;
  /** Says something else of the same event later. */
  readonly fickle: number;
  readonly handleMs: number;
}

export const goodManners: Manners = { ack: 100, nack: 0, extend: 0, unnamed: 0, late: 0, fickle: 0, handleMs: 5 };

const wireMsMax = 3;

export class SimClient {
  readonly id: number;
  readonly scope: Scope;
  readonly subscriptions = new Map<string, Subscription>();
  readonly pending = new Map<number, Ask>();
  status: "open" | "closed" = "open";
  /** It takes nothing from the wire. */
  frozen = false;
  /** It did so once, or had more before it than the node lets wait: then the node takes it for one that takes nothing. */
  everStalled = false;
  readonly manners: Manners;
  private readonly world: World;
  private readonly checker: Checker;
  private readonly coverage: Coverage;
  private heard: Heard | undefined;
  private corr = 0;
  private toNodeAt = 0;
  private toClientAt = 0;
  private paused = false;
  private readonly unread: string[] = [];
  private readonly untaken: (() => void)[] = [];
  private readonly front: Scope;
  private readonly unsentBytesMax: number;
  private readonly peer: Peer & { bufferedAmount: number; readyState: number };

  constructor(options: {
    id: number;
    world: World;
    checker: Checker;
    coverage: Coverage;
    front: Scope;
    unsentBytesMax: number;
    manners: Manners;
  }) {
    this.id = options.id;
    this.world = options.world;
    this.checker = options.checker;
    this.coverage = options.coverage;
    this.front = options.front;
    this.unsentBytesMax = options.unsentBytesMax;
    this.manners = options.manners;
    this.scope = new Scope(`client-${options.id}`);
    this.peer = this.makePeer();
  }

  get name(): string {
    return this.scope.name;
  }

  connect(front: Front): void {
    const pipe = pipeOf(this.name);
    this.heard = front.accept(this.peer, pipe);
    this.send("AUTH", {});
  }

  // -------------------------------------------------------------------------------------------------------------- asking

  publish(topic: string, publication: Publication, opts: object): void {
    this.checker.publications.set(publication.n, publication);
    this.send("PUBLISH", { topic, payload: { n: publication.n }, opts }, { publication });
  }

  subscribe(topic: string, group: string, maxInflight: number, opts: object): void {
    if (this.subscriptions.has(`${topic} ${group}`)) return;
    const name = `${this.name} ${topic} ${group}`;
    const subscription: Subscription = {
      name,
      client: this,
      topic,
      group,
      maxInflight,
      status: "joining",
      leases: new Set(),
      steered: 0,
    };
    this.subscriptions.set(`${topic} ${group}`, subscription);
    this.send("SUBSCRIBE", { topic, group, opts: { ...opts, maxInflight } }, { subscription });
  }

  steer(op: "UNSUBSCRIBE" | "PAUSE" | "RESUME", subscription: Subscription): void {
    const { topic, group } = subscription;
    if (op === "UNSUBSCRIBE") {
      this.subscriptions.delete(`${topic} ${group}`);
      if (subscription.status !== "over") subscription.status = subscription.status === "paused" ? "paused" : "live";
    }
    // What comes after RESUME was sent may be there before its OK.
    if (op === "RESUME" && subscription.status === "paused") subscription.status = "live";
    if (op !== "UNSUBSCRIBE") subscription.steered = this.corr + 1;
    this.send(op, { topic, group }, { subscription });
  }

  seek(topic: string, group: string, set: unknown): void {
    this.send("CURSOR", { topic, group, ...(set === undefined ? {} : { set }) });
  }

  latest(topic: string, keys: readonly string[] | undefined): void {
    const latest = { topic, keys, newest: this.checker.newestByKey(topic) };
    this.send("LATEST", { topic, ...(keys === undefined ? {} : { keys }) }, { latest });
  }

  settle(
    op: SettleAsk["op"],
    { topic, group, id, token }: Pick<SettleAsk, "topic" | "group" | "id" | "token">,
    more: Record<string, unknown> = {},
  ): void {
    if (this.status !== "open") return;
    const settle: SettleAsk = {
      op,
      by: this.name,
      topic,
      group,
      id,
      token,
      sentAt: this.world.mono,
      hits: [],
    };
    this.checker.asked(settle);
    this.checker.trace?.(`    ${this.name} ${op} ${topic} ${id} for ${group} as ${token ?? "its holder"}`);
    this.send(op, { topic, group, id, ...(token === undefined ? {} : { lease: token }), ...more }, { settle });
  }

  send(op: string, fields: object, facts: Partial<Ask> = {}): Ask {
    const corr = ++this.corr;
    const ask: Ask = { op, sentAt: this.world.mono, ...facts };
    if (this.status !== "open") return ask;
    this.pending.set(corr, ask);
    const frame = JSON.stringify({ op, corr, ...fields });
    this.toNodeAt = this.later(this.toNodeAt);
    this.world.at(this.front, this.toNodeAt, () => this.arrive(frame));
    return ask;
  }

  /** Ends the connection; the node hears of it after a while, or, if it vanishes, never. */
  close(vanish: boolean): void {
    if (this.status === "closed") return;
    this.over();
    const { heard } = this;
    this.toNodeAt = this.later(this.toNodeAt);
    if (!vanish) {
      this.world.at(this.front, this.toNodeAt, () => {
        this.peer.readyState = 3;
        heard?.close();
      });
    }
  }

  freeze(frozen: boolean): void {
    this.frozen = frozen;
    this.everStalled = true;
    if (!frozen) for (const take of this.untaken.splice(0)) take();
  }

  /** The node is gone, or has closed the connection. */
  over(): void {
    this.status = "closed";
    this.scope.alive = false;
    for (const subscription of this.subscriptions.values()) subscription.status = "over";
  }

  // --------------------------------------------------------------------------------------------------------------- the wire

  private arrive(frame: string): void {
    if (this.peer.readyState !== 1) return;
    if (this.paused) this.unread.push(frame);
    else this.heard?.message(frame, frame.length);
  }

  private makePeer(): Peer & { bufferedAmount: number; readyState: number } {
    const decoder = new TextDecoder();
    const peer = {
      OPEN: 1,
      readyState: 1,
      bufferedAmount: 0,
      send: (given: string | Uint8Array, _options: object, taken: (error?: Error | null) => void) => {
        const frame = typeof given === "string" ? given : decoder.decode(given);
        peer.bufferedAmount += frame.length;
        this.everStalled ||= peer.bufferedAmount > this.unsentBytesMax;
        const lease = this.leaves(JSON.parse(frame) as Record<string, unknown>);
        const take = () => {
          if (peer.readyState !== 1) return;
          peer.bufferedAmount -= frame.length;
          if (lease !== undefined) lease.taken = true;
          taken();
          if (this.status === "open" && lease !== undefined) this.gets(lease);
        };
        this.toClientAt = this.later(this.toClientAt);
        this.world.at(this.front, this.toClientAt, () => (this.frozen ? void this.untaken.push(take) : take()));
      },
      close: () => this.closedByNode(),
      terminate: () => this.closedByNode(),
      pause: () => {
        this.paused = true;
      },
      resume: () => {
        this.paused = false;
        for (const frame of this.unread.splice(0)) this.arrive(frame);
      },
      ping: () => {
        const { heard } = this;
        if (this.status === "open" && !this.frozen) this.world.after(this.front, wireMsMax, () => heard?.pong());
      },
    };
    return peer;
  }

  private closedByNode(): void {
    if (this.peer.readyState !== 1) return;
    this.peer.readyState = 2;
    const { heard } = this;
    this.world.after(this.front, wireMsMax, () => {
      this.over();
      heard?.close();
    });
  }

  /** A frame leaves the node and is judged now. Gives the lease of an EVENT. */
  private leaves(frame: Record<string, unknown>): Lease | undefined {
    if (frame.op === "EVENT") return this.eventLeaves(frame as unknown as EventFrame);
    if (frame.corr === undefined) {
      if (this.leavingOf(frame as unknown as EventFrame) !== undefined) return undefined;
      const ended = this.subscriptions.get(`${frame.topic} ${frame.group}`);
      if (frame.op !== "ERR" || ended === undefined)
        this.checker.fail(`${this.name}: a frame without corr: ${JSON.stringify(frame)}`);
      this.coverage.hit(`a subscription is ended: ${frame.code}`);
      ended.status = "over";
      this.subscriptions.delete(`${frame.topic} ${frame.group}`);
      return undefined;
    }
    const ask = this.pending.get(frame.corr as number);
    if (ask === undefined)
      this.checker.fail(`${this.name}: ${JSON.stringify(frame)} answers nothing, or a second time`);
    this.pending.delete(frame.corr as number);
    const code = frame.op === "ERR" ? (frame.code as string) : undefined;
    this.checker.answered(this, ask, code === undefined ? { ok: frame } : { code });
    const { subscription } = ask;
    if (subscription !== undefined && subscription.status !== "over") {
      if (ask.op === "SUBSCRIBE") {
        subscription.status = code === undefined ? "live" : "over";
        if (code !== undefined) this.subscriptions.delete(`${subscription.topic} ${subscription.group}`);
      } else if (ask.op === "UNSUBSCRIBE") subscription.status = "over";
      else if (ask.op === "PAUSE" && code === undefined && subscription.steered === frame.corr)
        subscription.status = "paused";
    }
    return undefined;
  }

  private eventLeaves(frame: EventFrame): Lease {
    // Before the OK to the UNSUBSCRIBE it is of the old one, also where a new one is asked for already.
    const subscription = this.leavingOf(frame) ?? this.subscriptions.get(`${frame.topic} ${frame.group}`);
    if (subscription === undefined)
      this.checker.fail(`${this.name}: an EVENT of ${frame.topic} for ${frame.group}, without a subscription`);
    return this.checker.eventSent(subscription, frame);
  }

  private gets(lease: Lease): void {
    lease.written = true;
    this.handle(lease);
  }

  /** UNSUBSCRIBE is sent and not answered. */
  private leavingOf({ topic, group }: EventFrame): Subscription | undefined {
    for (const { op, subscription } of this.pending.values()) {
      if (op === "UNSUBSCRIBE" && subscription?.topic === topic && subscription.group === group) return subscription;
    }
    return undefined;
  }

  private handle(lease: Lease): void {
    const { dice } = this.world;
    const { ack, nack, extend, unnamed, late, handleMs, fickle } = this.manners;
    const after = dice.below(handleMs + 1) + (dice.chance(late) ? 1500 : 0);
    const roll = dice.below(100);
    const { topic, group } = lease.subscription!;
    const { id } = lease.group.owner.events[lease.offset];
    const what = { topic, group, id, token: dice.chance(unnamed) ? undefined : lease.token };
    this.world.after(this.scope, after, () => {
      if (roll < ack) this.settle("ACK", what);
      else if (roll < ack + nack) {
        const delay = dice.chance(30) ? { delay_ms: dice.below(400) } : {};
        this.settle("NACK", what, { reason: "no", ...delay });
      } else if (roll < ack + nack + extend) {
        this.settle("MODACK", what, { extend_ms: 1 + dice.below(1500) });
        this.world.after(this.scope, dice.below(1000), () => this.settle("ACK", what));
      }
      if (dice.chance(fickle)) this.changesItsMind(what);
    });
  }

  /** Says something else of an event a little later, with or without the name. */
  private changesItsMind(what: Pick<SettleAsk, "topic" | "group" | "id" | "token">): void {
    const { dice } = this.world;
    const op = dice.pick(["ACK", "ACK", "NACK", "MODACK"] as const);
    const token = dice.chance(30) ? undefined : what.token;
    this.world.after(this.scope, dice.pick([0, 3, 300]), () => {
      this.coverage.hit(`a client says ${op} after what it said before`);
      this.settle(op, { ...what, token }, op === "MODACK" ? { extend_ms: 1 + dice.below(500) } : {});
    });
  }

  private later(last: number): number {
    return Math.max(last, this.world.mono + (this.world.dice.below(100) / 100) * wireMsMax);
  }
}

/** The node names a connection by where it comes from, so that the members of a client can be told apart. */
export function pipeOf(name: string): Pipe {
  return Object.assign({ cork: () => undefined, uncork: () => undefined }, { remoteAddress: name, remotePort: 1 });
}
