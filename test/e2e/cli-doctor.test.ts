// doctor and bench as a user runs them.

import { mkdirSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { runCli } from "../support/cli-process.ts";
import { dataFolder, type NodeProcess, startNode } from "../support/node-process.ts";

const folder = dataFolder();
const data = join(folder.path, "data");
let node: NodeProcess;

test.before(async () => {
  node = await startNode({ data, env: { WS_TOKEN: "doctors-token", CONN_RATE: "off", TOPIC_RATE: "off" } });
});

test.after(async () => {
  await node.kill("SIGKILL");
  folder.remove();
});

interface Found {
  readonly status: string;
  readonly check: string;
  readonly text: string;
}

/** Ports that are surely free, in place of the defaults, which somebody on this machine may use. */
const ports = { WS_PORT: "0", HTTP_PORT: "off", OPS_PORT: "off", REPLAY_PORT: "off" };

async function doctor(
  env: Record<string, string>,
  ...args: string[]
): Promise<{ code: number | string; found: Map<string, Found> }> {
  const { code, out, err } = await runCli(["--json", "doctor", ...args], { url: node.http, env: { ...ports, ...env } });
  assert.is(err, "");
  const list = JSON.parse(out) as Found[];
  return { code, found: new Map(list.map((finding) => [finding.check, finding])) };
}

test("a healthy node and machine are told so, line by line", async () => {
  const { code, out, err } = await runCli(["doctor", "--data", data], {
    url: node.http,
    env: { ...ports, NARTHEX_TOKEN: "doctors-token" },
  });
  assert.is(code, 0, out);
  assert.is(err, "");
  const lines = out.trimEnd().split("\n");
  for (const line of lines) assert.match(line, /^(ok {2}|warn) {2}[a-z0-9 ]+: .+/);
  for (const said of [
    /^ok {4}node: v\d+/m,
    /^ok {4}narthex: version \d/m,
    /^ok {4}format: version 1/m,
    new RegExp(`^ok {4}lock: process ${node.child.pid} has the folder`, "m"),
    /^(ok {2}|warn) {2}fsync: write and fdatasync of 4 KiB in .*: p50 [\d.]+ ms, p99 [\d.]+ ms/m,
    /^ok {4}remote: http:\/\/127\.0\.0\.1:\d+ is ready, 1 shard up/m,
    /^ok {4}remote clock: agrees/m,
    /^ok {4}rate limits: nobody was refused/m,
  ]) {
    assert.match(out, said);
  }
  assert.not.match(out, "doctors-token");
});

test("each thing that is wrong fails with what to do", async () => {
  const server = createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  const taken = String((server.address() as { port: number }).port);
  const newer = join(folder.path, "newer");
  mkdirSync(newer);
  writeFileSync(join(newer, "format.json"), '{"version":99,"shards":1}');
  const wrong = await doctor({ WS_PORT: taken }, "--data", newer);
  server.close();
  assert.is(wrong.code, 1);
  assert.equal(wrong.found.get("format"), {
    status: "FAIL",
    check: "format",
    text: "version 99, this program reads up to 1: use a newer narthex",
  });
  assert.equal(
    wrong.found.get(`port ${taken}`)?.text,
    "taken by another program: end it, or set WS_PORT to a free port",
  );
  assert.match(wrong.found.get("remote token")?.text ?? "", "the node wants a token: set NARTHEX_TOKEN");

  const other = await doctor({ HOST: "0.0.0.0" }, "--data", join(newer, "format.json"));
  assert.is(other.code, 1);
  assert.match(other.found.get("settings")?.text ?? "", "WS_TOKEN is not set");
  assert.match(other.found.get("data")?.text ?? "", "is not a folder: set NARTHEX_DATA");
});

test("a port that a narthex has is told from one that another program has", async () => {
  const { found } = await doctor({ WS_PORT: String(node.ports.ws), NARTHEX_TOKEN: "doctors-token" }, "--data", data);
  assert.match(
    found.get(`port ${node.ports.ws}`)?.text ?? "",
    "a narthex listens there; a second one needs another WS_PORT",
  );
});

test("a node that was asked for and does not answer fails", async () => {
  const gone = await startNode({ data: join(folder.path, "gone") });
  await gone.kill("SIGKILL");
  const { code, out } = await runCli(["doctor", "--data", data], { url: gone.http, env: ports });
  assert.is(code, 1);
  assert.match(
    out,
    /^FAIL {2}remote: no node answers at http:\/\/127\.0\.0\.1:\d+ \(ECONNREFUSED\): check NARTHEX_URL/m,
  );
});

const token = { NARTHEX_TOKEN: "doctors-token" };

test("bench measures on a topic of its own and leaves nothing behind", async () => {
  const args = ["--json", "bench", "--events", "2000", "--payload", "128", "--window", "200", "--partitions", "2"];
  const { code, out, err } = await runCli(args, { url: node.http, env: token });
  assert.is(code, 0, err);
  const { topic, publish_ms: publish, deliver_ms: deliver, ...facts } = JSON.parse(out) as Record<string, unknown>;
  assert.match(String(topic), /^bench\.[0-9a-f]{8}$/);
  for (const times of [publish, deliver] as Record<string, number>[]) {
    assert.equal(Object.keys(times), ["p50", "p90", "p99", "p99.9"]);
    assert.ok(times.p50 > 0 && times.p50 <= times.p90 && times.p90 <= times.p99 && times.p99 <= times["p99.9"]);
  }
  const { publish_per_s: rate, deliver_per_s: delivered, client_cpu_us_per_event: cpu, ...rest } = facts;
  for (const number of [rate, delivered, cpu]) assert.ok((number as number) > 0);
  assert.equal(rest, {
    events: 2000,
    payload_bytes: 128,
    window: 200,
    partitions: 2,
    durability: "fsync",
    rate_limited: false,
  });
  const topics = await runCli(["--json", "topics"], { url: node.http, env: token });
  assert.not.match(topics.out, "bench.");
});

test("bench says when it measured the rate limits", async () => {
  const slow = await startNode({ data: join(folder.path, "slow"), env: { CONN_RATE: "500/1000" } });
  // The first batch may overdraw what is left, so it takes a second one to be refused.
  const { code, out, err } = await runCli(["bench", "--events", "2500", "--topic", "mine"], { url: slow.http });
  assert.is(code, 0, err);
  assert.match(out, /^2,500 events of 256 B, 1 partition, durability fsync, window 1,000, in /);
  assert.match(out, /^publish {2}[\d,]+ events\/s +p50 [\d.]+ ms {2}p90 .* \(publish to ack\)$/m);
  assert.match(out, /^This measures the node's rate limits: .*CONN_RATE=off TOPIC_RATE=off\.$/m);
  await fetch(`${slow.http}/topics/mine`, {
    method: "PUT",
    headers: { "content-type": "application/json" },
    body: "{}",
  });
  const refused = await runCli(["bench", "--topic", "mine"], { url: slow.http });
  assert.equal(
    [refused.code, refused.err],
    [2, "narthex: mine exists, and bench deletes its topic: give another --topic\n"],
  );
  await slow.kill("SIGKILL");
});

test.run();
