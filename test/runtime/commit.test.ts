// The commit pipeline of an open shard: what is merged, what waits, and what is said in which order.

import { test } from "uvu";
import * as assert from "uvu/assert";
import type { Notice, Placed, Put } from "../../src/actors/effects.ts";
import { BlockView } from "../../src/protocol/block.ts";
import type { Item } from "../../src/runtime/envelope.ts";
import { append, HostStage, mark, publish, reply } from "../support/host-stage.ts";

const decoder = new TextDecoder();

function payloads(bytes: Uint8Array): unknown[] {
  const block = new BlockView(bytes);
  return Array.from({ length: block.count }, (_, index) => JSON.parse(decoder.decode(block.pack.payload(index))));
}

/** Appends what it is given to stream 7 and answers with the placement, once it is durable. */
function scriptLog(stage: HostStage, name: string, stream = 7): Placed[] {
  const all: Placed[] = [];
  const refs = new Map<number, number>();
  let tag = 0;
  stage.script(name, (message, ref) => {
    if (message.type === "publish") {
      refs.set(++tag, ref);
      return [append(stream, message.pack, tag)];
    }
    if (message.type === "committed") {
      all.push(...message.placed);
      return message.placed.map((placed) => reply(refs.get(placed.tag)!, { offset: placed.offset }));
    }
    return [];
  });
  return all;
}

test("what the cells of a turn append becomes one block per stream, with dense offsets in the order of arrival", async () => {
  const stage = new HostStage();
  scriptLog(stage, "a");
  scriptLog(stage, "b");
  scriptLog(stage, "c", 8);
  await stage.open();
  const ids = stage.askAll([
    ["a", publish(1, 2)],
    ["b", publish(3)],
    ["c", publish("other")],
    ["a", publish(4, 5)],
  ]);
  await stage.settle();
  assert.is(stage.store.commits.length, 1);
  const blocks = stage.store.commits[0].blocks;
  assert.equal(blocks.map((bytes) => new BlockView(bytes).stream).sort(), [7, 8]);
  const seven = blocks.find((bytes) => new BlockView(bytes).stream === 7)!;
  assert.equal(payloads(seven), [1, 2, 4, 5, 3]);
  assert.equal(
    ids.map((id) => stage.answer(id)),
    [{ offset: 0 }, { offset: 4 }, { offset: 0 }, { offset: 2 }],
  );
  const [next] = stage.askAll([["b", publish(6)]]);
  await stage.settle();
  assert.equal(stage.answer(next), { offset: 5 });
  assert.is(new BlockView(stage.store.commits[1].blocks[0]).firstOffset, 5);
});

test("a reply with hold leaves when the commit is durable, not before", async () => {
  const stage = new HostStage();
  stage.script("a", (message, ref) =>
    message.type === "publish" ? [append(1, message.pack), reply(ref, null, true)] : [],
  );
  await stage.open();
  stage.store.gateCommits = true;
  const id = stage.ask("a", publish(1));
  await stage.settle();
  assert.is(stage.answer(id), undefined);
  await stage.store.release();
  await stage.settle();
  assert.is(stage.answer(id), null);
});

test("after a commit come those who wrote, then held replies, then those who follow, in one post", async () => {
  const stage = new HostStage();
  stage.script("writer", (message, ref) => {
    if (message.type === "publish") return [append(1, message.pack), reply(ref, null, true), mark(0)];
    return message.type === "committed" ? [mark(1)] : [];
  });
  const heard: Notice["type"][] = [];
  stage.script(
    "follower",
    (message) => {
      heard.push(message.type as Notice["type"]);
      return message.type === "advanced" ? [mark(message.end)] : [];
    },
    { follows: 1 },
  );
  stage.residents.push("follower");
  await stage.open();
  stage.store.gateCommits = true;
  stage.ask("writer", publish("a", "b", "c"));
  await stage.settle();
  const before = stage.posts.length;
  await stage.store.release();
  await stage.settle();
  assert.is(stage.posts.length, before + 1);
  assert.equal(stage.posts[before].items.map(describe), ["mark 1", "answer", "mark 3"]);
  assert.equal(heard, ["advanced"]);
});

test("while a commit is in flight the next one gathers everything", async () => {
  const stage = new HostStage();
  scriptLog(stage, "a");
  await stage.open();
  stage.store.gateCommits = true;
  stage.ask("a", publish(1));
  stage.ask("a", publish(2));
  const last = stage.ask("a", publish(3));
  assert.is(stage.store.commits.length, 1);
  await stage.store.release();
  await stage.settle();
  assert.is(stage.store.commits.length, 2);
  assert.equal(payloads(stage.store.commits[1].blocks[0]), [2, 3]);
  await stage.store.release();
  await stage.settle();
  assert.equal(stage.answer(last), { offset: 2 });
});

test("what waits on the port when a commit ends joins the next one", async () => {
  const stage = new HostStage();
  scriptLog(stage, "a");
  await stage.open();
  stage.store.gateCommits = true;
  stage.ask("a", publish(1));
  stage.ask("a", publish(2));
  stage.leave({ answers: [], mail: [{ shard: 0, cell: "a", id: 77, message: publish(3) }] });
  await stage.store.release();
  await stage.settle();
  assert.equal(payloads(stage.store.commits[1].blocks[0]), [2, 3]);
});

test("storedAt never falls within a stream, though the clock does", async () => {
  const stage = new HostStage();
  const placed = scriptLog(stage, "a");
  await stage.open();
  stage.ask("a", publish(1));
  await stage.settle();
  const first = stage.clock.wallMs;
  stage.clock.wallMs -= 60_000;
  stage.ask("a", publish(2));
  await stage.settle();
  stage.clock.wallMs += 120_000;
  stage.ask("a", publish(3));
  await stage.settle();
  assert.equal(
    placed.map(({ storedAt }) => storedAt),
    [first, first, first + 60_000],
  );
});

test("maxTs is that of the publishers only where every event brought one", async () => {
  const stage = new HostStage();
  const times = [
    { tsMax: 5, tsGiven: 2 },
    { tsMax: 5, tsGiven: 1 },
    { tsMax: 9e12, tsGiven: 1 },
  ];
  stage.script("a", (message) => (message.type === "publish" ? [append(1, message.pack, 0, times.shift())] : []));
  await stage.open();
  for (let i = 0; i < 3; i++) {
    stage.ask("a", publish(1, 2));
    await stage.settle();
  }
  const maxTs = stage.store.commits.map(({ blocks }) => new BlockView(blocks[0]).maxTs);
  assert.equal(maxTs, [5, stage.clock.wallMs, 9e12]);
});

test("persist without soon waits 10 ms for an append to join", async () => {
  const stage = new HostStage();
  stage.script(
    "a",
    (message, ref) =>
      message.type === "drop" ? [{ type: "persist", soon: true }] : [{ type: "persist" }, reply(ref, null, true)],
    { persist: () => [["cursor", new Uint8Array([1])]] },
  );
  scriptLog(stage, "log");
  await stage.open();
  const lonely = stage.ask("a", { type: "cursor" });
  await stage.settle();
  assert.is(stage.store.commits.length, 0);
  stage.clock.advance(9.9);
  await stage.settle();
  assert.is(stage.store.commits.length, 0);
  stage.clock.advance(0.2);
  await stage.settle();
  assert.is(stage.store.commits.length, 1);
  assert.is(stage.answer(lonely), null);

  const joined = stage.ask("a", { type: "cursor" });
  stage.ask("log", publish(1));
  await stage.settle();
  assert.is(stage.store.commits.length, 2);
  assert.is(stage.store.commits[1].puts.length, 1);
  assert.is(stage.answer(joined), null);

  stage.ask("a", { type: "drop" });
  await stage.settle();
  assert.is(stage.store.commits.length, 3);
});

test("persist is called once for a commit, with the cell's own placements", async () => {
  const stage = new HostStage();
  const calls: (readonly Placed[])[] = [];
  stage.script(
    "a",
    (message) =>
      message.type === "publish"
        ? [append(1, message.pack, 5), { type: "persist" }, { type: "persist", soon: true }]
        : [],
    {
      persist: (placed) => {
        calls.push(placed);
        return [["k", new Uint8Array([placed.length])]];
      },
    },
  );
  scriptLog(stage, "b", 1);
  await stage.open();
  stage.askAll([
    ["b", publish(0)],
    ["a", publish(1, 2)],
  ]);
  await stage.settle();
  assert.is(calls.length, 1);
  const [{ tag, stream, offset, count }] = calls[0];
  assert.equal({ tag, stream, offset, count }, { tag: 5, stream: 1, offset: 1, count: 2 });
});

test("a cell that asks for it is told when what it persisted is durable: after the replies, before who follows", async () => {
  const stage = new HostStage();
  const heard: string[] = [];
  const script = (name: string, tell: boolean) =>
    stage.script(
      name,
      (message, ref) => {
        if (message.type === "cursor")
          return [{ type: "persist" }, { type: "persist", soon: true, tell }, reply(ref, null, true)];
        heard.push(`${name} ${message.type}`);
        return [mark(1)];
      },
      { follows: 7, persist: () => [[name, new Uint8Array([1])]] },
    );
  script("a", true);
  script("b", false);
  scriptLog(stage, "log");
  stage.residents.push("a", "b");
  await stage.open();
  stage.store.gateCommits = true;
  stage.askAll([
    ["log", publish(1)],
    ["a", { type: "cursor" }],
    ["b", { type: "cursor" }],
  ]);
  await stage.settle();
  assert.equal(heard, []);
  stage.posts.length = 0;
  await stage.store.release();
  await stage.settle();
  assert.equal(heard, ["a persisted", "a advanced", "b advanced"]);
  assert.equal(
    stage.items.map(({ type }) => type),
    ["answer", "answer", "answer", "signal", "signal", "signal"],
  );
});

test("a cell is told of nothing when its commit fails, and at once when it had nothing to write", async () => {
  const stage = new HostStage();
  const heard: string[] = [];
  let puts: readonly Put[] = [];
  stage.script(
    "a",
    (message) => {
      if (message.type === "cursor") return [{ type: "persist", soon: true, tell: true }];
      heard.push(message.type);
      return [];
    },
    { persist: () => puts },
  );
  await stage.open();
  stage.store.gateCommits = true;
  stage.tell("a", { type: "cursor" });
  await stage.settle();
  assert.equal([heard, stage.store.waiting.length], [["persisted"], 0]);
  puts = [["k", new Uint8Array([1])]];
  stage.tell("a", { type: "cursor" });
  await stage.settle();
  stage.store.breakNext();
  await stage.settle();
  assert.equal(heard, ["persisted"]);
});

test("a held reply with nothing to write leaves at once, or after the commit in flight", async () => {
  const stage = new HostStage();
  stage.script("a", (message, ref) =>
    message.type === "publish" ? [append(1, message.pack)] : [reply(ref, null, true)],
  );
  await stage.open();
  stage.store.gateCommits = true;
  const free = stage.ask("a", { type: "cursor" });
  assert.is(stage.answer(free), null);
  stage.ask("a", publish(1));
  const behind = stage.ask("a", { type: "cursor" });
  await stage.settle();
  assert.is(stage.answer(behind), undefined);
  await stage.store.release();
  await stage.settle();
  assert.is(stage.answer(behind), null);
});

test("a cell that has filled a commit takes no more until it has left, in order and without a gap", async () => {
  const stage = new HostStage();
  const placed = scriptLog(stage, "a");
  await stage.open();
  stage.store.gateCommits = true;
  const big = "x".repeat(1024 * 1024);
  stage.ask("a", publish("first"));
  const ids = stage.askAll(Array.from({ length: 10 }, (_, n) => ["a", publish(`${n}${big}`)] as const));
  const behind = stage.ask("a", publish("last"));
  const sizes: number[] = [];
  const firsts: string[] = [];
  while (stage.store.waiting.length > 0) {
    for (const bytes of stage.store.waiting[0].commit.blocks) {
      sizes.push(bytes.length);
      firsts.push(...payloads(bytes).map((text) => String(text).slice(0, 4)));
    }
    await stage.store.release();
    await stage.settle();
  }
  assert.ok(Math.max(...sizes) < 5.1 * 1024 * 1024, `${sizes}`);
  assert.equal(firsts, ["firs", ...Array.from({ length: 10 }, (_, n) => `${n}xxx`), "last"]);
  assert.equal(
    ids.map((id) => stage.answer(id)),
    ids.map((_, n) => ({ offset: n + 1 })),
  );
  assert.equal(stage.answer(behind), { offset: 11 });
  assert.is(placed.length, 12);
});

test("followers hear where a stream starts after a trim", async () => {
  const stage = new HostStage();
  scriptLog(stage, "log", 1);
  stage.script("pruner", () => [{ type: "trim", stream: 1, start: 99 }]);
  const heard: Notice[] = [];
  stage.script(
    "follower",
    (message) => {
      heard.push(message as Notice);
      return [];
    },
    { follows: 1 },
  );
  stage.residents.push("follower");
  await stage.open();
  stage.ask("log", publish(1, 2, 3));
  await stage.settle();
  stage.tell("pruner", { type: "drop" });
  await stage.settle();
  assert.equal(heard, [
    { type: "advanced", end: 3 },
    { type: "trimmed", start: 3 },
  ]);
});

test("draining commits what still waits, closes the store and answers who comes later", async () => {
  const stage = new HostStage();
  stage.script("a", (_, ref) => [{ type: "persist" }, reply(ref, null, true)], {
    persist: () => [["k", new Uint8Array([1])]],
  });
  await stage.open();
  const early = stage.ask("a", { type: "cursor" });
  stage.leave({ answers: [], mail: [{ shard: 0, cell: "a", id: 50, message: { type: "cursor" } }] });
  await stage.host.drain();
  assert.is(stage.answer(early), null);
  assert.is(stage.answer(50), null);
  assert.is(stage.store.commits.length, 1);
  assert.is(stage.store.closed, 1);
  assert.ok(stage.store.ended);
  assert.is(stage.code(stage.ask("a", { type: "cursor" })), "shutting_down");
});

function describe(item: Item): string {
  if (item.type !== "signal") return item.type;
  return item.signal.type === "release" ? `mark ${item.signal.member}` : item.signal.type;
}

test.run();
