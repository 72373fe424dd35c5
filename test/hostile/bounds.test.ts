// What one client can hold, and what others notice of it: bounds that were missing. The limits are small here, so that each is reached
// at once.

import { test } from "uvu";
import * as assert from "uvu/assert";
import { WebSocket } from "ws";
import type { Overrides } from "../../src/config.ts";
import type { codes } from "../../src/protocol/failure.ts";
import { eventually } from "../support/deadline.ts";
import { startHere } from "../support/node-here.ts";
import { PlainClient } from "../support/plain-client.ts";
import { RawSocket, wsFrame } from "./raw-socket.ts";

const get = (path: string) => `GET ${path} HTTP/1.1\r\nHost: localhost\r\n\r\n`;

async function withNode(
  overrides: Overrides,
  run: (at: { readonly http: string; readonly ws: string; readonly port: number }) => Promise<void>,
): Promise<void> {
  const { node, http, ws } = await startHere({ store: "memory", workers: 1, ...overrides });
  try {
    await run({ http, ws, port: node.listening[0].port });
  } finally {
    await node.destroy();
  }
}

test("requests that are sent ahead are answered in order, and more of them than may wait cut their connection alone", async () => {
  await withNode({}, async ({ http, port }) => {
    const few = await RawSocket.open(port);
    few.write(`${get("/health/live")}${get("/nowhere")}${get("/health/live")}${get("/stats?x=1")}`);
    await eventually(5000, "four answers", () => (few.text().match(/HTTP\/1\.1 \d+/g)?.length ?? 0) === 4);
    assert.equal(
      few.text().match(/HTTP\/1\.1 \d+/g),
      [200, 404, 200, 400].map((status) => `HTTP/1.1 ${status}`),
    );
    few.destroy();

    const many = await RawSocket.open(port);
    many.socket.pause();
    many.write(get("/health/ready").repeat(20_000));
    const started = performance.now();
    assert.is((await fetch(`${http}/health/ready`)).status, 200);
    assert.ok(performance.now() - started < 2000, `${performance.now() - started} ms until somebody else was answered`);
    many.socket.resume();
    await many.end();
  });
});

test("replays that were asked ahead on a connection that is gone leave no reader behind", async () => {
  await withNode({}, async ({ http, ws, port }) => {
    const client = await PlainClient.open(ws);
    await client.publish("t", 1);
    for (let i = 0; i < 10; i++) {
      const socket = await RawSocket.open(port);
      socket.write(get("/replay?topic=t").repeat(15));
      await socket.until("HTTP/1.1 200");
      socket.destroy();
    }
    await eventually(5000, "a replay", async () => (await fetch(`${http}/replay?topic=t`)).status === 200);
    await client.close();
  });
});

test("answers that nobody takes are bounded together, and their connections are cut", async () => {
  const limits = { stalledMs: 4000, replayHeldBytesMax: 20_000_000 };
  await withNode({ limits }, async ({ http, ws, port }) => {
    const client = await PlainClient.open(ws);
    const payload = "x".repeat(1_000_000);
    for (let i = 0; i < 16; i++) await client.publish("t", payload);
    const page = async () => {
      const answer = await fetch(`${http}/replay?topic=t&limit=16`);
      return (await answer.json()) as { count: number; next: string };
    };
    assert.is((await page()).count, 16);
    const stuck: RawSocket[] = [];
    for (let i = 0; i < 30; i++) {
      const socket = await RawSocket.open(port);
      socket.socket.pause();
      socket.write(get("/replay?topic=t&limit=16"));
      stuck.push(socket);
    }
    const short = await eventually(5000, "a page that is shorter than asked", async () => {
      const got = await page();
      return got.count < 16 && got;
    });
    assert.ok(short.count >= 1 && short.next === `0:${short.count}`, "it has an event and says how to go on");
    await eventually(
      10_000,
      "the stuck ones are cut, and pages are whole again",
      async () => (await page()).count === 16,
    );
    for (const socket of stuck) socket.destroy();
    await client.close();
  });
});

test("those who ask for the metrics at the same time share one look at the workers", async () => {
  await withNode({}, async ({ http, ws }) => {
    const client = await PlainClient.open(ws);
    for (let i = 0; i < 200; i++) await client.subscribe("t", `g${i}`);
    const time = async (count: number) => {
      const started = performance.now();
      await Promise.all(Array.from({ length: count }, async () => (await fetch(`${http}/stats`)).arrayBuffer()));
      return performance.now() - started;
    };
    await time(1);
    const [one, many] = [await time(1), await time(100)];
    assert.ok(many < 500 + 20 * one, `${one.toFixed(0)} ms for one, ${many.toFixed(0)} ms for 100`);
    await client.close();
  });
});

test("who has not shown a token may not fill the memory with a large frame", async () => {
  await withNode({ token: "devtoken" }, async ({ ws, port }) => {
    const stranger = await RawSocket.webSocket(port);
    const large = wsFrame(Buffer.alloc(1_000_000, 0x20), { length: 8_000_000 });
    stranger.write(large);
    const code = await stranger.closeCode();
    assert.ok(code === 4401 || code === 1006, `${code}`);
    await stranger.end();

    const many = await RawSocket.webSocket(port);
    for (let i = 0; i < 200; i++) many.write(wsFrame("x".repeat(1000)));
    await many.end();

    // Also where they are so many that they wait for their turn.
    const small = await RawSocket.webSocket(port);
    small.write(Buffer.concat(Array.from({ length: 20_000 }, () => wsFrame("{}"))));
    await small.end();

    const known = await PlainClient.open(ws, "devtoken");
    assert.is((await known.publish("t", "x".repeat(900_000))).op, "OK");
    await known.close();

    // Right behind its AUTH, in one piece with it.
    const quick = new WebSocket(ws);
    const answers: string[] = [];
    quick.on("message", (text) => answers.push(JSON.parse(text.toString()).op));
    await new Promise((resolve) => quick.on("open", resolve));
    quick.send('{"op":"AUTH","token":"devtoken"}');
    quick.send(JSON.stringify({ op: "PUBLISH", topic: "t", payload: "x".repeat(900_000) }));
    await eventually(5000, "both answers", () => answers.length === 2);
    assert.equal(answers, ["OK", "OK"]);
    quick.terminate();
  });
});

test("connections are bounded on the socket and over HTTP together, and a silent one is cut", async () => {
  await withNode({ limits: { socketsMax: 20, authMs: 4000 } }, async ({ http, port }) => {
    const opened = await Promise.all(Array.from({ length: 40 }, () => RawSocket.open(port)));
    await eventually(3000, "20 are left", () => opened.filter(({ ended }) => !ended).length === 20);
    const [first, ...others] = opened.filter(({ ended }) => !ended);
    first.write("GET /health/live HTTP/1.1\r\nHost: loc");
    for (const other of others) other.write("");
    await eventually(5000, "those that say nothing, and half of a head, are cut", () =>
      opened.every(({ ended }) => ended),
    );
    assert.is((await fetch(`${http}/health/live`)).status, 200);
  });
});

test("an id that is asked of many partitions counts as many requests, so that one client cannot use up a worker's", async () => {
  const limits = { workerInflightMax: 1000, pendingPerConnectionMax: 250 };
  await withNode({ partitions: 64, limits }, async ({ ws }) => {
    const [hostile, control] = [await PlainClient.open(ws), await PlainClient.open(ws)];
    await hostile.subscribe("many", "g");
    for (const op of ["MODACK", "ACK", "NACK"]) {
      const answers = Array.from({ length: 200 }, (_, i) =>
        hostile.request({ op, topic: "many", group: "g", id: `nobody-${i}`, extend_ms: 1000 }),
      );
      for (let i = 0; i < 20; i++) await control.publish("control", i);
      const seen = new Set((await Promise.all(answers)).map((answer) => answer.code ?? `stale ${answer.stale}`));
      assert.equal([...seen], [op === "MODACK" ? "unknown_id" : "stale true"]);
    }
    await Promise.all([hostile.close(), control.close()]);
  });
});

const members = (count: number) => Array.from({ length: count }, (_, i) => `"${i.toString(36)}":1`).join(",");

test("a text with more values than any event may have is not parsed", async () => {
  await withNode({}, async ({ ws }) => {
    const client = await PlainClient.open(ws);
    const bytes = 4_000_000;
    const texts: [code: keyof typeof codes, text: string][] = [
      ["bad_frame", "[".repeat(bytes)],
      ["bad_frame", '{"a":'.repeat(bytes / 5)],
      ["too_large", `[${"{},".repeat(Math.floor(bytes / 3))}`],
      ["too_large", `{"op":"PUBLISH","topic":"t","payload":[${"1,".repeat(bytes / 2)}1]}`],
      ["too_large", `{"op":"PUBLISH","topic":"t","payload":{${members(500_000)}}}`],
    ];
    for (const [code, text] of texts) {
      client.others.length = 0;
      client.socket.send(text);
      const answer = await eventually(10_000, `an answer to ${text.slice(0, 50)}`, () => client.others[0]);
      assert.is(answer.code, code, text.slice(0, 50));
    }
    const brackets = "[{,:".repeat(250_000);
    assert.is((await client.publish("t", brackets)).op, "OK", "in a string they are bytes like any others");
    // Longer than a payload may be by what is not stored, and with as many members, or colons in a string, as one can have.
    const spaces = " ".repeat(400_000);
    client.others.length = 0;
    for (const payload of [JSON.stringify('":'.repeat(300_000)), `{${members(100_000)}}`])
      client.socket.send(`{"op":"PUBLISH","topic":"t","payload":${payload}${spaces}}`);
    const answers = await eventually(10_000, "two answers", () => client.others.length === 2 && client.others);
    assert.equal(
      answers.map(({ op }) => op),
      ["OK", "OK"],
    );
    await client.close();
  });
});

test.run();
