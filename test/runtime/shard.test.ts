// A shard and its cells among each other, and a store that refuses, breaks or cannot be opened.

import { test } from "uvu";
import * as assert from "uvu/assert";
import type { Effect } from "../../src/actors/effects.ts";
import type { Message } from "../../src/actors/messages.ts";
import { leaseEpoch } from "../../src/protocol/lease.ts";
import { StoreError } from "../../src/store/store.ts";
import { append, HostStage, mark, publish, reply } from "../support/host-stage.ts";

/** What its cells know of the first two epochs of shard 0. */
const [firstEpoch, secondEpoch] = [leaseEpoch(1, 0), leaseEpoch(2, 0)];

/** `publish` is answered when stored, `cursor` never, `describe` at once. */
function scriptWriter(stage: HostStage, name = "a"): void {
  stage.scripts.set(name, (_, { epoch }) => ({
    receive(message, ref): readonly Effect[] {
      if (message.type === "publish") return [append(1, message.pack), reply(ref, null, true)];
      return message.type === "describe" ? [reply(ref, { offset: epoch })] : [];
    },
  }));
}

test("the effects of one message are performed in their order", async () => {
  const stage = new HostStage();
  stage.script("a", (_, ref) => [mark(1), reply(ref, null), mark(2)]);
  await stage.open();
  stage.posts.length = 0;
  stage.ask("a", { type: "cursor" });
  assert.is(stage.posts.length, 1);
  assert.equal(
    stage.items.map((item) => (item.type === "signal" && "member" in item.signal ? item.signal.member : item.type)),
    [1, "answer", 2],
  );
});

test("a tell within the shard is handled in the same turn, before anything is committed", async () => {
  const stage = new HostStage();
  stage.script("a", (_, ref) => [
    { type: "tell", to: { shard: 0, cell: "b" }, message: publish("from a") },
    { type: "persist", soon: true },
    reply(ref, null),
  ]);
  stage.script("b", (message) => (message.type === "publish" ? [append(1, message.pack)] : []));
  await stage.open();
  stage.ask("a", { type: "cursor" });
  await stage.settle();
  assert.is(stage.store.commits.length, 1);
  assert.is(stage.store.commits[0].blocks.length, 1);
});

test("an ask within the shard comes back as an answer with its tag, also when the other side fails", async () => {
  const stage = new HostStage();
  const answers: unknown[] = [];
  let tag = 0;
  stage.script("a", (message) => {
    if (message.type === "answer") {
      answers.push([message.tag, message.answer]);
      return [];
    }
    const to = { shard: 0, cell: message.type === "drop" ? "nobody" : "b" };
    return [{ type: "ask", to, message: message as Message, tag: ++tag }];
  });
  stage.script("b", (message, ref) => {
    if (message.type === "seek") throw new Error("boom");
    return [reply(ref, { offset: 5 })];
  });
  await stage.open();
  stage.ask("a", { type: "cursor" });
  stage.ask("a", { type: "seek", to: { kind: "latest" } });
  stage.ask("a", { type: "drop" });
  assert.equal(
    answers.map((entry) => {
      const [tag, answer] = entry as [number, { code?: string; offset?: number }];
      return [tag, answer.code ?? answer.offset];
    }),
    [
      [1, 5],
      [2, "internal"],
      [3, "unavailable"],
    ],
  );
});

test("what goes to another shard leaves by the front, and an answer finds the cell that asked", async () => {
  const stage = new HostStage();
  const answers: unknown[] = [];
  stage.script("a", (message) => {
    if (message.type === "answer") {
      answers.push([message.tag, message.answer]);
      return [];
    }
    const to = { shard: 1, cell: "far" };
    return [
      { type: "ask", to, message: { type: "cursor" }, tag: 9 },
      { type: "tell", to, message: { type: "drop" } },
    ];
  });
  await stage.open();
  stage.ask("a", { type: "describe" });
  const [asked, told] = stage.ofType("forward");
  assert.equal([asked.shard, asked.to, asked.message], [0, { shard: 1, cell: "far" }, { type: "cursor" }]);
  assert.ok(asked.ask > 0);
  assert.is(told.ask, 0);
  stage.host.receive({ answers: [{ shard: 0, ask: asked.ask, answer: { offset: 3 } }], mail: [] });
  stage.host.receive({ answers: [{ shard: 0, ask: asked.ask, answer: { offset: 4 } }], mail: [] });
  assert.equal(answers, [[9, { offset: 3 }]]);
});

test("a name that is no cell, and a shard that is not here, are unavailable", async () => {
  const stage = new HostStage();
  await stage.open();
  assert.is(stage.code(stage.ask("nobody", { type: "cursor" })), "unavailable");
  assert.is(stage.code(stage.ask("a", { type: "cursor" }, 1)), "unavailable");
});

test("a cell is woken at the time it asked for last", async () => {
  const stage = new HostStage();
  const woken: number[] = [];
  const wanted: (number | undefined)[] = [1100, 1050, 1080, undefined, 1090];
  stage.script("a", (message, _, env) => {
    if (message.type === "wake") {
      woken.push(env.mono);
      return [];
    }
    return [{ type: "wake", at: wanted.shift() }];
  });
  await stage.open();
  for (let n = 0; n < 3; n++) stage.tell("a", { type: "cursor" });
  stage.clock.advance(200);
  assert.equal(woken, [1080]);
  stage.clock.monoMs = 1000;
  stage.tell("a", { type: "cursor" });
  stage.tell("a", { type: "cursor" });
  stage.clock.advance(500);
  assert.equal(woken, [1080, 1090]);
});

test("reads near the end are answered in the same turn, others by the store", async () => {
  const stage = new HostStage();
  const got: unknown[] = [];
  stage.script("a", (message) => {
    if (message.type === "publish") return [append(1, message.pack)];
    if (message.type === "scan")
      return [{ type: "read", stream: 1, from: message.from, to: 99, bytesMax: 1, tag: message.from }];
    if (message.type === "blocks")
      got.push([message.tag, message.blocks.map((block) => block.firstOffset), message.next]);
    return [];
  });
  await stage.open();
  for (let n = 0; n < 3; n++) {
    stage.ask("a", publish(n, n));
    await stage.settle();
  }
  stage.store.gateReads = true;
  const scan = (from: number) => stage.tell("a", { type: "scan", from, to: 99, bytesMax: 1, eventsMax: 1 });
  scan(3);
  scan(6);
  scan(0);
  assert.equal(got, [
    [3, [2], 4],
    [6, [], 6],
    [0, [0], 2],
  ]);
  assert.is(stage.store.waitingReads.length, 0);
  const numbers = new Map(stage.host.samples().map(({ name, value }) => [name, value]));
  assert.is(numbers.get("tail_hits_total"), 2);
});

test("a read that the store cannot serve comes back as readFailed", async () => {
  const stage = new HostStage();
  const got: unknown[] = [];
  stage.script("a", (message) => {
    if (message.type === "scan") return [{ type: "read", stream: 1, from: 0, to: 9, bytesMax: 1, tag: 3 }];
    if (message.type === "readFailed") got.push([message.tag, message.failure.code]);
    return message.type === "publish" ? [append(1, message.pack)] : [];
  });
  await stage.open();
  stage.ask("a", publish("x".repeat(17 * 1024 * 1024)));
  await stage.settle();
  stage.store.gateReads = true;
  stage.tell("a", { type: "scan", from: 0, to: 9, bytesMax: 1, eventsMax: 1 });
  stage.store.waitingReads[0].fail(new Error("the disk is away"));
  await stage.settle();
  assert.equal(got, [[3, "unavailable"]]);
});

test("tokens are counted through all cells of an epoch, and a new epoch starts with a new shelf", async () => {
  const stage = new HostStage();
  const first: number[] = [];
  const receive = (
    _: unknown,
    ref: number,
    env: { tokens(count: number): number; epoch: number },
  ): readonly Effect[] => {
    first.push(env.tokens(10), env.epoch);
    return [reply(ref, null)];
  };
  stage.script("a", receive);
  stage.script("b", receive);
  await stage.open();
  stage.askAll([
    ["a", { type: "cursor" }],
    ["b", { type: "cursor" }],
  ]);
  assert.equal(first, [1, firstEpoch, 11, firstEpoch]);
});

test("bytes written into the turn's room arrive with the signal", async () => {
  const stage = new HostStage();
  stage.script("a", (_, __, env) => {
    const frames = env.room(5);
    frames.set([1, 2, 3, 4, 5]);
    const more = env.room(100_000).fill(7);
    const signal = {
      type: "events",
      member: 1,
      stream: 1,
      count: 1,
      binary: true,
      ends: new Uint32Array([5]),
    } as const;
    return [
      { type: "signal", signal: { ...signal, frames } },
      { type: "signal", signal: { ...signal, frames: more } },
    ];
  });
  await stage.open();
  stage.tell("a", { type: "cursor" });
  stage.tell("a", { type: "cursor" });
  const frames = stage.signals().map((signal) => (signal.type === "events" ? signal.frames : new Uint8Array()));
  assert.equal([...frames[0]], [1, 2, 3, 4, 5]);
  assert.equal([...frames[2]], [1, 2, 3, 4, 5]);
  assert.is(frames[3].length, 100_000);
  assert.ok(frames[3].every((byte) => byte === 7));
});

test("a refused commit fails as surely not stored; the store stays open, and a commit that succeeds brings the shard up", async () => {
  const stage = new HostStage();
  scriptWriter(stage);
  scriptWriter(stage, "b");
  await stage.open();
  stage.store.gateCommits = true;
  const held = stage.ask("a", publish(1));
  const gathered = stage.ask("a", publish(2));
  const open = stage.ask("b", { type: "cursor" });
  stage.store.refuseNext();
  await stage.settle();
  assert.is(stage.code(held), "publish_failed");
  assert.is(stage.code(gathered), "publish_failed");
  assert.is(stage.code(open), "ack_failed");
  assert.equal(
    stage.ofType("shardDown").map(({ reason, reads }) => [reason, reads]),
    [["the disk is full (ENOSPC)", true]],
  );
  const meanwhile = stage.ask("a", publish(3));
  assert.is(stage.code(meanwhile), "publish_failed");
  assert.match((stage.answer(meanwhile) as { msg: string }).msg, /disk is full/);
  assert.equal(stage.answer(stage.ask("a", { type: "describe" })), { offset: firstEpoch }, "what only reads is served");
  for (const waitMs of [100, 200]) {
    stage.clock.advance(waitMs - 1);
    assert.is(stage.store.waiting.length, 0);
    stage.clock.advance(1);
    assert.is(stage.store.waiting.length, 1);
    assert.equal(stage.answer(stage.ask("a", { type: "describe" })), { offset: firstEpoch }, "also while it is tried");
    stage.store.refuseNext();
    await stage.settle();
  }
  assert.is(stage.ofType("shardDown").length, 1, "said once");
  stage.store.gateCommits = false;
  stage.clock.advance(400);
  await stage.settle();
  assert.equal(
    stage.ofType("shardUp").map(({ epoch }) => epoch),
    [1, 1],
  );
  assert.is(stage.store.closed, 0);
  const again = stage.ask("a", publish(4));
  await stage.settle();
  assert.is(stage.answer(again), null);
  assert.equal(stage.store.streamsOf(0), [[1, 1]], "nothing but the last was stored");
  assert.equal(stage.store.keysOf(0), [], "trying leaves nothing behind");
});

test("requests that only read are taken over when a commit is refused, and answered by those asked when it comes up", async () => {
  const stage = new HostStage();
  let life = 0;
  stage.scripts.set("a", () => {
    const name = ++life;
    const refs: number[] = [];
    return {
      receive(message, ref): readonly Effect[] {
        if (message.type === "publish") return [append(1, message.pack), reply(ref, null, true)];
        if (message.type === "blocks") return [reply(refs.shift()!, { offset: name })];
        if (message.type !== "scan") return [reply(ref, { offset: name }, true)];
        refs.push(ref);
        return [{ type: "read", stream: 1, from: 0, to: 9, bytesMax: 1, tag: 1 }];
      },
    };
  });
  await stage.open();
  stage.ask("a", publish("x".repeat(17 * 1024 * 1024)));
  await stage.settle();
  stage.store.gateCommits = true;
  stage.store.gateReads = true;
  stage.ask("a", publish(1));
  const scan: Message = { type: "scan", from: 0, to: 9, bytesMax: 1, eventsMax: 1 };
  const reading = stage.ask("a", scan);
  const held = stage.ask("a", { type: "describe" });
  stage.store.refuseNext();
  await stage.settle();
  assert.equal(stage.answer(held), { offset: 2 });
  assert.is(stage.answer(reading), undefined);
  assert.is(stage.store.waitingReads.length, 2, "read once more");
  stage.store.gateCommits = false;
  stage.clock.advance(100);
  await stage.settle();
  assert.is(stage.ofType("shardUp").length, 2);
  assert.equal(stage.answer(stage.ask("a", { type: "describe" })), { offset: 3 });
  for (const read of stage.store.waitingReads) await read.open();
  await stage.settle();
  assert.equal(stage.answer(reading), { offset: 2 });
});

test("a cell that wants to write while the store takes none is refused and forgotten, and its timers do not run", async () => {
  const stage = new HostStage();
  const heard: string[] = [];
  let life = 0;
  stage.scripts.set("a", () => {
    const name = ++life;
    let opened = 0;
    return {
      first: [{ type: "persist" }, { type: "wake", at: stage.clock.monoMs + 10 }],
      receive(message, ref): readonly Effect[] {
        heard.push(`${name} ${message.type}`);
        if (message.type === "publish") return [append(1, message.pack), reply(ref, null, true)];
        if (message.type === "open") return [{ type: "persist", soon: true }, reply(ref, { offset: ++opened }, true)];
        return message.type === "describe" ? [reply(ref, { offset: opened }), mark(1), { type: "wake", at: 0 }] : [];
      },
    };
  });
  await stage.open();
  stage.store.gateCommits = true;
  stage.ask("a", publish(1));
  stage.store.refuseNext();
  await stage.settle();
  const record = { id: 1, name: "t", shards: [0], settings: {}, status: "live", createdAt: 0 } as const;
  for (let n = 0; n < 2; n++) {
    const open = stage.ask("a", { type: "open", record });
    assert.is(stage.code(open), "ack_failed", "the refusal of its kind");
    assert.equal(stage.answer(stage.ask("a", { type: "describe" })), { offset: 0 }, "nobody sees what was not stored");
  }
  heard.length = 0;
  stage.clock.advance(99);
  await stage.settle();
  assert.equal(heard, []);
  assert.equal(stage.signals(), []);
  assert.is(stage.store.commits.length, 1);
});

test("a cell that throws while the store takes no writes fails that request alone", async () => {
  const stage = new HostStage();
  scriptWriter(stage);
  stage.script("b", (message, ref) => {
    if (message.type === "scan") throw new Error("boom");
    return [reply(ref, { offset: 7 })];
  });
  stage.scripts.set("c", () => {
    throw new Error("cannot start");
  });
  await stage.open();
  stage.store.gateCommits = true;
  stage.ask("a", publish(1));
  stage.store.refuseNext();
  await stage.settle();
  assert.is(stage.code(stage.ask("b", { type: "scan", from: 0, to: 9, bytesMax: 1, eventsMax: 1 })), "internal");
  assert.equal(stage.answer(stage.ask("b", { type: "describe" })), { offset: 7 });
  assert.is(stage.code(stage.ask("c", { type: "describe" })), "unavailable");
  assert.is(stage.code(stage.ask("nobody", { type: "describe" })), "unavailable");
});

test("a try that breaks the store closes it and opens it again; a shard that fails as soon as it is up waits longer", async () => {
  const stage = new HostStage();
  scriptWriter(stage);
  await stage.open();
  stage.store.gateCommits = true;
  stage.ask("a", publish(1));
  stage.store.refuseNext();
  await stage.settle();
  stage.clock.advance(100);
  stage.store.breakNext();
  await stage.settle();
  assert.is(stage.store.closed, 1);
  assert.is(stage.code(stage.ask("a", { type: "describe" })), "ack_failed", "there is nothing open to read from");
  stage.clock.advance(200);
  await stage.settle();
  assert.equal(
    stage.items.flatMap((item) => {
      if (item.type === "shardUp") return [`up ${item.epoch}`];
      return item.type === "shardDown" ? [`${item.reads ? "read-only" : "down"}: ${item.reason}`] : [];
    }),
    ["up 1", "read-only: the disk is full (ENOSPC)", "down: the store failed (EIO)", "up 2"],
  );
  stage.ask("a", publish(2));
  stage.store.refuseNext();
  await stage.settle();
  stage.clock.advance(399);
  assert.is(stage.store.waiting.length, 0);
  stage.clock.advance(1);
  assert.is(stage.store.waiting.length, 1);
});

test("closing while the store takes no writes answers who waits and lets the store go", async () => {
  const stage = new HostStage();
  stage.script("a", (message, ref) => {
    if (message.type === "publish") return [append(1, message.pack), reply(ref, null, true)];
    return message.type === "scan" ? [{ type: "read", stream: 1, from: 0, to: 9, bytesMax: 1, tag: 1 }] : [];
  });
  await stage.open();
  stage.ask("a", publish("x".repeat(17 * 1024 * 1024)));
  await stage.settle();
  stage.store.gateCommits = true;
  stage.store.gateReads = true;
  stage.ask("a", publish(1));
  stage.store.refuseNext();
  await stage.settle();
  const reading = stage.ask("a", { type: "scan", from: 0, to: 9, bytesMax: 1, eventsMax: 1 });
  stage.clock.advance(100);
  const drained = stage.host.drain();
  stage.store.refuseNext();
  await drained;
  assert.is(stage.code(reading), "unavailable");
  assert.is(stage.store.closed, 1);
});

test("lease tokens go on where they were when the epoch stays the same", async () => {
  const stage = new HostStage();
  const taken: number[][] = [];
  stage.script("a", (message, ref, env) => {
    taken.push([env.epoch, env.tokens(10)]);
    return message.type === "publish" ? [append(1, message.pack), reply(ref, null, true)] : [reply(ref, null)];
  });
  await stage.open();
  stage.store.gateCommits = true;
  stage.ask("a", publish(1));
  stage.store.refuseNext();
  await stage.settle();
  stage.ask("a", { type: "describe" });
  stage.store.gateCommits = false;
  stage.clock.advance(100);
  await stage.settle();
  stage.ask("a", { type: "describe" });
  assert.equal(taken, [
    [firstEpoch, 1],
    [firstEpoch, 11],
    [firstEpoch, 21],
  ]);
});

test("after a broken commit nobody knows, so everyone gets unavailable", async () => {
  const stage = new HostStage();
  scriptWriter(stage);
  await stage.open();
  stage.store.gateCommits = true;
  const held = stage.ask("a", publish(1));
  const open = stage.ask("a", { type: "cursor" });
  stage.store.breakNext();
  await stage.settle();
  assert.is(stage.code(held), "unavailable");
  assert.is(stage.code(open), "unavailable");
  assert.is(stage.code(stage.ask("a", publish(2))), "publish_failed", "what comes now is surely not stored");
});

test("a shard that cannot be opened is tried again, each time later, up to 5 s", async () => {
  const stage = new HostStage();
  scriptWriter(stage);
  stage.store.openErrors = Array.from({ length: 9 }, (_, n) => new StoreError("broken", `E${n}`, "/a/path"));
  await stage.open();
  const waits: number[] = [];
  let since = stage.clock.monoMs;
  while (stage.ofType("shardUp").length === 0) {
    const left = stage.store.openErrors.length;
    while (stage.store.openErrors.length === left && stage.store.opened === 0) {
      stage.clock.advance(100);
      await stage.settle();
    }
    waits.push(stage.clock.monoMs - since);
    since = stage.clock.monoMs;
  }
  assert.equal(waits, [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]);
  assert.equal(
    stage.ofType("shardDown").map(({ reason }) => reason),
    Array.from({ length: 9 }, (_, n) => `the store failed (E${n})`),
  );
  assert.equal(stage.answer(stage.ask("a", { type: "describe" })), { offset: firstEpoch });
});

test("of a shard that cannot be opened it is said whether waiting may help", async () => {
  const said = async (error: Error) => {
    const stage = new HostStage();
    stage.store.openErrors = [error];
    await stage.open();
    return stage.ofType("shardDown").map(({ mayPass, reads }) => [mayPass, reads]);
  };
  for (const code of ["ENOSPC", "EDQUOT", "EIO", "EROFS"]) {
    assert.equal(await said(new StoreError("refused", code, "/a/path")), [[true, false]], code);
  }
  for (const code of ["EDAMAGED", "EFORMAT", "ELOCKED", "EACCES"]) {
    assert.equal(await said(new StoreError("broken", code, "/a/path")), [[false, false]], code);
  }
  assert.equal(await said(new Error("a bug")), [[false, false]]);
});

test("a late result of a broken incarnation touches nothing of the next", async () => {
  const stage = new HostStage();
  const heard: string[] = [];
  stage.scripts.set("a", (_, { epoch }) => ({
    receive(message) {
      heard.push(`${epoch} ${message.type}`);
      if (message.type === "cursor") {
        return [{ type: "ask", to: { shard: 1, cell: "far" }, message: { type: "cursor" }, tag: 1 }];
      }
      return message.type === "publish" ? [append(1, message.pack)] : [{ type: "wake", at: 2000 }];
    },
  }));
  await stage.open();
  stage.store.gateCommits = true;
  stage.tell("a", { type: "describe" });
  stage.tell("a", { type: "cursor" });
  stage.tell("a", publish(1));
  stage.store.breakNext();
  await stage.settle();
  stage.clock.advance(100);
  await stage.settle();
  stage.tell("a", { type: "cursor" });
  heard.length = 0;
  const [old, fresh] = stage.ofType("forward");
  stage.host.receive({ answers: [{ shard: 0, ask: old.ask, answer: null }], mail: [] });
  stage.clock.advance(2000);
  assert.equal(heard, []);
  stage.host.receive({ answers: [{ shard: 0, ask: fresh.ask, answer: null }], mail: [] });
  assert.equal(heard, [`${secondEpoch} answer`]);
});

test("tells are reported as taken in, gathered up to the number agreed on", async () => {
  const stage = new HostStage({ reportTells: 3 });
  stage.script("a", (_, ref) => (ref === 0 ? [] : [reply(ref, null)]));
  await stage.open();
  stage.posts.length = 0;
  stage.tell("a", { type: "cursor" });
  stage.tell("a", { type: "cursor" });
  assert.equal(stage.posts, []);
  stage.tell("a", { type: "cursor" });
  stage.tell("a", { type: "cursor" });
  stage.ask("a", { type: "cursor" });
  assert.equal(
    stage.posts.map(({ tells }) => tells),
    [3, 4],
  );
});

test.run();
