// Events on their way to a socket: windows, credits, pauses, slow readers, and tables that come and go.

import { test } from "uvu";
import * as assert from "uvu/assert";
import type { MessageOf, Signal } from "../../src/actors/messages.ts";
import { failure } from "../../src/protocol/failure.ts";
import { makeId } from "../../src/protocol/ids.ts";
import { eventually, within } from "../support/deadline.ts";
import type { FakeSystem, Sent } from "../support/fake-system.ts";
import { type Stage, startFront } from "../support/front-stage.ts";
import { PlainClient } from "../support/plain-client.ts";

async function staged(run: (stage: Stage) => Promise<void>, ...args: Parameters<typeof startFront>): Promise<void> {
  const stage = await startFront(...args);
  try {
    await run(stage);
  } finally {
    await stage.close();
  }
}

const encoder = new TextEncoder();

function streamOf(join: Sent<"join">): number {
  return Number(join.to.cell.split("/")[1]);
}

/** What a lease table sends for so many events. */
function events(join: Sent<"join">, payloads: readonly (string | number)[]): Signal {
  const frames = payloads.map((payload) =>
    encoder.encode(JSON.stringify({ op: "EVENT", topic: "t", group: "g", event: { payload }, ctx: {} })),
  );
  const ends = new Uint32Array(frames.length);
  const joined = new Uint8Array(frames.reduce((sum, frame) => sum + frame.length, 0));
  let at = 0;
  for (const [i, frame] of frames.entries()) {
    joined.set(frame, at);
    at += frame.length;
    ends[i] = at;
  }
  const { member } = join.message;
  return { type: "events", member, stream: streamOf(join), count: frames.length, binary: false, frames: joined, ends };
}

function want(join: Sent<"join">, what: "slots" | "tokens" | "bytes"): Signal {
  const wants = { slots: false, tokens: false, bytes: false, [what]: true };
  return { type: "want", member: join.message.member, stream: streamOf(join), ...wants };
}

/** Grants to one seat, summed. */
function granted(system: FakeSystem, join: Sent<"join">) {
  const sum = { slots: 0, tokens: 0, bytes: 0 };
  for (const { message } of system.all("grant")) {
    if (message.member !== join.message.member) continue;
    sum.slots += message.slots;
    sum.tokens += message.tokens;
    sum.bytes += message.bytes;
  }
  return sum;
}

const turn = () => new Promise<void>((resolve) => setImmediate(resolve));

test("SUBSCRIBE joins with its options and is answered before anything is granted", () =>
  staged(async ({ url, system }) => {
    system.hold("join");
    const client = await PlainClient.open(url);
    const answer = client.subscribe("t", "g", {
      from: "earliest",
      maxInflight: 7,
      ackTimeoutMs: 500,
      batchSize: 3,
      maxAttempts: 2,
    });
    const join = await system.nth("join", 0);
    const { member, who, ...rest } = join.message;
    assert.match(who, /^connection \d+ from 127\.0\.0\.1:\d+$/);
    assert.equal(rest, {
      type: "join",
      options: { maxAttempts: 2 },
      start: { kind: "earliest" },
      ackTimeoutMs: 500,
      batchSize: 3,
      format: "json",
      handle: 1,
      rejoin: false,
    });
    await turn();
    assert.is(system.all("grant").length, 0);
    const options = { maxAttempts: 2, backoffMs: 0, ordering: "none", filter: null, ephemeral: false } as const;
    join.answer({ resumed: true, floor: 12, end: 20, options });
    const { corr: _, ...ok } = await answer;
    assert.equal(ok, { op: "OK", resumed: true, position: "0:12" });
    const grant = (await system.nth("grant", 0)).message;
    assert.equal([grant.member, grant.slots, grant.tokens], [member, 7, Number.POSITIVE_INFINITY]);
    const again = await client.request({ op: "SUBSCRIBE", topic: "t", group: "g" });
    assert.is(again.code, "already_subscribed");
    await client.close();
    const leave = (await system.nth("leave", 0)).message;
    assert.equal(leave, { type: "leave", member, written: 0, cause: "disconnect" });
  }));

test("events arrive as they were cut, and UNSUBSCRIBE's OK comes after the last of them", () =>
  staged(async ({ url, system }) => {
    const client = await PlainClient.open(url);
    await client.subscribe("t", "g");
    const join = await system.nth("join", 0);
    system.signal(events(join, [1, 2]));
    system.signal(events(join, [3]));
    const payloads = (await client.nextMany(3)).map(({ event }) => event.payload);
    assert.equal(payloads, [1, 2, 3]);
    await turn();
    system.hold("leave");
    const answer = client.ok({ op: "UNSUBSCRIBE", topic: "t", group: "g" });
    const leave = await system.nth("leave", 0);
    assert.equal([leave.message.written, leave.message.cause], [3, "unsubscribe"]);
    // Under way from the table when the client had asked to stop: it was not written and goes back uncounted.
    system.signal(events(join, ["too late"]));
    leave.answer(null);
    await answer;
    await client.settle();
    assert.is(client.events.length, 0);
    await client.subscribe("t", "g");
    assert.is.not((await system.nth("join", 1)).message.member, join.message.member);
    await client.close();
  }));

test("a second partition that refuses undoes the first, and the client hears why", () =>
  staged(
    async ({ url, system }) => {
      const client = await PlainClient.open(url);
      system.make("t");
      system.on("join", ({ member, options }, to) =>
        to.cell.startsWith("group/65/")
          ? failure("limit", "too many groups")
          : {
              resumed: false,
              floor: member * 0,
              end: 0,
              options: { maxAttempts: 9, backoffMs: 1, ordering: "key", filter: null, ephemeral: false, ...options },
            },
      );
      assert.is((await client.request({ op: "SUBSCRIBE", topic: "t", group: "g" })).code, "limit");
      const joins = system.all("join");
      assert.equal(
        joins.map(({ message }) => message.options.maxAttempts),
        [undefined, 9],
      );
      assert.equal(
        system.all("leave").map(({ message }) => message.member),
        joins.map(({ message }) => message.member),
      );
      system.on("join", () => failure("group_conflict", "another filter"));
      system.sent.length = 0;
      assert.is((await client.request({ op: "SUBSCRIBE", topic: "t", group: "g" })).code, "group_conflict");
      assert.is(system.all("join").length, 1);
      await client.close();
    },
    { partitions: 2 },
  ));

test("from: each place becomes one start per partition", () =>
  staged(
    async ({ url, system }) => {
      const client = await PlainClient.open(url);
      system.make("t");
      let group = 0;
      const starts = async (opts: Record<string, unknown>) => {
        system.sent.length = 0;
        const { code } = await client.request({ op: "SUBSCRIBE", topic: "t", group: `g${group++}`, opts });
        return code ?? system.all("join").map(({ message }) => message.start);
      };
      assert.equal(await starts({}), [{ kind: "latest" }, { kind: "latest" }]);
      assert.equal(await starts({ from: "ts", ts: 5 }), [
        { kind: "ts", ts: 5 },
        { kind: "ts", ts: 5 },
      ]);
      assert.equal(await starts({ from: "offsets", offsets: "1:8" }), [
        { kind: "earliest" },
        { kind: "offset", offset: 8 },
      ]);
      assert.equal(await starts({ from: "offsets", offsets: "2:8" }), "bad_option");
      system.on("locateId", ({ id }, to) =>
        to.cell === "partition/65" && id !== "gone" ? { offset: 3, ts: 77 } : failure("unknown_id", "not here"),
      );
      const found = [
        { kind: "ts", ts: 77 },
        { kind: "offset", offset: 4 },
      ];
      assert.equal(await starts({ from: "afterId", afterId: makeId(1, 3, 1, 0) }), found);
      assert.equal(
        system.all("locateId").map(({ to }) => to.cell),
        ["partition/65"],
      );
      assert.equal(await starts({ from: "afterId", afterId: "own" }), found);
      // Looks like an id of ours that lies in partition 0, but a publisher brought it.
      assert.equal(await starts({ from: "afterId", afterId: makeId(1, 3, 0, 0) }), found);
      // A group that has a cursor does not need the event any more.
      assert.equal(await starts({ from: "afterId", afterId: "gone" }), [{ kind: "latest" }, { kind: "latest" }]);
      const none = { exists: false, floor: 0, ranges: [], start: 0, end: 0, lag: 0, leased: 0, waiting: 0, members: 0 };
      system.on("cursor", () => none);
      assert.equal(await starts({ from: "afterId", afterId: "gone" }), "unknown_id");
      await client.close();
    },
    { partitions: 2 },
  ));

test("with several partitions slots are granted on want, called back for others, and never exceed maxInflight", () =>
  staged(
    async ({ url, system, clock }) => {
      const client = await PlainClient.open(url);
      await client.subscribe("t", "g", { maxInflight: 1 });
      const joins = system.all("join");
      await system.nth("grant", 3);
      for (const join of joins) assert.is(granted(system, join).slots, 0);
      system.signal(want(joins[0], "slots"));
      assert.is(granted(system, joins[0]).slots, 1);
      system.signal(events(joins[0], ["a"]));
      system.signal(want(joins[1], "slots"));
      system.signal(want(joins[2], "slots"));
      const recalls = () => system.all("recall").map(({ message }) => [message.member, message.slots]);
      assert.equal(recalls(), [[joins[0].message.member, 1]]);
      assert.is(granted(system, joins[1]).slots, 0);
      const release = (join: Sent<"join">): Signal => ({
        type: "release",
        member: join.message.member,
        stream: streamOf(join),
        slots: 1,
      });
      system.signal(release(joins[0]));
      assert.equal([granted(system, joins[1]).slots, granted(system, joins[2]).slots], [1, 0]);
      // Not used yet: it may keep the slot for a moment, then the next one's turn comes by time.
      assert.is(recalls().length, 1);
      clock.advance(100);
      assert.equal(recalls()[1], [joins[1].message.member, 1]);
      system.signal(release(joins[1]));
      assert.is(granted(system, joins[2]).slots, 1);
      await client.close();
    },
    { partitions: 4 },
  ));

test("tokens come from the connection's delivery rate, on want, and are waited for when it is used up", () =>
  staged(
    async ({ url, system, clock }) => {
      const client = await PlainClient.open(url);
      await client.subscribe("t", "g");
      const join = await system.nth("join", 0);
      await system.nth("grant", 0);
      assert.is(granted(system, join).tokens, 0);
      const tokens = async (at: number) => {
        system.signal(want(join, "tokens"));
        await eventually(5000, "tokens", () => granted(system, join).tokens >= at);
        return granted(system, join).tokens;
      };
      let had = 0;
      while (had < 20) had = await tokens(had + 1);
      assert.is(had, 20);
      system.signal(want(join, "tokens"));
      for (let i = 0; i < 5; i++) await turn();
      assert.is(granted(system, join).tokens, 20);
      clock.advance(1000);
      await eventually(5000, "more tokens", () => granted(system, join).tokens > 20);
      assert.ok(granted(system, join).tokens <= 31);
      assert.ok(system.all("take").every(({ to }) => to.cell.includes("deliver/")));
      await client.close();
      await eventually(5000, "the bucket is given up", () => system.all("endBucket").length === 1);
    },
    { connRate: { burst: 20, perSec: 10 } },
  ));

test("bytes are topped up as the socket takes them", () =>
  staged(async ({ url, system }) => {
    const client = await PlainClient.open(url);
    await client.subscribe("t", "g");
    const join = await system.nth("join", 0);
    await system.nth("grant", 0);
    const first = granted(system, join).bytes;
    assert.is(first, 256 * 1024);
    const small = events(join, ["small"]);
    system.signal(small);
    await client.next();
    await turn();
    assert.is(granted(system, join).bytes, first);
    system.signal(want(join, "bytes"));
    const size = small.type === "events" ? small.frames.length : 0;
    assert.is(granted(system, join).bytes, first + size);
    const large = events(join, ["x".repeat(100_000)]);
    system.signal(large);
    await client.next();
    const largeSize = large.type === "events" ? large.frames.length : 0;
    await eventually(5000, "a top-up", () => granted(system, join).bytes === first + size + largeSize);
    await client.close();
  }));

test("PAUSE is answered when nothing more can come, RESUME opens again", () =>
  staged(async ({ url, system }) => {
    const client = await PlainClient.open(url);
    await client.subscribe("t", "g");
    const join = await system.nth("join", 0);
    system.hold("flow");
    let paused = false;
    const answer = client.ok({ op: "PAUSE", topic: "t", group: "g" }).then(() => {
      paused = true;
    });
    const flow = await system.nth("flow", 0);
    system.signal(events(join, ["under way"]));
    await client.next();
    assert.is(paused, false);
    assert.equal(flow.message, {
      type: "flow",
      member: join.message.member,
      open: false,
      stalled: false,
      written: 0,
    });
    flow.answer(null);
    await answer;
    const resumed = client.ok({ op: "RESUME", topic: "t", group: "g" });
    const open = await system.nth("flow", 1);
    assert.equal([open.message.open, open.message.written], [true, 1]);
    open.answer(null);
    await resumed;
    await client.close();
  }));

test("a table that asks is told how much was handed to the socket of its member", () =>
  staged(async ({ url, system }) => {
    const client = await PlainClient.open(url);
    await client.subscribe("t", "g");
    const join = await system.nth("join", 0);
    const { member } = join.message;
    system.signal(events(join, [1, 2]));
    system.signal({ type: "overdue", member, stream: streamOf(join) });
    assert.equal((await system.nth("handed", 0)).message, { type: "handed", member, handed: 2 });
    system.signal(events(join, [3]));
    system.signal({ type: "overdue", member, stream: streamOf(join) });
    assert.is((await system.nth("handed", 1)).message.handed, 3);
    await client.close();
    await system.nth("leave", 0);
    // Whoever left has said so already.
    system.signal({ type: "overdue", member, stream: streamOf(join) });
    await turn();
    assert.is(system.all("handed").length, 2);
  }));

/** Fills the socket of a client that does not read until the front holds some of it back. */
async function choke(stage: Stage, client: PlainClient, join: Sent<"join">): Promise<number> {
  client.socket.pause();
  let sent = 0;
  const filler = "f".repeat(100_000);
  const unsent = () => stage.front.stats().find(({ name }) => name === "unsent_bytes")?.value as number;
  for (; unsent() === 0 || sent < 20; sent++) {
    assert.ok(sent < 500, "the kernel takes everything");
    stage.system.signal(events(join, [filler]));
    await turn();
    await turn();
  }
  return sent;
}

const flows = (system: FakeSystem): MessageOf<"flow">[] => system.all("flow").map(({ message }) => message);

test("a client that does not read gets nothing new past its bytes, is told apart from one that does, and goes on when it reads", () =>
  staged(
    async (stage) => {
      const { url, system, front } = stage;
      const client = await PlainClient.open(url);
      const other = await PlainClient.open(url);
      await client.subscribe("t", "g");
      await other.subscribe("u", "g");
      const [join, otherJoin] = system.all("join");
      const sent = await choke(stage, client, join);
      const [stalled] = await eventually(5000, "a stall", () => flows(system).length > 0 && flows(system));
      assert.equal([stalled.member, stalled.open, stalled.stalled], [join.message.member, false, true]);
      assert.ok(stalled.written < sent, `${stalled.written} of ${sent} are said to be written`);
      const before = granted(system, join).bytes;
      system.signal(want(join, "bytes"));
      await turn();
      assert.is(granted(system, join).bytes, before);
      system.signal(events(otherJoin, ["mine"]));
      assert.is((await other.next()).event.payload, "mine");
      const slow = front.stats().find(({ name }) => name === "slow_clients_paused_total");
      assert.is(slow?.value, 1);
      client.socket.resume();
      const got = await client.nextMany(sent);
      assert.is(got.length, sent);
      const opened = await eventually(5000, "flow", () => flows(system).find(({ open }) => open));
      assert.equal([opened.stalled], [false]);
      await eventually(5000, "bytes", () => granted(system, join).bytes > before);
      await client.ok({ op: "UNSUBSCRIBE", topic: "t", group: "g" });
      assert.is((await system.nth("leave", 0)).message.written, sent);
      await client.close();
      await other.close();
    },
    { limits: { unsentBytesMax: 100_000 } },
  ));

test("one that takes nothing for stalledMs is closed with 4408 and its leases go back with what was written", () =>
  staged(
    async (stage) => {
      const { url, system, clock, front } = stage;
      const client = await PlainClient.open(url);
      await client.subscribe("t", "g");
      const join = await system.nth("join", 0);
      const sent = await choke(stage, client, join);
      for (let waited = 0; waited < 900; waited += 100) {
        await turn();
        clock.advance(100);
      }
      assert.is(system.all("leave").length, 0);
      assert.ok(flows(system).some(({ stalled }) => stalled));
      for (let waited = 0; waited < 800; waited += 100) {
        await turn();
        clock.advance(100);
      }
      const leave = (await system.nth("leave", 0)).message;
      assert.equal(leave.cause, "disconnect");
      assert.ok(leave.written < sent);
      assert.is(front.stats().find(({ name }) => name === "slow_clients_closed_total")?.value, 1);
      client.socket.resume();
      const { code, reason } = await within(5000, "close", client.closed);
      assert.equal([code, reason], [4408, "nothing was taken for 1000 ms"]);
    },
    { limits: { stalledMs: 1000 } },
  ));

test("a client that publishes and never reads its OKs is not read either", () =>
  staged(
    async (stage) => {
      const { url, system, front } = stage;
      const client = await PlainClient.open(url);
      client.socket.pause();
      const topic = "t".repeat(150);
      const id = (n: number) => `${"i".repeat(120)}${n}`;
      const published = () => front.publishing.published().get(topic) ?? 0;
      let sent = 0;
      // Each OK carries the id, so the answers fill the way back.
      const frame = () => JSON.stringify({ op: "PUBLISH", topic, payload: 0, opts: { id: id(sent++) } });
      let stuck = 0;
      for (let before = -1; stuck < 20; ) {
        assert.ok(sent < 400_000, "everything was read");
        for (let i = 0; i < 500; i++) client.socket.send(frame());
        for (let i = 0; i < 3; i++) await turn();
        stuck = published() === before ? stuck + 1 : 0;
        before = published();
      }
      const unsent = front.stats().find(({ name }) => name === "unsent_bytes")?.value as number;
      assert.ok(unsent < 2_000_000, `${unsent} bytes are held for it`);
      assert.ok(system.all("publish").length > 0);
      client.socket.terminate();
    },
    { limits: { unsentBytesMax: 50_000 } },
  ));

test("after a shard came back the subscription joins there anew, with fresh slots, and tells the client nothing", () =>
  staged(
    async ({ url, system, clock }) => {
      const client = await PlainClient.open(url);
      await client.subscribe("t", "g", { maxInflight: 4 });
      const joins = [...system.all("join")];
      for (const join of joins) system.signal(want(join, "slots"));
      const held = () => joins.map((join) => granted(system, join).slots);
      assert.equal(held(), [4, 0]);
      const shard = joins[0].to.shard;
      system.events?.shardDown(shard, "the worker died");
      // What the lost table held is free again.
      assert.is(granted(system, joins[1]).slots, 4);
      system.on("join", () => failure("unavailable", "not yet"));
      system.events?.shardUp(shard, 2);
      const failed = await system.nth("join", 2);
      assert.equal([failed.to.cell, failed.message.rejoin], [joins[0].to.cell, true]);
      assert.is.not(failed.message.member, joins[0].message.member);
      await turn();
      await turn();
      system.on("join", () => ({
        resumed: true,
        floor: 3,
        end: 9,
        options: { maxAttempts: 5, backoffMs: 0, ordering: "none", filter: null, ephemeral: false },
      }));
      clock.advance(200);
      const again = await system.nth("join", 3);
      await eventually(5000, "the first grant", () => granted(system, again).bytes > 0);
      system.signal(events(joins[0], ["of the dead"]));
      system.signal(want(again, "slots"));
      clock.advance(300);
      const recall = await system.nth("recall", 0);
      assert.is(recall.message.member, joins[1].message.member);
      system.signal({ type: "release", member: joins[1].message.member, stream: streamOf(joins[1]), slots: 2 });
      assert.is(granted(system, again).slots, 2);
      system.signal(events(again, ["alive"]));
      assert.is((await client.next()).event.payload, "alive");
      assert.equal(client.others, []);
      assert.is(client.events.length, 0);
      const ack = client.request({ op: "ACK", topic: "t", group: "g", id: makeId(1, 0, 0, 0) });
      assert.is((await system.nth("settle", 0)).message.member, again.message.member);
      await ack;
      await client.close();
    },
    { partitions: 2 },
  ));

test("a paused subscription is paused where it joins anew, and a table that was started again is joined again", () =>
  staged(async ({ url, system }) => {
    const client = await PlainClient.open(url);
    await client.subscribe("t", "g");
    const join = await system.nth("join", 0);
    await client.ok({ op: "PAUSE", topic: "t", group: "g" });
    system.events?.cellRestarted({ shard: join.to.shard, cell: "group/1/other" });
    system.events?.cellRestarted(join.to);
    const again = await system.nth("join", 1);
    assert.is(again.message.rejoin, true);
    const grant = await system.nth("grant", 1);
    assert.equal([grant.message.member, grant.message.slots], [again.message.member, 100]);
    const flow = flows(system).find(({ member }) => member === again.message.member);
    assert.is(flow?.open, false);
    const at = (type: string, member: number) =>
      system.sent.findIndex(({ message }) => message.type === type && "member" in message && message.member === member);
    assert.ok(at("flow", again.message.member) < at("grant", again.message.member));
    assert.is(system.all("join").length, 2);
    await client.close();
  }));

test("a group that is removed ends its subscription with an ERR that names it", () =>
  staged(
    async ({ url, system }) => {
      const client = await PlainClient.open(url);
      await client.subscribe("t", "g");
      const joins = system.all("join");
      const ended = failure("unknown_topic", "the group or its topic was deleted");
      for (const join of joins) {
        system.signal({ type: "ended", member: join.message.member, stream: streamOf(join), failure: ended });
      }
      await client.settle();
      assert.equal(client.others, [
        { op: "ERR", code: "unknown_topic", msg: "the group or its topic was deleted", topic: "t", group: "g" },
      ]);
      assert.is((await client.request({ op: "PAUSE", topic: "t", group: "g" })).code, "not_subscribed");
      await client.subscribe("t", "g");
      system.on("join", () => failure("unknown_topic", "the topic was deleted"));
      system.events?.shardUp(0, 3);
      system.events?.shardUp(1, 3);
      await eventually(5000, "the end", () => client.others.length === 2);
      assert.is(client.others[1].code, "unknown_topic");
      await client.close();
    },
    { partitions: 2 },
  ));

test("a group that is removed while it is being joined is joined at no other partition", () =>
  staged(
    async ({ url, system }) => {
      const client = await PlainClient.open(url);
      system.on("join", ({ member, options }, to) => {
        const stream = Number(to.cell.split("/")[1]);
        // The answer to a join waits for its commit; that the group has ended is said at once.
        system.signal({ type: "ended", member, stream, failure: failure("unknown_topic", "the group was deleted") });
        const all = { maxAttempts: 5, backoffMs: 0, ordering: "none", filter: null, ephemeral: false } as const;
        return { resumed: false, floor: 0, end: 0, options: { ...all, ...options } };
      });
      assert.is((await client.request({ op: "SUBSCRIBE", topic: "t", group: "g" })).code, "unknown_topic");
      const members = (type: "join" | "leave") => system.all(type).map(({ message }) => message.member);
      assert.is(members("join").length, 1);
      assert.equal(members("leave"), members("join"));
      await client.close();
    },
    { partitions: 4 },
  ));

for (const [why, refusal] of [
  ["that a busy worker refused", failure("overloaded", "busy", 100)],
  ["of which nothing was heard in time", failure("unavailable", "no answer within 30 ms", 100)],
] as const) {
  test(`a PAUSE ${why} is asked again before its OK, with what is wanted by then`, () =>
    staged(async ({ url, system, clock }) => {
      const client = await PlainClient.open(url);
      await client.subscribe("t", "g");
      let busy = true;
      system.on("flow", () => (busy ? refusal : null));
      let done = 0;
      const answers = ["PAUSE", "RESUME", "PAUSE"].map((op) =>
        client.ok({ op, topic: "t", group: "g" }).then(() => {
          done++;
        }),
      );
      await system.nth("flow", 2);
      await client.ok({ op: "CURSOR", topic: "t", group: "g" });
      assert.is(done, 0);
      busy = false;
      clock.advance(100);
      await Promise.all(answers);
      assert.equal(
        flows(system).map(({ open }) => open),
        [false, true, false, false],
      );
      await client.close();
    }));
}

test("a leave that a busy worker refused is told all the same", () =>
  staged(
    async ({ url, system }) => {
      const client = await PlainClient.open(url);
      await client.subscribe("t", "g");
      system.on("leave", () => failure("overloaded", "busy", 100));
      await client.ok({ op: "UNSUBSCRIBE", topic: "t", group: "g" });
      const told = system.all("leave").map(({ message }) => message.member);
      const members = system.all("join").map(({ message }) => message.member);
      assert.equal(told, [...members, ...members]);
      await client.close();
    },
    { partitions: 2 },
  ));

test("a client that goes while its SUBSCRIBE is under way leaves no bucket behind", () =>
  staged(
    async ({ url, system }) => {
      const client = await PlainClient.open(url);
      system.hold("join");
      client.socket.send('{"op":"SUBSCRIBE","topic":"t","group":"g"}');
      const join = await system.nth("join", 0);
      client.socket.terminate();
      await within(5000, "the close", client.closed);
      const other = await PlainClient.open(url);
      system.signal(want(join, "tokens"));
      const take = await system.nth("take", 0);
      const end = await system.nth("endBucket", 0);
      assert.equal(end.to, take.to);
      await other.close();
    },
    { connRate: { burst: 5, perSec: 5 } },
  ));

test("a connection has so many subscriptions and no more", () =>
  staged(
    async ({ url }) => {
      const client = await PlainClient.open(url);
      await client.subscribe("t", "a");
      await client.subscribe("t", "b");
      assert.is((await client.request({ op: "SUBSCRIBE", topic: "t", group: "c" })).code, "limit");
      await client.ok({ op: "UNSUBSCRIBE", topic: "t", group: "a" });
      await client.subscribe("t", "c");
      await client.close();
    },
    { limits: { subscriptionsPerConnectionMax: 2 } },
  ));

test.run();
