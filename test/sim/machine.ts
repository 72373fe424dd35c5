// Worker threads without threads: the real Host behind ports that deliver late, each in a scope that can die at any moment, also in
// the middle of a turn. Of a turn that is cut short nothing leaves any more, as nothing leaves a thread that is gone.

import type { Effect, Kinds, Notice } from "../../src/actors/effects.ts";
import { kinds } from "../../src/actors/kinds.ts";
import type { Message } from "../../src/actors/messages.ts";
import type { HostSettings, ToFront, ToHost } from "../../src/runtime/envelope.ts";
import { Host } from "../../src/runtime/host-core.ts";
import type { Thread, Threads } from "../../src/runtime/pool.ts";
import type { Coverage } from "./coverage.ts";
import type { Storage } from "./storage.ts";
import { Scope, type World } from "./world.ts";

/** Between two threads. */
export const postMsMax = 2;
const deathNoticeMsMax = 20;

export interface MachineWatch {
  /** A host has posted this. */
  posted(worker: number, post: ToFront): void;
  /** A host is about to take this in. Its cells are told when it is their turn. */
  taken(worker: number, post: ToHost): void;
  /** A cell begins, perhaps anew. */
  made(shard: number, cell: string): void;
  /** A cell is told this, and then it has decided so. */
  told(shard: number, cell: string, message: Message | Notice): void;
  decided(effects: readonly Effect[]): void;
  /** A thread is gone, and with it all leases of its shards. */
  died(shards: readonly number[]): void;
}

interface Life {
  readonly worker: number;
  readonly scope: Scope;
  readonly die: (reason: string) => void;
  /** After so many more steps that reach outside the thread dies; negative: never. */
  fuse: number;
}

export interface MachineOptions {
  readonly world: World;
  readonly front: Scope;
  readonly storage: Storage;
  readonly watch: MachineWatch;
  readonly coverage: Coverage;
  /** Posts are cloned with their buffers transferred, as a real port does it. */
  readonly cloning: boolean;
}

export class Machine implements Threads {
  private readonly options: MachineOptions;
  private readonly lives = new Map<number, Life>();
  /** Called when a fuse that was set for the whole node has burnt down. */
  nodeFuse = -1;
  onNodeFuse: () => void = () => undefined;
  /** Cells that throw at their next message, by a part of their name. */
  poison: string | undefined;

  constructor(options: MachineOptions) {
    this.options = options;
    options.storage.boundary = (scope, what) => this.boundary(scope, what);
  }

  launch(settings: HostSettings, received: (post: ToFront) => void): Thread {
    const { world, front, storage, watch, cloning, coverage } = this.options;
    const { worker } = settings;
    const scope = new Scope(`worker-${worker}`);
    const inbox: ToHost[] = [];
    const outbox: ToFront[] = [];
    let reject: (error: Error) => void = () => undefined;
    const ended = new Promise<void>((_, fail) => {
      reject = fail;
    });
    ended.catch(() => undefined);
    let placed: readonly number[] = [];
    const life: Life = {
      worker,
      scope,
      fuse: -1,
      die: (reason) => {
        if (!scope.alive) return;
        scope.alive = false;
        storage.died(scope);
        watch.died(placed);
        world.after(front, (world.dice.below(100) / 100) * deathNoticeMsMax, () => reject(new Error(reason)));
      },
    };
    this.lives.set(worker, life);
    let arrivesAt = 0;
    let returnsAt = 0;
    const delay = (last: number) => Math.max(last, world.mono + (world.dice.below(100) / 100) * postMsMax);
    const copy = <T>(value: T, transfer: readonly ArrayBuffer[]): T =>
      cloning ? structuredClone(value, { transfer: [...transfer] }) : value;
    const host = new Host({
      settings,
      kinds: this.kindsWithPoison(),
      store: storage.openFor(scope),
      clock: world.clock(scope),
      port: {
        take: () => {
          const post = inbox.shift();
          if (post !== undefined) watch.taken(worker, post);
          return post;
        },
        post: (message, transfer) => {
          this.boundary(scope, "post");
          if (!scope.alive) return;
          watch.posted(worker, message);
          outbox.push(copy(message, transfer));
          returnsAt = delay(returnsAt);
          world.at(front, returnsAt, () => {
            const post = outbox.shift();
            if (post !== undefined) received(post);
          });
        },
      },
    });
    const call = <T>(run: () => T | Promise<T>): Promise<T> =>
      new Promise((resolve, fail) => {
        world.after(scope, (world.dice.below(100) / 100) * postMsMax, () => {
          // What throws here ends a real thread; the world hears of it.
          void Promise.resolve(run()).then((value) => world.after(front, 0.1, () => resolve(value)), fail);
        });
      });
    return {
      post: (message, transfer) => {
        const sent = copy(message, transfer);
        arrivesAt = delay(arrivesAt);
        world.at(scope, arrivesAt, () => {
          inbox.push(sent);
          const post = inbox.shift();
          if (post === undefined) return;
          watch.taken(worker, post);
          host.receive(post);
        });
      },
      take: () => outbox.shift(),
      control: {
        place: (shards) => {
          placed = [...placed, ...shards];
          return call(() => host.place(shards));
        },
        drain: () => call(() => host.drain()),
        samples: () => call(() => host.samples()),
        crash: () => life.die("crashed by the simulator"),
      },
      ended,
      gone: () => new Promise((resolve) => void world.after(front, 1, resolve)),
      abort: () => {
        coverage.hit("a worker is ended for standing still");
        life.die("aborted");
      },
      close: () => life.die("closed"),
    };
  }

  /** Ends a thread now, or after so many more steps that reach outside of it. */
  kill(worker: number, steps: number): boolean {
    const life = this.lives.get(worker);
    if (life === undefined || !life.scope.alive) return false;
    if (steps === 0) life.die("killed by the simulator");
    else life.fuse = steps;
    return true;
  }

  /** A thread that does nothing for a while, or until it is ended for it. */
  hang(worker: number, ms: number): boolean {
    const life = this.lives.get(worker);
    if (life === undefined || !life.scope.alive) return false;
    this.options.world.standStill(life.scope, ms);
    return true;
  }

  /** All threads at once, as when the process is gone. */
  killAll(): void {
    for (const life of this.lives.values()) life.die("the process is gone");
  }

  async destroy(): Promise<void> {
    this.killAll();
  }

  private boundary(scope: Scope, what: string): void {
    if (!scope.alive) return;
    const { coverage } = this.options;
    if (this.nodeFuse >= 0 && this.nodeFuse-- === 0) {
      coverage.hit(`crash of the node at: ${what}`);
      this.onNodeFuse();
      return;
    }
    for (const life of this.lives.values()) {
      if (life.scope !== scope || life.fuse < 0 || life.fuse-- > 0) continue;
      coverage.hit(`death of a worker at: ${what}`);
      life.die(`killed at ${what}`);
    }
  }

  private kindsWithPoison(): Kinds {
    return {
      ...kinds,
      create: (cell, shelf, env) => {
        const made = kinds.create(cell, shelf, env);
        if (made === undefined) return undefined;
        const { actor } = made;
        this.options.watch.made(shelf.shard, cell);
        const receive = actor.receive.bind(actor);
        actor.receive = (message, ref, at) => {
          if (this.poison !== undefined && cell.startsWith(this.poison) && message.type !== "committed") {
            this.poison = undefined;
            this.options.coverage.hit(`fault: a cell throws (${cell.split("/")[0]})`);
            throw new Error("thrown by the simulator");
          }
          const { watch } = this.options;
          watch.told(shelf.shard, cell, message);
          const effects = receive(message, ref, at);
          watch.decided(effects);
          return effects;
        };
        return made;
      },
    };
  }
}
