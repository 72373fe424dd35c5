// HTTP by hand: requests that two readers would cut differently, names that would leave their place, heads and bodies without end.

import type { Attack } from "./attacks.ts";
import { RawSocket } from "./raw-socket.ts";
import { canary, type Target, token } from "./target.ts";

const bearer = `Authorization: Bearer ${token}`;
const head = (line: string, ...headers: string[]) => `${[line, "Host: localhost", ...headers].join("\r\n")}\r\n\r\n`;
const smuggled = `${head("PUT /topics/smuggled HTTP/1.1", bearer, "Content-Type: application/json", "Content-Length: 2")}{}`;
const post = (...headers: string[]) =>
  head("POST /publish/h.http HTTP/1.1", bearer, "Content-Type: application/json", ...headers);

/** Everything that came until the node ended the connection or said nothing more. */
async function exchange(target: Target, bytes: string, ms = 15_000): Promise<string> {
  const raw = await RawSocket.open(target.port);
  raw.write(Buffer.from(bytes, "latin1"));
  // The last one asks to be the last, so that also a connection that is kept has its end.
  raw.write(head("GET /health/live HTTP/1.1", "Connection: close"));
  await raw.end(ms);
  return raw.text();
}

/** The request is refused, and what stands behind it is not taken for a request of its own. */
function refused(name: string, status: RegExp, bytes: string): Attack {
  return {
    name,
    run: async (target) => {
      const text = await exchange(target, bytes);
      const first = text.split("\r\n")[0];
      if (!status.test(first)) throw new Error(`${name}: ${first || "nothing"}, wanted ${status}`);
      const made = await target.get("/topics/smuggled");
      if (made.status !== 404) throw new Error(`${name}: a request was smuggled`);
      if (text.includes(canary)) throw new Error(`${name}: a secret in the answer`);
    },
  };
}

/** Each path with its status. */
function answers(
  name: string,
  wanted: readonly (readonly [status: number, line: string, ...headers: string[]])[],
): Attack {
  return {
    name,
    run: async (target) => {
      for (const [status, line, ...headers] of wanted) {
        const text = await exchange(target, head(line, ...headers));
        if (!text.startsWith(`HTTP/1.1 ${status} `))
          throw new Error(`${name}: ${line} is ${text.slice(0, 200)}, wanted ${status}`);
        const [heads, body = ""] = text.split("\r\n\r\n");
        if (/\r\nx-injected|\r\nset-cookie/i.test(heads))
          throw new Error(`${name}: ${line} injected a header: ${heads}`);
        if (body.includes("root:") || body.includes(canary))
          throw new Error(`${name}: ${line} leaks: ${body.slice(0, 200)}`);
      }
    },
  };
}

/** What was not read of such a head resets the connection, and may take the answer along. */
const tooLong = /^(?:HTTP\/1\.1 431 .*)?$/;
const bad = /^HTTP\/1\.1 400 /;

export const httpAttacks: readonly Attack[] = [
  refused(
    "Content-Length and Transfer-Encoding",
    bad,
    `${post(`Content-Length: ${smuggled.length + 5}`, "Transfer-Encoding: chunked")}0\r\n\r\n${smuggled}`,
  ),
  refused(
    "Transfer-Encoding and Content-Length",
    bad,
    `${post("Transfer-Encoding: chunked", "Content-Length: 4")}1\r\n7\r\n0\r\n\r\n${smuggled}`,
  ),
  refused(
    "two Content-Lengths that differ",
    bad,
    `${post("Content-Length: 1", `Content-Length: ${1 + smuggled.length}`)}7${smuggled}`,
  ),
  refused("a Content-Length in a list", bad, `${post("Content-Length: 1, 1")}7${smuggled}`),
  refused("a Content-Length with a sign", bad, `${post("Content-Length: +1")}7${smuggled}`),
  refused("a negative Content-Length", bad, post("Content-Length: -1") + smuggled),
  refused("a Content-Length in hex", bad, `${post("Content-Length: 0x1")}7${smuggled}`),
  refused("an encoding that is not chunked", bad, `${post("Transfer-Encoding: xchunked")}0\r\n\r\n${smuggled}`),
  refused(
    "chunked that is not the last encoding",
    bad,
    `${post("Transfer-Encoding: chunked, gzip")}0\r\n\r\n${smuggled}`,
  ),
  refused("a space before the colon", bad, `${post("Transfer-Encoding : chunked")}0\r\n\r\n${smuggled}`),
  refused(
    "a chunk whose length is no number",
    bad,
    `${post("Transfer-Encoding: chunked")}zz\r\n7\r\n0\r\n\r\n${smuggled}`,
  ),
  refused(
    "a chunk that is longer than it says",
    bad,
    `${post("Transfer-Encoding: chunked")}1\r\n77\r\n0\r\n\r\n${smuggled}`,
  ),
  refused(
    "a chunk of more than any length",
    bad,
    `${post("Transfer-Encoding: chunked")}ffffffffffffffffff\r\n7\r\n0\r\n\r\n${smuggled}`,
  ),
  refused(
    "a bare line feed in a head",
    bad,
    `${post("Content-Length: 1").replace("\r\nContent-Type", "\nX-A: b\rContent-Type")}7`,
  ),
  refused("a NUL in a header", bad, `${post("X-A: a\0b", "Content-Length: 1")}7`),
  refused("a head of 100 kB", tooLong, post(`X-Long: ${"x".repeat(100_000)}`)),
  refused("a head of 5,000 headers", tooLong, post(...Array.from({ length: 5000 }, (_, i) => `X-${i}: y`))),
  refused("an HTTP that is none", bad, "GET / HTTQ/9.9\r\n\r\n"),
  refused("a body that is compressed", bad, `${post("Content-Encoding: gzip", "Content-Length: 4")}\x1f\x8b\x08\0`),
  refused("no Host", bad, "GET /health/live HTTP/1.1\r\n\r\n"),
  answers("paths that would leave their place", [
    [400, "GET /topics/..%2f..%2fetc%2fpasswd HTTP/1.1", bearer],
    [404, "GET /topics/../../etc/passwd HTTP/1.1", bearer],
    [404, "GET /../../../etc/passwd HTTP/1.1", bearer],
    [404, "GET //etc/passwd HTTP/1.1", bearer],
    [400, "GET /topics/%00 HTTP/1.1", bearer],
    [400, "GET /topics/%c0%ae%c0%ae HTTP/1.1", bearer],
    [400, "GET /topics/%ff HTTP/1.1", bearer],
    [400, "GET /topics/%0d%0aX-Injected:%20yes HTTP/1.1", bearer],
    [400, "GET /lag?topic=h.http&group=%0d%0aSet-Cookie:a HTTP/1.1", bearer],
    [404, "GET /topics/__proto__ HTTP/1.1", bearer],
    [404, "GET /constructor HTTP/1.1", bearer],
    [400, "GET /replay?__proto__=1&topic=h.http HTTP/1.1", bearer],
    [414, `GET /replay?topic=${"x".repeat(9000)} HTTP/1.1`, bearer],
  ]),
  answers("tokens and who may know what", [
    [401, "GET /topics HTTP/1.1"],
    [401, "GET /metrics HTTP/1.1", "Authorization: Bearer"],
    [401, "GET /metrics HTTP/1.1", `Authorization: Basic ${Buffer.from(token).toString("base64")}`],
    [401, "GET /metrics HTTP/1.1", `Authorization: Bearer ${token}x`],
    [401, "GET /metrics HTTP/1.1", `Authorization: Bearer ${"x".repeat(9000)}`],
    [401, `GET /metrics?token=${token} HTTP/1.1`],
    [401, "GET /nowhere HTTP/1.1"],
    [403, "GET /metrics HTTP/1.1", bearer, "Origin: null"],
    [403, "GET /metrics HTTP/1.1", bearer, "Origin: http://evil.example"],
    [403, "GET /metrics HTTP/1.1", bearer, "Origin: http://localhost.evil.example"],
    [403, "GET /metrics HTTP/1.1", bearer, "Origin: http://localhost@evil.example"],
    [403, "OPTIONS /publish/h.http HTTP/1.1", "Origin: http://evil.example", "Access-Control-Request-Method: POST"],
    [405, "TRACE /health/live HTTP/1.1"],
    [405, "DELETE /publish/h.http HTTP/1.1", bearer],
    [417, "GET /health/live HTTP/1.1", "Expect: a-miracle"],
    [200, "GET /health/live HTTP/1.1", "Range: bytes=0-0,1-1,2-2"],
  ]),
  {
    name: "a token in the URL of a socket is not written to the log",
    run: async (target) => {
      const raw = await RawSocket.open(target.port);
      raw.write(
        `GET /?token=${token} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n`,
      );
      await raw.end();
      const fault = target.fault();
      if (fault !== undefined) throw new Error(fault);
    },
  },
  {
    name: "CONNECT",
    run: async (target) => {
      const raw = await RawSocket.open(target.port);
      raw.write("CONNECT example.com:443 HTTP/1.1\r\nHost: example.com\r\n\r\n");
      await raw.end();
      if (raw.text().includes(" 200 ")) throw new Error(`CONNECT: ${raw.text()}`);
    },
  },
  {
    name: "bodies that are left half way store nothing",
    run: async (target, size) => {
      for (let i = 0; i < 10 * size; i++) {
        const raw = await RawSocket.open(target.port);
        raw.write(
          head("POST /publish/h.half HTTP/1.1", bearer, "Content-Type: application/json", "Content-Length: 1000") +
            '{"half":',
        );
        if (i % 2 === 0) raw.socket.end();
        else raw.destroy();
      }
      const { status } = await target.get("/topics/h.half");
      if (status !== 404) throw new Error(`half a body made a topic: ${status}`);
    },
  },
];
