// A process that is out of descriptors: real ones, by a low limit and more connections than it allows, and a whole system without.

import { connect, type Socket } from "node:net";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { eventually } from "../support/deadline.ts";
import { Load } from "../support/fault-load.ts";
import { compare, hurtTest, longTest } from "../support/hurt-node.ts";
import { startNode } from "../support/node-process.ts";
import { PlainClient } from "../support/plain-client.ts";
import { descriptorCount, untilReady } from "../support/watch-node.ts";

const topics = ["left", "right"];
const limit = 80;

function openSockets(port: number, count: number): Socket[] {
  return Array.from({ length: count }, () => {
    const socket = connect(port, "127.0.0.1");
    // Refused or cut: that is what a node without descriptors does.
    socket.on("error", () => socket.destroy());
    return socket;
  });
}

hurtTest(
  "G11: a node without a descriptor left refuses and says so, keeps who is connected, and goes on when there are some",
  async (hurt) => {
    const options = hurt.options({ healthy: true });
    const node = await startNode({ ...options, under: ["sh", "-c", `ulimit -n ${limit}; exec "$@"`, "sh"] });
    try {
      const pid = node.child.pid as number;
      // Large, so that segments are made all the time.
      const load = new Load({ topics, pad: 8000, publishers: 1 });
      await load.start(node.wsUrl);
      await load.progress(10, 10_000, "load before");
      const before = descriptorCount(pid);
      const sockets = openSockets(node.ports.ws, 2 * limit);
      await eventually(5000, "every descriptor is taken", () => descriptorCount(pid) >= limit - 1);
      await eventually(15_000, "a segment cannot be made", () => /\(EMFILE\)|EMFILE: too many/.test(node.out()));
      await eventually(5000, "refusals", () => load.codes().some((code) => code.startsWith("publish")));
      for (const socket of sockets) socket.destroy();
      await untilReady(node.http, 8000);
      await load.progress(10, 8000, "load after");
      for (const code of load.codes()) {
        assert.match(code, /^(publish (publish_failed|unavailable)|n?ack (ack_failed|unavailable|lease_lost))$/);
      }
      await eventually(5000, "descriptors are given back", () => descriptorCount(pid) <= before + 24);
      const lines = node.out().split("\n").length;
      assert.ok(lines < 500, `${lines} lines were written about it`);
      await compare(hurt, node, load);
    } finally {
      await node.kill("SIGKILL");
    }
  },
);

longTest(
  "a system without a descriptor for one more connection costs nothing to those who are connected",
  async (hurt) => {
    const node = await hurt.start();
    const client = await PlainClient.open(node.wsUrl);
    await client.publish("t", 0);
    const placed = hurt.kernel.add({ calls: ["accept"], error: "ENFILE" });
    const [socket] = openSockets(node.ports.ws, 1);
    await eventually(5000, "a connection waits", () => placed.hits() > 0);
    for (let n = 1; n < 50; n++) await client.publish("t", n);
    hurt.kernel.clear();
    socket.destroy();
    await (await PlainClient.open(node.wsUrl)).publish("t", 50);
  },
);

test.run();
