// The two small files that say what a folder is and whose: each byte of them spoiled, and both gone. A start is refused by name, or it
// finds everything; it never begins anew beside what is there.

import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { suite } from "uvu";
import * as assert from "uvu/assert";
import { type Folder, openFolder } from "../../src/store/log/folder.ts";
import type { Place } from "../../src/store/log/lock.ts";
import { openLogStore } from "../../src/store/log/log-store.ts";
import { type Store, StoreError } from "../../src/store/store.ts";
import { ManualClock } from "../support/manual-clock.ts";
import { allPayloads, append } from "../support/store-blocks.ts";
import { memoryTable } from "../support/store-files.ts";

const test = suite("power: the files of a folder");
const machine = { namespace: "pid:[4026531836]" };
const here: Place = { host: "a", boot: "boot-1", ...machine };
const elsewhere: Place = { host: "b", boot: "boot-2", ...machine };
const paths: string[] = [];

function fresh(): string {
  const path = mkdtempSync(join(tmpdir(), "narthex-power-folder-"));
  paths.push(path);
  return path;
}

/** With the time that a start may watch another owner for. */
async function open(path: string, place: Place, workers = 1): Promise<Folder | StoreError> {
  const clock = new ManualClock();
  let result: Folder | StoreError | undefined;
  const opening = openFolder({ path, workers, clock, place }).catch((error: unknown) => {
    if (error instanceof StoreError) return error;
    throw error;
  });
  void opening.then((value) => {
    result = value;
  });
  for (let look = 0; look < 100 && result === undefined; look++) {
    await new Promise((resolve) => setImmediate(resolve));
    if (clock.timerCount > 0) clock.advance(1000);
  }
  return opening;
}

async function opened(path: string, place: Place, workers = 1): Promise<Folder> {
  const folder = await open(path, place, workers);
  if (folder instanceof StoreError) throw folder;
  return folder;
}

const storeOf = (path: string, { lock }: Folder): Store =>
  openLogStore({ path, lock, segmentBytes: 4096, openTable: async () => memoryTable() });

/** Each byte with some of its bits flipped, one at a time, and with a few bytes that mean something. */
function* spoiled(text: Buffer, bits: (at: number) => number[]): Generator<{ about: string; bytes: Buffer }> {
  for (let at = 0; at < text.length; at++) {
    for (const byte of [...bits(at).map((bit) => text[at] ^ (1 << bit)), ...Buffer.from('09"}- ')]) {
      if (byte === text[at]) continue;
      const bytes = Buffer.from(text);
      bytes[at] = byte;
      yield { about: `byte ${at} is ${JSON.stringify(String.fromCharCode(byte))}`, bytes };
    }
  }
  for (let length = 0; length < text.length; length++) {
    yield { about: `cut after ${length}`, bytes: Buffer.from(text.subarray(0, length)) };
  }
}

test("format.json: refused by its name and left alone, or no shard is left out", async () => {
  const path = fresh();
  await (await opened(path, here, 3)).close();
  for (let shard = 0; shard < 3; shard++) mkdirSync(join(path, `shard-${shard}`));
  const format = join(path, "format.json");
  const truth = readFileSync(format);
  let refused = 0;
  for (const { about, bytes } of spoiled(truth, () => [0, 1, 2, 3, 4, 5, 6, 7])) {
    writeFileSync(format, bytes);
    const folder = await open(path, here);
    assert.equal(readFileSync(format), bytes, about);
    if (folder instanceof StoreError) {
      refused++;
      assert.is(folder.code, "EFORMAT", about);
      assert.ok(folder.message.includes(path), `${about}: ${folder.message}`);
    } else {
      assert.ok(folder.shards >= 3, `${about}: ${folder.shards} shards`);
      await folder.close();
    }
  }
  assert.ok(refused > 100, `${refused} were refused`);
  rmSync(format);
  const without = await open(path, here);
  assert.instance(without, StoreError);
  assert.match((without as StoreError).message, `${path} has shards but no format.json`);
});

test("the lock of an owner that is gone: the folder is taken or refused by its name, and everything is there", async () => {
  const path = fresh();
  const first = await opened(path, elsewhere);
  const store = storeOf(path, first);
  await append(await store.openShard(0), 1, ["a"]);
  await store.close();
  // As it is after a kill.
  const truth = readFileSync(first.lock);
  const shown = truth.subarray(0, truth.toString().trimEnd().length);
  for (const { about, bytes } of spoiled(shown, (at) => [at % 8])) {
    for (const name of readdirSync(path)) if (/lock/.test(name)) rmSync(join(path, name));
    writeFileSync(first.lock, bytes);
    const folder = await open(path, here);
    // One that looks as if its owner did not count: nobody can say, so it is left to the one who reads this.
    if (folder instanceof StoreError) assert.match(folder.message, `if that one is gone, remove ${first.lock}`, about);
    else await folder.close();
  }
  const last = storeOf(path, await opened(path, here));
  const shard = await last.openShard(0);
  assert.equal(await allPayloads(shard, 1), ["0:a"]);
  await last.close();
});

test("the lock of an owner that lives: who takes the folder because of it has it alone", async () => {
  for (const spoil of ["pid", "started", "boot", "{", "released"]) {
    const path = fresh();
    const owner = await opened(path, here);
    const store = storeOf(path, owner);
    const shard = await store.openShard(0);
    await append(shard, 1, ["a"]);
    const bytes = readFileSync(owner.lock);
    bytes[bytes.indexOf(spoil)] ^= 1;
    writeFileSync(owner.lock, bytes, { flag: "r+" });
    const second = await open(path, here);
    if (second instanceof StoreError) {
      assert.is(second.code, "ELOCKED", spoil);
      assert.ok(second.message.includes(path), second.message);
      await append(shard, 1, ["b"]);
    } else {
      const other = storeOf(path, second);
      const taken = await other.openShard(0);
      const late = await append(shard, 1, ["late"]).then(
        () => undefined,
        (error: unknown) => error,
      );
      assert.instance(late, StoreError, `${spoil}: two processes write`);
      assert.equal(await allPayloads(taken, 1), ["0:a"], spoil);
      await other.close();
      await second.close();
    }
    await store.close();
    await owner.close();
  }
});

test.after(() => {
  for (const path of paths) rmSync(path, { recursive: true, force: true });
});

test.run();
