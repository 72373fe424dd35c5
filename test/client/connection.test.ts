// One connection of the client, against a node that the test plays.

import { test } from "uvu";
import * as assert from "uvu/assert";
import { type Answer, Connection } from "../../src/client/connection.ts";
import type { NarthexError } from "../../src/client/errors.ts";
import { eventsHeaderBytes, writeEventsFrame } from "../../src/protocol/batch.ts";
import type { Failure } from "../../src/protocol/failure.ts";
import { encodePack, PackView } from "../../src/protocol/pack.ts";
import { clientClockOf, fakeDial, ManualClock, settle } from "../support/fake-dial.ts";

function stage(token?: string) {
  const clock = new ManualClock();
  const node = fakeDial();
  const lost: string[] = [];
  const ended: [string, string, Failure][] = [];
  const opening = new Connection({
    dial: node.dial,
    url: "ws://node",
    token,
    clock: clientClockOf(clock),
    openMs: 5000,
    silentMs: 20_000,
    answerMs: 30_000,
    onLost: (_, reason) => void lost.push(reason),
    onEnded: (topic, group, why) => void ended.push([topic, group, why]),
  }).opened;
  opening.catch(() => "looked at below");
  return { clock, node, wire: node.last(), lost, ended, opening };
}

async function open() {
  const parts = stage();
  parts.wire.admit();
  return { ...parts, connection: await parts.opening };
}

async function errorOf(promise: Promise<unknown>): Promise<NarthexError> {
  return promise.then(
    () => assert.unreachable("it resolved") as never,
    (error: NarthexError) => error,
  );
}

test("AUTH is the first frame, asks for batches and carries the token", async () => {
  const { wire, opening } = stage("secret");
  assert.equal(wire.texts, []);
  wire.events.opened();
  assert.equal(wire.texts, [{ op: "AUTH", batch: 1, token: "secret", corr: 1 }]);
  wire.answer("AUTH", { batch: 1, max_frame: 9000, max_payload: 500 });
  const connection = await opening;
  assert.is(connection.live, true);
  assert.is(connection.maxFrame, 9000);
  assert.is(connection.maxPayload, 500);
});

test("a refused AUTH is the refusal, with its code", async () => {
  const { wire, opening, lost } = stage("wrong");
  wire.events.opened();
  wire.refuse("AUTH", "bad_token");
  const error = await errorOf(opening);
  assert.is(error.code, "bad_token");
  assert.is(error.retryable, false);
  assert.is(wire.closed, true);
  assert.equal(lost, []);
});

test("a socket that cannot be opened says where and why", async () => {
  const { wire, opening } = stage();
  wire.drop(1006, "ECONNREFUSED");
  const error = await errorOf(opening);
  assert.is(error.code, "connect_failed");
  assert.is(error.retryable, true);
  assert.match(error.message, /ws:\/\/node .*ECONNREFUSED/);
});

test("a node that does not answer in time cannot be reached", async () => {
  const { clock, wire, opening } = stage();
  wire.events.opened();
  clock.advance(4999);
  await settle();
  assert.is(wire.closed, false);
  clock.advance(1);
  assert.is((await errorOf(opening)).code, "connect_failed");
  assert.is(wire.closed, true);
});

test("answers find their questions in any order", async () => {
  const { wire, connection } = await open();
  const one = connection.request({ op: "CURSOR", topic: "a" });
  const two = connection.request({ op: "LATEST", topic: "b" });
  wire.answer("LATEST", { events: [] });
  wire.refuse("CURSOR", "rate_limited", { retry_after_ms: 40 });
  assert.equal((await two).events, []);
  const error = await errorOf(one);
  assert.is(error.code, "rate_limited");
  assert.is(error.retryable, true);
  assert.is(error.retryAfterMs, 40);
});

test("a code that this client does not know is a fault of the node", async () => {
  const { wire, connection } = await open();
  const asked = connection.request({ op: "CURSOR" });
  wire.refuse("CURSOR", "brand_new");
  assert.is((await errorOf(asked)).code, "internal");
});

test("a lost connection answers every question once, then says so", async () => {
  const { wire, connection, lost } = await open();
  const answers: Answer[] = [];
  connection.ask({ op: "CURSOR" }, (answer) => void answers.push(answer));
  connection.askBinary(
    (corr) => new Uint8Array([1, corr]),
    (answer) => void answers.push(answer),
  );
  wire.drop();
  assert.equal(answers, ["lost", "lost"]);
  assert.is(lost.length, 1);
  assert.match(lost[0], /ECONNRESET/);
  connection.ask({ op: "CURSOR" }, (answer) => void answers.push(answer));
  assert.is(answers.length, 3);
  wire.drop();
  connection.close();
  assert.is(lost.length, 1);
});

test("a connection that is silent is asked, and without an answer it is dead", async () => {
  const { clock, wire, lost } = await open();
  clock.advance(20_000);
  wire.answer("PING");
  clock.advance(19_000);
  assert.is(wire.texts.filter(({ op }) => op === "PING").length, 1);
  clock.advance(1000);
  assert.is(wire.texts.filter(({ op }) => op === "PING").length, 2);
  clock.advance(29_000);
  assert.equal(lost, []);
  clock.advance(1000);
  assert.equal(lost, ["no answer within 30000 ms"]);
  assert.is(clock.timerCount, 0);
});

test("events go to the receiver of their handle", async () => {
  const { wire, connection } = await open();
  const got: string[] = [];
  connection.receive(7, (batch) => void got.push(`${batch.firstOffset}+${batch.pack.count}`));
  const pack = new PackView(encodePack([{ payload: new TextEncoder().encode("1") }]));
  const frame = new Uint8Array(eventsHeaderBytes + pack.byteLength);
  const header = { ackDeadlineMs: 1, partition: 0, salt: 0, attempt: 1, maxAttempts: 5, firstOffset: 42, storedAt: 1 };
  writeEventsFrame({ ...header, handle: 7, epoch: 1, token: 1 }, pack, 0, 1, frame, 0);
  wire.events.binary(frame);
  connection.ignore(7);
  wire.events.binary(frame);
  assert.equal(got, ["42+1"]);
});

test("a subscription that the node ended is told by its names", async () => {
  const { wire, ended } = await open();
  wire.say({ op: "ERR", code: "forbidden", msg: "no right", topic: "orders", group: "billing" });
  assert.equal(ended, [["orders", "billing", { code: "forbidden", msg: "no right" }]]);
});

test("a frame that cannot be read ends the connection", async () => {
  const binary = await open();
  binary.wire.events.binary(new Uint8Array(20));
  assert.match(binary.lost[0], /cannot be read/);
  const text = await open();
  text.wire.events.text("<html>");
  assert.match(text.lost[0], /not JSON/);
});

test.run();
