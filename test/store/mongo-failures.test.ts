// Which failures of the driver and the server may pass, and what they are called. (What becomes of commits: mongo-owner.test.ts.)

import { MongoNetworkError, MongoServerError } from "mongodb";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { codeOf, isPassing, storeError } from "../../src/store/mongo/failures.ts";
import { OldBlocks, oldBlocksMax } from "../../src/store/mongo/old-blocks.ts";
import { mayPass, StoreError, storeReason } from "../../src/store/store.ts";

const server = (code: number) => new MongoServerError({ message: "no", code, codeName: `Code${code}` });

test("what is only away may pass, whatever shape its error has", () => {
  const reset = Object.assign(new Error("read ECONNRESET"), { code: "ECONNRESET", errno: -104, syscall: "read" });
  const ended = Object.assign(new Error("This socket has been ended by the other party"), { code: "EPIPE" });
  for (const error of [reset, ended, new MongoNetworkError("gone"), server(10_107), server(189), server(91)]) {
    assert.is(isPassing(error), true, error.message);
    const failure = storeError(error, "refused", "trying");
    assert.equal([failure.code, mayPass(failure), failure.state], ["ENOPRIMARY", true, "refused"]);
    assert.is(storeReason(failure), "MongoDB has no primary that answers (ENOPRIMARY)");
  }
});

test("what does not go away by itself has the code of its cause", () => {
  const known: [unknown, string][] = [
    [server(13), "EACCES"],
    [server(18), "EAUTH"],
    [server(14_031), "ENOSPC"],
    [server(10_334), "EFBIG"],
    [server(2), "Code2"],
    [new TypeError("a bug"), "TypeError"],
    [new StoreError("broken", "EFENCED", "fenced"), "EFENCED"],
  ];
  for (const [error, code] of known) assert.equal([isPassing(error), codeOf(error)], [false, code]);
  const own = new StoreError("broken", "EFENCED", "fenced");
  assert.is(storeError(own, "refused", "trying"), own);
});

test("old blocks are known from the first one on, up to a number, and then as far as they were loaded", async () => {
  const blockAt = (n: number) => ({ first: 2 * n, end: 2 * n + 2, storedAt: n, bytes: 10 });
  const old = new OldBlocks({ fresh: true });
  for (let n = 0; n < oldBlocksMax + 5; n++) old.add(blockAt(n));
  assert.is(old.all().length, oldBlocksMax);
  assert.is(old.upTo(10)?.length, 5);
  assert.is(old.upTo(2 * oldBlocksMax), undefined, "there may be more behind the last");
  let loads = 0;
  const load = async (from: number, count: number, whole: boolean) => {
    const failed = (error: unknown) => assert.unreachable(String(error));
    old.refill(async () => {
      loads++;
      return { blocks: Array.from({ length: count }, (_, n) => blockAt(from + n)), whole };
    }, failed);
    await new Promise((resolve) => setImmediate(resolve));
  };
  await load(0, 1, true);
  assert.is(loads, 0, "enough are known");
  old.drop(2 * (oldBlocksMax - 10));
  assert.is(old.all().length, 10);
  await load(oldBlocksMax - 20, 25, true);
  assert.equal([loads, old.all()[0].first, old.all().length], [1, 2 * (oldBlocksMax - 10), 15]);
  assert.is(old.upTo(2 * (oldBlocksMax + 5))?.length, 15, "those are all");
  old.add(blockAt(oldBlocksMax + 5));
  assert.is(old.all().length, 16);
  await load(0, 1, true);
  assert.is(loads, 1, "nothing is loaded where all are known");
});

test("what is stored while old blocks are loaded is not taken for loaded", async () => {
  const old = new OldBlocks({ fresh: false });
  let answer: (loaded: { blocks: []; whole: true }) => void = () => undefined;
  old.refill(
    () => new Promise((resolve) => (answer = resolve)),
    () => undefined,
  );
  old.add({ first: 0, end: 1, storedAt: 1, bytes: 1 });
  answer({ blocks: [], whole: true });
  await new Promise((resolve) => setImmediate(resolve));
  assert.is(old.upTo(1), undefined);
});

test.run();
