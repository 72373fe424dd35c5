// Keeps a process that has lost its folder from doing more to it. The loser does not know yet: it was stopped, somebody else found
// its counter standing still and took the folder over, and now it goes on where it was, with files open and commits under way.
//
// Taking over removes the loser's lock file first and reads the log after that. So the order of two looks at that file decides:
// - before each change it must still be there;
// - after each fdatasync it must still be there. Then the commit was written before anybody else read the log, and they have it.
//   If not, nobody can say, and the commit fails: what is acknowledged is never lost by a takeover.
//
// A look costs about a microsecond, once or twice per commit. What it cannot do: a process that is stopped between its look and
// its change makes that one change when it wakes up. A record is then written behind the end that the new owner found, in a
// segment that it only reads, and counts for nobody; but a file may also be renamed or removed. And it takes a file system on which
// all see a removal at once: a local one does, NFS only with `noac`. The derived index is not fenced; it holds nothing that the log
// does not, and what it says is checked against the log.

import { statSync } from "node:fs";
import { StoreError } from "../store.ts";
import type { Files, LogFile } from "./files.ts";

/** The files of a folder that is ours as long as `lock` is there. */
export function fencedFiles(files: Files, lock: string): Files {
  const check = (): void => {
    if (statSync(lock, { throwIfNoEntry: false }) !== undefined) return;
    throw new StoreError(
      "broken",
      "ELOST",
      `${lock} is gone: another process has taken the folder over, or it was removed`,
    );
  };
  return {
    async create(path) {
      check();
      return new FencedFile(await files.create(path), check);
    },
    open: async (path) => new FencedFile(await files.open(path), check),
    list: (folder) => files.list(folder),
    async makeFolder(folder) {
      check();
      await files.makeFolder(folder);
    },
    async rename(from, to) {
      check();
      await files.rename(from, to);
    },
    async unlink(path) {
      check();
      await files.unlink(path);
    },
    async syncFolder(folder) {
      await files.syncFolder(folder);
      check();
    },
  };
}

class FencedFile implements LogFile {
  private readonly file: LogFile;
  private readonly check: () => void;

  constructor(file: LogFile, check: () => void) {
    this.file = file;
    this.check = check;
  }

  get path(): string {
    return this.file.path;
  }

  size(): Promise<number> {
    return this.file.size();
  }

  read(target: Uint8Array, position: number): Promise<number> {
    return this.file.read(target, position);
  }

  writeNow(bytes: Uint8Array, position: number): void {
    this.check();
    this.file.writeNow(bytes, position);
  }

  async write(bytes: Uint8Array, position: number): Promise<void> {
    this.check();
    await this.file.write(bytes, position);
  }

  async datasync(): Promise<void> {
    await this.file.datasync();
    this.check();
  }

  async truncate(length: number): Promise<void> {
    this.check();
    await this.file.truncate(length);
  }

  close(): Promise<void> {
    return this.file.close();
  }
}
