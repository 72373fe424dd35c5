// The command line against a real node: every command for people and for programs, a reader that goes away, Ctrl-C, a terminal.

import { execFileSync, spawn } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { suite } from "uvu";
import * as assert from "uvu/assert";
import { type CliOptions, type CliResult, runCli, startCli } from "../support/cli-process.ts";
import { eventually, within } from "../support/deadline.ts";
import { dataFolder, type NodeProcess, startNode } from "../support/node-process.ts";

interface Stage {
  node: NodeProcess;
  data: { path: string; remove: () => void };
}

const test = suite<Stage>("command line");
const main = new URL("./main.js", import.meta.url).pathname;

test.before(async (stage) => {
  stage.data = dataFolder();
  stage.node = await startNode({ data: stage.data.path, env: { CONN_RATE: "off", TOPIC_RATE: "off" } });
});

test.after(async ({ node, data }) => {
  await node.kill("SIGKILL");
  data.remove();
});

async function cli({ node }: Stage, args: readonly string[], options: CliOptions = {}): Promise<CliResult> {
  return runCli(args, { url: node.http, ...options });
}

/** It went well, and this is what it printed. */
async function out(stage: Stage, args: readonly string[], options?: CliOptions): Promise<string> {
  const { code, out, err } = await cli(stage, args, options);
  assert.is(code, 0, `narthex ${args.join(" ")}: ${err}`);
  assert.not.match(out + err, "\u001b");
  return out;
}

async function json<T>(stage: Stage, args: readonly string[], options?: CliOptions): Promise<T> {
  return JSON.parse(await out(stage, [...args, "--json"], options)) as T;
}

function lines(text: string): string[] {
  return text.split("\n").filter((line) => line !== "");
}

function jsonLines<T = { id: string; payload: unknown }>(text: string): T[] {
  return lines(text).map((line) => JSON.parse(line) as T);
}

// --------------------------------------------------------------------------------------------------------------- publishing

test("pub prints the id of what it stored, or the whole event", async (stage) => {
  const id = (await out(stage, ["pub", "pubs", '{"n":1}', "--key", "k1", "--id", "first"])).trim();
  assert.is(id, "first");
  const stored = await json<Record<string, unknown>>(stage, [
    "pub",
    "pubs",
    "[2]",
    "--key",
    "k2",
    "--header",
    "source=test",
    "--header",
    "eq=a=b",
    "--tag",
    "eu",
    "--tag",
    "vip",
    "--ts",
    "2026-05-01T12:00:00Z",
  ]);
  assert.is(stored.durability, "fsync");
  const events = jsonLines<Record<string, unknown>>(await out(stage, ["replay", "pubs", "--json"]));
  assert.equal(events[0].payload, { n: 1 });
  const { id: secondId, partition, offset, ...second } = events[1];
  assert.equal(second, {
    ts: Date.parse("2026-05-01T12:00:00Z"),
    topic: "pubs",
    key: "k2",
    headers: { source: "test", eq: "a=b" },
    tags: ["eu", "vip"],
    payload: [2],
  });
  assert.equal([stored.id, stored.partition, stored.offset], [secondId, partition, offset]);
});

test("pub takes its payload from a pipe, as one, as lines or as text", async (stage) => {
  const payloads = async (topic: string) =>
    jsonLines(await out(stage, ["replay", topic, "--json"])).map((e) => e.payload);
  await out(stage, ["pub", "piped"], { stdin: '{\n  "n": 1\n}\n' });
  await out(stage, ["pub", "piped", "-"], { stdin: "-5" });
  await out(stage, ["pub", "piped", "-7"]);
  await out(stage, ["pub", "piped", "--text"], { stdin: "two\nlines\n" });
  await out(stage, ["pub", "piped", "--text", "it's text"]);
  assert.equal(await payloads("piped"), [{ n: 1 }, -5, -7, "two\nlines", "it's text"]);
  await out(stage, ["pub", "marked"], { stdin: "\ufeff1\n" });
  await out(stage, ["pub", "marked", "--lines"], { stdin: "\ufeff2\r\n3\r\n" });
  assert.equal(await payloads("marked"), [1, 2, 3], "the mark that begins a file is no part of it");
  const many = Array.from({ length: 2500 }, (_, n) => ({ n }));
  const ids = lines(
    await out(stage, ["pub", "lines", "--lines"], {
      stdin: `${many.map((one) => JSON.stringify(one)).join("\n")}\n\n`,
    }),
  );
  const events = jsonLines(await out(stage, ["replay", "lines", "--json"]));
  assert.equal(
    events.map(({ payload }) => payload),
    many,
  );
  assert.equal(
    events.map(({ id }) => id),
    ids,
    "ids come in the order of the lines",
  );
  assert.is(lines(await out(stage, ["pub", "counted", "1", "--count", "3"])).length, 3);
  assert.equal(await payloads("counted"), [1, 1, 1]);
});

test("a line that is not JSON ends pub and says which, and what was stored", async (stage) => {
  const { code, out, err } = await cli(stage, ["pub", "halves", "--lines"], { stdin: "1\n2\n{oops}\n4\n" });
  assert.is(code, 2);
  assert.is(lines(out).length, 2);
  assert.match(err, /^narthex: line 3 is not JSON.*; 2 events were stored\n$/);
});

// ---------------------------------------------------------------------------------------------------------------- consuming

test("sub acks what it prints: a second member of the group gets the rest", async (stage) => {
  await out(stage, ["pub", "work", "--lines"], { stdin: "1\n2\n3\n4\n5\n" });
  const first = await out(stage, ["sub", "work", "--group", "g", "--from", "earliest", "--max", "2"]);
  assert.match(lines(first)[0], /^\d{4}-.*Z {2}work {2}- {2}1$/);
  assert.is(lines(first).length, 2);
  const second = jsonLines<{ payload: number; attempt: number }>(
    await out(stage, ["sub", "work", "-g", "g", "--max", "3", "--json"]),
  );
  assert.equal(
    second.map(({ payload, attempt }) => [payload, attempt]),
    [
      [3, 1],
      [4, 1],
      [5, 1],
    ],
    "nothing was taken that was not printed",
  );
  const lag = (await (await fetch(`${stage.node.http}/lag?topic=work&group=g`)).json()) as { lag: number };
  assert.is(lag.lag, 0);
});

test("sub --max takes exactly so many, also where many are under way", async (stage) => {
  const all = Array.from({ length: 400 }, (_, n) => n);
  await out(stage, ["pub", "exact", "--lines"], { stdin: all.join("\n") });
  const first = jsonLines(
    await out(stage, ["sub", "exact", "-g", "g", "--from", "earliest", "--max", "250", "--json"]),
  );
  const rest = jsonLines<{ payload: number; attempt: number }>(
    await out(stage, ["sub", "exact", "-g", "g", "--max", "150", "--json"]),
  );
  assert.equal(
    [...first, ...rest].map(({ payload }) => payload),
    all,
  );
  assert.ok(
    rest.every(({ attempt }) => attempt === 1),
    "no attempt was spent on what was not printed",
  );
});

test("sub --no-ack leaves everything to be delivered again", async (stage) => {
  await out(stage, ["pub", "peek", '"a"']);
  await out(stage, ["sub", "peek", "-g", "g", "--from", "earliest", "--max", "1", "--no-ack"]);
  const [again] = jsonLines<{ payload: string; attempt: number }>(
    await out(stage, ["sub", "peek", "-g", "g", "--max", "1", "--json"]),
  );
  assert.equal([again.payload, again.attempt], ["a", 2]);
});

test("sub --exec is a work queue: the payload on stdin, exit code 0 acks, another nacks with it as the reason", async (stage) => {
  await out(stage, ["pub", "jobs", "--lines", "--key", "k"], { stdin: '{"n":1}\n{"n":2}\n' });
  const script =
    'read p; echo "$NARTHEX_TOPIC $NARTHEX_KEY $NARTHEX_ATTEMPT $p"; test "$NARTHEX_ATTEMPT" = 2 || exit 3';
  const {
    code,
    out: text,
    err,
  } = await cli(stage, [
    ...["sub", "jobs", "-g", "g", "--from", "earliest", "--max", "4", "--exec", script, "--max-attempts", "3"],
  ]);
  assert.is(code, 0, err);
  assert.equal(lines(text).sort(), ['jobs k 1 {"n":1}', 'jobs k 1 {"n":2}', 'jobs k 2 {"n":1}', 'jobs k 2 {"n":2}']);
  assert.match(err, /exit code 3 \(attempt 1 of 3\)/);
  const lag = (await (await fetch(`${stage.node.http}/lag?topic=jobs&group=g`)).json()) as { lag: number };
  assert.is(lag.lag, 0);
  await out(stage, ["pub", "jobs", "3"]);
  const reported = jsonLines<{ ok: boolean; reason?: string }>(
    await out(stage, ["sub", "jobs", "-g", "g", "--max", "1", "--exec", "echo noise; exit 7", "--json"]),
  );
  assert.equal(
    reported.map(({ ok, reason }) => [ok, reason]),
    [[false, "exit code 7"]],
  );
});

test("Ctrl-C lets a command end, acks it and leaves; a second one does not wait", async (stage) => {
  await out(stage, ["pub", "slow", "1"]);
  const gate = join(stage.data.path, "gate");
  const wait = `echo begun; until test -e ${gate}; do sleep 0.02; done; echo ended`;
  const sub = startCli(["sub", "slow", "-g", "g", "--from", "earliest", "--exec", wait], { url: stage.node.http });
  await sub.printed(/begun/);
  sub.child.kill("SIGINT");
  await sub.noted(/waiting for what runs/);
  writeFileSync(gate, "");
  const { code, out: text } = await within(10_000, "sub leaves", sub.ended);
  assert.is(code, 0);
  assert.match(text, "ended");
  const lag = (await (await fetch(`${stage.node.http}/lag?topic=slow&group=g`)).json()) as { lag: number };
  assert.is(lag.lag, 0, "the one that ended is acked");

  await out(stage, ["pub", "slow", "2"]);
  const hang = startCli(["sub", "slow", "-g", "g", "--exec", "echo begun $$; sleep 60"], { url: stage.node.http });
  const [, pid] = await hang.printed(/begun (\d+)/);
  hang.child.kill("SIGINT");
  await hang.noted(/waiting for what runs/);
  hang.child.kill("SIGINT");
  assert.is((await within(5000, "it ends at once", hang.ended)).code, 130);
  await eventually(5000, "the command is ended too", () => {
    try {
      process.kill(Number(pid), 0);
      return false;
    } catch (error) {
      return (error as NodeJS.ErrnoException).code === "ESRCH";
    }
  });
});

test("tail shows what comes, filtered, and no group is left behind", async (stage) => {
  await out(stage, ["pub", "live", '"before"', "--key", "customer-0"]);
  const tail = startCli(["tail", "live", "--key-prefix", "customer-", "--grep", '^"[a-z]', "--json"], {
    url: stage.node.http,
  });
  await eventually(10_000, "tail is subscribed", async () => {
    const { body } = {
      body: (await (await fetch(`${stage.node.http}/cursors?topic=live`)).json()) as { cursors: { members: number }[] },
    };
    return body.cursors.some(({ members }) => members === 1);
  });
  await out(stage, ["pub", "live", '"seen"', "--key", "customer-1"]);
  await out(stage, ["pub", "live", '"Unseen"', "--key", "customer-1"]);
  await out(stage, ["pub", "live", '"other"', "--key", "supplier-1"]);
  await out(stage, ["pub", "live", '"last"', "--key", "customer-2"]);
  await tail.printed(/last/);
  tail.child.kill("SIGINT");
  const { code, out: text, err } = await within(10_000, "tail leaves", tail.ended);
  assert.is(code, 0, "ending it is how it ends");
  assert.equal(
    jsonLines(text).map(({ payload }) => payload),
    ["seen", "last"],
  );
  assert.is(err, "");
  await eventually(10_000, "its group is gone", async () => {
    const { cursors } = (await (await fetch(`${stage.node.http}/cursors?topic=live`)).json()) as { cursors: unknown[] };
    return cursors.length === 0;
  });
});

test("tail --since begins earlier, over several topics, by tag and header", async (stage) => {
  for (const topic of ["north", "south"]) {
    await out(stage, ["pub", topic, `"${topic}"`, "--tag", "a", "--header", "h=1"]);
    await out(stage, ["pub", topic, '"untagged"']);
  }
  const args = ["tail", "north", "south", "--since", "1h", "--tag", "a", "--header", "h=1", "--max", "2"];
  const text = await out(stage, args);
  const shown = lines(text).map((line) => line.replace(/^\S+ +/, ""));
  assert.equal(shown.sort(), ['north  -  "north"', 'south  -  "south"']);
});

// ------------------------------------------------------------------------------------------------------------------ looking

test("replay reads the log in order, from where and how much it is told", async (stage) => {
  const body = Array.from({ length: 30 }, (_, n) => n).join("\n");
  await out(stage, ["topics", "create", "log", "--partitions", "3"]);
  await out(stage, ["pub", "log", "--lines"], { stdin: body });
  await out(stage, ["pub", "log", "30", "--id", "marked"]);
  await out(stage, ["pub", "log", "31"]);
  const replayed = async (...args: string[]) =>
    jsonLines<{ payload: number }>(await out(stage, ["replay", "log", "--json", ...args])).map(
      ({ payload }) => payload,
    );
  assert.equal(
    (await replayed()).sort((a, b) => a - b),
    Array.from({ length: 32 }, (_, n) => n),
  );
  assert.is((await replayed("--limit", "7")).length, 7);
  assert.equal(
    (await replayed("--id", "marked")).filter((n) => n > 30),
    [31],
  );
  assert.equal(await replayed("--from", "latest"), []);
  assert.equal(await replayed("--until", "1h"), []);
  assert.is((await replayed("--since", "1h")).length, 32);
  assert.match(await out(stage, ["replay", "log", "--limit", "1"]), /^\d{4}-\S+Z {2}log {2}- {2}\d+\n$/);
});

test("a topic without events has no last event", async (stage) => {
  await out(stage, ["topics", "create", "bare"]);
  assert.match(await out(stage, ["topics"]), /^bare +1 +0 +0 B +0 +-$/m);
  assert.match(await out(stage, ["topics", "bare"]), /^ *0 +0 +0 +0 B +-$/m);
  const { offsets } = await json<{ offsets: object[] }>(stage, ["topics", "bare"]);
  assert.equal(offsets, [{ partition: 0, start: 0, end: 0, bytes: 0 }]);
});

test("topics lists, shows, makes and deletes", async (stage) => {
  const made = await json<{ partitions: number; created: boolean }>(stage, [
    ...[
      "topics",
      "create",
      "made",
      "--partitions",
      "2",
      "--retention-age",
      "7d",
      "--retention-bytes",
      "10MB",
      "--rate",
      "100/50",
    ],
  ]);
  assert.equal([made.partitions, made.created], [2, true]);
  await out(stage, ["pub", "made", "1"]);
  assert.match(await out(stage, ["topics"]), /^made +2 +1 +\d+ B +0 +\d{4}-/m);
  const listed = await json<{ topic: string }[]>(stage, ["topics"]);
  assert.ok(listed.some(({ topic }) => topic === "made"));
  const shown = await out(stage, ["topics", "made"]);
  for (const part of ["1 event, ", "for 7d and up to 10 MB", "rate 100/50", "no groups"]) assert.match(shown, part);
  const details = await json<{ retention: object }>(stage, ["topics", "made"]);
  assert.equal(details.retention, { ageMs: 604_800_000, bytes: 10_000_000 });
  assert.match(await out(stage, ["topics", "create", "made", "--rate", "off"]), /was there.*kept for ever; rate off/);
  assert.match(await out(stage, ["topics", "delete", "made", "--yes"]), "made was deleted");
  assert.is((await cli(stage, ["topics", "made"])).code, 4);
});

test("groups shows lag, what is in flight, the oldest lease and members, and deletes", async (stage) => {
  await out(stage, ["pub", "grouped", "--lines"], { stdin: "1\n2\n3\n" });
  assert.match(await out(stage, ["groups", "grouped"]), "no groups");
  const sub = startCli(["sub", "grouped", "-g", "g", "--from", "earliest", "--exec", "echo begun; sleep 60"], {
    url: stage.node.http,
  });
  await sub.printed(/begun/);
  assert.match(await out(stage, ["groups", "grouped"]), /^g +3 +1 +0 +[\d.]+m?s +1 +-$/m);
  const { groups } = await json<{ groups: { group: string; lag: number; members: number; oldestLeaseMs: number }[] }>(
    stage,
    ["groups", "grouped"],
  );
  assert.equal([groups[0].group, groups[0].lag, groups[0].members], ["g", 3, 1]);
  assert.ok(groups[0].oldestLeaseMs > 0);
  assert.match(await out(stage, ["explain", "grouped", "g"]), /^g gets nothing new of grouped: .*\n$/);
  const why = await json<{ cause: string; lag: number }>(stage, ["explain", "grouped", "g"]);
  assert.equal([why.cause, why.lag], ["window_full", 3]);
  sub.child.kill("SIGINT");
  await sub.noted(/waiting/);
  sub.child.kill("SIGINT");
  await sub.ended;
  const watch = startCli(["groups", "grouped", "--watch", "--json"], { url: stage.node.http });
  await watch.printed(/\n.*\n/);
  watch.child.kill("SIGINT");
  assert.is((await within(5000, "watch ends", watch.ended)).code, 0);
  assert.is((await cli(stage, ["groups", "delete", "grouped", "g"])).code, 2, "nobody to ask");
  assert.match(await out(stage, ["groups", "delete", "grouped", "g", "--yes"]), "the group g of grouped was deleted");
  assert.is((await cli(stage, ["groups", "delete", "grouped", "g", "--yes"])).code, 4);
});

test("seek says what it does, needs --yes in a script, and moves the group", async (stage) => {
  await out(stage, ["pub", "sought", "--lines"], { stdin: "1\n2\n3\n" });
  await out(stage, ["sub", "sought", "-g", "g", "--from", "earliest", "--max", "3"]);
  const refused = await cli(stage, ["seek", "sought", "g", "earliest"]);
  assert.is(refused.code, 2);
  assert.match(
    refused.err,
    /^narthex: g of sought goes from 0:3 \(lag 0\) to the oldest stored event: 3 settled events come again\. Add --yes to do it\n$/,
  );
  const { code, out: text, err } = await cli(stage, ["seek", "sought", "g", "0:1", "--yes"]);
  assert.is(code, 0);
  assert.match(text, "g of sought stands at 0:1 now, lag 2");
  assert.match(err, "2 offsets back");
  const [next] = jsonLines(await out(stage, ["sub", "sought", "-g", "g", "--max", "1", "--json"]));
  assert.is(next.payload, 2);
  const moved = await json(stage, ["seek", "sought", "g", "latest", "--yes"]);
  assert.equal(moved, {
    topic: "sought",
    group: "g",
    from: { position: "0:2", lag: 1 },
    to: { position: "0:3", lag: 0 },
  });
  assert.is((await cli(stage, ["seek", "sought", "nobody", "latest", "--yes"])).code, 4);
  assert.is((await cli(stage, ["seek", "sought", "g", "--id", "nothing", "--yes"])).code, 4);
});

test("history shows who held an event and how it ended", async (stage) => {
  await out(stage, ["pub", "past", "1", "--id", "one"]);
  await cli(stage, ["sub", "past", "-g", "g", "--from", "earliest", "--max", "1", "--exec", "exit 9"]);
  await out(stage, ["sub", "past", "-g", "g", "--max", "1"]);
  const text = await out(stage, ["history", "past", "one"]);
  assert.match(text, /^one at 0:0 of past, /);
  assert.match(text, /^g +acked +1 .* nacked +exit code 9$/m);
  const { groups } = await json<{ groups: { holders: { outcome: string }[] }[] }>(stage, ["history", "past", "one"]);
  assert.equal(
    groups[0].holders.map(({ outcome }) => outcome),
    ["nacked", "acked"],
  );
});

test("token makes a token of 32 bytes, another each time", async (stage) => {
  const first = (await out(stage, ["token"])).trim();
  const { token: second } = await json<{ token: string }>(stage, ["token"]);
  for (const token of [first, second]) assert.is(Buffer.from(token, "base64url").length, 32);
  assert.is.not(first, second);
});

test("help lists the commands, of each command its options, and start its flags", async (stage) => {
  const help = await out(stage, ["--help"]);
  for (const command of "start pub sub tail replay topics groups seek explain history token".split(" ")) {
    assert.match(help, new RegExp(`^  ${command} `, "m"));
  }
  assert.match(help, "narthex start --help");
  assert.match(help, "--version");
  assert.match(await out(stage, ["pub", "--help"]), "Usage: narthex pub [options] <topic> [payload]");
  assert.match(await out(stage, ["help", "topics"]), "narthex topics create");
  assert.match(await out(stage, ["topics", "create", "--help"]), "--retention-age");
  assert.match(await out(stage, ["start", "--help"]), "--ws-port");
  assert.match(await out(stage, ["help", "start"]), "--ws-port");
  assert.match(await out(stage, ["--version"]), /^\d+\.\d+\.\d+/);
  assert.ok(Array.isArray(JSON.parse(await out(stage, ["--json", "topics", "--quiet"]))));
});

// ---------------------------------------------------------------------------------------------------------- pipes and signals

test("a reader that goes away ends it quietly", async (stage) => {
  await out(stage, ["pub", "flood", '"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"', "--count", "5000"]);
  const env = { ...process.env, NARTHEX_URL: stage.node.http };
  const shell = (command: string) =>
    execFileSync("bash", ["-c", `${command} | head -1; echo "exit \${PIPESTATUS[0]}"`], { env, encoding: "utf8" });
  assert.match(shell(`${process.execPath} ${main} replay flood 2>&1`), /^\S+Z {2}flood .*\nexit 0\n$/);
  assert.match(
    shell(`${process.execPath} ${main} sub flood -g g --from earliest 2>&1`),
    /^\S+Z {2}flood .*\nexit 0\n$/,
  );
});

test("a reader that goes away does not end what is being published", async (stage) => {
  const env = { ...process.env, NARTHEX_URL: stage.node.http };
  const command = `seq 5000 | ${process.execPath} ${main} pub unread --lines | head -1; echo "exit \${PIPESTATUS[1]}"`;
  const [id, exit] = lines(execFileSync("bash", ["-c", `(${command}) 2>&1`], { env, encoding: "utf8" }));
  assert.is(exit, "exit 0");
  const events = jsonLines(await out(stage, ["replay", "unread", "--json"]));
  assert.is(events[0].id, id);
  assert.equal(
    events.map(({ payload }) => payload),
    Array.from({ length: 5000 }, (_, n) => n + 1),
  );
});

test("SIGINT cuts what is being published short: what was sent is stored, and the exit code is 130", async (stage) => {
  const pub = startCli(["pub", "typed", "--lines"], { url: stage.node.http, stdin: null });
  pub.child.stdin?.write("1\n2");
  const [id] = await pub.printed(/^\S+/);
  pub.child.kill("SIGINT");
  const { code, err } = await within(5000, "pub ends", pub.ended);
  assert.is(code, 130);
  assert.is(err, "");
  const events = jsonLines(await out(stage, ["replay", "typed", "--json"]));
  assert.equal(
    events.map(({ id, payload }) => [id, payload]),
    [[id, 1]],
  );
});

test("a refused line ends pub while its input is still open", async (stage) => {
  const pub = startCli(["pub", "refused", "--lines"], { url: stage.node.http, stdin: null });
  pub.child.stdin?.write("1\n");
  await pub.printed(/^\S+\n/);
  pub.child.stdin?.write(`"${"x".repeat(1_100_000)}"\n`);
  const { code, err } = await within(10_000, "pub ends", pub.ended);
  assert.is(code, 1);
  assert.match(err, /^narthex: line 2: .*\(too_large\); 1 event was stored\n$/);
});

test("sub goes on when the node comes back, and says so on stderr", async () => {
  const data = dataFolder();
  const first = await startNode({ data: data.path });
  const sub = startCli(["sub", "back", "-g", "g", "--from", "earliest", "--json"], { url: first.http });
  await runCli(["pub", "back", "1"], { url: first.http });
  await sub.printed(/"payload":1/);
  await first.kill("SIGKILL");
  await sub.noted(/the connection was lost/);
  const second = await startNode({ data: data.path, env: { WS_PORT: String(first.ports.ws) } });
  await runCli(["pub", "back", "2"], { url: second.http });
  await sub.printed(/"payload":2/);
  assert.match(sub.err(), "connected again");
  sub.child.kill("SIGTERM");
  assert.is((await within(10_000, "sub ends", sub.ended)).code, 0);
  await second.kill("SIGKILL");
  data.remove();
});

/** Runs it on a terminal that util-linux makes; resolves with what that shows. `answer` is typed when `prompt` has come. */
function onTerminal(
  { node }: Stage,
  args: string,
  { env = {}, prompt = "", answer = "" }: { env?: Record<string, string>; prompt?: string; answer?: string } = {},
): Promise<string> {
  const shown = new Promise<string>((resolve, reject) => {
    const child = spawn("script", ["-qec", `${process.execPath} ${main} ${args}`, "/dev/null"], {
      env: { PATH: process.env.PATH ?? "", TERM: "xterm", NARTHEX_URL: node.http, ...env },
      stdio: ["pipe", "pipe", "inherit"],
    });
    let text = "";
    let asked = prompt === "";
    child.stdout.on("data", (chunk) => {
      text += chunk;
      if (asked || !text.includes(prompt)) return;
      asked = true;
      child.stdin.write(answer);
    });
    child.on("error", reject);
    child.on("close", () => resolve(text));
  });
  return within(20_000, `narthex ${args} on a terminal`, shown);
}

test("on a terminal there are colours, unless NO_COLOR", async (stage) => {
  await out(stage, ["pub", "bright", '{"n":1}']);
  assert.match(await onTerminal(stage, "replay bright"), "\u001b[33m1\u001b[0m");
  const plain = await onTerminal(stage, "replay bright", { env: { NO_COLOR: "1" } });
  assert.match(plain, '{ "n": 1 }');
  assert.not.match(plain, "\u001b");
  assert.match(await onTerminal(stage, "replay bright --json"), /^\{"id":.*"payload":\{"n":1\}\}\r\n$/);
});

test("on a terminal it asks before it deletes, and no means no", async (stage) => {
  await out(stage, ["pub", "dear", "1"]);
  const prompt = "dear with 1 event and 0 groups will be deleted for good. Go on? [y/N]";
  assert.match(await onTerminal(stage, "topics delete dear", { prompt, answer: "n\n" }), "narthex: nothing was done");
  assert.match(await onTerminal(stage, "topics delete dear", { prompt, answer: "\u0003" }), "Go on?");
  assert.is((await cli(stage, ["topics", "dear"])).code, 0);
  assert.match(await onTerminal(stage, "topics delete dear", { prompt, answer: "y\n" }), "dear was deleted");
  assert.is((await cli(stage, ["topics", "dear"])).code, 4);
});

test("on a terminal groups --watch draws until Ctrl-C", async (stage) => {
  await out(stage, ["pub", "watched", "1"]);
  await out(stage, ["sub", "watched", "-g", "g", "--from", "earliest", "--max", "1"]);
  const text = await onTerminal(stage, "groups watched --watch", { prompt: "settled up to", answer: "\u0003" });
  assert.match(text, "\u001b[H");
  assert.match(text, /g +0 +0 +0 +- +0 +\d{4}-/);
});

test("narthex start takes the flags that narthex alone takes", async () => {
  const data = dataFolder();
  const node = await startNode({ data: data.path, args: ["start", "--conn-rate", "7/3"] });
  assert.match(node.out(), "conn_rate=7/3");
  assert.is(await node.kill("SIGTERM"), 0);
  data.remove();
});

test.run();
