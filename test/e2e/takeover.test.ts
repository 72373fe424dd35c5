// A node whose data folder was taken over while it stood still: the successor's lock is laid by hand, as it would be found on waking
// up. How it comes to that is in test/store/lock.test.ts.

import { linkSync, readFileSync, unlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { within } from "../support/deadline.ts";
import { dataFolder, startNode } from "../support/node-process.ts";

const folder = dataFolder();

test("it acknowledges nothing more, says who has the folder and ends", async () => {
  const node = await startNode({ data: folder.path });
  const publish = (n: number) =>
    fetch(`${node.http}/publish/orders`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ n }),
    });
  assert.is((await publish(1)).status, 200);
  const old = join(folder.path, "lock.1");
  const owner = { ...JSON.parse(readFileSync(old, "utf8")), pid: 7, host: "elsewhere", boot: "another" };
  writeFileSync(join(folder.path, "draft"), JSON.stringify(owner).padEnd(512));
  linkSync(join(folder.path, "draft"), join(folder.path, "lock.2"));
  unlinkSync(old);
  const refused = await within(10_000, "an answer", publish(2));
  assert.is(refused.status, 503);
  assert.is(((await refused.json()) as { code: string }).code, "unavailable");
  assert.is(await within(10_000, "the node ends", node.exited), 1);
  assert.match(node.out(), `narthex: ${folder.path} was taken over by process 7 on host elsewhere`);
  assert.not.match(node.out(), /^ +at /m);
});

test.after(() => folder.remove());
test.run();
