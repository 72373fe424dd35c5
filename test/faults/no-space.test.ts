// No room on the disk, met at each of the places where the node writes, through the kernel's own answers. The publishers and the group
// go on all the time; what was confirmed to them is compared event by event after the process was killed and started again.

import { execFileSync } from "node:child_process";
import { mkdirSync, rmSync, statfsSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { eventually } from "../support/deadline.ts";
import { Load } from "../support/fault-load.ts";
import type { Fault } from "../support/faulty-kernel.ts";
import { compare, hurtTest, longTest, sideBySide } from "../support/hurt-node.ts";
import { dataFolder, type NodeProcess, startNode } from "../support/node-process.ts";
import { PlainClient } from "../support/plain-client.ts";
import {
  descriptorCount,
  metric,
  openFiles,
  readiness,
  residentMb,
  untilNotReady,
  untilReady,
} from "../support/watch-node.ts";

const topics = ["left", "right"];
/** The longest pause between two tries is 5 s. */
const resumeMsMax = 7000;
/** A commit that was refused is surely not stored. Who had an event that was leased anew meanwhile has lost it. */
const refusals = /^(publish publish_failed|n?ack (ack_failed|lease_lost))$/;

const full: [what: string, fault: Fault][] = [
  ["the write of a commit", { calls: ["write"], path: ".log$", error: "ENOSPC" }],
  ["the write of a commit, by a quota", { calls: ["write"], path: ".log$", error: "EDQUOT" }],
  ["the making of a new segment", { calls: ["create"], path: "/shard-", error: "ENOSPC" }],
  ["the snapshot at its head", { calls: ["write"], path: ".log$", error: "ENOSPC", atStart: true }],
];

longTest(
  "G11: no room for a commit, by quota, for a segment or its snapshot: refused, said, readable, resumed",
  async (hurt) => {
    const node = await hurt.start();
    const load = new Load({ topics, pad: 8000 });
    await load.start(node.wsUrl);
    for (const [what, fault] of full) {
      await load.progress(10, 10_000, `load before there is no room for ${what}`);
      const placed = hurt.kernel.add(fault);
      await eventually(10_000, "both shards refuse", async () => {
        const { shards } = await readiness(node.http);
        return shards.every(({ status }) => status === "read-only");
      });
      await untilNotReady(node.http, new RegExp(`shard 0 is read-only: the disk is full \\(${fault.error}\\)`));
      assert.equal([...(await metric(node.http, "shard_up")).values()], [0, 0]);
      assert.is((await fetch(`${node.http}/health/live`)).status, 200);
      for (const topic of topics) assert.is((await fetch(`${node.http}/export?topic=${topic}`)).status, 200, "reads");
      await load.turn(5000);
      const before = load.count();
      load.forgetCodes();
      await load.turn(5000);
      assert.equal(load.codes(), ["publish publish_failed"]);
      assert.is(load.count(), before, "nothing is stored while there is no room");
      assert.ok(placed.hits() > 0);
      placed.remove();
      await untilReady(node.http, resumeMsMax);
      await load.progress(10, 5000, "load after the fault");
      for (const code of load.codes()) assert.match(code, refusals);
    }
    await compare(hurt, node, load);
  },
);

hurtTest("G11: no room for one shard stops that shard only", async (hurt) => {
  const node = await hurt.start();
  const load = new Load({ topics });
  await load.start(node.wsUrl);
  await load.progress(20, 10_000, "load before the fault");
  hurt.kernel.add({ calls: ["write"], path: "/shard-1/", error: "ENOSPC" });
  await untilNotReady(node.http, /^shard 1 is read-only: the disk is full \(ENOSPC\)$/);
  await load.turn(5000);
  const before = topics.map((topic) => load.count(topic));
  await eventually(5000, "the other one goes on", () => {
    return topics.filter((topic, i) => load.count(topic) >= before[i] + 30).length === 1;
  });
  assert.is(topics.filter((topic, i) => load.count(topic) === before[i]).length, 1, "and this one does not");
  hurt.kernel.clear();
  await untilReady(node.http, resumeMsMax);
  await load.progress(20, 5000, "load after the fault");
  await compare(hurt, node, load);
});

hurtTest(
  "G1: writes that come back short are finished, and one that is cut short by a full disk is written over",
  async (hurt) => {
    const node = await hurt.start();
    const load = new Load({ topics, pad: 3000 });
    await load.start(node.wsUrl);
    await load.progress(20, 10_000, "load before the fault");
    const short = hurt.kernel.add({ calls: ["write"], path: ".log$", mode: "short" });
    await load.progress(30, 10_000, "load over short writes");
    assert.ok(short.hits() > 100);
    assert.equal(load.codes(), [], "nobody notices");
    short.remove();
    // Of each record a half is written, then there is no room for the rest.
    hurt.kernel.add({ calls: ["write"], path: ".log$", mode: "short", times: 2 });
    hurt.kernel.add({ calls: ["write"], path: ".log$", error: "ENOSPC" });
    await untilNotReady(node.http, /the disk is full \(ENOSPC\)/);
    hurt.kernel.clear();
    await untilReady(node.http, resumeMsMax);
    await load.progress(20, 5000, "load after the fault");
    await compare(hurt, node, load);
  },
);

longTest(
  "G11: no room for the heartbeat and for the derived index stops neither commits nor deliveries",
  async (hurt) => {
    const node = await hurt.start();
    const load = new Load({ topics, pad: 200 });
    await load.start(node.wsUrl);
    await load.progress(5, 10_000, "load before the fault");
    const derived = hurt.kernel.add({ calls: ["write", "create", "truncate"], path: "/derived/", error: "ENOSPC" });
    const beat = hurt.kernel.add({ calls: ["write", "create"], path: "/lock.", error: "ENOSPC" });
    const named = load.sent.find(({ outcome, id }) => outcome === "OK" && id.startsWith("own-"));
    assert.ok(named);
    const ask = async () =>
      (await fetch(`${node.http}/replay?topic=${named.topic}&from=afterId&afterId=${named.id}&limit=1`)).status;
    assert.is(await ask(), 503, "what needs the index is refused and does not hang");
    await eventually(8000, "a beat", () => beat.hits() > 0);
    assert.ok(derived.hits() > 0);
    await load.progress(20, 5000, "load during the fault");
    assert.equal(load.codes(), []);
    assert.is((await readiness(node.http)).status, 200);
    assert.match(node.out(), /cannot be kept up, so others may take the folder/);
    hurt.kernel.clear();
    await eventually(5000, "the index is back", async () => (await ask()) === 200);
    await load.progress(5, 5000, "load after the fault");
    await compare(hurt, node, load);
  },
);

longTest("G11: a disk that is full again and again costs no descriptors and no memory", async (hurt) => {
  const node = await hurt.start();
  const pid = node.child.pid as number;
  const load = new Load({ topics });
  await load.start(node.wsUrl);
  const round = async () => {
    await load.progress(3, 5000, "load");
    hurt.kernel.add({ calls: ["write"], path: ".log$", error: "ENOSPC" });
    await untilNotReady(node.http, /ENOSPC/);
    hurt.kernel.clear();
    await untilReady(node.http, resumeMsMax);
  };
  for (let i = 0; i < 2; i++) await round();
  // Segments come with the load, at most 64 of them a shard.
  const use = () => ({ descriptors: descriptorCount(pid) - openFiles(pid, hurt.data).length, mb: residentMb(pid) });
  const before = use();
  for (let i = 0; i < 4; i++) await round();
  const after = use();
  const held = openFiles(pid, hurt.data).filter((path) => !path.includes("/derived/"));
  assert.equal(held, [...new Set(held)], "no file is open twice");
  assert.equal(
    held.filter((path) => path.endsWith("(deleted)")),
    [],
  );
  assert.ok(after.descriptors <= before.descriptors + 4, JSON.stringify({ before, after }));
  assert.ok(after.mb < before.mb + 60, JSON.stringify({ before, after }));
  await compare(hurt, node, load);
});

/** Runs with a real disk of 8 MB, where one can be mounted. */
async function onSmallDisk(run: (disk: string, start: () => Promise<NodeProcess>) => Promise<void>): Promise<void> {
  const data = dataFolder();
  const disk = join(data.path, "disk");
  mkdirSync(disk);
  try {
    execFileSync("mount", ["-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], { stdio: "ignore" });
  } catch {
    console.log("skipped: no file system can be mounted here, so no disk was really full");
    data.remove();
    return;
  }
  const limits = JSON.stringify({ segmentBytes: 256 * 1024 });
  const env = { WORKERS: "2", CONN_RATE: "off", TOPIC_RATE: "off", FAULT_LIMITS: limits };
  const nodes: NodeProcess[] = [];
  try {
    await run(disk, async () => {
      nodes.push(await startNode({ data: join(disk, "store"), program: "faults-small-node.entry", env }));
      return nodes[nodes.length - 1];
    });
  } finally {
    for (const node of nodes) await node.kill("SIGKILL");
    execFileSync("umount", [disk]);
    data.remove();
  }
}

/** Leaves so many bytes. */
function fill(disk: string, left: number): string {
  const filler = join(disk, "filler");
  const { bavail, bsize } = statfsSync(disk);
  writeFileSync(filler, Buffer.alloc(Math.max(0, bavail * bsize - left)));
  return filler;
}

sideBySide(
  "G11: an index that is asked for first when the disk is full is refused, and does not end the process",
  async () => {
    await onSmallDisk(async (disk, start) => {
      const node = await start();
      const client = await PlainClient.open(node.wsUrl);
      for (const id of ["a", "b", "c"]) await client.publish("t", id, { id });
      const filler = fill(disk, 0);
      const ask = async () => (await fetch(`${node.http}/replay?topic=t&from=afterId&afterId=b`)).status;
      for (let i = 0; i < 10; i++) assert.is(await ask(), 503);
      assert.is((await fetch(`${node.http}/export?topic=t`)).status, 200);
      rmSync(filler);
      assert.is(await ask(), 200);
      await client.publish("t", "after all");
    });
  },
);

sideBySide(
  "G11: a disk of a few megabytes that fills up under load and is given room is used again, twice",
  async () => {
    await onSmallDisk(async (disk, start) => {
      const node = await start();
      const load = new Load({ topics, pad: 2000 });
      await load.start(node.wsUrl);
      for (let round = 0; round < 2; round++) {
        const filler = fill(disk, 700_000);
        await untilNotReady(node.http, /the disk is full \(ENOSPC\)/, 15_000);
        await eventually(5000, "refusals", () => load.codes().includes("publish publish_failed"));
        rmSync(filler);
        await untilReady(node.http, resumeMsMax);
        await load.progress(10, 5000, "load after the fault");
        for (const code of load.codes())
          assert.match(code, /^(publish (publish_failed|unavailable)|n?ack (ack_failed|lease_lost|unavailable))$/);
        load.forgetCodes();
      }
      await load.stop();
      await node.kill("SIGKILL");
      const next = await start();
      await load.checkStored(next.http);
      await load.checkGroup(next.wsUrl);
    });
  },
);

test.run();
