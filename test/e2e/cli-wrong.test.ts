// What a user types wrong, and nodes that are not there or do not want them: one line that says what to do, an exit code, never a
// stack trace and never a token.

import { execFileSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { suite } from "uvu";
import * as assert from "uvu/assert";
import { runCli } from "../support/cli-process.ts";
import { dataFolder, type NodeProcess, startNode } from "../support/node-process.ts";

interface Stage {
  node: NodeProcess;
  data: { path: string; remove: () => void };
}

const test = suite<Stage>("wrong input");
const main = new URL("./main.js", import.meta.url).pathname;

test.before(async (stage) => {
  stage.data = dataFolder();
  stage.node = await startNode({ data: stage.data.path });
  await runCli(["topics", "create", "wrong"], { url: stage.node.http });
});

test.after(async ({ node, data }) => {
  await node.kill("SIGKILL");
  data.remove();
});

function lines(text: string): string[] {
  return text.split("\n").filter((line) => line !== "");
}

/** Nobody listens there. */
async function closedPort(): Promise<string> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return `http://127.0.0.1:${port}`;
}

const wrong: [what: string, args: string[], code: number, says: RegExp, stdin?: string][] = [
  ["an unknown command", ["toics"], 2, /unknown command 'toics' \(Did you mean topics\?\)/],
  ["an unknown option", ["topics", "--jsn"], 2, /unknown option '--jsn' \(Did you mean --json\?\)/],
  ["an unknown option of start", ["start", "--wsport", "1"], 2, /unknown flag "--wsport"/],
  ["a wrong value of start", ["start", "--ws-port", "abc"], 2, /--ws-port is "abc"/],
  ["a word behind start", ["start", "foo"], 2, /"foo"/],
  [
    "a data folder where none can be",
    ["start", "--narthex-data", "/proc/x"],
    1,
    /\/proc\/x cannot be used.*NARTHEX_DATA/,
  ],
  ["a data folder that is a file", ["start", "--narthex-data", main], 1, /a file is in its place \(EEXIST\)/],
  ["a data folder below a file", ["start", "--narthex-data", `${main}/a/b`], 1, /a file is in its place \(ENOTDIR\)/],
  ["an unknown flag alone", ["--wsport"], 2, /unknown flag "--wsport"/],
  ["no command", ["--json"], 2, /a command is missing: start, pub, sub/],
  ["a token as a flag", ["topics", "--token", "x"], 2, /no --token, .* set NARTHEX_TOKEN or give --token-file$/m],
  ["a token as a flag in front", ["--token=s3cret", "topics"], 2, /no --token/],
  ["help of an unknown command", ["help", "toics"], 2, /unknown command 'toics': see narthex --help/],
  [
    "an ack timeout out of bounds",
    ["sub", "t", "-g", "g", "--ack-timeout", "1ms"],
    2,
    /--ack-timeout must be 100ms to 1d/,
  ],
  ["a backoff out of bounds", ["sub", "t", "-g", "g", "--backoff", "8d"], 2, /--backoff must be 1ms to 7d/],
  ["no command of a command", ["dlq"], 2, /a command is missing, one of list, show, redrive: see narthex dlq --help/],
  ["a missing argument", ["pub"], 2, /missing required argument 'topic': see narthex pub --help/],
  ["a missing argument of a command's command", ["topics", "create"], 2, /'topic': see narthex topics create --help/],
  ["a missing value", ["pub", "t", "1", "--key"], 2, /'-k, --key <key>' argument missing/],
  ["a missing group", ["sub", "t"], 2, /--group/],
  ["too many arguments", ["explain", "a", "b", "c"], 2, /too many arguments/],
  ["no payload", ["pub", "t"], 2, /stdin is empty, and there is no payload: put JSON in single quotes/, ""],
  ["a payload without quotes", ["pub", "t", "{n:1}"], 2, /not JSON: put JSON in single quotes/],
  [
    "a line that is not JSON",
    ["pub", "wrong", "--lines"],
    2,
    /: line 1 is not JSON: unexpected token 'b'$/m,
    "bad\n2\n",
  ],
  ["a payload in pieces", ["pub", "t", "{n:", "1}"], 2, /came in 2 pieces: put JSON in single quotes/],
  ["lines and a payload", ["pub", "t", "1", "--lines"], 2, /--lines reads stdin/],
  ["an id for many", ["pub", "t", "1", "--id", "x", "--count", "2"], 2, /--id names one event/],
  ["an id out of rule", ["pub", "t", "1", "--id", "a b"], 2, /--id: id may have/],
  ["a header without value", ["pub", "t", "1", "--header", "x"], 2, /--header must be name=value/],
  ["a time that is none", ["pub", "t", "1", "--ts", "soon"], 2, /--ts is "soon": allowed are/],
  ["a count that is none", ["pub", "t", "1", "--count", "0"], 2, /--count is "0": allowed are whole numbers from 1/],
  ["a topic out of rule", ["pub", "a b", "1"], 2, /topic may have/],
  ["a topic of the node", ["pub", "t.dlq.g", "1"], 2, /dlq/],
  ["a group out of rule", ["sub", "t", "--group", "a b"], 2, /group may have/],
  ["a place that is none", ["sub", "t", "-g", "g", "--from", "a b"], 2, /--from is "a b": allowed are earliest/],
  ["a bare number as a place", ["replay", "missing", "--from", "12"], 2, /write 0:12/],
  ["exec and no-ack", ["sub", "t", "-g", "g", "--exec", "true", "--no-ack"], 2, /--no-ack does not go with it/],
  ["concurrency without exec", ["sub", "t", "-g", "g", "--concurrency", "2"], 2, /goes with --exec/],
  ["a regex that is none", ["tail", "t", "--grep", "("], 2, /--grep is not a regular expression/],
  ["two places to begin", ["replay", "t", "--since", "1h", "--from", "earliest"], 2, /give one of them/],
  ["a topic that is not there", ["tail", "missing"], 4, /no topic missing/],
  ["a topic to replay that is not there", ["replay", "missing"], 4, /missing.*\(unknown_topic\)/],
  ["a topic to show that is not there", ["topics", "missing"], 4, /missing/],
  ["groups of no topic", ["groups", "missing"], 4, /missing/],
  ["an event that is not there", ["history", "wrong", "nope"], 4, /nope.*\(unknown_id\)/],
  ["partitions that would change", ["topics", "create", "wrong", "--partitions", "5"], 1, /partitions.*\(limit\)/],
  ["too many partitions", ["topics", "create", "t", "--partitions", "65"], 2, /--partitions is "65"/],
  ["a rate that is none", ["topics", "create", "t", "--rate", "fast"], 2, /--rate is "fast"/],
  ["watching a pipe", ["groups", "wrong", "--watch"], 2, /--watch draws on a terminal/],
  ["nowhere to seek", ["seek", "wrong", "g"], 2, /say where to/],
  ["deleting without --yes", ["topics", "delete", "wrong"], 2, /Add --yes/],
  ["an address that is none", ["topics", "--url", "localhost:8090"], 2, /--url must be the address of a node/],
  ["a token file that is not there", ["topics", "--token-file", "/nowhere/at/all"], 2, /--token-file .* ENOENT/],
];

/** Each of those that talk to a node. */
const nodeCommands = [
  ["topics"],
  ["topics", "create", "t"],
  ["groups", "t"],
  ["seek", "t", "g", "latest", "--yes"],
  ["replay", "t"],
  ["explain", "t", "g"],
  ["history", "t", "id"],
  ["pub", "t", "1"],
  ["sub", "t", "-g", "g"],
  ["tail", "t"],
];

for (const [what, args, expected, says, stdin] of wrong) {
  test(`${what}: one line, exit code ${expected}`, async ({ node }) => {
    const { code, out: text, err } = await runCli(args, { url: node.http, ...(stdin === undefined ? {} : { stdin }) });
    assert.is(code, expected, err);
    assert.match(err, says);
    assert.match(err, /^narthex: /);
    assert.is(lines(err).length, 1, err);
    assert.not.match(err, "    at ");
    assert.is(text, "");
  });
}

test("no node: one line that says how to start one, exit code 3", async () => {
  for (const args of [
    ["topics"],
    ["pub", "t", "1"],
    ["sub", "t", "-g", "g"],
    ["tail", "t"],
    ["groups", "t"],
    ["seek", "t", "g", "latest", "--yes"],
  ]) {
    const url = await closedPort();
    const { code, out: text, err } = await runCli(args, { url });
    assert.is(code, 3, args.join(" "));
    assert.is(err, `narthex: no node answers at ${url}: is it running? start one with: npx narthex\n`);
    assert.is(text, "");
  }
});

const strangers: [what: string, status: number, type: string, body: string][] = [
  ["a page", 404, "text/html", "<html>nothing here</html>"],
  ["a page with 200", 200, "text/html", "<html>welcome</html>"],
  ["JSON of another kind", 200, "application/json", "{}"],
  ["JSON that is none", 200, "application/json", "{"],
  ["a proxy without its server", 502, "text/html", "bad gateway"],
];

for (const [what, status, type, body] of strangers) {
  test(`something else than a node answers, ${what}: commands say so in one line, exit code 3`, async () => {
    const server = createServer((_, res) => res.writeHead(status, { "content-type": type }).end(body));
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    // What they all go through is the same, so that one kind of stranger has to do for all of them.
    const commands = body === "{}" ? nodeCommands : nodeCommands.slice(0, 2);
    const all = commands.map(async (args) => {
      const { code, out: text, err } = await runCli(args, { url });
      assert.is(code, 3, `${args}: ${err}`);
      assert.is(err, `narthex: what answers at ${url} is no Narthex node: check NARTHEX_URL or --url\n`);
      assert.is(text, "");
    });
    await Promise.all(all);
    server.close();
  });
}

test("a path in the address, and https where http is spoken: one sentence that says what to try", async ({ node }) => {
  for (const args of [["topics"], ["pub", "t", "1"], ["tail", "t"]]) {
    const path = await runCli(args, { url: `${node.http}/foo` });
    assert.is(path.code, 3);
    assert.is(
      path.err,
      `narthex: what answers at ${node.http}/foo is no Narthex node: try ${node.http}, without the path\n`,
    );
    const url = node.http.replace("http:", "https:");
    const tls = await runCli(args, { url });
    assert.is(tls.code, 3);
    assert.is(tls.err, `narthex: what answers at ${url} does not speak TLS: try ${node.http}\n`);
  }
});

test("a server that says nothing, and one that never ends its answer: 5 s, exit code 3", async () => {
  const silent = createServer(() => undefined);
  const endless = createServer((_, res) => void res.writeHead(200, { "content-type": "application/json" }).write("{"));
  const all = [silent, endless].map(async (server) => {
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    const { code, err } = await runCli(["topics"], { url });
    assert.is(code, 3);
    assert.is(err, `narthex: no answer from ${url} within 5 s\n`);
    server.closeAllConnections();
    server.close();
  });
  await Promise.all(all);
});

test("a group that is not there: explain says so, exit code 4, and with --json as JSON", async ({ node }) => {
  const words = await runCli(["explain", "wrong", "nobody"], { url: node.http });
  assert.is(words.code, 4);
  assert.match(words.out, /^wrong has no group nobody: /);
  const { code, out: text } = await runCli(["explain", "wrong", "nobody", "--json"], { url: node.http });
  assert.is(code, 4);
  assert.is(JSON.parse(text).cause, "unknown_group");
});

test("a node that goes away in the middle of its answer: one line", async () => {
  const server = createServer(({ url }, res) => {
    if (url === "/health/live") {
      res.writeHead(200, { "content-type": "application/json" }).end('{"live":true}');
      return;
    }
    res.writeHead(200, { "content-type": "application/json", "content-length": 1000 });
    res.write('{"topics":[', () => res.destroy());
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const { code, err } = await runCli(["topics"], { url });
  assert.is(code, 3);
  assert.is(err, `narthex: the connection to ${url} was lost before its answer was complete\n`);
  server.close();
});

test("a full disk behind stdout: one line", ({ node }) => {
  const shell = 'narthex() { "$NODE" "$MAIN" "$@"; }; narthex topics --json 2>&1 >/dev/full; echo "exit $?"';
  const env = { NODE: process.execPath, MAIN: main, NARTHEX_URL: node.http };
  assert.is(
    execFileSync("bash", ["-c", shell], { env, encoding: "utf8" }),
    "narthex: stdout cannot be written: ENOSPC\nexit 1\n",
  );
});

test("a node with a token: without one and with a wrong one NARTHEX_TOKEN is named, and no token is ever shown", async () => {
  const data = dataFolder();
  const node = await startNode({ data: data.path, env: { WS_TOKEN: "s3cr3t-token" } });
  const file = join(data.path, "token.txt");
  writeFileSync(file, "s3cr3t-token\n");
  for (const args of [["topics"], ["pub", "t", "1"], ["sub", "t", "-g", "g"]]) {
    const none = await runCli(args, { url: node.http });
    assert.is(none.code, 1);
    assert.match(none.err, /^narthex: the node wants a token: set NARTHEX_TOKEN/);
    const bad = await runCli(args, { url: node.http, env: { NARTHEX_TOKEN: "wr0ng-token", NARTHEX_DEBUG: "1" } });
    assert.is(bad.code, 1);
    assert.match(bad.err, /^narthex: the node does not take this token: check NARTHEX_TOKEN/);
    assert.not.match(none.err + bad.err + bad.out, /wr0ng-token|s3cr3t-token/);
    assert.is(lines(none.err).length, 1);
  }
  assert.is((await runCli(["pub", "t", "1"], { url: node.http, env: { NARTHEX_TOKEN: "s3cr3t-token" } })).code, 0);
  assert.is((await runCli(["pub", "t", "1"], { url: node.http, env: { WS_TOKEN: "s3cr3t-token" } })).code, 0);
  assert.is((await runCli(["topics", "--token-file", file], { url: node.wsUrl })).code, 0);
  assert.not.match(node.out(), "s3cr3t-token");
  await node.kill("SIGKILL");
  data.remove();
});

test("details come with NARTHEX_DEBUG and not without", async () => {
  const quiet = await runCli(["topics"], { url: await closedPort() });
  assert.not.match(quiet.err, "    at ");
  const loud = await runCli(["topics"], { url: await closedPort(), env: { NARTHEX_DEBUG: "1" } });
  assert.match(loud.err, "    at ");
});

test.run();
