// What an export wrote an import brings back, whoever is killed on the way.

import { createHash } from "node:crypto";
import { createReadStream, existsSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { encodePack } from "../../src/protocol/pack.ts";
import { BatchClient, fill } from "../support/batch-client.ts";
import { type CliProcess, type CliResult, runCli, startCli } from "../support/cli-process.ts";
import { eventually, within } from "../support/deadline.ts";
import { type NodeHere, startHere } from "../support/node-here.ts";
import { dataFolder, type NodeProcess, startNode } from "../support/node-process.ts";
import { StallingProxy } from "../support/stalling-proxy.ts";

const fast = { CONN_RATE: "off", TOPIC_RATE: "off" };
const folder = dataFolder();
const path = (name: string) => join(folder.path, name);
let nodes = 0;
let source: NodeProcess;

test.before(async () => {
  source = await startNode({ data: path("source"), env: fast });
  const client = await BatchClient.open(source.wsUrl);
  await fill(client, "orders", { count: 60_000, payload: (n) => `{"n":${n},"f":"${"x".repeat(80)}"}` });
  await fillOddly(client, "odd");
  client.close();
  await reach(["export", "orders", "-o", path("orders.ndjson")], source.http);
});

test.after(async () => {
  await source.kill("SIGKILL");
  folder.remove();
});

/** Everything that an event can have, and payloads that would not survive being parsed and written again. */
async function fillOddly(client: BatchClient, topic: string): Promise<void> {
  const handle = await client.handle(topic);
  const payloads = [
    "1.0",
    "12345678901234567890",
    '{"b":1,"a":1,"2":0,"1":0}',
    '{"a":1,"a":2}',
    '"é\\u00e9"',
    "[ 1 , 2 ]",
  ];
  const pack = encodePack(
    payloads.map((payload, n) => ({
      payload: new TextEncoder().encode(payload),
      id: `own.${n}`,
      key: `k"${n % 3}`,
      ts: 1_700_000_000_000 + n,
      meta: '{"sid":"boot","headers":{"payload":"no","x":"}"},"tags":["a","b"],"caused_by":["z"]}',
    })),
  );
  await client.publish(handle, pack);
}

async function freshNode(env: Record<string, string> = {}): Promise<NodeProcess> {
  return startNode({ data: path(`node-${nodes++}`), env: { ...fast, ...env } });
}

async function proxyTo(node: () => NodeProcess | NodeHere): Promise<StallingProxy> {
  const proxy = new StallingProxy(() => Number(new URL(node().http).port));
  await proxy.listen();
  return proxy;
}

/** Runs a command that must succeed. */
async function reach(args: readonly string[], url: string, stdin?: string): Promise<CliResult> {
  const result = await runCli(args, { url, ...(stdin === undefined ? {} : { stdin }) });
  assert.is(result.code, 0, `narthex ${args.join(" ")}: ${result.err}`);
  return result;
}

async function end(cli: CliProcess, ms = 60_000): Promise<CliResult> {
  try {
    return await within(ms, `the command ends; it said:\n${cli.err()}`, cli.ended);
  } finally {
    cli.child.kill("SIGKILL");
  }
}

const sizeOf = (file: string) => statSync(file, { throwIfNoEntry: false })?.size ?? 0;

async function sha256(file: string): Promise<string> {
  const hash = createHash("sha256");
  for await (const chunk of createReadStream(file)) hash.update(chunk as Buffer);
  return hash.digest("hex");
}

async function assertSame(a: string, b: string): Promise<void> {
  if ((await sha256(a)) === (await sha256(b))) return;
  const [left, right] = [readFileSync(a, "utf8").split("\n"), readFileSync(b, "utf8").split("\n")];
  const at = left.findIndex((line, n) => line !== right[n]);
  assert.unreachable(`${a} and ${b} differ in line ${at + 1}: ${left[at]} and ${right[at]}`);
}

const linesOf = (file: string) => readFileSync(file, "utf8").trimEnd().split("\n");
const leftovers = (name: string) => readdirSync(folder.path).filter((file) => file.startsWith(`${name}.`));

interface Marked {
  readonly mark: { readonly events: number };
}

const importedOf = (file: string) =>
  existsSync(`${file}.import.json`)
    ? (JSON.parse(readFileSync(`${file}.import.json`, "utf8")) as Marked).mark.events
    : 0;

// ------------------------------------------------------------------------------------------------------------------- export

test("a file is whole, checked and has its checksum beside it", async () => {
  const { out } = await reach(["--json", "export", "odd", "-o", path("odd.ndjson")], source.http);
  const bytes = readFileSync(path("odd.ndjson"));
  const served = Buffer.from(await (await fetch(`${source.http}/export?topic=odd`)).arrayBuffer());
  assert.ok(bytes.equals(served));
  const checksum = createHash("sha256").update(bytes).digest("hex");
  assert.is(readFileSync(path("odd.ndjson.sha256"), "utf8"), `${checksum}  odd.ndjson\n`);
  assert.equal(JSON.parse(out), {
    topic: "odd",
    file: path("odd.ndjson"),
    events: 6,
    bytes: bytes.length,
    sha256: checksum,
    next: "0:6",
    resumed: 0,
  });
  assert.equal(leftovers("odd.ndjson").sort(), ["odd.ndjson.sha256"]);
});

test("stdout gets the very bytes, and nothing else is said in a pipe", async () => {
  const { out, err } = await reach(["export", "odd"], source.http);
  assert.is(out, readFileSync(path("odd.ndjson"), "utf8"));
  assert.is(err, "");
});

test("an exporter that is killed at any moment goes on to the same bytes", async () => {
  const proxy = await proxyTo(() => source);
  const file = path("killed.ndjson");
  for (const bytes of [1_000_000, 3_000_000, 4_000_000]) {
    const before = sizeOf(`${file}.part`);
    proxy.allow({ down: bytes });
    const cli = startCli(["export", "orders", "-o", file], { url: proxy.url });
    await eventually(20_000, "a part of it is written", () => sizeOf(`${file}.part`) > before + bytes / 2);
    cli.child.kill("SIGKILL");
    await end(cli);
  }
  proxy.allow();
  const { out, err } = await reach(["--json", "export", "orders", "-o", file], proxy.url);
  assert.match(err, /going on behind the [\d,]+ events that are in /);
  const { events, resumed } = JSON.parse(out) as { events: number; resumed: number };
  assert.is(events, 60_000);
  assert.ok(resumed > 10_000 && resumed < 60_000, `${resumed}`);
  await assertSame(file, path("orders.ndjson"));
  assert.equal(leftovers("killed.ndjson"), ["killed.ndjson.sha256"]);
  await proxy.close();
});

test("an export is interrupted with 130 and goes on", async () => {
  const proxy = await proxyTo(() => source);
  const file = path("interrupted.ndjson");
  proxy.allow({ down: 2_000_000 });
  const cli = startCli(["export", "orders", "-o", file], { url: proxy.url });
  await eventually(20_000, "a part of it is written", () => sizeOf(`${file}.part`) > 1_000_000);
  cli.child.kill("SIGINT");
  const { code, err } = await end(cli);
  assert.is(code, 130, err);
  assert.match(
    err,
    /^narthex: the export was cut after [\d,]+ events: interrupted; the same command goes on from there\n$/,
  );
  proxy.allow();
  await reach(["export", "orders", "-o", file], proxy.url);
  await assertSame(file, path("orders.ndjson"));
  await proxy.close();
});

test("a connection that breaks and a node that is killed during an export are waited for", async () => {
  const data = path(`node-${nodes}`);
  let node = await freshNode();
  await reach(["import", path("orders.ndjson"), "--no-verify"], node.http);
  const proxy = await proxyTo(() => node);
  const file = path("orphan.ndjson");
  proxy.allow({ down: 2_000_000 });
  const cli = startCli(["export", "orders", "-o", file], { url: proxy.url });
  await eventually(20_000, "a part of it is written", () => sizeOf(`${file}.part`) > 1_000_000);
  proxy.cut();
  await cli.noted(/the export was cut \(.*\), trying again for up to 60 s/);
  await eventually(20_000, "more of it is written", () => sizeOf(`${file}.part`) > 2_500_000);
  await node.kill("SIGKILL");
  node = await startNode({ data, env: fast });
  proxy.allow();
  const { code, err } = await end(cli);
  assert.is(code, 0, err);
  await assertSame(file, path("orders.ndjson"));
  // Without one that comes back it gives up, says so, and leaves what it has.
  proxy.allow({ down: 2_000_000 });
  const gone = startCli(["export", "orders", "-o", path("gone.ndjson"), "--retry-s", "1"], { url: proxy.url });
  await eventually(20_000, "a part of it is written", () => sizeOf(path("gone.ndjson.part")) > 1_000_000);
  await node.kill("SIGKILL");
  const result = await end(gone);
  assert.is(result.code, 1);
  assert.match(result.err, /the export was cut after [\d,]+ events: .*; the same command goes on from there\n$/);
  assert.ok(sizeOf(path("gone.ndjson.part")) > 0);
  await proxy.close();
});

test("a part is not mixed with another export", async () => {
  const file = path("part.ndjson");
  const proxy = await proxyTo(() => source);
  proxy.allow({ down: 1_000_000 });
  const cli = startCli(["export", "orders", "-o", file], { url: proxy.url });
  await eventually(20_000, "a part of it is written", () => sizeOf(`${file}.part`) > 500_000);
  cli.child.kill("SIGKILL");
  await end(cli);
  await proxy.close();
  const refused: [string[], RegExp][] = [
    [["export", "odd", "-o", file], /part\.ndjson\.part is an export of orders: give another -o, or --force/],
    [["export", "orders", "-o", file, "--since", "2h"], /was begun without a range: give the same again, or --force/],
    [["export", "orders", "-o", path("odd.ndjson")], /odd\.ndjson exists: give another -o, or --force/],
    [["export", "nothing.here", "-o", path("x.ndjson")], /nothing\.here/],
    [["export", "orders", "--from-ts", "soon"], /--from-ts is "soon": allowed are/],
    [["export", "orders", "--force"], /--force goes with -o/],
  ];
  for (const [args, said] of refused) {
    const { code, err } = await runCli(args, { url: source.http });
    assert.ok(code !== 0, args.join(" "));
    assert.match(err, said);
    assert.is(err.trimEnd().split("\n").length, 1, err);
  }
  await reach(["export", "odd", "-o", file, "--force"], source.http);
  await assertSame(file, path("odd.ndjson"));
});

test("two exports to one file do not mix: the second is refused", async () => {
  const file = path("both.ndjson");
  const proxy = await proxyTo(() => source);
  proxy.allow({ down: 1_000_000 });
  const first = startCli(["export", "orders", "-o", file], { url: proxy.url });
  await eventually(20_000, "a part of it is written", () => sizeOf(`${file}.part`) > 500_000);
  for (const more of [[], ["--force"]]) {
    const { code, err } = await runCli(["export", "orders", "-o", file, ...more], { url: source.http });
    assert.is(code, 1);
    assert.is(err, `narthex: another export writes ${file}.part (process ${first.child.pid})\n`);
  }
  proxy.allow();
  const { code, err } = await end(first);
  assert.is(code, 0, err);
  await assertSame(file, path("orders.ndjson"));
  assert.equal(leftovers("both.ndjson"), ["both.ndjson.sha256"]);
  await proxy.close();
});

test("a part that was changed while nobody wrote it is not gone on with", async () => {
  const file = path("edited.ndjson");
  const proxy = await proxyTo(() => source);
  proxy.allow({ down: 1_000_000 });
  const cli = startCli(["export", "orders", "-o", file], { url: proxy.url });
  await eventually(20_000, "a part of it is written", () => sizeOf(`${file}.part`) > 500_000);
  cli.child.kill("SIGINT");
  assert.is((await end(cli)).code, 130);
  await proxy.close();
  const text = readFileSync(`${file}.part`, "utf8");
  const at = text.lastIndexOf("xxx");
  writeFileSync(`${file}.part`, `${text.slice(0, at)}y${text.slice(at + 1)}`);
  const { code, err } = await runCli(["export", "orders", "-o", file], { url: source.http });
  assert.is(code, 1);
  assert.is(
    err,
    `narthex: ${file}.part was changed since it was written: remove it, and the same command starts anew\n`,
  );
  assert.not(existsSync(file));
  rmSync(`${file}.part`);
  await reach(["export", "orders", "-o", file], source.http);
  await assertSame(file, path("orders.ndjson"));
});

test("a range is kept over a resume", async () => {
  const args = ["export", "odd", "-o", path("range.ndjson"), "--from-ts", "1700000000001", "--to-ts", "1700000000003"];
  await reach(args, source.http);
  assert.equal(linesOf(path("range.ndjson")), linesOf(path("odd.ndjson")).slice(1, 4));
  // As if it had been killed in the middle of its third line.
  const whole = readFileSync(path("range.ndjson"), "utf8");
  const cut = args.with(3, path("range2.ndjson"));
  const [first, second] = linesOf(path("range.ndjson"));
  const facts = {
    version: 1,
    topic: "odd",
    createdAt: ((await (await fetch(`${source.http}/topics/odd`)).json()) as { createdAt: number }).createdAt,
    fromTs: "1700000000001",
    toTs: "1700000000003",
    since: null,
    begin: 1_700_000_000_001,
    end: 1_700_000_000_003,
  };
  writeFileSync(path("range2.ndjson.part.json"), JSON.stringify(facts));
  writeFileSync(path("range2.ndjson.part"), `${first}\n${second}\n{"id":"own`);
  const { err } = await reach(cut, source.http);
  assert.match(err, "going on behind the 2 events");
  assert.is(readFileSync(path("range2.ndjson"), "utf8"), whole);
});

// ------------------------------------------------------------------------------------------------------------------- import

test("an import into a new node yields the same export, byte for byte", async () => {
  const node = await freshNode();
  for (const name of ["orders", "odd"]) {
    const { out, err } = await reach(["--json", "import", path(`${name}.ndjson`)], node.http);
    assert.is((JSON.parse(out) as { verified: string }).verified, "identical");
    assert.is(err, "");
    await reach(["export", name, "-o", path(`${name}.back.ndjson`)], node.http);
    await assertSame(path(`${name}.ndjson`), path(`${name}.back.ndjson`));
    assert.equal(leftovers(`${name}.ndjson`), [`${name}.ndjson.sha256`]);
  }
  const { out } = await reach(["import", path("odd.ndjson"), "--topic", "copy"], node.http);
  assert.match(
    out,
    /^copy: 6 events from .*odd\.ndjson \(.*\), sha256 [0-9a-f]{64}, all are in the topic with the same contents\n$/,
  );
  await node.kill("SIGKILL");
});

test("an importer that is killed goes on, and nothing is stored twice or left out", async () => {
  const node = await freshNode();
  const proxy = await proxyTo(() => node);
  const file = path("orders.ndjson");
  for (const bytes of [1_200_000, 2_500_000, 1_500_000]) {
    const before = importedOf(file);
    proxy.allow({ up: bytes });
    const cli = startCli(["import", file], { url: proxy.url });
    await eventually(20_000, "some are imported", () => importedOf(file) > before);
    cli.child.kill("SIGKILL");
    await end(cli);
  }
  proxy.allow();
  const { err, out } = await reach(["--json", "import", file], proxy.url);
  assert.match(err, /going on behind the [\d,]+ events that were imported before/);
  const { events, verified, resumed } = JSON.parse(out) as Record<string, unknown>;
  assert.equal([events, verified], [60_000, "identical"]);
  assert.ok((resumed as number) > 0 && (resumed as number) < 60_000, `${resumed}`);
  await reach(["export", "orders", "-o", path("killed-import.ndjson")], node.http);
  await assertSame(file, path("killed-import.ndjson"));
  await proxy.close();
  await node.kill("SIGKILL");
});

test("past the dedupe window, too, what was stored before the kill is found and not stored again", async () => {
  const here: NodeHere = await startHere({ store: "memory", limits: { dedupeMs: 1, pruneEveryMs: 10 } });
  const proxy = await proxyTo(() => here);
  try {
    const file = path("orders.ndjson");
    const endOf = async () => {
      const { partitions } = (await (await fetch(`${here.http}/topics/orders/offsets`)).json()) as {
        partitions?: { end: number }[];
      };
      return partitions?.[0].end ?? 0;
    };
    // The first time before there is any mark.
    proxy.allow({ up: 500_000 });
    const first = startCli(["import", file], { url: proxy.url });
    await eventually(20_000, "some are stored", async () => (await endOf()) > 0);
    first.child.kill("SIGKILL");
    await end(first);
    assert.is(importedOf(file), 0);
    proxy.allow({ up: 2_500_000 });
    const cli = startCli(["import", file], { url: proxy.url });
    await eventually(20_000, "some are imported", () => importedOf(file) > 0);
    await eventually(20_000, "more are stored than are confirmed", async () => (await endOf()) > importedOf(file));
    cli.child.kill("SIGKILL");
    await end(cli);
    assert.ok((await endOf()) > importedOf(file));
    proxy.allow();
    const { out } = await reach(["--json", "import", file], proxy.url);
    assert.is((JSON.parse(out) as { verified: string }).verified, "identical");
    assert.is(await endOf(), 60_000);
  } finally {
    await proxy.close();
    await here.node.close();
  }
});

test("a node that is killed during an import and comes back loses and doubles nothing", async () => {
  const data = path(`node-${nodes}`);
  let node = await freshNode();
  const proxy = await proxyTo(() => node);
  const file = path("orders.ndjson");
  proxy.allow({ up: 1_500_000 });
  const cli = startCli(["--json", "import", file], { url: proxy.url });
  let before = 0;
  for (let kills = 0; kills < 3; kills++) {
    await eventually(20_000, "some are imported", () => importedOf(file) > before);
    before = importedOf(file);
    await node.kill("SIGKILL");
    node = await startNode({ data, env: fast });
  }
  proxy.allow();
  const { code, out, err } = await end(cli);
  assert.is(code, 0, err);
  assert.is((JSON.parse(out) as { verified: string }).verified, "identical");
  await reach(["export", "orders", "-o", path("killed-node.ndjson")], node.http);
  await assertSame(file, path("killed-node.ndjson"));
  await proxy.close();
  await node.kill("SIGKILL");
});

test("three partitions with keys get the same events, in the order of each key", async () => {
  const make = (node: NodeProcess) =>
    fetch(`${node.http}/topics/keyed`, {
      method: "PUT",
      headers: { "content-type": "application/json" },
      body: '{"partitions":3}',
    });
  await make(source);
  const client = await BatchClient.open(source.wsUrl);
  await fill(client, "keyed", { count: 20_000, payload: String, key: (n) => `k${n % 17}` });
  client.close();
  await reach(["export", "keyed", "-o", path("keyed.ndjson")], source.http);
  const node = await freshNode();
  await make(node);
  const { out } = await reach(["--json", "import", path("keyed.ndjson")], node.http);
  const { verified, reordered } = JSON.parse(out) as { verified: string; reordered: number };
  assert.equal([verified, reordered], ["same", 0]);
  await reach(["export", "keyed", "-o", path("keyed.back.ndjson")], node.http);
  const byKey = (file: string) => {
    const keys = new Map<string, string[]>();
    for (const line of linesOf(file)) {
      const { key, partition: _partition, offset: _offset, ...rest } = JSON.parse(line) as Record<string, unknown>;
      keys.set(key as string, [...(keys.get(key as string) ?? []), JSON.stringify(rest)]);
    }
    return new Map([...keys].sort());
  };
  assert.equal(byKey(path("keyed.back.ndjson")), byKey(path("keyed.ndjson")));
  await node.kill("SIGKILL");
});

test("an export of three partitions that was cut anywhere goes on to the same bytes", async () => {
  const whole = readFileSync(path("keyed.ndjson"));
  const { createdAt } = (await (await fetch(`${source.http}/topics/keyed`)).json()) as { createdAt: number };
  const file = path("cut.ndjson");
  // The first event of some partition may be far behind the first of another.
  for (const bytes of [1, 200, 12_345, 400_000, whole.length - 1, whole.length]) {
    const facts = {
      version: 1,
      topic: "keyed",
      createdAt,
      fromTs: null,
      toTs: null,
      since: null,
      begin: null,
      end: null,
    };
    writeFileSync(`${file}.part.json`, JSON.stringify(facts));
    writeFileSync(`${file}.part`, whole.subarray(0, bytes));
    await reach(["export", "keyed", "-o", file], source.http);
    await assertSame(file, path("keyed.ndjson"));
    rmSync(file);
  }
});

test("a file that does not match its checksum is refused before anything is published", async () => {
  const node = await freshNode();
  const bytes = readFileSync(path("odd.ndjson"));
  bytes[bytes.indexOf("boot")] = "B".charCodeAt(0);
  writeFileSync(path("broken.ndjson"), bytes);
  writeFileSync(path("broken.ndjson.sha256"), readFileSync(path("odd.ndjson.sha256")));
  const { code, err } = await runCli(["import", path("broken.ndjson")], { url: node.http });
  assert.is(code, 1);
  assert.match(err, /^narthex: .*broken\.ndjson does not match .*\.sha256, so nothing was imported: .*\n$/);
  assert.is((await fetch(`${node.http}/topics/odd`)).status, 404);
  await node.kill("SIGKILL");
});

test("a line that is no event is named, and what stands behind it waits until it is corrected", async () => {
  const node = await freshNode();
  const file = path("hand.ndjson");
  const lines = [
    '{"topic":"hand","payload":1}',
    '{"payload":2,"key":"k"}',
    '{"payload":3,"when":"now"}',
    '{"payload":4}',
  ];
  writeFileSync(file, lines.join("\n"));
  const { code, err } = await runCli(["import", file], { url: node.http });
  assert.is(code, 1);
  assert.match(err, /hand\.ndjson:3 has a member "when", which events do not have; nothing behind it was imported/);
  const stored = async () =>
    ((await (await fetch(`${node.http}/replay?topic=hand`)).json()) as { events: { payload: number }[] }).events.map(
      ({ payload }) => payload,
    );
  assert.equal(await stored(), [1, 2]);
  writeFileSync(file, lines.with(2, '{"payload":3}').join("\n"));
  await reach(["import", file], node.http);
  assert.equal(await stored(), [1, 2, 3, 4]);
  writeFileSync(file, lines.join("\n"));
  const skipped = await reach(["--json", "import", file, "--skip-bad", "--topic", "skipped"], node.http);
  assert.match(skipped.err, "hand.ndjson:3 has a member");
  const { events, skipped: count, verified } = JSON.parse(skipped.out) as Record<string, unknown>;
  assert.equal([events, count, verified], [3, 1, "same"]);
  const large = `{"topic":"hand","payload":"${"x".repeat(1_048_576)}"}`;
  writeFileSync(path("large.ndjson"), `${large}\n${lines[0]}\n`);
  const tooLarge = await runCli(["import", path("large.ndjson")], { url: node.http });
  assert.match(tooLarge.err, /large\.ndjson:1 payload has 1048578 bytes, the node takes 1048576 \(MAX_PAYLOAD\)/);
  assert.equal(await stored(), [1, 2, 3, 4]);
  await node.kill("SIGKILL");
});

test("a second import is refused, or stores what is not there, or makes a second copy", async () => {
  // The dedupe window is over at once: what is there is found in the log or not at all.
  const here = await startHere({ store: "memory", limits: { dedupeMs: 1, pruneEveryMs: 10 } });
  try {
    const idsIn = async () =>
      ((await (await fetch(`${here.http}/replay?topic=odd`)).json()) as { events: { id: string }[] }).events.map(
        ({ id }) => id,
      );
    const own = Array.from({ length: 6 }, (_, n) => `own.${n}`);
    // The first four, so that only the beginning is known.
    writeFileSync(path("few.ndjson"), `${linesOf(path("odd.ndjson")).slice(0, 4).join("\n")}\n`);
    await reach(["import", path("few.ndjson")], here.http);
    const file = path("odd.ndjson");
    const again = await runCli(["import", file], { url: here.http });
    assert.is(again.code, 1);
    assert.is(
      again.err,
      `narthex: odd has event own.0 of ${file} already: --skip-stored imports only what is not there, --new-ids makes a second copy\n`,
    );
    assert.equal(leftovers("odd.ndjson"), ["odd.ndjson.sha256"]);
    const piped = await runCli(["import", "-"], { url: here.http, stdin: readFileSync(file, "utf8") });
    assert.is(piped.code, 1);
    assert.equal(await idsIn(), own.slice(0, 4));
    const rest = await reach(["--json", "import", file, "--skip-stored"], here.http);
    const { stored_before: before, verified } = JSON.parse(rest.out) as Record<string, unknown>;
    assert.equal([before, verified], [4, "identical"]);
    assert.equal(await idsIn(), own);
    const none = await reach(["--json", "import", file, "--skip-stored"], here.http);
    assert.is((JSON.parse(none.out) as { stored_before: number }).stored_before, 6);
    const copy = await reach(["--json", "import", file, "--new-ids"], here.http);
    assert.is((JSON.parse(copy.out) as { verified: string }).verified, "same");
    const ids = await idsIn();
    assert.equal(ids.slice(0, 6), own);
    assert.equal(
      ids.slice(6).map((id) => id.replace(/^import:[0-9a-f]+:/, "")),
      ["0", "1", "2", "3", "4", "5"],
    );
  } finally {
    await here.node.close();
  }
});

test("an import that leaves out what is there does so also after it was killed", async () => {
  const here = await startHere({ store: "memory", limits: { dedupeMs: 1, pruneEveryMs: 10 } });
  const proxy = await proxyTo(() => here);
  try {
    const lines = linesOf(path("orders.ndjson"));
    writeFileSync(path("third.ndjson"), `${lines.filter((_, n) => n % 3 === 0).join("\n")}\n`);
    await reach(["import", path("third.ndjson"), "--no-verify"], here.http);
    const file = path("orders.ndjson");
    proxy.allow({ up: 3_000_000 });
    const cli = startCli(["import", file, "--skip-stored"], { url: proxy.url });
    await eventually(20_000, "some are imported", () => importedOf(file) > 0);
    const second = await runCli(["import", file, "--skip-stored"], { url: here.http });
    assert.is(second.code, 1);
    assert.is(second.err, `narthex: another import reads ${file} (process ${cli.child.pid})\n`);
    cli.child.kill("SIGKILL");
    await end(cli);
    proxy.allow();
    // Without the option, too: how it began is how it goes on.
    const { out } = await reach(["--json", "import", file], proxy.url);
    assert.is((JSON.parse(out) as { verified: string }).verified, "same");
    await reach(["export", "orders", "-o", path("skipped.ndjson")], here.http);
    const idsOf = (name: string) => linesOf(name).map((line) => (JSON.parse(line) as { id: string }).id);
    assert.equal(idsOf(path("skipped.ndjson")).sort(), idsOf(file).sort());
    assert.equal(leftovers("orders.ndjson"), ["orders.ndjson.sha256"]);
  } finally {
    await proxy.close();
    await here.node.close();
  }
});

test("where the topic's retention may have removed what is missed, it is said", async () => {
  const here = await startHere({ store: "memory", limits: { pruneEveryMs: 10 } });
  try {
    const made = await fetch(`${here.http}/topics/odd`, {
      method: "PUT",
      headers: { "content-type": "application/json" },
      body: '{"retention":{"bytes":1}}',
    });
    assert.ok(made.ok, await made.text());
    const { code, err } = await runCli(["import", path("odd.ndjson"), "--rate", "20"], { url: here.http });
    assert.is(code, 1);
    assert.match(
      err,
      /odd\.ndjson:1 differs: the event own\.0 is not stored; the retention of odd may have removed it/,
    );
    rmSync(path("odd.ndjson.import.json"));
  } finally {
    await here.node.close();
  }
});

test("an event that is not stored as it stands in the file is named", async () => {
  const node = await freshNode();
  const client = await BatchClient.open(node.wsUrl);
  const other = encodePack([{ payload: new TextEncoder().encode("7"), id: "own.3", key: 'k"0', ts: 5 }]);
  await client.publish(await client.handle("odd"), other);
  client.close();
  const { code, err } = await runCli(["import", path("odd.ndjson"), "--skip-stored"], { url: node.http });
  assert.is(code, 1);
  assert.match(err, /odd\.ndjson:4 differs: the event own\.3 is stored with other contents \(.*--new-ids\)\n$/);
  await reach(["import", path("odd.ndjson"), "--no-verify"], node.http);
  // All ids are there, and as many bytes: only one payload is another.
  await reach(["import", path("odd.ndjson"), "--topic", "twin", "--no-verify"], node.http);
  const twin = readFileSync(path("odd.ndjson"), "utf8").replaceAll('"topic":"odd"', '"topic":"twin"');
  writeFileSync(path("twin.ndjson"), twin.replace('"payload":1.0', '"payload":2.0'));
  const second = await runCli(["import", path("twin.ndjson"), "--skip-stored"], { url: node.http });
  assert.is(second.code, 1);
  assert.match(second.err, /twin\.ndjson:1 differs: the event own\.0 is stored with other contents/);
  await node.kill("SIGKILL");
});

test("more ids than the node remembers take as long as it takes to forget them, and it is said why", async () => {
  const here = await startHere({
    store: "memory",
    limits: { dedupeEntriesMax: 1500, dedupeMs: 2500, pruneEveryMs: 50 },
  });
  try {
    const file = path("crowded.ndjson");
    writeFileSync(file, `${linesOf(path("orders.ndjson")).slice(0, 4000).join("\n")}\n`);
    const { out, err } = await reach(["--json", "import", file], here.http);
    const { events, verified } = JSON.parse(out) as Record<string, unknown>;
    assert.equal([events, verified], [4000, "identical"]);
    assert.match(
      err,
      /^narthex: the node takes no more for now and is waited for: .* ids of the last two minutes .*\n$/,
    );
  } finally {
    await here.node.close();
  }
});

test("a pipe leads from one node into another", async () => {
  const node = await freshNode();
  const { out } = await reach(["export", "odd"], source.http);
  const { err } = await reach(["import", "-"], node.http, out);
  assert.match(err, "stdin cannot be read twice");
  assert.is((await reach(["export", "odd"], node.http)).out, out);
  // Into a topic that has events already, too.
  await reach(["import", "-", "--new-ids", "--no-verify"], node.http, out);
  const payloads = (await reach(["export", "odd"], node.http)).out.matchAll(/"payload":(.*)\}\n/g);
  const once = [...out.matchAll(/"payload":(.*)\}\n/g)].map((match) => match[1]);
  assert.equal(
    [...payloads].map((match) => match[1]),
    [...once, ...once],
  );
  await node.kill("SIGKILL");
});

test("what is wrong with a file or a state is one line with what to do", async () => {
  writeFileSync(path("empty.ndjson"), "\n");
  writeFileSync(path("void.ndjson"), "");
  writeFileSync(path("topicless.ndjson"), '{"payload":1}\n');
  writeFileSync(path("letters.ndjson"), '{"topic":"a.dlq.b","payload":1}\n');
  writeFileSync(path("half.ndjson"), '{"topic":"half","payload":1}\n');
  writeFileSync(path("half.ndjson.import.json"), "{");
  const refused: [string[], number, RegExp][] = [
    [["import", path("absent.ndjson")], 4, /absent\.ndjson does not exist/],
    [["import", folder.path], 2, /is not a file/],
    [["import", path("empty.ndjson")], 1, /has no events: there is nothing to import/],
    [["import", path("empty.ndjson"), "--topic", "e1"], 1, /has no events: there is nothing to import/],
    [["import", path("void.ndjson"), "--topic", "e1"], 1, /has no events: there is nothing to import/],
    [["import", ""], 2, /the name of the file is empty/],
    [["export", "odd", "-o", ""], 2, /-o is empty: give the name of a file/],
    [["export", "odd", "-o", path("nodir/x")], 4, /^narthex: \/[^ ]*\/nodir does not exist\n$/],
    [["export", "odd", "-o", path("void.ndjson/x")], 1, /void\.ndjson\/x cannot be written: a part of its path is not/],
    [["import", path("void.ndjson/x")], 1, /void\.ndjson\/x cannot be read: a part of its path is not a folder\n$/],
    [["import", path("odd.ndjson"), "--new-ids", "--skip-stored"], 2, /exclude each other/],
    [["import", path("topicless.ndjson")], 2, /names no topic: give --topic/],
    [["import", path("letters.ndjson")], 1, /is of a\.dlq\.b, where nobody can publish: give --topic/],
    [["import", path("half.ndjson")], 1, /half\.ndjson\.import\.json cannot be read: remove/],
    [["import", path("odd.ndjson"), "--topic", "no topic"], 2, /topic may have/],
    [["import", path("odd.ndjson"), "--rate", "0"], 2, /--rate is "0": allowed are/],
    [["import"], 2, /missing required argument 'file'/],
  ];
  for (const [args, exitCode, said] of refused) {
    const { code, err } = await runCli(args, { url: source.http });
    assert.match(err, said);
    assert.is(code, exitCode, args.join(" "));
    assert.is(err.trimEnd().split("\n").length, 1, err);
  }
  assert.equal([...leftovers("empty.ndjson"), ...leftovers("void.ndjson")], []);
  const unreachable = await runCli(["import", path("odd.ndjson")], { url: "http://127.0.0.1:1" });
  assert.is(unreachable.code, 3);
  assert.match(unreachable.err, /^narthex: no node answers at http:\/\/127\.0\.0\.1:1.*\n$/);
});

test("what answers is no node, or nothing does: one line, and no longer than was asked for", async () => {
  let answer: string | undefined = "<html>Bad Gateway</html>";
  let status = 502;
  const server = createServer((_, res) => {
    if (answer !== undefined) res.writeHead(status, { "content-type": "text/html" }).end(answer);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  try {
    const commands = [["export", "odd"], ["export", "odd", "-o", path("none.ndjson")], ["bench"]];
    for (status of [502, 200]) {
      for (const args of commands) {
        const { code, err } = await runCli(args, { url });
        assert.is(err, `narthex: what answers at ${url} is no Narthex node: check NARTHEX_URL or --url\n`);
        assert.is(code, 3, args.join(" "));
      }
    }
    answer = undefined;
    const startedAt = performance.now();
    const silent = await runCli(["export", "odd", "-o", path("none.ndjson"), "--retry-s", "1"], { url });
    assert.is(silent.code, 3);
    assert.is(silent.err, `narthex: no answer from ${url} within 1 s\n`);
    assert.ok(performance.now() - startedAt < 10_000);
    assert.equal(leftovers("none.ndjson"), []);
  } finally {
    server.closeAllConnections();
    server.close();
  }
});

test("rate limits of the node are waited out, and said once", async () => {
  const node = await freshNode({ CONN_RATE: "300/300" });
  const file = path("slow.ndjson");
  writeFileSync(file, linesOf(path("orders.ndjson")).slice(0, 1500).join("\n"));
  const { err, out } = await reach(["--json", "import", file], node.http);
  assert.is((JSON.parse(out) as { events: number }).events, 1500);
  assert.match(
    err,
    /^narthex: the node's rate limits hold this at about [\d,]+ events\/s: CONN_RATE and TOPIC_RATE.*\n$/,
  );
  await node.kill("SIGKILL");
});

test.run();
