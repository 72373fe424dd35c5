// The embedded log as a Store. It lives in a worker thread; folder.ts keeps other processes out, once, in the main thread.

import { join } from "node:path";
import type { Damage, ShardStore, Store } from "../store.ts";
import type { OpenTable } from "./derived.ts";
import { fencedFiles } from "./fence.ts";
import { type Files, nodeFiles } from "./files.ts";
import { openLmdbTable } from "./lmdb-table.ts";
import { openShardLog } from "./shard-log.ts";

export const segmentBytesDefault = 64 * 1024 * 1024;

export interface LogStoreOptions {
  readonly path: string;
  readonly segmentBytes?: number;
  readonly files?: Files;
  /** The file without which the folder is somebody else's by now; no such check without it. */
  readonly lock?: string;
  /** Opens the table of the derived index in a folder; lmdb without it. */
  readonly openTable?: (folder: string) => ReturnType<OpenTable>;
  /** Hears what went wrong in the background. */
  readonly report?: (message: string) => void;
  /** Hears of each stretch that does not check out, once. */
  readonly damaged?: (damage: Damage) => void;
}

export function shardFolder(path: string, shard: number): string {
  return join(path, `shard-${shard}`);
}

export function openLogStore(options: LogStoreOptions): Store {
  const open = new Set<ShardStore>();
  const plain = options.files ?? nodeFiles();
  const files = options.lock === undefined ? plain : fencedFiles(plain, options.lock);
  const openTable = options.openTable ?? openLmdbTable;
  return {
    kind: "log",
    async openShard(shard) {
      const folder = shardFolder(options.path, shard);
      const log = await openShardLog({
        shard,
        folder,
        files,
        segmentBytes: options.segmentBytes ?? segmentBytesDefault,
        openTable: () => openTable(join(folder, "derived")),
        report: options.report ?? (() => undefined),
        damaged: options.damaged ?? (() => undefined),
      });
      open.add(log);
      return log;
    },
    async close() {
      await Promise.all([...open].map((log) => log.close()));
    },
  };
}
