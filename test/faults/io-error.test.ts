// A disk that fails: writes, reads, opening, the sync of a file and of a folder; and one that is slow. What a failed fdatasync had
// written is gone in these tests, as on Linux, so that whoever takes a second one for success loses data.

import { test } from "uvu";
import * as assert from "uvu/assert";
import { eventually } from "../support/deadline.ts";
import { Load } from "../support/fault-load.ts";
import type { Done, Fault } from "../support/faulty-kernel.ts";
import { compare, type Hurt, hurtTest, longTest } from "../support/hurt-node.ts";
import { PlainClient } from "../support/plain-client.ts";
import { metric, openFiles, readiness, untilNotReady, untilReady } from "../support/watch-node.ts";

const topics = ["left", "right"];
const resumeMsMax = 8000;
/** Of a commit that was under way nobody can say whether it is stored. After that it is known. */
const refusals = /^(publish (unavailable|publish_failed)|n?ack (unavailable|ack_failed|lease_lost))$/;

const failing: [what: string, faults: Fault[]][] = [
  ["write", [{ calls: ["write"], path: ".log$", error: "EIO" }]],
  [
    "write, and then opens no file",
    [
      { calls: ["write"], path: ".log$", error: "EIO", times: 2 },
      { calls: ["open"], path: "/shard-", error: "EIO" },
    ],
  ],
  [
    "write, and then reads nothing",
    [
      { calls: ["write"], path: ".log$", error: "EIO", times: 2 },
      { calls: ["read"], path: ".log$", error: "EIO" },
    ],
  ],
];

for (const [index, [what, faults]] of failing.entries()) {
  (index === 1 ? longTest : hurtTest)(
    `G11: a disk that fails a ${what}: refused, said, resumed, nothing confirmed lost`,
    async (hurt) => {
      const node = await hurt.start();
      const load = new Load({ topics });
      await load.start(node.wsUrl);
      await load.progress(20, 10_000, "load before the fault");
      for (const fault of faults) hurt.kernel.add(fault);
      await eventually(5000, "both shards are down", async () => {
        const { shards } = await readiness(node.http);
        return shards.every(({ status, reason }) => status === "down" && reason === "the store failed (EIO)");
      });
      assert.equal([...(await metric(node.http, "shard_up")).values()], [0, 0]);
      assert.is((await fetch(`${node.http}/health/live`)).status, 200);
      await load.turn(5000);
      const before = load.count();
      await load.turn(5000);
      assert.is(load.count(), before);
      hurt.kernel.clear();
      await untilReady(node.http, resumeMsMax);
      await load.progress(20, 8000, "load after the fault");
      for (const code of load.codes()) assert.match(code, refusals);
      const held = openFiles(node.child.pid as number, hurt.data).filter((path) => !path.includes("/derived/"));
      assert.equal(held, [...new Set(held)], "no file is open twice");
      await compare(hurt, node, load);
    },
  );
}

hurtTest("G11: a folder whose sync fails makes no segment that counts", async (hurt) => {
  const node = await hurt.start();
  const load = new Load({ topics, pad: 8000 });
  await load.start(node.wsUrl);
  await load.progress(10, 10_000, "load before the fault");
  const placed = hurt.kernel.add({ calls: ["sync"], path: "/shard-", error: "EIO" });
  await untilNotReady(node.http, /the store failed \(EIO\)/, 15_000);
  assert.ok(placed.hits() > 0);
  hurt.kernel.clear();
  await untilReady(node.http, resumeMsMax);
  await load.progress(10, 8000, "load after the fault");
  for (const code of load.codes()) assert.match(code, refusals);
  await compare(hurt, node, load);
});

/** What went on with a file after its sync had failed. */
function afterFailedSync(journal: readonly Done[]): string[] {
  const failed = new Map<number, string>();
  const more: string[] = [];
  for (const { call, path, inode, result } of journal) {
    // The number of a file that is gone may be given to another.
    if (call === "unlink" || call === "rename")
      for (const [number, name] of failed) if (name === path) failed.delete(number);
    const before = failed.get(inode);
    if (before !== undefined) more.push(`${call} of ${path}, whose sync failed as ${before}`);
    if (call === "datasync" && result < 0) failed.set(inode, path);
  }
  return more;
}

hurtTest("G11: a failed fdatasync is never tried again as if it had worked", async (hurt) => {
  const node = await hurt.start();
  const load = new Load({ topics });
  await load.start(node.wsUrl);
  for (let round = 0; round < 4; round++) {
    await load.progress(10, 10_000, "load before the fault");
    // Both shards, some time within their commits.
    const placed = ["/shard-0/", "/shard-1/"].map((path) =>
      hurt.kernel.add({ calls: ["datasync"], path, error: "EIO", mode: "drop", after: round, times: 1 }),
    );
    // A shard that fails again as soon as it is up waits longer each time before it is opened again.
    await eventually(20_000, "a sync of each shard fails", () => placed.every((fault) => fault.hits() === 1));
    for (const fault of placed) fault.remove();
    await load.progress(10, 8000, "load after the fault");
  }
  await untilReady(node.http, resumeMsMax);
  for (const code of load.codes()) assert.match(code, refusals);
  const journal = hurt.kernel.journal();
  assert.is(journal.filter(({ call, result }) => call === "datasync" && result < 0).length, 8);
  assert.equal(afterFailedSync(journal), [], "a file whose sync failed is let be");
  await compare(hurt, node, load);
});

hurtTest("G1: a disk that takes 5 s for a sync makes its publishers wait, and nobody else", async (hurt) => {
  const node = await hurt.start();
  const client = await PlainClient.open(node.wsUrl);
  const other = await PlainClient.open(node.wsUrl);
  for (const topic of topics) await client.publish(topic, "first");
  const slow = await slowShard(hurt, client);
  await other.subscribe(slow.topic, "g", { from: "earliest" });
  for (const event of await other.nextMany(2)) await other.ack(event);
  const placed = hurt.kernel.add({ calls: ["datasync"], path: slow.path, delayMs: 5000, times: 1 });
  const began = performance.now();
  let answered = false;
  const late = client.publish(slow.topic, "late");
  void Promise.allSettled([late]).then(() => {
    answered = true;
  });
  await eventually(2000, "the sync is under way", () => placed.hits() === 1);
  const quick = topics.find((topic) => topic !== slow.topic) as string;
  for (let i = 0; i < 5; i++) {
    await other.publish(quick, i);
    assert.is((await fetch(`${node.http}/health/ready`)).status, 200);
    assert.not(answered, `${quick} waits for ${slow.topic} in ${slow.path}`);
  }
  assert.equal(other.events, [], "no EVENT leaves before its event is stored");
  await late;
  assert.ok(performance.now() - began >= 5000, "no OK leaves before");
  assert.is((await other.next()).event.payload, "late");
});

longTest(
  "G11: a sync that takes longer than a request may is answered unavailable, and what it stored is there",
  async (hurt) => {
    const node = await hurt.start();
    const client = await PlainClient.open(node.wsUrl);
    for (const topic of topics) await client.publish(topic, "first");
    const slow = await slowShard(hurt, client);
    hurt.kernel.add({ calls: ["datasync"], path: slow.path, delayMs: 11_500, times: 1 });
    const began = performance.now();
    const publish = { op: "PUBLISH", topic: slow.topic, payload: "late", opts: { id: "the-late-one" } };
    const answer = await client.request(publish);
    assert.is(answer.code, "unavailable");
    assert.ok(performance.now() - began < 11_000);
    // Under the same id, as the code asks for: the first one was stored in the end.
    const again = await eventually(10_000, "an OK", async () => {
      const frame = await client.request(publish);
      return frame.op === "OK" && frame;
    });
    assert.is(again.duplicate, true);
    assert.is(again.offset, slow.next);
  },
);

/** A topic, the folder of the shard it lies in, and its next offset. */
async function slowShard(hurt: Hurt, client: PlainClient): Promise<{ topic: string; path: string; next: number }> {
  const topic = topics[0];
  const probe = { 0: 0, 1: 0 };
  const place = ["/shard-0/", "/shard-1/"].map((path) => hurt.kernel.add({ calls: ["write"], path }));
  const { offset } = await client.publish(topic, "where");
  for (const shard of [0, 1] as const) probe[shard] = place[shard].hits();
  for (const fault of place) fault.remove();
  return { topic, path: probe[0] > probe[1] ? "/shard-0/" : "/shard-1/", next: Number(offset) + 1 };
}

hurtTest("G11: what cannot be read is not passed over: a log whose reads fail is no short log", async (hurt) => {
  const first = await hurt.start();
  const load = new Load({ topics });
  await load.start(first.wsUrl);
  await load.progress(100, 10_000, "load");
  await load.stop();
  await first.kill("SIGKILL");
  // Nothing is in memory after a start.
  const node = await hurt.start();
  hurt.kernel.add({ calls: ["read"], path: ".log$", error: "EIO" });
  const client = await PlainClient.open(node.wsUrl);
  await client.subscribe("left", "late", { from: "earliest", maxInflight: 1000 });
  for (const path of ["/replay?topic=left&limit=1000", "/export?topic=left"]) {
    const whole = await fetch(`${node.http}${path}`).then(
      async (response) => response.status === 200 && (await response.text()).length > 0,
      () => false,
    );
    const broken = await fetch(`${node.http}${path}`).then((response) => response.text().then(() => response.status));
    assert.ok(!whole && broken >= 500, `${path} looked whole`);
  }
  assert.equal(client.events, []);
  hurt.kernel.clear();
  const stored = load.count("left");
  await eventually(8000, "delivery goes on by itself", () => client.events.length >= stored);
  assert.equal(
    client.events.slice(0, stored).map(({ event }) => event.offset),
    Array.from({ length: stored }, (_, offset) => offset),
  );
  await load.checkStored(node.http);
});

hurtTest("G11: a node starts on a disk that cannot be read, says so, and comes up with everything", async (hurt) => {
  const first = await hurt.start();
  const load = new Load({ topics });
  await load.start(first.wsUrl);
  await load.progress(30, 10_000, "load");
  await load.stop();
  await first.kill("SIGKILL");
  hurt.kernel.add({ calls: ["read"], path: ".log$", error: "EIO" });
  const node = await hurt.start();
  assert.match(node.out(), /not ready yet: shard 0 is down: the store failed \(EIO\); shard 1 is down/);
  const client = await PlainClient.open(node.wsUrl);
  assert.is((await client.request({ op: "PUBLISH", topic: "left", payload: 1 })).code, "publish_failed");
  hurt.kernel.clear();
  await untilReady(node.http, resumeMsMax);
  await load.checkStored(node.http);
  await load.checkGroup(node.wsUrl);
});

test.run();
