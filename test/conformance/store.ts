// What every store promises (src/store/store.ts), sentence by sentence.

import { suite } from "uvu";
import * as assert from "uvu/assert";
import { type ShardStore, type Store, StoreError } from "../../src/store/store.ts";
import { allPayloads, append, block, commitOf, dump, payloads } from "../support/store-blocks.ts";

export interface StoreHarness {
  readonly kind: Store["kind"];
  readonly durability: string;
  /** A store over a place of its own, empty. */
  open(): Promise<Store>;
  /** The same place again, as another process would find it; the same object where nothing outlives the process. */
  reopen(store: Store): Promise<Store>;
  dispose(store: Store): Promise<void>;
  /** After the last test. */
  end?(): Promise<void>;
}

const bytes = (text: string) => new TextEncoder().encode(text);
const everything = { from: 0, to: Number.POSITIVE_INFINITY, bytesMax: Number.POSITIVE_INFINITY };

async function failure(promise: Promise<unknown>): Promise<StoreError> {
  try {
    await promise;
  } catch (error) {
    assert.instance(error, StoreError);
    return error as StoreError;
  }
  throw new Error("expected a StoreError");
}

/** The same expectations of a shard as it is, and of what the next one to open it finds. */
async function nowAndAgain(
  shard: ShardStore,
  again: () => Promise<ShardStore>,
  expect: (now: ShardStore) => Promise<void>,
): Promise<void> {
  await expect(shard);
  await expect(await again());
}

export function storeConformance(name: string, harness: StoreHarness): void {
  const test = suite(`${name}: conformance`);

  const with1 = (title: string, body: (shard: ShardStore, again: () => Promise<ShardStore>) => Promise<void>) => {
    test(title, async () => {
      let store = await harness.open();
      try {
        let shard = await store.openShard(0);
        await body(shard, async () => {
          await shard.close();
          store = await harness.reopen(store);
          shard = await store.openShard(0);
          return shard;
        });
        await shard.close();
      } finally {
        await harness.dispose(store);
      }
    });
  };

  with1("a new shard is empty and says how durable it is", async (shard) => {
    assert.is(shard.shard, 0);
    assert.is(shard.durability, harness.durability);
    assert.equal([...shard.streams()], []);
    assert.equal([...shard.entries("")], []);
    assert.equal(shard.damage(), []);
    assert.is(shard.head(1), undefined);
    assert.is(shard.entry("a"), undefined);
    assert.equal(await shard.read(1, everything), { blocks: [], next: 0 });
    assert.is(await shard.findTs(1, 5), 0);
    assert.is(await shard.findId(1, "x"), undefined);
    assert.equal(await shard.latest(1, { keys: ["x"] }), []);
    assert.is(shard.pruneTo(1, { bytesMax: 0 }), 0);
  });

  with1("the epoch rises each time a shard is opened", async (shard, again) => {
    const epochs = [shard.epoch];
    for (let i = 0; i < 3; i++) epochs.push((await again()).epoch);
    for (let i = 1; i < epochs.length; i++) assert.ok(epochs[i] > epochs[i - 1], String(epochs));
  });

  with1("what was committed is there byte for byte after opening again", async (shard, again) => {
    const first = block({ stream: 3, first: 0, events: ["a", { payload: "b", key: "k", meta: '{"tags":["t"]}' }] });
    const second = block({ stream: 3, first: 2, storedAt: 1001, events: ["c"] });
    const other = block({ stream: 9, first: 0, events: ["x"] });
    await shard.commit(commitOf({ blocks: [first, other], puts: [["one", bytes("1")]] }));
    await shard.commit(commitOf({ blocks: [second], puts: [["two", bytes("2")]] }));
    const before = await dump(shard);
    assert.equal(before, {
      streams: {
        3: {
          start: 0,
          end: 3,
          blocks: [`0 ${Buffer.from(first).toString("hex")}`, `2 ${Buffer.from(second).toString("hex")}`],
        },
        9: { start: 0, end: 1, blocks: [`0 ${Buffer.from(other).toString("hex")}`] },
      },
      entries: { one: "31", two: "32" },
    });
    assert.equal(await dump(await again()), before);
    assert.equal(await dump(await again()), before);
  });

  with1("a head has start, end, the time of the newest block and the bytes", async (shard, again) => {
    const first = block({ stream: 1, first: 0, storedAt: 50, events: ["a", "b"] });
    const second = block({ stream: 1, first: 2, storedAt: 70, events: ["c"] });
    await shard.commit(commitOf({ blocks: [first] }));
    await shard.commit(commitOf({ blocks: [second] }));
    const head = { start: 0, end: 3, lastStoredAt: 70, bytes: first.length + second.length };
    assert.equal(shard.head(1), head);
    assert.equal((await again()).head(1), head);
  });

  with1("a commit may be of entries only, and null removes one", async (shard, again) => {
    await shard.commit(
      commitOf({
        puts: [
          ["a", bytes("1")],
          ["b", bytes("2")],
          ["c", new Uint8Array()],
        ],
      }),
    );
    await shard.commit(
      commitOf({
        puts: [
          ["a", null],
          ["b", bytes("3")],
          ["nothing", null],
        ],
      }),
    );
    await nowAndAgain(shard, again, async (now) => {
      assert.is(now.entry("a"), undefined);
      assert.equal(Array.from(now.entry("b") ?? []), [0x33]);
      assert.equal(Array.from(now.entry("c") ?? [1]), []);
    });
  });

  with1("a later put of the same key in a commit wins", async (shard) => {
    await shard.commit(
      commitOf({
        puts: [
          ["a", bytes("1")],
          ["a", null],
          ["a", bytes("2")],
          ["b", bytes("1")],
          ["b", null],
        ],
      }),
    );
    assert.equal(Array.from(shard.entry("a") ?? []), [0x32]);
    assert.is(shard.entry("b"), undefined);
  });

  with1("entries are found by prefix", async (shard) => {
    await shard.commit(
      commitOf({ puts: ["c/1", "c/2", "d/1", "c", "cé/1", "b/9"].map((key) => [key, bytes(key)] as const) }),
    );
    assert.equal([...shard.entries("c/")].map(([key]) => key).sort(), ["c/1", "c/2"]);
    assert.equal(
      [...shard.entries("cé")].map(([key, value]) => [key, Buffer.from(value).toString()]),
      [["cé/1", "cé/1"]],
    );
    assert.is([...shard.entries("")].length, 6);
    await shard.commit(
      commitOf({
        puts: [
          ["c/3", bytes("x")],
          ["c/1", null],
        ],
      }),
    );
    assert.equal([...shard.entries("c/")].map(([key]) => key).sort(), ["c/2", "c/3"]);
  });

  with1("the caller may use its buffers again once the commit is done", async (shard) => {
    const value = bytes("value");
    const events = block({ stream: 1, first: 0, events: ["kept"] });
    await shard.commit(commitOf({ blocks: [events], puts: [["k", value]] }));
    value.fill(0);
    events.fill(0);
    assert.is(Buffer.from(shard.entry("k") ?? []).toString(), "value");
    assert.equal(await allPayloads(shard, 1), ["0:kept"]);
  });

  with1(
    "a block that does not begin at the end of its stream is refused and nothing of the commit is stored",
    async (shard, again) => {
      await append(shard, 1, ["a"]);
      const good = block({ stream: 2, first: 0, events: ["x"] });
      for (const first of [0, 2, -1]) {
        const error = await failure(
          shard.commit(
            commitOf({ blocks: [good, block({ stream: 1, first, events: ["b"] })], puts: [["p", bytes("1")]] }),
          ),
        );
        assert.is(error.state, "refused");
      }
      const twice = [block({ stream: 1, first: 1, events: ["b"] }), block({ stream: 1, first: 2, events: ["c"] })];
      assert.is((await failure(shard.commit(commitOf({ blocks: twice })))).state, "refused");
      const stepsBack = block({ stream: 1, first: 1, storedAt: 999, events: ["b"] });
      assert.is((await failure(shard.commit(commitOf({ blocks: [stepsBack] })))).state, "refused");
      const cut = block({ stream: 1, first: 1, events: ["b"] }).subarray(0, 60);
      assert.is((await failure(shard.commit(commitOf({ blocks: [cut] })))).state, "refused");
      await append(shard, 1, ["b"]);
      await nowAndAgain(shard, again, async (now) => {
        assert.equal(await allPayloads(now, 1), ["0:a", "1:b"]);
        assert.is(now.head(2), undefined);
        assert.is(now.entry("p"), undefined);
      });
    },
  );

  with1("a second commit while one is in flight is a bug and throws", async (shard) => {
    const one = append(shard, 1, ["a"]);
    let thrown: unknown;
    await append(shard, 2, ["b"]).catch((error: unknown) => (thrown = error));
    assert.instance(thrown, Error);
    assert.not.instance(thrown, StoreError);
    await one;
    assert.equal(await allPayloads(shard, 1), ["0:a"]);
    assert.is(shard.head(2), undefined);
  });

  with1("nothing of a commit is seen before it is done", async (shard) => {
    const work = shard.commit(
      commitOf({ blocks: [block({ stream: 1, first: 0, events: ["a"] })], puts: [["k", bytes("1")]] }),
    );
    assert.is(shard.head(1), undefined);
    assert.is(shard.entry("k"), undefined);
    assert.equal((await shard.read(1, everything)).blocks.length <= 1, true);
    await work;
    assert.is(shard.head(1)?.end, 1);
  });

  with1("a read gives whole blocks from the one that holds `from`", async (shard) => {
    await append(shard, 1, ["a", "b", "c"]);
    await append(shard, 1, ["d"]);
    await append(shard, 1, ["e", "f"]);
    const from1 = await shard.read(1, { from: 1, to: Number.POSITIVE_INFINITY, bytesMax: 1_000_000 });
    assert.equal(payloads(from1.blocks), ["0:a", "1:b", "2:c", "3:d", "4:e", "5:f"]);
    assert.is(from1.next, 6);
    const from3 = await shard.read(1, { from: 3, to: Number.POSITIVE_INFINITY, bytesMax: 1_000_000 });
    assert.equal(payloads(from3.blocks), ["3:d", "4:e", "5:f"]);
    const atEnd = await shard.read(1, { from: 6, to: Number.POSITIVE_INFINITY, bytesMax: 1 });
    assert.equal(atEnd, { blocks: [], next: 6 });
    const past = await shard.read(1, { from: 60, to: Number.POSITIVE_INFINITY, bytesMax: 1 });
    assert.equal(past, { blocks: [], next: 60 });
  });

  with1("a read stops once it has bytesMax, with at least one block, and goes on at `next`", async (shard) => {
    for (let i = 0; i < 10; i++) await append(shard, 1, [`event-${i}`]);
    const size = (shard.head(1)?.bytes ?? 0) / 10;
    const one = await shard.read(1, { from: 0, to: Number.POSITIVE_INFINITY, bytesMax: 0 });
    assert.equal([payloads(one.blocks), one.next], [["0:event-0"], 1]);
    const two = await shard.read(1, { from: 1, to: Number.POSITIVE_INFINITY, bytesMax: size + 1 });
    assert.equal([payloads(two.blocks), two.next], [["1:event-1", "2:event-2"], 3]);
    const exact = await shard.read(1, { from: 3, to: Number.POSITIVE_INFINITY, bytesMax: 2 * size });
    assert.equal([payloads(exact.blocks), exact.next], [["3:event-3", "4:event-4"], 5]);
  });

  with1("a read stops at `to`", async (shard) => {
    for (let i = 0; i < 6; i++) await append(shard, 1, [`a${i}`, `b${i}`]);
    const found = await shard.read(1, { from: 2, to: 6, bytesMax: 1_000_000 });
    assert.equal(payloads(found.blocks), ["2:a1", "3:b1", "4:a2", "5:b2"]);
    assert.is(found.next, 6);
    assert.equal((await shard.read(1, { from: 4, to: 4, bytesMax: 1_000_000 })).blocks, []);
  });

  with1("streams do not mix", async (shard, again) => {
    for (let round = 0; round < 5; round++) {
      const blocks = [5, 1, 64].map((stream) => block({ stream, first: round, events: [`s${stream}r${round}`] }));
      await shard.commit(commitOf({ blocks }));
    }
    await nowAndAgain(shard, again, async (now) => {
      assert.equal(
        [...now.streams()].sort((a, b) => a - b),
        [1, 5, 64],
      );
      for (const stream of [1, 5, 64]) {
        assert.equal(
          await allPayloads(now, stream),
          [0, 1, 2, 3, 4].map((round) => `${round}:s${stream}r${round}`),
        );
      }
    });
  });

  test("shards do not mix", async () => {
    const store = await harness.open();
    const [a, b] = [await store.openShard(0), await store.openShard(7)];
    await append(a, 1, ["in 0"]);
    await append(b, 1, ["in 7"]);
    assert.is(b.shard, 7);
    assert.equal(await allPayloads(a, 1), ["0:in 0"]);
    assert.equal(await allPayloads(b, 1), ["0:in 7"]);
    await a.close();
    await b.close();
    await harness.dispose(store);
  });

  with1("a trim moves the start for good, and offsets go on", async (shard, again) => {
    for (let i = 0; i < 5; i++) await append(shard, 1, [`a${i}`, `b${i}`]);
    await shard.commit(commitOf({ trims: [[1, 4]] }));
    const size = block({ stream: 1, first: 0, events: ["a0", "b0"] }).length;
    await nowAndAgain(shard, again, async (now) => {
      assert.equal(now.head(1), { start: 4, end: 10, lastStoredAt: 1000, bytes: 3 * size });
      const found = await now.read(1, { from: 0, to: Number.POSITIVE_INFINITY, bytesMax: 1_000_000 });
      assert.equal(payloads(found.blocks).slice(0, 2), ["4:a2", "5:b2"]);
      assert.is(found.next, 10);
      assert.is(await now.findTs(1, 0), 4);
    });
  });

  with1("a trim inside a block keeps the block and the start", async (shard) => {
    await append(shard, 1, ["a", "b", "c"]);
    await shard.commit(commitOf({ trims: [[1, 2]] }));
    assert.is(shard.head(1)?.start, 2);
    assert.equal(payloads((await shard.read(1, everything)).blocks), ["0:a", "1:b", "2:c"]);
    assert.is(await shard.findTs(1, 0), 2);
  });

  with1("a trim of everything leaves an empty stream that knows its end", async (shard, again) => {
    await append(shard, 1, ["a", "b"], 1234);
    await shard.commit(commitOf({ trims: [[1, 2]] }));
    await nowAndAgain(shard, again, async (now) => {
      assert.equal(now.head(1), { start: 2, end: 2, lastStoredAt: 1234, bytes: 0 });
      assert.equal(await now.read(1, everything), { blocks: [], next: 0 });
      assert.is(await now.findTs(1, 0), 2);
    });
  });

  with1("a start never moves back, and never past the end", async (shard) => {
    await append(shard, 1, ["a", "b", "c"]);
    await shard.commit(commitOf({ trims: [[1, 2]] }));
    await shard.commit(commitOf({ trims: [[1, 1]] }));
    assert.is(shard.head(1)?.start, 2);
    await shard.commit(
      commitOf({
        trims: [
          [1, 99],
          [77, 5],
        ],
      }),
    );
    assert.is(shard.head(1)?.start, 3);
    assert.is(shard.head(77), undefined);
    await append(shard, 1, ["d"]);
    assert.equal(await allPayloads(shard, 1), ["3:d"]);
  });

  with1("a stream trimmed with null is gone", async (shard, again) => {
    await append(shard, 1, [{ payload: "a", key: "k", id: "i" }]);
    await append(shard, 2, ["b"]);
    await shard.commit(commitOf({ trims: [[1, null]] }));
    await nowAndAgain(shard, again, async (now) => {
      assert.equal([...now.streams()], [2]);
      assert.is(now.head(1), undefined);
      assert.equal(await now.read(1, everything), { blocks: [], next: 0 });
      assert.is(await now.findId(1, "i"), undefined);
      assert.equal(await now.latest(1, { keys: ["k"] }), []);
      assert.equal(await now.latest(1, { after: "", limit: 10 }), []);
    });
  });

  with1("blocks, puts and trims of a commit come together", async (shard, again) => {
    await append(shard, 1, ["a"]);
    await shard.commit(
      commitOf({ blocks: [block({ stream: 1, first: 1, events: ["b"] })], puts: [["k", bytes("v")]], trims: [[1, 1]] }),
    );
    await nowAndAgain(shard, again, async (now) => {
      assert.equal(await allPayloads(now, 1), ["1:b"]);
      assert.is(Buffer.from(now.entry("k") ?? []).toString(), "v");
    });
  });

  with1(
    "findTs gives the first offset whose ts is at or after a time, whatever the order of ts",
    async (shard, again) => {
      await append(
        shard,
        1,
        [
          { payload: "a", ts: 10 },
          { payload: "b", ts: 30 },
          { payload: "c", ts: 20 },
        ],
        1000,
      );
      await append(
        shard,
        1,
        [
          { payload: "d", ts: 15 },
          { payload: "e", ts: 40 },
        ],
        1001,
      );
      await append(shard, 1, ["f"], 2000);
      await nowAndAgain(shard, again, async (now) => {
        const found = await Promise.all([0, 10, 11, 30, 31, 40, 41, 2000, 2001].map((ts) => now.findTs(1, ts)));
        assert.equal(found, [0, 0, 1, 1, 4, 4, 5, 5, 6]);
      });
    },
  );

  with1("findId finds a publisher's own id, the newest one", async (shard, again) => {
    await append(shard, 1, ["x", { payload: "a", id: "id-1" }, { payload: "b", id: "id-2" }]);
    await append(shard, 2, [{ payload: "other", id: "id-1" }]);
    assert.is(await shard.findId(1, "id-1"), 1);
    await append(shard, 1, [{ payload: "again", id: "id-1" }, "y"]);
    await nowAndAgain(shard, again, async (now) => {
      assert.is(await now.findId(1, "id-1"), 3);
      assert.is(await now.findId(1, "id-2"), 2);
      assert.is(await now.findId(2, "id-1"), 0);
      assert.is(await now.findId(2, "id-2"), undefined);
      assert.is(await now.findId(1, "id"), undefined);
    });
    const now = await again();
    await now.commit(commitOf({ trims: [[1, 3]] }));
    assert.is(await now.findId(1, "id-2"), undefined);
    assert.is(await now.findId(1, "id-1"), 3);
    await append(now, 1, [{ payload: "late", id: "id-9" }]);
    assert.is(await now.findId(1, "id-9"), 5);
  });

  with1("latest gives the newest offset of the keys asked for, in that order", async (shard, again) => {
    await append(shard, 1, [{ payload: "1", key: "a" }, { payload: "2", key: "b" }, "none"]);
    await append(shard, 1, [{ payload: "3", key: "a" }]);
    await append(shard, 2, [{ payload: "other", key: "a" }]);
    await nowAndAgain(shard, again, async (now) => {
      assert.equal(await now.latest(1, { keys: ["b", "missing", "a"] }), [
        { key: "b", offset: 1 },
        { key: "a", offset: 3 },
      ]);
      assert.equal(await now.latest(2, { keys: ["a", "b"] }), [{ key: "a", offset: 0 }]);
      assert.equal(await now.latest(1, { keys: [] }), []);
    });
  });

  with1("latest without keys pages through all of them in key order", async (shard, again) => {
    const keys = ["b", "a", "é", "z", "😀", "ﬀ", "aa", "long-".repeat(500)];
    await append(
      shard,
      1,
      keys.map((key) => ({ payload: "old", key })),
    );
    await append(shard, 1, [
      { payload: "new", key: "z" },
      { payload: "new", key: "a" },
    ]);
    await append(shard, 2, [{ payload: "other", key: "q" }]);
    const sorted = [...keys].sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
    const offsets = new Map(keys.map((key, i) => [key, i]));
    offsets.set("z", keys.length).set("a", keys.length + 1);
    const expected = sorted.map((key) => ({ key, offset: offsets.get(key) }));
    await nowAndAgain(shard, again, async (now) => {
      const found: unknown[] = [];
      for (let after = ""; ; ) {
        const page = await now.latest(1, { after, limit: 3 });
        assert.ok(page.length <= 3);
        if (page.length === 0) break;
        found.push(...page);
        after = page[page.length - 1].key;
      }
      assert.equal(found, expected);
    });
    const now = await again();
    await now.commit(commitOf({ trims: [[1, keys.length]] }));
    assert.equal(
      (await now.latest(1, { after: "", limit: 9 })).map((entry) => entry.key),
      ["a", "z"],
    );
  });

  with1("pruneTo goes by the time of storing, block by block, and changes nothing", async (shard) => {
    for (const [i, at] of [100, 200, 200, 300].entries()) await append(shard, 1, [`a${i}`, `b${i}`], at);
    assert.is(shard.pruneTo(1, {}), 0);
    assert.is(shard.pruneTo(1, { storedBefore: 100 }), 0);
    assert.is(shard.pruneTo(1, { storedBefore: 101 }), 2);
    assert.is(shard.pruneTo(1, { storedBefore: 200 }), 2);
    assert.is(shard.pruneTo(1, { storedBefore: 201 }), 6);
    assert.is(shard.pruneTo(1, { storedBefore: 9999 }), 8);
    assert.is(shard.head(1)?.start, 0);
  });

  with1("pruneTo goes by bytes: whole blocks from the start until the rest is at most bytesMax", async (shard) => {
    for (let i = 0; i < 4; i++) await append(shard, 1, [`e${i}`]);
    const size = (shard.head(1)?.bytes ?? 0) / 4;
    assert.is(shard.pruneTo(1, { bytesMax: 4 * size }), 0);
    assert.is(shard.pruneTo(1, { bytesMax: 4 * size - 1 }), 1);
    assert.is(shard.pruneTo(1, { bytesMax: 2 * size }), 2);
    assert.is(shard.pruneTo(1, { bytesMax: 0 }), 4);
    assert.is(shard.pruneTo(1, { bytesMax: 3 * size, storedBefore: 500 }), 1);
    await shard.commit(commitOf({ trims: [[1, shard.pruneTo(1, { bytesMax: 2 * size })]] }));
    assert.equal(await allPayloads(shard, 1), ["2:e2", "3:e3"]);
    assert.is(shard.pruneTo(1, { bytesMax: 2 * size }), 2);
  });

  with1("large blocks and many of them survive", async (shard, again) => {
    const big = "x".repeat(300_000);
    await append(shard, 1, [big, "small"]);
    for (let i = 0; i < 300; i++) await append(shard, 2, [`n${i}`, { payload: "m", key: `k${i % 7}` }]);
    await nowAndAgain(shard, again, async (now) => {
      assert.equal(await allPayloads(now, 1), [`0:${big}`, "1:small"]);
      const found = await allPayloads(now, 2);
      for (let i = 0; i < 300; i++) assert.equal(found.slice(2 * i, 2 * i + 2), [`${2 * i}:n${i}`, `${2 * i + 1}:m`]);
      assert.is(found.length, 600);
    });
  });

  with1("reads go on while commits do", async (shard) => {
    const wanted: string[] = [];
    const reads: Promise<string[]>[] = [];
    for (let i = 0; i < 50; i++) {
      wanted.push(`${i}:e${i}`);
      await append(shard, 1, [`e${i}`]);
      reads.push(allPayloads(shard, 1));
    }
    const results = await Promise.all(reads);
    for (const [i, found] of results.entries()) assert.equal(found.slice(0, i + 1), wanted.slice(0, i + 1));
  });

  with1("closing waits for the commit in flight", async (shard, again) => {
    const work = append(shard, 1, ["a"]);
    const now = await again();
    await work;
    assert.equal(await allPayloads(now, 1), ["0:a"]);
  });

  with1("a closed shard takes no commit, and closing twice is fine", async (shard, again) => {
    await append(shard, 1, ["a"]);
    await shard.close();
    await shard.close();
    assert.is((await failure(append(shard, 1, ["b"]))).state, "broken");
    assert.equal(await allPayloads(await again(), 1), ["0:a"]);
  });

  test("the kind of the store is known", async () => {
    const store = await harness.open();
    assert.is(store.kind, harness.kind);
    await harness.dispose(store);
  });

  test.after(async () => harness.end?.());
  test.run();
}
