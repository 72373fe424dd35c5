import { test } from "uvu";
import * as assert from "uvu/assert";
import {
  deadLetterTopic,
  eventIdFault,
  groupFault,
  isOurs,
  publishTopicFault,
  topicFault,
} from "../../src/protocol/names.ts";

test("topics of the allowed characters have no fault", () => {
  for (const name of ["a", "orders", "heartbeat.received", "A-Z_0:9.x", "__proto__", "a".repeat(200), "1.2.3"]) {
    assert.is(topicFault(name), undefined, name);
    assert.is(publishTopicFault(name), undefined, name);
  }
});

test("a topic out of rule has a fault that says what is wrong", () => {
  const bad: [unknown, RegExp][] = [
    ["", /empty/],
    [".", /empty segment/],
    ["a.", /empty segment/],
    [".a", /empty segment/],
    ["a..b", /empty segment/],
    ["$", /empty/],
    ["a b", /may have/],
    ["a/b", /may have/],
    ["a*", /may have/],
    ["ä", /may have/],
    ["a$b", /may have/],
    ["$a$", /may have/],
    ["a\n", /may have/],
    ["a\0", /may have/],
    ["a".repeat(201), /201 characters/],
    [7, /string/],
    [undefined, /string/],
    [null, /string/],
    [["a"], /string/],
  ];
  for (const [name, fault] of bad) {
    assert.match(topicFault(name) ?? "", fault, JSON.stringify(name));
    assert.match(publishTopicFault(name) ?? "", fault, JSON.stringify(name));
  }
});

test("our own topics can be read and not be written", () => {
  for (const name of ["$metrics", "$a.b", "orders.dlq.billing", "dlq", "dlq.a", "a.dlq"]) {
    assert.ok(isOurs(name), name);
    assert.is(topicFault(name), undefined, name);
    assert.match(publishTopicFault(name) ?? "", /by the node alone/, name);
  }
  for (const name of ["dlqs", "xdlq", "a.xdlq.b", "a.dlqx.b", "dlq-a", "DLQ"]) assert.not(isOurs(name), name);
  assert.ok(isOurs("xdlq.dlq"));
});

test("the dead letters of the longest names still have a topic", () => {
  const longest = deadLetterTopic("t".repeat(200), "g".repeat(100));
  assert.is(longest, `${"t".repeat(200)}.dlq.${"g".repeat(100)}`);
  assert.is(topicFault(longest), undefined);
  assert.match(topicFault(`${longest}g`) ?? "", /characters/);
});

test("groups follow the rule of topics, shorter and without the dollar", () => {
  for (const name of ["a", "billing", "a.b", "dlq", "g".repeat(100)]) assert.is(groupFault(name), undefined, name);
  for (const name of ["", "a.", "$a", "a b", "g".repeat(101), 1, undefined]) assert.ok(groupFault(name), String(name));
});

test("an id that a publisher brings has up to 128 of the allowed characters", () => {
  for (const id of ["a", "A-z_0.9:", "...", "x".repeat(128)]) assert.is(eventIdFault(id), undefined, id);
  for (const id of ["", "a b", "a/b", "é", 'a"', "x".repeat(129), 1, null]) assert.ok(eventIdFault(id), String(id));
});

test.run();
