// Folders to be spoiled: as a real node left them that ended in order, one that was killed, and those of earlier releases.

import { readdirSync, readFileSync, statSync } from "node:fs";
import { dirname, join } from "node:path";
import { openLogStore } from "../../src/store/log/log-store.ts";
import { markPath } from "../../src/store/log/mark.ts";
import type { Dice } from "../support/dice.ts";
import { MemoryDisk, memoryTable } from "../support/store-files.ts";
import type { Source } from "./corruption.ts";
import { type Folder, LoggedDisk } from "./disk.ts";
import { segmentBytes, shards } from "./power-node.ts";
import type { Run } from "./run.ts";

const fixtures = join(process.cwd(), "test/store/fixtures");

export async function sourcesOf(run: Run, dice: Dice): Promise<Source[]> {
  const disk = new LoggedDisk(run.root, run.inode);
  const places = new Set(lastVouched(run));
  const folders: Folder[] = [];
  run.records.forEach((record, at) => {
    disk.apply(record);
    if (places.has(at)) folders.push(disk.left({ data: "kept", names: "journal", percent: 100 }, dice));
  });
  const ofRun = folders.map((folder): Source => ({ root: run.root, folder, shards, segmentBytes }));
  return [...ofRun, ...(await Promise.all(readdirSync(fixtures).map((version) => fixture(join(fixtures, version)))))];
}

/** In each life the last record at which no shard has written what its mark does not say yet: nobody was told of that. */
function lastVouched({ records }: Run): number[] {
  const paths = new Map<number, string>();
  const ahead = new Set<string>();
  const found: number[] = [];
  records.forEach((record, at) => {
    if (record.op === "start") found.push(-1);
    if (record.op === "create") paths.set(record.inode, record.path);
    if (record.op === "rename") paths.set(record.inode, record.to);
    if (record.op !== "write") return;
    const path = paths.get(record.inode) ?? "";
    if (path.endsWith(".log")) ahead.add(dirname(path));
    if (path !== markPath(dirname(path))) return;
    ahead.delete(dirname(path));
    if (ahead.size === 0) found[found.length - 1] = at;
  });
  return found.filter((at) => at > 0);
}

/** Opened and closed once by this version, which then vouches for it. */
export async function fixture(root: string): Promise<Source> {
  const names = readdirSync(root, { recursive: true }).map((name) => join(root, String(name)));
  const files = new Map(names.filter((path) => statSync(path).isFile()).map((path) => [path, readFileSync(path)]));
  const { shards: count } = JSON.parse(readFileSync(join(root, "format.json"), "utf8")) as { shards: number };
  const source = { root, shards: count, segmentBytes: 1024 };
  const disk = MemoryDisk.of(files);
  const store = openLogStore({ path: root, files: disk, segmentBytes: 1024, openTable: async () => memoryTable() });
  for (let shard = 0; shard < count; shard++) await store.openShard(shard);
  await store.close();
  return { ...source, folder: new Map(disk.paths().map((path) => [path, Buffer.from(disk.content(path))])) };
}
