// The connection that stays in the process: first the pair of ends by itself, on a clock that a test turns, then with a session.

import { test } from "uvu";
import * as assert from "uvu/assert";
import type { Signal } from "../../src/actors/messages.ts";
import { type InsideEvents, InsidePeer, type InsideWire } from "../../src/front/inside.ts";
import {
  decodeServerBatch,
  type EventsBatch,
  encodePublish,
  encodeSettle,
  eventsFrameBytes,
  writeEventsFrame,
} from "../../src/protocol/batch.ts";
import { isFailure } from "../../src/protocol/failure.ts";
import { encodePack, PackView } from "../../src/protocol/pack.ts";
import { eventually, within } from "../support/deadline.ts";
import { type Stage, startFront } from "../support/front-stage.ts";
import { ManualClock } from "../support/manual-clock.ts";
import { type Frame, PlainClient } from "../support/plain-client.ts";

const bytes = (text: string) => new TextEncoder().encode(text);
const options = { binary: false, compress: false };

// ------------------------------------------------------------------------------------------------------------ the two ends

interface Pair {
  readonly clock: ManualClock;
  readonly peer: InsidePeer;
  readonly wire: InsideWire;
  /** What either end was told, in order. */
  readonly heard: string[];
  readonly logged: string[];
}

function pair(events: Partial<InsideEvents> = {}): Pair {
  const clock = new ManualClock();
  const heard: string[] = [];
  const logged: string[] = [];
  const note = (msg: string) => void logged.push(msg);
  const show = (frame: string | Uint8Array) => (typeof frame === "string" ? frame : `[${frame.join()}]`);
  const peer = new InsidePeer({
    clock,
    log: { debug: note, info: note, warn: note, error: note },
    events: {
      opened: () => heard.push("opened"),
      text: (frame) => heard.push(`caller ${frame}`),
      binary: (frame) => heard.push(`caller ${show(frame)}`),
      closed: (code, reason) => heard.push(`closed ${code} ${reason}`),
      ...events,
    },
    onFrame: (frame, size) => heard.push(`node ${show(frame)} ${size}`),
    onClosed: () => heard.push("over"),
  });
  return { clock, peer, wire: peer.wire, heard, logged };
}

test("nobody is called from within a call, and what was sent arrives in its order", () => {
  const { clock, peer, wire, heard } = pair();
  wire.send("a");
  wire.send(new Uint8Array([1, 2]));
  wire.send("b");
  assert.equal(heard, []);
  assert.is(wire.unsent, 4);
  clock.turn();
  assert.equal(heard.splice(0), ["opened", "node a 1", "node [1,2] 2", "node b 1"]);
  assert.is(wire.unsent, 0);
  const taken: string[] = [];
  peer.cork();
  peer.send("one", options, () => taken.push("one"));
  peer.send(new Uint8Array([7]), options, () => taken.push("two"));
  assert.equal([heard.length, taken.length, peer.bufferedAmount], [0, 0, 4]);
  peer.uncork();
  assert.equal(heard, ["caller one", "caller [7]"]);
  assert.equal(taken, ["one", "two"]);
  assert.is(peer.bufferedAmount, 0);
});

test("what is sent while a frame is taken comes a turn later", () => {
  const { clock, wire, peer, heard } = pair({ text: (frame) => wire.send(`answer to ${frame}`) });
  clock.turn();
  heard.splice(0);
  peer.send("one", options, () => undefined);
  peer.uncork();
  assert.equal(heard, []);
  clock.turn();
  assert.equal(heard, ["node answer to one 13"]);
});

test("a session that does not read is sent nothing, and the rest is unsent", () => {
  const heard: string[] = [];
  const clock = new ManualClock();
  const silent = () => undefined;
  const peer: InsidePeer = new InsidePeer({
    clock,
    log: { debug: silent, info: silent, warn: silent, error: silent },
    events: { opened: silent, text: silent, binary: silent, closed: silent },
    onFrame: (frame) => {
      heard.push(frame as string);
      if (frame === "b") peer.pause();
    },
    onClosed: silent,
  });
  const { wire } = peer;
  for (const frame of ["a", "b", "c", "d"]) wire.send(frame);
  clock.turn();
  assert.equal(heard, ["a", "b"]);
  assert.is(wire.unsent, 2);
  wire.send("e");
  clock.turn();
  assert.equal(heard, ["a", "b"]);
  assert.is(wire.unsent, 3);
  peer.resume();
  assert.equal(heard, ["a", "b"]);
  clock.turn();
  assert.equal(heard, ["a", "b", "c", "d", "e"]);
  assert.is(wire.unsent, 0);
});

test("the node closes: what it sent before arrives, then the reason, once", () => {
  const { clock, peer, wire, heard } = pair();
  clock.turn();
  heard.splice(0);
  peer.send("last", options, () => undefined);
  peer.close(1001, "the node is shutting down");
  assert.is(peer.readyState === peer.OPEN, false);
  peer.send("too late", options, () => undefined);
  wire.send("nobody reads this");
  peer.close(4408, "again");
  wire.close();
  assert.equal(heard, []);
  clock.turn();
  clock.turn();
  assert.equal(heard, ["caller last", "over", "closed 1001 the node is shutting down"]);
});

test("the caller closes: what it sent before is handled, read or not, and it hears nothing but the end", () => {
  const { clock, peer, wire, heard } = pair();
  clock.turn();
  heard.splice(0);
  peer.pause();
  wire.send("ack");
  peer.send("event", options, () => heard.push("taken"));
  wire.close();
  wire.close();
  wire.send("too late");
  peer.uncork();
  assert.equal(heard, []);
  clock.turn();
  clock.turn();
  assert.equal(heard, ["node ack 3", "over", "closed 1000 "]);
  assert.equal([wire.unsent, peer.bufferedAmount], [0, 0]);
});

test("a connection that is cut loses what is under way, in both directions", async () => {
  const { clock, peer, wire, heard } = pair();
  clock.turn();
  heard.splice(0);
  wire.send("lost");
  peer.send("lost too", options, () => heard.push("taken"));
  peer.terminate();
  clock.turn();
  assert.equal(heard, ["over", "closed 1006 the node ended the connection"]);
  await within(1000, "the promise of its end", peer.closed);
});

test("a connection that is refused is closed without having been open", () => {
  const { clock, peer, heard } = pair();
  peer.close(1001, "the node is shutting down");
  clock.turn();
  assert.equal(heard, ["over", "closed 1001 the node is shutting down"]);
});

test("a caller that closes while it takes a frame gets none of those behind it", () => {
  const { clock, peer, wire, heard } = pair({
    text: (frame) => {
      heard.push(`caller ${frame}`);
      wire.close();
    },
  });
  clock.turn();
  heard.splice(0);
  const taken: string[] = [];
  for (const frame of ["one", "two"]) peer.send(frame, options, () => taken.push(frame));
  peer.uncork();
  clock.turn();
  assert.equal(heard, ["caller one", "over", "closed 1000 "]);
  assert.equal(taken, ["one"]);
});

test("a caller that throws is logged and closed, and does not disturb the turn that it shares", () => {
  const { clock, peer, heard, logged } = pair({
    text: () => {
      throw new Error("a fault of the caller");
    },
  });
  clock.turn();
  heard.splice(0);
  peer.send("one", options, () => undefined);
  peer.uncork();
  assert.equal(logged, ["a frame was not taken inside the process"]);
  clock.turn();
  assert.equal(heard, ["over", "closed 1011 a frame could not be taken"]);
});

// ---------------------------------------------------------------------------------------------------------- with a session

/** As thin as it can be: questions and their answers by corr, events in a list. */
class Insider {
  readonly events: EventsBatch[] = [];
  readonly others: Frame[] = [];
  readonly closed: Promise<{ readonly code: number; readonly reason: string }>;
  readonly wire: InsideWire;
  opened = false;
  private readonly answers = new Map<number, (answer: Frame) => void>();
  private corr = 1;

  constructor({ front }: Stage) {
    let over: (end: { code: number; reason: string }) => void = () => undefined;
    this.closed = within(5000, "the connection ends", new Promise((resolve) => (over = resolve)));
    this.wire = front.connectInside({
      opened: () => {
        this.opened = true;
      },
      text: (text) => this.take(JSON.parse(text) as Frame),
      binary: (frame) => {
        const batch = decodeServerBatch(frame);
        if (isFailure(batch)) throw new Error(batch.msg);
        if (batch.op === "EVENTS") this.events.push(batch);
        else this.take({ ...batch, corr: batch.corr } as unknown as Frame);
      },
      closed: (code, reason) => over({ code, reason }),
    });
  }

  static async open(stage: Stage): Promise<Insider> {
    const insider = new Insider(stage);
    const ok = await insider.ask({ op: "AUTH", batch: 1 });
    assert.equal([ok.op, ok.batch], ["OK", 1]);
    return insider;
  }

  ask(frame: Record<string, unknown>): Promise<Frame> {
    return this.send((corr) => JSON.stringify({ ...frame, corr }));
  }

  send(encode: (corr: number) => string | Uint8Array): Promise<Frame> {
    const corr = this.corr++;
    const answer = new Promise<Frame>((resolve) => this.answers.set(corr, resolve));
    this.wire.send(encode(corr));
    return within(5000, `an answer to ${corr}`, answer);
  }

  private take(frame: Frame): void {
    const answer = this.answers.get(frame.corr as number);
    if (answer === undefined) this.others.push(frame);
    else answer(frame);
  }
}

async function staged(run: (stage: Stage) => Promise<void>, ...args: Parameters<typeof startFront>): Promise<void> {
  const stage = await startFront(...args);
  try {
    await run(stage);
  } finally {
    await stage.close();
  }
}

/** One EVENTS frame as a lease table sends it. */
function eventsSignal(member: number, handle: number, payloads: readonly string[]): Signal {
  const pack = new PackView(encodePack(payloads.map((payload) => ({ payload: bytes(payload) }))));
  const header = {
    handle,
    ackDeadlineMs: 30_000,
    partition: 0,
    salt: 5,
    attempt: 1,
    maxAttempts: 5,
    firstOffset: 0,
    storedAt: 1_700_000_000_000,
    epoch: 3,
    token: 17,
  };
  const frames = new Uint8Array(eventsFrameBytes(pack, 0, payloads.length));
  writeEventsFrame(header, pack, 0, payloads.length, frames, 0);
  const ends = Uint32Array.of(frames.length);
  return { type: "events", member, stream: 64, count: payloads.length, binary: true, frames, ends };
}

test("frames, batches and events go the way that they go over a socket", () =>
  staged(async (stage) => {
    const { system } = stage;
    const insider = await Insider.open(stage);
    const { handle } = await insider.ask({ op: "OPEN", topic: "t" });
    const pack = encodePack([{ payload: bytes("1") }, { payload: bytes('"two"'), key: "k" }]);
    const published = await insider.send((corr) => encodePublish({ handle: handle as number, corr }, pack));
    const [{ index, count, offset, status }] = published.runs as { [name: string]: unknown }[];
    assert.equal([index, count, offset, status], [0, 2, 0, "stored"]);
    const stored = new PackView((await system.nth("publish", 0)).message.pack);
    assert.equal([stored.count, stored.key(1)], [2, "k"]);

    const subscribed = await insider.ask({ op: "SUBSCRIBE", topic: "t", group: "g" });
    const { member } = (await system.nth("grant", 0)).message;
    system.signal(eventsSignal(member, subscribed.handle as number, ["7", "8"]));
    const [batch] = await eventually(5000, "the events", () => insider.events.length > 0 && insider.events);
    assert.equal([batch.handle, batch.pack.count, batch.token], [subscribed.handle, 2, 17]);
    assert.is(new TextDecoder().decode(batch.pack.payload(1)), "8");
    const runs = [{ partition: 0, offset: 0, count: 2, epoch: 3, token: 17 }];
    const settled = await insider.send((corr) => encodeSettle({ handle: batch.handle, corr, verb: "ack", runs }));
    assert.is(settled.op, "OK");
    const { message } = await system.nth("settleRuns", 0);
    assert.equal([message.member, message.verb, message.runs.length], [member, "ack", 1]);

    assert.is((await insider.ask({ op: "NOPE" })).code, "bad_frame");
    insider.wire.close();
    assert.equal(await insider.closed, { code: 1000, reason: "" });
    // What it took counts as delivered, as by a socket that took it.
    const leave = (await system.nth("leave", 0)).message;
    assert.equal(leave, { type: "leave", member, written: 2, cause: "disconnect" });
  }));

test("it has all rights without a token, whatever the hook says of others", () =>
  staged(
    async (stage) => {
      const insider = await Insider.open(stage);
      assert.is((await insider.ask({ op: "PUBLISH", topic: "t", payload: 1 })).op, "OK");
      assert.is((await insider.ask({ op: "SUBSCRIBE", topic: "t", group: "g" })).op, "OK");
      const refused = await PlainClient.open(stage.url).then(
        () => "let in",
        (error: Error) => error.message,
      );
      assert.match(refused, /unauthorized/);
    },
    { token: "secret" },
    { auth: async () => ({ ok: false, code: "unauthorized", msg: "nobody is let in" }) },
  ));

test("CONN_RATE is for connections from outside, TOPIC_RATE for everybody", () =>
  staged(
    async (stage) => {
      const { system } = stage;
      const insider = await Insider.open(stage);
      const publish = (n: number) => insider.ask({ op: "PUBLISH", topic: "t", payload: n });
      const codes = (await Promise.all([1, 2, 3, 4, 5].map(publish))).map(({ op, code }) => code ?? op);
      assert.equal(codes, ["OK", "OK", "OK", "rate_limited", "rate_limited"]);
      await insider.ask({ op: "SUBSCRIBE", topic: "t", group: "g" });
      assert.is((await system.nth("grant", 0)).message.tokens, Number.POSITIVE_INFINITY);

      const outside = await PlainClient.open(stage.url);
      await outside.subscribe("t", "h");
      assert.is((await system.nth("grant", 1)).message.tokens, 0);
      const first = await outside.request({ op: "PUBLISH", topic: "u", payload: 1 });
      const second = await outside.request({ op: "PUBLISH", topic: "u", payload: 2 });
      assert.equal([first.op, second.code], ["OK", "rate_limited"]);
      assert.match(second.msg as string, /CONN_RATE/);
      await outside.close();
    },
    { connRate: { burst: 1, perSec: 1 }, topicRate: { burst: 3, perSec: 1 } },
  ));

test("it is no connection to those who count them, but its subscriptions are", () =>
  staged(
    async (stage) => {
      const insider = await Insider.open(stage);
      await insider.ask({ op: "SUBSCRIBE", topic: "t", group: "g" });
      const outside = await PlainClient.open(stage.url);
      await outside.subscribe("t", "h");
      const stats = new Map(stage.front.stats().map(({ name, value }) => [name, value]));
      assert.equal([stats.get("connections"), stats.get("subscriptions")], [1, 2]);
      await outside.close();
    },
    { limits: { connectionsMax: 1 } },
  ));

test("it is not swept: no AUTH in time, no ping and no answer to one end it", () =>
  staged(
    async (stage) => {
      const insider = new Insider(stage);
      const socket = await PlainClient.open(stage.url);
      socket.socket.pause();
      for (let i = 0; i < 40; i++) stage.clock.advance(100);
      await within(
        5000,
        "the sweeper ends a socket that answers no ping",
        eventually(5000, "gone", () => {
          stage.clock.advance(100);
          return stage.front.stats().some(({ name, value }) => name === "connections" && value === 0);
        }),
      );
      assert.is((await insider.ask({ op: "AUTH", batch: 1 })).op, "OK");
      socket.socket.terminate();
    },
    { limits: { authMs: 100, pingMs: 100, stalledMs: 100 } },
  ));

test("a session with too much under way does not read, and handles all of it in order later", () =>
  staged(
    async (stage) => {
      const { system } = stage;
      system.hold("publish");
      const insider = await Insider.open(stage);
      const { handle } = await insider.ask({ op: "OPEN", topic: "t" });
      const answers = Array.from({ length: 10 }, (_, n) => {
        const pack = encodePack([{ payload: bytes(String(n)) }]);
        return insider.send((corr) => encodePublish({ handle: handle as number, corr }, pack));
      });
      await system.nth("publish", 3);
      assert.ok(insider.wire.unsent > 0);
      assert.is(system.all("publish").length, 4);
      for (let n = 0; n < 10; n++) {
        const { message, answer } = await system.nth("publish", n);
        assert.is(new TextDecoder().decode(new PackView(message.pack).payload(0)), String(n));
        answer({ durability: "memory", runs: [{ index: 0, count: 1, offset: n, storedAt: 1, salt: 5 }] });
      }
      const offsets = (await Promise.all(answers)).map(({ runs }) => (runs as { offset: number }[])[0].offset);
      assert.equal(offsets, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
      assert.is(insider.wire.unsent, 0);
    },
    { limits: { pendingPerConnectionMax: 4 } },
  ));

test("draining: nothing new, acks are taken, then 1001; who comes meanwhile is refused", () =>
  staged(async (stage) => {
    const { system, front, clock } = stage;
    let leased = 1;
    const cursor = { exists: true, floor: 0, ranges: [], start: 0, end: 1, lag: 1, waiting: 0, members: 1 };
    system.on("cursor", () => ({ ...cursor, leased }));
    const insider = await Insider.open(stage);
    await insider.ask({ op: "SUBSCRIBE", topic: "t", group: "g" });
    const { member } = (await system.nth("grant", 0)).message;
    const drained = front.drain();
    const flow = (await system.nth("flow", 0)).message;
    assert.equal([flow.member, flow.open], [member, false]);
    assert.is((await insider.ask({ op: "PUBLISH", topic: "t", payload: 1 })).code, "shutting_down");
    assert.is((await insider.ask({ op: "SUBSCRIBE", topic: "t", group: "h" })).code, "shutting_down");
    assert.is((await insider.ask({ op: "ACK", topic: "t", group: "g", id: "x", lease: "3-17" })).op, "OK");

    const late = new Insider(stage);
    assert.equal(await late.closed, { code: 1001, reason: "the node is shutting down" });
    assert.is(late.opened, false);

    leased = 0;
    await eventually(5000, "the goodbye", () => {
      clock.advance(25);
      return system.all("leave").length > 0;
    });
    assert.equal(await insider.closed, { code: 1001, reason: "the node is shutting down" });
    assert.is((await system.nth("leave", 0)).message.cause, "shutdown");
    await within(5000, "the drain ends", drained);
  }));

test("what was asked before the drain is answered before the goodbye", () =>
  staged(async (stage) => {
    const { system, front, clock } = stage;
    system.hold("publish");
    const insider = await Insider.open(stage);
    const order: string[] = [];
    const answer = insider.ask({ op: "PUBLISH", topic: "t", payload: 1 }).then(({ op }) => order.push(op));
    void insider.closed.then(() => order.push("closed"));
    const publish = await system.nth("publish", 0);
    let over = false;
    const drained = front.drain().then(() => {
      over = true;
    });
    for (let i = 0; i < 20; i++) {
      clock.advance(25);
      await new Promise((resolve) => setImmediate(resolve));
    }
    assert.equal(order, []);
    publish.answer({ durability: "memory", runs: [{ index: 0, count: 1, offset: 0, storedAt: 1, salt: 5 }] });
    await eventually(5000, "the end of the drain", () => {
      clock.advance(25);
      return over;
    });
    await Promise.all([answer, drained, insider.closed]);
    assert.equal(order, ["OK", "closed"]);
  }));

test("a lease that is never given back holds the drain no longer than its time", () =>
  staged(
    async (stage) => {
      const { system, front, clock } = stage;
      const cursor = { exists: true, floor: 0, ranges: [], start: 0, end: 1, lag: 1, waiting: 0, members: 1 };
      system.on("cursor", () => ({ ...cursor, leased: 1 }));
      const insider = await Insider.open(stage);
      await insider.ask({ op: "SUBSCRIBE", topic: "t", group: "g" });
      const began = clock.mono();
      let over = false;
      const drained = front.drain().then(() => {
        over = true;
      });
      await eventually(5000, "the end of the drain", () => {
        clock.advance(25);
        return over;
      });
      await drained;
      assert.ok(clock.mono() - began >= 1000 && clock.mono() - began < 1500);
      assert.is((await insider.closed).code, 1001);
    },
    { limits: { drainMs: 1000 } },
  ));

test("destroyed, the node cuts it", () =>
  staged(async (stage) => {
    const insider = await Insider.open(stage);
    await stage.front.close();
    assert.is((await insider.closed).code, 1006);
  }));

test.run();
