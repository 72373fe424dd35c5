import { test } from "uvu";
import * as assert from "uvu/assert";
import { asJson, type JsonBody, type TestHttp, withHttp } from "../support/http-server.ts";

function send(http: TestHttp, method: string, path: string, value: JsonBody) {
  return http.json(method, path, { headers: asJson, body: JSON.stringify(value) });
}

test("PUT makes a topic and then changes it", () =>
  withHttp({ config: { partitions: 3 } }, async (http) => {
    const settings = {
      retention: { ageMs: 1000, bytes: 5 },
      rate: { burst: 10, perSec: 20 },
      maxAttempts: 7,
      writeConcern: "w:1",
    };
    const made = await send(http, "PUT", "/topics/orders", { partitions: 4, ...settings });
    assert.is(made.status, 201);
    assert.equal(made.body, { topic: "orders", partitions: 4, ...settings, createdAt: http.system.now });
    assert.equal(http.system.topics.get("orders")?.settings, settings);
    const changed = await send(http, "PUT", "/topics/orders", { rate: "5/6", partitions: 4 });
    assert.is(changed.status, 200);
    assert.equal(http.system.topics.get("orders")?.settings, { rate: { burst: 5, perSec: 6 } });
    assert.is((await send(http, "PUT", "/topics/orders", {})).status, 200);
    assert.equal(http.system.topics.get("orders")?.settings, {});
    assert.is(http.system.topics.get("orders")?.shards.length, 4);
    // Without a number it is PARTITIONS.
    assert.is((await send(http, "PUT", "/topics/plain", { rate: "off" })).body.partitions, 3);
    assert.is(http.system.topics.get("plain")?.settings.rate, "off");
  }));

test("the number of partitions cannot be changed", () =>
  withHttp({}, async (http) => {
    http.system.make("orders", 4);
    const { status, body } = await send(http, "PUT", "/topics/orders", { partitions: 5 });
    assert.is(status, 409);
    assert.is(body.code, "limit");
    assert.is(body.field, "partitions");
  }));

test("POST /topics takes the name in the body", () =>
  withHttp({}, async (http) => {
    const made = await send(http, "POST", "/topics", { topic: "orders", partitions: 2, maxAttempts: 3 });
    assert.is(made.status, 201);
    assert.is(made.body.topic, "orders");
    assert.is(http.system.topics.get("orders")?.shards.length, 2);
    assert.is((await send(http, "POST", "/topics", { topic: "orders" })).status, 200);
    assert.is((await send(http, "POST", "/topics", { partitions: 1 })).body.code, "bad_topic");
  }));

test("a bad setting is refused by name and makes nothing", () =>
  withHttp({}, async (http) => {
    const cases: [body: JsonBody, field: string | undefined, code?: string][] = [
      [[], undefined, "bad_frame"],
      ["x", undefined, "bad_frame"],
      [null, undefined, "bad_frame"],
      [{ partition: 1 }, "partition"],
      [{ topic: "x" }, "topic"],
      [{ partitions: 0 }, "partitions"],
      [{ partitions: 65 }, "partitions"],
      [{ partitions: 1.5 }, "partitions"],
      [{ partitions: "2" }, "partitions"],
      [{ partitions: null }, "partitions"],
      [{ retention: 5 }, "retention"],
      [{ retention: { age: 5 } }, "retention.age"],
      [{ retention: { ageMs: -1 } }, "retention.ageMs"],
      [{ retention: { ageMs: 0 } }, "retention.ageMs"],
      [{ retention: { bytes: "many" } }, "retention.bytes"],
      [{ rate: "on" }, "rate"],
      [{ rate: "5" }, "rate"],
      [{ rate: "0/5" }, "rate"],
      [{ rate: "5/0" }, "rate"],
      [{ rate: "-5/5" }, "rate"],
      [{ rate: { burst: 5 } }, "rate"],
      [{ rate: { burst: -5, perSec: 5 } }, "rate"],
      [{ maxAttempts: 0 }, "maxAttempts"],
      [{ maxAttempts: 1001 }, "maxAttempts"],
      [{ writeConcern: "all" }, "writeConcern"],
      [{ writeConcern: 1 }, "writeConcern"],
    ];
    for (const [value, field, code = "bad_option"] of cases) {
      const { status, body } = await send(http, "PUT", "/topics/orders", value);
      assert.is(status, 400, JSON.stringify(value));
      assert.is(body.field, field, JSON.stringify(value));
      assert.is(body.code, code, JSON.stringify(value));
    }
    const text = await http.json("PUT", "/topics/orders", { headers: { "content-type": "text/plain" }, body: "{}" });
    assert.is(text.status, 415);
    const broken = await http.json("PUT", "/topics/orders", { headers: asJson, body: "{" });
    assert.is(broken.body.code, "bad_json");
    const large = await send(http, "PUT", "/topics/orders", { writeConcern: "x".repeat(70_000) });
    assert.is(large.status, 413);
    for (const name of ["a..b", "%24sys", "a.dlq.b"]) {
      const { status, body } = await send(http, "PUT", `/topics/${name}`, {});
      assert.is(status, 400, name);
      assert.is(body.code, "bad_topic", name);
    }
    assert.is(http.system.topics.size, 0);
  }));

test("GET shows a topic with its partitions and how far its groups are", () =>
  withHttp({}, async (http) => {
    http.system.make("orders", 2, { maxAttempts: 3 });
    http.system.add("orders", 0, { payload: "1" });
    http.system.add("orders", 0, { payload: "22" });
    http.system.stream("orders", 0).start = 1;
    http.system.group("orders", 0, "billing", { lag: 2, members: 1 });
    http.system.group("orders", 1, "billing", { lag: 5, members: 1 });
    http.system.group("orders", 1, "audit", { lag: 1 });
    const { status, body } = await http.json("GET", "/topics/orders");
    assert.is(status, 200);
    assert.is(body.topic, "orders");
    assert.is(body.partitions, 2);
    assert.is(body.maxAttempts, 3);
    const bytes = http.system.stream("orders", 0).events.reduce((sum, { line }) => sum + line.length, 0);
    assert.equal(body.offsets, [
      { partition: 0, start: 1, end: 2, bytes, lastStoredAt: http.system.now },
      { partition: 1, start: 0, end: 0, bytes: 0, lastStoredAt: http.system.now },
    ]);
    assert.equal(body.groups, [
      { group: "audit", lag: 1, members: 0 },
      { group: "billing", lag: 7, members: 1 },
    ]);
    const offsets = await http.json("GET", "/topics/orders/offsets");
    assert.equal(offsets.body, {
      topic: "orders",
      earliest: "0:1,1:0",
      latest: "0:2,1:0",
      partitions: [
        { partition: 0, start: 1, end: 2 },
        { partition: 1, start: 0, end: 0 },
      ],
    });
  }));

test("GET /topics lists them in pages", () =>
  withHttp({}, async (http) => {
    for (const name of ["c", "a", "b", "a.dlq.g"]) http.system.make(name, 1);
    const all = await http.json("GET", "/topics");
    assert.equal(
      all.body.topics.map(({ topic }: { topic: string }) => topic),
      ["a", "a.dlq.g", "b", "c"],
    );
    assert.is(all.body.next, undefined);
    const seen: string[] = [];
    let path = "/topics?limit=3";
    for (;;) {
      const { body } = await http.json("GET", path);
      seen.push(...body.topics.map(({ topic }: { topic: string }) => topic));
      if (body.next === undefined) break;
      path = `/topics?limit=3&after=${body.next}`;
    }
    assert.equal(seen, ["a", "a.dlq.g", "b", "c"]);
  }));

test("DELETE removes a topic, and a second time it is unknown", () =>
  withHttp({}, async (http) => {
    http.system.make("orders", 2);
    const gone = await http.call("DELETE", "/topics/orders");
    assert.is(gone.status, 204);
    assert.is(gone.text, "");
    assert.is(http.system.streams.size, 0);
    assert.is(http.system.topics.size, 0);
    const again = await http.json("DELETE", "/topics/orders");
    assert.is(again.status, 404);
    assert.is(again.body.code, "unknown_topic");
    assert.is((await http.json("DELETE", "/topics/a..b")).body.code, "bad_topic");
  }));

test("DELETE removes a group on every partition, and an unknown one is 404", () =>
  withHttp({}, async (http) => {
    http.system.make("orders", 2);
    // Known on one partition only, as after a crash in the middle of a join.
    http.system.group("orders", 1, "billing", {});
    http.system.group("orders", 1, "audit", {});
    assert.is((await http.call("DELETE", "/topics/orders/groups/billing")).status, 204);
    assert.equal([...http.system.stream("orders", 1).groups.keys()], ["audit"]);
    const again = await http.json("DELETE", "/topics/orders/groups/billing");
    assert.is(again.status, 404);
    assert.is(again.body.field, "group");
    assert.is((await http.json("DELETE", "/topics/none/groups/billing")).body.code, "unknown_topic");
    assert.is((await http.json("DELETE", "/topics/orders/groups/a..b")).body.code, "bad_group");
  }));

test.run();
