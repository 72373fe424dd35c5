// Dead letters from the command line: found, looked at, and published again once and never twice.

import { test } from "uvu";
import * as assert from "uvu/assert";
import { runCli } from "../support/cli-process.ts";
import { eventually } from "../support/deadline.ts";
import { type NodeHere, startHere } from "../support/node-here.ts";
import { PlainClient } from "../support/plain-client.ts";

let here: NodeHere;

interface Stored {
  readonly id: string;
  readonly key?: string;
  readonly headers?: Record<string, string>;
  readonly tags?: string[];
  readonly caused_by?: string[];
  readonly payload: unknown;
}

async function stored(topic: string): Promise<Stored[]> {
  const answer = await fetch(`${here.http}/replay?topic=${topic}`);
  return answer.status === 404 ? [] : ((await answer.json()) as { events: Stored[] }).events;
}

async function cli(...args: string[]): Promise<string> {
  const { code, out, err } = await runCli(args, { url: here.http });
  assert.is(code, 0, err);
  return out;
}

const json = async (...args: string[]) => JSON.parse(await cli("--json", ...args)) as Record<string, unknown>;

/** Six orders, each of which billing refuses for good; audit takes them. */
async function makeDeadLetters(): Promise<void> {
  const client = await PlainClient.open(here.ws);
  for (let n = 0; n < 6; n++) {
    await client.publish(
      "orders",
      { n, amount: 1.5 },
      {
        id: `order:${n}`,
        key: `customer-${n % 2}`,
        headers: { traceparent: `00-${n}` },
        tags: ["eu"],
      },
    );
  }
  await client.subscribe("orders", "billing", { from: "earliest", maxAttempts: 1 });
  for (const event of await client.nextMany(6)) {
    const { n } = event.event.payload as { n: number };
    await client.nack(event, { reason: n < 4 ? "Timeout of the bank" : "no such customer" });
  }
  await eventually(5000, "all are dead letters", async () => (await stored("orders.dlq.billing")).length === 6);
  await client.close();
}

test.before(async () => {
  // The dedupe window is over at once: what was redriven before is found in the log or not at all.
  here = await startHere({ store: "memory", limits: { dedupeMs: 1, pruneEveryMs: 10 } });
  await makeDeadLetters();
});

test.after(() => here.node.close());

test("dlq list names the groups that have dead letters", async () => {
  const [row, ...others] = JSON.parse(await cli("--json", "dlq", "list")) as Record<string, unknown>[];
  assert.equal(others, []);
  assert.equal([row.topic, row.source, row.group, row.events], ["orders.dlq.billing", "orders", "billing", 6]);
  assert.ok((row.oldest as number) > 1_700_000_000_000 && (row.newest as number) >= (row.oldest as number));
  const [head, line] = (await cli("dlq", "list", "orders")).split("\n");
  assert.match(head, /^topic +group +events +oldest +newest$/);
  assert.match(line, /^orders +billing +6 +\d{4}-\d\d-\d\dT.*Z +\d{4}-/);
  const none = await runCli(["dlq", "list", "payments"], { url: here.http });
  assert.equal([none.code, none.out], [0, ""]);
  assert.match(none.err, "no group has dead letters on payments");
});

test("dlq show gives what is known of each, and chooses", async () => {
  const letters = (await stored("orders.dlq.billing")).map(({ id }) => id);
  const shown = (await cli("--json", "dlq", "show", "orders", "billing")).trimEnd().split("\n");
  assert.equal(
    shown.map((line) => {
      const { ts, ...rest } = JSON.parse(line) as Record<string, unknown>;
      assert.ok(Number.isInteger(ts));
      return rest;
    }),
    letters.map((id, n) => ({
      id,
      topic: "orders",
      group: "billing",
      event_id: `order:${n}`,
      attempts: 1,
      reason: n < 4 ? "Timeout of the bank" : "no such customer",
      key: `customer-${n % 2}`,
      tags: ["eu"],
      headers: { traceparent: `00-${n}` },
      payload: { n, amount: 1.5 },
    })),
  );
  const idsOf = async (...args: string[]) =>
    (await cli("--json", "dlq", "show", "orders", "billing", ...args))
      .trimEnd()
      .split("\n")
      .filter((line) => line !== "")
      .map((line) => (JSON.parse(line) as { event_id: string }).event_id);
  assert.equal(await idsOf("--reason", "timeout", "--key", "customer-1"), ["order:1", "order:3"]);
  assert.equal(await idsOf("--limit", "2"), ["order:0", "order:1"]);
  assert.equal(await idsOf("--since", "1h", "--reason", "customer"), ["order:4", "order:5"]);
  assert.equal(await idsOf("--since", "2100-01-01"), []);
  const table = await cli("dlq", "show", "orders", "billing", "--key", "customer-0", "--limit", "1");
  assert.match(
    table,
    /^id +dead since +attempts +reason +key +payload\n.* 1 +Timeout of the bank +customer-0 +\{"n":0,"amount":1.5\}\n$/,
  );
});

test("a dry run says what would happen and to whom, and does nothing", async () => {
  const out = await cli("dlq", "redrive", "orders", "billing", "--reason", "timeout", "--dry-run");
  assert.is(out, "would redrive 4 events to orders\nnot only billing: all groups there would get them: billing\n");
  assert.is((await stored("orders")).length, 6);
});

test("redriving publishes each once more under an id of its own, and a second time changes nothing", async () => {
  const letters = await stored("orders.dlq.billing");
  const first = await json("dlq", "redrive", "orders", "billing", "--reason", "timeout", "--limit", "3");
  assert.equal([first.redriven, first.redriven_before, first.to], [3, 0, ["orders"]]);
  const again = (await stored("orders")).slice(6);
  assert.equal(
    again.map(({ id, key, headers, tags, caused_by: causes, payload }) => ({
      id,
      key,
      headers,
      tags,
      causes,
      payload,
    })),
    [0, 1, 2].map((n) => ({
      id: `redrive:${letters[n].id}`,
      key: `customer-${n % 2}`,
      headers: { traceparent: `00-${n}` },
      tags: ["eu"],
      causes: [letters[n].id],
      payload: { n, amount: 1.5 },
    })),
  );
  const second = await json("dlq", "redrive", "orders", "billing", "--reason", "timeout");
  assert.equal([second.matched, second.redriven, second.redriven_before], [4, 1, 3]);
  const third = await cli("dlq", "redrive", "orders", "billing", "--reason", "timeout");
  assert.is(third, "redrove 0 events; 4 of 4 were redriven before and are left alone\n");
  const dry = await cli("dlq", "redrive", "orders", "billing", "--dry-run");
  assert.match(dry, /^would redrive 2 events to orders; 4 of 6 were redriven before and are left alone\n/);
  assert.equal(
    (await stored("orders")).slice(6).map(({ id }) => id),
    letters.slice(0, 4).map(({ id }) => `redrive:${id}`),
  );
});

test("one is redriven by its id, and to where it is wanted", async () => {
  const letters = await stored("orders.dlq.billing");
  const { redriven } = await json(
    "dlq",
    "redrive",
    "orders",
    "billing",
    "--id",
    "order:5",
    "--id",
    letters[4].id,
    "--to",
    "repair",
    "--rate",
    "100",
  );
  assert.is(redriven, 2);
  assert.equal(
    (await stored("repair")).map(({ id, payload }) => [id, (payload as { n: number }).n]),
    [
      [`redrive:${letters[4].id}`, 4],
      [`redrive:${letters[5].id}`, 5],
    ],
  );
});

test("an id that no dead letter has is said, also beside one that was found", async () => {
  const before = (await stored("repair")).map(({ id }) => id);
  const one = await runCli(["dlq", "redrive", "orders", "billing", "--id", "nosuch", "--to", "repair"], {
    url: here.http,
  });
  assert.is(one.code, 4);
  assert.is(one.err, "narthex: the group billing has no dead letter nosuch on orders\n");
  assert.equal(
    (await stored("repair")).map(({ id }) => id),
    before,
  );
  const args = ["dlq", "redrive", "orders", "billing", "--id", "order:0", "--id", "nosuch", "--to", "repair"];
  const both = await runCli(args, { url: here.http });
  assert.is(both.code, 4);
  assert.is(both.out, "redrove 1 event to repair\n");
  assert.match(both.err, "no dead letter nosuch on orders");
});

test("a topic that was deleted is made anew only if that is asked for", async () => {
  const client = await PlainClient.open(here.ws);
  await client.publish("gone", { n: 1 }, { id: "gone:1" });
  await client.subscribe("gone", "billing", { from: "earliest", maxAttempts: 1 });
  for (const event of await client.nextMany(1)) await client.nack(event, { reason: "no" });
  await eventually(5000, "it is a dead letter", async () => (await stored("gone.dlq.billing")).length === 1);
  await client.close();
  assert.is((await fetch(`${here.http}/topics/gone`, { method: "DELETE" })).ok, true);
  const exists = async () => (await fetch(`${here.http}/topics/gone`)).status === 200;
  for (const more of [[], ["--dry-run"]]) {
    const { code, err } = await runCli(["dlq", "redrive", "gone", "billing", ...more], { url: here.http });
    assert.is(code, 4);
    assert.is(
      err,
      "narthex: gone does not exist any more: --create makes it anew, --to publishes them to another topic\n",
    );
  }
  assert.not(await exists());
  assert.is(await cli("dlq", "redrive", "gone", "billing", "--create"), "redrove 1 event to gone\n");
  const [letter] = await stored("gone.dlq.billing");
  assert.equal(
    (await stored("gone")).map(({ id }) => id),
    [`redrive:${letter.id}`],
  );
});

test("what is typed wrong is one line with what to do", async () => {
  const refused: [string[], number, RegExp][] = [
    [["dlq", "show", "orders", "audit"], 4, /the group audit has no dead letters on orders: see narthex dlq list/],
    [["dlq", "redrive", "nothing", "billing"], 4, /the group billing has no dead letters on nothing/],
    [["dlq", "redrive", "orders", "billing", "--to", "a.dlq.b"], 2, /written by the node alone/],
    [["dlq", "redrive", "orders", "billing", "--since", "soon"], 2, /--since is "soon": allowed are/],
    [["dlq", "show", "orders"], 2, /missing required argument 'group'/],
    [["dlq", "redrive", "orders", "billing", "--limit", "0"], 2, /--limit is "0"/],
    [["dlq", "shwo"], 2, /unknown command 'shwo'/],
  ];
  for (const [args, exitCode, said] of refused) {
    const { code, err } = await runCli(args, { url: here.http });
    assert.match(err, said);
    assert.is(code, exitCode, args.join(" "));
    assert.is(err.trimEnd().split("\n").length, 1, err);
  }
  const { out } = await runCli(["dlq", "redrive", "--help"]);
  assert.match(out.replace(/\s+/g, " "), "ALL groups of the topic get them, not only the one that failed");
});

test.run();
