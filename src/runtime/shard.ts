// One shard through all its incarnations: opened under a new epoch, up, down when the store fails it, opened again with backoff
// until that works. Opening makes the epoch durable, so a shard that came up can write.

import type { Sample } from "../actors/effects.ts";
import type { Answer, Message } from "../actors/messages.ts";
import { failure } from "../protocol/failure.ts";
import { type ShardStore, storeReason } from "../store/store.ts";
import { faultFields, reasonOf } from "./log.ts";
import { OpenShard, type Surroundings } from "./open-shard.ts";

const reopenMsMin = 100;
const reopenMsMax = 5000;

export class Shard {
  readonly shard: number;
  private readonly around: Surroundings;
  private readonly openStore: () => Promise<ShardStore>;
  private status: "opening" | "up" | "down" | "closing" = "opening";
  private reason = "opening";
  private live: { readonly store: ShardStore; readonly cells: OpenShard } | undefined;
  private waitMs = reopenMsMin;
  /** The opening or closing under way. */
  private moving: Promise<void> = Promise.resolve();

  constructor(shard: number, openStore: () => Promise<ShardStore>, around: Surroundings) {
    this.shard = shard;
    this.openStore = openStore;
    this.around = around;
    this.reason = `shard ${shard} is opening`;
  }

  get cellCount(): number {
    return this.live?.cells.cellCount ?? 0;
  }

  get waitingCount(): number {
    return this.live?.cells.waitingCount ?? 0;
  }

  open(): void {
    this.moving = this.tryOpen();
  }

  deliver(cell: string, message: Message, id: number): void {
    if (this.status === "up") {
      this.live?.cells.deliver(cell, message, id);
    } else if (id !== 0) {
      const refused =
        this.status === "closing"
          ? failure("shutting_down", "the node is shutting down")
          : this.around.kinds.refusal(message, this.reason);
      this.around.post({ type: "answer", id, answer: refused });
    }
  }

  answered(ask: number, answer: Answer): void {
    this.live?.cells.answered(ask, answer);
  }

  endTurn(): void {
    this.live?.cells.endTurn();
  }

  samples(): readonly Sample[] {
    return this.live?.cells.samples() ?? [];
  }

  /** Commits what is gathered and lets the store go. To be called in a turn. */
  async close(): Promise<void> {
    this.status = "closing";
    const { live } = this;
    if (live !== undefined) await live.cells.drain();
    this.around.turn(() => live?.cells.discard("the shard was closed"));
    await this.moving;
    if (this.live !== undefined) await this.live.store.close();
    this.live = undefined;
  }

  private async tryOpen(): Promise<void> {
    let store: ShardStore;
    try {
      store = await this.openStore();
    } catch (error) {
      this.around.log.error("a shard cannot be opened", { shard: this.shard, ...faultFields(error) });
      return this.around.turn(() => this.down(storeReason(error)));
    }
    this.around.turn(() => this.opened(store));
  }

  private opened(store: ShardStore): void {
    const cells = new OpenShard(store, this.around, (reason) => this.broke(reason));
    this.live = { store, cells };
    if (this.status === "closing") {
      cells.discard("the shard was closed");
      return;
    }
    try {
      cells.start();
    } catch (error) {
      // The list of resident cells could not be made of what is stored.
      this.around.log.error("the cells of a shard cannot be started", { shard: this.shard, ...faultFields(error) });
      cells.discard(reasonOf(error));
      this.broke(reasonOf(error));
      return;
    }
    this.status = "up";
    this.waitMs = reopenMsMin;
    this.around.post({ type: "shardUp", shard: this.shard, epoch: store.epoch, damage: store.damage() });
  }

  private broke(reason: string): void {
    const store = this.live?.store;
    this.live = undefined;
    this.moving = this.release(store).then(() => this.around.turn(() => this.down(reason)));
    // Whoever asks from now on is told at once, before the files are closed.
    this.say(reason);
  }

  private async release(store: ShardStore | undefined): Promise<void> {
    try {
      await store?.close();
    } catch (error) {
      this.around.log.warn("a broken shard did not close cleanly", { shard: this.shard, ...faultFields(error) });
    }
  }

  private down(reason: string): void {
    this.say(reason);
    if (this.status === "closing") return;
    const waitMs = this.waitMs;
    this.waitMs = Math.min(waitMs * 2, reopenMsMax);
    this.around.clock.after(waitMs, () => {
      if (this.status === "down") this.moving = this.tryOpen();
    });
  }

  private say(reason: string): void {
    if (this.status === "closing" || (this.status === "down" && this.reason === reason)) return;
    this.status = "down";
    this.reason = reason;
    this.around.post({ type: "shardDown", shard: this.shard, reason });
  }
}
