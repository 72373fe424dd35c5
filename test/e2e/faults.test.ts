// G11: a disk that is full, fails to write or fails to sync. Writes are refused with a clear code, /health/ready says why, and the
// node resumes by itself once the disk works again, with everything acknowledged in place.

import { rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { defaultConfig } from "../../src/config.ts";
import { startNode } from "../../src/node.ts";
import { eventually } from "../support/deadline.ts";
import { dataFolder } from "../support/node-process.ts";
import { type Frame, PlainClient } from "../support/plain-client.ts";

const cases: [name: string, command: string, segmentBytes: number, reason: RegExp][] = [
  ["a full disk, met when a new segment is needed", "create,write ENOSPC", 256 * 1024, /ENOSPC|space|full/i],
  ["writes that fail with EIO", "write,create EIO", 1024 * 1024, /EIO/],
  ["an fdatasync that fails", "sync,create EIO", 1024 * 1024, /EIO/],
];

for (const [name, command, segmentBytes, reason] of cases) {
  test(`G11: ${name}: refused, reported, resumed without a restart, nothing acknowledged lost`, async () => {
    const data = dataFolder();
    const control = join(data.path, "fault");
    process.env.NARTHEX_FAULT = control;
    const config = defaultConfig({
      wsPort: 0,
      httpPort: "off",
      opsPort: "off",
      replayPort: "off",
      workers: 1,
      dataPath: join(data.path, "store"),
      connRate: "off",
      topicRate: "off",
      logLevel: "silent",
      limits: { segmentBytes },
    });
    const node = await startNode(config, { hostUrl: new URL("./support-faulty-host.entry.js", import.meta.url) });
    const url = `http://127.0.0.1:${node.listening[0].port}`;
    const client = await PlainClient.open(url.replace("http", "ws"));
    await client.subscribe("t", "g", { from: "earliest" });
    const acked: number[] = [];
    const payload = (n: number) => ({ n, pad: "x".repeat(2000) });
    let n = 0;
    const publish = async (): Promise<Frame> => {
      const answer = await client.request({ op: "PUBLISH", topic: "t", payload: payload(n) });
      if (answer.op === "OK") acked.push(n);
      n++;
      return answer;
    };
    for (let i = 0; i < 20; i++) assert.is((await publish()).op, "OK");
    const settled = await client.next();
    assert.is((await client.ack(settled)).op, "OK");

    writeFileSync(control, command);
    const refused = await eventually(10_000, "a refusal", async () => {
      const answer = await publish();
      return answer.op === "ERR" && answer;
    });
    assert.ok(["publish_failed", "unavailable"].includes(String(refused.code)), String(refused.code));
    const ready = await eventually(5000, "not ready", async () => {
      const response = await fetch(`${url}/health/ready`);
      return response.status === 503 && ((await response.json()) as { reasons: string[] });
    });
    assert.match(ready.reasons.join(" "), reason);
    const down = await publish();
    assert.is(down.code, "publish_failed", "while it is down nothing may be stored, and the code says so");
    const second = await client.next();
    const ack = await client.ack(second);
    assert.ok(["ack_failed", "unavailable"].includes(String(ack.code)), JSON.stringify(ack));
    assert.is((await fetch(`${url}/health/live`)).status, 200);
    const metrics = await (await fetch(`${url}/metrics`)).text();
    assert.match(metrics, /shard_up\{[^}]*\} 0/);

    rmSync(control);
    await eventually(15_000, "it resumes", async () => (await publish()).op === "OK");
    assert.is((await fetch(`${url}/health/ready`)).status, 200);
    const lines = (await (await fetch(`${url}/export?topic=t`)).text()).split("\n").filter(Boolean);
    const stored = lines.map((line) => JSON.parse(line).payload.n as number);
    assert.equal(
      acked.filter((one) => !stored.includes(one)),
      [],
      "everything acknowledged is stored",
    );
    assert.equal(
      stored,
      [...new Set(stored)].sort((a, b) => a - b),
      "once, in order",
    );
    const seen = new Set<number>([(settled.event.payload as { n: number }).n]);
    for (const event of client.events) seen.add((event.event.payload as { n: number }).n);
    await eventually(10_000, "delivery goes on on the same connection", async () => {
      const event = await client.next(10_000);
      seen.add((event.event.payload as { n: number }).n);
      await client.ack(event);
      return acked.every((one) => seen.has(one));
    });
    await node.destroy();
    data.remove();
  });
}

test.run();
