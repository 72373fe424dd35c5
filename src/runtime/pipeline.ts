// The commits of an open shard: one in flight, the next one gathering. Everything asked for while one is in flight shares the next,
// so the number of commits follows the store's speed and not the number of messages.

import type { Env } from "../actors/effects.ts";
import { type ShardStore, StoreError, storeReason } from "../store/store.ts";
import type { Cell } from "./cell.ts";
import type { Clock } from "./clock.ts";
import { type Built, buildCommit, Gather, type Held } from "./gather.ts";
import { faultFields, type Logger } from "./log.ts";
import type { Meter } from "./meter.ts";

export interface Flight extends Built {
  readonly sequence: number;
  readonly held: readonly Held[];
  readonly startedAt: number;
}

/** What the open shard does about it. */
export interface PipelineOwner {
  /** `persist` of this cell threw; `held` are its replies that the commit no longer covers. */
  persistFailed(cell: Cell, error: unknown, held: readonly Held[]): void;
  /** A commit has left: cells that had filled it go on. */
  commitLeft(): void;
  committed(flight: Flight): void;
  /** Nothing is left to wait for: there was nothing to write, or it is durable. */
  release(held: readonly Held[], persisted: Built["persisted"]): void;
  commitFailed(refused: boolean, reason: string): void;
  /** In a turn of its own, unless the shard has ended. */
  later(run: () => void): void;
}

export class Pipeline {
  gather = new Gather(1);
  flight: Flight | undefined;
  /** The last commit that is over. */
  done = 0;
  private readonly store: ShardStore;
  private readonly env: Env;
  private readonly around: { readonly clock: Clock; readonly log: Logger; readonly meter: Meter };
  private readonly owner: PipelineOwner;

  constructor(
    store: ShardStore,
    env: Env,
    around: { readonly clock: Clock; readonly log: Logger; readonly meter: Meter },
    owner: PipelineOwner,
  ) {
    this.store = store;
    this.env = env;
    this.around = around;
    this.owner = owner;
  }

  get idle(): boolean {
    return this.flight === undefined && this.gather.parts.size === 0;
  }

  /** When the next commit must leave, if it is only waiting for more to join. */
  get dueAt(): number | undefined {
    return this.flight === undefined && Number.isFinite(this.gather.dueAt) ? this.gather.dueAt : undefined;
  }

  endTurn({ draining }: { readonly draining: boolean }): void {
    if (this.flight !== undefined) return;
    const { gather } = this;
    if (gather.parts.size === 0) this.owner.release(gather.held.splice(0), []);
    else if (draining || gather.dueAt <= this.env.mono) this.commit();
  }

  private commit(): void {
    const { gather, store, around } = this;
    this.gather = new Gather(gather.sequence + 1);
    const built = buildCommit(gather, {
      head: (stream) => store.head(stream),
      env: this.env,
      random: (bound) => around.clock.random(bound),
    });
    const faults = built.faults.map(({ cell, error }) => ({ cell, error, held: gather.drop(cell) }));
    const { blocks, puts, trims } = built.commit;
    if (blocks.length + puts.length + trims.length === 0) {
      this.done = gather.sequence;
      this.owner.release(gather.held, built.persisted);
    } else {
      const flight = { ...built, sequence: gather.sequence, held: gather.held, startedAt: around.clock.mono() };
      this.flight = flight;
      store.commit(built.commit).then(
        () => this.owner.later(() => this.succeed(flight)),
        (error) => this.owner.later(() => this.fail(error)),
      );
    }
    for (const { cell, error, held } of faults) this.owner.persistFailed(cell, error, held);
    this.owner.commitLeft();
  }

  private succeed(flight: Flight): void {
    this.flight = undefined;
    this.done = flight.sequence;
    const { meter, clock } = this.around;
    meter.commits++;
    meter.commitMs.observe(clock.mono() - flight.startedAt);
    meter.commitBytes.observe(flight.bytes);
    meter.commitEvents.observe(flight.events);
    this.owner.committed(flight);
  }

  private fail(error: unknown): void {
    const refused = error instanceof StoreError && error.state === "refused";
    this.around.meter.commitFailures++;
    this.around.log.error("a commit failed", { shard: this.store.shard, refused, ...faultFields(error) });
    this.owner.commitFailed(refused, storeReason(error));
  }
}
