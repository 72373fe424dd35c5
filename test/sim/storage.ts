// What outlives a node: its data, in one of two shapes. `memory` keeps committed state as it is and makes every commit a step of its
// own that can be cut before or after. `log` is the real log store over a disk in memory that loses, tears and reorders what was not
// synced. Either way each commit and each opening is told to the checker, and each thread's hold on the store ends with the thread.

import type { Files, LogFile } from "../../src/store/log/files.ts";
import { openLogStore } from "../../src/store/log/log-store.ts";
import { openMemoryStore } from "../../src/store/memory.ts";
import { type Commit, type ShardStore, type Store, StoreError } from "../../src/store/store.ts";
import { type Cut, diskError, MemoryDisk, memoryTable } from "../support/store-files.ts";
import type { Coverage } from "./coverage.ts";
import type { Scope, World } from "./world.ts";

export interface StorageWatch {
  /** A commit was handed to the store: from now on it may be found there. */
  started(shard: number, commit: Commit): void;
  /** It is durable. */
  committed(shard: number, commit: Commit): void;
  /** Surely nothing of it is stored. */
  refused(shard: number, commit: Commit): void;
  /** It failed: nobody knows whether it is stored, and the shard is opened again. */
  broke(shard: number): void;
  /** A shard was opened: this is what it holds. */
  opened(shard: number, store: ShardStore): Promise<void>;
}

/** How the store behaves at the moment. */
export interface Weather {
  slowMs: number;
  /** Commits are refused (the disk is full) until this is false again. */
  full: boolean;
  /** The next so many commits break the shard. */
  breaking: number;
  /** The next so many openings fail. */
  closed: number;
}

const folder = "/data";

export class Storage {
  readonly kind: "memory" | "log";
  readonly weather: Weather = { slowMs: 1, full: false, breaking: 0, closed: 0 };
  /** Called before each step that reaches the store or the disk: whoever does it may die of it. */
  boundary: (scope: Scope, what: string) => void = () => undefined;
  private readonly world: World;
  private readonly watch: StorageWatch;
  private readonly coverage: Coverage;
  private readonly segmentBytes: number;
  private readonly memory: Store = openMemoryStore();
  private disk = new MemoryDisk();
  /** Commits of the memory store that were handed over and not decided. */
  private readonly undecided = new Map<Scope, Set<() => void>>();

  constructor(options: {
    kind: "memory" | "log";
    world: World;
    watch: StorageWatch;
    coverage: Coverage;
    segmentBytes: number;
  }) {
    this.kind = options.kind;
    this.world = options.world;
    this.watch = options.watch;
    this.coverage = options.coverage;
    this.segmentBytes = options.segmentBytes;
  }

  /** The store as one thread sees it. */
  openFor(scope: Scope): Store {
    const inner =
      this.kind === "memory"
        ? this.memory
        : openLogStore({
            path: folder,
            segmentBytes: this.segmentBytes,
            files: this.filesOf(scope),
            openTable: async () => memoryTable(),
          });
    return {
      kind: this.kind,
      openShard: async (shard) => {
        await this.pass(scope, 0.5);
        if (this.weather.closed > 0) {
          this.weather.closed--;
          this.coverage.hit("fault: opening fails");
          throw new StoreError("broken", "EIO", "made by the simulator");
        }
        const store = await inner.openShard(shard);
        await this.watch.opened(shard, store);
        return this.observed(scope, store);
      },
      close: async () => {
        if (this.kind === "log") await inner.close();
      },
    };
  }

  /** The thread is gone: what it had begun has happened or not. */
  died(scope: Scope): void {
    for (const decide of this.undecided.get(scope) ?? []) {
      const applied = this.world.dice.chance(50);
      this.coverage.hit(applied ? "crash: after the commit" : "crash: before the commit");
      if (applied) decide();
    }
    this.undecided.delete(scope);
  }

  /** All threads are gone, and with `power` also what was not synced. */
  crashed(power: boolean): void {
    if (this.kind === "memory") return;
    const { dice } = this.world;
    let cut: Cut = { unsynced: "kept" };
    if (power) {
      const ways: Cut[] = [
        { unsynced: "lost" },
        { unsynced: "torn", at: dice.below(2000) },
        { unsynced: "scattered", seed: dice.below(2 ** 31) },
      ];
      cut = dice.pick(ways);
    }
    this.coverage.hit(`crash: not synced is ${cut.unsynced}`);
    this.disk = this.disk.afterCut(cut, dice.below(this.disk.pendingNameCount + 1));
  }

  // ------------------------------------------------------------------------------------------------------------- one shard

  private observed(scope: Scope, store: ShardStore): ShardStore {
    let broken = false;
    const commit = (given: Commit) => (this.kind === "memory" ? inMemory(given) : onDisk(given));
    const breaks = () => {
      if (this.weather.breaking <= 0) return false;
      this.weather.breaking--;
      broken = true;
      return true;
    };
    const inMemory = async (given: Commit): Promise<void> => {
      if (broken) throw new StoreError("broken", "ESTALE", "the shard is broken");
      this.boundary(scope, "commit");
      if (!scope.alive) return forever();
      if (this.weather.full) {
        this.coverage.hit("fault: commit refused");
        await this.pass(scope, this.weather.slowMs);
        this.watch.refused(store.shard, given);
        throw new StoreError("refused", "ENOSPC", "made by the simulator");
      }
      this.watch.started(store.shard, given);
      const fails = breaks();
      const stored = !fails || this.world.dice.chance(50);
      // Only whoever waits for it learns what became of it; a thread that dies in between leaves it to chance.
      let done: Promise<void> | undefined;
      const decide = () => {
        if (stored) done ??= store.commit(given).then(() => this.watch.committed(store.shard, given));
      };
      const decisions = this.undecided.get(scope) ?? new Set();
      this.undecided.set(scope, decisions.add(decide));
      await this.pass(scope, this.weather.slowMs);
      decisions.delete(decide);
      decide();
      await done;
      await this.pass(scope, this.weather.slowMs / 2);
      if (!fails) return;
      this.coverage.hit(stored ? "fault: commit stored and failed" : "fault: commit lost and failed");
      this.watch.broke(store.shard);
      throw new StoreError("broken", "EIO", "made by the simulator");
    };
    const onDisk = async (given: Commit): Promise<void> => {
      this.boundary(scope, "commit");
      if (!scope.alive) return forever();
      this.watch.started(store.shard, given);
      try {
        await store.commit(given);
      } catch (error) {
        if (error instanceof StoreError && error.state === "refused") this.watch.refused(store.shard, given);
        else this.watch.broke(store.shard);
        throw error;
      }
      if (!scope.alive) return forever();
      this.watch.committed(store.shard, given);
      await this.pass(scope, this.weather.slowMs / 2);
    };
    return {
      shard: store.shard,
      epoch: store.epoch,
      durability: store.durability,
      head: (stream) => store.head(stream),
      streams: () => store.streams(),
      entry: (key) => store.entry(key),
      entries: (prefix) => store.entries(prefix),
      damage: () => store.damage(),
      commit,
      read: async (stream, range) => {
        await this.pass(scope, 0.3);
        return store.read(stream, range);
      },
      findTs: async (stream, ts) => {
        await this.pass(scope, 0.3);
        return store.findTs(stream, ts);
      },
      findId: async (stream, id) => {
        await this.pass(scope, 0.3);
        return store.findId(stream, id);
      },
      latest: async (stream, query) => {
        await this.pass(scope, 0.3);
        return store.latest(stream, query);
      },
      pruneTo: (stream, policy) => store.pruneTo(stream, policy),
      close: () => store.close(),
    };
  }

  /** Takes up to so many milliseconds, and for ever in a thread that is gone by then. */
  private pass(scope: Scope, ms: number): Promise<void> {
    return new Promise((resolve) => {
      this.world.after(scope, (ms * this.world.dice.below(1000)) / 1000, resolve);
    });
  }

  // ------------------------------------------------------------------------------------------------------------- the disk

  private filesOf(scope: Scope): Files {
    const { disk } = this;
    /** Before each step: the thread may die of it, the disk may be full, a call may fail. */
    const guard = (op: string, changes: boolean): void => {
      this.boundary(scope, op);
      if (!scope.alive) throw new Gone();
      if (!changes) return;
      if (this.weather.full && (op === "write" || op === "create")) {
        this.coverage.hit("fault: the disk is full");
        throw diskError("ENOSPC");
      }
      if (this.weather.breaking > 0 && this.world.dice.chance(50)) {
        this.weather.breaking--;
        this.coverage.hit(`fault: ${op} fails`);
        throw diskError("EIO");
      }
    };
    const step = async <T>(op: string, changes: boolean, run: () => Promise<T>): Promise<T> => {
      try {
        guard(op, changes);
      } catch (error) {
        if (error instanceof Gone) return forever();
        throw error;
      }
      const result = await run();
      return scope.alive ? result : forever();
    };
    const fileOf = (file: LogFile): LogFile => ({
      path: file.path,
      size: () => step("size", false, () => file.size()),
      read: (target, position) => step("read", false, () => file.read(target, position)),
      writeNow: (bytes, position) => {
        guard("write", true);
        file.writeNow(bytes, position);
      },
      write: (bytes, position) => step("write", true, () => file.write(bytes, position)),
      datasync: () =>
        step("datasync", true, async () => {
          await this.pass(scope, this.weather.slowMs);
          await file.datasync();
        }),
      truncate: (length) => step("truncate", true, () => file.truncate(length)),
      close: () => step("close", false, () => file.close()),
    });
    return {
      create: (path) => step("create", true, async () => fileOf(await disk.create(path))),
      open: (path) => step("open", false, async () => fileOf(await disk.open(path))),
      list: (path) => step("list", false, () => disk.list(path)),
      makeFolder: () => step("makeFolder", false, () => disk.makeFolder()),
      rename: (from, to) => step("rename", true, () => disk.rename(from, to)),
      unlink: (path) => step("unlink", true, () => disk.unlink(path)),
      syncFolder: (path) => step("syncFolder", true, () => disk.syncFolder(path)),
    };
  }
}

/** The thread that called is gone: nothing comes back. */
class Gone extends Error {}

function forever(): Promise<never> {
  return new Promise(() => undefined);
}
