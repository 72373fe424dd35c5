// A token is compared in a time that says nothing of it, and neither tokens nor payloads get into the log, whatever goes wrong.

import { readFileSync } from "node:fs";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { eventually } from "../support/deadline.ts";
import { PlainClient } from "../support/plain-client.ts";
import { canary, maxPayload, Target, token } from "./target.ts";

test("the token is compared as a digest by timingSafeEqual, and nowhere else", () => {
  const source = readFileSync("src/front/auth.ts", "utf8");
  const body = /export function staticToken\([\s\S]*?\n}\n/.exec(source)?.[0] ?? "";
  assert.match(body, "timingSafeEqual(digest(given), wanted)");
  assert.match(source, /function digest\([\s\S]*?createHash\("sha256"\)/);
  // Anything that stops at the first difference tells how long the part is that was right.
  assert.not.match(body, /===? ?token|given ={2,3} (?!undefined)|startsWith|localeCompare|\.equals\(/);
  for (const path of ["session", "http", "server", "http-exchange", "front"]) {
    const text = readFileSync(`src/front/${path}.ts`, "utf8");
    assert.not.match(text, /config\.token/, `src/front/${path}.ts looks at the token itself`);
  }
});

test("no token and no payload is in the log, at its most talkative, whatever is refused", async () => {
  const target = await Target.start();
  try {
    const client = await PlainClient.open(target.node.wsUrl, token);
    const secret = (more = "") => `${canary}-${more}`;
    const frames = [
      { op: "AUTH", token: secret("wrong") },
      { op: "AUTH", token: { nested: secret() } },
      { op: "PUBLISH", topic: "t", payload: secret("x".repeat(maxPayload)) },
      { op: "PUBLISH", topic: "t", payload: secret(), opts: { id: "a b", headers: { [secret()]: 7 } } },
      {
        op: "PUBLISH",
        topic: "t",
        payload: secret(),
        opts: { headers: { h: secret() }, tags: [secret()], sid: secret(), key: secret() },
      },
      { op: "SUBSCRIBE", topic: "t", group: "g", opts: { from: "earliest" } },
      { op: "LATEST", topic: "t", keys: [secret()] },
    ];
    for (const frame of frames) await client.request(frame);
    for (const text of [`{"op":"PUBLISH","payload":"${secret()}`, `${secret()}`, `{"a":${secret()}}`])
      client.socket.send(text);
    const event = await client.next();
    await client.nack(event, { reason: secret("reason") });
    const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
    const calls: [path: string, init: RequestInit][] = [
      ["/publish/t", { method: "POST", headers, body: `{"broken":"${secret()}` }],
      [
        "/publish/t",
        { method: "POST", headers: { ...headers, "x-narthex-key": secret() }, body: JSON.stringify(secret()) },
      ],
      [`/publish/t?token=${token}`, { method: "POST", headers, body: JSON.stringify(secret()) }],
      [`/metrics?token=${token}`, {}],
      ["/metrics", { headers: { authorization: `Bearer ${secret("wrong")}` } }],
      ["/metrics", { headers: { authorization: `Basic ${token}` } }],
      ["/replay?topic=t", { headers }],
      ["/export?topic=t", { headers }],
      ["/history?topic=t&id=none", { headers }],
    ];
    for (const [path, init] of calls) await (await fetch(`${target.node.http}${path}`, init)).arrayBuffer();
    client.socket.terminate();
    await eventually(5000, "the connection is gone", async () =>
      /^narthex_connections 0$/m.test((await target.get("/metrics")).text),
    );
    assert.is(target.fault(), undefined);
    target.node.child.kill("SIGTERM");
    await target.node.exited;
    assert.not.match(target.node.out(), canary);
  } finally {
    await target.stop();
  }
});

test.run();
