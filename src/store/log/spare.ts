// The next segment file, made ready before it is needed: full of written zeroes, or of what a dead segment held, so that a
// commit's fdatasync has no new blocks or sizes to record. While it is in the making its name ends in .tmp, and recovery
// removes it: a thread that died can never have a write under way to a file that somebody else uses.

import { join } from "node:path";
import type { Files, LogFile } from "./files.ts";

const chunk = Buffer.alloc(1024 * 1024);
const spareName = "spare";

export class Spare {
  private readonly folder: string;
  private readonly files: Files;
  private readonly path: string;
  status: "none" | "making" | "ready" = "none";

  constructor(folder: string, files: Files) {
    this.folder = folder;
    this.files = files;
    this.path = join(folder, spareName);
  }

  get ready(): boolean {
    return this.status === "ready";
  }

  /** Takes over what an earlier run left. */
  async adopt(): Promise<void> {
    if ((await this.files.list(this.folder)).includes(spareName)) this.status = "ready";
  }

  /** Fills a file with zeroes; `from` is a dead segment whose file can be used again. */
  async make(bytes: number, options: { from?: string; stopped: () => boolean }): Promise<void> {
    if (this.status !== "none") return;
    this.status = "making";
    const making = `${this.path}.tmp`;
    let done = false;
    try {
      if (options.from === undefined) await this.removeLeftover(making);
      else await this.files.rename(options.from, making);
      const file = options.from === undefined ? await this.files.create(making) : await this.files.open(making);
      try {
        done = await fill(file, bytes, options.stopped);
      } finally {
        await file.close();
      }
      if (done) {
        await this.files.rename(making, this.path);
        await this.files.syncFolder(this.folder);
      }
    } finally {
      this.status = done ? "ready" : "none";
      // A disk that is full must not stay full because of a file that nobody can use yet.
      if (!done) await this.removeLeftover(making);
    }
  }

  /** The file for a new segment, prepared if there is one. The folder is not synced yet. */
  async take(path: string): Promise<{ file: LogFile; prepared: boolean }> {
    if (this.status !== "ready") return { file: await this.files.create(path), prepared: false };
    await this.files.rename(this.path, path);
    this.status = "none";
    return { file: await this.files.open(path), prepared: true };
  }

  private async removeLeftover(path: string): Promise<void> {
    const name = `${spareName}.tmp`;
    if ((await this.files.list(this.folder)).includes(name)) await this.files.unlink(path);
  }
}

async function fill(file: LogFile, bytes: number, stopped: () => boolean): Promise<boolean> {
  for (let at = await file.size(); at < bytes; at += chunk.length) {
    if (stopped()) return false;
    await file.write(chunk.subarray(0, Math.min(chunk.length, bytes - at)), at);
  }
  await file.datasync();
  return !stopped();
}
