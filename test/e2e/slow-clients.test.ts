// G8: a client that does not read costs its own budget and nobody else's rate; idle sockets are cheap.

import { readFileSync } from "node:fs";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { WebSocket } from "ws";
import { eventually, within } from "../support/deadline.ts";
import { startHere } from "../support/node-here.ts";
import { dataFolder, startNode } from "../support/node-process.ts";
import { PlainClient } from "../support/plain-client.ts";

test("G8: a client that stops reading is paused, then closed with 4408, while another subscriber keeps its rate", async () => {
  const data = dataFolder();
  const { node, http, ws: url } = await startHere({ dataPath: data.path, limits: { stalledMs: 1500 } });
  const [slow, quick, publisher] = await Promise.all([
    PlainClient.open(url),
    PlainClient.open(url),
    PlainClient.open(url),
  ]);
  await slow.subscribe("t", "slow", { from: "earliest", maxInflight: 10_000 });
  await quick.subscribe("t", "quick", { from: "earliest", maxInflight: 10_000 });
  (slow.socket as unknown as { _socket: { pause(): void } })._socket.pause();
  const payload = "x".repeat(50_000);
  const count = 400;
  const acks: Promise<unknown>[] = [];
  const reader = (async () => {
    for (let i = 0; i < count; i++) {
      const event = await quick.next(10_000);
      assert.is((event.event.payload as { i: number }).i, i);
      acks.push(quick.ack(event));
    }
  })();
  const started = performance.now();
  for (let i = 0; i < count; i++) await publisher.publish("t", { i, payload });
  await within(20_000, "the quick one got all", reader);
  const tookMs = performance.now() - started;
  await Promise.all(acks);
  const metrics = await (await fetch(`${http}/metrics`)).text();
  const delivered = Number(metrics.match(/events_delivered_total\{topic="t",group="slow"\} (\d+)/)?.[1]);
  const unsentMb = Number(metrics.match(/^narthex_unsent_bytes (\d+)/m)?.[1]) / 1e6;
  // The kernel's buffers and the budget of 1 MiB take some, the rest waits in the log.
  assert.ok(delivered < count, `all ${delivered} were pushed at a client that reads nothing`);
  assert.ok(unsentMb < 4, `${unsentMb} MB unsent`);
  const closed = within(
    10_000,
    "the slow one is closed",
    eventually(10_000, "closed", async () =>
      /narthex_connections 2$/m.test(await (await fetch(`${http}/metrics`)).text()),
    ),
  );
  await closed;
  (slow.socket as unknown as { _socket: { resume(): void } })._socket.resume();
  const { code, reason } = await within(5000, "close frame or end", slow.closed);
  assert.ok(code === 4408 || code === 1006, `${code}`);
  console.log(
    `measured: slow client: ${delivered} of ${count} events sent, ${unsentMb.toFixed(2)} MB unsent, closed ${code} ${reason}; the other took all in ${tookMs.toFixed(0)} ms`,
  );
  const again = await PlainClient.open(url);
  await again.subscribe("t", "slow");
  assert.is(((await again.next()).event.payload as { i: number }).i, 0, "what was not read comes again");
  await node.destroy();
  data.remove();
});

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
