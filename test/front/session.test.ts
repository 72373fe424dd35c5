// A connection from outside: what is answered to which frame, in which order, with which code.

import { test } from "uvu";
import * as assert from "uvu/assert";
import { WebSocket } from "ws";
import type { AuthResult } from "../../src/front/auth.ts";
import { rightsFromScopes } from "../../src/front/auth.ts";
import { encodePublish, encodeSettle } from "../../src/protocol/batch.ts";
import { failure } from "../../src/protocol/failure.ts";
import { makeId } from "../../src/protocol/ids.ts";
import { jumpHash } from "../../src/protocol/jump-hash.ts";
import { encodePack, PackView } from "../../src/protocol/pack.ts";
import { BatchClient } from "../support/batch-client.ts";
import { eventually, within } from "../support/deadline.ts";
import { type Stage, startFront } from "../support/front-stage.ts";
import { type Frame, PlainClient } from "../support/plain-client.ts";

const text = (bytes: Uint8Array) => new TextDecoder().decode(bytes);
const bytes = (value: string) => new TextEncoder().encode(value);

/** Runs with a front of its own, which is closed whatever happens. */
async function staged(run: (stage: Stage) => Promise<void>, ...args: Parameters<typeof startFront>): Promise<void> {
  const stage = await startFront(...args);
  try {
    await run(stage);
  } finally {
    await stage.close();
  }
}

/** A socket without the AUTH that PlainClient sends, and what comes back on it. */
async function raw(url: string, options: object = {}) {
  const socket = new WebSocket(url, options);
  const frames: Frame[] = [];
  const takers: ((frame: Frame) => void)[] = [];
  socket.on("message", (data) => {
    const frame = JSON.parse(data.toString()) as Frame;
    const taker = takers.shift();
    if (taker === undefined) frames.push(frame);
    else taker(frame);
  });
  const closed = new Promise<{ code: number; reason: string }>((resolve) => {
    socket.on("close", (code, reason) => resolve({ code, reason: reason.toString() }));
  });
  await within(5000, "open", new Promise((resolve, reject) => socket.on("open", resolve).on("error", reject)));
  const next = (): Promise<Frame> => {
    const frame = frames.shift();
    if (frame !== undefined) return Promise.resolve(frame);
    return within(5000, "a frame", new Promise((resolve) => takers.push(resolve)));
  };
  const send = (frame: object | string | Uint8Array) =>
    socket.send(typeof frame === "string" || frame instanceof Uint8Array ? frame : JSON.stringify(frame));
  return { socket, next, send, closed: () => within(5000, "closed", closed) };
}

test("what is no frame gets its code and leaves the connection usable", () =>
  staged(async ({ url }) => {
    const client = await raw(url);
    client.send({ op: "AUTH", corr: 0 });
    assert.equal(await client.next(), { op: "OK", corr: 0 });
    const cases: [string | object, string][] = [
      ["{", "bad_json"],
      ["[]", "bad_frame"],
      ["7", "bad_frame"],
      [{ op: "NOPE" }, "bad_frame"],
      [{}, "bad_frame"],
      [{ op: "PUBLISH", topic: "t" }, "bad_frame"],
      [{ op: "PUBLISH", topic: 7, payload: 1 }, "bad_frame"],
      [{ op: "PUBLISH", topic: "a b", payload: 1 }, "bad_topic"],
      [{ op: "PUBLISH", topic: "$sys", payload: 1 }, "bad_topic"],
      [{ op: "PUBLISH", topic: "t", payload: 1, opts: { ts: -1 } }, "bad_option"],
      [{ op: "PUBLISH", topic: "t", payload: 1, opts: { colour: 1 } }, "bad_option"],
      [{ op: "SUBSCRIBE", topic: "t", group: "a b" }, "bad_group"],
      [{ op: "SUBSCRIBE", topic: "t", group: "g", opts: { maxInflight: -1 } }, "bad_option"],
      [{ op: "MODACK", topic: "t", group: "g", id: "x", extend_ms: -5 }, "bad_frame"],
      [`{"op":"PUBLISH","topic":"t","payload":${"[".repeat(70)}${"]".repeat(70)}}`, "bad_frame"],
      [new Uint8Array([0x7f, 0, 0, 0, 9, 0, 0, 0]), "bad_frame"],
      [new Uint8Array([1, 2]), "bad_frame"],
    ];
    for (const [frame, code] of cases) {
      client.send(frame);
      const answer = await client.next();
      assert.equal([answer.op, answer.code], ["ERR", code], JSON.stringify(frame).slice(0, 80));
    }
    client.send({ op: "PUBLISH", topic: "t", payload: 1, corr: "still" });
    assert.is((await client.next()).corr, "still");
    client.socket.close();
  }));

test("an event over MAX_PAYLOAD is too_large, a frame over MAX_FRAME closes with 1009", () =>
  staged(
    async ({ url }) => {
      const client = await PlainClient.open(url);
      const answer = await client.request({ op: "PUBLISH", topic: "t", payload: "x".repeat(600) });
      assert.is(answer.code, "too_large");
      await client.publish("t", "fits");
      client.socket.send("y".repeat(3000));
      assert.is((await within(5000, "close", client.closed)).code, 1009);
    },
    { maxPayload: 500, maxFrame: 2000 },
  ));

test("who sends small frames by the thousand gets through with a few hundred of them in a turn, and others have theirs in between", () =>
  staged(async ({ front }) => {
    const count = 5000;
    const corrs: unknown[] = [];
    const wire = (onText: (frame: Frame) => void) => {
      const events = { opened: () => undefined, binary: () => undefined, closed: () => undefined };
      return front.connectInside({ ...events, text: (frame) => onText(JSON.parse(frame) as Frame) });
    };
    const many = wire(({ corr }) => void corrs.push(corr));
    const before = new Promise<number>((resolve) => {
      const one = wire(() => resolve(corrs.length));
      for (let corr = 0; corr < count; corr++) many.send(JSON.stringify({ op: "PING", corr }));
      one.send('{"op":"PING"}');
    });
    const answered = await within(5000, "the answer of the other", before);
    assert.ok(answered < count / 4, `${answered} answers came before it`);
    await eventually(5000, "the rest", () => corrs.length === count);
    assert.equal(
      corrs,
      Array.from({ length: count }, (_, i) => i),
    );
    many.close();
  }));

test("a frame before AUTH is unauthorized, and one behind a pending AUTH waits for it", async () => {
  let letIn: (result: AuthResult) => void = () => undefined;
  const auth = () =>
    new Promise<AuthResult>((resolve) => {
      letIn = resolve;
    });
  await staged(
    async ({ url, system }) => {
      const client = await raw(url);
      client.send({ op: "PUBLISH", topic: "t", payload: 1, corr: 1 });
      assert.equal([(await client.next()).code], ["unauthorized"]);
      client.send({ op: "AUTH", corr: 2 });
      client.send({ op: "PUBLISH", topic: "t", payload: "two", corr: 3 });
      client.send({ op: "UNSUBSCRIBE", topic: "t", group: "g", corr: 4 });
      client.socket.ping();
      await within(5000, "pong", new Promise((resolve) => client.socket.once("pong", resolve)));
      assert.is(system.sent.filter(({ message }) => message.type === "publish").length, 0);
      letIn({ ok: true });
      assert.equal(await client.next(), { op: "OK", corr: 2 });
      const rest = [await client.next(), await client.next()];
      assert.equal(new Set(rest.map(({ op, corr }) => `${op} ${corr}`)), new Set(["OK 3", "ERR 4"]));
      client.socket.close();
    },
    {},
    { auth },
  );
});

test("no AUTH in time closes with 4401, also when frames came", () =>
  staged(async ({ url, clock, config }) => {
    const client = await raw(url);
    client.send({ op: "PUBLISH", topic: "t", payload: 1 });
    await client.next();
    clock.advance(config.limits.authMs - 1);
    client.send({ op: "PUBLISH", topic: "t", payload: 1 });
    assert.is((await client.next()).code, "unauthorized");
    clock.advance(2000);
    assert.is((await client.closed()).code, 4401);
  }));

test("a bad token is refused with the hook's code and the connection may try again", () =>
  staged(
    async ({ url }) => {
      const client = await raw(url);
      client.send({ op: "AUTH", corr: 1 });
      client.send({ op: "AUTH", token: "wrong", corr: 2 });
      client.send({ op: "AUTH", token: "secret", corr: 3 });
      const codes = [await client.next(), await client.next(), await client.next()].map(({ op, code }) => code ?? op);
      assert.equal(codes, ["unauthorized", "bad_token", "OK"]);
      client.socket.close();
    },
    { token: "secret" },
  ));

test("an auth hook that throws, rejects or never answers is unavailable", async () => {
  const hooks: (() => Promise<AuthResult>)[] = [
    () => {
      throw new Error("thrown");
    },
    () => Promise.reject(new Error("rejected")),
    () => new Promise(() => undefined),
  ];
  for (const auth of hooks) {
    await staged(
      async ({ url, clock }) => {
        const client = await raw(url);
        client.send({ op: "AUTH" });
        client.socket.ping();
        await within(5000, "pong", new Promise((resolve) => client.socket.once("pong", resolve)));
        clock.advance(25);
        assert.is((await client.next()).code, "unavailable");
        client.socket.close();
      },
      { limits: { authMs: 50 } },
      { auth },
    );
  }
});

test("AUTH again replaces the rights: subscriptions outside them end with forbidden, a refused one changes nothing", async () => {
  const auth = async (token: string | undefined): Promise<AuthResult> =>
    token === "no" ? { ok: false, code: "jwt_invalid", msg: "no" } : { ok: true, subScopes: (token ?? "").split(" ") };
  await staged(
    async ({ url, system }) => {
      const client = await PlainClient.open(url, "subscribe:** publish:a.*");
      await client.subscribe("a.x", "g");
      await client.subscribe("b.x", "g");
      assert.is((await client.request({ op: "PUBLISH", topic: "b.x", payload: 1 })).code, "forbidden");
      assert.is((await client.request({ op: "AUTH", token: "no" })).code, "bad_token");
      await client.publish("a.x", 1);
      await client.ok({ op: "AUTH", token: "subscribe:a.*" });
      const left = await system.nth("leave", 0);
      assert.equal([left.message.cause, left.to.cell], ["unsubscribe", (await system.nth("join", 1)).to.cell]);
      await client.settle();
      assert.equal(
        client.others.map(({ op, code, topic, group }) => ({ op, code, topic, group })),
        [{ op: "ERR", code: "forbidden", topic: "b.x", group: "g" }],
      );
      assert.is((await client.request({ op: "PUBLISH", topic: "a.x", payload: 1 })).code, "forbidden");
      assert.is((await client.request({ op: "SUBSCRIBE", topic: "b.x", group: "h" })).code, "forbidden");
      assert.is((await client.request({ op: "CURSOR", topic: "b.x", group: "h" })).code, "forbidden");
      assert.is((await client.request({ op: "UNSUBSCRIBE", topic: "a.x", group: "g" })).op, "OK");
      await client.close();
    },
    {},
    { auth },
  );
});

test("the OK to a PUBLISH names id, ts, partition, offset and durability; a duplicate says so", () =>
  staged(async ({ url, system }) => {
    const client = await PlainClient.open(url);
    system.on("publish", (message) => {
      const pack = new PackView(message.pack);
      assert.is(text(pack.payload(0)), '{"a":1}');
      const run = { index: 0, count: 1, offset: 12, storedAt: 1_700_000_000_123, salt: 9 };
      return { durability: "fsync", runs: [pack.id(0) === "own" ? { ...run, duplicate: { ts: 77 } } : run] };
    });
    const { corr: _, ...ok } = await client.publish("t", { a: 1 });
    const id = makeId(1_700_000_000_123, 12, 0, 9);
    assert.equal(ok, { op: "OK", id, ts: 1_700_000_000_123, partition: 0, offset: 12, durability: "fsync" });
    const { corr: __, ...again } = await client.publish("t", { a: 1 }, { id: "own", ts: 5 });
    assert.equal(again, {
      op: "OK",
      id: "own",
      ts: 77,
      partition: 0,
      offset: 12,
      durability: "fsync",
      duplicate: true,
    });
    await client.close();
  }));

test("PUBLISHes of one turn to one partition are one message, and each gets its own OK", () =>
  staged(async ({ url, system }) => {
    const client = await PlainClient.open(url);
    await client.publish("t", "warm");
    system.sent.length = 0;
    const oks = await Promise.all(["a", "b", "c"].map((payload) => client.publish("t", payload)));
    const packs = system.all("publish").map(({ message }) => new PackView(message.pack));
    assert.is(packs.length, 1);
    assert.equal(
      [0, 1, 2].map((i) => text(packs[0].payload(i))),
      ['"a"', '"b"', '"c"'],
    );
    assert.equal(
      oks.map(({ offset }) => offset),
      [1, 2, 3],
    );
    await client.close();
  }));

test("a failure of the partition is the answer to each PUBLISH, and the topic is resolved anew where it is not known", () =>
  staged(async ({ url, system }) => {
    const client = await PlainClient.open(url);
    const publish = (payload: number) => client.request({ op: "PUBLISH", topic: "t", payload });
    system.on("publish", () => failure("unavailable", "the worker died", 50));
    for (const { code, retry_after_ms } of await Promise.all([1, 2].map(publish))) {
      assert.equal([code, retry_after_ms], ["unavailable", 50]);
    }
    system.on("publish", () => failure("unknown_topic", "not open"));
    assert.is((await publish(3)).code, "unknown_topic");
    assert.is(system.all("resolve").length, 1);
    // Without a way to the topic the event is surely not stored, which `unavailable` would leave open.
    system.on("resolve", () => failure("unavailable", "shard 0 is down"));
    assert.is((await publish(4)).code, "publish_failed");
    assert.is(system.all("resolve").length, 2);
    await client.close();
  }));

test("a topic that may not be made is unknown_topic", () =>
  staged(
    async ({ url }) => {
      const client = await PlainClient.open(url);
      assert.is((await client.request({ op: "PUBLISH", topic: "t", payload: 1 })).code, "unknown_topic");
      assert.is((await client.request({ op: "SUBSCRIBE", topic: "t", group: "g" })).code, "unknown_topic");
      await client.close();
    },
    { autoCreate: false },
  ));

test("dead letters can be waited for before there are any, and cannot be published", () =>
  staged(async ({ url, system }) => {
    const client = await PlainClient.open(url);
    assert.is((await client.request({ op: "PUBLISH", topic: "t.dlq.g", payload: 1 })).code, "bad_topic");
    assert.equal(system.all("deadLetter"), []);
    const { id } = system.make("t");
    await client.subscribe("t.dlq.g", "h");
    assert.equal(
      system.all("deadLetter").map(({ message }) => message),
      [{ type: "deadLetter", topicId: id, group: "g" }],
    );
    assert.is((await client.request({ op: "SUBSCRIBE", topic: "$sys", group: "h" })).code, "unknown_topic");
    await client.close();
  }));

test("frames behind one that waits for its topic keep their order", () =>
  staged(async ({ url, system }) => {
    const client = await PlainClient.open(url);
    system.hold("resolve");
    const all = [
      client.publish("slow", "first"),
      client.publish("slow", "second"),
      client.request({ op: "UNSUBSCRIBE", topic: "x", group: "x" }),
    ];
    const { answer } = await system.nth("resolve", 0);
    client.socket.ping();
    await within(5000, "pong", new Promise((resolve) => client.socket.once("pong", resolve)));
    assert.is(client.others.length, 0);
    assert.is(system.all("resolve").length, 1);
    answer(system.make("slow"));
    await Promise.all(all);
    const payloads = system.all("publish").flatMap(({ message }) => {
      const pack = new PackView(message.pack);
      return Array.from({ length: pack.count }, (_, i) => text(pack.payload(i)));
    });
    assert.equal(payloads, ['"first"', '"second"']);
    await client.close();
  }));

test("a connection with too many frames waiting is not read, and loses none of them", () =>
  staged(
    async ({ url, system }) => {
      const client = await PlainClient.open(url);
      system.hold("resolve");
      const filler = "z".repeat(60_000);
      const sent = Array.from({ length: 300 }, (_, n) => client.publish("slow", { n, filler }));
      const { answer } = await system.nth("resolve", 0);
      // Far more than the kernel buffers is on its way; what is not read stays with the client.
      client.socket.ping();
      const pong = new Promise((resolve) => client.socket.once("pong", () => resolve("pong")));
      const turns = (async () => {
        for (let i = 0; i < 200; i++) await new Promise((resolve) => setImmediate(resolve));
        return "unread";
      })();
      assert.is(await Promise.race([pong, turns]), "unread");
      assert.ok(client.socket.bufferedAmount > 0);
      answer(system.make("slow"));
      const oks = await Promise.all(sent);
      assert.equal(
        oks.map(({ offset }) => offset),
        oks.map((_, n) => n),
      );
      await client.close();
    },
    { limits: { pendingPerConnectionMax: 8 } },
  ));

test("ACKs of one turn for one group are one settle message with aligned results", () =>
  staged(async ({ url, system }) => {
    const client = await PlainClient.open(url);
    await client.subscribe("t", "g");
    system.on("settle", ({ entries }) => ({
      results: entries.map(({ id }) => (id === "late" ? failure("lease_lost", "lost") : id === "old" ? "stale" : null)),
    }));
    const frame = (id: string, more = {}) => client.request({ op: "ACK", topic: "t", group: "g", id, ...more });
    const [fine, late, old, nack] = await Promise.all([
      frame("fine", { lease: "1-2" }),
      frame("late", { lease: "1-1" }),
      frame("old"),
      client.request({ op: "NACK", topic: "t", group: "g", id: "n", reason: "why", delay_ms: 5 }),
    ]);
    assert.equal([fine.op, late.code, old.stale, nack.op], ["OK", "lease_lost", true, "OK"]);
    const { member } = (await system.nth("join", 0)).message;
    assert.equal(
      system.all("settle").map(({ message }) => message),
      [
        {
          type: "settle",
          member,
          entries: [
            { id: "fine", ack: true, lease: "1-2" },
            { id: "late", ack: true, lease: "1-1" },
            { id: "old", ack: true },
            { id: "n", ack: false, reason: "why", delayMs: 5 },
          ],
        },
      ],
    );
    await client.close();
  }));

test("without a subscription ACK, NACK, MODACK, PAUSE and UNSUBSCRIBE are not_subscribed", () =>
  staged(async ({ url }) => {
    const client = await PlainClient.open(url);
    for (const frame of [
      { op: "ACK", id: "x" },
      { op: "NACK", id: "x" },
      { op: "MODACK", id: "x", extend_ms: 1000 },
      { op: "PAUSE" },
      { op: "RESUME" },
      { op: "UNSUBSCRIBE" },
    ]) {
      const answer = await client.request({ ...frame, topic: "t", group: "g" });
      assert.is(answer.code, "not_subscribed", frame.op);
    }
    await client.close();
  }));

test("an ACK on a topic with several partitions goes where its id says, and to all others if it is not held there", () =>
  staged(
    async ({ url, system }) => {
      const client = await PlainClient.open(url);
      await client.subscribe("t", "g");
      const joins = system.all("join");
      const asked: number[] = [];
      const holder = { partition: 2 };
      system.on("settle", (_, to) => {
        const partition = joins.findIndex((join) => join.to.cell === to.cell);
        asked.push(partition);
        return { results: [partition === holder.partition ? null : "stale"] };
      });
      const ack = async (id: string) => {
        asked.length = 0;
        return client.request({ op: "ACK", topic: "t", group: "g", id });
      };
      assert.is((await ack(makeId(1, 5, 2, 3))).stale, undefined);
      assert.equal(asked, [2]);
      assert.is((await ack("own-id")).stale, undefined);
      assert.equal(asked.sort(), [0, 1, 2, 3]);
      // A publisher's own UUIDv7 looks like one of ours and names a partition that has nothing to do with it.
      assert.is((await ack(makeId(1, 5, 1, 3))).stale, undefined);
      assert.equal([asked[0], ...asked.slice(1).sort()], [1, 0, 2, 3]);
      holder.partition = -1;
      assert.is((await ack(makeId(1, 5, 1, 3))).stale, true);
      system.on("settle", (_, to) =>
        to.cell === joins[3].to.cell ? failure("ack_failed", "down") : { results: ["stale"] },
      );
      assert.is((await ack("own-id")).code, "ack_failed");
      // What its table failed on is no answer to where it is held: the others know nothing of it and would say that the lease is lost.
      for (const id of [makeId(1, 5, 3, 3), "own-id"]) {
        system.on("settle", (_, to) =>
          to.cell === joins[3].to.cell
            ? failure("internal", "the table failed")
            : { results: [failure("lease_lost", "not here")] },
        );
        assert.is((await ack(id)).code, "internal");
      }
      await client.close();
    },
    { partitions: 4 },
  ));

test("MODACK is passed on after the ACKs before it, and an unknown lease is unknown_id", () =>
  staged(async ({ url, system }) => {
    const client = await PlainClient.open(url);
    await client.subscribe("t", "g");
    system.on("extend", ({ id }) => (id === "held" ? null : failure("unknown_id", "no such lease")));
    const member = { topic: "t", group: "g" };
    const [, held, gone] = await Promise.all([
      client.request({ op: "ACK", id: "a", ...member }),
      client.request({ op: "MODACK", id: "held", extend_ms: 5000, lease: "1-1", ...member }),
      client.request({ op: "MODACK", id: "gone", extend_ms: 5000, ...member }),
    ]);
    assert.equal([held.op, gone.code], ["OK", "unknown_id"]);
    const order = system.sent
      .map(({ message }) => message.type)
      .filter((type) => type === "settle" || type === "extend");
    assert.equal(order, ["settle", "extend", "extend"]);
    const { type: _, member: __, ...extend } = (await system.nth("extend", 0)).message;
    assert.equal(extend, { id: "held", extendMs: 5000, lease: "1-1" });
    await client.close();
  }));

test("CURSOR reads all partitions together, and set moves them before it answers", () =>
  staged(
    async ({ url, system }) => {
      const client = await PlainClient.open(url);
      system.make("t");
      const plain = { exists: true, ranges: [], start: 0, leased: 0, waiting: 0, members: 0 };
      system.on("cursor", (_, to) =>
        to.cell.startsWith("group/64/")
          ? { ...plain, floor: 3, end: 9, lag: 6, lastId: "a", lastTs: 50 }
          : { ...plain, floor: 8, ranges: [[9, 10]], end: 12, lag: 3, lastId: "b", lastTs: 70 },
      );
      const { corr: _, ...read } = await client.request({ op: "CURSOR", topic: "t", group: "g" });
      assert.equal(read, {
        op: "OK",
        exists: true,
        lastId: "b",
        lastTs: 70,
        lag: 9,
        partitions: [
          { floor: 3, ranges: [], end: 9 },
          { floor: 8, ranges: [[9, 10]], end: 12 },
        ],
      });
      const seeks = async (set: unknown) => {
        system.sent.length = 0;
        const answer = await client.request({ op: "CURSOR", topic: "t", group: "g", set });
        return [answer.code ?? answer.op, system.all("seek").map(({ message }) => message.to)];
      };
      assert.equal(await seeks("latest"), ["OK", [{ kind: "latest" }, { kind: "latest" }]]);
      assert.equal(await seeks({ lastTs: 7 }), [
        "OK",
        [
          { kind: "ts", ts: 7 },
          { kind: "ts", ts: 7 },
        ],
      ]);
      assert.equal(await seeks({ offsets: "1:4" }), ["OK", [{ kind: "offset", offset: 4 }]]);
      assert.equal(await seeks({ offsets: "2:4" }), ["bad_option", []]);
      assert.equal(await seeks({ lastId: "nowhere" }), ["unknown_id", []]);
      system.on("locateId", (_, to) =>
        to.cell === "partition/65" ? { offset: 41, ts: 900 } : failure("unknown_id", "not here"),
      );
      assert.equal(await seeks({ lastId: "somewhere" }), [
        "OK",
        [
          { kind: "ts", ts: 900 },
          { kind: "offset", offset: 42 },
        ],
      ]);
      assert.is((await client.request({ op: "CURSOR", topic: "none", group: "g" })).code, "unknown_topic");
      await client.close();
    },
    { partitions: 2 },
  ));

test("LATEST goes through the partitions in pages, and asks for keys only where they belong", () =>
  staged(
    async ({ url, system }) => {
      const client = await PlainClient.open(url);
      system.make("t");
      const lines = (...events: object[]) => ({
        lines: bytes(events.map((event) => `${JSON.stringify(event)}\n`).join("")),
        count: events.length,
      });
      system.on("latest", ({ after, keys }, to) => {
        if (keys !== undefined) return lines();
        if (to.cell === "partition/65") return lines({ key: "c" });
        return after === "" ? { ...lines({ key: "a" }, { key: "b:" }), next: "b:" } : lines();
      });
      const first = await client.request({ op: "LATEST", topic: "t" });
      assert.equal([first.events, first.next], [[{ key: "a" }, { key: "b:" }], "0:b:"]);
      const second = await client.request({ op: "LATEST", topic: "t", after: first.next });
      assert.equal([second.events, second.next], [[{ key: "c" }], undefined]);
      assert.equal(
        system.all("latest").map(({ message }) => message.after),
        ["", "b:", ""],
      );
      system.sent.length = 0;
      await client.request({ op: "LATEST", topic: "t", keys: ["k1", "k2", "k3", "k4", "k5"] });
      const keys = system.all("latest").map(({ message }) => message.keys ?? []);
      assert.equal(keys.flat().sort(), ["k1", "k2", "k3", "k4", "k5"]);
      assert.is(new Set(system.all("latest").map(({ to }) => to.cell)).size, keys.length);
      assert.equal((await client.request({ op: "LATEST", topic: "t", keys: [] })).events, []);
      assert.is((await client.request({ op: "LATEST", topic: "t", after: "rubbish" })).code, "bad_frame");
      await client.close();
    },
    { partitions: 2 },
  ));

test("LATEST asks for keys in one order whatever the client's, and ends a page that has become large", () =>
  staged(
    async ({ url, system }) => {
      const client = await PlainClient.open(url);
      system.make("t");
      await client.request({ op: "LATEST", topic: "t", keys: ["k5", "k1", "k9", "k1", "k3", "k7"] });
      for (const { message } of system.all("latest")) assert.equal(message.keys, [...(message.keys ?? [])].sort());
      assert.is(system.all("latest").flatMap(({ message }) => message.keys ?? []).length, 5);
      system.on("latest", () => ({ lines: bytes(`"${"x".repeat(4 * 1024 * 1024)}"\n`), count: 1 }));
      const first = await client.request({ op: "LATEST", topic: "t" });
      assert.equal([(first.events as unknown[]).length, first.next], [1, "1:"]);
      const second = await client.request({ op: "LATEST", topic: "t", after: first.next });
      assert.equal([(second.events as unknown[]).length, second.next], [1, "2:"]);
      await client.close();
    },
    { partitions: 3 },
  ));

test("a SETTLE counts by what it names: behind a large one the socket is not read", () =>
  staged(
    async ({ url, system }) => {
      const client = await raw(url);
      client.send({ op: "AUTH", batch: 1 });
      await client.next();
      client.send({ op: "SUBSCRIBE", topic: "t", group: "g", corr: 1 });
      const { handle } = await client.next();
      system.hold("settleRuns");
      const runs = Array.from({ length: 60 }, (_, i) => ({
        partition: 0,
        offset: 2 * i,
        count: 1,
        epoch: 1,
        token: i,
      }));
      client.send(encodeSettle({ handle: Number(handle), corr: 2, verb: "ack", runs }));
      const settle = await system.nth("settleRuns", 0);
      client.send({ op: "PAUSE", topic: "t", group: "g", corr: 3 });
      const other = await PlainClient.open(url);
      await other.subscribe("t", "h");
      assert.is(system.all("flow").length, 0);
      settle.answer({ lost: [] });
      await system.nth("flow", 0);
      assert.equal([(await client.next()).corr, (await client.next()).corr], [2, 3]);
      await other.close();
      client.socket.close();
    },
    { limits: { pendingPerConnectionMax: 50 } },
  ));

test("binary frames are for clients that asked for batches, and unknown ops and handles are refused by corr", () =>
  staged(async ({ url }) => {
    const pack = encodePack([{ payload: bytes("1") }]);
    const plain = await raw(url);
    plain.send({ op: "AUTH" });
    await plain.next();
    plain.send(encodePublish({ handle: 1, corr: 77 }, pack));
    const refused = await plain.next();
    assert.equal([refused.code, refused.corr], ["bad_frame", 77]);
    plain.send({ op: "OPEN", topic: "t", corr: 1 });
    assert.is((await plain.next()).code, "bad_frame");
    plain.send({ op: "AUTH", batch: 1, corr: 2 });
    assert.equal(await plain.next(), { op: "OK", corr: 2, batch: 1, max_frame: 8_388_608, max_payload: 1_048_576 });
    plain.send(encodePublish({ handle: 9, corr: 78 }, pack));
    assert.equal([(await plain.next()).corr], [78]);
    const run = { partition: 0, offset: 0, count: 1, epoch: 1, token: 1 };
    plain.send(encodeSettle({ handle: 3, corr: 79, verb: "ack", runs: [run] }));
    const unknown = await plain.next();
    assert.equal([unknown.code, unknown.corr], ["not_subscribed", 79]);
    const strange = encodePublish({ handle: 9, corr: 80 }, pack);
    strange[0] = 0x33;
    plain.send(strange);
    const op = await plain.next();
    assert.equal([op.code, op.corr], ["bad_frame", 80]);
    plain.socket.close();
  }));

test("a batch is split by key over the partitions, keeps its name, and is answered in its own numbering", () =>
  staged(
    async ({ url, system }) => {
      const client = await BatchClient.open(url);
      const handle = await client.handle("t");
      assert.is(await client.handle("t"), handle);
      const keys = ["k0", "k1", "k0", "k2", undefined, "k3", undefined];
      const pack = encodePack(
        keys.map((key, n) => ({ payload: bytes(`${n}`), ...(key === undefined ? {} : { key }) })),
      );
      const name = { producer: "0123456789abcdef0123456789abcdef", seq: 4 };
      const { runs } = await client.publish(handle, pack, name);
      const seen = new Map<number, [number, number]>();
      for (const run of runs) {
        assert.is(run.status, "stored");
        for (let i = 0; i < run.count; i++) seen.set(run.index + i, [run.partition, run.offset + i]);
      }
      assert.is(seen.size, keys.length);
      for (const { to, message } of system.all("publish")) {
        const sent = new PackView(message.pack);
        assert.equal([message.unparsed, message.batch], [true, name]);
        for (let i = 0; i < sent.count; i++) {
          const n = Number(text(sent.payload(i)));
          assert.equal([sent.key(i), seen.get(n)], [keys[n], [Number(to.cell.split("/")[1]) - 64, i]]);
        }
      }
      assert.is(seen.get(0)?.[0], seen.get(2)?.[0]);
      assert.is(seen.get(4)?.[0], seen.get(6)?.[0]);
      const before = system.all("publish").map(({ to, message }) => [to.cell, ...message.pack]);
      system.sent.length = 0;
      await client.publish(handle, pack, name);
      assert.equal(
        system.all("publish").map(({ to, message }) => [to.cell, ...message.pack]),
        before,
      );
      client.close();
    },
    { partitions: 3 },
  ));

test("a batch that names its partition goes there whole or is refused, and its order goes with it", () =>
  staged(
    async ({ url, system }) => {
      const client = await BatchClient.open(url);
      assert.equal(await client.request({ op: "OPEN", topic: "t" }), {
        op: "OK",
        corr: 2,
        handle: 1,
        partitions: 3,
        durability: "memory",
      });
      const partition = jumpHash("k0", 3);
      const name = { producer: "0123456789abcdef0123456789abcdef", seq: 4 };
      const entries = [{ key: "k0" }, {}, { id: "k0" }].map((entry, n) => ({ ...entry, payload: bytes(`${n}`) }));
      await client.publish(1, encodePack(entries.slice(0, 2)), { ...name, partition });
      await client.publish(1, encodePack(entries.slice(2)), { ...name, seq: 5, partition, chained: true });
      assert.equal(
        system.all("publish").map(({ to, message }) => [to.cell, new PackView(message.pack).count, message.batch]),
        [
          [`partition/${64 + partition}`, 2, { ...name, order: "rising" }],
          [`partition/${64 + partition}`, 1, { ...name, seq: 5, order: "chained" }],
        ],
      );
      const other = (partition + 1) % 3;
      const refusals = [
        client.publish(1, encodePack(entries.slice(0, 2)), { ...name, partition: other }),
        client.publish(1, encodePack(entries.slice(2)), { ...name, partition: other, chained: true }),
        client.publish(1, encodePack(entries.slice(1, 2)), { ...name, partition: 3 }),
      ];
      for (const refusal of refusals) {
        const error = await refusal.then(
          () => undefined,
          (refused: Error) => refused,
        );
        assert.match(String(error), /unknown_topic.*3 partitions/);
      }
      assert.is(system.all("publish").length, 2);
      await client.publish(1, encodePack(entries.slice(1, 2)), { ...name, partition: other });
      client.close();
    },
    { partitions: 3 },
  ));

test("PING is answered at once, behind AUTH", () =>
  staged(async ({ url, system }) => {
    const client = await raw(url);
    client.send({ op: "PING", corr: 1 });
    assert.is((await client.next()).code, "unauthorized");
    client.send({ op: "AUTH" });
    await client.next();
    system.hold("publish");
    client.send({ op: "PUBLISH", topic: "t", payload: 1, corr: 2 });
    client.send({ op: "PING", corr: 3 });
    assert.equal(await client.next(), { op: "OK", corr: 3 });
    client.socket.close();
  }));

test("a batch does not overtake the single events before it", () =>
  staged(async ({ url, system }) => {
    const client = await BatchClient.open(url);
    const handle = await client.handle("t");
    const single = client.request({ op: "PUBLISH", topic: "t", payload: "first" });
    const batch = client.publish(handle, encodePack([{ payload: bytes("2") }, { payload: bytes("3") }]));
    await Promise.all([single, batch]);
    const payloads = system.all("publish").map(({ message }) => {
      const pack = new PackView(message.pack);
      return Array.from({ length: pack.count }, (_, i) => text(pack.payload(i))).join();
    });
    assert.equal(payloads, ['"first"', "2,3"]);
    client.close();
  }));

test("a SETTLE goes to each partition with its runs, and the OK names the leases that were lost", () =>
  staged(
    async ({ url, system }) => {
      const client = await BatchClient.open(url);
      const handle = await client.subscribe("t", "g", {});
      system.on("settleRuns", ({ runs }) => ({ lost: runs.filter(({ offset }) => offset === 7) }));
      const socket = client.socket;
      const answer = new Promise<Frame>((resolve) => {
        socket.removeAllListeners("message");
        socket.on("message", (data) => resolve(JSON.parse(data.toString()) as Frame));
      });
      const run = { count: 2, epoch: 1, token: 5 };
      const runs = [
        { partition: 0, offset: 3, ...run },
        { partition: 1, offset: 7, ...run },
      ];
      socket.send(encodeSettle({ handle, corr: 5, verb: "nack", ms: 20, runs }));
      assert.equal(await within(5000, "an answer", answer), {
        op: "OK",
        corr: 5,
        lost: [{ partition: 1, offset: 7, ...run }],
      });
      const joins = system.all("join");
      assert.equal(
        system.all("settleRuns").map(({ to, message }) => [to.cell, message]),
        [0, 1].map((n) => [
          joins[n].to.cell,
          {
            type: "settleRuns",
            member: joins[n].message.member,
            verb: "nack",
            delayMs: 20,
            runs: [{ offset: runs[n].offset, ...run }],
          },
        ]),
      );
      client.close();
    },
    { partitions: 2 },
  ));

test("rights from scopes: one star is one segment, two are any number", () => {
  const rights = rightsFromScopes(["publish:heartbeat.*", "subscribe:process.**", "*:a.**.z"]);
  const publishes = ["heartbeat.x", "heartbeat", "heartbeat.x.y", "process.x", "a.z", "a.b.c.z", "a.b"];
  assert.equal(publishes.map(rights.publish), [true, false, false, false, true, true, false]);
  const subscribes = ["process", "process.a.b", "processes", "heartbeat.x"];
  assert.equal(
    subscribes.map((topic) => rights.subscribe(topic, "g")),
    [true, true, false, false],
  );
  assert.is(rights.admin, false);
  assert.is(rightsFromScopes(["publish:**", "subscribe:**"]).admin, true);
  assert.is(rightsFromScopes(["publish:**"]).admin, false);
});

test.run();
