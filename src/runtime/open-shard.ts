// One incarnation of a shard: its cells from the moment the store is open until it is closed or breaks. It hands messages to
// cells, supervises them and keeps the commit pipeline going: one commit in flight, the next one gathering. It knows no thread and
// no real time, so that a simulator can run it as it is.

import type { Env, Kinds, Notice, Ref, Sample, Shelf } from "../actors/effects.ts";
import type { Answer, Message } from "../actors/messages.ts";
import { type Failure, failure } from "../protocol/failure.ts";
import { leaseEpoch } from "../protocol/lease.ts";
import type { ReadResult, ShardStore } from "../store/store.ts";
import { Cell, type Origin, type Request } from "./cell.ts";
import type { Clock } from "./clock.ts";
import type { Item, Mail } from "./envelope.ts";
import { Followers } from "./followers.ts";
import type { Built, Gather, Held } from "./gather.ts";
import { faultFields, type Logger, reasonOf } from "./log.ts";
import type { Meter } from "./meter.ts";
import { type Performer, perform } from "./perform.ts";
import { type Flight, Pipeline, type PipelineOwner } from "./pipeline.ts";
import { Tail } from "./tail.ts";
import { Alarm, type Timers } from "./timers.ts";

const waitingMax = 10_000;
const tailBytesMax = 16 * 1024 * 1024;

/** What the shards of a host share. */
export interface Surroundings {
  readonly kinds: Kinds;
  readonly clock: Clock;
  readonly timers: Timers;
  readonly log: Logger;
  readonly meter: Meter;
  readonly shards: number;
  readonly limits: Shelf["limits"];
  /** Says something to the front, in order, with the post of this turn. */
  readonly post: (item: Item) => void;
  readonly room: (bytes: number) => Uint8Array;
  /** Numbers the asks that leave a shard; never the same again in this host, so that a late answer finds nobody. */
  readonly nextAsk: () => number;
  /** Everything that happens to a shard happens in a turn: at its end commits are started and the post leaves. */
  readonly turn: (run: () => void) => void;
}

/** Lease tokens of one epoch. It outlives the cells: a store that refuses a commit goes on under its epoch. */
export interface TokenCounter {
  next: number;
}

/** Why the cells of a shard were ended. */
export interface Stop {
  readonly reason: string;
  /** Nothing of the commit is stored, and the store can be read as before. */
  readonly refused: boolean;
  /** Requests that only read and were not answered: fresh cells can do it. */
  readonly unread: readonly Mail[];
}

type Job =
  | { readonly kind: "request"; readonly name: string; readonly request: Request }
  | { readonly kind: "notice"; readonly cell: Cell; readonly incarnation: number; readonly notice: Notice }
  /** Looks whether a cell that waits (to start, to end, to go on) can do so now. */
  | { readonly kind: "step"; readonly cell: Cell };

export class OpenShard implements Performer, PipelineOwner {
  readonly shard: number;
  readonly store: ShardStore;
  private readonly around: Surroundings;
  private readonly stopped: (stop: Stop) => void;
  private readonly shelf: Shelf;
  private readonly env: { -readonly [K in keyof Env]: Env[K] };
  private readonly cells = new Map<string, Cell>();
  private readonly followers = new Followers();
  private readonly pipeline: Pipeline;
  private readonly tail = new Tail(tailBytesMax);
  private readonly commitAlarm = new Alarm(() => undefined);
  /** Asks that left the shard, by their number. */
  private readonly asks = new Map<number, { cell: Cell; incarnation: number; tag: number }>();
  /** Cells that wait for a commit to end. */
  private readonly pausing = new Set<Cell>();
  private full: Cell[] = [];
  private jobs: Job[] = [];
  private working = false;
  private status: "open" | "draining" | "ended" = "open";
  private drained: (() => void)[] = [];
  private nextRef = 1;

  constructor(store: ShardStore, around: Surroundings, tokens: TokenCounter, stopped: (stop: Stop) => void) {
    this.shard = store.shard;
    this.store = store;
    this.around = around;
    this.stopped = stopped;
    this.shelf = shelfOver(store, around);
    this.env = envOver(store, around, tokens);
    this.pipeline = new Pipeline(store, this.env, around, this);
  }

  get gather(): Gather {
    return this.pipeline.gather;
  }

  get cellCount(): number {
    return this.cells.size;
  }

  get waitingCount(): number {
    let count = this.jobs.length;
    for (const cell of this.cells.values()) count += cell.waiting.length;
    return count;
  }

  /** Starts the cells that the store knows. */
  start(): void {
    for (const name of [...this.around.kinds.resident(this.shelf)]) if (!this.cells.has(name)) this.create(name);
    this.work();
  }

  deliver(name: string, message: Message, id: number): void {
    this.enqueue(name, { message, origin: id === 0 ? undefined : { kind: "front", id } });
    this.work();
  }

  /** The answer to an ask that left the shard. */
  answered(ask: number, answer: Answer): void {
    const asker = this.asks.get(ask);
    if (asker === undefined) return;
    this.asks.delete(ask);
    this.notify(asker.cell, asker.incarnation, { type: "answer", tag: asker.tag, answer });
    this.work();
  }

  endTurn(): void {
    if (this.status === "ended") return;
    this.work();
    this.refresh();
    this.pipeline.endTurn({ draining: this.status === "draining" });
    // What a release or a commit set off among the cells.
    this.work();
    if (this.status === "draining") {
      if (this.pipeline.idle) for (const resolve of this.drained.splice(0)) resolve();
    } else if (this.pipeline.dueAt !== undefined) {
      this.around.timers.set(this.commitAlarm, this.pipeline.dueAt);
    }
  }

  /** Commits what is gathered without waiting for more; resolves when nothing is left. The caller ends the turn. */
  drain(): Promise<void> {
    if (this.status === "ended") return Promise.resolve();
    this.status = "draining";
    return new Promise((resolve) => this.drained.push(resolve));
  }

  /** Ends every cell. Whoever still waits gets a failure: what was never taken in was surely not stored. */
  discard(
    reason: string,
    open: (message: Message) => Failure = () => failure("unavailable", reason),
    /** True: the request is taken over and not answered here. */
    takeOver: (mail: Mail) => boolean = () => false,
  ): void {
    if (this.status === "ended") return;
    this.status = "ended";
    const end = (cell: string, { message, origin }: Request, answer: (message: Message) => Failure) => {
      if (origin?.kind === "front" && takeOver({ shard: this.shard, cell, id: origin.id, message })) return;
      this.respond(origin, answer(message));
    };
    const untaken = (message: Message) => this.around.kinds.refusal(message, reason);
    for (const { cell, request } of [...(this.pipeline.flight?.held ?? []), ...this.gather.held]) {
      end(cell.name, request, open);
    }
    for (const cell of this.cells.values()) {
      this.keepTotals(cell);
      for (const request of cell.open.values()) end(cell.name, request, open);
      for (const request of cell.waiting) end(cell.name, request, untaken);
      this.around.timers.set(cell.alarm, undefined);
    }
    for (const job of this.jobs) if (job.kind === "request") end(job.name, job.request, untaken);
    this.around.timers.set(this.commitAlarm, undefined);
    this.cells.clear();
    this.jobs = [];
    for (const resolve of this.drained.splice(0)) resolve();
  }

  samples(): Sample[] {
    this.refresh();
    return [...this.cells.values()].flatMap((cell) => this.samplesOf(cell));
  }

  // ------------------------------------------------------------------------------------------------- what effects ask for

  now(): number {
    return this.env.mono;
  }

  post(item: Item): void {
    this.around.post(item);
  }

  enqueue(name: string, request: Request): void {
    this.jobs.push({ kind: "request", name, request });
  }

  notify(cell: Cell, incarnation: number, notice: Notice): void {
    this.jobs.push({ kind: "notice", cell, incarnation, notice });
  }

  respond(origin: Origin | undefined, answer: Answer): void {
    if (origin === undefined) return;
    if (origin.kind === "front") this.post({ type: "answer", id: origin.id, answer });
    else this.notify(origin.cell, origin.incarnation, { type: "answer", tag: origin.tag, answer });
  }

  expect(cell: Cell, tag: number): number {
    const ask = this.around.nextAsk();
    this.asks.set(ask, { cell, incarnation: cell.incarnation, tag });
    return ask;
  }

  readTail(stream: number, range: { from: number; to: number; bytesMax: number }): ReadResult | undefined {
    const found = this.tail.read(stream, range);
    if (found === undefined) this.around.meter.tailMisses++;
    else this.around.meter.tailHits++;
    return found;
  }

  later(run: () => void): void {
    if (this.status === "ended") return;
    this.around.turn(() => {
      run();
      this.work();
    });
  }

  setAlarm(cell: Cell, at: number | undefined): void {
    this.around.timers.set(cell.alarm, at);
  }

  fill(cell: Cell): void {
    if (cell.status !== "running") return;
    cell.status = "full";
    this.full.push(cell);
  }

  stop(cell: Cell): void {
    this.endIncarnation(cell, failure("unavailable", `${cell.name} has ended`));
    cell.status = "stopping";
    this.pause(cell);
  }

  // --------------------------------------------------------------------------------------------------------------- cells

  private work(): void {
    if (this.working) return;
    this.working = true;
    // A job may add others; a shard that ends in between has emptied the list.
    for (let at = 0; at < this.jobs.length; at++) this.take(this.jobs[at]);
    this.jobs = [];
    this.working = false;
  }

  private take(job: Job): void {
    switch (job.kind) {
      case "request":
        this.takeRequest(job.name, job.request);
        break;
      case "notice": {
        const { cell, incarnation, notice } = job;
        if (cell.incarnation !== incarnation || (cell.status !== "running" && cell.status !== "full")) return;
        this.receive(cell, notice, 0);
        break;
      }
      case "step":
        this.step(job.cell);
        break;
      default:
        job satisfies never;
    }
  }

  private takeRequest(name: string, request: Request): void {
    const cell = this.cells.get(name) ?? this.create(name);
    if (cell === undefined) this.respond(request.origin, failure("unavailable", `no cell can be named ${name}`));
    else if (cell.status === "failed") this.respond(request.origin, failure("unavailable", cell.reason));
    else if (cell.status === "running" && cell.waiting.length === 0) this.receiveRequest(cell, request);
    else if (cell.waiting.length < waitingMax) cell.waiting.push(request);
    else this.respond(request.origin, failure("overloaded", `${waitingMax} messages wait for ${name}`));
  }

  private receiveRequest(cell: Cell, request: Request): void {
    const ref = request.origin === undefined ? 0 : this.nextRef++;
    if (ref !== 0) cell.open.set(ref, request);
    this.receive(cell, request.message, ref);
  }

  private receive(cell: Cell, message: Message | Notice, ref: Ref): void {
    this.refresh();
    try {
      perform(this, cell, cell.actor!.receive(message, ref, this.env));
      this.followers.update(cell);
    } catch (error) {
      this.fault(cell, error, { ref, doing: message.type });
    }
  }

  private create(name: string): Cell | undefined {
    const cell = new Cell(name, (ringing) => {
      this.notify(ringing, ringing.incarnation, { type: "wake" });
      this.work();
    });
    this.cells.set(name, cell);
    this.startActor(cell);
    return this.cells.get(name);
  }

  private startActor(cell: Cell): void {
    this.refresh();
    try {
      const made = this.around.kinds.create(cell.name, this.shelf, this.env);
      if (made === undefined) {
        this.cells.delete(cell.name);
        const unknown = failure("unavailable", `no cell can be named ${cell.name}`);
        for (const { origin } of cell.waiting.splice(0)) this.respond(origin, unknown);
        return;
      }
      cell.actor = made.actor;
      cell.status = "running";
      if (cell.incarnation > 1) {
        this.post({ type: "cellRestarted", address: { shard: this.shard, cell: cell.name } });
      }
      perform(this, cell, made.effects);
      this.followers.update(cell);
    } catch (error) {
      this.fault(cell, error, { ref: 0, doing: "start" });
    }
  }

  /** Something in this cell threw: whoever waits for it is told, and it is started again from the store. */
  private fault(cell: Cell, error: unknown, { ref, doing }: { ref: Ref; doing: string }): void {
    const { log, meter, clock } = this.around;
    log.error("an actor failed", { shard: this.shard, cell: cell.name, doing, ...faultFields(error) });
    const current = cell.open.get(ref);
    if (current !== undefined) {
      cell.open.delete(ref);
      this.respond(current.origin, failure("internal", `${cell.name} failed on this request`));
    }
    const restarted = failure("unavailable", `${cell.name} was started again`);
    this.keepTotals(cell);
    this.endIncarnation(cell, restarted);
    for (const { request } of this.gather.drop(cell)) this.respond(request.origin, restarted);
    // Its part in the commit that gathers is gone; what is in flight decides what the store will hold.
    cell.lastCommit = this.pipeline.flight?.sequence ?? this.pipeline.done;
    meter.cellRestarts++;
    if (cell.mayRestart(clock.mono())) {
      cell.status = "starting";
      this.pause(cell);
      return;
    }
    cell.status = "failed";
    cell.reason = `${cell.name} was given up after too many restarts: ${reasonOf(error)}`;
    for (const { origin } of cell.waiting.splice(0)) this.respond(origin, failure("unavailable", cell.reason));
    this.post({ type: "cellFailed", address: { shard: this.shard, cell: cell.name }, reason: cell.reason });
  }

  private endIncarnation(cell: Cell, answer: Failure): void {
    for (const { origin } of cell.open.values()) this.respond(origin, answer);
    cell.open.clear();
    cell.incarnation++;
    this.setAlarm(cell, undefined);
    this.followers.remove(cell);
  }

  private pause(cell: Cell): void {
    this.pausing.add(cell);
    this.jobs.push({ kind: "step", cell });
  }

  private step(cell: Cell): void {
    if (cell.status === "running") this.takeWaiting(cell);
    if (!this.pausing.has(cell) || cell.lastCommit > this.pipeline.done) return;
    this.pausing.delete(cell);
    if (cell.status === "starting") {
      this.startActor(cell);
      this.takeWaiting(cell);
    } else if (cell.status === "stopping") {
      if (this.cells.get(cell.name) === cell) this.cells.delete(cell.name);
      for (const request of cell.waiting.splice(0)) this.takeRequest(cell.name, request);
    }
  }

  private takeWaiting(cell: Cell): void {
    while (cell.status === "running" && cell.waiting.length > 0) this.receiveRequest(cell, cell.waiting.shift()!);
  }

  private samplesOf(cell: Cell): readonly Sample[] {
    try {
      return cell.actor?.stats?.(this.env) ?? [];
    } catch (error) {
      this.around.log.error("the numbers of an actor failed", { cell: cell.name, ...faultFields(error) });
      return [];
    }
  }

  private keepTotals(cell: Cell): void {
    if (cell.actor === undefined) return;
    this.around.meter.keepTotals(this.samplesOf(cell));
    cell.actor = undefined;
  }

  private refresh(): void {
    this.env.mono = this.around.clock.mono();
    this.env.wall = this.around.clock.wall();
  }

  // ------------------------------------------------------------------------------------------------------------- commits

  persistFailed(cell: Cell, error: unknown, held: readonly Held[]): void {
    this.fault(cell, error, { ref: 0, doing: "persist" });
    for (const { request } of held) {
      this.respond(request.origin, failure("unavailable", `${cell.name} was started again`));
    }
  }

  commitLeft(): void {
    for (const cell of this.full.splice(0)) {
      if (cell.status !== "full") continue;
      cell.status = "running";
      this.jobs.push({ kind: "step", cell });
    }
    this.stepPausing();
    this.work();
  }

  /** The order of what a commit sets off: those who wrote, those who wait for them, those who follow. */
  committed(flight: Flight): void {
    for (const block of flight.blocks) this.tail.add(block);
    for (const [stream, start] of flight.commit.trims) this.tail.trim(stream, start);
    for (const { cell, incarnation, placed } of flight.placed) {
      this.notify(cell, incarnation, { type: "committed", placed });
    }
    this.work();
    this.release(flight.held, flight.persisted);
    for (const block of flight.blocks) this.tellFollowers(block.stream, { type: "advanced", end: block.endOffset });
    for (const [stream] of flight.commit.trims) {
      const head = this.store.head(stream);
      if (head !== undefined) this.tellFollowers(stream, { type: "trimmed", start: head.start });
    }
    this.stepPausing();
    this.work();
  }

  release(held: readonly Held[], persisted: Built["persisted"]): void {
    for (const { request, value } of held) this.respond(request.origin, value);
    for (const { cell, incarnation } of persisted) this.notify(cell, incarnation, { type: "persisted" });
  }

  /** Refused is surely not stored; otherwise nobody knows, and `unavailable` is the code that says so. */
  commitFailed(refused: boolean, reason: string): void {
    const { kinds } = this.around;
    const unread: Mail[] = [];
    this.discard(
      reason,
      (message) => (refused ? kinds.refusal(message, reason) : failure("unavailable", reason)),
      (mail) => refused && kinds.readsOnly(mail.message) && unread.push(mail) > 0,
    );
    this.stopped({ reason, refused, unread });
  }

  private tellFollowers(stream: number, notice: Notice): void {
    for (const cell of this.followers.of(stream)) this.notify(cell, cell.incarnation, notice);
  }

  private stepPausing(): void {
    for (const cell of this.pausing) this.jobs.push({ kind: "step", cell });
  }
}

export function shelfOver(store: ShardStore, { shards, limits }: Surroundings): Shelf {
  return {
    shard: store.shard,
    shards,
    durabilityOf: (stream) => store.durabilityOf?.(stream) ?? store.durability,
    limits,
    head: (stream) => store.head(stream),
    entry: (key) => store.entry(key),
    entries: (prefix) => store.entries(prefix),
    pruneTo: (stream, policy) => store.pruneTo(stream, policy),
  };
}

export function envOver(
  store: ShardStore,
  { clock, room }: Surroundings,
  tokens: TokenCounter,
): { -readonly [K in keyof Env]: Env[K] } {
  return {
    mono: clock.mono(),
    wall: clock.wall(),
    epoch: leaseEpoch(store.epoch, store.shard),
    tokens: (count) => {
      const first = tokens.next;
      tokens.next += count;
      return first;
    },
    room,
  };
}
