// What was only asked about is not remembered: neither names that do not exist, nor who asked.

import { test } from "uvu";
import * as assert from "uvu/assert";
import { PlainClient } from "../support/plain-client.ts";
import { shown, Target, token } from "./target.ts";

const count = 3000;
const clientsMax = 32;
/** Less than it would be if an entry of a map were kept of one kind only. */
const spareBytes = 80 * count;

test("cursors of groups and events of topics that do not exist leave nothing in any thread", async () => {
  const target = await Target.start();
  try {
    const clients = await Promise.all(
      Array.from({ length: clientsMax }, () => PlainClient.open(target.node.wsUrl, token)),
    );
    await clients[0].publish("t", 1);
    let name = 0;
    const kinds: readonly (() => Record<string, unknown>)[] = [
      () => ({ op: "CURSOR", topic: "t", group: `no-${name++}` }),
      () => ({ op: "LATEST", topic: `no.${name++}`, keys: [] }),
    ];
    const ask = async (each: number) => {
      for (const kind of kinds)
        await Promise.all(
          clients.map(async (client, at) => {
            for (let i = at; i < each; i += clients.length) await client.request(kind());
          }),
        );
    };
    await ask(count);
    const before = await target.baseline();
    await ask(count);
    const after = await target.backTo(before, { heldBytes: spareBytes, rssBytes: 64 * 2 ** 20 }, `${count} of each`);
    console.log(`measured: before ${shown(before)}; after ${shown(after)}`);
    assert.is(target.fault(), undefined);
    for (const client of clients) client.socket.terminate();
  } finally {
    await target.stop();
  }
});

test.run();
