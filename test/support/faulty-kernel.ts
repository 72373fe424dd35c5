// The test's end of test/faults/kernel.c: which calls of a node fail from now on, where its wall clock is, and what it did to its
// files so far.

import { closeSync, existsSync, openSync, readFileSync, readSync, writeFileSync, writeSync } from "node:fs";
import { constants } from "node:os";
import { join } from "node:path";
import { compilePreload } from "./preload.ts";

const calls = {
  open: 1,
  write: 2,
  read: 4,
  datasync: 8,
  sync: 16,
  rename: 32,
  unlink: 64,
  truncate: 128,
  link: 256,
  list: 512,
  mkdir: 1024,
  accept: 2048,
  poll: 4096,
  create: 8192,
} as const;
const modes = { fail: 0, short: 1, drop: 2, slow: 3 } as const;

const rulesMax = 16;
const headBytes = 8;
const ruleBytes = 192;
const hitsAt = 36;
const patternAt = 44;
const always = 0xffff_ffff;

export interface Fault {
  readonly calls: readonly (keyof typeof calls)[];
  /** A part of the path; at its end, where it ends in $. For accept and poll there is none. */
  readonly path?: string;
  readonly error?: keyof typeof constants.errno;
  /** `short`: half of it is done. `drop`: what was written since the last sync is gone. `slow`: it only takes long. */
  readonly mode?: keyof typeof modes;
  /** So many calls are spared first, then so many are hit; all of them without it. */
  readonly after?: number;
  readonly times?: number;
  readonly delayMs?: number;
  /** Only calls of the main thread. */
  readonly mainOnly?: boolean;
  /** Only writes at the beginning of a file. */
  readonly atStart?: boolean;
}

export interface Placed {
  /** How many calls it has hit. */
  hits(): number;
  remove(): void;
}

/** A line of the journal. A result below zero is an errno. */
export interface Done {
  readonly call: string;
  readonly path: string;
  readonly inode: number;
  readonly result: number;
  readonly offset: number;
  readonly bytes: number;
}

export class FaultyKernel {
  /** What a node is started with. */
  readonly env: Readonly<Record<string, string>>;
  private readonly page: number;
  private readonly journalPath: string;
  private readonly used = new Set<number>();

  /** `folder` holds the page and the journal; the files of the journal are those below `root`. */
  private constructor(library: string, folder: string, root: string) {
    const page = join(folder, "fault-page");
    writeFileSync(page, Buffer.alloc(headBytes + rulesMax * ruleBytes));
    this.page = openSync(page, "r+");
    this.journalPath = join(folder, "fault-journal");
    this.env = {
      LD_PRELOAD: library,
      FAULT_PAGE: page,
      FAULT_JOURNAL: this.journalPath,
      FAULT_ROOT: root,
      // Calls through a ring of the kernel's would pass the library by.
      UV_USE_IO_URING: "0",
    };
  }

  /** Undefined, and a line that says why, where there is no compiler. */
  static make(folder: string, root: string): FaultyKernel | undefined {
    const library = compilePreload("faults/kernel.c");
    if ("path" in library) return new FaultyKernel(library.path, folder, root);
    console.log(`skipped: ${library.missing}, so no call of the kernel was made to fail`);
    return undefined;
  }

  add(fault: Fault): Placed {
    const place = Array.from({ length: rulesMax }, (_, i) => i).find((i) => !this.used.has(i));
    if (place === undefined) throw new Error(`more than ${rulesMax} faults at a time`);
    this.used.add(place);
    const at = headBytes + place * ruleBytes;
    const rule = Buffer.alloc(ruleBytes);
    const numbers = [
      fault.calls.reduce((mask, call) => mask | calls[call], 0),
      fault.error === undefined ? 0 : constants.errno[fault.error],
      modes[fault.mode ?? (fault.error === undefined ? "slow" : "fail")],
      fault.after ?? 0,
      fault.times ?? always,
      fault.delayMs ?? 0,
      fault.mainOnly ? 1 : 0,
    ];
    for (const [i, number] of numbers.entries()) rule.writeUInt32LE(number, 4 + 4 * i);
    rule.writeUInt32LE(fault.atStart ? 1 : 0, hitsAt + 4);
    rule.write(fault.path ?? "", patternAt);
    writeSync(this.page, rule, 0, ruleBytes, at);
    // Whole before it counts.
    this.setActive(at, 1);
    return {
      hits: () => {
        const hits = Buffer.alloc(4);
        readSync(this.page, hits, 0, 4, at + hitsAt);
        return hits.readUInt32LE(0);
      },
      remove: () => {
        this.setActive(at, 0);
        this.used.delete(place);
      },
    };
  }

  clear(): void {
    for (const place of this.used) this.setActive(headBytes + place * ruleBytes, 0);
    this.used.clear();
  }

  /** The wall clock is so many milliseconds ahead of what it is, in whole seconds. */
  setWall(aheadMs: number): void {
    const bytes = Buffer.alloc(8);
    bytes.writeBigInt64LE(BigInt(aheadMs));
    writeSync(this.page, bytes, 0, 8, 0);
  }

  journal(): Done[] {
    if (!existsSync(this.journalPath)) return [];
    const lines = readFileSync(this.journalPath, "utf8").split("\n").slice(0, -1);
    return lines.map((line) => {
      const [call, path, ...numbers] = line.split(" ");
      const [inode, result, offset, bytes] = numbers.map(Number);
      return { call, path, inode, result, offset, bytes };
    });
  }

  close(): void {
    closeSync(this.page);
  }

  private setActive(at: number, active: number): void {
    const bytes = Buffer.alloc(4);
    bytes.writeUInt32LE(active);
    writeSync(this.page, bytes, 0, 4, at);
  }
}
