// What the client's socket puts on the wire: frames are masked wherever something between the two ends could look at them.

import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo, Socket } from "node:net";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { WebSocketServer } from "ws";
import { dial } from "../../src/client/dial-node.ts";
import { within } from "../support/deadline.ts";

/** The first frame of the client as it crossed the network, and what a server made of it. */
async function firstFrame(host: string): Promise<{ masked: boolean; mask: Buffer; body: Buffer; heard: string }> {
  const http = createServer();
  const sockets = new WebSocketServer({ noServer: true });
  const seen: Buffer[] = [];
  const heard = new Promise<string>((resolve) => {
    http.on("upgrade", (request, socket, head) => {
      // The server takes the mask off in place.
      socket.on("data", (data: Buffer) => seen.push(Buffer.from(data)));
      sockets.handleUpgrade(request, socket as Socket, head, (ws) => {
        ws.on("message", (data: Buffer) => resolve(data.toString()));
      });
    });
  });
  http.listen(0, "0.0.0.0");
  await once(http, "listening");
  const { port } = http.address() as AddressInfo;
  const wire = dial(`ws://${host}:${port}`, {
    opened: () => wire.send("a frame of the client"),
    text: () => undefined,
    binary: () => undefined,
    closed: () => undefined,
  });
  try {
    const text = await within(5000, "the frame arrives", heard);
    const frame = Buffer.concat(seen);
    return { masked: (frame[1] & 0x80) !== 0, mask: frame.subarray(2, 6), body: frame.subarray(6), heard: text };
  } finally {
    wire.close();
    for (const ws of sockets.clients) ws.terminate();
    http.close();
  }
}

for (const host of ["127.0.0.1", "127.0.0.2", "localhost"]) {
  test(`a frame to ${host} has the mask that changes nothing: no proxy lies on the way`, async () => {
    const { masked, mask, body, heard } = await firstFrame(host);
    assert.ok(masked);
    assert.equal([...mask], [0, 0, 0, 0]);
    assert.is(body.subarray(0, heard.length).toString(), "a frame of the client");
    assert.is(heard, "a frame of the client");
  });
}

test("a frame to any other name is masked at random", async () => {
  const frames = await Promise.all([firstFrame("0.0.0.0"), firstFrame("0.0.0.0")]);
  for (const { masked, body, heard } of frames) {
    assert.ok(masked);
    assert.not(body.includes("a frame of the client"));
    assert.is(heard, "a frame of the client");
  }
  assert.not.equal([...frames[0].mask], [...frames[1].mask]);
});

test.run();
