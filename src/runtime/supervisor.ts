// Keeps one host alive per worker and stands between them and the front: routes by shard, starts a thread again when it dies, and
// says in which state each shard is. It knows addresses and messages, but not one kind of cell.

import type { ActorLimits, Sample } from "../actors/effects.ts";
import type { Address, Answer, MessageOf, MessageType } from "../actors/messages.ts";
import type { Limits } from "../config.ts";
import { type Failure, failure } from "../protocol/failure.ts";
import type { StoreConfig } from "../store/open.ts";
import type { Damage } from "../store/store.ts";
import type { Clock, Timer } from "./clock.ts";
import type { Crash } from "./control.ts";
import type { HostSettings, Item } from "./envelope.ts";
import { Link } from "./link.ts";
import { faultFields, type Logger, reasonOf } from "./log.ts";
import { LabelBound, mergeSamples, totalsOf } from "./metrics.ts";
import { shardsOf, workerOf } from "./placement.ts";
import { Pool, type Thread, type Threads } from "./pool.ts";
import type { ShardState, System, SystemEvents } from "./system.ts";
import { ThreadMeter } from "./thread-meter.ts";

const startMs = 10_000;
const samplesMs = 2000;
const relaunchMsMin = 100;
const relaunchMsMax = 2000;
/** A thread that lived so long has not died of what killed the one before it. */
const stableMs = 10_000;
const reportTellsMax = 256;
const stuckMsDefault = 30_000;
/** Looks are counted and not milliseconds: a process that was stopped itself must look once more. */
const stuckLooks = 6;

export interface SystemOptions {
  readonly workers: number;
  readonly shards: number;
  readonly store: StoreConfig;
  readonly limits: Pick<Limits, "workerInflightMax" | "workerInflightBytesMax" | "askMs" | "drainMs" | "workerHeapMb"> &
    Partial<Pick<Limits, "workerStuckMs">>;
  readonly actorLimits: ActorLimits;
  readonly clock: Clock;
  readonly log: Logger;
  /** The program of a worker: `new URL("./host.js", import.meta.url)` seen from the main bundle. */
  readonly hostUrl: URL;
  /** Lets `crash` end threads. */
  readonly testing?: boolean;
}

export function createSystem(options: SystemOptions): Supervisor {
  const { workers, hostUrl, limits, clock, log } = options;
  return new Supervisor(options, {
    threads: () => new Pool({ workers, hostUrl, heapMb: limits.workerHeapMb, clock, log }),
    meter: () => new ThreadMeter(),
  });
}

/** What is real in a node and simulated in a simulator; made when the system starts. */
export interface Machine {
  threads(): Threads;
  meter(): { samples(thread: string): readonly Sample[]; stop(): void };
}

/** One life of a worker's thread. */
interface Life {
  readonly link: Link;
  readonly thread: Thread;
  readonly startedAt: number;
  /** Its start has a deadline of its own. */
  started: boolean;
  /** Whether it was asked for a sign of life, and how many looks ago. */
  asked: boolean;
  missed: number;
}

interface Slot {
  readonly worker: number;
  life: Life | undefined;
  /** Why there is none. */
  reason: string;
  relaunchMs: number;
  restarts: number;
  /** What the present life said last about itself. */
  samples: readonly Sample[];
}

interface ShardRecord {
  status: ShardState["status"];
  epoch: number;
  reason: string | undefined;
  failedCells: Map<string, string>;
  damage: readonly Damage[];
}

export class Supervisor implements System {
  readonly shards: number;
  readonly workers: number;
  private readonly options: Omit<SystemOptions, "hostUrl">;
  private readonly slots: Slot[];
  private readonly records: ShardRecord[];
  private readonly bound = new LabelBound();
  private status: "new" | "starting" | "running" | "closing" | "closed" = "new";
  private readonly machine: Machine;
  private threads: Threads | undefined;
  private meter: ReturnType<Machine["meter"]> | undefined;
  private watcher: Timer | undefined;
  private events: SystemEvents | undefined;
  private started: { resolve(): void; reject(error: Error): void } | undefined;
  /** Answers that were known at once; given after the caller has returned. */
  private ready: (() => void)[] = [];
  /** Counters of threads that died. */
  private lost: Sample[] = [];
  private overloaded = 0;

  constructor(options: Omit<SystemOptions, "hostUrl">, machine: Machine) {
    this.options = options;
    this.machine = machine;
    this.shards = options.shards;
    this.workers = options.workers;
    this.slots = Array.from({ length: options.workers }, (_, worker) => ({
      worker,
      life: undefined,
      reason: "the node is not started",
      relaunchMs: 0,
      restarts: 0,
      samples: [],
    }));
    this.records = Array.from({ length: options.shards }, () => ({
      status: "opening",
      epoch: 0,
      reason: undefined,
      failedCells: new Map(),
      damage: [],
    }));
  }

  async start(events: SystemEvents): Promise<void> {
    if (this.status !== "new") throw new Error(`a system starts once, this one is ${this.status}`);
    this.status = "starting";
    this.events = events;
    this.meter = this.machine.meter();
    this.threads = this.machine.threads();
    const started = new Promise<void>((resolve, reject) => {
      this.started = { resolve, reject };
    });
    for (const slot of this.slots) this.launch(slot);
    this.watch();
    try {
      await started;
    } catch (error) {
      await this.destroy();
      throw error;
    }
  }

  ask<T extends MessageType>(to: Address, message: MessageOf<T>, done: (answer: Answer<T>) => void): void {
    const slot = this.slotOf(to.shard);
    let refused: Failure | undefined;
    if (slot === undefined) refused = failure("unavailable", `there is no shard ${to.shard}`);
    else if (this.status === "closing" || this.status === "closed") {
      refused = failure("shutting_down", "the node is shutting down");
    } else if (slot.life === undefined) refused = failure("unavailable", slot.reason);
    // The answer is of the message's own type: the cell keeps to `Answers`, which is declared once for both sides.
    else refused = slot.life.link.ask(to, message, done as (answer: Answer) => void);
    if (refused === undefined) return;
    if (refused.code === "overloaded") this.overloaded++;
    this.afterwards(() => done(refused));
  }

  request<T extends MessageType>(to: Address, message: MessageOf<T>): Promise<Answer<T>> {
    return new Promise((resolve) => this.ask(to, message, resolve));
  }

  tell(to: Address, message: MessageOf<MessageType>): void {
    this.slotOf(to.shard)?.life?.link.tell(to, message);
  }

  room(shard: number, bytes: number): Uint8Array {
    return this.slotOf(shard)?.life?.link.take(bytes) ?? new Uint8Array(bytes);
  }

  state(): readonly ShardState[] {
    return this.records.map(({ status, epoch, reason, failedCells, damage }, shard) => ({
      shard,
      worker: workerOf(shard, this.workers),
      status,
      epoch,
      ...(reason === undefined ? {} : { reason }),
      failedCells: [...failedCells].map(([cell, why]) => ({ cell, reason: why })),
      damage,
    }));
  }

  async samples(): Promise<readonly Sample[]> {
    await Promise.all(this.slots.map((slot) => this.askSamples(slot)));
    const ofWorkers = this.slots.flatMap((slot) => [...slot.samples]);
    return this.bound.apply(mergeSamples([...this.lost, ...ofWorkers, ...this.ownSamples()]));
  }

  async close(): Promise<void> {
    if (this.status === "closing" || this.status === "closed") return;
    this.status = "closing";
    const { drainMs } = this.options.limits;
    await Promise.all(
      this.slots.map(async ({ life, worker }) => {
        if (life === undefined) return;
        life.link.flush();
        try {
          await Promise.race([life.thread.control.drain(drainMs), life.thread.ended]);
        } catch (error) {
          this.options.log.error("a worker could not be drained", { worker, ...faultFields(error) });
        }
      }),
    );
    await this.end();
  }

  async destroy(): Promise<void> {
    await this.end();
  }

  /** For tests of what happens when a thread dies. */
  crash(worker: number, how: Crash): void {
    this.slots[worker].life?.thread.control.crash(how);
  }

  // ------------------------------------------------------------------------------------------------------------- threads

  private launch(slot: Slot): void {
    if (this.threads === undefined || this.status === "closing" || this.status === "closed") return;
    const { options, shards, workers } = this;
    const { clock, log, limits } = options;
    const settings: HostSettings = {
      worker: slot.worker,
      shards,
      store: options.store,
      limits: options.actorLimits,
      reportTells: Math.max(1, Math.min(reportTellsMax, Math.floor(limits.workerInflightMax / 8))),
      testing: options.testing ?? false,
    };
    const thread = this.threads.launch(settings, (post) => link.receive(post));
    const link: Link = new Link({
      worker: slot.worker,
      clock,
      log,
      limits,
      post: (message, transfer) => thread.post(message, transfer),
      item: (item) => this.take(item, slot, link),
    });
    const life: Life = { link, thread, startedAt: clock.mono(), started: false, asked: false, missed: 0 };
    slot.life = life;
    thread.ended.then(
      () => this.died(slot, life, "it ended by itself"),
      (error) => this.died(slot, life, reasonOf(error)),
    );
    thread.control.place(shardsOf(slot.worker, shards, workers), startMs).then(
      () => {
        life.started = true;
      },
      (error) => {
        if (slot.life !== life) return;
        log.error("a worker does not start", { worker: slot.worker, ...faultFields(error) });
        thread.abort();
      },
    );
  }

  /** A thread whose loop does not turn any more (it loops for ever, or hangs in a call) is ended: then all goes on as if it had died. */
  private watch(): void {
    const everyMs = (this.options.limits.workerStuckMs ?? stuckMsDefault) / stuckLooks;
    const run = () => {
      for (const slot of this.slots) if (slot.life?.started) this.look(slot, slot.life, everyMs);
      this.watch();
    };
    if (this.status !== "closed") this.watcher = this.options.clock.after(everyMs, run, { background: true });
  }

  private look(slot: Slot, life: Life, everyMs: number): void {
    const { log } = this.options;
    if (!life.asked) {
      life.asked = true;
      // To place nothing is a question that every loop answers that turns.
      life.thread.control.place([], 2 * stuckLooks * everyMs).then(
        () => {
          life.asked = false;
          life.missed = 0;
        },
        (error) => {
          // One that is stuck is ended long before. So it was this thread or the whole process that stood still, and the answer may
          // have come too late to be taken: it is asked once more.
          life.asked = false;
          log.debug("a worker gave no sign of life", { worker: slot.worker, ...faultFields(error) });
        },
      );
      return;
    }
    life.missed++;
    if (life.missed < stuckLooks) return;
    const reason = `it gave no sign of life for ${Math.round(stuckLooks * everyMs)} ms`;
    // From here on it is none of the pool's, so that its exit is waited for before there is another: one that hangs in a call of the
    // kernel ends only when that returns.
    life.thread.abort();
    this.died(slot, life, reason);
  }

  private died(slot: Slot, life: Life, reason: string): void {
    if (slot.life !== life) return;
    const { clock, log } = this.options;
    // What it had posted before its end is as good as ever: OKs of what is stored.
    drainPort(life);
    this.bury(slot, life, `worker ${slot.worker} died: ${reason}`);
    if (this.status === "closing" || this.status === "closed") return;
    log.error("a worker thread died", { worker: slot.worker, reason });
    for (const shard of shardsOf(slot.worker, this.shards, this.workers)) this.shardDown(shard, slot.reason);
    if (clock.mono() - life.startedAt > stableMs) slot.relaunchMs = 0;
    const waitMs = slot.relaunchMs;
    slot.relaunchMs = Math.min(Math.max(relaunchMsMin, waitMs * 2), relaunchMsMax);
    slot.restarts++;
    // Not before the old one is gone: its last write could land on what the new one has written by then.
    void life.thread.gone().then(() => {
      if (waitMs === 0) this.launch(slot);
      else clock.after(waitMs, () => this.launch(slot));
    });
  }

  private bury(slot: Slot, life: Life, reason: string): void {
    slot.life = undefined;
    slot.reason = reason;
    this.lost = mergeSamples([...this.lost, ...totalsOf(slot.samples)]);
    slot.samples = [];
    life.thread.close();
    life.link.fail(failure("unavailable", reason));
  }

  private async end(): Promise<void> {
    if (this.status === "closed") return;
    this.status = "closed";
    for (const slot of this.slots) {
      if (slot.life === undefined) continue;
      drainPort(slot.life);
      this.bury(slot, slot.life, "the node is shutting down");
    }
    for (const shard of this.records.keys()) this.records[shard].status = "down";
    this.started?.reject(new Error("the node was stopped while it started"));
    this.meter?.stop();
    this.watcher?.cancel();
    await this.threads?.destroy();
  }

  // -------------------------------------------------------------------------------------------------- what workers say

  private take(item: Exclude<Item, { type: "answer" }>, slot: Slot, link: Link): void {
    switch (item.type) {
      case "signal":
        this.events?.signal(item.signal);
        break;
      case "forward": {
        const { shard, ask, to, message } = item;
        if (ask === 0) this.tell(to, message);
        else this.ask(to, message, (answer) => link.answer({ shard, ask, answer }));
        break;
      }
      case "shardUp":
        this.shardUp(item);
        break;
      case "damaged": {
        const record = this.records[item.damage.shard];
        const { place, stream, from } = item.damage;
        // A shard that cannot be opened yet finds the same at each try.
        if (record.damage.some((one) => one.place === place && one.stream === stream && one.from === from)) break;
        record.damage = [...record.damage, item.damage];
        break;
      }
      case "shardDown":
        this.shardDown(item.shard, item.reason, item);
        break;
      case "cellRestarted":
        this.events?.cellRestarted(item.address);
        break;
      case "cellFailed":
        this.records[item.address.shard].failedCells.set(item.address.cell, item.reason);
        break;
      case "log":
        this.options.log[item.level](item.msg, { worker: slot.worker, ...item.fields });
        break;
      default:
        item satisfies never;
    }
  }

  private shardUp({ shard, epoch, damage }: Extract<Item, { type: "shardUp" }>): void {
    const record = this.records[shard];
    if (record.reason !== undefined) this.options.log.info("a shard is up again", { shard, epoch });
    record.status = "up";
    record.epoch = epoch;
    record.reason = undefined;
    record.failedCells = new Map();
    record.damage = damage;
    this.events?.shardUp(shard, epoch);
    this.endStart();
  }

  private shardDown(
    shard: number,
    reason: string,
    { reads = false, mayPass = false }: { readonly reads?: boolean; readonly mayPass?: boolean } = {},
  ): void {
    const record = this.records[shard];
    record.status = reads ? "read-only" : "down";
    record.reason = reason;
    record.failedCells = new Map();
    this.events?.shardDown(shard, reason);
    if (this.status !== "starting") return;
    // A node that does not start because the disk is full could not even say so to those who ask it.
    if (mayPass) {
      this.endStart();
      return;
    }
    this.started?.reject(new Error(`shard ${shard} cannot be opened: ${reason}`));
    this.started = undefined;
  }

  private endStart(): void {
    if (this.status !== "starting" || this.records.some(({ status }) => status === "opening")) return;
    this.status = "running";
    this.started?.resolve();
    this.started = undefined;
  }

  private async askSamples(slot: Slot): Promise<void> {
    const { life } = slot;
    if (life === undefined) return;
    try {
      const samples = await life.thread.control.samples(samplesMs);
      // Of a thread that died meanwhile, what was said before is already among the lost.
      if (slot.life === life) slot.samples = samples;
    } catch (error) {
      this.options.log.warn("a worker gave no numbers", { worker: slot.worker, ...faultFields(error) });
    }
  }

  private ownSamples(): Sample[] {
    const samples: Sample[] = [{ name: "overloaded_total", labels: {}, value: this.overloaded }];
    for (const { worker, life, restarts } of this.slots) {
      const labels = { worker: String(worker) };
      samples.push({ name: "worker_restarts_total", labels, value: restarts });
      samples.push({ name: "under_way_messages", labels, value: life?.link.underWay ?? 0 });
      samples.push({ name: "under_way_bytes", labels, value: life?.link.underWayBytes ?? 0 });
    }
    for (const [shard, { status, failedCells }] of this.records.entries()) {
      const labels = { shard: String(shard) };
      samples.push({ name: "shard_up", labels, value: status === "up" ? 1 : 0 });
      samples.push({ name: "cells_failed", labels, value: failedCells.size });
    }
    return [...samples, ...(this.meter?.samples("front") ?? [])];
  }

  private slotOf(shard: number): Slot | undefined {
    return this.records[shard] === undefined ? undefined : this.slots[workerOf(shard, this.workers)];
  }

  private afterwards(run: () => void): void {
    this.ready.push(run);
    if (this.ready.length > 1) return;
    this.options.clock.soon(() => {
      for (const call of this.ready.splice(0)) call();
    });
  }
}

function drainPort({ thread, link }: Life): void {
  for (let post = thread.take(); post !== undefined; post = thread.take()) link.receive(post);
}
