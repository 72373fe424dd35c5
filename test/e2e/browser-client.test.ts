// The client in a real page: the build for browsers, as it is shipped, against a real node.

import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { connect, type EventClient } from "../../src/client/client.ts";
import { browserTest, openBrowser, servePages, type Tab } from "../support/browser.ts";
import { eventually, within } from "../support/deadline.ts";
import { dataFolder, startNode } from "../support/node-process.ts";

test.before(() => {
  const { status, stderr } = spawnSync(process.execPath, ["build.mjs"], { encoding: "utf8" });
  assert.is(status, 0, stderr);
});

const page = `<!doctype html><title>consumer</title><link rel="icon" href="data:,">
<script type="module">
  import { connect } from "/client.js";
  const query = new URLSearchParams(location.search);
  window.got = [];
  window.statuses = [];
  const client = await connect(query.get("node"), {
    token: query.get("token"),
    onStatus: (status) => window.statuses.push(status),
  });
  await client.subscribe(
    "orders",
    "pages",
    async (event, ctx) => {
      await new Promise((resolve) => setTimeout(resolve, 5));
      window.got.push([event.payload.n, ctx.attempt]);
    },
    { from: "earliest", maxInflight: 4 },
  );
  window.publish = (n) => client.publish("orders", { n }, { key: "page" });
  window.subscribed = true;
</script>`;

async function publish(client: EventClient, from: number, to: number): Promise<void> {
  const events = Array.from({ length: to - from }, (_, i) => ({ payload: { n: from + i } }));
  await client.publishMany("orders", events);
}

function range(from: number, to: number): number[] {
  return Array.from({ length: to - from }, (_, i) => from + i);
}

async function numbers(tab: Tab): Promise<number[]> {
  const got = await tab.eventually<[number, number][]>("the page tells what it got", "window.got");
  return got.map(([n]) => n).sort((a, b) => a - b);
}

function settled(client: EventClient): Promise<boolean> {
  return eventually(20_000, "everything is acked", async () => {
    const cursor = await client.getCursor("orders", "pages");
    return cursor?.lag === 0;
  });
}

browserTest(
  "a page subscribes, acks, survives a restart of the node, and shares the work with a second tab",
  async () => {
    const pages = await servePages({ "/": page, "/client.js": readFileSync("dist/client.browser.js") });
    const data = dataFolder();
    const env = { ORIGINS: pages.origin, WS_TOKEN: "page-token", CONN_RATE: "off", TOPIC_RATE: "off" };
    let node = await startNode({ data: data.path, env });
    const port = String(node.ports.ws);
    const client = await connect(node.wsUrl, { token: "page-token" });
    const browser = await openBrowser();
    try {
      const address = `${pages.origin}/?token=page-token&node=${encodeURIComponent(node.wsUrl)}`;
      const first = await browser.open(address);
      await first.eventually("the first tab is subscribed", "window.subscribed");
      await publish(client, 0, 20);
      await first.eventually("20 events", "window.got.length >= 20");
      assert.equal(await numbers(first), range(0, 20));
      await settled(client);

      await node.kill("SIGKILL");
      await first.eventually("the page knows that the node is gone", 'window.statuses.includes("reconnecting")');
      node = await startNode({ data: data.path, env: { ...env, WS_PORT: port } });
      await publish(client, 20, 30);
      await first.eventually("10 more", "window.got.length >= 30", 30_000);
      assert.equal(await numbers(first), range(0, 30));
      await settled(client);

      // The page publishes as well, over the connection that came back.
      const stored = await first.page.evaluate("window.publish(30).then(({ offset, key }) => [offset, key])");
      assert.equal(stored, [30, "page"]);
      await first.eventually("its own event", "window.got.length >= 31");

      const second = await browser.open(address);
      await second.eventually("the second tab is subscribed", "window.subscribed");
      await publish(client, 31, 131);
      await settled(client);
      const [one, two] = [await numbers(first), await numbers(second)];
      assert.equal(
        [...one, ...two].sort((a, b) => a - b),
        range(0, 131),
      );
      assert.ok(two.length >= 10 && one.length >= 41, `the tabs got ${one.length} and ${two.length}`);

      // What a closed tab held goes to the other.
      await second.close();
      await publish(client, 131, 141);
      await settled(client);
      assert.equal(
        (await numbers(first)).filter((n) => n >= 131),
        range(131, 141),
      );
      assert.equal(
        first.faults.filter((fault) => !fault.includes("ERR_CONNECTION_REFUSED")),
        [],
      );
    } finally {
      await browser.close();
      await client.close();
      await pages.close();
      await node.kill("SIGTERM");
      data.remove();
    }
  },
);

browserTest("the example page follows a topic live", async () => {
  const server: ChildProcess = spawn(process.execPath, ["examples/live-page/server.mjs"], {
    env: { ...process.env, PORT: "0" },
    stdio: ["ignore", "pipe", "inherit"],
  });
  let out = "";
  server.stdout?.on("data", (chunk) => (out += chunk));
  const address = await eventually(20_000, "the example serves", () => /open (\S+)/.exec(out)?.[1]);
  const browser = await openBrowser();
  try {
    const tab = await browser.open(address);
    const shown = "[...document.querySelectorAll('li')].map((item) => item.textContent)";
    const lines = await tab.eventually<string[]>("three heartbeats", `${shown}.length >= 3 && ${shown}`);
    const seen = lines.map((line) => /^\S+Z host-1 (\d+)$/.exec(line)?.[1]).map(Number);
    assert.equal(seen, [seen[0], seen[0] - 1, seen[0] - 2]);
    assert.is(await tab.page.title(), "open");
  } finally {
    await browser.close();
    server.kill("SIGTERM");
    await within(15_000, "the example ends", new Promise((resolve) => server.on("exit", resolve)));
  }
});

test.run();
