// G1 to G7 and G10 on the embedded log. G8 stands in slow-clients.test.ts, G9 in rate-limits.test.ts, G11 in faults.test.ts.

import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { guarantees } from "../conformance/guarantees.ts";
import { dataFolder, startNode } from "../support/node-process.ts";
import { PlainClient } from "../support/plain-client.ts";

const data = dataFolder();
const rates = { CONN_RATE: "off", TOPIC_RATE: "off" };

guarantees({
  durability: "fsync",
  start: (env) => startNode({ data: data.path, env }),
  end: async () => data.remove(),
});

const hasStrace = spawnSync("strace", ["-V"]).status === 0;
if (!hasStrace) console.log("skipped: strace is not installed, so the system calls of a publish are not counted");

(hasStrace ? test : test.skip)(
  "G1: between a PUBLISH and its OK there is one write to the log and one fdatasync, and then the mark of how far it is durable",
  async () => {
    const folder = dataFolder();
    const trace = join(folder.path, "trace");
    // -D: strace is the one that stands aside, so that signals reach the node.
    const under = [
      "strace",
      "-D",
      "-f",
      "-qq",
      "-y",
      "-e",
      "trace=write,pwrite64,pwritev,writev,fdatasync,fsync,sendto,sendmsg",
      "-s",
      "200",
      "-o",
      trace,
    ];
    const traced = await startNode({ data: join(folder.path, "data"), env: rates, under });
    const client = await PlainClient.open(traced.wsUrl);
    await client.publish("strace", { warm: true });
    const ok = await client.publish("strace", { marked: "the-one" });
    const next = await client.publish("strace", { after: true });
    await client.close();
    await traced.kill("SIGTERM");
    const lines = readFileSync(trace, "utf8").split("\n");
    folder.remove();
    // The OK is a write to the socket that holds the id; everything to a file of a shard between two OKs belongs to one publish.
    const isLog = (line: string) => /\/shard|segment|\.log/.test(line) && !/\/(index|derived)/.test(line);
    const fileOf = (line: string) => (/\/durable>/.test(line) ? "durable" : "log");
    const first = lines.findIndex((line) => line.includes("durability") && line.includes(String(ok.id)));
    const second = lines.findIndex((line) => line.includes("durability") && line.includes(String(next.id)));
    assert.ok(first > 0 && second > first, "both OKs are in the trace");
    const between = lines
      .slice(first + 1, second)
      .filter((line) => line.includes(join(folder.path, "data")) && isLog(line));
    const calls = between
      .filter((line) => !/resumed>/.test(line))
      .map(
        (line) => `${line.match(/ (\w+)\(/)?.[1]?.replace(/^pwrite64$|^writev$|^pwritev$/, "write")} ${fileOf(line)}`,
      );
    // What the mark says is durable by then; it is not synced itself.
    assert.equal(calls, ["write log", "fdatasync log", "write durable"], between.join("\n"));
  },
);

test.run();
