// An actor that fails: who is told, what is dropped, and that nobody else notices.

import { test } from "uvu";
import * as assert from "uvu/assert";
import type { Effect } from "../../src/actors/effects.ts";
import { BlockView } from "../../src/protocol/block.ts";
import { append, HostStage, publish, reply } from "../support/host-stage.ts";

const seen = (stage: HostStage, key: string) => {
  const value = stage.store.commits
    .flatMap(({ puts }) => puts)
    .filter(([name]) => name === key)
    .at(-1)?.[1];
  return value?.[0];
};

/** Counts publishes, persists the count, fails on `drop`, answers `cursor` with the count and keeps `describe` open. */
function scriptCounter(stage: HostStage, name: string, stream: number): { starts: number } {
  const facts = { starts: 0 };
  stage.scripts.set(name, (shelf) => {
    facts.starts++;
    let count = shelf.entry(name)?.[0] ?? 0;
    return {
      receive(message, ref): readonly Effect[] {
        switch (message.type) {
          case "publish":
            count++;
            return [append(stream, message.pack), reply(ref, null, true)];
          case "cursor":
            return [reply(ref, { offset: count })];
          case "drop":
            throw new Error("boom");
          default:
            return [];
        }
      },
      persist: () => [[name, new Uint8Array([count])]],
      stats: () => [
        { name: "seen_total", labels: { cell: name }, value: count },
        { name: "seen", labels: { cell: name }, value: count },
      ],
    };
  });
  return facts;
}

test("a throw is internal to the message in process and unavailable to the others of that cell", async () => {
  const stage = new HostStage();
  scriptCounter(stage, "a", 1);
  scriptCounter(stage, "b", 2);
  await stage.open();
  const [open, other, boom, after, fine] = stage.askAll([
    ["a", { type: "describe" }],
    ["b", { type: "describe" }],
    ["a", { type: "drop" }],
    ["a", { type: "cursor" }],
    ["b", { type: "cursor" }],
  ]);
  assert.is(stage.code(open), "unavailable");
  assert.is(stage.code(boom), "internal");
  assert.equal(stage.answer(after), { offset: 0 });
  assert.equal(stage.answer(fine), { offset: 0 });
  assert.is(stage.answer(other), undefined);
  assert.equal(
    stage.ofType("cellRestarted").map(({ address }) => address),
    [{ shard: 0, cell: "a" }],
  );
  const [log] = stage.ofType("log");
  assert.is(log.level, "error");
  assert.is(log.fields.reason, "boom");
});

test("what the failed cell had gathered is dropped, and its held replies fail; others are committed", async () => {
  const stage = new HostStage();
  scriptCounter(stage, "a", 1);
  scriptCounter(stage, "b", 1);
  await stage.open();
  stage.store.gateCommits = true;
  stage.ask("b", publish("in flight"));
  const [lost, kept] = stage.askAll([
    ["a", publish("lost")],
    ["b", publish("kept")],
    ["a", { type: "drop" }],
  ]);
  await stage.store.release();
  await stage.settle();
  await stage.store.release();
  await stage.settle();
  assert.is(stage.code(lost), "unavailable");
  assert.is(stage.answer(kept), null);
  const block = new BlockView(stage.store.commits[1].blocks[0]);
  assert.equal([block.firstOffset, block.count], [1, 1]);
  assert.is(new TextDecoder().decode(block.pack.payload(0)), '"kept"');
  assert.is(stage.store.waiting.length, 0);
});

test("a failed cell waits for the commit in flight and starts from what it stored; messages wait with it", async () => {
  const stage = new HostStage();
  const facts = scriptCounter(stage, "a", 1);
  await stage.open();
  stage.store.gateCommits = true;
  const durable = stage.ask("a", publish("durable"));
  const [boom, asked] = stage.askAll([
    ["a", { type: "drop" }],
    ["a", { type: "cursor" }],
  ]);
  await stage.settle();
  assert.is(stage.code(boom), "internal");
  assert.is(facts.starts, 1);
  assert.is(stage.answer(asked), undefined);
  await stage.store.release();
  await stage.settle();
  assert.is(facts.starts, 2);
  assert.is(stage.answer(durable), null, "what was in flight was stored, so its OK stands");
  assert.equal(stage.answer(asked), { offset: 1 }, "the new incarnation knows the commit that was in flight");
});

test("what comes back for an older incarnation is dropped", async () => {
  const stage = new HostStage();
  const heard: string[] = [];
  let starts = 0;
  stage.scripts.set("a", () => {
    const own = ++starts;
    return {
      receive(message, ref) {
        heard.push(`${own} ${message.type}`);
        if (message.type === "publish") return [append(1, message.pack), { type: "wake", at: 1500 }];
        if (message.type === "scan") return [{ type: "read", stream: 1, from: 0, to: 9, bytesMax: 9, tag: 1 }];
        if (message.type === "locateTs") {
          return [{ type: "ask", to: { shard: 1, cell: "far" }, message: { type: "cursor" }, tag: 4 }];
        }
        if (message.type === "describe") return [reply(1, { offset: 1 }), reply(ref, null)];
        if (message.type === "drop") throw new Error("boom");
        return [];
      },
    };
  });
  await stage.open();
  stage.store.gateCommits = true;
  stage.store.gateReads = true;
  // The first request stays open under the ref 1 of the first incarnation.
  const open = stage.ask("a", { type: "cursor" });
  stage.ask("a", publish(1));
  stage.ask("a", { type: "locateTs", ts: 0 });
  stage.ask("a", { type: "drop" });
  const again = stage.ask("a", { type: "describe" });
  heard.length = 0;
  await stage.store.release();
  await stage.settle();
  stage.host.receive({ answers: [{ shard: 0, ask: stage.ofType("forward")[0].ask, answer: null }], mail: [] });
  stage.clock.advance(1000);
  await stage.settle();
  assert.equal(heard, ["2 describe"], "no committed, no answer, no wake of the first incarnation");
  assert.is(stage.code(open), "unavailable");
  assert.is(stage.answer(again), null);
});

test("a read that ends after the cell was started again is dropped", async () => {
  const stage = new HostStage();
  const heard: string[] = [];
  stage.script("a", (message) => {
    heard.push(message.type);
    if (message.type === "scan") return [{ type: "read", stream: 1, from: 0, to: 9, bytesMax: 9, tag: 1 }];
    if (message.type === "drop") throw new Error("boom");
    return message.type === "publish" ? [append(1, message.pack)] : [];
  });
  await stage.open();
  stage.ask("a", publish(1));
  await stage.settle();
  // A new life of the shard has no tail, so the read goes to the store.
  const again = new HostStage({ store: stage.store });
  again.scripts.set("a", stage.scripts.get("a")!);
  await again.open();
  again.store.gateReads = true;
  heard.length = 0;
  const scan = { type: "scan", from: 0, to: 9, bytesMax: 9, eventsMax: 9 } as const;
  again.ask("a", scan);
  again.ask("a", { type: "drop" });
  await again.store.waitingReads[0].open();
  await again.settle();
  assert.equal(heard, ["scan", "drop"]);
  again.ask("a", scan);
  await again.store.waitingReads[1].open();
  await again.settle();
  assert.equal(heard, ["scan", "drop", "scan", "blocks"]);
});

test("a throw in persist leaves only that cell out of the commit, and offsets stay dense", async () => {
  const stage = new HostStage();
  scriptCounter(stage, "a", 1);
  scriptCounter(stage, "c", 1);
  let starts = 0;
  stage.scripts.set("b", () => {
    starts++;
    return {
      receive: (message, ref) => (message.type === "publish" ? [append(1, message.pack), reply(ref, null, true)] : []),
      persist() {
        if (starts === 1) throw new Error("cannot say what to write");
        return [];
      },
    };
  });
  await stage.open();
  const [first, second, third] = stage.askAll([
    ["a", publish("a")],
    ["b", publish("b")],
    ["c", publish("c")],
  ]);
  await stage.settle();
  assert.is(stage.store.commits.length, 1);
  const block = new BlockView(stage.store.commits[0].blocks[0]);
  const texts = [0, 1].map((at) => new TextDecoder().decode(block.pack.payload(at)));
  assert.equal([block.count, ...texts], [2, '"a"', '"c"']);
  assert.is(seen(stage, "a"), 1);
  assert.is(seen(stage, "c"), 1);
  assert.is(stage.answer(first), null);
  assert.is(stage.code(second), "unavailable");
  assert.is(stage.answer(third), null);
  assert.is(starts, 2);
});

test("more than five restarts within a minute and the cell is given up, alone", async () => {
  const stage = new HostStage();
  scriptCounter(stage, "a", 1);
  scriptCounter(stage, "b", 2);
  await stage.open();
  for (let n = 0; n < 5; n++) assert.is(stage.code(stage.ask("a", { type: "drop" })), "internal");
  assert.equal(stage.answer(stage.ask("a", { type: "cursor" })), { offset: 0 });
  const [last, behind] = stage.askAll([
    ["a", { type: "drop" }],
    ["a", { type: "cursor" }],
  ]);
  assert.is(stage.code(last), "internal");
  assert.is(stage.code(behind), "unavailable");
  const [failed] = stage.ofType("cellFailed");
  assert.equal(failed.address, { shard: 0, cell: "a" });
  assert.match(failed.reason, /boom/);
  assert.is(stage.ofType("cellRestarted").length, 5);
  assert.equal(stage.answer(stage.ask("b", { type: "cursor" })), { offset: 0 });
});

test("restarts that lie a minute back do not count", async () => {
  const stage = new HostStage();
  scriptCounter(stage, "a", 1);
  await stage.open();
  for (let n = 0; n < 12; n++) {
    assert.is(stage.code(stage.ask("a", { type: "drop" })), "internal");
    stage.clock.advance(15_000);
  }
  assert.equal(stage.answer(stage.ask("a", { type: "cursor" })), { offset: 0 });
  assert.equal(stage.ofType("cellFailed"), []);
});

test("a cell that cannot start is given up with its reason", async () => {
  const stage = new HostStage();
  let tries = 0;
  stage.scripts.set("a", () => {
    tries++;
    throw new Error("the entry is odd");
  });
  scriptCounter(stage, "b", 2);
  stage.residents.push("a", "b");
  await stage.open();
  assert.is(tries, 6);
  const id = stage.ask("a", { type: "cursor" });
  assert.is(stage.code(id), "unavailable");
  assert.match((stage.answer(id) as { msg: string }).msg, /the entry is odd/);
  assert.equal(stage.answer(stage.ask("b", { type: "cursor" })), { offset: 0 });
});

test("the mailbox of a cell that waits is bounded", async () => {
  const stage = new HostStage();
  scriptCounter(stage, "a", 1);
  await stage.open();
  stage.store.gateCommits = true;
  stage.ask("a", publish(1));
  stage.ask("a", { type: "drop" });
  const ids = stage.askAll(Array.from({ length: 10_001 }, () => ["a", { type: "cursor" }] as const));
  assert.is(stage.code(ids[10_000]), "overloaded");
  assert.is(stage.answer(ids[9_999]), undefined);
  await stage.store.release();
  await stage.settle();
  assert.equal(stage.answer(ids[0]), { offset: 1 });
  assert.equal(stage.answer(ids[9_999]), { offset: 1 });
});

test("a cell that stops is started anew only after what it wrote last", async () => {
  const stage = new HostStage();
  stage.scripts.set("a", (shelf) => {
    const known = shelf.entry("a") !== undefined;
    let gone = false;
    return {
      receive(message, ref) {
        if (message.type === "describe") return [reply(ref, { offset: known ? 1 : 0 })];
        if (message.type === "locateTs") return [{ type: "persist", soon: true }, reply(ref, null, true)];
        if (message.type === "cursor") return [];
        gone = true;
        return [{ type: "persist", soon: true }, reply(ref, null, true), { type: "stop" }];
      },
      persist: () => [["a", gone ? null : new Uint8Array([1])]],
    };
  });
  await stage.open();
  stage.ask("a", { type: "locateTs", ts: 0 });
  await stage.settle();
  stage.store.gateCommits = true;
  const open = stage.ask("a", { type: "cursor" });
  const dropped = stage.ask("a", { type: "dropGroup" });
  const after = stage.ask("a", { type: "describe" });
  await stage.settle();
  assert.is(stage.code(open), "unavailable");
  assert.is(stage.answer(dropped), undefined);
  assert.is(stage.answer(after), undefined);
  await stage.store.release();
  await stage.settle();
  assert.is(stage.answer(dropped), null);
  assert.equal(stage.answer(after), { offset: 0 });
});

test("the counters of a cell go on after a restart, its gauges do not", async () => {
  const stage = new HostStage();
  scriptCounter(stage, "a", 1);
  await stage.open();
  stage.askAll([
    ["a", publish(1)],
    ["a", publish(2)],
    ["a", { type: "drop" }],
    ["a", publish(3)],
  ]);
  await stage.settle();
  const values = stage.host
    .samples()
    .filter(({ name }) => name.startsWith("seen"))
    .map(({ name, value }) => [name, value]);
  assert.equal(Object.fromEntries(values), { seen_total: 3, seen: 1 });
  const restarts = stage.host.samples().find(({ name }) => name === "cell_restarts_total");
  assert.is(restarts?.value, 1);
});

test.run();
