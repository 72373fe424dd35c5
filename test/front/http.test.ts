import { connect, type Socket } from "node:net";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { rightsFromScopes } from "../../src/front/auth.ts";
import { asJson, withHttp } from "../support/http-server.ts";

/** What the server says to exactly these bytes, up to the close of the connection. */
function raw(port: number, bytes: string, then?: (socket: Socket) => void): Promise<string> {
  return new Promise((resolve, reject) => {
    let text = "";
    const socket = connect(port, "127.0.0.1", () => {
      socket.write(bytes);
      then?.(socket);
    });
    socket.setEncoding("utf8");
    socket.on("data", (part) => {
      text += part;
    });
    socket.on("close", () => resolve(text));
    socket.on("error", reject);
  });
}

// ---------------------------------------------------------------------------------------------------------- who may call

test("with a token everything but health needs it", () =>
  withHttp({ config: { token: "secret" } }, async (http) => {
    http.system.make("orders", 1);
    for (const [method, path] of [
      ["GET", "/topics"],
      ["GET", "/metrics"],
      ["GET", "/stats"],
      ["GET", "/replay?topic=orders"],
      ["GET", "/export?topic=orders"],
      ["POST", "/publish/orders"],
      ["DELETE", "/topics/orders"],
      ["GET", "/nowhere"],
    ]) {
      const none = await http.call(method, path, { headers: asJson });
      assert.is(none.status, 401, `${method} ${path}`);
      assert.match(none.headers["www-authenticate"] ?? "", /^Bearer/);
      assert.is(JSON.parse(none.text).code, "unauthorized");
    }
    const wrong = await http.json("GET", "/topics", { headers: { authorization: "Bearer wrong" } });
    assert.is(wrong.status, 401);
    assert.is(wrong.body.code, "bad_token");
    const basic = await http.json("GET", "/topics", { headers: { authorization: "Basic c2VjcmV0" } });
    assert.is(basic.body.code, "unauthorized");
    const right = await http.json("GET", "/topics", { headers: { authorization: "bearer secret" } });
    assert.is(right.status, 200);
    assert.is((await http.call("GET", "/health/live")).status, 200);
    assert.is((await http.call("GET", "/health/ready")).status, 200);
    assert.ok(http.system.topics.has("orders"));
  }));

test("a token that is too long is a bad token", () =>
  withHttp({ config: { token: "secret" } }, async (http) => {
    const { status, body } = await http.json("GET", "/topics", {
      headers: { authorization: `Bearer ${"x".repeat(8193)}` },
    });
    assert.is(status, 401);
    assert.is(body.code, "bad_token");
  }));

test("without a token only loopback names are answered", () =>
  withHttp({}, async (http) => {
    for (const host of ["evil.example", "evil.example:8090", "localhost.evil.example"]) {
      const { status, body } = await http.json("GET", "/topics", { headers: { host } });
      assert.is(status, 403, host);
      assert.is(body.code, "forbidden");
    }
    const nameless = await raw(http.port, "GET /topics HTTP/1.0\r\n\r\n");
    assert.match(nameless, /^HTTP\/1\.1 403 /);
    for (const host of ["localhost", "LOCALHOST:1", "127.0.0.1:8090", "[::1]:8090"]) {
      assert.is((await http.call("GET", "/topics", { headers: { host } })).status, 200, host);
    }
  }));

test("with a token any name is answered", () =>
  withHttp({ config: { token: "secret" } }, async (http) => {
    const headers = { host: "bus.example", authorization: "Bearer secret" };
    assert.is((await http.call("GET", "/topics", { headers })).status, 200);
  }));

test("a foreign origin is refused and changes nothing", () =>
  withHttp({}, async (http) => {
    const { status, body } = await http.json("POST", "/publish/orders", {
      headers: { ...asJson, origin: "https://evil.example" },
      body: "1",
    });
    assert.is(status, 403);
    assert.is(body.code, "forbidden");
    assert.is(http.system.topics.size, 0);
  }));

test("own and listed origins are answered with CORS headers", () =>
  withHttp({ config: { origins: ["https://app.example"] } }, async (http) => {
    const own = await http.call("GET", "/topics", { headers: { origin: `http://127.0.0.1:${http.port}` } });
    assert.is(own.status, 200);
    assert.is(own.headers["access-control-allow-origin"], `http://127.0.0.1:${http.port}`);
    const listed = await http.call("GET", "/topics", { headers: { origin: "https://app.example" } });
    assert.is(listed.headers["access-control-allow-origin"], "https://app.example");
    assert.match(listed.headers["access-control-expose-headers"] ?? "", /x-narthex-next/);
    assert.is(listed.headers.vary, "origin");
    const none = await http.call("GET", "/topics");
    assert.is(none.headers["access-control-allow-origin"], undefined);
  }));

test("a preflight is answered without a token", () =>
  withHttp({ config: { token: "secret", origins: ["https://app.example"] } }, async (http) => {
    const answer = await http.call("OPTIONS", "/publish/orders", {
      headers: {
        origin: "https://app.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type, x-trace, cookie",
      },
    });
    assert.is(answer.status, 204);
    assert.is(answer.headers["access-control-allow-origin"], "https://app.example");
    assert.match(answer.headers["access-control-allow-methods"] ?? "", /POST/);
    assert.is(answer.headers["access-control-allow-headers"], "authorization, content-type, x-trace");
    const foreign = await http.call("OPTIONS", "/publish/orders", { headers: { origin: "https://evil.example" } });
    assert.is(foreign.status, 403);
    assert.is(foreign.headers["access-control-allow-origin"], undefined);
  }));

test("rights are asked per topic and action", () =>
  withHttp(
    { auth: async (token) => ({ ok: true, rights: rightsFromScopes((token ?? "").split(",")) }) },
    async (http) => {
      http.system.make("a", 1);
      http.system.make("b", 1);
      const as = (scopes: string) => ({ headers: { ...asJson, authorization: `Bearer ${scopes}` }, body: "{}" });
      const get = (scopes: string) => ({ headers: { authorization: `Bearer ${scopes}` } });
      assert.is((await http.call("POST", "/publish/a", as("publish:a"))).status, 200);
      assert.is((await http.call("POST", "/publish/b", as("publish:a"))).status, 403);
      assert.is((await http.call("POST", "/publish/a", as("subscribe:a"))).status, 403);
      for (const path of ["/replay", "/export", "/cursors", "/latest-by-key"]) {
        assert.is((await http.call("GET", `${path}?topic=a`, get("subscribe:a"))).status, 200, path);
        assert.is((await http.call("GET", `${path}?topic=a`, get("publish:a"))).status, 403, path);
        // Not even whether it is there.
        assert.is((await http.call("GET", `${path}?topic=none`, get("publish:a"))).status, 403, path);
      }
      assert.is((await http.call("GET", "/lag?topic=a&group=g", get("publish:a"))).status, 403);
      assert.is((await http.call("PUT", "/topics/c", as("publish:**,subscribe:a"))).status, 403);
      assert.is((await http.call("POST", "/topics", as("publish:**"))).status, 403);
      assert.is((await http.call("DELETE", "/topics/a", get("subscribe:**"))).status, 403);
      assert.is((await http.call("DELETE", "/topics/a/groups/g", get("subscribe:**"))).status, 403);
      assert.is((await http.call("PUT", "/topics/c", as("*:**"))).status, 201);
      assert.is((await http.call("GET", "/topics/b", get("publish:a"))).status, 403);
      const { body } = await http.json("GET", "/topics", get("publish:a"));
      assert.equal(
        body.topics.map(({ topic }: { topic: string }) => topic),
        ["a"],
      );
    },
  ));

test("an auth hook that throws is unavailable, one that never answers too", async () => {
  const thrower = () => {
    throw new Error("hook down");
  };
  await withHttp({ auth: thrower }, async (http) => {
    const { status, body } = await http.json("GET", "/topics");
    assert.is(status, 503);
    assert.is(body.code, "unavailable");
  });
  let asked: () => void = () => {};
  const called = new Promise<void>((resolve) => {
    asked = resolve;
  });
  const silent = () => {
    asked();
    return new Promise<never>(() => {});
  };
  await withHttp({ auth: silent }, async (http) => {
    const answer = http.json("GET", "/topics");
    await called;
    assert.is(http.timers.length, 1);
    http.timers[0].run();
    assert.is((await answer).status, 503);
  });
});

// ------------------------------------------------------------------------------------------------------------------ routing

test("an unknown route is 404, a wrong method 405 with Allow", () =>
  withHttp({}, async (http) => {
    for (const path of [
      "/",
      "/publish",
      "/publish/a/b",
      "/topics/a/b",
      "/REPLAY",
      "//replay",
      "/health/none",
      "/../x",
    ]) {
      const { status, body } = await http.json("GET", path);
      assert.is(status, 404, path);
      assert.equal(Object.keys(body), ["error"], path);
    }
    const get = await http.call("GET", "/publish/orders");
    assert.is(get.status, 405);
    assert.is(get.headers.allow, "POST, OPTIONS");
    assert.is((await http.call("POST", "/replay", { headers: asJson, body: "1" })).headers.allow, "GET, HEAD, OPTIONS");
    assert.is((await http.call("PATCH", "/topics/a")).headers.allow, "PUT, GET, HEAD, DELETE, OPTIONS");
  }));

test("HEAD gives the head of GET", () =>
  withHttp({}, async (http) => {
    http.system.make("orders", 1);
    http.system.add("orders", 0, { payload: "1" });
    for (const path of ["/replay?topic=orders", "/topics", "/health/live", "/metrics"]) {
      const get = await http.call("GET", path);
      const head = await http.call("HEAD", path);
      assert.is(head.status, 200, path);
      assert.is(head.text, "");
      assert.is(head.headers["content-length"], get.headers["content-length"], path);
    }
    const scans = http.system.countAsked("scan");
    const head = await http.call("HEAD", "/export?topic=orders");
    assert.is(head.status, 200);
    assert.is(head.headers["content-type"], "application/x-ndjson; charset=utf-8");
    assert.is(http.system.countAsked("scan"), scans);
    assert.is((await http.call("HEAD", "/export?topic=none")).status, 404);
  }));

test("an absolute URL is served, a broken one is refused", () =>
  withHttp({}, async (http) => {
    assert.match(
      await raw(http.port, "GET http://localhost/topics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"),
      /^HTTP\/1\.1 200 /,
    );
    assert.match(
      await raw(http.port, "GET ftp://localhost/topics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"),
      /^HTTP\/1\.1 404 /,
    );
    const broken = await http.json("GET", "/topics/%E0%A4%A");
    assert.is(broken.status, 400);
    assert.is(broken.body.field, "topic");
  }));

test("a huge URL is 414", () =>
  withHttp({}, async (http) => {
    const { status, body } = await http.json("GET", `/replay?topic=${"a".repeat(8200)}`);
    assert.is(status, 414);
    assert.is(body.code, undefined);
  }));

test("a bad query is 400 and names the field", () =>
  withHttp({}, async (http) => {
    http.system.make("orders", 1);
    http.system.make("wide", 2);
    const id = http.system.add("orders", 0, { payload: "1" }).id;
    const cases: [path: string, field: string, code?: string][] = [
      ["/replay", "topic"],
      ["/replay?topic=", "topic"],
      ["/replay?topic=a..b", "topic", "bad_topic"],
      ["/replay?topic=a%20b", "topic", "bad_topic"],
      ["/replay?topic=orders&topic=orders", "topic"],
      ["/replay?topic=orders&form=ts", "form"],
      ["/replay?topic=orders&from=middle", "from"],
      ["/replay?topic=orders&from=ts", "ts"],
      ["/replay?topic=orders&ts=5", "ts"],
      ["/replay?topic=orders&from=ts&ts=-1", "ts"],
      ["/replay?topic=orders&from=ts&ts=NaN", "ts"],
      ["/replay?topic=orders&from=ts&ts=1e3", "ts"],
      ["/replay?topic=orders&from=ts&ts=1.5", "ts"],
      ["/replay?topic=orders&from=ts&ts=99999999999999999", "ts"],
      ["/replay?topic=orders&from=afterId", "afterId"],
      ["/replay?topic=orders&from=afterId&afterId=%00", "afterId"],
      ["/replay?topic=orders&afterId=x", "afterId"],
      ["/replay?topic=orders&limit=0", "limit"],
      ["/replay?topic=orders&limit=10001", "limit"],
      ["/replay?topic=orders&limit=", "limit"],
      ["/replay?topic=orders&after=x", "after"],
      ["/replay?topic=orders&after=0:-1", "after"],
      ["/replay?topic=orders&after=1:0", "after"],
      ["/export", "topic"],
      ["/export?topic=orders&ndjson=2", "ndjson"],
      ["/export?topic=orders&fromTs=x", "fromTs"],
      ["/export?topic=orders&toTs=-5", "toTs"],
      ["/export?topic=orders&fromTs=5&toTs=4", "toTs"],
      [`/export?topic=orders&after=0:0&afterId=${id}`, "afterId"],
      [`/export?topic=wide&afterId=${id}`, "afterId"],
      ["/export?topic=orders&limit=5", "limit"],
      ["/cursors", "topic"],
      ["/cursors?topic=orders&limit=0", "limit"],
      ["/lag?topic=orders", "group"],
      ["/lag?topic=orders&group=a..b", "group", "bad_group"],
      ["/latest-by-key?topic=orders&key=", "key"],
      ["/latest-by-key?topic=orders&key=a&limit=3", "limit"],
      ["/latest-by-key?topic=orders&after=zero", "after"],
      ["/latest-by-key?topic=orders&after=1:a", "after"],
      ["/topics?limit=1001", "limit"],
      ["/topics?x=1", "x"],
      ["/metrics?x=1", "x"],
    ];
    for (const [path, field, code = "bad_option"] of cases) {
      const { status, body } = await http.json("GET", path);
      assert.is(status, 400, path);
      assert.is(body.field, field, path);
      assert.is(body.code, code, path);
      assert.type(body.error, "string");
    }
    assert.is(http.system.countAsked("scan"), 0);
  }));

test("an unknown topic is 404 on every reading route and is not made", () =>
  withHttp({}, async (http) => {
    for (const path of [
      "/replay?topic=none",
      "/export?topic=none",
      "/cursors?topic=none",
      "/lag?topic=none&group=g",
      "/latest-by-key?topic=none&key=k",
      "/topics/none",
      "/topics/none/offsets",
    ]) {
      const { status, body } = await http.json("GET", path);
      assert.is(status, 404, path);
      assert.is(body.code, "unknown_topic", path);
    }
    assert.is(http.system.topics.size, 0);
  }));

// ------------------------------------------------------------------------------------------------------------------ trouble

test("a throw in a handler is 500, is logged, and the next request is served", () =>
  withHttp({ http: { metricsText: () => Promise.reject(new Error("broken gauge")) } }, async (http) => {
    const { status, body } = await http.json("GET", "/metrics");
    assert.is(status, 500);
    assert.is(body.code, "internal");
    assert.not.match(body.error, /gauge/);
    const entry = http.logged.find(({ level }) => level === "error");
    assert.is(entry?.fields.reason, "broken gauge");
    assert.is(entry?.fields.path, "/metrics");
    assert.is((await http.call("GET", "/topics")).status, 200);
  }));

test("a shard that is down is 503 with its code", () =>
  withHttp({}, async (http) => {
    http.system.make("orders", 1);
    http.system.fail = (message) =>
      message.type === "describe" ? { code: "unavailable", msg: "shard 0 is down", retry_after_ms: 1500 } : undefined;
    const answer = await http.call("GET", "/replay?topic=orders");
    assert.is(answer.status, 503);
    assert.is(answer.headers["retry-after"], "2");
    assert.equal(JSON.parse(answer.text), { error: "shard 0 is down", code: "unavailable", retry_after_ms: 1500 });
  }));

test("while the node closes nothing is written and reading goes on", () =>
  withHttp({ http: { closing: () => true } }, async (http) => {
    http.system.make("orders", 1);
    const { status, body } = await http.json("POST", "/publish/orders", { headers: asJson, body: "1" });
    assert.is(status, 503);
    assert.is(body.code, "shutting_down");
    assert.is((await http.call("DELETE", "/topics/orders")).status, 503);
    assert.is(http.system.countAsked("publish"), 0);
    assert.is((await http.call("GET", "/replay?topic=orders")).status, 200);
  }));

test("answers carry nosniff and name no server", () =>
  withHttp({}, async (http) => {
    for (const path of ["/topics", "/nowhere", "/health/live"]) {
      const { headers } = await http.call("GET", path);
      assert.is(headers["x-content-type-options"], "nosniff");
      assert.is(headers.server, undefined);
      assert.is(headers["x-powered-by"], undefined);
    }
  }));

test("one connection serves many requests, refused ones with a body too", () =>
  withHttp({}, async (http) => {
    const post = (path: string, body: string) =>
      `POST ${path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\ncontent-length: ${body.length}\r\n\r\n${body}`;
    const text = await raw(
      http.port,
      `${post("/publish/a", "x".repeat(70_000))}${post("/nowhere", "yy")}GET /health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n`,
    );
    assert.equal(text.match(/HTTP\/1\.1 \d+/g), ["HTTP/1.1 415", "HTTP/1.1 404", "HTTP/1.1 200"]);
  }));

test.run();
