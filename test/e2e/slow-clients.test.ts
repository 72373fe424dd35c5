// G8: a client that does not read costs its own budget and nobody else's rate; idle sockets are cheap.

import { readFileSync } from "node:fs";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { WebSocket } from "ws";
import { slowClientCosts } from "../conformance/slow-client.ts";
import { within } from "../support/deadline.ts";
import { dataFolder, startNode } from "../support/node-process.ts";
import { PlainClient } from "../support/plain-client.ts";

const folder = dataFolder();

slowClientCosts(() => ({ dataPath: folder.path }));

test.after(async () => folder.remove());

test("5,000 idle sockets are held", async () => {
  const data = dataFolder();
  const node = await startNode({ data: data.path });
  const rss = () => Number(readFileSync(`/proc/${node.child.pid}/statm`, "utf8").split(" ")[1]) * 4096;
  const warm = await Promise.all(Array.from({ length: 100 }, () => PlainClient.open(node.wsUrl)));
  const before = rss();
  const sockets: WebSocket[] = [];
  for (let batch = 0; batch < 50; batch++) {
    const opened = Array.from({ length: 100 }, () => {
      const socket = new WebSocket(node.wsUrl, { perMessageDeflate: false });
      return new Promise<WebSocket>((resolve, reject) => {
        socket.on("error", reject);
        socket.on("open", () => socket.send('{"op":"AUTH"}'));
        socket.on("message", () => resolve(socket));
      });
    });
    sockets.push(...(await within(20_000, "100 more", Promise.all(opened))));
  }
  const each = (rss() - before) / sockets.length;
  console.log(`measured: 5,000 idle sockets: ${(each / 1024).toFixed(1)} KiB of resident memory each`);
  assert.ok(each < 40 * 1024, `${each} bytes each`);
  const started = performance.now();
  await warm[0].publish("alive", 1);
  assert.ok(performance.now() - started < 5000);
  for (const socket of sockets) socket.terminate();
  await node.kill("SIGKILL");
  data.remove();
});

test.run();
