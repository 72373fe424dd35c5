// A segment file and those who read it. Numbers rise and are never used twice. A file stays open while somebody reads it, even
// when it was replaced or deleted meanwhile; of those that nobody reads only a few are kept open.

import { join } from "node:path";
import { StoreError } from "../store.ts";
import type { Files, LogFile } from "./files.ts";
import type { Previous } from "./snapshot.ts";

const openFilesMax = 64;

export function segmentPath(folder: string, number: number): string {
  return join(folder, `${String(number).padStart(12, "0")}.log`);
}

export function segmentNumber(name: string): number | undefined {
  const match = /^(\d{12})\.log$/.exec(name);
  return match ? Number(match[1]) : undefined;
}

/** What is known of a segment, besides its file. */
export interface SegmentFacts {
  /** Where its records end. */
  end: number;
  previous: Previous;
  lastSequence: number;
  /** The last commit in it with keys or ids of the publisher's own, 0 for none. */
  lastExtended: number;
  /** Written by this incarnation of the shard. */
  own: boolean;
  /** It ends in a footer. */
  footed: boolean;
  /** Only what lived was copied into it: no snapshot, no entries. */
  rewritten: boolean;
  /** Its size for the question how much of it still lives. */
  full: number;
  /** It has a record that does not check out: its bytes are kept whatever happens. */
  damaged: boolean;
}

export class Segment implements SegmentFacts {
  readonly number: number;
  readonly path: string;
  end = 0;
  previous: Previous = { segment: 0, end: 0 };
  lastSequence = 0;
  lastExtended = 0;
  own = false;
  footed = false;
  rewritten = false;
  full = 0;
  damaged = false;
  private readonly pool: SegmentFiles;
  private file: Promise<LogFile> | undefined;
  private readers = 0;
  private gone = false;
  private lastLeft: (() => void) | undefined;

  constructor(number: number, path: string, pool: SegmentFiles, file?: LogFile) {
    this.number = number;
    this.path = path;
    this.pool = pool;
    if (file !== undefined) this.file = Promise.resolve(file);
  }

  get idle(): boolean {
    return this.readers === 0;
  }

  /** Runs `use` with the file open. */
  async reading<T>(use: (file: LogFile) => Promise<T>): Promise<T> {
    if (this.gone) throw new StoreError("broken", "ESTALE", `${this.path} was closed`);
    this.readers++;
    try {
      return await use(await this.opened());
    } finally {
      this.readers--;
      if (this.readers === 0) this.lastLeft?.();
    }
  }

  private async opened(): Promise<LogFile> {
    this.file ??= this.pool.open(this);
    const opening = this.file;
    try {
      return await opening;
    } catch (error) {
      // The next reader tries again.
      if (this.file === opening) this.file = undefined;
      throw error;
    }
  }

  /** Closes the file once nobody reads it; nobody can begin to after this. */
  async retire(): Promise<void> {
    this.gone = true;
    if (this.readers > 0) {
      await new Promise<void>((resolve) => {
        this.lastLeft = resolve;
      });
    }
    this.pool.forget(this);
    await this.closeFile();
  }

  async closeFile(): Promise<void> {
    const file = this.file;
    this.file = undefined;
    // A file that could not be opened needs no closing; its reader was told.
    const [opened] = await Promise.allSettled([file]);
    if (opened.status === "fulfilled") await opened.value?.close();
  }
}

/** Opens segment files and closes the ones that were not read for longest. */
export class SegmentFiles {
  private readonly files: Files;
  private readonly recent = new Set<Segment>();

  constructor(files: Files) {
    this.files = files;
  }

  open(segment: Segment): Promise<LogFile> {
    this.adopt(segment);
    return this.files.open(segment.path);
  }

  /** From now on the file of this segment may be closed whenever nobody reads it. */
  adopt(segment: Segment): void {
    this.recent.add(segment);
    if (this.recent.size <= openFilesMax) return;
    for (const old of this.recent) {
      if (old === segment || !old.idle) continue;
      this.recent.delete(old);
      void old.closeFile();
      return;
    }
  }

  forget(segment: Segment): void {
    this.recent.delete(segment);
  }
}
