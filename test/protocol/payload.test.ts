import { test } from "uvu";
import * as assert from "uvu/assert";
import { checkMeta } from "../../src/protocol/meta.ts";
import { nestsTooDeep, payloadFault } from "../../src/protocol/payload.ts";
import { utf8Bytes } from "../../src/protocol/utf8.ts";
import { bytesOf, bytesOfHex, dice } from "./bytes.ts";

const nested = (depth: number) => `${"[".repeat(depth)}${"]".repeat(depth)}`;

test("one JSON value in UTF-8 is a payload", () => {
  for (const text of ["1", "null", '""', "[]", '{"a":[1,2,{"b":"é😀"}]}', "1e400", ' {"a" : 1}\t', nested(64)]) {
    assert.is(payloadFault(bytesOf(text)), undefined, text);
  }
});

test("anything else is not", () => {
  const bad: [Uint8Array, RegExp][] = [
    [bytesOf(""), /not one JSON/],
    [bytesOf("7,8"), /not one JSON/],
    [bytesOf("{} {}"), /not one JSON/],
    [bytesOf("{'a':1}"), /not one JSON/],
    [bytesOf("NaN"), /not one JSON/],
    [bytesOf('"\u0001"'), /not one JSON/],
    [bytesOf("\ufeff1"), /not one JSON/],
    [bytesOf('{"a":\n1}'), /line break/],
    [bytesOf("[1,\r2]"), /line break/],
    [bytesOfHex("22 ff 22"), /UTF-8/],
    [bytesOfHex("22 c0 80 22"), /UTF-8/],
    [bytesOfHex("22 ed a0 80 22"), /UTF-8/],
    [bytesOf(nested(65)), /deeper than 64/],
    [bytesOf(nested(200_000)), /deeper than 64/],
  ];
  for (const [bytes, fault] of bad) assert.match(payloadFault(bytes) ?? "", fault);
});

test("a fault does not repeat what the client sent", () => {
  assert.not.match(payloadFault(bytesOf('{"card":4111 1111')) ?? "", "4111");
});

test("nesting counts brackets that are open at a time, not those in strings", () => {
  assert.not(nestsTooDeep(nested(3), 3));
  assert.ok(nestsTooDeep(nested(4), 3));
  assert.not(nestsTooDeep(`[${'{"a":[]},'.repeat(50)}0]`, 3));
  assert.ok(nestsTooDeep(`[${'{"a":[]},'.repeat(50)}0]`, 2));
  assert.not(nestsTooDeep(JSON.stringify(["[[[[[[[[", "{{{{{{{{"]), 1));
  assert.not(nestsTooDeep(JSON.stringify(['\\"[[[[["[[[[', "\\"]), 1));
  assert.ok(nestsTooDeep(JSON.stringify(['\\"[[[[["[[[[', [1]]), 1));
});

test("the bytes of a text are counted as an encoder writes them", () => {
  const random = dice(4);
  const parts = ["a", "\u007f", "\u0080", "é", "\u07ff", "\u0800", "日", "\uffff", "😀", "\u{10ffff}"];
  for (let round = 0; round < 500; round++) {
    let text = "";
    for (let i = random(8); i >= 0; i--) text += parts[random(parts.length)];
    assert.is(utf8Bytes(text), bytesOf(text).length, JSON.stringify(text));
  }
  for (const text of ["\ud800", "a\udc00", "\udc00\ud800", "\ud83d", "x\ud83dy", "\udfff", "\ud83d\ue000"])
    assert.is(utf8Bytes(text), -1);
});

test("meta is given back in our spelling", () => {
  assert.is(checkMeta('{"sid":"s"}'), '{"sid":"s"}');
  assert.is(
    checkMeta(' { "caused_by" : ["a"], "tags":["\\u0041"], "headers":{"b":"2","a":"1"}, "sid":"s" } '),
    '{"sid":"s","headers":{"b":"2","a":"1"},"tags":["A"],"caused_by":["a"]}',
  );
  assert.is(checkMeta('{"sid":"s","sid":"t","tags":[],"headers":{}}'), '{"sid":"t"}');
  assert.is(checkMeta('{"sid":"\\ud800"}'), '{"sid":"\\ud800"}');
  for (const text of [
    '{"sid":"s","headers":{"10":"a","9":"b","x":"c"}}',
    '{"headers":{"constructor":"x","é":"\\u2028\\n"}}',
  ]) {
    const spelled = checkMeta(text);
    assert.type(spelled, "string");
    assert.is(checkMeta(spelled as string), spelled, "spelling what is spelled changes nothing");
  }
});

test("meta that cannot be is refused", () => {
  const many = (count: number, one: string) => `[${Array.from({ length: count }, () => one).join(",")}]`;
  const headers = (count: number, value: string) =>
    JSON.stringify({ headers: Object.fromEntries(Array.from({ length: count }, (_, i) => [`h${i}`, value])) });
  const bad: [string, RegExp][] = [
    ["", /not JSON/],
    ["[]", /object/],
    ["null", /object/],
    ["{}", /empty/],
    ['{"tags":[]}', /empty/],
    ['{"key":"k"}', /unknown member "key"/],
    ['{"__proto__":{}}', /unknown member "__proto__"/],
    ['{"sid":""}', /sid/],
    ['{"sid":1}', /sid/],
    [`{"sid":"${"s".repeat(129)}"}`, /sid/],
    ['{"headers":[]}', /headers/],
    ['{"headers":{"a":1}}', /headers/],
    ['{"headers":{"":"a"}}', /headers/],
    ['{"headers":{"__proto__":"a"}}', /__proto__/],
    [`{"headers":{"${"n".repeat(129)}":"a"}}`, /headers/],
    [headers(1, "v".repeat(4097)), /headers/],
    [headers(65, "v"), /65 members/],
    [headers(64, "v".repeat(2000)), /65536 bytes/],
    [headers(60, "é".repeat(1000)), /65536 bytes/],
    ['{"tags":"a"}', /tags/],
    ['{"tags":[""]}', /tags/],
    [`{"tags":["${"t".repeat(129)}"]}`, /tags/],
    [`{"tags":${many(65, '"t"')}}`, /tags/],
    ['{"caused_by":["a b"]}', /caused_by/],
    [`{"caused_by":${many(65, '"t"')}}`, /caused_by/],
    ["[".repeat(60_000), /not JSON/],
  ];
  for (const [text, fault] of bad) {
    const outcome = checkMeta(text);
    if (typeof outcome === "string") throw new Error(`accepted ${text.slice(0, 50)}`);
    assert.is(outcome.code, "bad_option");
    assert.match(outcome.msg, fault, text.slice(0, 50));
  }
  assert.type(checkMeta(`{"tags":${many(64, '"t"')},"caused_by":${many(64, '"c"')}}`), "string");
  assert.type(checkMeta(headers(64, "v".repeat(900))), "string");
});

test.run();
