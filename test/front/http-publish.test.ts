import { Agent, request } from "node:http";
import { connect } from "node:net";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { eventHeaders } from "../../src/front/http-publish.ts";
import { jumpHash } from "../../src/protocol/jump-hash.ts";
import { asJson, type TestHttp, turnsUntil, withHttp } from "../support/http-server.ts";

function stored(http: TestHttp, topic: string, partition = 0): string[] {
  return http.system.stream(topic, partition).events.map(({ line }) => line);
}

test("a published event is stored and answered with its place", () =>
  withHttp({}, async (http) => {
    const { status, body } = await http.json("POST", "/publish/orders", { headers: asJson, body: '{"n":1}' });
    assert.is(status, 200);
    const [event] = http.system.stream("orders", 0).events;
    assert.equal(body, { id: event.id, ts: event.ts, partition: 0, offset: 0, durability: "memory" });
    assert.equal(JSON.parse(event.line).payload, { n: 1 });
  }));

test("any JSON value is a payload and is stored without the spaces it came with", () =>
  withHttp({ config: { topicRate: "off" } }, async (http) => {
    const bodies = [
      "null",
      "7",
      '"text\\n"',
      "[ 1,\n 2 ]",
      ' {"a" : {"b":\t[] } }\n',
      "false",
      "\ufeff3",
      '{"__proto__":1}',
    ];
    for (const body of bodies) {
      assert.is((await http.call("POST", "/publish/t", { headers: asJson, body })).status, 200, body);
    }
    const payloads = stored(http, "t").map((line) => /"payload":(.*)\}$/s.exec(line)?.[1]);
    assert.equal(payloads, ["null", "7", '"text\\n"', "[1,2]", '{"a":{"b":[]}}', "false", "3", '{"__proto__":1}']);
  }));

test("a body that is not one JSON value is bad_json and stores nothing", () =>
  withHttp({}, async (http) => {
    const bad = ["", " ", "{", "1 2", "7,8", "undefined", "NaN", "'a'", Buffer.from([0x22, 0xff, 0x22])];
    for (const body of bad) {
      const answer = await http.json("POST", "/publish/t", { headers: asJson, body });
      assert.is(answer.status, 400, String(body));
      assert.is(answer.body.code, "bad_json", String(body));
    }
    assert.is(http.system.countAsked("publish"), 0);
  }));

test("a body that nests too deep is bad_frame", () =>
  withHttp({}, async (http) => {
    const nested = (depth: number) => "[".repeat(depth) + "]".repeat(depth);
    assert.is((await http.call("POST", "/publish/t", { headers: asJson, body: nested(64) })).status, 200);
    for (const depth of [65, 400_000]) {
      const { status, body } = await http.json("POST", "/publish/t", { headers: asJson, body: nested(depth) });
      assert.is(status, 400);
      assert.is(body.code, "bad_frame");
    }
  }));

test("the content type must be JSON", () =>
  withHttp({}, async (http) => {
    for (const type of ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", undefined]) {
      const headers = type === undefined ? {} : { "content-type": type };
      const { status, body } = await http.json("POST", "/publish/t", { headers, body: "1" });
      assert.is(status, 415, type);
      assert.is(body.field, "content-type");
    }
    for (const type of ["application/json", "Application/JSON; charset=utf-8"]) {
      const { status } = await http.json("POST", "/publish/t", { headers: { "content-type": type }, body: "1" });
      assert.is(status, 200, type);
    }
    assert.is(stored(http, "t").length, 2);
  }));

test("a name that a client may not publish to is bad_topic", () =>
  withHttp({}, async (http) => {
    for (const topic of ["", "a..b", "a%20b", "%24sys", "orders.dlq.billing", "dlq", "a".repeat(201), "a%2Fb"]) {
      const { status, body } = await http.json("POST", `/publish/${topic}`, { headers: asJson, body: "1" });
      assert.is(status, 400, topic);
      assert.is(body.code, "bad_topic", topic);
      assert.is(body.field, "topic", topic);
    }
    assert.is((await http.call("POST", "/publish/a%3Ab.c", { headers: asJson, body: "1" })).status, 200);
    assert.equal([...http.system.topics.keys()], ["a:b.c"]);
  }));

test("a topic that may not be made is unknown_topic", () =>
  withHttp({ config: { autoCreate: false } }, async (http) => {
    const { status, body } = await http.json("POST", "/publish/t", { headers: asJson, body: "1" });
    assert.is(status, 404);
    assert.is(body.code, "unknown_topic");
  }));

// ----------------------------------------------------------------------------------------------------------------- options

test("the key comes from the query or a header and decides the partition", () =>
  withHttp({ config: { partitions: 8 } }, async (http) => {
    const key = "customer-7 ü";
    const place = jumpHash(key, 8);
    const query = await http.json("POST", `/publish/t?key=${encodeURIComponent(key)}`, { headers: asJson, body: "1" });
    const header = await http.json("POST", "/publish/t", {
      // The bytes of the UTF-8 text, one character each, as curl sends them.
      headers: { ...asJson, "x-narthex-key": Buffer.from(key).toString("latin1") },
      body: Buffer.from("2"),
    });
    assert.is(query.body.partition, place);
    assert.is(header.body.partition, place);
    const events = stored(http, "t", place).map((line) => JSON.parse(line));
    assert.equal(
      events.map((event) => [event.key, event.headers, event.payload]),
      [
        [key, undefined, 1],
        [key, undefined, 2],
      ],
    );
  }));

test("a bad key or id is refused by name", () =>
  withHttp({}, async (http) => {
    const cases: [path: string, headers: Record<string, string>, field: string][] = [
      ["?key=", {}, "key"],
      [`?key=${"k".repeat(1025)}`, {}, "key"],
      ["?key=a&key=b", {}, "key"],
      ["?key=a", { "x-narthex-key": "b" }, "key"],
      ["?ts=5", {}, "ts"],
      ["", { "x-narthex-id": "a b" }, "x-narthex-id"],
      ["", { "x-narthex-id": "a".repeat(129) }, "x-narthex-id"],
      ["", { "x-narthex-key": "\xff" }, "x-narthex-key"],
      ["", { "x-long": "v".repeat(4097) }, "headers"],
      ["", { [`x-${"n".repeat(127)}`]: "v" }, "headers"],
      ["", Object.fromEntries(Array.from({ length: 65 }, (_, i) => [`x-n${i}`, "v"])), "headers"],
    ];
    for (const [query, headers, field] of cases) {
      const { status, body } = await http.json("POST", `/publish/t${query}`, {
        headers: { ...asJson, ...headers },
        // As bytes: Node would send a text and the head together in UTF-8.
        body: Buffer.from("1"),
      });
      assert.is(status, 400, field);
      assert.is(body.code, "bad_option", field);
      assert.is(body.field, field);
    }
    assert.is(http.system.countAsked("publish"), 0);
  }));

test("publishing again under the same id stores one event", () =>
  withHttp({}, async (http) => {
    const call = { headers: { ...asJson, "x-narthex-id": "order-7" }, body: "1" };
    const first = await http.json("POST", "/publish/t", call);
    const second = await http.json("POST", "/publish/t", call);
    assert.is(first.body.id, "order-7");
    assert.is(first.body.duplicate, undefined);
    assert.equal(second.body, { ...first.body, duplicate: true });
    assert.is(stored(http, "t").length, 1);
  }));

const headerTable: [name: string, kept: boolean][] = [
  ["traceparent", true],
  ["x-request-id", true],
  ["x-forwarded-for", true],
  ["x-forwarded-host", true],
  ["x-schema-version", true],
  ["x-keynote", true],
  ["x-key-version", true],
  ["x-author", true],
  ["tracestate", false],
  ["authorization", false],
  ["cookie", false],
  ["host", false],
  ["user-agent", false],
  ["xauth", false],
  ["x", false],
  ["x-narthex-key", false],
  ["x-narthex-id", false],
  ["x-narthex-anything", false],
  ["x-api-key", false],
  ["x-apikey", false],
  ["x-key", false],
  ["x-auth", false],
  ["x-auth-user", false],
  ["x-auth-token", false],
  ["x-token", false],
  ["x-access-token", false],
  ["x-accesstoken", false],
  ["x-amz-security-token", false],
  ["x-forwarded-access-token", false],
  ["x-csrf-token", false],
  ["x-client-secret", false],
  ["x-secret", false],
  ["x-functions-key", false],
  ["x-forwarded-authorization", false],
  ["x-authorization", false],
  ["x-password", false],
  ["x-db-credentials", false],
  ["x-user-jwt", false],
  ["x-original-cookie", false],
];

test("of the request's headers only traceparent and x-* without credentials become headers of the event", async () => {
  const kept = eventHeaders(Object.fromEntries(headerTable.map(([name]) => [name, `value of ${name}`])));
  assert.equal(
    kept,
    Object.fromEntries(headerTable.filter(([, keep]) => keep).map(([name]) => [name, `value of ${name}`])),
  );
  await withHttp({}, async (http) => {
    const headers = {
      ...asJson,
      authorization: "Bearer x",
      "X-Request-Id": "r1",
      "x-api-key": "hidden",
      "x-many": ["a", "b"],
      traceparent: "00-1-2-01",
    };
    assert.is((await http.call("POST", "/publish/t", { headers, body: "1" })).status, 200);
    assert.equal(JSON.parse(stored(http, "t")[0]).headers, {
      "x-request-id": "r1",
      "x-many": "a, b",
      traceparent: "00-1-2-01",
    });
  });
});

// ------------------------------------------------------------------------------------------------------------------- sizes

test("a body over the bound is too_large, whether its length is told or not, and the connection lives on", () =>
  withHttp({ config: { limits: { httpBodyBytesMax: 1000 } } }, async (http) => {
    const fits = JSON.stringify("x".repeat(998));
    assert.is((await http.call("POST", "/publish/t", { headers: asJson, body: fits })).status, 200);
    const over = `${fits} `;
    const told = await http.json("POST", "/publish/t", { headers: asJson, body: over });
    assert.is(told.status, 413);
    assert.is(told.body.code, "too_large");
    const untold = await http.json("POST", "/publish/t", {
      headers: { ...asJson, "transfer-encoding": "chunked" },
      body: over.repeat(2000),
    });
    assert.is(untold.status, 413);
    assert.is(untold.body.code, "too_large");
    assert.is(stored(http, "t").length, 1);
  }));

test("a payload over MAX_PAYLOAD is too_large", () =>
  withHttp({ config: { maxPayload: 16 } }, async (http) => {
    assert.is((await http.call("POST", "/publish/t", { headers: asJson, body: `"${"x".repeat(14)}"` })).status, 200);
    const { status, body } = await http.json("POST", "/publish/t", { headers: asJson, body: `"${"x".repeat(15)}"` });
    assert.is(status, 413);
    assert.is(body.code, "too_large");
    assert.is((await http.call("POST", "/publish/t", { headers: asJson, body: `"${"ü".repeat(8)}"` })).status, 413);
  }));

test("a refused body that does not end is cut off", () =>
  withHttp({ config: { limits: { httpBodyBytesMax: 1000 } } }, async (http) => {
    let sent = 0;
    const reset = await new Promise<string>((resolve) => {
      const asked = request({ port: http.port, method: "POST", path: "/publish/t", headers: asJson }, (res) => {
        res.resume();
      });
      asked.on("error", (error: NodeJS.ErrnoException) => resolve(error.code ?? ""));
      asked.on("close", () => resolve("closed"));
      const chunk = Buffer.alloc(256 * 1024, 0x20);
      const more = () => {
        if (asked.destroyed || sent > 64 * 1024 * 1024) return asked.end();
        sent += chunk.length;
        asked.write(chunk, more);
      };
      more();
    });
    assert.ok(sent < 32 * 1024 * 1024, `${sent} bytes were taken, then ${reset}`);
    assert.is(http.system.countAsked("publish"), 0);
  }));

test("an aborted body stores nothing and ends nothing", () =>
  withHttp({}, async (http) => {
    const head = "POST /publish/t HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    for (const start of [
      `${head}content-length: 100\r\n\r\n{"n":1}`,
      // A whole JSON value, yet not the whole body.
      `${head}transfer-encoding: chunked\r\n\r\n1\r\n7\r\n`,
      `${head}content-length: 5\r\n\r\n`,
      head,
    ]) {
      const closed = new Promise((resolve) => http.server.once("connection", (socket) => socket.on("close", resolve)));
      const socket = connect(http.port, "127.0.0.1", () => socket.write(start, () => socket.destroy()));
      await closed;
    }
    assert.is((await http.call("POST", "/publish/t", { headers: asJson, body: "8" })).status, 200);
    assert.equal(
      stored(http, "t").map((line) => JSON.parse(line).payload),
      [8],
    );
    assert.equal(
      http.logged.filter(({ level }) => level === "error"),
      [],
    );
  }));

test("a client that leaves before its answer ends nothing", () =>
  withHttp({}, async (http) => {
    let release: () => void = () => {};
    const gate = new Promise<void>((resolve) => {
      release = resolve;
    });
    http.system.hold = (message) => (message.type === "publish" ? gate : undefined);
    const closed = new Promise((resolve) => http.server.once("connection", (socket) => socket.on("close", resolve)));
    const asked = request({ port: http.port, method: "POST", path: "/publish/t", headers: asJson });
    asked.on("error", () => undefined);
    asked.end("1");
    await turnsUntil("the publish is under way", () => http.system.countAsked("publish") === 1);
    asked.destroy();
    await closed;
    release();
    assert.is((await http.call("POST", "/publish/t", { headers: asJson, body: "2" })).status, 200);
    assert.equal(
      http.logged.filter(({ level }) => level === "error"),
      [],
    );
  }));

// ------------------------------------------------------------------------------------------------------------------- rates

test("over the topic's rate it is 429 with Retry-After", () =>
  withHttp({ config: { connRate: { burst: 2, perSec: 1 }, topicRate: { burst: 1, perSec: 1 } } }, async (http) => {
    const taken: string[] = [];
    http.system.lend = (bucket, need) => {
      taken.push(bucket.split("/")[0]);
      return bucket.startsWith("topic") ? { tokens: 0, retryAfterMs: 1200 } : { tokens: need, retryAfterMs: 0 };
    };
    const answer = await http.call("POST", "/publish/t", { headers: asJson, body: "1" });
    assert.is(answer.status, 429);
    const body = JSON.parse(answer.text);
    assert.is(body.code, "rate_limited");
    assert.match(body.error, /TOPIC_RATE/);
    assert.ok(body.retry_after_ms > 0 && body.retry_after_ms <= 1200, String(body.retry_after_ms));
    assert.is(answer.headers["retry-after"], String(Math.ceil(body.retry_after_ms / 1000)));
    assert.equal(taken, ["http", "topic"]);
    assert.is(http.system.countAsked("publish"), 0);
  }));

test("what the topic refuses is not counted against the connection", () =>
  withHttp({ config: { connRate: { burst: 1, perSec: 1 }, topicRate: { burst: 1, perSec: 1 } } }, async (http) => {
    let lent = 0;
    http.system.lend = (bucket) => {
      const tokens = bucket.startsWith("http") && lent++ === 0 ? 1 : 0;
      return { tokens, retryAfterMs: tokens === 1 ? 0 : 1000 };
    };
    const agent = new Agent({ keepAlive: true, maxSockets: 1 });
    const refusals: string[] = [];
    for (const body of ["1", "2"]) {
      const { status, text } = await http.call("POST", "/publish/t", { headers: asJson, body, agent });
      assert.is(status, 429);
      refusals.push(/CONN_RATE|TOPIC_RATE/.exec(JSON.parse(text).error)?.[0] ?? "");
    }
    agent.destroy();
    // The bucket lent one token in all: the second request went on with the one that the first had left.
    assert.equal(refusals, ["TOPIC_RATE", "TOPIC_RATE"]);
    assert.is(lent, 1);
  }));

test("the connection's rate counts per TCP connection", () =>
  withHttp({ config: { connRate: { burst: 1, perSec: 1 }, topicRate: "off" } }, async (http) => {
    const asked = new Set<string>();
    http.system.lend = (bucket) => {
      const tokens = asked.has(bucket) ? 0 : 1;
      asked.add(bucket);
      return { tokens, retryAfterMs: tokens === 1 ? 0 : 1000 };
    };
    const post =
      "POST /publish/t HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 1\r\n";
    const two = await new Promise<string>((resolve) => {
      let text = "";
      const socket = connect(http.port, "127.0.0.1");
      socket.on("data", (part) => {
        text += part;
      });
      socket.on("close", () => resolve(text));
      socket.write(`${post}\r\n1${post}connection: close\r\n\r\n2`);
    });
    assert.equal(two.match(/HTTP\/1\.1 \d+/g), ["HTTP/1.1 200", "HTTP/1.1 429"]);
    assert.match(two, /retry-after: \d+\r\n/i);
    assert.match(two, /CONN_RATE/);
    const other = await http.call("POST", "/publish/t", { headers: { ...asJson, connection: "close" }, body: "3" });
    assert.is(other.status, 200);
    assert.is(asked.size, 2);
    await turnsUntil("both buckets have ended", () => http.system.countAsked("endBucket") === 2);
  }));

test("a store that failed is told as it is", () =>
  withHttp({}, async (http) => {
    http.system.fail = (message) =>
      message.type === "publish" ? { code: "publish_failed", msg: "no space left", retry_after_ms: 500 } : undefined;
    const { status, body } = await http.json("POST", "/publish/t", { headers: asJson, body: "1" });
    assert.is(status, 503);
    assert.equal(body, { error: "no space left", code: "publish_failed", retry_after_ms: 500 });
  }));

test.run();
