import { createHash } from "node:crypto";
import { type IncomingMessage, request } from "node:http";
import { connect } from "node:net";
import { test } from "uvu";
import * as assert from "uvu/assert";
import type { EventRecord } from "../../src/protocol/event.ts";
import type { FakeHttpSystem } from "../support/fake-http-system.ts";
import { type HttpAnswer, type TestHttp, turnsUntil, withHttp } from "../support/http-server.ts";

const eventsOf = (text: string): EventRecord[] =>
  text
    .split("\n")
    .slice(0, -1)
    .map((line) => JSON.parse(line));
const placeOf = ({ partition, offset }: EventRecord) => `${partition}:${offset}`;

async function exported(http: TestHttp, query: string): Promise<HttpAnswer & { readonly places: string[] }> {
  const answer = await http.call("GET", `/export?${query}`);
  assert.is(answer.status, 200, answer.text.slice(0, 300));
  assert.is(answer.trailers["x-narthex-checksum"], createHash("sha256").update(answer.text).digest("hex"));
  const array = /(^|&)ndjson=0/.test(query);
  const events: EventRecord[] = array ? JSON.parse(answer.text) : eventsOf(answer.text);
  assert.is(answer.trailers["x-narthex-count"], String(events.length));
  return { ...answer, places: events.map(placeOf) };
}

/** Events in an order that is the same on each run, with many equal timestamps and some that fall. */
function fill(system: FakeHttpSystem, topic: string, partitions: number, count: number): void {
  system.make(topic, partitions);
  let state = 12345;
  const random = (bound: number) => {
    state = (state * 1103515245 + 12345) % 2 ** 31;
    return Math.floor((state / 2 ** 31) * bound);
  };
  for (let i = 0; i < count; i++) {
    const ts = 1000 + Math.floor(i / 40) + (random(20) === 0 ? -random(5) : 0);
    system.add(topic, random(partitions), { ts, payload: `{"i":${i},"x":"${"é".repeat(random(30))}"}` });
  }
}

/** The merge as its definition says it, one event at a time. */
function mergedPlaces(system: FakeHttpSystem, topic: string, wants = (_ts: number) => true): string[] {
  const partitions = system.topics.get(topic)!.shards.length;
  const lanes = Array.from({ length: partitions }, (_, p) =>
    system.stream(topic, p).events.filter(({ ts }) => wants(ts)),
  );
  const at = lanes.map(() => 0);
  const places: string[] = [];
  for (;;) {
    let best = -1;
    for (let p = 0; p < partitions; p++) {
      if (at[p] === lanes[p].length) continue;
      if (best < 0 || lanes[p][at[p]].ts < lanes[best][at[best]].ts) best = p;
    }
    if (best < 0) return places;
    places.push(`${best}:${lanes[best][at[best]++].offset}`);
  }
}

/** What a reader of these events would write down as its position. */
function positionAfter(places: readonly string[]): string {
  const next = new Map<string, number>();
  for (const place of places) next.set(place.split(":")[0], Number(place.split(":")[1]) + 1);
  return [...next].map(([partition, offset]) => `${partition}:${offset}`).join(",");
}

test("an export of one partition is its lines, byte for byte", () =>
  withHttp({}, async (http) => {
    fill(http.system, "t", 1, 3000);
    const answer = await exported(http, "topic=t");
    const lines = http.system.stream("t", 0).events.map(({ line }) => `${line}\n`);
    assert.ok(answer.text === lines.join(""));
    assert.is(answer.headers["content-type"], "application/x-ndjson; charset=utf-8");
    assert.is(answer.headers["transfer-encoding"], "chunked");
    assert.is(answer.headers.trailer, "x-narthex-count, x-narthex-checksum, x-narthex-next");
    assert.is(answer.trailers["x-narthex-next"], "0:3000");
  }));

test("partitions are merged by ts, partition and offset, whatever the pages", () =>
  withHttp({}, async (http) => {
    fill(http.system, "t", 5, 2000);
    const wanted = mergedPlaces(http.system, "t");
    assert.is(wanted.length, 2000);
    for (const walkMax of [1, 7, 100, 1000]) {
      http.system.walkMax = walkMax;
      assert.equal((await exported(http, "topic=t")).places, wanted, `pages of ${walkMax}`);
    }
  }));

test("equal timestamps at the end of a page lose nothing", () =>
  withHttp({}, async (http) => {
    http.system.make("t", 2);
    for (let i = 0; i < 500; i++) http.system.add("t", i % 2, { ts: 77, payload: String(i) });
    http.system.walkMax = 10;
    const wanted = [...Array(250).keys()].map((i) => `0:${i}`).concat([...Array(250).keys()].map((i) => `1:${i}`));
    assert.equal((await exported(http, "topic=t&fromTs=77&toTs=77")).places, wanted);
  }));

test("as one array it is the same events", () =>
  withHttp({}, async (http) => {
    fill(http.system, "t", 3, 1500);
    http.system.walkMax = 50;
    const answer = await exported(http, "topic=t&ndjson=0");
    assert.is(answer.headers["content-type"], "application/json; charset=utf-8");
    assert.equal(answer.places, mergedPlaces(http.system, "t"));
    http.system.make("one", 1);
    http.system.add("one", 0, { payload: '"a,b"' });
    assert.is((await exported(http, "topic=one&ndjson=0")).text, `[${http.system.stream("one", 0).events[0].line}]`);
  }));

test("an empty export is an empty body or an empty array", () =>
  withHttp({}, async (http) => {
    http.system.make("t", 2);
    const lines = await exported(http, "topic=t");
    assert.is(lines.text, "");
    assert.is(lines.trailers["x-narthex-next"], "0:0,1:0");
    assert.is((await exported(http, "topic=t&ndjson=0")).text, "[]");
  }));

test("fromTs and toTs count both ends, and every event is looked at", () =>
  withHttp({}, async (http) => {
    fill(http.system, "t", 3, 1000);
    http.system.walkMax = 13;
    for (const [fromTs, toTs] of [
      [1005, 1010],
      [1010, 1010],
      [0, 1000],
      [1024, 9999],
      [2000, 3000],
    ]) {
      const wanted = mergedPlaces(http.system, "t", (ts) => ts >= fromTs && ts <= toTs);
      assert.equal(
        (await exported(http, `topic=t&fromTs=${fromTs}&toTs=${toTs}`)).places,
        wanted,
        `${fromTs}..${toTs}`,
      );
    }
    assert.is(mergedPlaces(http.system, "t", (ts) => ts === 1010).length > 0, true);
  }));

test("a cut export goes on exactly where it was cut, from a position built of the events seen", () =>
  withHttp({}, async (http) => {
    fill(http.system, "t", 4, 600);
    http.system.walkMax = 20;
    const bounds = "fromTs=1002&toTs=1012";
    const whole = (await exported(http, `topic=t&${bounds}`)).places;
    assert.ok(whole.length > 300);
    for (let cut = 1; cut < whole.length; cut += 37) {
      const rest = await exported(http, `topic=t&${bounds}&after=${positionAfter(whole.slice(0, cut))}`);
      assert.equal([...whole.slice(0, cut), ...rest.places], whole, `cut after ${cut}`);
    }
    // And behind the end only what is new.
    const { trailers } = await exported(http, "topic=t");
    http.system.add("t", 2, { ts: 1005, payload: "1" });
    const last = http.system.stream("t", 2).events.length - 1;
    assert.equal((await exported(http, `topic=t&after=${trailers["x-narthex-next"]}`)).places, [`2:${last}`]);
  }));

test("with one partition afterId goes on behind the event", () =>
  withHttp({}, async (http) => {
    fill(http.system, "t", 1, 100);
    const { id } = http.system.stream("t", 0).events[41];
    const { places } = await exported(http, `topic=t&afterId=${id}`);
    assert.is(places[0], "0:42");
    assert.is(places.length, 58);
    const unknown = await http.json("GET", "/export?topic=t&afterId=none");
    assert.is(unknown.status, 404);
    assert.is(unknown.body.code, "unknown_id");
  }));

test("heads are frozen at the start", () =>
  withHttp({}, async (http) => {
    http.system.make("t", 2);
    for (let i = 0; i < 10; i++) http.system.add("t", i % 2, { ts: i, payload: "1" });
    http.system.walkMax = 2;
    http.system.hold = (message) => {
      if (message.type === "scan") http.system.add("t", 0, { ts: 3, payload: "2" });
      return undefined;
    };
    const { places, trailers } = await exported(http, "topic=t");
    assert.equal(places, ["0:0", "1:0", "0:1", "1:1", "0:2", "1:2", "0:3", "1:3", "0:4", "1:4"]);
    assert.is(trailers["x-narthex-next"], "0:5,1:5");
  }));

test("an HTTP/1.0 client gets the body without chunks", () =>
  withHttp({}, async (http) => {
    fill(http.system, "t", 1, 10);
    const text = await new Promise<string>((resolve) => {
      let all = "";
      const socket = connect(http.port, "127.0.0.1");
      socket.on("data", (part) => {
        all += part;
      });
      socket.on("close", () => resolve(all));
      socket.write("GET /export?topic=t HTTP/1.0\r\nhost: localhost\r\n\r\n");
    });
    const lines = http.system.stream("t", 0).events.map(({ line }) => `${line}\n`);
    assert.is(text.slice(text.indexOf("\r\n\r\n") + 4), lines.join(""));
  }));

// ----------------------------------------------------------------------------------------------------------------- trouble

test("a partition that fails at the start is an answer of its own", () =>
  withHttp({}, async (http) => {
    fill(http.system, "t", 2, 100);
    http.system.fail = (message) => (message.type === "scan" ? { code: "unavailable", msg: "shard down" } : undefined);
    const { status, body } = await http.json("GET", "/export?topic=t");
    assert.is(status, 503);
    assert.is(body.code, "unavailable");
  }));

test("a partition that fails midway cuts the connection: the body never looks complete", () =>
  withHttp({}, async (http) => {
    fill(http.system, "t", 2, 4000);
    http.system.walkMax = 100;
    http.system.fail = (message) =>
      message.type === "scan" && message.from >= 1000 ? { code: "unavailable", msg: "shard down" } : undefined;
    for (const query of ["topic=t", "topic=t&ndjson=0"]) {
      const cut = await http.call("GET", `/export?${query}`).then(
        () => "whole",
        (error: NodeJS.ErrnoException) => error.code ?? error.message,
      );
      assert.is(cut, "ECONNRESET", query);
    }
    assert.is(http.logged.filter(({ msg }) => msg === "export cut short").length, 2);
    assert.is((await http.call("GET", "/health/live")).status, 200);
  }));

/** Opens an export and reads nothing of its body. */
function unread(http: TestHttp, query: string): Promise<IncomingMessage> {
  return new Promise((resolve, reject) => {
    const asked = request({ port: http.port, path: `/export?${query}`, agent: false }, resolve);
    asked.on("error", reject);
    asked.end();
  });
}

/** Resolves when the number of scans has not changed for many turns of the event loop. */
async function scansSettled(http: TestHttp): Promise<number> {
  let last = -1;
  for (let quiet = 0; quiet < 200; quiet++) {
    const scans = http.system.countAsked("scan");
    if (scans !== last) quiet = 0;
    last = scans;
    await new Promise((resolve) => setImmediate(resolve));
  }
  return last;
}

function fillLarge(system: FakeHttpSystem, partitions: number, count: number): void {
  system.make("t", partitions);
  const payload = JSON.stringify("x".repeat(10_000));
  for (let i = 0; i < count; i++) system.add("t", i % partitions, { ts: i, payload });
}

for (const partitions of [1, 4]) {
  test(`a reader that does not read stops the reading of ${partitions} partition(s), and gets all when it goes on`, () =>
    withHttp({}, async (http) => {
      const count = 6000;
      fillLarge(http.system, partitions, count);
      const res = await unread(http, "topic=t");
      const scans = await scansSettled(http);
      // What the sockets of this machine hold between two ends, and two pages for each partition.
      const pages = (count * 10_100) / (256 * 1024);
      assert.ok(scans < pages / 2, `${scans} scans of about ${pages}`);
      assert.is(http.timers.length, 1);
      let text = "";
      res.setEncoding("utf8");
      for await (const part of res) text += part;
      assert.ok(res.complete);
      assert.is(res.trailers["x-narthex-count"], String(count));
      const wanted = Array.from({ length: count }, (_, i) => `${i % partitions}:${Math.floor(i / partitions)}`);
      assert.equal(eventsOf(text).map(placeOf), wanted);
      assert.is(http.timers.length, 0);
    }));
}

test("a reader that goes away stops the reading", () =>
  withHttp({}, async (http) => {
    fillLarge(http.system, 2, 6000);
    const res = await unread(http, "topic=t");
    await scansSettled(http);
    res.on("error", () => undefined);
    res.destroy();
    await turnsUntil("the export has noticed", () => http.timers.length === 0);
    const scans = http.system.countAsked("scan");
    assert.is(await scansSettled(http), scans);
    assert.equal(
      http.logged.filter(({ level }) => level === "error" || level === "warn"),
      [],
    );
  }));

test("a reader that takes nothing for too long is cut off", () =>
  withHttp({ config: { limits: { stalledMs: 60_000 } } }, async (http) => {
    fillLarge(http.system, 1, 6000);
    const res = await unread(http, "topic=t");
    await scansSettled(http);
    assert.equal(
      http.timers.map(({ ms }) => ms),
      [60_000],
    );
    http.timers[0].run();
    const failed = new Promise<Error>((resolve) => res.on("error", resolve));
    res.resume();
    assert.is(((await failed) as NodeJS.ErrnoException).code, "ECONNRESET");
    assert.is(res.complete, false);
    assert.equal(
      http.logged.filter(({ level }) => level === "warn").map(({ msg }) => msg),
      ["export cut short"],
    );
  }));

test.run();
