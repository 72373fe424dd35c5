// Reads what shim.c wrote: every change of the files of a folder, in order, with its data and the time just before it.

import { readFileSync } from "node:fs";

const recordBytes = 64;
const names = [
  "",
  "create",
  "write",
  "truncate",
  "link",
  "rename",
  "unlink",
  "mkdir",
  "syncBegin",
  "syncEnd",
  "unknown",
  "start",
] as const;

interface About {
  /** Nanoseconds of the monotonic clock, the same in all processes. */
  readonly ns: bigint;
  readonly pid: number;
  readonly inode: number;
}

export type JournalRecord = About &
  (
    | { readonly op: "create" | "unlink" | "mkdir" | "link"; readonly path: string }
    | { readonly op: "rename"; readonly from: string; readonly to: string }
    | { readonly op: "write"; readonly position: number; readonly bytes: Buffer }
    | { readonly op: "truncate"; readonly size: number }
    | { readonly op: "syncBegin"; readonly sync: string }
    | { readonly op: "syncEnd"; readonly sync: string; readonly failed: boolean }
    /** A process begins; its folder has this inode. */
    | { readonly op: "start" }
  );

export function readJournal(path: string): JournalRecord[] {
  const bytes = readFileSync(path);
  const records: JournalRecord[] = [];
  for (let at = 0; at + recordBytes <= bytes.length; ) {
    const total = bytes.readUInt32LE(at);
    records.push(readRecord(bytes.subarray(at, at + total)));
    at += total;
  }
  return records;
}

function readRecord(bytes: Buffer): JournalRecord {
  const op = names[bytes.readUInt32LE(4)];
  const number = (at: number) => Number(bytes.readBigUInt64LE(at));
  const [position, length, pid] = [number(24), number(32), bytes.readUInt32LE(40)];
  const [path1, path2] = [bytes.readUInt32LE(48), bytes.readUInt32LE(52)];
  const text = bytes.toString("utf8", recordBytes, recordBytes + path1);
  const about = { ns: bytes.readBigUInt64LE(8), pid, inode: number(16) };
  switch (op) {
    case "create":
    case "unlink":
    case "mkdir":
    case "link":
      return { ...about, op, path: text };
    case "rename": {
      const to = bytes.toString("utf8", recordBytes + path1, recordBytes + path1 + path2);
      return { ...about, op, from: text, to };
    }
    case "write": {
      const zeroes = bytes.readUInt32LE(44) !== 0;
      return { ...about, op, position, bytes: zeroes ? Buffer.alloc(length) : bytes.subarray(recordBytes) };
    }
    case "truncate":
      return { ...about, op, size: position };
    case "syncBegin":
      return { ...about, op, sync: `${pid}/${number(56)}` };
    case "syncEnd":
      return { ...about, op, sync: `${pid}/${number(56)}`, failed: length !== 0 };
    case "start":
      return { ...about, op };
    default:
      throw new Error(`the node used ${text || op}, which is not replayed: teach shim.c and disk.ts`);
  }
}
