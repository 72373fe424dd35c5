// Every case of bad input: the documented code, a connection that stays usable unless said otherwise, nothing lost, and a
// process that is still the same one at the end.

import { request } from "node:http";
import { connect } from "node:net";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { WebSocket } from "ws";
import { eventually, within } from "../support/deadline.ts";
import { dataFolder, type NodeProcess, startNode } from "../support/node-process.ts";
import { PlainClient } from "../support/plain-client.ts";

const data = dataFolder();
let node: NodeProcess;

test.before(async () => {
  node = await startNode({
    data: data.path,
    env: { CONN_RATE: "off", TOPIC_RATE: "off", MAX_PAYLOAD: "10000", MAX_FRAME: "100000" },
  });
});

test.after(async () => {
  assert.is(node.child.exitCode, null, node.out());
  await node.kill("SIGKILL");
  data.remove();
});

/** Sends raw text and gives the next frame that answers nothing by corr. */
async function raw(client: PlainClient, text: string | Uint8Array): Promise<{ code?: string; msg?: string }> {
  const before = client.others.length;
  client.socket.send(text);
  return eventually(5000, `an answer to ${String(text).slice(0, 60)}`, () => client.others[before]);
}

const deep = `${'{"a":'.repeat(70)}1${"}".repeat(70)}`;
const frames: [code: string, text: string][] = [
  ["bad_json", "hello"],
  ["bad_json", '{"op":"PUBLISH"'],
  ["bad_json", ""],
  ["bad_frame", "[]"],
  ["bad_frame", "null"],
  ["bad_frame", "7"],
  ["bad_frame", '"PUBLISH"'],
  ["bad_frame", "{}"],
  ["bad_frame", '{"op":"NOPE"}'],
  ["bad_frame", '{"op":"__proto__"}'],
  ["bad_frame", '{"op":"constructor"}'],
  ["bad_frame", '{"op":7}'],
  ["bad_frame", '{"op":"PUBLISH","topic":"t"}'],
  ["bad_frame", '{"op":"PUBLISH","payload":1}'],
  ["bad_frame", '{"op":"SUBSCRIBE","topic":"t"}'],
  ["bad_frame", '{"op":"MODACK","topic":"t","group":"g","id":"x"}'],
  ["bad_frame", '{"op":"MODACK","topic":"t","group":"g","id":"x","extend_ms":-1}'],
  ["bad_frame", '{"op":"MODACK","topic":"t","group":"g","id":"x","extend_ms":"1"}'],
  ["bad_frame", '{"op":"NACK","topic":"t","group":"g","id":"x","delay_ms":-5}'],
  ["bad_frame", '{"op":"NACK","topic":"t","group":"g","id":"x","delay_ms":1e999}'],
  ["bad_frame", `{"op":"PUBLISH","topic":"t","payload":${deep}}`],
  ["bad_topic", '{"op":"PUBLISH","topic":"","payload":1}'],
  ["bad_topic", '{"op":"PUBLISH","topic":"a b","payload":1}'],
  ["bad_topic", '{"op":"PUBLISH","topic":"a..b","payload":1}'],
  ["bad_topic", `{"op":"PUBLISH","topic":"${"x".repeat(201)}","payload":1}`],
  ["bad_topic", '{"op":"PUBLISH","topic":"$sys","payload":1}'],
  ["bad_group", '{"op":"SUBSCRIBE","topic":"t","group":"a/b"}'],
  ["bad_group", `{"op":"SUBSCRIBE","topic":"t","group":"${"x".repeat(101)}"}`],
  ["bad_option", '{"op":"SUBSCRIBE","topic":"t","group":"g","opts":{"nope":1}}'],
  ["bad_option", '{"op":"SUBSCRIBE","topic":"t","group":"g","opts":{"maxInflight":-1}}'],
  ["bad_option", '{"op":"SUBSCRIBE","topic":"t","group":"g","opts":{"ackTimeoutMs":"soon"}}'],
  ["bad_option", '{"op":"SUBSCRIBE","topic":"t","group":"g","opts":{"maxAttempts":1.5}}'],
  ["bad_option", '{"op":"SUBSCRIBE","topic":"t","group":"g","opts":{"from":"yesterday"}}'],
  ["bad_option", '{"op":"PUBLISH","topic":"t","payload":1,"opts":{"ts":-1}}'],
  ["bad_option", '{"op":"PUBLISH","topic":"t","payload":1,"opts":{"id":"a b"}}'],
  ["bad_option", '{"op":"PUBLISH","topic":"t","payload":1,"opts":{"ttl":1}}'],
  ["too_large", `{"op":"PUBLISH","topic":"t","payload":"${"x".repeat(10_001)}"}`],
  ["unknown_id", '{"op":"SUBSCRIBE","topic":"t","group":"g","opts":{"from":"afterId","afterId":"no-such-id"}}'],
  ["not_subscribed", '{"op":"UNSUBSCRIBE","topic":"t","group":"g"}'],
  ["not_subscribed", '{"op":"ACK","topic":"t","group":"g","id":"x"}'],
  ["not_subscribed", '{"op":"NACK","topic":"t","group":"g","id":"x"}'],
  ["not_subscribed", '{"op":"MODACK","topic":"t","group":"g","id":"x","extend_ms":1000}'],
];

test("each bad frame gets its code and the connection goes on", async () => {
  const client = await PlainClient.open(node.wsUrl);
  await client.publish("t", "first");
  for (const [code, text] of frames) {
    const answer = await raw(client, text);
    assert.is(answer.code, code, `${text.slice(0, 100)} → ${JSON.stringify(answer)}`);
  }
  assert.is((await raw(client, new Uint8Array([1, 2, 3]))).code, "bad_frame", "binary without having asked for it");
  assert.is((await client.publish("t", "last")).offset, 1, "nothing bad was stored");
  await client.close();
});

test("what is wrong is named", async () => {
  const client = await PlainClient.open(node.wsUrl);
  const answer = await client.request({ op: "SUBSCRIBE", topic: "t", group: "g", opts: { maxInflite: 3 } });
  assert.match(String(answer.msg), "maxInflite");
  await client.close();
});

test("a second subscription of the same group on one connection is refused", async () => {
  const client = await PlainClient.open(node.wsUrl);
  await client.subscribe("t", "twice");
  assert.is((await client.request({ op: "SUBSCRIBE", topic: "t", group: "twice" })).code, "already_subscribed");
  await client.close();
});

test("a frame over MAX_FRAME closes the connection with 1009", async () => {
  const client = await PlainClient.open(node.wsUrl);
  client.socket.send("x".repeat(100_001));
  assert.is((await within(5000, "close", client.closed)).code, 1009);
});

test("a frame before AUTH is refused, and AUTH still possible", async () => {
  const socket = new WebSocket(node.wsUrl);
  const frames: { op: string; code?: string }[] = [];
  socket.on("message", (text) => frames.push(JSON.parse(text.toString())));
  await new Promise((resolve) => socket.on("open", resolve));
  socket.send('{"op":"PUBLISH","topic":"t","payload":1}');
  socket.send('{"op":"AUTH"}');
  await eventually(5000, "both answers", () => frames.length === 2);
  assert.equal([frames[0].code, frames[1].op], ["unauthorized", "OK"]);
  socket.close();
});

const http: [
  status: number,
  method: string,
  path: string,
  body?: string | undefined,
  headers?: Record<string, string>,
][] = [
  [400, "GET", "/replay"],
  [400, "GET", "/replay?topic=a%20b"],
  [400, "GET", "/replay?topic=t&limit=-1"],
  [400, "GET", "/replay?topic=t&limit=abc"],
  [400, "GET", "/replay?topic=t&from=ts&ts=NaN"],
  [400, "GET", "/replay?topic=t&from=never"],
  [400, "GET", "/replay?topic=t&topic=u"],
  [400, "GET", "/export?topic=t&fromTs=x"],
  [400, "GET", "/export?topic=t&after=nonsense"],
  [404, "GET", "/replay?topic=t&from=afterId&afterId=no-such"],
  [404, "GET", "/replay?topic=no.such.topic"],
  [404, "GET", "/nowhere"],
  [405, "GET", "/publish/t"],
  [415, "POST", "/publish/t", "1", { "content-type": "text/plain" }],
  [400, "POST", "/publish/t", "{", { "content-type": "application/json" }],
  [400, "POST", "/publish/a%20b", "1", { "content-type": "application/json" }],
  [400, "POST", "/publish/%E0%A4%A", "1", { "content-type": "application/json" }],
  [413, "POST", "/publish/t", JSON.stringify("x".repeat(10_001)), { "content-type": "application/json" }],
  [400, "PUT", "/topics/t", '{"partitions":0}', { "content-type": "application/json" }],
  [400, "PUT", "/topics/t", '{"partitions":65}', { "content-type": "application/json" }],
  [400, "PUT", "/topics/t", '{"retention":{"ageMs":-1}}', { "content-type": "application/json" }],
  [400, "PUT", "/topics/t", '{"colour":"red"}', { "content-type": "application/json" }],
  [404, "DELETE", "/topics/no.such.topic"],
  [403, "GET", "/metrics", undefined, { origin: "http://evil.example" }],
  [403, "GET", "/metrics", undefined, { host: "evil.example" }],
];

function call(
  method: string,
  path: string,
  body?: string,
  headers: Record<string, string> = {},
): Promise<{ status: number; text: string }> {
  return new Promise((resolve, reject) => {
    const req = request({ host: "127.0.0.1", port: node.ports.ws, method, path, headers }, (res) => {
      let text = "";
      res.on("data", (chunk) => {
        text += chunk;
      });
      res.on("end", () => resolve({ status: res.statusCode ?? 0, text }));
    });
    req.on("error", reject);
    req.end(body);
  });
}

for (const [status, method, path, body, headers] of http) {
  test(`HTTP ${method} ${path} ${body?.slice(0, 30) ?? ""} ${JSON.stringify(headers ?? {})} is ${status}`, async () => {
    const answer = await call(method, path, body, headers);
    assert.is(answer.status, status, answer.text);
    assert.ok(JSON.parse(answer.text).error.length > 0);
  });
}

test("a bad query names the field", async () => {
  assert.match((await call("GET", "/replay?topic=t&limit=-1")).text, "limit");
});

test("a huge URL is refused and an aborted body stores nothing", async () => {
  const huge = await call("GET", `/replay?topic=${"x".repeat(200_000)}`).catch((error: Error) => ({
    status: 0,
    text: error.message,
  }));
  assert.ok([0, 400, 414, 431].includes(huge.status), `${huge.status}`);
  const socket = connect(node.ports.ws, "127.0.0.1");
  socket.write(
    'POST /publish/aborted HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"half":',
  );
  socket.end();
  await within(
    5000,
    "the socket ends",
    new Promise((resolve) => socket.on("close", resolve).on("error", resolve).resume()),
  );
  assert.is((await call("GET", "/replay?topic=aborted")).status, 404, "not even the topic was made");
});

test("a topic that may not be made is unknown, on the socket and over HTTP, until it is made by name", async () => {
  const folder = dataFolder();
  const strict = await startNode({ data: folder.path, env: { AUTO_CREATE: "false" } });
  const client = await PlainClient.open(strict.wsUrl);
  assert.is((await client.request({ op: "PUBLISH", topic: "strict", payload: 1 })).code, "unknown_topic");
  assert.is((await client.request({ op: "SUBSCRIBE", topic: "strict", group: "g" })).code, "unknown_topic");
  const post = () =>
    fetch(`${strict.http}/publish/strict`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: "1",
    });
  assert.is((await post()).status, 404);
  const made = await fetch(`${strict.http}/topics/strict`, {
    method: "PUT",
    headers: { "content-type": "application/json" },
    body: "{}",
  });
  assert.is(made.status, 201);
  assert.is((await client.publish("strict", 1)).offset, 0);
  assert.is((await post()).status, 200);
  await client.close();
  await strict.kill("SIGKILL");
  folder.remove();
});

test("a socket with a foreign Origin is refused with 403", async () => {
  const socket = new WebSocket(node.wsUrl, { origin: "http://evil.example" });
  const message = await new Promise<string>((resolve) => socket.on("error", (error) => resolve(error.message)));
  assert.match(message, "403");
});

test("bytes that are no HTTP at all end that connection only", async () => {
  const socket = connect(node.ports.ws, "127.0.0.1");
  socket.write(Buffer.from([0xff, 0xfe, 0, 1, 2, 3, 13, 10, 13, 10]));
  await within(5000, "closed", new Promise((resolve) => socket.on("close", resolve).on("error", resolve).resume()));
  assert.is((await call("GET", "/health/ready")).status, 200);
});

test.run();
