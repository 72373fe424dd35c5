// The disk that the power is cut on, itself put to the test: what it says is left must not depend on what comes later.

import { suite } from "uvu";
import * as assert from "uvu/assert";
import { Dice } from "../support/dice.ts";
import { LoggedDisk } from "./disk.ts";
import type { JournalRecord } from "./journal.ts";

const test = suite("power: the disk of a journal");
const about = { ns: 0n, pid: 1 };
const root = "/data";
const path = "/data/000000000008.log";

/** A new file with these bytes, and then a sync. */
function written(bytes: string): JournalRecord[] {
  return [
    { ...about, inode: 2, op: "write", position: 0, bytes: Buffer.from(bytes) },
    { ...about, inode: 2, op: "syncBegin", sync: bytes },
    { ...about, inode: 2, op: "syncEnd", sync: bytes, failed: false },
  ];
}

const made: JournalRecord[] = [
  { ...about, inode: 2, op: "create", path },
  { ...about, inode: 1, op: "syncBegin", sync: "names" },
  { ...about, inode: 1, op: "syncEnd", sync: "names", failed: false },
];

test("what is left of a file stays as it was while the file is used again", () => {
  const disk = new LoggedDisk(root, 1);
  for (const record of [...made, ...written("old old old")]) disk.apply(record);
  for (const data of ["lost", "kept"] as const) {
    const folder = disk.left({ data, names: "journal", percent: 0 }, new Dice(1));
    for (const record of written(`new ${data}`)) disk.apply(record);
    const expected = data === "lost" ? "old old old" : "new lostold";
    assert.is(folder.get(path)?.toString(), expected, data);
  }
});

test("a write is durable with the end of a sync that began after it", () => {
  const disk = new LoggedDisk(root, 1);
  const left = () => disk.left({ data: "lost", names: "journal", percent: 0 }, new Dice(1)).get(path)?.toString();
  const [write, begin, end] = written("event");
  for (const record of [...made, begin, write, end]) disk.apply(record);
  assert.is(left(), "");
  disk.apply(begin);
  assert.is(left(), "");
  disk.apply(end);
  assert.is(left(), "event");
});

test.run();
