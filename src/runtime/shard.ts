// One shard through all its incarnations: opened under a new epoch, up, read-only while the store refuses writes, down when the store
// has failed it, opened again with backoff until that works. Opening makes the epoch durable, so a shard that came up can write.
//
// A commit that was refused leaves the store as it was, and it can be read. So the cells go, since what they had gathered is not
// stored, but the store stays open: what only reads is served from it, and a small commit is tried from time to time. When one
// succeeds the cells start anew, under the same epoch.

import type { Sample } from "../actors/effects.ts";
import type { Answer, Message } from "../actors/messages.ts";
import { failure } from "../protocol/failure.ts";
import { type Commit, mayPass, type ShardStore, StoreError, storeReason } from "../store/store.ts";
import { faultFields, reasonOf } from "./log.ts";
import { OpenShard, type Stop, type Surroundings, type TokenCounter } from "./open-shard.ts";
import { ReadOnlyShard } from "./read-only-shard.ts";

const retryMsMin = 100;
const retryMsMax = 5000;

/**
 * Large enough that a disk with room for nothing but a few small records is not taken for one that works, and without effect on what
 * is stored: of two puts of a key the later one wins.
 */
const probeBytes = 64 * 1024;
const probeKey = "probe";
const probe: Commit = {
  blocks: [],
  puts: [
    [probeKey, new Uint8Array(probeBytes)],
    [probeKey, null],
  ],
  trims: [],
};

interface Opened {
  readonly store: ShardStore;
  readonly tokens: TokenCounter;
}

export class Shard {
  readonly shard: number;
  private readonly around: Surroundings;
  private readonly openStore: () => Promise<ShardStore>;
  private status: "opening" | "up" | "read-only" | "down" | "closing" = "opening";
  private reason = "opening";
  private opened: Opened | undefined;
  /** While it is up. */
  private cells: OpenShard | undefined;
  /** While it is read-only, and then until what was asked of it is answered. */
  private reads: ReadOnlyShard | undefined;
  private upAt = 0;
  private waitMs = retryMsMin;
  /** The opening, probing or closing under way. */
  private moving: Promise<void> = Promise.resolve();

  constructor(shard: number, openStore: () => Promise<ShardStore>, around: Surroundings) {
    this.shard = shard;
    this.openStore = openStore;
    this.around = around;
    this.reason = `shard ${shard} is opening`;
  }

  get cellCount(): number {
    return this.cells?.cellCount ?? this.reads?.cellCount ?? 0;
  }

  get waitingCount(): number {
    return this.cells?.waitingCount ?? 0;
  }

  open(): void {
    this.moving = this.tryOpen();
  }

  deliver(cell: string, message: Message, id: number): void {
    if (this.status === "up") {
      this.cells?.deliver(cell, message, id);
    } else if (this.status === "read-only" && this.around.kinds.readsOnly(message)) {
      this.reads?.deliver(cell, message, id);
    } else if (id !== 0) {
      const refused =
        this.status === "closing"
          ? failure("shutting_down", "the node is shutting down")
          : this.around.kinds.refusal(message, this.reason);
      this.around.post({ type: "answer", id, answer: refused });
    }
  }

  answered(ask: number, answer: Answer): void {
    this.cells?.answered(ask, answer);
  }

  endTurn(): void {
    this.cells?.endTurn();
    // Reads that were asked before it came up are answered by those who were asked.
    if (this.status === "up" && this.reads?.busy === false) this.endReads("the shard is up");
  }

  samples(): readonly Sample[] {
    return this.cells?.samples() ?? [];
  }

  /** Commits what is gathered and lets the store go. To be called in a turn. */
  async close(): Promise<void> {
    this.status = "closing";
    const { cells } = this;
    if (cells !== undefined) await cells.drain();
    this.around.turn(() => {
      cells?.discard("the shard was closed");
      this.endReads("the shard was closed");
    });
    await this.moving;
    await this.opened?.store.close();
    this.opened = undefined;
  }

  // ------------------------------------------------------------------------------------------------------------------- up

  private async tryOpen(): Promise<void> {
    let store: ShardStore;
    try {
      store = await this.openStore();
    } catch (error) {
      this.around.log.error("a shard cannot be opened", { shard: this.shard, ...faultFields(error) });
      return this.around.turn(() => this.down(storeReason(error), mayPass(error)));
    }
    this.around.turn(() => {
      this.opened = { store, tokens: { next: 1 } };
      this.begin(this.opened);
    });
  }

  private begin({ store, tokens }: Opened): void {
    if (this.status === "closing") return;
    const cells = new OpenShard(store, this.around, tokens, (stop) => this.stopped(stop));
    this.cells = cells;
    try {
      cells.start();
    } catch (error) {
      // The list of resident cells could not be made of what is stored.
      this.around.log.error("the cells of a shard cannot be started", { shard: this.shard, ...faultFields(error) });
      cells.discard(reasonOf(error));
      this.broke(reasonOf(error), false);
      return;
    }
    this.status = "up";
    this.upAt = this.around.clock.mono();
    this.around.post({ type: "shardUp", shard: this.shard, epoch: store.epoch, damage: store.damage() });
  }

  private stopped({ reason, refused, unread }: Stop): void {
    // One that fails again as soon as it is up waits longer each time.
    if (this.around.clock.mono() - this.upAt >= retryMsMax) this.waitMs = retryMsMin;
    if (refused && this.opened !== undefined && this.status !== "closing") this.readOnly(this.opened, reason);
    else this.broke(reason, true);
    for (const { cell, message, id } of unread) this.deliver(cell, message, id);
  }

  // ------------------------------------------------------------------------------------------------------------ read-only

  private readOnly({ store, tokens }: Opened, reason: string): void {
    this.cells = undefined;
    this.endReads(reason);
    this.reads = new ReadOnlyShard(store, this.around, tokens, (message) =>
      this.around.kinds.refusal(message, this.reason),
    );
    this.say("read-only", reason, true);
    this.retry("read-only", () => this.tryCommit(store));
  }

  private async tryCommit(store: ShardStore): Promise<void> {
    try {
      await store.commit(probe);
    } catch (error) {
      this.around.log.error("a shard takes no writes", { shard: this.shard, ...faultFields(error) });
      const refused = error instanceof StoreError && error.state === "refused";
      return this.around.turn(() => {
        if (!refused) return this.broke(storeReason(error), true);
        this.say("read-only", storeReason(error), true);
        this.retry("read-only", () => this.tryCommit(store));
      });
    }
    this.around.turn(() => {
      if (this.opened !== undefined) this.begin(this.opened);
    });
  }

  private endReads(reason: string): void {
    this.reads?.discard(reason);
    this.reads = undefined;
  }

  // ----------------------------------------------------------------------------------------------------------------- down

  private broke(reason: string, mayPass: boolean): void {
    const store = this.opened?.store;
    this.opened = undefined;
    this.cells = undefined;
    this.endReads(reason);
    this.moving = this.release(store).then(() => this.around.turn(() => this.down(reason, mayPass)));
    // Whoever asks from now on is told at once, before the files are closed.
    this.say("down", reason, mayPass);
  }

  private async release(store: ShardStore | undefined): Promise<void> {
    try {
      await store?.close();
    } catch (error) {
      this.around.log.warn("a broken shard did not close cleanly", { shard: this.shard, ...faultFields(error) });
    }
  }

  private down(reason: string, mayPass: boolean): void {
    this.say("down", reason, mayPass);
    this.retry("down", () => this.tryOpen());
  }

  private retry(status: "read-only" | "down", attempt: () => Promise<void>): void {
    if (this.status === "closing") return;
    const waitMs = this.waitMs;
    this.waitMs = Math.min(waitMs * 2, retryMsMax);
    this.around.clock.after(waitMs, () => {
      if (this.status === status) this.moving = attempt();
    });
  }

  private say(status: "read-only" | "down", reason: string, mayPass: boolean): void {
    if (this.status === "closing" || (this.status === status && this.reason === reason)) return;
    this.status = status;
    this.reason = reason;
    this.around.post({ type: "shardDown", shard: this.shard, reason, reads: status === "read-only", mayPass });
  }
}
