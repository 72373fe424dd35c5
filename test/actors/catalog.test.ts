import { test } from "uvu";
import * as assert from "uvu/assert";
import { CatalogActor } from "../../src/actors/catalog.ts";
import type { Answers, TopicRecord } from "../../src/actors/messages.ts";
import type { Failure } from "../../src/protocol/failure.ts";
import { Stage } from "../support/actor-stage.ts";

function started(stage = new Stage()): Stage {
  stage.run((shelf) => ({ actor: new CatalogActor(shelf), effects: [] }));
  return stage;
}

const resolve = (topic: string, create = true, partitions = 1) =>
  ({ type: "resolve", topic, create, partitions }) as const;

test("a topic is made once, durably, and found again after a restart", () => {
  const stage = started();
  const ref = stage.ask(resolve("orders", true, 3));
  assert.not(stage.answers.has(ref), "not before the commit");
  const twin = stage.ask(resolve("orders"));
  assert.not(stage.answers.has(twin), "nor for those who ask meanwhile");
  stage.commit();
  const made = stage.answers.get(ref) as TopicRecord;
  assert.equal(stage.answers.get(twin), made);
  assert.is(made.shards.length, 3);
  assert.equal(started(stage).answer(resolve("orders", false)), made);
});

test("an unknown topic is not made for a reader", () => {
  const stage = started();
  assert.is(stage.answer<Failure>(resolve("orders", false)).code, "unknown_topic");
  assert.equal([...stage.state.keys()], []);
});

test("partitions stay where they were put when the number of shards grows", () => {
  const stage = started();
  const before = stage.answer<TopicRecord>(resolve("orders", true, 4)).shards;
  (stage.shelf as { shards: number }).shards = 8;
  assert.equal(started(stage).answer<TopicRecord>(resolve("orders")).shards, before);
});

test("a topic of the same name after a delete is another incarnation, also over a restart", () => {
  const stage = started();
  const first = stage.answer<TopicRecord>(resolve("orders"));
  assert.is(stage.answer<TopicRecord>({ type: "deleteTopic", topic: "orders" }).status, "deleting");
  assert.is(started(stage).answer<TopicRecord>(resolve("orders")).status, "deleting", "an interrupted delete is seen");
  stage.answer({ type: "forget", topicId: first.id });
  started(stage);
  assert.is.not(stage.answer<TopicRecord>(resolve("orders")).id, first.id);
});

test("that a topic is gone is said by nobody before that is stored", () => {
  const stage = started();
  const { id } = stage.answer<TopicRecord>(resolve("orders"));
  stage.answer({ type: "deleteTopic", topic: "orders" });
  const early = [
    stage.ask({ type: "forget", topicId: id }),
    stage.ask({ type: "forget", topicId: id }),
    stage.ask({ type: "topics", after: "", limit: 10 }),
    stage.ask({ type: "deleteTopic", topic: "orders" }),
    stage.ask(resolve("orders", false)),
  ];
  assert.equal(
    early.filter((ref) => stage.answers.has(ref)),
    [],
  );
  assert.is(started(stage).answer<TopicRecord>(resolve("orders")).status, "deleting", "the commit may fail");
});

test("settings change, the number of partitions does not", () => {
  const stage = started();
  const made = stage.answer<Answers["configure"]>({
    type: "configure",
    topic: "t",
    partitions: 2,
    settings: { maxAttempts: 3 },
  });
  assert.equal([made.created, made.record.shards.length, made.record.settings], [true, 2, { maxAttempts: 3 }]);
  const changed = stage.answer<Answers["configure"]>({ type: "configure", topic: "t", settings: { maxAttempts: 4 } });
  assert.equal(
    [changed.created, changed.record.id, changed.record.settings],
    [false, made.record.id, { maxAttempts: 4 }],
  );
  assert.is(stage.answer<Failure>({ type: "configure", topic: "t", partitions: 3, settings: {} }).code, "limit");
});

test("a dead-letter topic lies in the shards of its source", () => {
  const stage = started();
  const source = stage.answer<TopicRecord>(resolve("orders", true, 3));
  const dead = stage.answer<TopicRecord>({ type: "deadLetter", topicId: source.id, group: "billing" });
  assert.is(dead.name, "orders.dlq.billing");
  assert.equal(dead.shards, source.shards);
  assert.equal(dead.deadLetterOf, { topic: "orders", group: "billing" });
  assert.equal(stage.answer({ type: "deadLetter", topicId: source.id, group: "billing" }), dead, "made once");
  assert.is(stage.answer<Failure>({ type: "deadLetter", topicId: 99, group: "billing" }).code, "unknown_topic");
});

test("a dead-letter topic left by an earlier topic of that name grows into the shards it lacks", () => {
  const stage = started();
  const first = stage.answer<TopicRecord>(resolve("orders", true, 1));
  const dead = stage.answer<TopicRecord>({ type: "deadLetter", topicId: first.id, group: "g" });
  stage.answer({ type: "deleteTopic", topic: "orders" });
  stage.answer({ type: "forget", topicId: first.id });
  const second = stage.answer<TopicRecord>(resolve("orders", true, 2));
  const grown = stage.answer<TopicRecord>({ type: "deadLetter", topicId: second.id, group: "g" });
  assert.is(grown.id, dead.id);
  assert.equal(grown.shards.slice(0, 1), dead.shards, "what is there stays where it is");
  assert.equal(
    [...grown.shards].sort(),
    [...new Set(second.shards)].sort(),
    "one partition in each shard of the source",
  );
  assert.equal(started(stage).answer({ type: "deadLetter", topicId: second.id, group: "g" }), grown, "durably");
});

test("the number of topics is bounded", () => {
  const stage = started();
  for (let i = 0; i < 10; i++) stage.answer(resolve(`t${i}`));
  assert.is(stage.answer<Failure>(resolve("one-more")).code, "limit");
});

test("topics are listed by name in pages", () => {
  const stage = started();
  for (const name of ["c", "a", "b"]) stage.answer(resolve(name));
  const first = stage.answer<Answers["topics"]>({ type: "topics", after: "", limit: 2 });
  assert.equal([first.records.map(({ name }) => name), first.next], [["a", "b"], "b"]);
  const rest = stage.answer<Answers["topics"]>({ type: "topics", after: "b", limit: 2 });
  assert.equal([rest.records.map(({ name }) => name), rest.next], [["c"], undefined]);
});

test.run();
