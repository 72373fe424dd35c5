// A data folder that may not be written, at the start and while the node runs, and one that is removed under it.

import { execFileSync } from "node:child_process";
import { chmodSync, existsSync, mkdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { eventually } from "../support/deadline.ts";
import { Load } from "../support/fault-load.ts";
import { compare, hurtTest, sideBySide } from "../support/hurt-node.ts";
import { dataFolder, runNode, startNode } from "../support/node-process.ts";
import { PlainClient } from "../support/plain-client.ts";
import { metric, readiness, untilIndexed, untilNotReady, untilReady } from "../support/watch-node.ts";

const topics = ["left", "right"];

sideBySide("a folder on a read-only disk stops the start with one line, and what is in it is as it was", async () => {
  const data = dataFolder();
  const disk = join(data.path, "disk");
  mkdirSync(disk);
  try {
    execFileSync("mount", ["-t", "tmpfs", "-o", "size=200m", "tmpfs", disk], { stdio: "ignore" });
  } catch {
    console.log("skipped: no file system can be mounted here, so no disk was read-only");
    data.remove();
    return;
  }
  const store = join(disk, "store");
  try {
    const node = await startNode({ data: store });
    const client = await PlainClient.open(node.wsUrl);
    await client.publish("t", "kept");
    await node.kill("SIGKILL");
    execFileSync("mount", ["-o", "remount,ro", disk]);
    const { code, out } = await runNode({ data: store });
    assert.is(code, 1);
    assert.is(
      out,
      `narthex: the data folder ${store} cannot be used, because that disk is read-only (EROFS): choose another with NARTHEX_DATA\n`,
    );
    execFileSync("mount", ["-o", "remount,rw", disk]);
    const next = await startNode({ data: store });
    const lines = await (await fetch(`${next.http}/export?topic=t`)).text();
    assert.match(lines, /"payload":"kept"/);
    await next.kill("SIGKILL");
  } finally {
    execFileSync("umount", [disk]);
    data.remove();
  }
});

sideBySide("a folder of somebody else stops the start with one line", async () => {
  const data = dataFolder();
  chmodSync(data.path, 0o755);
  const under = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
  try {
    execFileSync(under[0], [...under.slice(1), "true"], { stdio: "ignore" });
  } catch {
    console.log("skipped: nobody else can be made to start a node here");
    data.remove();
    return;
  }
  const { code, out } = await runNode({ data: data.path, under });
  assert.is(code, 1);
  const why = "because this user may not write there (EACCES): choose another with NARTHEX_DATA";
  assert.is(out, `narthex: the data folder ${data.path} cannot be used, ${why}\n`);
  data.remove();
});

hurtTest(
  "G11: a disk that turns read-only under a node: refused, said, and resumed when it can be written again",
  async (hurt) => {
    const node = await hurt.start();
    const load = new Load({ topics });
    await load.start(node.wsUrl);
    await load.progress(20, 10_000, "load before");
    await untilIndexed(hurt.data);
    hurt.kernel.add({
      calls: ["write", "create", "truncate", "rename", "unlink", "link", "mkdir"],
      path: "/store/",
      error: "EROFS",
    });
    await untilNotReady(
      node.http,
      /shard 0 is down: the store failed \(EROFS\); shard 1 is down: the store failed \(EROFS\)/,
    );
    assert.equal([...(await metric(node.http, "shard_up")).values()], [0, 0]);
    await load.turn(5000);
    const before = load.count();
    await load.turn(5000);
    assert.is(load.count(), before);
    hurt.kernel.clear();
    await untilReady(node.http, 8000);
    await load.progress(20, 8000, "load after");
    for (const code of load.codes()) {
      assert.match(code, /^(publish (publish_failed|unavailable)|n?ack (ack_failed|unavailable|lease_lost))$/);
    }
    await compare(hurt, node, load);
  },
);

hurtTest(
  "G1: a folder that is removed under a node is not made again: everything is refused and the cause is said",
  async (hurt) => {
    const node = await hurt.start({ healthy: true });
    const load = new Load({ topics });
    await load.start(node.wsUrl);
    await load.progress(20, 10_000, "load before");
    await untilIndexed(hurt.data);
    // As long as its lock is there the node may still make files.
    rmSync(hurt.data, { recursive: true, force: true, maxRetries: 50, retryDelay: 10 });
    await untilNotReady(node.http, /shard 0 is down: .*; shard 1 is down: /);
    const { reasons } = await readiness(node.http);
    await load.turn(5000);
    const before = load.count();
    await eventually(8000, "the heartbeat misses it", () => /cannot be kept up/.test(node.out()));
    await load.turn(5000);
    assert.is(load.count(), before, `after ${reasons.join("; ")}`);
    assert.not(existsSync(join(hurt.data, "shard-0")), "an empty log in its place would give offsets again");
    assert.is((await fetch(`${node.http}/health/live`)).status, 200);
    for (const code of load.codes()) {
      assert.match(code, /^(publish (publish_failed|unavailable)|n?ack (ack_failed|unavailable|lease_lost))$/);
    }
    await load.stop();
  },
);

test.run();
