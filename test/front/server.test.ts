// Ports, upgrades, pings and the end of it all.

import { createServer } from "node:http";
import { type AddressInfo, connect } from "node:net";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { WebSocket } from "ws";
import type { CursorState } from "../../src/actors/messages.ts";
import { defaultConfig } from "../../src/config.ts";
import { hostAllowed, originAllowed, staticToken } from "../../src/front/auth.ts";
import { createFront } from "../../src/front/front.ts";
import { failure } from "../../src/protocol/failure.ts";
import { eventually, within } from "../support/deadline.ts";
import { FakeSystem, SocketClock } from "../support/fake-system.ts";
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

/** 101 when the upgrade is let through, else the status of the refusal. */
function upgradeStatus(url: string, headers: Record<string, string>): Promise<number> {
  const socket = new WebSocket(url, { headers });
  const status = new Promise<number>((resolve, reject) => {
    socket.on("open", () => {
      socket.close();
      resolve(101);
    });
    socket.on("unexpected-response", (request, response) => {
      request.destroy();
      resolve(response.statusCode ?? 0);
    });
    socket.on("error", reject);
  });
  return within(5000, "an answer to the upgrade", status);
}

test("without a token the Host must be loopback, with one it may be anything", () => {
  const loopback = ["localhost", "LOCALHOST:8090", "127.0.0.1", "127.1.2.3:80", "[::1]", "[::1]:8090"];
  const foreign = [
    undefined,
    "",
    "evil.example",
    "127.0.0.1.evil.example",
    "10.0.0.1:8090",
    "localhost.evil:1",
    "[::2]",
  ];
  for (const host of loopback) assert.is(hostAllowed(host, false), true, host);
  for (const host of foreign) assert.is(hostAllowed(host, false), false, String(host));
  for (const host of foreign) assert.is(hostAllowed(host, true), true, String(host));
});

test("an Origin is our own or listed; without one it is no browser", () => {
  const allowed = (origin: string | undefined, origins: string[] = []) =>
    originAllowed(origin, "127.0.0.1:8090", origins);
  assert.is(allowed(undefined), true);
  assert.is(allowed("http://127.0.0.1:8090"), true);
  assert.is(allowed("https://127.0.0.1:8090"), true);
  assert.is(allowed("http://127.0.0.1:9999"), false);
  assert.is(allowed("null"), false);
  assert.is(allowed("https://app.example"), false);
  assert.is(allowed("https://app.example", ["https://app.example"]), true);
  assert.is(allowed("https://app.example.evil", ["https://app.example"]), false);
});

test("a foreign Host or Origin is refused with 403 before there is a connection", () =>
  staged(
    async ({ url, port, front }) => {
      assert.is(await upgradeStatus(url, {}), 101);
      assert.is(await upgradeStatus(url, { host: "evil.example" }), 403);
      assert.is(await upgradeStatus(url, { origin: "https://evil.example" }), 403);
      assert.is(await upgradeStatus(url, { origin: `http://127.0.0.1:${port}` }), 101);
      assert.is(await upgradeStatus(url, { origin: "https://app.example" }), 101);
      await eventually(5000, "all gone", () => front.stats().find(({ name }) => name === "connections")?.value === 0);
    },
    { origins: ["https://app.example"] },
  ));

test("past connectionsMax an upgrade is refused with 503, and one that leaves makes room", () =>
  staged(
    async ({ url, front }) => {
      const first = await PlainClient.open(url);
      const second = await PlainClient.open(url);
      assert.is(await upgradeStatus(url, {}), 503);
      await first.close();
      await eventually(5000, "room", () => front.stats().find(({ name }) => name === "connections")?.value === 1);
      assert.is(await upgradeStatus(url, {}), 101);
      await second.close();
    },
    { limits: { connectionsMax: 2 } },
  ));

test("a taken port stops the start and is named with its setting", async () => {
  const taken = createServer();
  await new Promise<void>((resolve) => taken.listen(0, "127.0.0.1", resolve));
  const { port } = taken.address() as AddressInfo;
  const clock = new SocketClock();
  const log = { debug: () => undefined, info: () => undefined, warn: () => undefined, error: () => undefined };
  const config = defaultConfig({ wsPort: 0, httpPort: "off", opsPort: port, replayPort: 0 });
  const system = new FakeSystem(clock);
  const front = createFront({ config, system, clock, log, auth: staticToken(undefined), guarded: false });
  const refused = await front.listen().then(
    () => "it started",
    (error: Error) => error.message,
  );
  assert.match(refused, new RegExp(`^OPS_PORT ${port} is taken`));
  await front.close();
  await new Promise((resolve) => taken.close(resolve));
});

test("every port serves sockets", async () => {
  const stage = await startFront({ httpPort: 0, opsPort: 0, replayPort: "off" });
  const config = stage.config;
  assert.equal([config.httpPort, config.replayPort], [0, "off"]);
  await stage.close();
  const clock = new SocketClock();
  const log = { debug: () => undefined, info: () => undefined, warn: () => undefined, error: () => undefined };
  const front = createFront({
    config,
    system: new FakeSystem(clock),
    clock,
    log,
    auth: staticToken(undefined),
    guarded: false,
  });
  const listening = await front.listen();
  assert.equal(
    listening.map(({ setting }) => setting),
    ["WS_PORT", "HTTP_PORT", "OPS_PORT"],
  );
  for (const { port } of listening) assert.is(await upgradeStatus(`ws://127.0.0.1:${port}`, {}), 101);
  await front.close();
});

test("a peer that does not answer a ping is cut, one that does stays", () =>
  staged(
    async ({ url, port, clock, front }) => {
      const client = await PlainClient.open(url);
      // A socket that speaks the handshake and then never again.
      const dead = connect(port, "127.0.0.1");
      dead.write(
        `GET / HTTP/1.1\r\nHost: 127.0.0.1:${port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n` +
          "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
      );
      await within(5000, "the handshake", new Promise((resolve) => dead.once("data", resolve)));
      const cut = new Promise((resolve) => dead.once("close", resolve));
      dead.on("error", () => undefined);
      dead.resume();
      for (let i = 0; i < 3; i++) {
        const ping = new Promise((resolve) => client.socket.once("ping", resolve));
        clock.advance(1000);
        await within(5000, "a ping", ping);
        await client.settle();
      }
      await within(5000, "the dead one is cut", cut);
      const connections = front.stats().find(({ name }) => name === "connections");
      assert.is(connections?.value, 1);
      await client.close();
    },
    { limits: { pingMs: 1000 } },
  ));

test("draining refuses PUBLISH and SUBSCRIBE, takes ACKs until nothing is leased, gives leases back uncounted, closes with 1001", () =>
  staged(async ({ url, system, front, clock }) => {
    const client = await PlainClient.open(url);
    await client.subscribe("t", "g");
    const cursor: CursorState = {
      exists: true,
      floor: 0,
      ranges: [],
      start: 0,
      end: 1,
      lag: 1,
      leased: 1,
      waiting: 0,
      members: 1,
    };
    system.on("cursor", () => cursor);
    const drained = front.drain();
    const flow = (await system.nth("flow", 0)).message;
    assert.is(flow.open, false);
    assert.is((await client.request({ op: "PUBLISH", topic: "t", payload: 1 })).code, "shutting_down");
    assert.is((await client.request({ op: "SUBSCRIBE", topic: "t", group: "h" })).code, "shutting_down");
    assert.is(await upgradeStatus(url, {}), 503);
    assert.is((await client.request({ op: "ACK", topic: "t", group: "g", id: "x" })).op, "OK");
    assert.is(system.all("leave").length, 0);
    system.on("cursor", () => ({ ...cursor, leased: 0 }));
    const ticks = setInterval(() => clock.advance(25), 1);
    const { code } = await within(5000, "close", client.closed);
    await drained;
    clearInterval(ticks);
    assert.is(code, 1001);
    assert.equal(
      system.all("leave").map(({ message }) => message.cause),
      ["shutdown"],
    );
  }));

test("draining waits no longer than drainMs for what is leased", () =>
  staged(
    async ({ url, system, front, clock }) => {
      const client = await PlainClient.open(url);
      await client.subscribe("t", "g");
      system.on("cursor", () => ({
        exists: true,
        floor: 0,
        ranges: [],
        start: 0,
        end: 1,
        lag: 1,
        leased: 1,
        waiting: 0,
        members: 1,
      }));
      const drained = front.drain();
      await system.nth("cursor", 0);
      const ticks = setInterval(() => clock.advance(25), 1);
      await within(5000, "drained", drained);
      clearInterval(ticks);
      assert.is((await within(5000, "close", client.closed)).code, 1001);
    },
    { limits: { drainMs: 500 } },
  ));

test("interrupted deletions are finished at start: every partition is dropped, then the topic is forgotten", async () => {
  const clock = new SocketClock();
  const system = new FakeSystem(clock);
  const deleting = { ...system.make("old", 3), status: "deleting" as const };
  system.topics.set("old", deleting);
  system.make("live");
  const log = { debug: () => undefined, info: () => undefined, warn: () => undefined, error: () => undefined };
  const config = defaultConfig({ wsPort: 0, httpPort: "off", opsPort: "off", replayPort: "off" });
  const front = createFront({ config, system, clock, log, auth: staticToken(undefined), guarded: false });
  let down = true;
  system.on("drop", (_, to) => (down && to.cell === "partition/65" ? failure("unavailable", "down") : null));
  await front.listen();
  assert.is(system.all("drop").length, 3);
  assert.is(system.all("forget").length, 0);
  down = false;
  front.events.shardUp(1, 2);
  const forget = await system.nth("forget", 0);
  assert.is(forget.message.topicId, deleting.id);
  await front.close();
});

test("a catalog that cannot be asked does not stop the start, and deletions are finished when its shard is up", async () => {
  const clock = new SocketClock();
  const system = new FakeSystem(clock);
  const deleting = { ...system.make("old"), status: "deleting" as const };
  system.topics.set("old", deleting);
  const log = { debug: () => undefined, info: () => undefined, warn: () => undefined, error: () => undefined };
  const config = defaultConfig({ wsPort: 0, httpPort: "off", opsPort: "off", replayPort: "off" });
  const front = createFront({ config, system, clock, log, auth: staticToken(undefined), guarded: false });
  let down = true;
  system.on("topics", () => (down ? failure("unavailable", "the disk is full (ENOSPC)") : { records: [deleting] }));
  assert.is((await front.listen()).length, 1);
  assert.is(system.all("drop").length, 0);
  down = false;
  front.events.shardUp(0, 2);
  const forget = await system.nth("forget", 0);
  assert.is(forget.message.topicId, deleting.id);
  await front.close();
});

test("stats count connections, subscriptions, frames, refusals and what was published", () =>
  staged(async ({ url, front }) => {
    const client = await PlainClient.open(url);
    await client.subscribe("t", "g");
    await client.publish("t", 1);
    await client.publish("t", 2);
    await client.request({ op: "NOPE" });
    const stats = new Map(
      front.stats().map(({ name, labels, value }) => [`${name} ${Object.values(labels).join()}`.trim(), value]),
    );
    const expected = { connections: 1, subscriptions: 1, "events_published_total t": 2, "refusals_total bad_frame": 1 };
    for (const [name, value] of Object.entries(expected)) assert.is(stats.get(name), value, name);
    assert.equal([stats.get("frames_in_total"), stats.get("frames_out_total")], [5, 5]);
    await client.close();
  }));

test.run();
