// Exports are complete, in order, resumable to the exact remainder, verified by their trailers, and flat in memory.

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { get, type IncomingMessage } from "node:http";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { encodePack } from "../../src/protocol/pack.ts";
import { BatchClient, fill } from "../support/batch-client.ts";
import { within } from "../support/deadline.ts";
import { dataFolder, type NodeProcess, startNode } from "../support/node-process.ts";

const onePack = encodePack([{ payload: new TextEncoder().encode("1") }]);
const data = dataFolder();
let node: NodeProcess;

test.before(async () => {
  node = await startNode({ data: data.path, env: { CONN_RATE: "off", TOPIC_RATE: "off" } });
});

test.after(async () => {
  await node.kill("SIGKILL");
  data.remove();
});

function open(path: string): Promise<IncomingMessage> {
  return new Promise((resolve, reject) => get(`${node.http}${path}`, resolve).on("error", reject));
}

async function download(path: string): Promise<{ body: Buffer; trailers: Record<string, string | undefined> }> {
  const response = await open(path);
  const chunks: Buffer[] = [];
  for await (const chunk of response) chunks.push(chunk as Buffer);
  assert.is(response.statusCode, 200, Buffer.concat(chunks).toString().slice(0, 200));
  return { body: Buffer.concat(chunks), trailers: response.trailers };
}

interface Line {
  readonly partition: number;
  readonly offset: number;
  readonly ts: number;
  readonly payload: number;
}

const parse = (text: string): Line[] =>
  text
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => JSON.parse(line) as Line);

test("50,000 events with one timestamp export completely and in order", async () => {
  const client = await BatchClient.open(node.wsUrl);
  assert.is(await fill(client, "same.ts", { count: 50_000, payload: String, ts: 1_700_000_000_000 }), 50_000);
  client.close();
  const { body, trailers } = await download("/export?topic=same.ts&ndjson=1");
  const lines = parse(body.toString());
  assert.is(lines.length, 50_000);
  for (const [n, { offset, payload, ts }] of lines.entries()) {
    if (offset !== n || payload !== n || ts !== 1_700_000_000_000)
      assert.unreachable(`line ${n}: ${offset} ${payload} ${ts}`);
  }
  assert.is(trailers["x-narthex-count"], "50000");
  assert.is(trailers["x-narthex-next"], "0:50000");
  assert.is(trailers["x-narthex-checksum"], createHash("sha256").update(body).digest("hex"));
});

test("an export that was cut resumes to the exact remainder", async () => {
  const response = await open("/export?topic=same.ts");
  let text = "";
  for await (const chunk of response) {
    text += chunk;
    if (text.length > 300_000) break;
  }
  response.destroy();
  const whole = parse(text.slice(0, text.lastIndexOf("\n") + 1));
  const after = `0:${(whole.at(-1) as Line).offset + 1}`;
  const rest = parse((await download(`/export?topic=same.ts&after=${after}`)).body.toString());
  assert.equal(
    [...whole, ...rest].map(({ payload }) => payload),
    Array.from({ length: 50_000 }, (_, n) => n),
  );
});

test("partitions are merged by ts, partition and offset, and a cut merge resumes too", async () => {
  await fetch(`${node.http}/topics/merged`, {
    method: "PUT",
    headers: { "content-type": "application/json" },
    body: '{"partitions":3}',
  });
  const client = await BatchClient.open(node.wsUrl);
  await fill(client, "merged", { count: 5000, payload: String, key: (n) => `k${n % 17}` });
  client.close();
  const all = parse((await download("/export?topic=merged")).body.toString());
  assert.equal(
    all.map(({ payload }) => payload).sort((a, b) => a - b),
    Array.from({ length: 5000 }, (_, n) => n),
  );
  for (let i = 1; i < all.length; i++) {
    const [a, b] = [all[i - 1], all[i]];
    const ordered =
      a.ts < b.ts ||
      (a.ts === b.ts && (a.partition < b.partition || (a.partition === b.partition && a.offset < b.offset)));
    if (!ordered) assert.unreachable(`line ${i}`);
  }
  const seen = all.slice(0, 1234);
  const next = [0, 1, 2].map(
    (p) => `${p}:${(seen.filter(({ partition }) => partition === p).at(-1)?.offset ?? -1) + 1}`,
  );
  const rest = parse((await download(`/export?topic=merged&after=${next.join(",")}`)).body.toString());
  assert.equal(
    rest.map(({ partition, offset }) => [partition, offset]),
    all.slice(1234).map(({ partition, offset }) => [partition, offset]),
  );
});

test("RSS stays flat while 1,000,000 events are exported, and writers go on meanwhile", async () => {
  const client = await BatchClient.open(node.wsUrl);
  const count = 1_000_000;
  const filler = "x".repeat(80);
  assert.is(await fill(client, "million", { count, payload: (n) => `{"n":${n},"f":"${filler}"}` }), count);
  const rss = () => Number(readFileSync(`/proc/${node.child.pid}/statm`, "utf8").split(" ")[1]) * 4096;
  const before = rss();
  let highest = before;
  const response = await open("/export?topic=million");
  const hash = createHash("sha256");
  let expected = 0;
  let tail = "";
  let slowest = 0;
  for await (const chunk of response) {
    hash.update(chunk as Buffer);
    const lines = (tail + chunk).split("\n");
    tail = lines.pop() as string;
    for (const line of lines) {
      if (!line.includes(`"offset":${expected},`) || !line.includes(`{"n":${expected},`))
        assert.unreachable(`line ${expected}`);
      expected++;
      if (expected % 100_000 === 0) {
        highest = Math.max(highest, rss());
        const started = performance.now();
        await client.publish(await client.handle("beside"), onePack);
        slowest = Math.max(slowest, performance.now() - started);
      }
    }
  }
  assert.is(expected, count);
  assert.is(response.trailers["x-narthex-count"], String(count));
  assert.is(response.trailers["x-narthex-checksum"], hash.digest("hex"));
  const grown = (highest - before) / 1e6;
  console.log(
    `measured: export of 1,000,000 events: RSS ${(before / 1e6).toFixed(0)} MB before, at most ${grown.toFixed(0)} MB more, slowest publish beside it ${slowest.toFixed(1)} ms`,
  );
  assert.ok(grown < 100, `grew by ${grown} MB; the export is about 230 MB`);
  assert.ok(slowest < 3000, `a publish beside the export took ${slowest} ms`);
  client.close();
});

test("a reader that stops reading holds nothing up", async () => {
  const response = await open("/export?topic=million");
  await within(5000, "first bytes", new Promise((resolve) => response.once("readable", resolve)));
  const { trailers } = await within(20_000, "another export", download("/export?topic=same.ts"));
  assert.is(trailers["x-narthex-count"], "50000");
  response.destroy();
});

test.run();
