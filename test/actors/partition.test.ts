import { test } from "uvu";
import * as assert from "uvu/assert";
import type { MessageOf, Page, PartitionInfo, Published, TopicRecord } from "../../src/actors/messages.ts";
import { PartitionActor } from "../../src/actors/partition.ts";
import type { Failure } from "../../src/protocol/failure.ts";
import { makeId } from "../../src/protocol/ids.ts";
import { streamOf } from "../../src/protocol/stream.ts";
import { packOf, Stage } from "../support/actor-stage.ts";

const stream = streamOf(3, 0);
const record: TopicRecord = { id: 3, name: "orders", shards: [0], settings: {}, status: "live", createdAt: 0 };

function opened(settings: TopicRecord["settings"] = {}): Stage {
  const stage = new Stage();
  stage.run((shelf, env) => PartitionActor.start(stream, shelf, env));
  stage.answer({ type: "open", record: { ...record, settings } });
  return stage;
}

function restart(stage: Stage): void {
  stage.run((shelf, env) => PartitionActor.start(stream, shelf, env));
}

function publish(
  pack: Uint8Array,
  extra: { unparsed?: boolean; batch?: NonNullable<MessageOf<"publish">["batch"]> } = {},
) {
  return { type: "publish", pack, unparsed: false, ...extra } as const;
}

/** A batch of one event, kept in order. */
function ordered(seq: number, order: "rising" | "chained", payload: unknown = seq, producer = "p") {
  return publish(packOf({ payload }), { batch: { producer, seq, order } });
}

function codeOf(stage: Stage, ref: number): string | undefined {
  return (stage.answers.get(ref) as Failure).code;
}

function entriesOf(stage: Stage, kind: string): string[] {
  return [...stage.state.keys()].filter((key) => key.startsWith(`${kind}/`));
}

function payloads(stage: Stage): string[] {
  return stage.blocks.flatMap((block) =>
    Array.from({ length: block.count }, (_, index) => new TextDecoder().decode(block.pack.payload(index))),
  );
}

test("a partition that was never opened knows no topic", () => {
  const stage = new Stage();
  stage.run((shelf, env) => PartitionActor.start(stream, shelf, env));
  assert.is(stage.answer<Failure>(publish(packOf({ payload: 1 }))).code, "unknown_topic");
});

test("G1: the answer to a publish leaves after the commit, not before", () => {
  const stage = opened();
  const ref = stage.ask(publish(packOf({ payload: 1 }, { payload: 2 })));
  assert.not(stage.answers.has(ref));
  stage.commit();
  const answer = stage.answers.get(ref) as Published;
  assert.equal(answer, {
    durability: "fsync",
    runs: [{ index: 0, count: 2, offset: 0, storedAt: stage.wall, salt: 7 }],
  });
});

test("opening is durable, idempotent and remembered over a restart", () => {
  const stage = opened();
  const commits = stage.commits;
  assert.is(stage.answer<PartitionInfo>({ type: "open", record }).durability, "fsync");
  assert.is(stage.commits, commits, "the same record needs no commit");
  restart(stage);
  assert.is(stage.answer<Published>(publish(packOf({ payload: 1 }))).runs[0].offset, 0);
});

test("an id published again within the window is answered with the first and stored once", () => {
  const stage = opened();
  const first = stage.answer<Published>(publish(packOf({ payload: "a", id: "x" })));
  stage.pass(1000);
  const again = stage.answer<Published>(publish(packOf({ payload: "b", id: "x" })));
  assert.equal(again.runs, [{ ...first.runs[0], duplicate: { ts: first.runs[0].storedAt } }]);
  assert.equal(payloads(stage), ['"a"']);
});

test("ids are remembered over a restart and forgotten after the window", () => {
  const stage = opened();
  stage.answer(publish(packOf({ payload: "a", id: "x", ts: 42 })));
  restart(stage);
  stage.pass(119_000);
  assert.equal(stage.answer<Published>(publish(packOf({ payload: "b", id: "x" }))).runs[0].duplicate, { ts: 42 });
  stage.pass(1_000);
  assert.is(stage.answer<Published>(publish(packOf({ payload: "c", id: "x" }))).runs[0].duplicate, undefined);
  assert.equal(payloads(stage), ['"a"', '"c"']);
  const kept = [...stage.state.keys()].filter((key) => key.startsWith("dedupe/"));
  assert.equal(kept, [`dedupe/${stream}/1`], "the first entry is removed");
});

test("a wall clock that is set forth or back neither ends the window nor lengthens it", () => {
  for (const step of [3_600_000, -3_600_000]) {
    const stage = opened();
    stage.answer(publish(packOf({ payload: "a", id: "x" })));
    stage.answer(ordered(0, "rising"));
    stage.wall += step;
    stage.pass(119_999);
    stage.wake();
    assert.ok(stage.answer<Published>(publish(packOf({ payload: "b", id: "x" }))).runs[0].duplicate);
    assert.ok(stage.answer<Published>(ordered(0, "rising")).runs[0].duplicate);
    stage.pass(1);
    stage.wake();
    assert.is(stage.answer<Published>(publish(packOf({ payload: "c", id: "x" }))).runs[0].duplicate, undefined);
    assert.is(stage.answer<Published>(ordered(0, "rising")).runs[0].duplicate, undefined);
  }
});

test("over a restart with a clock that was set back, what is left of the window is at most the whole", () => {
  const stage = opened();
  stage.answer(publish(packOf({ payload: "a", id: "x" })));
  stage.wall -= 3_600_000;
  restart(stage);
  stage.pass(119_999);
  assert.ok(stage.answer<Published>(publish(packOf({ payload: "b", id: "x" }))).runs[0].duplicate);
  stage.pass(1);
  assert.is(stage.answer<Published>(publish(packOf({ payload: "c", id: "x" }))).runs[0].duplicate, undefined);
});

test("a repetition while the first is being stored waits for it", () => {
  const stage = opened();
  const first = stage.ask(publish(packOf({ payload: "a", id: "x" })));
  const second = stage.ask(publish(packOf({ payload: "b", id: "x" })));
  assert.not(stage.answers.has(second));
  stage.commit();
  assert.is((stage.answers.get(first) as Published).runs[0].offset, 0);
  assert.equal((stage.answers.get(second) as Published).runs[0].duplicate, { ts: stage.wall });
  assert.equal(payloads(stage), ['"a"']);
});

test("of a pack with known and new ids only the new are stored, and each is answered in its place", () => {
  const stage = opened();
  stage.answer(publish(packOf({ payload: 0, id: "a" })));
  const pack = packOf(
    { payload: 1 },
    { payload: 2, id: "a" },
    { payload: 3, id: "b" },
    { payload: 4, id: "b" },
    { payload: 5, key: "k" },
  );
  const { runs } = stage.answer<Published>(publish(pack));
  assert.equal(
    runs.map(({ index, count, offset, duplicate }) => [index, count, offset, duplicate !== undefined]),
    [
      [0, 1, 1, false],
      [1, 1, 0, true],
      [2, 1, 2, false],
      [3, 1, 2, true],
      [4, 1, 3, false],
    ],
  );
  assert.equal(payloads(stage), ["0", "1", "3", "5"]);
  assert.is(stage.blocks[1].pack.extension(2).key, "k", "what an event carries moves with it");
});

test("a batch of a producer is stored once, over a restart too", () => {
  const stage = opened();
  const batch = { producer: "p", seq: 1 };
  const first = stage.answer<Published>(publish(packOf({ payload: 1 }, { payload: 2 }), { batch }));
  restart(stage);
  const again = stage.answer<Published>(publish(packOf({ payload: 1 }, { payload: 2 }), { batch }));
  assert.equal(again.runs, [{ ...first.runs[0], duplicate: { ts: first.runs[0].storedAt } }]);
  assert.equal(payloads(stage), ["1", "2"]);
  assert.is(
    stage.answer<Published>(publish(packOf({ payload: 3 }), { batch: { ...batch, seq: 2 } })).runs[0].offset,
    2,
  );
});

test("a chained batch is stored right behind the one before it, stored or on its way, and nowhere else", () => {
  const stage = opened();
  stage.answer(ordered(0, "rising"));
  const under = [1, 2].map((seq) => stage.ask(ordered(seq, "chained")));
  const gap = stage.ask(ordered(4, "chained"));
  assert.is(codeOf(stage, gap), "publish_failed");
  stage.commit();
  for (const ref of under) assert.not((stage.answers.get(ref) as Published).runs[0].duplicate);
  assert.is(stage.answer<Failure>(ordered(4, "chained")).code, "publish_failed", "nor later");
  assert.is(stage.answer<Published>(ordered(4, "rising")).runs[0].offset, 3, "unchained it may leave a gap");
  stage.answer(ordered(5, "chained"));
  assert.equal(payloads(stage), ["0", "1", "2", "4", "5"]);
});

test("of a batch that was refused nothing is behind it, and all of it can come again in its order", () => {
  const stage = opened();
  const broken = publish(packOf({ raw: "{" }), { unparsed: true, batch: { producer: "p", seq: 0, order: "rising" } });
  assert.is(stage.answer<Failure>(broken).code, "bad_json");
  const behind = [1, 2].map((seq) => stage.ask(ordered(seq, "chained")));
  assert.equal(
    behind.map((ref) => codeOf(stage, ref)),
    ["publish_failed", "publish_failed"],
  );
  stage.answer(ordered(1, "rising"));
  stage.answer(ordered(2, "chained"));
  assert.equal(payloads(stage), ["1", "2"]);
});

test("what was gathered and lost takes along what is chained to it", () => {
  const stage = opened();
  stage.answer(ordered(0, "rising"));
  stage.ask(ordered(1, "chained"));
  restart(stage);
  assert.is(stage.answer<Failure>(ordered(2, "chained")).code, "publish_failed");
  stage.answer(ordered(1, "rising"));
  stage.answer(ordered(2, "chained"));
  restart(stage);
  stage.answer(ordered(3, "chained"));
  assert.equal(payloads(stage), ["0", "1", "2", "3"]);
});

test("a batch in order that comes again is answered from the first, also while that is being stored, and over a restart", () => {
  const stage = opened();
  const first = stage.ask(ordered(0, "rising"));
  const again = stage.ask(ordered(0, "rising"));
  assert.not(stage.answers.has(again));
  stage.commit();
  const [run] = (stage.answers.get(first) as Published).runs;
  const repeated = { ...run, duplicate: { ts: run.storedAt } };
  assert.equal((stage.answers.get(again) as Published).runs, [repeated]);
  stage.answer(ordered(1, "chained"));
  restart(stage);
  assert.equal(stage.answer<Published>(ordered(0, "rising")).runs, [repeated]);
  assert.equal(payloads(stage), ["0", "1"]);
});

test("the numbers of a producer only rise: a batch that turns up late is not stored behind what came after it", () => {
  const stage = opened();
  stage.answer(ordered(0, "rising"));
  stage.answer(ordered(5, "rising"));
  assert.is(stage.answer<Failure>(ordered(4, "rising")).code, "publish_failed");
  const under = stage.ask(ordered(7, "rising"));
  assert.is(stage.answer<Failure>(ordered(6, "rising")).code, "publish_failed", "nor behind what is on its way");
  stage.commit();
  assert.ok(stage.answers.has(under));
  restart(stage);
  assert.is(stage.answer<Failure>(ordered(6, "rising")).code, "publish_failed", "nor after a restart");
  stage.answer(ordered(0, "rising", "other", "q"));
  assert.equal(payloads(stage), ["0", "5", "7", '"other"'], "another producer has numbers of its own");
});

test("of a producer the last eight batches are remembered in one entry, until it has been silent for the window", () => {
  const stage = opened();
  for (let seq = 0; seq < 20; seq++) stage.answer(ordered(seq, "rising"));
  assert.equal([entriesOf(stage, "producer"), entriesOf(stage, "dedupe")], [[`producer/${stream}/p`], []]);
  restart(stage);
  for (let seq = 12; seq < 20; seq++) {
    assert.equal(stage.answer<Published>(ordered(seq, "rising")).runs[0].duplicate, { ts: stage.wall });
  }
  assert.is(stage.answer<Failure>(ordered(11, "rising")).code, "publish_failed");
  assert.is(payloads(stage).length, 20);
  stage.pass(119_999);
  stage.wake();
  stage.answer(ordered(19, "rising"));
  assert.equal(entriesOf(stage, "producer"), [`producer/${stream}/p`]);
  stage.pass(1);
  stage.wake();
  stage.commit();
  assert.equal(entriesOf(stage, "producer"), []);
  stage.answer(ordered(3, "rising"));
  assert.is(payloads(stage).length, 21, "forgotten");
});

test("a batch that lasts longer than the window to be stored is remembered all the same", () => {
  const stage = opened();
  stage.ask(ordered(0, "rising"));
  stage.pass(130_000);
  stage.wake();
  stage.commit();
  assert.is(stage.answer<Published>(ordered(0, "rising")).runs[0].count, 1);
  stage.answer(ordered(1, "chained"));
  assert.equal(payloads(stage), ["0", "1"]);
});

test("events under ids in a batch are stored once by their ids, whoever brings them", () => {
  const stage = opened();
  const named = (producer: string, seq: number, order: "rising" | "chained", ids: string[]) =>
    publish(packOf(...ids.map((id) => ({ payload: `${producer}${id}`, id }))), { batch: { producer, seq, order } });
  stage.answer(named("p", 0, "rising", ["a", "b"]));
  stage.pass(10);
  const { runs } = stage.answer<Published>(named("q", 0, "rising", ["b", "c"]));
  assert.equal(
    runs.map(({ offset, duplicate }) => [offset, duplicate]),
    [
      [1, { ts: stage.wall - 10 }],
      [2, undefined],
    ],
  );
  // A batch that has nothing new still is the one before the next.
  stage.answer(named("q", 1, "chained", ["a", "b"]));
  stage.answer(named("q", 2, "chained", ["d"]));
  const again = stage.answer<Published>(named("q", 1, "rising", ["a", "b"]));
  assert.equal(
    again.runs.map(({ offset, duplicate }) => [offset, duplicate !== undefined]),
    [
      [0, true],
      [1, true],
    ],
    "and is answered again from its ids",
  );
  assert.is(stage.answer<Failure>(named("q", 4, "chained", ["a"])).code, "publish_failed", "it keeps the order");
  assert.is(stage.answer<Failure>(named("q", 1, "rising", ["new"])).code, "publish_failed");
  stage.answer(named("q", 3, "chained", ["e"]));
  restart(stage);
  assert.is(stage.answer<Published>(named("q", 3, "chained", ["e"])).runs[0].offset, 4);
  stage.answer(named("q", 4, "chained", ["f"]));
  assert.equal(payloads(stage), ['"pa"', '"pb"', '"qc"', '"qd"', '"qe"', '"qf"']);
});

test("a batch under ids without an order goes by its ids alone", () => {
  const stage = opened();
  const batch = (seq: number) => ({ batch: { producer: "p", seq } });
  stage.answer(publish(packOf({ payload: 1, id: "a" }), batch(0)));
  const { runs } = stage.answer<Published>(publish(packOf({ payload: 2, id: "b" }, { payload: 3, id: "a" }), batch(0)));
  assert.equal(
    runs.map(({ offset }) => offset),
    [1, 0],
  );
  assert.equal(payloads(stage), ["1", "2"]);
});

test("the names to remember are bounded, and the answer says how long to wait", () => {
  const stage = opened();
  const ids = (from: number) => packOf(...Array.from({ length: 500 }, (_, i) => ({ payload: i, id: `${from + i}` })));
  stage.answer(publish(ids(0)));
  stage.answer(publish(ids(500)));
  stage.pass(20_000);
  const refused = stage.answer<Failure>(publish(ids(1000)));
  assert.equal([refused.code, refused.retry_after_ms], ["overloaded", 100_000]);
  assert.is(stage.answer<Published>(publish(packOf({ payload: 1 }))).runs[0].offset, 1000, "without an id all goes on");
  assert.is(stage.answer<Failure>(ordered(0, "rising")).code, "overloaded", "nor is there room for another producer");
});

for (const raw of ["7,8", "{", "", "\ufeff1", "1\n", '"\u0001"', "NaN", "1 2", `${"[".repeat(65)}${"]".repeat(65)}`]) {
  test(`a payload that is not one JSON value on one line is refused: ${JSON.stringify(raw)}`, () => {
    const stage = opened();
    const answer = stage.answer<Failure>(publish(packOf({ payload: 1 }, { raw }, { payload: 2 }), { unparsed: true }));
    assert.is(answer.code, "bad_json");
    assert.match(answer.msg, "event 1");
    assert.equal(payloads(stage), []);
  });
}

test("a scan gives lines in log order, bounded by events, and goes on where it stopped", () => {
  const stage = opened();
  for (let i = 0; i < 3; i++) stage.answer(publish(packOf({ payload: i * 2 }, { payload: i * 2 + 1, key: "k" })));
  const seen: unknown[] = [];
  for (let from = 0; ; ) {
    const page = stage.answer<Page>({ type: "scan", from, to: 6, bytesMax: 1 << 20, eventsMax: 4 });
    const lines = new TextDecoder().decode(page.lines).split("\n").slice(0, -1);
    assert.is(lines.length, page.count);
    assert.is(page.ends.at(-1), page.lines.length);
    for (const line of lines) {
      const event = JSON.parse(line);
      seen.push([event.offset, event.payload, event.key, event.topic]);
    }
    from = page.next;
    if (page.done) break;
  }
  assert.equal(
    seen,
    [0, 1, 2, 3, 4, 5].map((n) => [n, n, n % 2 === 1 ? "k" : undefined, "orders"]),
  );
});

test("a scan bounds by ts what it returns, not what it walks", () => {
  const stage = opened();
  stage.answer(publish(packOf({ payload: 0, ts: 10 }, { payload: 1, ts: 30 }, { payload: 2, ts: 20 })));
  const page = stage.answer<Page>({
    type: "scan",
    from: 0,
    to: 3,
    fromTs: 20,
    toTs: 30,
    bytesMax: 1 << 20,
    eventsMax: 10,
  });
  assert.equal([...page.offsets], [1, 2]);
  assert.equal([...page.ts], [30, 20]);
  assert.ok(page.done);
});

test("an id names an event only if the record at its place has it", () => {
  const stage = opened();
  stage.answer(publish(packOf({ payload: 0 }, { payload: 1, id: "own" })));
  const good = makeId(stage.wall, 0, 0, 7);
  assert.equal(stage.answer({ type: "locateId", id: good }), { offset: 0, ts: stage.wall });
  assert.is(stage.answer<Failure>({ type: "locateId", id: makeId(stage.wall, 0, 0, 8) }).code, "unknown_id");
  assert.is(stage.answer<Failure>({ type: "locateId", id: makeId(stage.wall, 1, 0, 7) }).code, "unknown_id");
  assert.equal(stage.answer({ type: "locateId", id: "own" }), { offset: 1, ts: stage.wall });
  assert.is(stage.answer<Failure>({ type: "locateId", id: "other" }).code, "unknown_id");
});

test("latest gives the newest event of each key, in pages", () => {
  const stage = opened();
  stage.answer(
    publish(packOf({ payload: 1, key: "a" }, { payload: 2, key: "b" }, { payload: 3, key: "a" }, { payload: 4 })),
  );
  stage.answer(publish(packOf({ payload: 5, key: "c" })));
  type Latest = { lines: Uint8Array; count: number; next?: string };
  const read = (page: Latest) =>
    new TextDecoder()
      .decode(page.lines)
      .split("\n")
      .slice(0, -1)
      .map((line) => JSON.parse(line).payload);
  const first = stage.answer<Latest>({ type: "latest", after: "", limit: 2 });
  assert.equal(read(first), [3, 2]);
  assert.is(first.next, "b");
  const rest = stage.answer<Latest>({ type: "latest", after: "b", limit: 2 });
  assert.equal(read(rest), [5]);
  assert.is(rest.next, undefined);
  assert.equal(read(stage.answer<Latest>({ type: "latest", keys: ["c", "zz"], after: "", limit: 10 })), [5]);
});

test("a page of latest events that retention has emptied still says where to go on", () => {
  const stage = opened();
  stage.answer(publish(packOf({ payload: 1, key: "a" }, { payload: 2, key: "b" })));
  stage.answer(publish(packOf({ payload: 3, key: "c" })));
  stage.blocks.shift();
  stage.indexOnly = [
    { key: "a", offset: 0 },
    { key: "b", offset: 1 },
  ];
  const page = stage.answer<{ count: number; next?: string }>({ type: "latest", after: "", limit: 2 });
  assert.equal([page.count, page.next], [0, "b"]);
});

test("retention moves the start when the time has come, and a partition without it has no timer", () => {
  assert.is(opened().wakeAt, undefined);
  const stage = opened({ retention: { ageMs: 1000 } });
  stage.answer(publish(packOf({ payload: 0 }, { payload: 1 })));
  assert.is(stage.wakeAt, stage.mono + 10_000);
  stage.pruneTo = 1;
  stage.wake();
  assert.is(stage.start, 1);
  assert.is.not(stage.wakeAt, undefined, "and looks again later");
});

test("retention believes a wall clock that was set forward only as fast as time passes once more", () => {
  const stage = opened({ retention: { ageMs: 1000 } });
  stage.answer(publish(packOf({ payload: 0 })));
  const before = stage.wall;
  stage.wall += 30_000;
  const looks = [10_000, 10_000, 10_000, 10_000].map((ms) => {
    stage.pass(ms);
    stage.wake();
    return (stage.storedBefore ?? 0) + 1000 - before;
  });
  assert.equal(looks, [20_000, 40_000, 60_000, 70_000]);
  stage.wall -= 30_000;
  stage.wake();
  assert.is((stage.storedBefore ?? 0) + 1000 - before, 40_000, "and one that was set back at once");
});

test("dropping removes every entry and the events, and the partition is unknown from then on", () => {
  const stage = opened();
  stage.answer(publish(packOf({ payload: 0, id: "x" })));
  stage.answer(ordered(0, "rising"));
  stage.state.set(`group/${stream}/g`, new TextEncoder().encode("{}"));
  const drop = stage.ask({ type: "drop" });
  assert.equal(stage.told, [{ type: "dropGroup" }]);
  stage.commit();
  assert.equal([...stage.state.keys()], [`group/${stream}/g`], "the group removes its own");
  stage.state.clear();
  stage.commit();
  assert.is(stage.answers.get(drop), null);
  assert.is(stage.start, stage.end);
  assert.is(stage.answer<Failure>(publish(packOf({ payload: 1 }))).code, "unknown_topic");
  assert.is(stage.answer<Failure>({ type: "open", record }).code, "unknown_topic");
  stage.wake();
  assert.equal(stage.stopped, [true]);
});

test("what is on its way when a partition is dropped leaves no name behind", () => {
  const stage = opened();
  stage.answer(ordered(0, "rising"));
  stage.ask(ordered(1, "chained"));
  stage.ask(publish(packOf({ payload: 1, id: "y" })));
  stage.answer({ type: "drop" });
  assert.equal([...stage.state.keys()], []);
});

test("a group that is joined while its partition is dropped goes too, and the drop is answered when it has", () => {
  const stage = opened();
  const group = (name: string) => stage.state.set(`group/${stream}/${name}`, new TextEncoder().encode("{}"));
  const drop = stage.ask({ type: "drop" });
  const again = stage.ask({ type: "drop" });
  assert.equal(stage.told, []);
  stage.commit();
  // Stored by the commit that began before the partition was gone.
  group("late");
  stage.commit();
  assert.equal(stage.told, [{ type: "dropGroup" }]);
  assert.equal([stage.answers.has(drop), stage.answers.has(again)], [false, false]);
  stage.state.clear();
  stage.commit();
  assert.equal([stage.answers.get(drop), stage.answers.get(again)], [null, null]);
  stage.wake();
  assert.equal(stage.stopped, [true]);
});

test("names that the commit under way stores are removed when a partition is dropped meanwhile", () => {
  const stage = opened();
  const drop = stage.ask({ type: "drop" });
  stage.commit();
  stage.state.set(`dedupe/${stream}/4`, new TextEncoder().encode("{}"));
  stage.state.set(`producer/${stream}/p`, new TextEncoder().encode("{}"));
  stage.commit();
  assert.not(stage.answers.has(drop));
  stage.commit();
  assert.equal([stage.answers.get(drop), [...stage.state.keys()]], [null, []]);
});

test.run();
