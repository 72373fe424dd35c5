// A disk in memory that behaves as badly as a real one may: what was not synced can be lost, torn or kept in any order when the
// power is cut, and any call can be made to fail.
//
// A write is seen by reads at once and is durable when its file was synced. A name (create, rename, unlink) is seen at once and
// is durable when its folder was synced; names that were not synced reach the disk in their order, up to some point.

import { dirname } from "node:path";
import type { DerivedTable } from "../../src/store/log/derived.ts";
import type { Files, LogFile } from "../../src/store/log/files.ts";

export interface Change {
  readonly position: number;
  /** Without bytes: the file was cut or grown to this size. */
  readonly bytes?: Buffer;
}

/** Bytes that grow. */
export class Content {
  private buffer: Buffer = Buffer.alloc(0);
  private size = 0;

  static of(bytes: Buffer): Content {
    const content = new Content();
    content.apply({ position: 0, bytes });
    return content;
  }

  bytes(): Buffer {
    return this.buffer.subarray(0, this.size);
  }

  apply({ position, bytes }: Change): void {
    const size = bytes === undefined ? position : Math.max(this.size, position + bytes.length);
    if (size > this.buffer.length) {
      const grown = Buffer.alloc(2 * size);
      this.bytes().copy(grown);
      this.buffer = grown;
    }
    if (size < this.size) this.buffer.fill(0, size, this.size);
    this.size = size;
    bytes?.copy(this.buffer, position);
  }
}

class Inode {
  current = new Content();
  durable = new Content();
  pending: Change[] = [];

  change(change: Change): void {
    this.current.apply(change);
    this.pending.push(change);
  }

  sync(): void {
    for (const change of this.pending) this.durable.apply(change);
    this.pending = [];
  }
}

export interface Call {
  readonly op:
    | "create"
    | "open"
    | "write"
    | "datasync"
    | "truncate"
    | "rename"
    | "unlink"
    | "syncFolder"
    | "read"
    | "list";
  readonly path: string;
  /** Counted over all calls that change something. */
  readonly step: number;
  readonly bytes?: number;
}

/** What the power cut makes of what was not synced. */
export type Cut =
  | { readonly unsynced: "lost" | "kept" }
  /** The last write reaches the disk up to this many bytes, all before it whole. */
  | { readonly unsynced: "torn"; readonly at: number }
  /** Sectors of 512 bytes reach the disk or not, as the seed says. */
  | { readonly unsynced: "scattered"; readonly seed: number };

function powerIsOff(): Error {
  return Object.assign(new Error("the power is off"), { code: "EPOWER" });
}

export function diskError(code: string): Error {
  return Object.assign(new Error(`${code}: made by the test`), { code });
}

export class MemoryDisk implements Files {
  readonly calls: Call[] = [];
  step = 0;
  /** The power goes off during this step. */
  cutAt = Number.POSITIVE_INFINITY;
  /** May throw what the call shall fail with. */
  before: (call: Call) => void = () => undefined;
  private names = new Map<string, Inode>();
  private durableNames = new Map<string, Inode>();
  private pendingNames: { folder: string; apply: (names: Map<string, Inode>) => void }[] = [];
  private off = false;

  async create(path: string): Promise<LogFile> {
    const last = this.enter("create", path);
    if (this.names.has(path)) throw diskError("EEXIST");
    const inode = new Inode();
    this.rename1(path, (names) => names.set(path, inode));
    this.leave(last);
    return new MemoryFile(this, path, inode);
  }

  async open(path: string): Promise<LogFile> {
    this.enterRead("open", path);
    return new MemoryFile(this, path, this.inode(path));
  }

  async list(folder: string): Promise<string[]> {
    this.enterRead("list", folder);
    const found = new Set<string>();
    for (const path of this.names.keys()) {
      if (path.startsWith(`${folder}/`)) found.add(path.slice(folder.length + 1).split("/")[0]);
    }
    return [...found];
  }

  async makeFolder(): Promise<void> {}

  async rename(from: string, to: string): Promise<void> {
    const last = this.enter("rename", to);
    const inode = this.inode(from);
    this.rename1(to, (names) => {
      names.delete(from);
      names.set(to, inode);
    });
    this.leave(last);
  }

  async unlink(path: string): Promise<void> {
    const last = this.enter("unlink", path);
    this.inode(path);
    this.rename1(path, (names) => names.delete(path));
    this.leave(last);
  }

  async syncFolder(folder: string): Promise<void> {
    const last = this.enter("syncFolder", folder);
    if (last) this.leave(last);
    // A folder's journal is one: what came before goes with it.
    const through = this.pendingNames.findLastIndex((change) => change.folder === folder);
    for (const change of this.pendingNames.splice(0, through + 1)) change.apply(this.durableNames);
  }

  /** The disk as the next start finds it. */
  afterCut(cut: Cut, namesKept = 0): MemoryDisk {
    const next = new MemoryDisk();
    const copies = new Map<Inode, Inode>();
    const names = new Map(this.durableNames);
    const kept = cut.unsynced === "kept" ? this.pendingNames.length : Math.min(namesKept, this.pendingNames.length);
    for (const change of this.pendingNames.slice(0, kept)) change.apply(names);
    for (const [path, inode] of names) {
      const copy = copies.get(inode) ?? new Inode();
      copies.set(inode, copy);
      const bytes = survivors(inode, cut);
      copy.current = Content.of(bytes);
      copy.durable = Content.of(bytes);
      next.names.set(path, copy);
      next.durableNames.set(path, copy);
    }
    return next;
  }

  get pendingNameCount(): number {
    return this.pendingNames.length;
  }

  /** The content of a file, to be read or spoiled by a test. */
  content(path: string): Buffer {
    return this.inode(path).current.bytes();
  }

  setContent(path: string, content: Buffer): void {
    const inode = this.inode(path);
    inode.current = Content.of(content);
    inode.durable = Content.of(content);
    inode.pending = [];
  }

  paths(): string[] {
    return [...this.names.keys()].sort();
  }

  /** Before a call that changes something; true when the power goes off during it. */
  enter(op: Call["op"], path: string, bytes?: number): boolean {
    if (this.off) throw powerIsOff();
    this.step++;
    const call = { op, path, step: this.step, ...(bytes === undefined ? {} : { bytes }) };
    this.calls.push(call);
    this.before(call);
    return this.step >= this.cutAt;
  }

  enterRead(op: Call["op"], path: string): void {
    if (this.off) throw powerIsOff();
    this.before({ op, path, step: this.step });
  }

  leave(last: boolean): void {
    if (!last) return;
    this.off = true;
    throw powerIsOff();
  }

  /** A disk that holds these files, all of them durable. */
  static of(files: ReadonlyMap<string, Buffer>): MemoryDisk {
    const disk = new MemoryDisk();
    for (const [path, content] of files) {
      const inode = new Inode();
      disk.names.set(path, inode);
      disk.durableNames.set(path, inode);
      disk.setContent(path, content);
    }
    return disk;
  }

  private rename1(path: string, apply: (names: Map<string, Inode>) => void): void {
    apply(this.names);
    this.pendingNames.push({ folder: dirname(path), apply });
  }

  private inode(path: string): Inode {
    const inode = this.names.get(path);
    if (inode === undefined) throw diskError("ENOENT");
    return inode;
  }
}

function survivors(inode: Inode, cut: Cut): Buffer {
  switch (cut.unsynced) {
    case "lost":
      return Buffer.from(inode.durable.bytes());
    case "kept":
      return Buffer.from(inode.current.bytes());
    case "torn": {
      const content = Content.of(inode.durable.bytes());
      inode.pending.forEach((change, i) => {
        const last = i === inode.pending.length - 1 && change.bytes !== undefined;
        content.apply(last ? { ...change, bytes: change.bytes.subarray(0, cut.at) } : change);
      });
      return content.bytes();
    }
    case "scattered": {
      const content = Content.of(inode.durable.bytes());
      let seed = cut.seed;
      for (const change of inode.pending) {
        if (change.bytes === undefined) continue;
        for (let at = 0; at < change.bytes.length; at += 512) {
          seed = (Math.imul(seed, 1103515245) + 12345) >>> 0;
          if ((seed & 0x10000) === 0) continue;
          content.apply({ position: change.position + at, bytes: change.bytes.subarray(at, at + 512) });
        }
      }
      return content.bytes();
    }
    default:
      return cut satisfies never;
  }
}

class MemoryFile implements LogFile {
  readonly path: string;
  private readonly disk: MemoryDisk;
  private readonly inode: Inode;
  private closed = false;

  constructor(disk: MemoryDisk, path: string, inode: Inode) {
    this.disk = disk;
    this.path = path;
    this.inode = inode;
  }

  async size(): Promise<number> {
    this.check();
    return this.inode.current.bytes().length;
  }

  async read(target: Uint8Array, position: number): Promise<number> {
    this.check();
    this.disk.enterRead("read", this.path);
    const found = this.inode.current.bytes().subarray(position, position + target.length);
    target.set(found);
    return found.length;
  }

  writeNow(bytes: Uint8Array, position: number): void {
    this.check();
    const last = this.disk.enter("write", this.path, bytes.length);
    this.inode.change({ position, bytes: Buffer.from(bytes) });
    this.disk.leave(last);
  }

  async write(bytes: Uint8Array, position: number): Promise<void> {
    this.writeNow(bytes, position);
  }

  async datasync(): Promise<void> {
    this.check();
    this.disk.leave(this.disk.enter("datasync", this.path));
    this.inode.sync();
  }

  async truncate(length: number): Promise<void> {
    this.check();
    const last = this.disk.enter("truncate", this.path);
    this.inode.change({ position: length });
    this.disk.leave(last);
  }

  async close(): Promise<void> {
    this.closed = true;
  }

  private check(): void {
    if (this.closed) throw diskError("EBADF");
  }
}

/** A derived table without a disk. */
export function memoryTable(): DerivedTable {
  const entries = new Map<string, [Buffer, Buffer]>();
  return {
    get: (key) => entries.get(key.toString("hex"))?.[1],
    range(from, to, limit) {
      return [...entries.values()]
        .filter(([key]) => Buffer.compare(key, from) >= 0 && Buffer.compare(key, to) < 0)
        .sort(([a], [b]) => Buffer.compare(a, b))
        .slice(0, limit);
    },
    async write(changes) {
      for (const [key, value] of changes) {
        if (value === null) entries.delete(key.toString("hex"));
        else entries.set(key.toString("hex"), [key, value]);
      }
    },
    async clear() {
      entries.clear();
    },
    async close() {},
  };
}
