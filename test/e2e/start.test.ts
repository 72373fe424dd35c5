// Starting and ending: the commands of the README, wrong settings, taken ports, a taken folder, signals.

import { spawn } from "node:child_process";
import { createServer } from "node:net";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { within } from "../support/deadline.ts";
import { dataFolder, runNode, startNode } from "../support/node-process.ts";
import { PlainClient } from "../support/plain-client.ts";

test("npm start serves with the seeds' environment and ends by SIGTERM with 0", async () => {
  const data = dataFolder();
  const env = {
    ...process.env,
    WS_PORT: "0",
    HTTP_PORT: "0",
    OPS_PORT: "0",
    REPLAY_PORT: "0",
    WS_TOKEN: "devtoken",
    NARTHEX_DATA: data.path,
  };
  const child = spawn("npm", ["start"], { env, stdio: ["ignore", "pipe", "inherit"] });
  let out = "";
  const ready = new Promise<void>((resolve) => {
    child.stdout.on("data", (chunk) => {
      out += chunk;
      if (out.includes("narthex ready")) resolve();
    });
  });
  await within(60_000, "npm start serves", ready);
  const port = Number(out.match(/narthex ws +http:\/\/127\.0\.0\.1:(\d+)/)?.[1]);
  const client = await PlainClient.open(`ws://127.0.0.1:${port}`, "devtoken");
  assert.is((await client.publish("hello", { n: 1 })).durability, "fsync");
  assert.not.match(out, "devtoken");
  const ended = new Promise((resolve) => child.on("close", resolve));
  child.kill("SIGTERM");
  assert.is((await within(5000, "1001", client.closed)).code, 1001);
  assert.is(await within(20_000, "the end", ended), 0);
  data.remove();
});

test("the start lines name each port, the store, its durability, the workers and the limits in force", async () => {
  const data = dataFolder();
  const node = await startNode({ data: data.path, env: { WORKERS: "2", CONN_RATE: "50/10" } });
  const lines = node
    .out()
    .split("\n")
    .filter((line) => /^narthex (ws|http|ops|replay) /.test(line));
  assert.is(lines.length, 4);
  for (const line of lines) {
    for (const fact of [
      "store=log",
      "durability=fsync",
      "workers=2",
      "conn_rate=50/10",
      "topic_rate=1000/1000",
      "max_payload=1048576",
    ]) {
      assert.match(line, fact);
    }
  }
  assert.match(node.out(), /without a token/i, "one warning line");
  await node.kill("SIGKILL");
  data.remove();
});

const wrong: [what: string, env: Record<string, string>, args: string[], named: RegExp][] = [
  ["a port that is no port", { WS_PORT: "http" }, [], /WS_PORT/],
  ["too many workers", { WORKERS: "0" }, [], /WORKERS/],
  ["an unknown store", { STORE: "redis" }, [], /STORE.*log.*memory/],
  ["a rate in the wrong form", { CONN_RATE: "fast" }, [], /CONN_RATE/],
  ["an unknown flag", {}, ["--wsport", "1"], /--wsport/],
  ["listening beyond loopback without a token", { HOST: "0.0.0.0" }, [], /HOST.*WS_TOKEN|WS_TOKEN.*HOST/],
];

for (const [what, env, args, named] of wrong) {
  test(`${what} stops the start with one line that names it`, async () => {
    const data = dataFolder();
    const { code, out } = await runNode({ data: data.path, env, args });
    assert.is.not(code, 0);
    assert.match(out, named);
    assert.is(out.trim().split("\n").length, 1, out);
    data.remove();
  });
}

test("a taken port stops the start by name", async () => {
  const data = dataFolder();
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as { port: number };
  const { code, out } = await runNode({ data: data.path, env: { OPS_PORT: String(port) } });
  assert.is.not(code, 0);
  assert.match(out, "OPS_PORT");
  assert.match(out, String(port));
  server.close();
  data.remove();
});

test("a second process on the same folder is refused by name, and the first goes on", async () => {
  const data = dataFolder();
  const node = await startNode({ data: data.path });
  const { code, out } = await runNode({ data: data.path });
  assert.is.not(code, 0);
  assert.match(out, data.path);
  assert.match(out, String(node.child.pid));
  const client = await PlainClient.open(node.wsUrl);
  await client.publish("still", 1);
  await client.close();
  await node.kill("SIGKILL");
  const next = await startNode({ data: data.path });
  await next.kill("SIGKILL");
  data.remove();
});

test("SIGTERM drains: no new work, acks are taken, leases go back uncounted, 1001, exit 0", async () => {
  const data = dataFolder();
  const node = await startNode({ data: data.path });
  const client = await PlainClient.open(node.wsUrl);
  await client.subscribe("drain", "g", { from: "earliest" });
  await client.publish("drain", 1);
  await client.publish("drain", 2);
  const [first] = await client.nextMany(2);
  node.child.kill("SIGTERM");
  const refused = await within(
    5000,
    "shutting_down",
    (async () => {
      for (;;) {
        const answer = await client.request({ op: "PUBLISH", topic: "drain", payload: 3 });
        if (answer.code !== undefined) return answer;
      }
    })(),
  );
  assert.is(refused.code, "shutting_down");
  assert.is((await fetch(`${node.http}/health/ready`)).status, 503);
  assert.is((await client.ack(first)).op, "OK");
  const socketEnd = within(15_000, "1001", client.closed);
  assert.is(await within(20_000, "exit", node.exited), 0);
  assert.is((await socketEnd).code, 1001);
  const next = await startNode({ data: data.path });
  const again = await PlainClient.open(next.wsUrl);
  await again.subscribe("drain", "g");
  const back = await again.next();
  assert.equal([back.event.payload, back.ctx.attempt], [2, 1]);
  await next.kill("SIGKILL");
  data.remove();
});

test("a token and a payload never reach the logs", async () => {
  const data = dataFolder();
  const node = await startNode({ data: data.path, env: { WS_TOKEN: "s3cr3t-token", LOG_LEVEL: "debug" } });
  const client = await PlainClient.open(node.wsUrl, "s3cr3t-token");
  await client.publish("quiet", { card: "4111-1111" });
  await client.request({ op: "AUTH", token: "wr0ng-token" });
  await client.request({ op: "PUBLISH", topic: "quiet", payload: "4111-1111", opts: { nope: "4111-1111" } });
  await fetch(`${node.http}/replay?topic=quiet`, { headers: { authorization: "Bearer wr0ng-token" } });
  await client.close();
  await node.kill("SIGTERM");
  for (const secret of ["s3cr3t-token", "wr0ng-token", "4111-1111"]) assert.not.match(node.out(), secret);
  data.remove();
});

test.run();
