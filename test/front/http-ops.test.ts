import { test } from "uvu";
import * as assert from "uvu/assert";
import { withHttp } from "../support/http-server.ts";

test("live is 200 as long as the process runs, ready says why it is not", async () => {
  const status = { ready: true, reasons: [] as string[] };
  await withHttp({ http: { status: () => status } }, async (http) => {
    http.system.states = [
      { shard: 0, worker: 0, status: "up", epoch: 3, failedCells: [], damage: [] },
      {
        shard: 1,
        worker: 0,
        status: "down",
        epoch: 2,
        reason: "disk full",
        failedCells: [{ cell: "partition/64", reason: "threw" }],
        damage: [{ shard: 1, place: "/secret/path/7.log:12", reason: "bad crc", stream: 64, from: 5, to: 9 }],
      },
    ];
    const up = await http.json("GET", "/health/ready");
    assert.is(up.status, 200);
    assert.equal(up.body, {
      ready: true,
      reasons: [],
      shards: [
        { shard: 0, status: "up" },
        { shard: 1, status: "down", reason: "disk full", failed: [{ cell: "partition/64", reason: "threw" }] },
      ],
      damage: [{ shard: 1, reason: "bad crc", stream: 64, from: 5, to: 9 }],
    });
    status.ready = false;
    status.reasons.push("shard 1 is down");
    const down = await http.json("GET", "/health/ready");
    assert.is(down.status, 503);
    assert.equal(down.body.reasons, ["shard 1 is down"]);
    assert.is((await http.call("GET", "/health/live")).status, 200);
  });
});

test("metrics are given as Prometheus text", () =>
  withHttp({}, async (http) => {
    const { status, headers, text } = await http.call("GET", "/metrics");
    assert.is(status, 200);
    assert.is(headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    assert.is(text, "narthex_up 1\n");
  }));

test("stats are the samples summed over their labels", () =>
  withHttp({}, async (http) => {
    http.system.states = [{ shard: 0, worker: 0, status: "up", epoch: 3, failedCells: [], damage: [] }];
    assert.equal((await http.json("GET", "/stats")).body, {
      ready: true,
      workers: 1,
      shards: [{ shard: 0, worker: 0, status: "up", epoch: 3 }],
      totals: { topic_events: 7 },
    });
  }));

test("cursors of all groups come in pages", () =>
  withHttp({}, async (http) => {
    http.system.make("t", 2);
    http.system.group("t", 0, "b", { floor: 5, ranges: [[7, 9]], lag: 3, lastId: "x", lastTs: 10, leased: 1 });
    http.system.group("t", 1, "b", { floor: 1, lag: 4, lastId: "y", lastTs: 12, members: 2, leased: 2 });
    http.system.group("t", 1, "a", { floor: 2, lag: 0 });
    http.system.leaseAges.set("t/0/b", 250).set("t/1/b", 900.4).set("t/1/a", 7000);
    const { body } = await http.json("GET", "/cursors?topic=t");
    assert.equal(body, {
      topic: "t",
      cursors: [
        {
          group: "a",
          lag: 0,
          members: 0,
          partitions: [{ partition: 1, floor: 2, ranges: [], start: 0, end: 0, lag: 0, leased: 0, waiting: 0 }],
        },
        {
          group: "b",
          lastId: "y",
          lastTs: 12,
          lag: 7,
          members: 2,
          oldestLeaseMs: 900,
          partitions: [
            { partition: 0, floor: 5, ranges: [[7, 9]], start: 0, end: 0, lag: 3, leased: 1, waiting: 0 },
            { partition: 1, floor: 1, ranges: [], start: 0, end: 0, lag: 4, leased: 2, waiting: 0 },
          ],
        },
      ],
    });
    const first = await http.json("GET", "/cursors?topic=t&limit=1");
    assert.equal(
      first.body.cursors.map(({ group }: { group: string }) => group),
      ["a"],
    );
    assert.is(first.body.next, "a");
    const second = await http.json("GET", "/cursors?topic=t&limit=1&after=a");
    assert.equal(
      second.body.cursors.map(({ group }: { group: string }) => group),
      ["b"],
    );
    assert.is(second.body.next, undefined);
  }));

test("many groups are asked a few at a time", () =>
  withHttp({}, async (http) => {
    http.system.make("t", 16);
    const names = Array.from({ length: 50 }, (_, i) => `g${String(i).padStart(2, "0")}`);
    for (const name of names) for (let p = 0; p < 16; p++) http.system.group("t", p, name, { lag: 1 });
    let open = 0;
    let most = 0;
    http.system.hold = (message) => {
      if (message.type !== "cursor") return undefined;
      most = Math.max(most, ++open);
      return Promise.resolve().then(() => {
        open--;
      });
    };
    const { body } = await http.json("GET", "/cursors?topic=t");
    assert.equal(
      body.cursors.map(({ group, lag }: { group: string; lag: number }) => [group, lag]),
      names.map((name) => [name, 16]),
    );
    assert.is(most, 64);
  }));

test("lag is told per group and partition", () =>
  withHttp({}, async (http) => {
    http.system.make("t", 2);
    http.system.group("t", 0, "g", { floor: 5, end: 8, lag: 3 });
    http.system.group("t", 1, "g", { floor: 1, end: 5, lag: 4 });
    assert.equal((await http.json("GET", "/lag?topic=t&group=g")).body, {
      topic: "t",
      group: "g",
      lag: 7,
      partitions: [
        { partition: 0, floor: 5, end: 8, lag: 3 },
        { partition: 1, floor: 1, end: 5, lag: 4 },
      ],
    });
    const unknown = await http.json("GET", "/lag?topic=t&group=none");
    assert.is(unknown.status, 404);
    assert.is(unknown.body.field, "group");
  }));

test("the latest event of a key is given, or null", () =>
  withHttp({ config: { partitions: 4 } }, async (http) => {
    const publish = (key: string, body: string) =>
      http.json("POST", `/publish/t?key=${encodeURIComponent(key)}`, {
        headers: { "content-type": "application/json" },
        body,
      });
    for (const key of ["a", "b", "ü,\n", "d"])
      for (const n of [1, 2]) await publish(key, `{"key":"${key === "a" ? n : 0}"}`);
    const { body } = await http.json("GET", "/latest-by-key?topic=t&key=a");
    assert.is(body.topic, "t");
    assert.is(body.key, "a");
    assert.is(body.event.key, "a");
    assert.equal(body.event.payload, { key: "2" });
    const odd = await http.json("GET", `/latest-by-key?topic=t&key=${encodeURIComponent("ü,\n")}`);
    assert.is(odd.body.event.key, "ü,\n");
    assert.equal((await http.json("GET", "/latest-by-key?topic=t&key=none")).body, {
      topic: "t",
      key: "none",
      event: null,
    });
    for (const limit of [1, 2, 3, 100]) {
      const seen: string[] = [];
      let after = "";
      for (;;) {
        const page = await http.json("GET", `/latest-by-key?topic=t&limit=${limit}${after}`);
        assert.is(page.body.count, page.body.events.length);
        assert.ok(page.body.count <= limit);
        seen.push(...page.body.events.map(({ key, offset }: { key: string; offset: number }) => `${key}@${offset}`));
        if (page.body.next === undefined) break;
        after = `&after=${encodeURIComponent(page.body.next)}`;
      }
      const wanted: string[] = [];
      for (let p = 0; p < 4; p++) {
        const last = new Map(http.system.stream("t", p).events.map(({ key, offset }) => [key!, offset]));
        for (const key of [...last.keys()].sort()) wanted.push(`${key}@${last.get(key)}`);
      }
      assert.is(wanted.length, 4);
      assert.equal(seen, wanted, `limit ${limit}`);
    }
  }));

test.run();
