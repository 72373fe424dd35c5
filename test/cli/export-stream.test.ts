// Reading an export from something that need not be a node that keeps its word.

import { createHash } from "node:crypto";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { CliError } from "../../src/cli/context.ts";
import { Trail } from "../../src/cli/export-part.ts";
import { ExportCut, type ExportSource, streamExport } from "../../src/cli/export-stream.ts";
import { realClock } from "../../src/runtime/clock.ts";

type Serve = (req: IncomingMessage, res: ServerResponse) => void;

const line = (offset: number) =>
  `{"id":"e${offset}","ts":1,"topic":"orders","partition":0,"offset":${offset},"payload":${offset}}\n`;
const linesFrom = (from: number, to: number) => Array.from({ length: to - from }, (_, n) => line(from + n)).join("");
const sha256 = (text: string) => createHash("sha256").update(text).digest("hex");

let server: Server;
let url: string;
let answers: Serve[] = [];
const asked: string[] = [];

test.before(async () => {
  server = createServer((req, res) => {
    asked.push(`${req.url} ${req.headers.authorization ?? ""}`.trim());
    const serve = answers.shift();
    if (serve === undefined) res.destroy();
    else serve(req, res);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  url = `http://127.0.0.1:${(server.address() as { port: number }).port}`;
});

test.after(() => {
  server.close();
});

const whole =
  (text: string, trailers: Record<string, string> = {}): Serve =>
  (_req, res) => {
    res.writeHead(200, { trailer: "x-narthex-count, x-narthex-checksum" });
    res.write(text);
    const count = text.split("\n").length - 1;
    res.addTrailers({ "x-narthex-count": String(count), "x-narthex-checksum": sha256(text), ...trailers });
    res.end();
  };

const cut =
  (text: string): Serve =>
  (_req, res) => {
    res.writeHead(200);
    res.write(text, () => res.destroy());
  };

const refuse =
  (status: number, body: object): Serve =>
  (_req, res) => {
    res.writeHead(status, { "content-type": "application/json" });
    res.end(JSON.stringify(body));
  };

async function read(over: Partial<ExportSource>, ...serve: Serve[]) {
  answers = serve;
  asked.length = 0;
  const trail = new Trail("orders");
  const hash = createHash("sha256");
  let text = "";
  const cuts: string[] = [];
  const source: ExportSource = {
    url,
    token: undefined,
    signal: new AbortController().signal,
    clock: realClock(),
    topic: "orders",
    fromTs: null,
    toTs: null,
    retryMs: 5000,
    known: true,
    onCut: (reason) => void cuts.push(reason),
    ...over,
  };
  const write = async (block: Buffer) => {
    text += block;
  };
  const failed = await streamExport(source, { trail, hash, sink: { write } }).then(
    () => undefined,
    (error: Error) => error,
  );
  return { failed, text, trail, cuts, sha256: hash.digest("hex") };
}

test("an export that was cut goes on behind its last whole line, until it is all there", async () => {
  const {
    failed,
    text,
    trail,
    cuts,
    sha256: sum,
  } = await read(
    { token: "t0ken", fromTs: 5, toTs: 9 },
    cut(`${linesFrom(0, 10)}{"id":"e1`),
    refuse(503, { error: "the shard is opening", code: "unavailable" }),
    cut(""),
    whole(linesFrom(10, 30)),
  );
  assert.is(failed, undefined);
  assert.is(text, linesFrom(0, 30));
  assert.is(sum, sha256(linesFrom(0, 30)));
  assert.equal([trail.events, trail.bytes], [30, text.length]);
  assert.equal(cuts, ["the connection broke", "the shard is opening", "the connection broke"]);
  const path = "/export?topic=orders&ndjson=1&fromTs=5&toTs=9";
  const rest = `${path}&after=0%3A10 Bearer t0ken`;
  assert.equal(asked, [`${path} Bearer t0ken`, rest, rest, rest]);
});

test("what is not what was sent is not taken for an export", async () => {
  const text = linesFrom(0, 5);
  const wrong: [Serve, RegExp][] = [
    [whole(text, { "x-narthex-checksum": sha256("other") }), /count or checksum differ\): start anew with --force/],
    [whole(text, { "x-narthex-count": "6" }), /count or checksum differ/],
    [whole(`${text}{"id":"e`), /count or checksum differ/],
    [whole(text + line(3)), /sent what no export has: line 6 \(0:3\) stands behind a later event/],
    [whole("<html>\n"), /sent what no export has: line 1 is not an exported event/],
    [(_req, res) => void res.end(text), /ended the export without its checksum: is a proxy in between/],
  ];
  for (const [serve, said] of wrong) {
    const { failed } = await read({}, serve);
    assert.instance(failed, CliError);
    assert.match(failed?.message ?? "", said);
    assert.is(asked.length, 1, "it is not tried again");
  }
});

test("a refusal that stays one ends it with its exit code", async () => {
  const refusals: [number, object, number, RegExp][] = [
    [404, { error: "no topic orders", code: "unknown_topic" }, 4, /no topic orders/],
    [401, { error: "no token", code: "unauthorized" }, 1, /the node wants a token: set NARTHEX_TOKEN/],
    [403, { error: "no right to subscribe to orders", code: "forbidden" }, 1, /no right/],
    [400, { error: "after is wrong", code: "bad_option" }, 2, /after is wrong/],
  ];
  for (const [status, body, exitCode, said] of refusals) {
    const { failed } = await read({}, refuse(status, body));
    assert.instance(failed, CliError);
    assert.is((failed as CliError).exitCode, exitCode);
    assert.match(failed?.message ?? "", said);
  }
});

test("nothing is waited for at an address where no node ever answered", async () => {
  const { failed, cuts } = await read({ known: false, url: "http://127.0.0.1:1" });
  assert.instance(failed, CliError);
  assert.is((failed as CliError).exitCode, 3);
  assert.equal(cuts, []);
});

test("without progress it gives up after its time, and says why", async () => {
  const { failed, trail } = await read({ retryMs: 300 }, cut(linesFrom(0, 3)));
  assert.instance(failed, ExportCut);
  assert.is(failed?.message, "the connection broke");
  assert.is(trail.events, 3);
});

test("a node that says nothing is waited for no longer than the user wants", async () => {
  const startedAt = performance.now();
  const silent: Serve = () => undefined;
  const begun: Serve = (_req, res) => {
    res.writeHead(200);
    res.write(linesFrom(0, 3));
  };
  const { failed, trail } = await read({ retryMs: 1200 }, begun, silent, silent);
  assert.instance(failed, ExportCut);
  assert.match(failed?.message ?? "", /^nothing came for [\d.]+ s$/);
  assert.is(trail.events, 3);
  assert.ok(performance.now() - startedAt < 5000, `${performance.now() - startedAt} ms`);
  const at = performance.now();
  const never = await read({ retryMs: 1200, known: false }, silent);
  assert.is((never.failed as CliError).exitCode, 3);
  assert.ok(performance.now() - at < 5000);
});

test("what answers and is no node is said to be none", async () => {
  const page =
    (status: number): Serve =>
    (_req, res) => {
      res.writeHead(status, { "content-type": "text/html" });
      res.end("<html>Bad Gateway</html>");
    };
  for (const status of [200, 404, 502]) {
    const { failed } = await read({ known: false }, page(status));
    assert.instance(failed, CliError);
    assert.is(failed?.message, `what answers at ${url} is no Narthex node: check NARTHEX_URL or --url`);
    assert.is((failed as CliError).exitCode, 3);
  }
  // A proxy says 502 while the node behind it starts again.
  const { failed, text, cuts } = await read({}, cut(linesFrom(0, 2)), page(502), whole(linesFrom(2, 5)));
  assert.is(failed, undefined);
  assert.is(text, linesFrom(0, 5));
  assert.equal(cuts, ["the connection broke", "a proxy answered 502"]);
  const forever = await read({ retryMs: 300 }, page(502), page(502), page(502), page(502));
  assert.is((forever.failed as CliError).exitCode, 3);
});

test("the user ends it at once", async () => {
  const stop = new AbortController();
  const { failed, text } = await read({ signal: stop.signal }, (_req, res) => {
    res.writeHead(200);
    res.write(linesFrom(0, 3), () => stop.abort());
  });
  assert.instance(failed, ExportCut);
  assert.is(failed?.message, "interrupted");
  assert.ok(linesFrom(0, 3).startsWith(text));
});

test.run();
