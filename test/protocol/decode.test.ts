import { test } from "uvu";
import * as assert from "uvu/assert";
import { type BadFrame, decodeBody, decodeFrame } from "../../src/protocol/decode.ts";
import { errText, okText } from "../../src/protocol/encode.ts";
import { type Code, codes, failure, isFailure } from "../../src/protocol/failure.ts";
import { type ClientFrame, clientOps, type PublishFrame } from "../../src/protocol/frames.ts";
import { bytesOf, dice, textOf } from "./bytes.ts";

const limits = { maxPayload: 1000 };

function isBad(outcome: ClientFrame | BadFrame): outcome is BadFrame {
  return "failure" in outcome;
}

function good(frame: object | string): ClientFrame {
  const outcome = decodeFrame(typeof frame === "string" ? frame : JSON.stringify(frame), limits);
  if (isBad(outcome)) throw new Error(`${outcome.failure.code}: ${outcome.failure.msg}`);
  return outcome;
}

function bad(frame: object | string): BadFrame {
  const text = typeof frame === "string" ? frame : JSON.stringify(frame);
  const outcome = decodeFrame(text, limits);
  if (!isBad(outcome)) throw new Error(`accepted ${text.slice(0, 200)}`);
  assert.ok(outcome.failure.code in codes);
  assert.ok(outcome.failure.msg.length > 0 && outcome.failure.msg.length < 400, outcome.failure.msg);
  return outcome;
}

function publish(payload: unknown, opts?: object): PublishFrame["entry"] {
  const frame = good({ op: "PUBLISH", topic: "t", payload, opts });
  if (frame.op !== "PUBLISH") throw new Error(frame.op);
  return frame.entry;
}

/** The frame's own text, for what JSON.stringify would not write. */
function publishText(payload: string): string {
  return `{"op":"PUBLISH","topic":"t","payload":${payload}}`;
}

const group = { topic: "t", group: "g" };
const settle = { ...group, id: "x" };
const nested = (depth: number) => `${'{"a":'.repeat(depth - 1)}{}${"}".repeat(depth - 1)}`;

// ------------------------------------------------------------------------------------------------------------ good frames

test("each op is read with all of its fields", () => {
  const corr = "c";
  const lease = "1-2";
  const cases: [object, object][] = [
    [{ op: "AUTH" }, { op: "AUTH", corr: undefined, token: undefined, batch: false }],
    [
      { op: "AUTH", corr, token: "s", batch: 1 },
      { op: "AUTH", corr, token: "s", batch: true },
    ],
    [
      { op: "PUBLISH", corr, topic: "t", payload: null },
      { op: "PUBLISH", corr, topic: "t", entry: { payload: bytesOf("null") } },
    ],
    [
      { op: "OPEN", corr: 7, topic: "t" },
      { op: "OPEN", corr: 7, topic: "t" },
    ],
    [
      { op: "PING", corr: 7 },
      { op: "PING", corr: 7 },
    ],
    [
      { op: "SUBSCRIBE", corr, ...group },
      { op: "SUBSCRIBE", corr, ...group, options: { from: { kind: "latest" }, group: {} } },
    ],
    [
      { op: "UNSUBSCRIBE", corr, ...group },
      { op: "UNSUBSCRIBE", corr, ...group },
    ],
    [
      { op: "PAUSE", corr, ...group },
      { op: "PAUSE", corr, ...group },
    ],
    [
      { op: "RESUME", corr, ...group },
      { op: "RESUME", corr, ...group },
    ],
    [
      { op: "ACK", corr, ...settle },
      { op: "ACK", corr, ...settle, lease: undefined },
    ],
    [
      { op: "ACK", corr, ...settle, lease },
      { op: "ACK", corr, ...settle, lease },
    ],
    [
      { op: "NACK", corr, ...settle },
      { op: "NACK", corr, ...settle, lease: undefined, reason: undefined, delayMs: undefined },
    ],
    [
      { op: "NACK", corr, ...settle, lease, reason: "why", delay_ms: 0 },
      { op: "NACK", corr, ...settle, lease, reason: "why", delayMs: 0 },
    ],
    [
      { op: "MODACK", corr, ...settle, extend_ms: 1 },
      { op: "MODACK", corr, ...settle, lease: undefined, extendMs: 1 },
    ],
    [
      { op: "CURSOR", corr, ...group },
      { op: "CURSOR", corr, ...group, set: undefined },
    ],
    [
      { op: "LATEST", corr, topic: "t" },
      { op: "LATEST", corr, topic: "t", keys: undefined, after: undefined },
    ],
    [
      { op: "LATEST", corr, topic: "t", keys: ["a", "b"], after: "0:k" },
      { op: "LATEST", corr, topic: "t", keys: ["a", "b"], after: "0:k" },
    ],
  ];
  for (const [frame, wanted] of cases) assert.equal(good(frame), wanted, JSON.stringify(frame));
  assert.equal(new Set(cases.map(([frame]) => (frame as { op: string }).op)), new Set(clientOps));
});

test("fields that a frame does not have are ignored", () => {
  assert.equal(good({ op: "PAUSE", ...group, id: 7, opts: 1, payload: {}, new_field: [] }), {
    op: "PAUSE",
    corr: undefined,
    ...group,
  });
});

test("a corr is a text of up to 128 characters or a number, and is given back", () => {
  for (const corr of ["", "a", "c".repeat(128), 0, -1, 1.5, 2 ** 60]) {
    assert.is(good({ op: "PAUSE", ...group, corr }).corr, corr);
    assert.is(bad({ op: "NOPE", corr }).corr, corr);
  }
  for (const corr of ["c".repeat(129), null, true, [], {}]) {
    const outcome = bad({ op: "PAUSE", ...group, corr });
    assert.equal([outcome.failure.code, outcome.corr], ["bad_frame", undefined]);
  }
  assert.is(bad('{"op":"PAUSE","topic":"t","group":"g","corr":1e999}').failure.code, "bad_frame");
});

// ---------------------------------------------------------------------------------------------------------------- payloads

test("a payload is any JSON value, kept as JSON in UTF-8", () => {
  for (const payload of [null, false, 0, -1.5e-7, "", "é😀\u0000\u2028", [], [[]], { a: { b: [1, "x", null] } }]) {
    assert.is(textOf(publish(payload).payload), JSON.stringify(payload));
  }
  const read = (text: string) => textOf((good(publishText(text)) as PublishFrame).entry.payload);
  assert.is(read(' {\n "a" : 1 } '), '{"a":1}');
  assert.is(read('{"a":1,"a":2}'), '{"a":2}', "the last of two names");
  assert.is(read('{"__proto__":{"x":1},"toJSON":2}'), '{"__proto__":{"x":1},"toJSON":2}');
  assert.is(read('"\\ud800"'), '"\\ud800"', "half a pair stays escaped");
  assert.is(({} as { x?: number }).x, undefined);
});

test("a number that a double cannot hold is refused, not stored as null", () => {
  for (const text of ["1e999", "-1e999", "[null,1e400]", '{"a":[{"b":1e400}]}', "9".repeat(400)]) {
    assert.is(bad(publishText(text)).failure.code, "bad_frame", text.slice(0, 20));
  }
  assert.is(textOf((good(publishText('[null,"null",1e308]')) as PublishFrame).entry.payload), '[null,"null",1e+308]');
});

test("a payload of MAX_PAYLOAD bytes in UTF-8 is taken and one more is too large", () => {
  assert.is(publish("x".repeat(998)).payload.length, 1000);
  assert.is(publish("é".repeat(499)).payload.length, 1000);
  for (const payload of ["x".repeat(999), "é".repeat(500), ["é".repeat(498), 1], { a: "x".repeat(2000) }]) {
    const outcome = bad({ op: "PUBLISH", corr: 5, topic: "t", payload });
    assert.equal([outcome.failure.code, outcome.corr], ["too_large", 5]);
  }
});

test("nesting up to 64 is taken, in a payload and in a field that nobody reads", () => {
  assert.is(textOf((good(publishText(nested(64))) as PublishFrame).entry.payload), nested(64));
  good(`{"op":"PAUSE","topic":"t","group":"g","x":${nested(64)}}`);
  for (const depth of [65, 70, 5000, 300_000]) {
    assert.is(bad(publishText(nested(depth))).failure.code, "bad_frame", `${depth}`);
    assert.is(bad(`{"op":"PAUSE","topic":"t","group":"g","x":${nested(depth)}}`).failure.code, "bad_frame");
  }
  assert.is(bad("[".repeat(1_000_000)).failure.code, "bad_json");
});

test("the options of a PUBLISH become the extension, meta in our spelling", () => {
  assert.equal(publish(1), { payload: bytesOf("1") });
  assert.equal(publish(1, {}), { payload: bytesOf("1") });
  assert.equal(publish(1, { key: "k" }), { payload: bytesOf("1"), key: "k" });
  assert.equal(publish(1, { tags: [], headers: {}, caused_by: [] }), { payload: bytesOf("1") });
  const all = { caused_by: ["c"], tags: ["t", "u"], headers: { "x-a": "1" }, sid: "s", ts: 0, id: "own", key: "é" };
  assert.equal(publish(1, all), {
    payload: bytesOf("1"),
    key: "é",
    id: "own",
    ts: 0,
    meta: '{"sid":"s","headers":{"x-a":"1"},"tags":["t","u"],"caused_by":["c"]}',
  });
  const frame = good('{"op":"PUBLISH","topic":"t","payload":1,"opts":{"ts":-0}}') as PublishFrame;
  assert.ok(Object.is(frame.entry.ts, 0));
});

test("the body of a request is read by the same rules", () => {
  assert.equal(decodeBody('{"a":1}', { key: "k" }, limits), { payload: bytesOf('{"a":1}'), key: "k" });
  const cases: [string, object | undefined, Code][] = [
    ["{", undefined, "bad_json"],
    ["", undefined, "bad_json"],
    [nested(65), undefined, "bad_frame"],
    [nested(300_000), undefined, "bad_frame"],
    ["1e999", undefined, "bad_frame"],
    [JSON.stringify("x".repeat(999)), undefined, "too_large"],
    ["1", { key: "" }, "bad_option"],
  ];
  for (const [text, opts, code] of cases) {
    const outcome = decodeBody(text, opts as { key: string } | undefined, limits);
    assert.is(isFailure(outcome) && outcome.code, code, text.slice(0, 20));
  }
  assert.not(isFailure(decodeBody(nested(64), undefined, limits)));
});

// ------------------------------------------------------------------------------------------------------- subscribe options

function options(opts: object) {
  const frame = good({ op: "SUBSCRIBE", ...group, opts });
  if (frame.op !== "SUBSCRIBE") throw new Error(frame.op);
  return frame.options;
}

test("each option of a subscription is read", () => {
  const latest = { kind: "latest" };
  assert.equal(options({ manualAck: true }), { from: latest, group: {} });
  assert.equal(options({ ackTimeoutMs: 100, maxInflight: 1, batchSize: 10_000 }), {
    from: latest,
    ackTimeoutMs: 100,
    maxInflight: 1,
    batchSize: 10_000,
    group: {},
  });
  assert.equal(options({ maxInFlight: 9 }), { from: latest, maxInflight: 9, group: {} });
  assert.equal(options({ maxAttempts: 1, backoffMs: 0, ordering: "key", ephemeral: true, filter: { key: "k" } }), {
    from: latest,
    group: { maxAttempts: 1, backoffMs: 0, ordering: "key", ephemeral: true, filter: { key: "k" } },
  });
  assert.equal(options({ backoffMs: [0, 1000, 604_800_000] }).group, { backoffMs: [0, 1000, 604_800_000] });
});

test("from names the place, with what it needs", () => {
  assert.equal(options({ from: "latest" }).from, { kind: "latest" });
  assert.equal(options({ from: "earliest" }).from, { kind: "earliest" });
  assert.equal(options({ from: "ts", ts: 5 }).from, { kind: "ts", ts: 5 });
  assert.equal(options({ from: "afterId", afterId: "x" }).from, { kind: "afterId", id: "x" });
  const place = options({ from: "offsets", offsets: "0:1,2:3" }).from;
  if (place.kind !== "offsets") throw new Error(place.kind);
  assert.equal(
    [...place.offsets],
    [
      [0, 1],
      [2, 3],
    ],
  );
});

test("equal filters are spelled alike", () => {
  const one = options({
    filter: { sid: "s", tags: ["b", "a", "b"], headers: { y: "2", x: "1" }, keyPrefix: "p", key: "pk" },
  });
  const other = options({
    filter: { key: "pk", headers: { x: "1", y: "2" }, tags: ["a", "b"], keyPrefix: "p", sid: "s" },
  });
  assert.is(JSON.stringify(one.group.filter), JSON.stringify(other.group.filter));
  assert.is(
    JSON.stringify(one.group.filter),
    '{"key":"pk","keyPrefix":"p","tags":["a","b"],"headers":{"x":"1","y":"2"},"sid":"s"}',
  );
  for (const filter of [null, {}, { tags: [] }, { headers: {} }]) assert.is(options({ filter }).group.filter, null);
});

test("a wrong option is refused with its name and what is allowed", () => {
  const cases: [object, RegExp][] = [
    [{ nope: 1 }, /unknown option "nope".*maxAttempts/],
    [{ topics: ["a"] }, /unknown option "topics"/],
    [{ maxInflite: 3 }, /"maxInflite"/],
    [{ manualAck: 1 }, /manualAck/],
    [{ from: "yesterday" }, /from must be latest, earliest, ts, afterId or offsets/],
    [{ from: null }, /from/],
    [{ from: "ts" }, /ts must be/],
    [{ from: "ts", ts: -1 }, /ts must be/],
    [{ from: "ts", ts: 1.5 }, /ts must be/],
    [{ from: "ts", ts: 1e17 }, /ts must be/],
    [{ from: "ts", ts: "5" }, /ts must be/],
    [{ from: "afterId" }, /afterId/],
    [{ from: "afterId", afterId: "a b" }, /afterId/],
    [{ from: "offsets" }, /offsets must be a position/],
    [{ from: "offsets", offsets: "0" }, /offsets must be a position/],
    [{ from: "offsets", offsets: { 0: 1 } }, /offsets must be a position/],
    [{ ts: 5 }, /ts goes with from: "ts", and from is "latest"/],
    [{ from: "earliest", afterId: "x" }, /afterId goes with/],
    [{ from: "ts", ts: 1, offsets: "0:1" }, /offsets goes with/],
    [{ ackTimeoutMs: 99 }, /ackTimeoutMs must be a whole number, 100 to 86400000/],
    [{ ackTimeoutMs: 86_400_001 }, /ackTimeoutMs/],
    [{ ackTimeoutMs: "soon" }, /ackTimeoutMs/],
    [{ ackTimeoutMs: null }, /ackTimeoutMs/],
    [{ maxInflight: 0 }, /maxInflight must be a whole number, 1 to 10000/],
    [{ maxInflight: 10_001 }, /maxInflight/],
    [{ maxInFlight: -1 }, /maxInFlight/],
    [{ maxInflight: 1, maxInFlight: 2 }, /differ/],
    [{ batchSize: 0 }, /batchSize/],
    [{ batchSize: 1.5 }, /batchSize/],
    [{ maxAttempts: 0 }, /maxAttempts must be a whole number, 1 to 1000/],
    [{ maxAttempts: 1001 }, /maxAttempts/],
    [{ backoffMs: -1 }, /backoffMs/],
    [{ backoffMs: 604_800_001 }, /604800000/],
    [{ backoffMs: [] }, /backoffMs/],
    [{ backoffMs: [1, -1] }, /backoffMs/],
    [{ backoffMs: Array(33).fill(1) }, /1 to 32/],
    [{ ordering: "strict" }, /ordering must be "none" or "key"/],
    [{ ephemeral: 1 }, /ephemeral/],
    [{ filter: "x" }, /filter/],
    [{ filter: [] }, /filter/],
    [{ filter: { topic: "x" } }, /unknown member "topic"/],
    [{ filter: { key: "" } }, /filter: key/],
    [{ filter: { keyPrefix: 1 } }, /filter: key/],
    [{ filter: { tags: [1] } }, /filter: each of tags/],
    [{ filter: { headers: { a: 1 } } }, /filter: a value in headers/],
    [{ filter: { sid: "" } }, /filter: sid/],
  ];
  for (const [opts, msg] of cases) {
    const outcome = bad({ op: "SUBSCRIBE", corr: "c", ...group, opts });
    assert.equal([outcome.failure.code, outcome.corr], ["bad_option", "c"], JSON.stringify(opts));
    assert.match(outcome.failure.msg, msg);
  }
  for (const text of ['{"__proto__":{}}', '{"maxInflight":1e999}', '{"constructor":1}', '{"filter":{"__proto__":1}}']) {
    assert.is(bad(`{"op":"SUBSCRIBE","topic":"t","group":"g","opts":${text}}`).failure.code, "bad_option", text);
  }
});

test("a wrong option of PUBLISH is refused with its name", () => {
  const cases: [object, RegExp][] = [
    [{ ttl: 1 }, /unknown option "ttl", known are id ts key headers tags caused_by sid/],
    [{ partition: 1 }, /"partition"/],
    [{ id: "a b" }, /id/],
    [{ id: 1 }, /id/],
    [{ id: "" }, /id/],
    [{ ts: -1 }, /ts/],
    [{ ts: null }, /ts/],
    [{ ts: 1.5 }, /ts/],
    [{ ts: 8_640_000_000_000_001 }, /ts/],
    [{ key: "" }, /key must have 1 to 1024 bytes/],
    [{ key: 7 }, /key/],
    [{ key: null }, /key/],
    [{ key: "k".repeat(1025) }, /key/],
    [{ key: "é".repeat(513) }, /key/],
    [{ key: "\ud800" }, /half a surrogate pair/],
    [{ sid: 1 }, /sid/],
    [{ headers: { a: 1 } }, /headers/],
    [{ headers: null }, /headers/],
    [{ headers: Object.fromEntries(Array.from({ length: 65 }, (_, i) => [i, ""])) }, /65 members/],
    [{ headers: Object.fromEntries(Array.from({ length: 64 }, (_, i) => [i, "v".repeat(1500)])) }, /65536 bytes/],
    [{ tags: "a" }, /tags/],
    [{ tags: Array(65).fill("a") }, /tags/],
    [{ caused_by: ["a b"] }, /caused_by/],
    [{ caused_by: Array(65).fill("a") }, /caused_by/],
  ];
  for (const [opts, msg] of cases) {
    const outcome = bad({ op: "PUBLISH", topic: "t", payload: 1, opts });
    assert.is(outcome.failure.code, "bad_option", JSON.stringify(opts));
    assert.match(outcome.failure.msg, msg);
  }
  assert.is(publish(1, { key: "é".repeat(512) }).key, "é".repeat(512));
  assert.is(publish(1, { ts: 8_640_000_000_000_000 }).ts, 8_640_000_000_000_000);
  assert.is(bad('{"op":"PUBLISH","topic":"t","payload":1,"opts":{"__proto__":null}}').failure.code, "bad_option");
});

// ---------------------------------------------------------------------------------------------------------- cursor, latest

test("CURSOR moves to a position, an id, a time, or an end", () => {
  const set = (value: unknown) => {
    const frame = good({ op: "CURSOR", ...group, set: value });
    return frame.op === "CURSOR" ? frame.set : undefined;
  };
  assert.equal(set("earliest"), { kind: "earliest" });
  assert.equal(set("latest"), { kind: "latest" });
  assert.equal(set({ lastId: "x" }), { kind: "afterId", id: "x" });
  assert.equal(set({ lastTs: 5 }), { kind: "ts", ts: 5 });
  assert.equal(set({ topic: "t", lastId: "x", lastTs: 5 }), { kind: "afterId", id: "x" });
  assert.equal(set({ offsets: "3:4" }), { kind: "offsets", offsets: new Map([[3, 4]]) });
  for (const value of [
    null,
    "",
    "first",
    7,
    [],
    {},
    { offset: 1 },
    { offsets: 1 },
    { offsets: "" },
    { offsets: "0:1", lastId: "x" },
    { lastId: "" },
    { lastId: 1 },
    { lastTs: -1 },
    { lastTs: "1" },
    { lastId: "x", lastTs: "1" },
  ]) {
    assert.is(bad({ op: "CURSOR", ...group, set: value }).failure.code, "bad_frame", JSON.stringify(value));
  }
});

test("LATEST takes up to 1000 keys", () => {
  const latest = (over: object) => ({ op: "LATEST", topic: "t", ...over });
  good(latest({ keys: [] }));
  good(latest({ keys: Array(1000).fill("k") }));
  for (const over of [{ keys: "k" }, { keys: Array(1001).fill("k") }, { keys: [1] }, { keys: [""] }, { after: 1 }]) {
    assert.is(bad(latest(over)).failure.code, "bad_frame", JSON.stringify(over).slice(0, 50));
  }
});

// -------------------------------------------------------------------------------------------------------------- bad frames

test("every bad frame gets its code and the corr it came with", () => {
  const cases: [Code, string][] = [
    ["bad_json", ""],
    ["bad_json", "hello"],
    ["bad_json", '{"op":"PUBLISH"'],
    ["bad_json", "{op:1}"],
    ["bad_json", "undefined"],
    ["bad_json", "\ufeff{}"],
    ["bad_json", '{"op":"AUTH"}{"op":"AUTH"}'],
    ["bad_frame", "[]"],
    ["bad_frame", "null"],
    ["bad_frame", "7"],
    ["bad_frame", '"PUBLISH"'],
    ["bad_frame", "{}"],
    ["bad_frame", '{"op":null}'],
    ["bad_frame", '{"op":7}'],
    ["bad_frame", '{"op":"NOPE"}'],
    ["bad_frame", '{"op":"publish"}'],
    ["bad_frame", '{"op":"OK"}'],
    ["bad_frame", '{"op":"EVENT"}'],
    ["bad_frame", '{"op":"__proto__"}'],
    ["bad_frame", '{"op":"constructor"}'],
    ["bad_frame", '{"op":{"op":"AUTH"}}'],
    ["bad_frame", '{"__proto__":{"op":"AUTH"}}'],
    ["bad_frame", '{"op":"AUTH","token":7}'],
    ["bad_frame", `{"op":"AUTH","token":"${"t".repeat(8193)}"}`],
    ["bad_frame", '{"op":"AUTH","batch":2}'],
    ["bad_frame", '{"op":"AUTH","batch":true}'],
    ["bad_frame", '{"op":"PUBLISH","topic":"t"}'],
    ["bad_frame", '{"op":"PUBLISH","payload":1}'],
    ["bad_frame", '{"op":"PUBLISH","topic":7,"payload":1}'],
    ["bad_frame", '{"op":"PUBLISH","topic":"t","payload":1,"opts":[]}'],
    ["bad_frame", '{"op":"PUBLISH","topic":"t","payload":1,"opts":null}'],
    ["bad_frame", '{"op":"SUBSCRIBE","topic":"t"}'],
    ["bad_frame", '{"op":"SUBSCRIBE","group":"g"}'],
    ["bad_frame", '{"op":"SUBSCRIBE","topic":"t","group":"g","opts":"x"}'],
    ["bad_frame", '{"op":"UNSUBSCRIBE","topic":"t"}'],
    ["bad_frame", '{"op":"OPEN"}'],
    ["bad_frame", '{"op":"ACK","topic":"t","group":"g"}'],
    ["bad_frame", '{"op":"ACK","topic":"t","group":"g","id":7}'],
    ["bad_frame", '{"op":"ACK","topic":"t","group":"g","id":""}'],
    ["bad_frame", '{"op":"ACK","topic":"t","group":"g","id":"x","lease":7}'],
    ["bad_frame", `{"op":"ACK","topic":"t","group":"g","id":"x","lease":"${"1".repeat(129)}"}`],
    ["bad_frame", '{"op":"NACK","topic":"t","group":"g","id":"x","reason":7}'],
    ["bad_frame", '{"op":"NACK","topic":"t","group":"g","id":"x","delay_ms":-5}'],
    ["bad_frame", '{"op":"NACK","topic":"t","group":"g","id":"x","delay_ms":null}'],
    ["bad_frame", '{"op":"NACK","topic":"t","group":"g","id":"x","delay_ms":1e999}'],
    ["bad_frame", '{"op":"NACK","topic":"t","group":"g","id":"x","delay_ms":604800001}'],
    ["bad_frame", '{"op":"MODACK","topic":"t","group":"g","id":"x"}'],
    ["bad_frame", '{"op":"MODACK","topic":"t","group":"g","id":"x","extend_ms":0}'],
    ["bad_frame", '{"op":"MODACK","topic":"t","group":"g","id":"x","extend_ms":"1"}'],
    ["bad_frame", '{"op":"MODACK","topic":"t","group":"g","id":"x","extend_ms":86400001}'],
    ["bad_topic", '{"op":"PUBLISH","topic":"","payload":1}'],
    ["bad_topic", '{"op":"PUBLISH","topic":"a b","payload":1}'],
    ["bad_topic", '{"op":"PUBLISH","topic":"$sys","payload":1}'],
    ["bad_topic", '{"op":"PUBLISH","topic":"t.dlq.g","payload":1}'],
    ["bad_topic", '{"op":"OPEN","topic":"t.dlq.g"}'],
    ["bad_topic", '{"op":"SUBSCRIBE","topic":"a..b","group":"g"}'],
    ["bad_topic", '{"op":"ACK","topic":"a/b","group":"g","id":"x"}'],
    ["bad_topic", '{"op":"LATEST","topic":"a/b"}'],
    ["bad_topic", '{"op":"CURSOR","topic":"","group":"g"}'],
    ["bad_group", '{"op":"SUBSCRIBE","topic":"t","group":""}'],
    ["bad_group", '{"op":"SUBSCRIBE","topic":"t","group":"$g"}'],
    ["bad_group", '{"op":"RESUME","topic":"t","group":"a/b"}'],
    ["bad_group", '{"op":"MODACK","topic":"t","group":"a b","id":"x","extend_ms":1}'],
  ];
  for (const [code, text] of cases) {
    assert.is(bad(text).failure.code, code, text.slice(0, 100));
    if (!text.startsWith('{"') || code === "bad_json") continue;
    const answered = bad(text.replace("{", '{"corr":"c",'));
    assert.equal([answered.failure.code, answered.corr], [code, "c"], text.slice(0, 100));
  }
  good('{"op":"SUBSCRIBE","topic":"t.dlq.g","group":"g"}');
});

test("a long reason is cut, and not inside a character", () => {
  const reasonOf = (reason: string) => {
    const frame = good({ op: "NACK", ...settle, reason });
    return frame.op === "NACK" ? frame.reason : undefined;
  };
  assert.is(reasonOf("r".repeat(1024)), "r".repeat(1024));
  assert.is(reasonOf("r".repeat(5000)), "r".repeat(1024));
  assert.is(reasonOf(`${"r".repeat(1023)}😀`), "r".repeat(1023));
  assert.is(reasonOf(`${"r".repeat(1022)}😀😀`), `${"r".repeat(1022)}😀`);
});

test("what the client sent is not repeated in a message, but for names", () => {
  for (const text of ['{"op":"AUTH","token":"s3cr3t"', '"s3cr3t" x', "s3cr3t"])
    assert.not.match(bad(text).failure.msg, "s3cr3t");
  assert.ok(bad(`{"op":"${"x".repeat(100_000)}"}`).failure.msg.length < 200);
  assert.ok(bad({ op: "SUBSCRIBE", ...group, opts: { ["n".repeat(100_000)]: 1 } }).failure.msg.length < 400);
});

const samples = [
  '{"op":"AUTH","token":"s","batch":1,"corr":"c"}',
  '{"op":"PUBLISH","topic":"a.b","payload":{"a":[1,null,"\\ud800é"]},"opts":{"id":"i","ts":1,"key":"k","headers":{"a":"b"},"tags":["t"],"caused_by":["c"],"sid":"s"},"corr":1}',
  '{"op":"SUBSCRIBE","topic":"t","group":"g","opts":{"from":"offsets","offsets":"0:1","maxInFlight":5,"backoffMs":[1,2],"filter":{"key":"k","tags":["t"]}}}',
  '{"op":"NACK","topic":"t","group":"g","id":"x","lease":"1-2","reason":"r","delay_ms":5}',
  '{"op":"CURSOR","topic":"t","group":"g","set":{"offsets":"0:1"}}',
  '{"op":"LATEST","topic":"t","keys":["a"],"after":"x"}',
];

test("a frame that is cut or has any character changed never throws", () => {
  const chars = ['"', "{", "}", "[", "]", ":", ",", "0", "-", "e", "n", "\\", "\0", "é", "\ud800"];
  for (const sample of samples) {
    good(sample);
    for (let i = 0; i < sample.length; i++) {
      assert.is(bad(sample.slice(0, i)).failure.code, "bad_json");
      for (const char of chars) decodeFrame(sample.slice(0, i) + char + sample.slice(i + 1), limits);
    }
  }
});

test("any value in any field never throws", () => {
  const random = dice(5);
  const fields = "topic group payload opts id lease reason delay_ms extend_ms set keys after token batch corr".split(
    " ",
  );
  const names =
    "from ts afterId offsets ackTimeoutMs maxInflight filter backoffMs key id headers tags __proto__ sid".split(" ");
  const value = (depth: number): unknown => {
    const leaves = [null, true, 0, -1, 1.5, 1e300, "", "a", "t", "0:1", "latest", "\ud800", "x".repeat(300), [], {}];
    if (depth === 0 || random(3) > 0) return leaves[random(leaves.length)];
    if (random(2) === 0) return Array.from({ length: random(4) }, () => value(depth - 1));
    return Object.fromEntries(Array.from({ length: random(4) }, () => [names[random(names.length)], value(depth - 1)]));
  };
  const codesSeen = new Set<string>();
  for (let round = 0; round < 20_000; round++) {
    const frame: Record<string, unknown> = { op: clientOps[random(clientOps.length)], topic: "t", group: "g", id: "x" };
    for (let i = random(4); i >= 0; i--) frame[fields[random(fields.length)]] = value(3);
    const outcome = decodeFrame(JSON.stringify(frame), limits);
    codesSeen.add(isBad(outcome) ? outcome.failure.code : "good");
  }
  assert.equal([...codesSeen].sort(), ["bad_frame", "bad_group", "bad_option", "bad_topic", "good"]);
});

// ----------------------------------------------------------------------------------------------------------------- answers

test("OK and ERR are texts with the corr they answer", () => {
  assert.is(okText(undefined), '{"op":"OK"}');
  assert.is(okText("c"), '{"op":"OK","corr":"c"}');
  assert.is(okText<"ACK">(0, { stale: true }), '{"op":"OK","corr":0,"stale":true}');
  assert.is(errText(failure("bad_json", "why"), undefined), '{"op":"ERR","code":"bad_json","msg":"why"}');
  assert.is(
    errText(failure("rate_limited", "why", 0), "c"),
    '{"op":"ERR","code":"rate_limited","msg":"why","corr":"c","retry_after_ms":0}',
  );
});

test.run();
