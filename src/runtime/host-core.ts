// What runs in a worker thread, without the thread: the shards placed here, the turns in which they work, and the one post per
// turn back to the front. A turn begins with everything the port holds, so that what came while a commit was in flight joins the
// next one.

import type { Kinds, Sample } from "../actors/effects.ts";
import { failure } from "../protocol/failure.ts";
import type { Damage, Store } from "../store/store.ts";
import type { Clock } from "./clock.ts";
import type { HostSettings, Item, ToFront, ToHost } from "./envelope.ts";
import { type Logger, loggerOver } from "./log.ts";
import { Meter } from "./meter.ts";
import type { Surroundings } from "./open-shard.ts";
import { Room } from "./room.ts";
import { Shard } from "./shard.ts";
import { Timers } from "./timers.ts";

/** Posts taken in before a turn must end, so that answers do not wait for ever under load. */
const postsPerTurnMax = 64;

/** The host's end of the data plane. */
export interface HostPort {
  /** The next post that is there already. */
  take(): ToHost | undefined;
  post(message: ToFront, transfer: readonly ArrayBuffer[]): void;
}

export interface HostOptions {
  readonly settings: HostSettings;
  readonly kinds: Kinds;
  readonly store: Store;
  readonly clock: Clock;
  readonly port: HostPort;
  /** The thread's own numbers. */
  readonly threadSamples?: () => readonly Sample[];
}

export class Host {
  readonly log: Logger;
  private readonly options: HostOptions;
  private readonly shards = new Map<number, Shard>();
  private readonly around: Surroundings;
  private readonly meter = new Meter();
  private readonly room = new Room();
  private readonly timers: Timers;
  private items: Item[] = [];
  private tells = 0;
  private reportedTells = 0;
  private nextAsk = 1;
  private inTurn = false;

  constructor(options: HostOptions) {
    this.options = options;
    const { kinds, clock, settings } = options;
    const post = (item: Item) => void this.items.push(item);
    const turn = (run: () => void) => this.turn(run);
    this.log = loggerOver("debug", (level, msg, fields) =>
      turn(() => post({ type: "log", level, msg, fields: { worker: settings.worker, ...fields } })),
    );
    this.timers = new Timers(clock, turn);
    this.around = {
      kinds,
      clock,
      timers: this.timers,
      log: this.log,
      meter: this.meter,
      shards: settings.shards,
      limits: settings.limits,
      post,
      room: (bytes) => this.room.take(bytes),
      nextAsk: () => this.nextAsk++,
      turn,
    };
  }

  /** Opens these shards; their fate is told by `shardUp` and `shardDown`. */
  place(shards: readonly number[]): void {
    this.turn(() => {
      for (const number of shards) {
        if (this.shards.has(number)) continue;
        const shard = new Shard(number, () => this.options.store.openShard(number), this.around);
        this.shards.set(number, shard);
        shard.open();
      }
    });
  }

  /** One post of the front; more that wait on the port are taken in the same turn. */
  receive(post: ToHost): void {
    this.turn(() => this.takeIn(post));
  }

  /** Takes in what was posted, commits what is gathered, closes every shard and the store. */
  async drain(): Promise<void> {
    let closing: Promise<void>[] = [];
    this.turn(() => {
      for (let post = this.options.port.take(); post !== undefined; post = this.options.port.take()) this.takeIn(post);
      closing = [...this.shards.values()].map((shard) => shard.close());
    });
    await Promise.all(closing);
    this.timers.stop();
    await this.options.store.close();
  }

  /** Found when a shard was opened, or by a read long after. */
  damaged(damage: Damage): void {
    const { shard, place, reason, stream, from, to } = damage;
    this.log.error("a stretch of the log is damaged", { shard, place, reason, stream, from, to });
    this.turn(() => void this.items.push({ type: "damaged", damage }));
  }

  samples(): readonly Sample[] {
    const { settings, threadSamples } = this.options;
    let cells = 0;
    let mailbox = 0;
    const ofCells: Sample[] = [];
    this.turn(() => {
      for (const shard of this.shards.values()) {
        cells += shard.cellCount;
        mailbox += shard.waitingCount;
        for (const sample of shard.samples()) ofCells.push(sample);
      }
    });
    return [...this.meter.samples(String(settings.worker), ofCells, { cells, mailbox }), ...(threadSamples?.() ?? [])];
  }

  private turn(run: () => void): void {
    if (this.inTurn) {
      run();
      return;
    }
    this.inTurn = true;
    run();
    for (let posts = 1; posts < postsPerTurnMax; posts++) {
      const post = this.options.port.take();
      if (post === undefined) break;
      this.takeIn(post);
    }
    for (const shard of this.shards.values()) shard.endTurn();
    // No `finally`: what throws here is no cell's fault, ends the thread, and must not post half a turn.
    this.inTurn = false;
    this.postTurn();
  }

  private takeIn({ answers, mail }: ToHost): void {
    for (const { shard, ask, answer } of answers) this.shards.get(shard)?.answered(ask, answer);
    for (const { shard, cell, id, message } of mail) {
      if (id === 0) this.tells++;
      const target = this.shards.get(shard);
      if (target !== undefined) target.deliver(cell, message, id);
      else if (id !== 0) {
        const answer = failure("unavailable", `shard ${shard} is not on worker ${this.options.settings.worker}`);
        this.items.push({ type: "answer", id, answer });
      }
    }
  }

  private postTurn(): void {
    const transfer = this.room.seal();
    const unreported = this.tells - this.reportedTells;
    if (this.items.length === 0 && unreported < this.options.settings.reportTells) return;
    const items = this.items;
    this.items = [];
    this.reportedTells = this.tells;
    this.options.port.post({ items, tells: this.tells }, transfer);
  }
}
