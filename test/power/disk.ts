// A disk, as far as it can be known from a journal: what is durable at a moment, and what may be there besides should the power go
// off then.
//
// Data of a file is durable once a sync of it that began after the change has ended. A name is durable once such a sync of its
// folder has ended; syncing the file does not make its name durable. A rename is one step: both names or none.

import { dirname } from "node:path";
import type { Dice } from "../support/dice.ts";
import { type Change, Content } from "../support/store-files.ts";
import type { JournalRecord } from "./journal.ts";

interface Pending extends Change {
  readonly seq: number;
}

class File {
  readonly durable = new Content();
  readonly pending: Pending[] = [];
}

/** A folder is an entry without a file. */
interface Entry {
  readonly file: File | undefined;
}

type NameChange = { readonly seq: number; readonly folder: string; readonly entry: Entry } & (
  | { readonly kind: "set" | "remove"; readonly path: string }
  | { readonly kind: "move"; readonly from: string; readonly to: string }
);

export type NamesLeft =
  /** The first so many of a hundred, in their order, as a file system with one journal does it. */
  | { readonly names: "journal"; readonly percent: number }
  /** Any subset that makes sense. */
  | { readonly names: "any" };

export type Left = NamesLeft &
  (
    | { readonly data: "lost" | "kept" }
    /** Sectors of this size reach the disk or not. */
    | { readonly data: "sectors"; readonly bytes: 512 | 4096 }
    /** The last write of each file up to some byte of a sector boundary, all before it whole. */
    | { readonly data: "torn" }
  );

/** Path to content: what a start finds. */
export type Folder = ReadonlyMap<string, Buffer>;

export class LoggedDisk {
  private seq = 0;
  private readonly folders = new Map<number, string>();
  private readonly files = new Map<number, File>();
  private readonly entries = new Map<number, Entry>();
  private readonly durableNames = new Map<string, Entry>();
  private names: NameChange[] = [];
  private readonly syncs = new Map<string, number>();

  constructor(root: string, inode: number) {
    this.folders.set(inode, root);
  }

  get unsyncedNames(): number {
    return this.names.length;
  }

  get unsyncedWrites(): number {
    let sum = 0;
    for (const file of this.files.values()) sum += file.pending.length;
    return sum;
  }

  apply(record: JournalRecord): void {
    const seq = ++this.seq;
    switch (record.op) {
      case "create": {
        const file = new File();
        this.files.set(record.inode, file);
        this.entries.set(record.inode, { file });
        this.name(record.inode, record.path, "set");
        break;
      }
      case "mkdir":
        this.folders.set(record.inode, record.path);
        this.entries.set(record.inode, { file: undefined });
        this.name(record.inode, record.path, "set");
        break;
      case "link":
        this.name(record.inode, record.path, "set");
        break;
      case "unlink":
        this.name(record.inode, record.path, "remove");
        break;
      case "rename": {
        const { from, to } = record;
        this.names.push({ seq, kind: "move", folder: dirname(to), entry: this.entry(record.inode), from, to });
        return;
      }
      case "write":
        this.file(record.inode).pending.push({ seq, position: record.position, bytes: record.bytes });
        return;
      case "truncate":
        this.file(record.inode).pending.push({ seq, position: record.size });
        return;
      case "syncBegin":
        this.syncs.set(record.sync, seq);
        return;
      case "syncEnd":
        if (!record.failed) this.sync(record.inode, this.syncs.get(record.sync) ?? 0);
        this.syncs.delete(record.sync);
        return;
      case "start":
        return;
      default:
        record satisfies never;
    }
  }

  /** What may be found after the power went off now. It stays as it is, whatever is applied later. */
  left(how: Left, dice: Dice): Folder {
    const folder = new Map<string, Buffer>();
    const contents = new Map<File, Buffer>();
    for (const [path, { file }] of this.namesLeft(how, dice)) {
      if (file === undefined) continue;
      const content = contents.get(file) ?? contentLeft(file, how, dice);
      contents.set(file, content);
      folder.set(path, content);
    }
    return folder;
  }

  private name(inode: number, path: string, kind: "set" | "remove"): void {
    this.names.push({ seq: this.seq, kind, folder: dirname(path), entry: this.entry(inode), path });
  }

  private entry(inode: number): Entry {
    const entry = this.entries.get(inode);
    if (entry === undefined) throw new Error(`inode ${inode} was never made`);
    return entry;
  }

  private file(inode: number): File {
    const file = this.files.get(inode);
    if (file === undefined) throw new Error(`inode ${inode} is no file`);
    return file;
  }

  private sync(inode: number, begun: number): void {
    const folder = this.folders.get(inode);
    if (folder !== undefined) {
      const covered = (change: NameChange) => change.folder === folder && change.seq < begun;
      for (const change of this.names) if (covered(change)) applyName(this.durableNames, change);
      this.names = this.names.filter((change) => !covered(change));
      return;
    }
    const { durable, pending } = this.file(inode);
    while (pending.length > 0 && pending[0].seq < begun) durable.apply(pending.shift()!);
  }

  private namesLeft(how: NamesLeft, dice: Dice): Map<string, Entry> {
    const names = new Map(this.durableNames);
    const count = how.names === "journal" ? Math.round((this.names.length * how.percent) / 100) : 0;
    this.names.forEach((change, i) => {
      if (how.names === "journal" ? i < count : dice.chance(50)) applyName(names, change);
    });
    for (const path of names.keys()) if (!this.isReachable(path, names)) names.delete(path);
    return names;
  }

  private isReachable(path: string, names: ReadonlyMap<string, Entry>): boolean {
    const folder = dirname(path);
    return [...this.folders.values()].indexOf(folder) === 0 || names.has(folder);
  }
}

/** Out of order a change is made only where it does not give one file two names. */
function applyName(names: Map<string, Entry>, change: NameChange): void {
  const { entry } = change;
  switch (change.kind) {
    case "set":
      names.set(change.path, entry);
      return;
    case "remove":
      if (names.get(change.path) === entry) names.delete(change.path);
      return;
    case "move": {
      const elsewhere = [...names].some(([path, found]) => found === entry && path !== change.from);
      if (elsewhere) return;
      names.delete(change.from);
      names.set(change.to, entry);
      return;
    }
    default:
      change satisfies never;
  }
}

function contentLeft(file: File, how: Left, dice: Dice): Buffer {
  const content = Content.of(file.durable.bytes());
  if (file.pending.length === 0 || how.data === "lost") return content.bytes();
  if (how.data === "sectors") return sectorsLeft(file, content, how.bytes, dice);
  file.pending.forEach((change, i) => {
    const torn = how.data === "torn" && i === file.pending.length - 1 && change.bytes !== undefined;
    content.apply(torn ? { ...change, bytes: firstSectors(change, dice) } : change);
  });
  return content.bytes();
}

/** Writes are cut where sectors of the file end, not where those of the write would. */
function firstSectors({ position, bytes = Buffer.alloc(0) }: Change, dice: Dice): Buffer {
  const sectors = Math.ceil((position + bytes.length) / 512) - Math.floor(position / 512);
  const end = (Math.floor(position / 512) + dice.below(sectors)) * 512;
  return bytes.subarray(0, Math.max(0, end - position));
}

/** Of the writes to a sector, those up to some moment; another moment for each sector. */
function sectorsLeft(file: File, content: Content, size: number, dice: Dice): Buffer {
  const touched = new Map<number, number>();
  const sectorsOf = ({ position, bytes }: Change) => {
    const first = Math.floor(position / size);
    return {
      first,
      last: bytes === undefined || bytes.length === 0 ? first - 1 : Math.floor((position + bytes.length - 1) / size),
    };
  };
  for (const change of file.pending) {
    const { first, last } = sectorsOf(change);
    for (let at = first; at <= last; at++) touched.set(at, (touched.get(at) ?? 0) + 1);
  }
  const kept = new Map([...touched].map(([sector, count]) => [sector, dice.below(count + 1)]));
  for (const change of file.pending) {
    const { position, bytes } = change;
    if (bytes === undefined) {
      if (dice.chance(50)) content.apply(change);
      continue;
    }
    const { first, last } = sectorsOf(change);
    for (let at = first; at <= last; at++) {
      const left = kept.get(at) ?? 0;
      if (left === 0) continue;
      kept.set(at, left - 1);
      const from = Math.max(position, at * size);
      const to = Math.min(position + bytes.length, (at + 1) * size);
      content.apply({ position: from, bytes: bytes.subarray(from - position, to - position) });
    }
  }
  return sizeLeft(file, content, dice);
}

/** The size may be older than the data, or newer. */
function sizeLeft(file: File, content: Content, dice: Dice): Buffer {
  const durable = file.durable.bytes().length;
  const shrank = file.pending.some(({ bytes, position }) => bytes === undefined && position < durable);
  const found = content.bytes().length;
  if (shrank || found < durable) return content.bytes();
  const whole = Math.max(found, ...file.pending.map(({ position, bytes }) => position + (bytes?.length ?? 0)));
  const size = dice.pick([found, durable, whole]);
  if (size !== found) content.apply({ position: size });
  return content.bytes();
}
