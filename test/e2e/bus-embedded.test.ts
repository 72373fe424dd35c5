// What is true of `node.bus` alone: its rights, its rates, its end.

import { spawn } from "node:child_process";
import { test } from "uvu";
import * as assert from "uvu/assert";
import type { EventRecord } from "../../src/bus/event-bus.ts";
import type { NarthexError } from "../../src/client/errors.ts";
import { createNode, embed, type NodeOptions, type RunningNode } from "../../src/node.ts";
import { eventually, pause, within } from "../support/deadline.ts";
import { startHere } from "../support/node-here.ts";
import { dataFolder } from "../support/node-process.ts";
import { PlainClient } from "../support/plain-client.ts";

async function withNode(options: NodeOptions, run: (node: RunningNode) => Promise<void>): Promise<void> {
  const node = await createNode({ store: "memory", listen: false, logLevel: "silent", topicRate: "off", ...options });
  try {
    await within(30_000, "the test ends", run(node));
  } finally {
    await within(10_000, "the node is destroyed", node.destroy());
  }
}

const codeOf = (promise: Promise<unknown>) =>
  within(
    10_000,
    "a refusal",
    promise.then(
      () => "resolved",
      ({ code }: NarthexError) => code,
    ),
  );

test("a node that listens on nothing is reached by its bus", () =>
  withNode({ wsPort: 8090 }, async ({ listening, bus }) => {
    assert.equal(listening, []);
    const stored = await bus.publish("orders", { n: 1 });
    const subscription = await bus.subscribe("orders", "billing", { from: "earliest" });
    for await (const { event } of subscription) {
      assert.equal([event.id, event.payload], [stored.id, { n: 1 }]);
      break;
    }
  }));

test("the bus has all rights where others need a token, and is no connection", async () => {
  const options = { listen: true, wsPort: 0, httpPort: "off", opsPort: "off", replayPort: "off" } as const;
  const auth = async (token: string | undefined) =>
    token === "t0k3n"
      ? ({ ok: true, subScopes: ["subscribe:orders"] } as const)
      : ({ ok: false, code: "unauthorized", msg: "no" } as const);
  await withNode({ ...options, auth, limits: { connectionsMax: 2 } }, async ({ bus, listening }) => {
    const stored = await bus.publish("orders", 1);
    const address = `127.0.0.1:${listening[0].port}`;
    assert.match(
      await PlainClient.open(`ws://${address}`).then(
        () => "let in",
        ({ message }: Error) => message,
      ),
      /unauthorized/,
    );
    // The one that was not let in is a connection, and this is the other.
    const outside = await PlainClient.open(`ws://${address}`, "t0k3n");
    await outside.subscribe("orders", "g", { from: "earliest" });
    assert.is((await outside.next()).event.id, stored.id);
    const metrics = await (
      await fetch(`http://${address}/metrics`, { headers: { authorization: "Bearer t0k3n" } })
    ).text();
    assert.match(metrics, /^narthex_connections 2$/m);
    await outside.close();
  });
});

test("CONN_RATE does not hold for the bus, TOPIC_RATE does and is waited out", () =>
  withNode({ connRate: { burst: 1, perSec: 1 }, topicRate: { burst: 30, perSec: 60 } }, async ({ bus }) => {
    const seen: string[] = [];
    await bus.subscribe("t", "g", (event) => void seen.push(event.id));
    const began = performance.now();
    // A batch may overdraw what there is; the next one waits until that is paid.
    const stored = await Promise.all(Array.from({ length: 60 }, (_, n) => bus.publish("t", n)));
    stored.push(await bus.publish("t", "one more"));
    const took = performance.now() - began;
    await eventually(10_000, "all are delivered", () => seen.length === 61);
    assert.equal(
      seen,
      stored.map(({ id }) => id),
    );
    // 30 beyond the burst at 60 a second; by CONN_RATE it would take a minute.
    assert.ok(took > 400 && took < 8000, `it took ${took} ms`);
  }));

test("what the node's own process asks waits for nobody outside, and the other way round", () =>
  withNode({ listen: true, wsPort: 0, httpPort: "off", opsPort: "off", replayPort: "off" }, async (node) => {
    const outside = await PlainClient.open(`ws://127.0.0.1:${node.listening[0].port}`);
    await outside.subscribe("t", "g");
    const inside: string[] = [];
    await node.bus.subscribe("t", "h", (event) => void inside.push(event.id));
    const mine = await node.bus.publish("t", "from inside");
    const theirs = await outside.publish("t", "from outside");
    const came = [await outside.next(), await outside.next()].map(({ event }) => event.id);
    assert.equal(came, [mine.id, theirs.id]);
    await eventually(5000, "both", () => inside.length === 2);
    assert.equal(inside, came);
    await outside.close();
  }));

test("close: handlers that run may ack, publishes are refused, what is pending settles, and nothing is counted", async () => {
  const data = dataFolder();
  const options: NodeOptions = { store: "log", dataPath: data.path };
  let finish: () => void = () => undefined;
  const finished = new Promise<void>((resolve) => {
    finish = resolve;
  });
  let began: () => void = () => undefined;
  const running = new Promise<void>((resolve) => {
    began = resolve;
  });
  const seen: string[] = [];
  const published: EventRecord<unknown>[] = [];
  await withNode(options, async (node) => {
    const { bus } = node;
    for (let n = 0; n < 3; n++) published.push(await bus.publish("t", n));
    const handled = await bus.subscribe(
      "t",
      "g",
      async (event) => {
        seen.push(event.id);
        began();
        await finished;
      },
      { from: "earliest", maxInflight: 1 },
    );
    const idle = await bus.subscribe("idle", "g");
    const next = idle[Symbol.asyncIterator]().next();
    await within(5000, "the handler runs", running);
    const closing = node.close();
    // Once more, by its other name, changes nothing.
    const again = node[Symbol.asyncDispose]();
    const refused = codeOf(bus.publish("t", "too late"));
    const noMore = codeOf(bus.subscribe("t", "h", () => undefined));
    await pause(100);
    finish();
    await within(8000, "the node is closed", Promise.all([closing, again]));
    for (const code of [await refused, await noMore]) assert.match(code, /^(shutting_down|closed)$/);
    assert.is((await within(5000, "the iterator settles", next)).done, true);
    await within(5000, "the subscriptions settle", Promise.allSettled([handled.closed, idle.closed]));
    assert.equal(seen, [published[0].id]);
    assert.is(await codeOf(bus.publish("t", "after the end")), "closed");
    assert.is(await codeOf(bus.getCursor("t", "g")), "closed");
  });
  await withNode(options, async ({ bus }) => {
    const cursor = await bus.getCursor("t", "g");
    assert.equal([cursor?.lastId, cursor?.lag], [published[0].id, 2]);
    const again: [string, number][] = [];
    await bus.subscribe("t", "g", (event, ctx) => void again.push([event.id, ctx.attempt]));
    await eventually(5000, "the rest", () => again.length === 2);
    assert.equal(again, [
      [published[1].id, 1],
      [published[2].id, 1],
    ]);
  });
  data.remove();
});

test("what was published before close is stored, without anybody waiting for it", async () => {
  const data = dataFolder();
  const options: NodeOptions = { store: "log", dataPath: data.path };
  let ids: string[] = [];
  await withNode(options, async (node) => {
    const publishes = Array.from({ length: 100 }, (_, n) => node.bus.publish(`t${n % 3}`, n));
    await within(8000, "the node is closed", node.close());
    ids = (await Promise.all(publishes)).map(({ id }) => id);
  });
  await withNode(options, async ({ bus }) => {
    const seen: string[] = [];
    await bus.subscribe(["t0", "t1", "t2"], "g", (event) => void seen.push(event.id), { from: "earliest" });
    await eventually(5000, "all of them", () => seen.length === 100);
    assert.equal(seen.sort(), ids.sort());
  });
  data.remove();
});

test("a publish that is refused in the drain is refused at once, not at its end", () =>
  withNode({ limits: { drainMs: 5000 } }, async (node) => {
    let finish: () => void = () => undefined;
    const finished = new Promise<void>((resolve) => {
      finish = resolve;
    });
    let began: () => void = () => undefined;
    const running = new Promise<void>((resolve) => {
      began = resolve;
    });
    await node.bus.publish("t", 1);
    const refusals: Promise<string>[] = [];
    await node.bus.subscribe(
      "t",
      "g",
      async () => {
        began();
        await finished;
        refusals.push(codeOf(node.bus.publish("t", "from a handler")));
      },
      { from: "earliest" },
    );
    await within(5000, "the handler runs", running);
    const closing = node.close();
    const began2 = performance.now();
    assert.is(await codeOf(node.bus.publish("t", 2)), "shutting_down");
    assert.ok(performance.now() - began2 < 4000);
    finish();
    await within(8000, "the node is closed", closing);
    for (const refused of refusals) assert.match(await refused, /^(shutting_down|closed)$/);
  }));

test("close does not wait for a handler that never ends longer than the drain lasts, nor for an idle bus at all", async () => {
  const data = dataFolder();
  const options: NodeOptions = { store: "log", dataPath: data.path, limits: { drainMs: 400 } };
  await withNode(options, async (node) => {
    const { bus } = node;
    let signal: AbortSignal | undefined;
    const stored = await bus.publish("t", 1);
    const subscription = await bus.subscribe(
      "t",
      "g",
      (event, ctx) => {
        assert.is(event.id, stored.id);
        signal = ctx.signal;
        return new Promise(() => undefined);
      },
      { from: "earliest", ackTimeoutMs: 200 },
    );
    await eventually(5000, "the handler runs", () => signal !== undefined);
    const began = performance.now();
    await within(8000, "the node is closed", node.close());
    assert.ok(performance.now() - began >= 390);
    assert.is(signal?.aborted, true);
    await within(5000, "the subscription settles", Promise.allSettled([subscription.closed]));
  });
  // What was cut short does not count.
  await withNode(options, async ({ bus }) => {
    for await (const { event, ctx } of await bus.subscribe("t", "g")) {
      assert.equal([event.payload, ctx.attempt], [1, 1]);
      break;
    }
  });
  data.remove();
  await withNode({}, async (node) => {
    await node.bus.publish("t", 1);
    await node.bus.subscribe("t", "g", () => undefined);
    await node.bus.subscribe("t", "h");
    const began = performance.now();
    await within(8000, "the node is closed", node.close());
    assert.ok(performance.now() - began < 6000);
  });
});

test("destroy ends everything at once", () =>
  withNode({}, async (node) => {
    const { bus } = node;
    await bus.publish("t", 1);
    let signal: AbortSignal | undefined;
    const handled = await bus.subscribe(
      "t",
      "g",
      (_event, ctx) => {
        signal = ctx.signal;
        return new Promise(() => undefined);
      },
      { from: "earliest" },
    );
    const idle = await bus.subscribe("t", "h", { from: "earliest" });
    const next = idle[Symbol.asyncIterator]();
    await next.next();
    const waiting = next.next();
    await eventually(5000, "the handler runs", () => signal !== undefined);
    const pending = Array.from({ length: 10 }, (_, n) => codeOf(bus.publish("t", n)));
    const asked = codeOf(bus.getCursor("t", "g"));
    await within(5000, "it is destroyed", node.destroy());
    for (const code of await Promise.all(pending)) assert.match(code, /^(closed|unknown_outcome|resolved)$/);
    assert.match(await asked, /^(closed|resolved)$/);
    assert.is(signal?.aborted, true);
    await within(5000, "all settles", Promise.allSettled([handled.closed, idle.closed, waiting]));
    assert.is(await codeOf(bus.publish("t", 1)), "closed");
  }));

test("close and destroy may be called in any order and more than once", () =>
  withNode({}, async (node) => {
    await node.bus.publish("t", 1);
    await within(5000, "all of them end", Promise.all([node.close(), node.close(), node.destroy(), node.close()]));
    await within(5000, "again", node.close());
  }));

test("a node that is ended by something else takes its bus along", async () => {
  const { node } = await startHere({ store: "memory" });
  const { bus } = await embed(node);
  await bus.publish("t", 1);
  const idle = await bus.subscribe("t", "g");
  const next = idle[Symbol.asyncIterator]().next();
  // As when another process has taken the data folder over.
  await node.destroy();
  await within(5000, "the iterator settles", next);
  assert.is(await codeOf(eventually(5000, "an end", () => bus.publish("t", 2).then(() => false))), "closed");
});

test("a worker that dies is not the end of the bus: what it promised is kept without the caller's doing", async () => {
  const data = dataFolder();
  const { node } = await startHere({ store: "log", dataPath: data.path }, { testing: true });
  const { bus, destroy } = await embed(node);
  const seen = new Set<string>();
  await bus.subscribe("t", "g", (event) => void seen.add(event.id), { from: "earliest" });
  const stored: string[] = [];
  let n = 0;
  const publishing = (async () => {
    while (n < 400) stored.push((await bus.publish("t", n++, { key: "k" })).id);
  })();
  await eventually(10_000, "load", () => stored.length > 100);
  node.system.crash(0, "throw");
  await within(20_000, "every publish resolves", publishing);
  await eventually(10_000, "every event is seen", () => stored.every((id) => seen.has(id)));
  const all: unknown[] = [];
  await bus.subscribe("t", "again", (event) => void all.push(event.payload), { from: "earliest" });
  await eventually(10_000, "the whole log", () => all.length >= 400);
  assert.equal(
    all,
    Array.from({ length: 400 }, (_, i) => i),
    "each once and in order",
  );
  await destroy();
  data.remove();
});

test("wrong options are refused with a sentence, and nothing is left running", async () => {
  const cases: [object, RegExp][] = [
    [{ listen: "no" }, /^listen is "no": allowed are true and false$/],
    [{ store: "disk" }, /^STORE is "disk": allowed are/],
    [{ wsPort: -1 }, /^WS_PORT is/],
    [{ wsport: 9000 }, /^unknown option wsport: known are auth listen .*wsPort/],
    [{ auth: "t0k3n" }, /^auth is no function/],
  ];
  for (const [options, message] of cases) {
    const error = await createNode(options as NodeOptions).then(
      () => new Error("it started"),
      (error: Error) => error,
    );
    assert.match(error.message, message);
  }
});

test("a process with nothing but a bus lives while the node does, and ends by itself when it is closed", async () => {
  const program = `
    import { createNode, NarthexError } from ${JSON.stringify(new URL("./narthex.js", import.meta.url).href)};
    const node = await createNode({ store: "memory", listen: false });
    let first = true;
    await node.bus.subscribe("t", "g", async (event) => {
      console.log("got", event.payload);
      if (!first) return;
      first = false;
      const refused = await node.bus.publish("a b", 1).catch((error) => error);
      console.log(refused instanceof NarthexError, refused.code);
      setTimeout(() => node.close().then(() => console.log("closed")), 50).unref();
    });
    setTimeout(() => node.bus.publish("t", 7), 200).unref();
  `;
  const child = spawn(process.execPath, ["--input-type=module", "-e", program], { stdio: ["ignore", "pipe", "pipe"] });
  let out = "";
  for (const stream of [child.stdout, child.stderr]) stream.setEncoding("utf8").on("data", (text) => (out += text));
  const exited = new Promise<number | null>((resolve) => child.on("close", resolve));
  try {
    assert.is(await within(15_000, "the process ends by itself", exited), 0, out);
    assert.is(out, "got 7\ntrue bad_topic\nclosed\n");
  } finally {
    child.kill("SIGKILL");
  }
});

test.run();
