// G11: a disk that is full, fails to write or fails to sync. Writes are refused with a clear code, /health/ready says why, and the
// node resumes by itself once the disk works again, with everything acknowledged in place. While the disk is only full, what is
// stored can be read.

import { execFileSync } from "node:child_process";
import { closeSync, mkdirSync, openSync, rmSync, writeFileSync, writeSync } from "node:fs";
import { join } from "node:path";
import { test } from "uvu";
import * as assert from "uvu/assert";
import type { OpenNode } from "../../src/node.ts";
import { eventually } from "../support/deadline.ts";
import { startHere } from "../support/node-here.ts";
import { dataFolder, startNode as startProcess } from "../support/node-process.ts";
import { type Frame, PlainClient } from "../support/plain-client.ts";

interface Ready {
  readonly reasons: readonly string[];
  readonly shards: readonly { readonly status: string }[];
}

const payload = (n: number) => ({ n, pad: "x".repeat(2000) });

/** A node on `folder`/store whose disk fails while `folder`/fault says so. */
async function faultyNode(folder: string, segmentBytes: number): Promise<{ node: OpenNode; url: string }> {
  process.env.NARTHEX_FAULT = join(folder, "fault");
  const settings = { workers: 1, dataPath: join(folder, "store"), limits: { segmentBytes } };
  const hostUrl = new URL("./support-faulty-host.entry.js", import.meta.url);
  const { node, http } = await startHere(settings, { hostUrl });
  return { node, url: http };
}

function notReady(url: string): Promise<Ready> {
  return eventually(5000, "not ready", async () => {
    const response = await fetch(`${url}/health/ready`);
    return response.status === 503 && ((await response.json()) as Ready);
  });
}

function ready(url: string): Promise<boolean> {
  return eventually(15_000, "ready", async () => (await fetch(`${url}/health/ready`)).status === 200);
}

async function exported(url: string): Promise<number[]> {
  const response = await fetch(`${url}/export?topic=t`);
  assert.is(response.status, 200);
  const lines = (await response.text()).split("\n").filter(Boolean);
  return lines.map((line) => JSON.parse(line).payload.n as number);
}

async function replayed(url: string): Promise<number[]> {
  const response = await fetch(`${url}/replay?topic=t&limit=10000`);
  assert.is(response.status, 200);
  const { events } = (await response.json()) as { events: { payload: { n: number } }[] };
  return events.map((event) => event.payload.n);
}

const cases: [name: string, command: string, segmentBytes: number, reason: RegExp][] = [
  ["a full disk, met when a new segment is needed", "create,write ENOSPC", 256 * 1024, /ENOSPC|space|full/i],
  ["writes that fail with EIO", "write,create EIO", 1024 * 1024, /EIO/],
  ["an fdatasync that fails", "sync,create EIO", 1024 * 1024, /EIO/],
];

for (const [name, command, segmentBytes, reason] of cases) {
  test(`G11: ${name}: refused, reported, resumed without a restart, nothing acknowledged lost`, async () => {
    const data = dataFolder();
    const control = join(data.path, "fault");
    const { node, url } = await faultyNode(data.path, segmentBytes);
    const client = await PlainClient.open(url.replace("http", "ws"));
    await client.subscribe("t", "g", { from: "earliest" });
    const acked: number[] = [];
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
    assert.match((await notReady(url)).reasons.join(" "), reason);
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
    const stored = await exported(url);
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

test("G11: while the disk is full what is stored can be read, nothing can be written, and then all resumes where it was", async () => {
  const data = dataFolder();
  const control = join(data.path, "fault");
  const { node, url } = await faultyNode(data.path, 1024 * 1024);
  const client = await PlainClient.open(url.replace("http", "ws"));
  await client.subscribe("t", "g", { from: "earliest", maxInflight: 5 });
  const all = Array.from({ length: 30 }, (_, n) => n);
  for (const n of all) await client.publish("t", payload(n), { key: `k${n % 3}`, id: `id-${n}` });
  const first = await client.nextMany(5);
  assert.is((await client.ack(first[0])).op, "OK");
  const [{ epoch }] = node.system.state();

  writeFileSync(control, "create,write ENOSPC");
  assert.is((await client.request({ op: "PUBLISH", topic: "t", payload: payload(99) })).code, "publish_failed");
  const { reasons, shards } = await notReady(url);
  assert.equal(reasons, ["shard 0 is read-only: the disk is full (ENOSPC)"]);
  assert.equal(
    shards.map(({ status }) => status),
    ["read-only"],
  );
  // Over several tries to write, and with ways to the topic that were not known before.
  for (let round = 0; round < 20; round++) {
    assert.equal(await exported(url), all);
    assert.equal(await replayed(url), all);
    assert.is((await client.request({ op: "PUBLISH", topic: "t", payload: payload(99) })).code, "publish_failed");
    assert.is((await client.ack(first[1])).code, "ack_failed");
  }
  const get = async (path: string) => {
    const response = await fetch(`${url}${path}`);
    return [response.status, await response.json()] as const;
  };
  const [topics, listed] = await get("/topics");
  assert.equal([topics, (listed as { topics: unknown[] }).topics.length], [200, 1]);
  const [after, tail] = await get("/replay?topic=t&from=afterId&afterId=id-27");
  assert.equal(
    [after, (tail as { events: { payload: { n: number } }[] }).events.map((event) => event.payload.n)],
    [200, [28, 29]],
  );
  const [latest, newest] = await get("/latest-by-key?topic=t&key=k1");
  assert.equal([latest, (newest as { event: { payload: { n: number } } }).event.payload.n], [200, 28]);
  const [lagged, lag] = await get("/lag?topic=t&group=g");
  assert.equal([lagged, (lag as { lag: number }).lag], [200, 29]);
  assert.is((await client.request({ op: "CURSOR", topic: "t", group: "g" })).lag, 29);
  assert.is((await client.request({ op: "SUBSCRIBE", topic: "t", group: "other" })).code, "unavailable");
  assert.is((await get("/topics/none"))[0], 404);
  const put = { method: "PUT", headers: { "content-type": "application/json" }, body: "{}" };
  assert.is((await fetch(`${url}/topics/other`, put)).status, 503);
  assert.is((await fetch(`${url}/topics/t`, put)).status, 503);
  assert.is((await fetch(`${url}/topics/t`, { method: "DELETE" })).status, 503);
  assert.equal(await exported(url), all);

  const leases = new Set([...first, ...client.events.splice(0)].map(({ ctx }) => ctx.lease));
  const seen = new Set([0]);
  rmSync(control);
  await ready(url);
  assert.is(node.system.state()[0].epoch, epoch, "the store was not opened again");
  await client.publish("t", payload(30));
  await eventually(10_000, "delivery goes on on the same connection", async () => {
    const event = await client.next(10_000);
    assert.not(leases.has(event.ctx.lease), "no lease token comes twice");
    leases.add(event.ctx.lease);
    assert.is((await client.ack(event)).op, "OK");
    seen.add((event.event.payload as { n: number }).n);
    return seen.size === 31;
  });
  assert.equal(await exported(url), [...all, 30]);
  await node.destroy();
  data.remove();
});

test("G11: a node starts on a full disk, says that it is not ready, and comes up when there is room", async () => {
  const data = dataFolder();
  const control = join(data.path, "fault");
  const before = await faultyNode(data.path, 1024 * 1024);
  const publisher = await PlainClient.open(before.url.replace("http", "ws"));
  for (let n = 0; n < 5; n++) await publisher.publish("t", payload(n));
  await before.node.destroy();

  writeFileSync(control, "create,write ENOSPC");
  const { node, url } = await faultyNode(data.path, 1024 * 1024);
  assert.equal((await notReady(url)).reasons, ["shard 0 is down: the disk is full (ENOSPC)"]);
  assert.is((await fetch(`${url}/health/live`)).status, 200);
  assert.is((await fetch(`${url}/export?topic=t`)).status, 503, "nothing is open to read from");
  const client = await PlainClient.open(url.replace("http", "ws"));
  assert.is((await client.request({ op: "PUBLISH", topic: "t", payload: payload(99) })).code, "publish_failed");

  rmSync(control);
  await ready(url);
  await client.subscribe("t", "g", { from: "earliest" });
  await client.publish("t", payload(5));
  assert.equal(
    (await client.nextMany(6)).map(({ event }) => (event.payload as { n: number }).n),
    [0, 1, 2, 3, 4, 5],
  );
  assert.equal(await exported(url), [0, 1, 2, 3, 4, 5]);
  await node.destroy();
  data.remove();
});

test("G11: a disk that is really full: read while it lasts, killed and started on it, and back when there is room", async () => {
  const data = dataFolder();
  const disk = join(data.path, "disk");
  mkdirSync(disk);
  try {
    execFileSync("mount", ["-t", "tmpfs", "-o", "size=16m", "tmpfs", disk], { stdio: "ignore" });
  } catch {
    console.log("skipped: no file system can be mounted here, so no disk was really full");
    data.remove();
    return;
  }
  const filler = join(disk, "filler");
  const options = { data: join(disk, "store"), env: { WORKERS: "2", CONN_RATE: "off", TOPIC_RATE: "off" } };
  let node = await startProcess(options);
  try {
    const client = await PlainClient.open(node.wsUrl);
    const acked: number[] = [];
    let n = 0;
    const publish = async (): Promise<Frame> => {
      const answer = await client.request({ op: "PUBLISH", topic: "t", payload: payload(n) });
      if (answer.op === "OK") acked.push(n);
      n++;
      return answer;
    };
    for (let i = 0; i < 50; i++) assert.is((await publish()).op, "OK");
    fill(filler);
    const refused = await eventually(10_000, "a refusal", async () => {
      const answer = await publish();
      return answer.op === "ERR" && answer;
    });
    assert.is(refused.code, "publish_failed");
    await notReady(node.http);
    assert.equal(await exported(node.http), acked);
    assert.equal(await replayed(node.http), acked);
    await node.kill("SIGKILL");

    node = await startProcess(options);
    assert.match(node.out(), /narthex not ready yet: .*the disk is full \(ENOSPC\)/);
    await notReady(node.http);
    rmSync(filler);
    await ready(node.http);
    assert.equal(await exported(node.http), acked);
    const again = await PlainClient.open(node.wsUrl);
    await again.publish("t", payload(n));
    assert.equal(await exported(node.http), [...acked, n]);

    fill(filler);
    assert.is(await node.kill("SIGTERM"), 0, "it can be stopped on a full disk as well");
  } finally {
    await node.kill("SIGKILL");
    execFileSync("umount", [disk]);
    data.remove();
  }
});

/** To the last byte. */
function fill(path: string): void {
  const file = openSync(path, "w");
  try {
    for (let size = 1024 * 1024; size > 0; ) {
      try {
        writeSync(file, Buffer.alloc(size));
      } catch (error) {
        if ((error as { code?: string }).code !== "ENOSPC") throw error;
        size >>= 1;
      }
    }
  } finally {
    closeSync(file);
  }
}

test.run();
