// What a refusal over HTTP gives away: words of ours and the name of the parameter or member that is wrong, nothing else of the request or
// of the node.

import { test } from "uvu";
import * as assert from "uvu/assert";
import { codes } from "../../src/protocol/failure.ts";
import { startHere } from "../support/node-here.ts";

const token = "devtoken";
const canary = "CANARY";
const documented = new Set(["error", "code", "field", "retry_after_ms"]);
const internals =
  /\n|node:internal|\.[jt]s:\d|TypeError|RangeError|SyntaxError|is not a function|Cannot read|dist-?\w*\//;

test("a refusal has the documented members only, and nothing of tokens, headers, values or bodies in it", async () => {
  const { node, http } = await startHere({ store: "memory", workers: 1, token, autoCreate: false });
  const json = { "content-type": "application/json" };
  const bearer = { authorization: `Bearer ${token}` };
  const seen = new Map<number, number>();
  const refused = async (method: string, path: string, headers: Record<string, string> = bearer, body?: string) => {
    const answer = await fetch(`${http}${path}`, { method, headers, ...(body === undefined ? {} : { body }) });
    const text = await answer.text();
    const what = `${method} ${path.slice(0, 100)}: ${answer.status} ${text.slice(0, 400)}`;
    assert.ok(answer.status >= 400 && answer.status < 500, what);
    assert.is(answer.headers.get("content-type"), "application/json; charset=utf-8", what);
    assert.is(answer.headers.get("x-content-type-options"), "nosniff", what);
    const fault = JSON.parse(text) as Record<string, unknown>;
    for (const member of Object.keys(fault)) assert.ok(documented.has(member), `${member} in ${what}`);
    if (fault.code !== undefined) assert.ok(String(fault.code) in codes, what);
    assert.ok(text.length < 600 && !internals.test(text), what);
    for (const [name, value] of answer.headers) assert.not.match(`${name}: ${value}`, canary, what);
    assert.not.match(text, canary, what);
    seen.set(answer.status, (seen.get(answer.status) ?? 0) + 1);
  };
  try {
    const c = `${canary}%22%3Cscript%3E`;
    await refused("GET", "/topics", { authorization: `Bearer ${canary}` });
    await refused("GET", "/topics", { authorization: `Basic ${canary}` });
    await refused("GET", `/topics?token=${canary}`, {});
    await refused("GET", `/${c}`);
    await refused("GET", `/topics/${c}`);
    await refused("GET", `/topics/%E0%A4%A?${canary}=1`);
    await refused("PUT", `/topics/${c}`, { ...bearer, ...json }, "{}");
    await refused("DELETE", `/topics/${c}/groups/${c}`);
    for (const path of ["/lag", "/cursors", "/explain", "/history", "/replay", "/export", "/latest-by-key"]) {
      await refused("GET", `${path}?topic=${c}&group=g&id=1`);
      await refused("GET", `${path}?topic=t&group=${c}&id=${c}`);
      await refused("GET", `${path}?topic=t&topic=${canary}`);
      await refused("GET", `${path}?topic=t&limit=${canary}&after=${canary}&from=${canary}&to=${canary}`);
    }
    for (const body of [`{"${canary}`, `{"a":${canary}}`, `"${canary}`, `[1,${canary}]`])
      await refused("POST", "/publish/t", { ...bearer, ...json }, body);
    for (const body of [
      `{"${"x".repeat(5000)}":1}`,
      `{"partitions":"${canary}"}`,
      `{"rate":"${canary}"}`,
      `"${canary}"`,
    ])
      await refused("PUT", "/topics/t", { ...bearer, ...json }, body);
    for (const name of ["key", "id", "ts", "tags", "sid", "headers", "caused-by", "ttl"])
      await refused("POST", "/publish/t", { ...bearer, ...json, [`x-narthex-${name}`]: `${canary} \u00e9{` }, "1");
    await refused("POST", "/publish/t", { ...bearer, "content-type": canary }, "1");
    await refused("POST", `/publish/${c}`, { ...bearer, ...json }, "1");
    await refused("GET", "/topics", { ...bearer, origin: `http://${canary}.example` });
    assert.ok(
      [400, 401, 403, 404, 415].every((status) => seen.has(status)),
      JSON.stringify([...seen]),
    );
  } finally {
    await node.destroy();
  }
});

test.run();
