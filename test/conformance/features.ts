// What the frames and routes promise beyond the guarantees, on a real node: positions, seeks, latest by key, retention, deletion,
// ephemeral groups, rights, batches.

import { test } from "uvu";
import * as assert from "uvu/assert";
import type { Overrides } from "../../src/config.ts";
import { type AuthFn, rightsFromScopes } from "../../src/front/auth.ts";
import type { OpenNode } from "../../src/node.ts";
import type { EventsBatch } from "../../src/protocol/batch.ts";
import { encodePack } from "../../src/protocol/pack.ts";
import { BatchClient } from "../support/batch-client.ts";
import { eventually, pause } from "../support/deadline.ts";
import { startHere } from "../support/node-here.ts";
import { type EventFrame, PlainClient } from "../support/plain-client.ts";

const json = { "content-type": "application/json" };

const auth: AuthFn = async (token) => {
  if (token === "reader") return { ok: true, identity: "reader", rights: rightsFromScopes(["subscribe:open.**"]) };
  return token === "wrong" ? { ok: false, code: "bad_token", msg: "nope" } : { ok: true };
};

const payloads = (events: readonly EventFrame[]) => events.map(({ event }) => event.payload);

/** Adds its tests; the caller runs them. `place` says where events are kept. */
export function features({ place, end }: { place(): Overrides; end(): Promise<void> }): void {
  let node: OpenNode;
  let http: string;
  let ws: string;

  test.before(async () => {
    const settings = { workers: 2, logLevel: "error", limits: { pruneEveryMs: 50 }, ...place() } as const;
    ({ node, http, ws } = await startHere(settings, { auth }));
  });

  test.after(async () => {
    await node.destroy();
    await end();
  });

  async function filled(
    topic: string,
    count: number,
  ): Promise<{ client: PlainClient; ids: string[]; times: number[] }> {
    const client = await PlainClient.open(ws);
    const ids: string[] = [];
    const times: number[] = [];
    for (let i = 0; i < count; i++) {
      const ok = await client.publish(topic, i, { ts: 1000 + i });
      ids.push(String(ok.id));
      times.push(Number(ok.ts));
    }
    return { client, ids, times };
  }

  test("a new group starts where `from` says: earliest, latest, ts, afterId, offsets", async () => {
    const { client, ids } = await filled("from", 5);
    await client.subscribe("from", "earliest", { from: "earliest" });
    await client.subscribe("from", "ts", { from: "ts", ts: 1002 });
    await client.subscribe("from", "after", { from: "afterId", afterId: ids[3] });
    await client.subscribe("from", "offsets", { from: "offsets", offsets: "0:3" });
    await client.subscribe("from", "latest");
    await client.publish("from", "new");
    const events = await client.nextMany(6 + 4 + 2 + 3 + 1);
    const of = (group: string) => payloads(events.filter((event) => event.group === group));
    assert.equal(of("earliest"), [0, 1, 2, 3, 4, "new"]);
    assert.equal(of("ts"), [2, 3, 4, "new"]);
    assert.equal(of("after"), [4, "new"]);
    assert.equal(of("offsets"), [3, 4, "new"]);
    assert.equal(of("latest"), ["new"]);
    await client.close();
  });

  test("`from` of a group that has a cursor does not count", async () => {
    const { client } = await filled("resumed", 3);
    await client.subscribe("resumed", "g", { from: "earliest" });
    for (const event of await client.nextMany(3)) await client.ack(event);
    await client.ok({ op: "UNSUBSCRIBE", topic: "resumed", group: "g" });
    const again = await client.subscribe("resumed", "g", { from: "earliest" });
    assert.is(again.resumed, true);
    await client.publish("resumed", "next");
    assert.is((await client.next()).event.payload, "next");
    await client.close();
  });

  test("CURSOR seeks by each of its forms, voids leases and is durable", async () => {
    const { client, ids } = await filled("seek", 5);
    await client.subscribe("seek", "g", { from: "earliest" });
    const held = await client.nextMany(5);
    const seek = async (set: unknown, expected: unknown[]) => {
      await client.ok({ op: "CURSOR", topic: "seek", group: "g", set });
      const events = await client.nextMany(expected.length);
      assert.equal(payloads(events), expected, JSON.stringify(set));
      for (const event of events) assert.is(event.ctx.attempt, 1);
      return events;
    };
    await seek("earliest", [0, 1, 2, 3, 4]);
    assert.is((await client.ack(held[0], { lease: held[0].ctx.lease })).code, "lease_lost");
    await seek({ offsets: "0:3" }, [3, 4]);
    await seek({ lastId: ids[0] }, [1, 2, 3, 4]);
    // Others may have the same ts, so the event of that moment comes again.
    const last = await seek({ lastTs: 1003 }, [3, 4]);
    assert.is((await client.ack(last[1], { lease: last[1].ctx.lease })).op, "OK");
    await client.ok({ op: "CURSOR", topic: "seek", group: "g", set: "latest" });
    const state = await client.ok({ op: "CURSOR", topic: "seek", group: "g" });
    assert.equal([state.lag, state.lastId, state.partitions], [0, ids[4], [{ floor: 5, ranges: [], end: 5 }]]);
    await client.close();
  });

  test("LATEST gives the newest event of the keys asked for, and of all keys in pages over partitions", async () => {
    await fetch(`${http}/topics/latest`, { method: "PUT", headers: json, body: '{"partitions":3}' });
    const client = await PlainClient.open(ws);
    for (let i = 0; i < 1300; i++) void client.publish("latest", i, { key: `k${i % 1200}` });
    await client.publish("latest", "done", { key: "k0" });
    const some = await client.ok({ op: "LATEST", topic: "latest", keys: ["k0", "k5", "none"] });
    const found = (some.events as EventFrame["event"][]).map(({ key, payload }) => [key, payload]);
    assert.equal(found.sort(), [
      ["k0", "done"],
      ["k5", 1205],
    ]);
    const all = new Map<string, unknown>();
    let after: unknown;
    for (let pages = 0; pages < 20; pages++) {
      const page = await client.ok({ op: "LATEST", topic: "latest", ...(after === undefined ? {} : { after }) });
      for (const { key, payload } of page.events as EventFrame["event"][]) {
        assert.not(all.has(String(key)), `${key} came twice`);
        all.set(String(key), payload);
      }
      after = page.next;
      if (after === undefined) break;
    }
    assert.is(all.size, 1200);
    for (let k = 0; k < 1200; k++) assert.is(all.get(`k${k}`), k === 0 ? "done" : k < 100 ? 1200 + k : k);
    await client.close();
  });

  test("G3: retention by age removes events, the floor jumps and the skipped are counted", async () => {
    await fetch(`${http}/topics/aged`, { method: "PUT", headers: json, body: '{"retention":{"ageMs":300}}' });
    const client = await PlainClient.open(ws);
    await client.subscribe("aged", "g", { from: "earliest", maxInflight: 1 });
    for (let i = 0; i < 5; i++) await client.publish("aged", i);
    const held = await client.next();
    assert.is(held.event.payload, 0);
    await client.ok({ op: "PAUSE", topic: "aged", group: "g" });
    const topic = await eventually(5000, "the old are gone", async () => {
      const body = (await (await fetch(`${http}/topics/aged/offsets`)).json()) as {
        partitions: { start: number; end: number }[];
      };
      return body.partitions[0].start === 5 && body;
    });
    assert.is(topic.partitions[0].end, 5);
    await client.publish("aged", "young");
    await client.ok({ op: "RESUME", topic: "aged", group: "g" });
    assert.is((await client.next()).event.payload, "young");
    const metrics = await (await fetch(`${http}/metrics`)).text();
    assert.match(metrics, /^events_skipped_total\{topic="aged",group="g"\} 5$/m);
    assert.is(
      (await client.request({ op: "ACK", topic: "aged", group: "g", id: held.event.id, lease: held.ctx.lease })).code,
      "lease_lost",
    );
    await client.close();
  });

  test("a deleted topic is gone, its subscribers are told, and one of the same name shares nothing with it", async () => {
    const { client, ids } = await filled("gone", 3);
    await client.subscribe("gone", "g", { from: "earliest" });
    await client.nextMany(3);
    assert.is((await fetch(`${http}/topics/gone`, { method: "DELETE" })).status, 204);
    const told = await eventually(5000, "told", () =>
      client.others.find(({ op, topic }) => op === "ERR" && topic === "gone"),
    );
    assert.is(told.code, "unknown_topic");
    assert.is((await fetch(`${http}/replay?topic=gone`)).status, 404);
    const ok = await client.publish("gone", "again");
    assert.is(ok.offset, 0);
    assert.is.not(ok.id, ids[0]);
    assert.is(
      (await fetch(`${http}/replay?topic=gone&from=afterId&afterId=${ids[0]}`)).status,
      404,
      "an old id never matches",
    );
    const fresh = await client.subscribe("gone", "g", { from: "earliest" });
    assert.is(fresh.resumed, false, "nor does an old cursor");
    assert.is((await client.next()).event.payload, "again");
    await client.close();
  });

  test("G6: a topic made anew with other partitions finds its old dead-letter topic and adds to it", async () => {
    const die = async (partitions: number) => {
      await fetch(`${http}/topics/reborn`, { method: "PUT", headers: json, body: JSON.stringify({ partitions }) });
      const client = await PlainClient.open(ws);
      await client.subscribe("reborn", "g", { from: "earliest", maxAttempts: 1 });
      for (let i = 0; i < 8; i++) await client.publish("reborn", `${partitions}/${i}`, { key: `k${i}` });
      for (const event of await client.nextMany(8)) await client.nack(event);
      await client.close();
    };
    await die(1);
    assert.is((await fetch(`${http}/topics/reborn`, { method: "DELETE" })).status, 204);
    await die(4);
    const dead = await eventually(5000, "all sixteen", async () => {
      const body = (await (await fetch(`${http}/replay?topic=reborn.dlq.g`)).json()) as {
        events?: { payload: string }[];
      };
      return body.events?.length === 16 && body.events;
    });
    const expected = [1, 4].flatMap((partitions) => Array.from({ length: 8 }, (_, i) => `${partitions}/${i}`));
    assert.equal(dead.map(({ payload }) => payload).sort(), expected.sort());
  });

  test("an ephemeral group dies with its last member", async () => {
    const { client } = await filled("ephemeral", 2);
    await client.subscribe("ephemeral", "e", { from: "earliest", ephemeral: true });
    await client.nextMany(2);
    await client.close();
    await eventually(5000, "gone", async () => {
      const body = (await (await fetch(`${http}/cursors?topic=ephemeral`)).json()) as { cursors: unknown[] };
      return body.cursors.length === 0;
    });
  });

  test("options of the group are inherited, replaced or in conflict", async () => {
    const [one, two] = await Promise.all([PlainClient.open(ws), PlainClient.open(ws)]);
    await one.subscribe("options", "g", { ordering: "key", maxAttempts: 3 });
    assert.is(
      (await two.request({ op: "SUBSCRIBE", topic: "options", group: "g", opts: { ordering: "none" } })).code,
      "group_conflict",
    );
    assert.is(
      (await two.request({ op: "SUBSCRIBE", topic: "options", group: "g", opts: { filter: { key: "a" } } })).code,
      "group_conflict",
    );
    await two.subscribe("options", "g");
    await one.publish("options", 1);
    const events = await eventually(5000, "one of them", () => [...one.events, ...two.events][0]);
    assert.is(events.ctx.max_attempts, 3);
    await Promise.all([one.close(), two.close()]);
  });

  test("MODACK extends the lease from now and never redelivers", async () => {
    const client = await PlainClient.open(ws);
    await client.subscribe("extend", "g", { from: "earliest", ackTimeoutMs: 300 });
    await client.publish("extend", 1);
    const event = await client.next();
    const modack = (extend_ms: number) =>
      client.request({ op: "MODACK", topic: "extend", group: "g", id: event.event.id, extend_ms });
    for (let i = 0; i < 4; i++) {
      assert.is((await modack(400)).op, "OK");
      await pause(200);
    }
    assert.is(client.events.length, 0, "held well past its first deadline");
    assert.is((await client.ack(event, { lease: event.ctx.lease })).op, "OK");
    assert.is((await modack(400)).code, "unknown_id");
    await client.close();
  });

  test("PAUSE stops new deliveries, leases keep running, RESUME goes on", async () => {
    const client = await PlainClient.open(ws);
    await client.subscribe("pause", "g", { from: "earliest" });
    await client.ok({ op: "PAUSE", topic: "pause", group: "g" });
    await client.publish("pause", 1);
    await client.settle();
    await pause(50);
    assert.is(client.events.length, 0);
    await client.ok({ op: "RESUME", topic: "pause", group: "g" });
    assert.is((await client.next()).event.payload, 1);
    await client.close();
  });

  test("rights hold for each frame, and new credentials end what they do not cover", async () => {
    const client = await PlainClient.open(ws);
    await client.subscribe("closed", "g");
    await client.subscribe("open.a", "g");
    assert.is((await client.request({ op: "AUTH", token: "wrong" })).code, "bad_token");
    await client.publish("closed", "still allowed");
    await client.ok({ op: "AUTH", token: "reader" });
    const ended = await eventually(5000, "ended", () => client.others.find(({ op }) => op === "ERR"));
    assert.equal([ended.code, ended.topic, ended.group], ["forbidden", "closed", "g"]);
    assert.is((await client.request({ op: "PUBLISH", topic: "open.a", payload: 1 })).code, "forbidden");
    assert.is((await client.request({ op: "SUBSCRIBE", topic: "closed", group: "h" })).code, "forbidden");
    await client.subscribe("open.b", "h");
    const headers = { authorization: "Bearer reader" };
    assert.is(
      (await fetch(`${http}/publish/open.a`, { method: "POST", headers: { ...headers, ...json }, body: "1" })).status,
      403,
    );
    assert.is((await fetch(`${http}/topics/open.a`, { method: "DELETE", headers })).status, 403);
    await client.close();
  });

  test("batches: a batch is stored once under its producer and number, delivered in runs, settled by runs, fenced by tokens", async () => {
    const client = await BatchClient.open(ws);
    const handle = await client.handle("batches");
    const pack = encodePack([0, 1, 2, 3, 4].map((n) => ({ payload: new TextEncoder().encode(String(n)) })));
    const batch = { producer: "00112233445566778899aabbccddeeff", seq: 1 };
    const first = await client.publish(handle, pack, batch);
    const again = await client.publish(handle, pack, batch);
    assert.equal(
      [first.runs.map(({ status }) => status), again.runs.map(({ status }) => status)],
      [["stored"], ["duplicate"]],
    );
    assert.equal([again.runs[0].offset, again.runs[0].count], [first.runs[0].offset, 5]);
    const batches: EventsBatch[] = [];
    client.onEvents = (events) => batches.push(events);
    await client.subscribe("batches", "g", { from: "earliest" });
    const events = await eventually(5000, "the run", () => batches[0]);
    assert.equal([events.firstOffset, events.pack.count, events.attempt], [0, 5, 1]);
    const lost = await client.ack({ ...events, token: events.token + 100 });
    const { epoch, token } = events;
    assert.equal(
      lost.lost,
      [{ partition: 0, offset: 0, count: 5, epoch, token: token + 100 }],
      "another token settles nothing",
    );
    assert.is((await client.ack(events)).lost, undefined);
    const body = (await (await fetch(`${http}/lag?topic=batches&group=g`)).json()) as { lag: number };
    assert.is(body.lag, 0);
    const bad = encodePack([{ payload: new TextEncoder().encode("7,8") }]);
    await client.publish(handle, bad).then(
      () => assert.unreachable("a payload that is not JSON was stored"),
      (error: Error) => assert.match(error.message, "bad_json"),
    );
    client.close();
  });

  test("what a JSON client publishes reaches a batch client and the other way round, with key, tags and headers", async () => {
    const batch = await BatchClient.open(ws);
    const plain = await PlainClient.open(ws);
    const batches: EventsBatch[] = [];
    batch.onEvents = (events) => batches.push(events);
    await batch.subscribe("mixed", "batch", { from: "earliest" });
    await plain.subscribe("mixed", "plain", { from: "earliest" });
    await plain.publish(
      "mixed",
      { from: "plain ü" },
      { key: "schlüssel", tags: ["a"], headers: { h: "1" }, caused_by: ["x"], sid: "s" },
    );
    const seen = await eventually(5000, "seen", () => batches[0]);
    const extension = seen.pack.extension(0);
    assert.is(extension.key, "schlüssel");
    assert.equal(JSON.parse(extension.meta ?? ""), { sid: "s", headers: { h: "1" }, tags: ["a"], caused_by: ["x"] });
    assert.is(new TextDecoder().decode(seen.pack.payload(0)), '{"from":"plain ü"}');
    await batch.publish(
      await batch.handle("mixed"),
      encodePack([{ payload: new TextEncoder().encode('"b"'), key: "k", ts: 5 }]),
    );
    const [first, second] = await plain.nextMany(2);
    assert.equal([first.event.key, first.event.tags, first.event.caused_by], ["schlüssel", ["a"], ["x"]]);
    assert.equal([second.event.payload, second.event.key, second.event.ts], ["b", "k", 5]);
    batch.close();
    await plain.close();
  });
}
