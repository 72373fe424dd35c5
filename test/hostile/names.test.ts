// As many topics as there may be, under names that are nearly the same, and one more; and a socket that never says who it is.

import { test } from "uvu";
import * as assert from "uvu/assert";
import { startHere } from "../support/node-here.ts";
import { type Frame, PlainClient } from "../support/plain-client.ts";
import { RawSocket, wsFrame } from "./raw-socket.ts";

/** 10,000 in a node as it is; to make so many takes half a minute. */
const topicsMax = 800;
const atATime = 400;
/** Each differs from another by its case, a separator, its last character, or by being what something else is called inside. */
const shapes: readonly ((n: number) => string)[] = [
  (n) => `t.${n}`,
  (n) => `T.${n}`,
  (n) => `t:${n}`,
  (n) => `t-${n}`,
  (n) => `t_${n}`,
  (n) => `t.${n}.t`,
  (n) => `${n}`,
  (n) => `${"x".repeat(195)}:${n}`,
];
const inner = [
  "__proto__",
  "constructor",
  "toString",
  "hasOwnProperty",
  "catalog",
  "partition",
  "group",
  "bucket",
  "-1",
  "1e3",
];

test("as many topics as there may be, under names that are nearly the same, are as many topics, and one more is refused", async () => {
  const { node, http, ws } = await startHere({
    store: "memory",
    workers: 1,
    connRate: "off",
    topicRate: "off",
    limits: { topicsMax },
  });
  try {
    const client = await PlainClient.open(ws);
    const names = [...inner];
    for (let n = 0; names.length < topicsMax; n++) names.push(shapes[n % shapes.length](Math.floor(n / shapes.length)));
    assert.is(new Set(names).size, topicsMax);
    const publishAll = async (payload: (name: string) => unknown) => {
      const answers: Frame[] = [];
      for (let from = 0; from < names.length; from += atATime) {
        const some = names.slice(from, from + atATime);
        answers.push(...(await Promise.all(some.map((name) => client.publish(name, payload(name))))));
      }
      return answers;
    };
    // Two names that were one topic would share its offsets.
    const first = await publishAll((name) => name);
    assert.equal([...new Set(first.map(({ offset }) => offset))], [0]);
    assert.is(new Set(first.map(({ id }) => id)).size, topicsMax);
    for (const name of ["t.one-more", "x", "toString.1"]) {
      const refused = await client.request({ op: "PUBLISH", topic: name, payload: 1 });
      assert.is(refused.code, "limit");
      assert.is((await client.request({ op: "SUBSCRIBE", topic: name, group: "g" })).code, "limit");
    }
    const put = () =>
      fetch(`${http}/topics/one-more`, { method: "PUT", headers: { "content-type": "application/json" }, body: "{}" });
    assert.is((await put()).status, 409);
    for (const name of [...inner, ...names.slice(-20)]) {
      const answer = await fetch(`${http}/replay?topic=${name}`);
      const { events } = (await answer.json()) as { events: { payload: unknown }[] };
      assert.equal(
        events.map(({ payload }) => payload),
        [name],
      );
    }
    assert.is((await fetch(`${http}/topics/__proto__`, { method: "DELETE" })).ok, true);
    assert.is((await put()).status, 201);
    assert.is((await put()).status, 200);
    assert.is((await client.request({ op: "PUBLISH", topic: "__proto__", payload: 1 })).code, "limit");
    await client.close();
  } finally {
    await node.destroy();
  }
});

test("groups of a topic and subscriptions of a connection are bounded, and what leaves makes room", async () => {
  const limits = { groupsPerTopicMax: 100, subscriptionsPerConnectionMax: 130 };
  const { node, http, ws } = await startHere({ store: "memory", workers: 1, partitions: 3, limits });
  try {
    const client = await PlainClient.open(ws);
    const subscribe = (topic: string, n: number) =>
      client.request({ op: "SUBSCRIBE", topic, group: `g${n}`, opts: {} });
    for (let n = 0; n < 100; n++) assert.is((await subscribe("a", n)).op, "OK");
    for (let n = 100; n < 110; n++) assert.is((await subscribe("a", n)).code, "limit");
    for (let n = 0; n < 30; n++) assert.is((await subscribe("b", n)).op, "OK");
    assert.is((await subscribe("b", 30)).code, "limit");
    // Durable groups stay, the connection's own count does not.
    await client.close();
    const another = await PlainClient.open(ws);
    assert.is((await another.request({ op: "SUBSCRIBE", topic: "a", group: "new" })).code, "limit");
    assert.is((await another.request({ op: "SUBSCRIBE", topic: "b", group: "new" })).op, "OK");
    assert.ok((await fetch(`${http}/topics/a/groups/g7`, { method: "DELETE" })).ok);
    assert.is((await another.request({ op: "SUBSCRIBE", topic: "a", group: "new" })).op, "OK");
    assert.is((await another.request({ op: "SUBSCRIBE", topic: "a", group: "newer" })).code, "limit");
    await another.close();
  } finally {
    await node.destroy();
  }
});

test("a socket that never says AUTH is closed with 4401, whatever else it does", async () => {
  const { node } = await startHere({ store: "memory", workers: 1, token: "devtoken", limits: { authMs: 500 } });
  const [{ port }] = node.listening;
  const text = '{"op":"PING","corr":1}';
  const kinds: Readonly<Record<string, (raw: RawSocket) => void>> = {
    silence: () => undefined,
    "wrong tokens": (raw) => raw.write(wsFrame('{"op":"AUTH","token":"x"}')),
    "other frames": (raw) => raw.write(wsFrame(text)),
    pings: (raw) => raw.write(wsFrame("", { opcode: 9 })),
    "a fragment that never ends": (raw) => raw.write(wsFrame('{"op":"AU', { fin: false })),
    "half a frame": (raw) => raw.write(wsFrame(text).subarray(0, 9)),
    "a binary frame": (raw) => raw.write(wsFrame(Uint8Array.of(1, 2, 3, 4), { opcode: 2 })),
  };
  try {
    await Promise.all(
      Object.entries(kinds).map(async ([name, say]) => {
        const started = performance.now();
        const raw = await RawSocket.webSocket(port);
        say(raw);
        assert.is(await raw.closeCode(), 4401, name);
        const tookMs = performance.now() - started;
        assert.ok(tookMs > 450 && tookMs < 10_000, `${name}: ${tookMs} ms`);
        assert.not.match(raw.text(), /"op":"OK"/, name);
        raw.destroy();
      }),
    );
  } finally {
    await node.destroy();
  }
});

test.run();
