import { test } from "uvu";
import * as assert from "uvu/assert";
import { contentText, type LineEvent, memberText, readLine } from "../../src/cli/import-line.ts";

function read(text: string): LineEvent {
  const event = readLine(Buffer.from(text));
  if (typeof event === "string") throw new Error(event);
  return event;
}

const exported =
  '{"id":"order:1","ts":1795004171351,"topic":"orders","partition":0,"offset":5,"key":"k\\"1","sid":"boot-1","headers":{"payload":"x","b":""},"tags":["eu"],"caused_by":["a"],"payload":{"n":1.0,"big":12345678901234567890,"2":1,"1":2,"a":1,"a":2,"s":"}\\\\\\""}}';

test("a line of an export is the event that it was, with the payload's own bytes", () => {
  assert.equal(read(exported), {
    topic: "orders",
    id: "order:1",
    ts: 1_795_004_171_351,
    key: 'k"1',
    sid: "boot-1",
    headers: { payload: "x", b: "" },
    tags: ["eu"],
    caused_by: ["a"],
    meta: '{"sid":"boot-1","headers":{"payload":"x","b":""},"tags":["eu"],"caused_by":["a"]}',
    payload: '{"n":1.0,"big":12345678901234567890,"2":1,"1":2,"a":1,"a":2,"s":"}\\\\\\""}',
  });
});

test("a line written by hand needs a payload and nothing else, wherever it stands", () => {
  const texts = ["1", '"a,\\"}"', "null", "true", "[1,{}]", "{}", '{"payload":{"payload":[2]}}', "-1.5e3"];
  for (const payload of texts) {
    assert.is(read(`{"payload":${payload}}`).payload, payload);
    assert.is(read(` { "payload" : ${payload} , "key":"k" } \r`).payload, payload);
    assert.is(read(`{"headers":{"a":"}","payload":"no"},"payload":${payload},"tags":["payload"]}`).payload, payload);
  }
  // Of two members with one name the last counts, as for JSON.parse.
  assert.is(read('{"payload":1,"id":"a","payload":2}').payload, "2");
  assert.is(read('{"pay\\u006coad":3}').payload, "3");
  // A carriage return cannot be stored.
  assert.is(read('{"payload":{"a":\r1}}').payload, '{"a":1}');
});

test("a member is found by its text in any spelling of an object", () => {
  assert.is(memberText('{"a":1,"b":[1,{"c":"]"}],"d":"e"}', "b"), '[1,{"c":"]"}]');
  assert.is(memberText('{"a":1}', "b"), undefined);
  assert.is(memberText("{}", "b"), undefined);
});

test("what is no event is refused in words that repeat nothing of it but names", () => {
  const refused: [string, RegExp][] = [
    ["nope", /^is not JSON/],
    ['{"payload":1', /^is not JSON/],
    ["[]", /^is not an event: it must be an object/],
    ["7", /^is not an event/],
    ["{}", /^is not an event: it has no payload/],
    ['{"n":1}', /^is not an event: it has no payload/],
    ['{"payload":1,"n":"secret"}', /^has a member "n", which events do not have$/],
    ['{"payload":1,"id":"a b"}', /^id may have/],
    ['{"payload":1,"id":5}', /^id must be a string/],
    ['{"payload":1,"ts":-5}', /^ts must be/],
    ['{"payload":1,"ts":"now"}', /^ts must be/],
    ['{"payload":1,"key":""}', /^key must have/],
    ['{"payload":1,"headers":{"a":1}}', /^a value in headers/],
    ['{"payload":1,"tags":"a"}', /^tags must be/],
    ['{"payload":1,"caused_by":["a b"]}', /^caused_by: /],
    ['{"payload":1,"topic":5}', /^topic must be a string/],
    [`{"payload":${"[".repeat(65)}${"]".repeat(65)}}`, /^payload nests deeper than 64/],
  ];
  for (const [text, said] of refused) {
    const fault = readLine(Buffer.from(text));
    if (typeof fault !== "string") assert.unreachable(text);
    assert.match(fault as string, said);
    assert.not.match(fault as string, "secret");
  }
  assert.is(readLine(Buffer.from([0x7b, 0xff, 0x7d])), "is not UTF-8");
});

test("contents are the same where only topic, partition and offset differ, and no two others are", () => {
  const event = read(exported);
  const moved = read(exported.replace('"orders","partition":0,"offset":5', '"copy","partition":3,"offset":77'));
  assert.is(contentText(event), contentText(moved));
  const others: Partial<LineEvent>[] = [
    { id: "order:2" },
    { ts: 1 },
    { key: "k" },
    { key: undefined },
    { meta: undefined },
    { meta: '{"tags":["us"]}' },
    { payload: '{"n":1}' },
  ];
  const texts = new Set([contentText(event), ...others.map((other) => contentText({ ...event, ...other }))]);
  assert.is(texts.size, others.length + 1);
});

test.run();
