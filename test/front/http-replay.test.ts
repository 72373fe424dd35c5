import { test } from "uvu";
import * as assert from "uvu/assert";
import type { EventRecord } from "../../src/protocol/event.ts";
import type { FakeHttpSystem } from "../support/fake-http-system.ts";
import { type JsonBody, type TestHttp, withHttp } from "../support/http-server.ts";

const placeOf = ({ partition, offset }: EventRecord) => `${partition}:${offset}`;

async function replay(http: TestHttp, query: string): Promise<{ places: string[]; next: string; body: JsonBody }> {
  const { status, body } = await http.json("GET", `/replay?${query}`);
  assert.is(status, 200, JSON.stringify(body));
  assert.is(body.count, body.events.length);
  return { places: body.events.map(placeOf), next: body.next, body };
}

/** Three partitions whose timestamps meet: 0: 1 2 2 5, 1: 2 2 3, 2: 0 5. */
function threeLanes(system: FakeHttpSystem): void {
  system.make("t", 3);
  for (const [partition, times] of [
    [1, 2, 2, 5],
    [2, 2, 3],
    [0, 5],
  ].entries()) {
    for (const ts of times) system.add("t", partition, { ts, payload: `{"p":${partition}}` });
  }
}

const merged = ["2:0", "0:0", "0:1", "0:2", "1:0", "1:1", "1:2", "0:3", "2:1"];

test("a replay gives the events as they are stored", () =>
  withHttp({}, async (http) => {
    http.system.make("orders", 1);
    const lines = ['{"n":1}', '"a\\nb,\\"c\\""', "null"].map(
      (payload, i) => http.system.add("orders", 0, { payload, ...(i === 1 ? { key: "k\n" } : {}) }).line,
    );
    const { text, headers } = await http.call("GET", "/replay?topic=orders");
    assert.is(text, `{"topic":"orders","count":3,"events":[${lines.join(",")}],"next":"0:3"}`);
    assert.is(headers["content-type"], "application/json; charset=utf-8");
    assert.is(Number(headers["content-length"]), Buffer.byteLength(text));
  }));

test("an empty topic and an exhausted one still say where to go on", () =>
  withHttp({}, async (http) => {
    http.system.make("t", 2);
    assert.equal(await replay(http, "topic=t").then(({ body }) => body), {
      topic: "t",
      count: 0,
      events: [],
      next: "0:0,1:0",
    });
    http.system.add("t", 1, { payload: "1" });
    const first = await replay(http, "topic=t&after=0:0,1:0");
    assert.equal(first.places, ["1:0"]);
    assert.is(first.next, "0:0,1:1");
    assert.equal((await replay(http, `topic=t&after=${first.next}`)).places, []);
    http.system.add("t", 0, { payload: "2" });
    assert.equal((await replay(http, `topic=t&after=${first.next}`)).places, ["0:0"]);
  }));

test("partitions are merged by time, then partition, and pages of every size fit together", () =>
  withHttp({}, async (http) => {
    threeLanes(http.system);
    assert.equal((await replay(http, "topic=t")).places, merged);
    for (const walkMax of [1, 2, 1000]) {
      http.system.walkMax = walkMax;
      for (let limit = 1; limit <= 10; limit++) {
        const seen: string[] = [];
        let after = "";
        for (;;) {
          const page = await replay(http, `topic=t&limit=${limit}${after}`);
          assert.ok(page.places.length <= limit);
          seen.push(...page.places);
          after = `&after=${page.next}`;
          if (page.places.length === 0) break;
        }
        assert.equal(seen, merged, `limit ${limit}, walk ${walkMax}`);
      }
    }
  }));

test("each partition keeps its own order where timestamps fall", () =>
  withHttp({}, async (http) => {
    http.system.make("t", 2);
    for (const ts of [9, 1, 5]) http.system.add("t", 0, { ts, payload: "0" });
    for (const ts of [4, 6, 10]) http.system.add("t", 1, { ts, payload: "0" });
    assert.equal((await replay(http, "topic=t")).places, ["1:0", "1:1", "0:0", "0:1", "0:2", "1:2"]);
  }));

test("from=ts starts in each partition at the first event that is not older", () =>
  withHttp({}, async (http) => {
    threeLanes(http.system);
    assert.equal((await replay(http, "topic=t&from=ts&ts=2")).places, merged.slice(2));
    assert.equal((await replay(http, "topic=t&from=ts&ts=3")).places, ["1:2", "0:3", "2:1"]);
    assert.equal((await replay(http, "topic=t&from=ts&ts=0")).places, merged);
    const late = await replay(http, "topic=t&from=ts&ts=6");
    assert.equal(late.places, []);
    assert.is(late.next, "0:4,1:3,2:2");
    // A later page goes on where the first ended, though timestamps fall there.
    http.system.add("t", 0, { ts: 1, payload: "0" });
    assert.equal((await replay(http, `topic=t&from=ts&ts=6&after=${late.next}`)).places, ["0:4"]);
  }));

test("from=afterId goes on behind any event of the merged order", () =>
  withHttp({}, async (http) => {
    threeLanes(http.system);
    for (const [index, place] of merged.entries()) {
      const [partition, offset] = place.split(":").map(Number);
      const { id } = http.system.stream("t", partition).events[offset];
      const { places } = await replay(http, `topic=t&from=afterId&afterId=${id}`);
      assert.equal(places, merged.slice(index + 1), place);
    }
  }));

test("an id that a publisher brought is found in every partition", () =>
  withHttp({}, async (http) => {
    threeLanes(http.system);
    http.system.add("t", 2, { ts: 6, id: "my:own.id", payload: "1" });
    http.system.add("t", 0, { ts: 7, payload: "1" });
    assert.equal((await replay(http, "topic=t&from=afterId&afterId=my:own.id")).places, ["0:4"]);
  }));

test("an unknown afterId is 404 unknown_id", () =>
  withHttp({}, async (http) => {
    threeLanes(http.system);
    for (const id of ["none", "018bcfe5-6800-7000-8000-000063000007", "018bcfe5-6800-7000-8000-00006300fff7"]) {
      const { status, body } = await http.json("GET", `/replay?topic=t&from=afterId&afterId=${id}`);
      assert.is(status, 404, id);
      assert.is(body.code, "unknown_id");
      assert.is(body.field, "afterId");
    }
  }));

test("partitions that a position leaves out begin where from says", () =>
  withHttp({}, async (http) => {
    threeLanes(http.system);
    assert.equal((await replay(http, "topic=t&after=0:4")).places, ["2:0", "1:0", "1:1", "1:2", "2:1"]);
    assert.equal((await replay(http, "topic=t&after=0:4&from=ts&ts=3")).places, ["1:2", "2:1"]);
  }));

test("what retention removed is passed over, and a position past the end waits there", () =>
  withHttp({}, async (http) => {
    threeLanes(http.system);
    http.system.stream("t", 0).start = 2;
    assert.equal((await replay(http, "topic=t&after=0:0,1:3,2:2")).places, ["0:2", "0:3"]);
    assert.is((await replay(http, "topic=t&after=0:99,1:99,2:99")).next, "0:4,1:3,2:2");
  }));

test("what is published while it reads belongs to the next page", () =>
  withHttp({}, async (http) => {
    http.system.make("t", 1);
    http.system.add("t", 0, { payload: "1" });
    http.system.hold = (message) => {
      if (message.type === "scan") http.system.add("t", 0, { payload: "2" });
      return undefined;
    };
    const { places, next } = await replay(http, "topic=t");
    assert.equal(places, ["0:0"]);
    assert.is(next, "0:1");
  }));

test("a page ends at about 16 MiB and says where to go on", () =>
  withHttp({}, async (http) => {
    http.system.make("t", 2);
    const big = JSON.stringify("x".repeat(1_000_000));
    for (let i = 0; i < 20; i++) http.system.add("t", i % 2, { ts: i, payload: big });
    const first = await replay(http, "topic=t");
    assert.is(first.places.length, 17);
    const second = await replay(http, `topic=t&after=${first.next}`);
    assert.equal(
      [...first.places, ...second.places],
      Array.from({ length: 20 }, (_, i) => `${i % 2}:${Math.floor(i / 2)}`),
    );
  }));

test("a partition that fails makes the whole replay fail", () =>
  withHttp({}, async (http) => {
    threeLanes(http.system);
    http.system.fail = (message, to) =>
      message.type === "scan" && to.cell.endsWith("65") ? { code: "unavailable", msg: "shard down" } : undefined;
    const { status, body } = await http.json("GET", "/replay?topic=t");
    assert.is(status, 503);
    assert.is(body.code, "unavailable");
    assert.is(body.events, undefined);
  }));

test("past so many readers more are overloaded until one has ended", () =>
  withHttp({}, async (http) => {
    http.system.make("t", 1);
    let release: () => void = () => {};
    const gate = new Promise<void>((resolve) => {
      release = resolve;
    });
    http.system.hold = (message) => (message.type === "describe" ? gate : undefined);
    const readers = Array.from({ length: 64 }, (_, i) =>
      http.call("GET", i % 2 ? "/replay?topic=t" : "/export?topic=t"),
    );
    const over = http.call("GET", "/replay?topic=t");
    // Whichever came last is refused, the others wait at the gate.
    const refused = await Promise.race([...readers, over]);
    assert.is(refused.status, 503);
    assert.is(JSON.parse(refused.text).code, "overloaded");
    assert.is(refused.headers["retry-after"], "1");
    release();
    const statuses = (await Promise.all([...readers, over])).map(({ status }) => status);
    assert.is(statuses.filter((status) => status === 200).length, 64);
    assert.is((await http.call("GET", "/replay?topic=t")).status, 200);
  }));

test.run();
