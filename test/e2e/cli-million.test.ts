// A million events out of one node and into another, with everybody killed once on the way.

import { existsSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { BatchClient, fill } from "../support/batch-client.ts";
import { type CliProcess, type CliResult, startCli } from "../support/cli-process.ts";
import { eventually, within } from "../support/deadline.ts";
import { dataFolder, startNode } from "../support/node-process.ts";

const count = 1_000_000;
const folder = dataFolder();
const path = (name: string) => join(folder.path, name);

test.after(() => folder.remove());

const sizeOf = (file: string) => statSync(file, { throwIfNoEntry: false })?.size ?? 0;

/** The most memory that a process had, in MB, as far as it was looked at. */
class Memory {
  most = 0;

  async watch(cli: CliProcess): Promise<CliResult> {
    const timer = setInterval(() => {
      const status = `/proc/${cli.child.pid}/status`;
      const text = existsSync(status) ? readFileSync(status, "utf8") : "";
      this.most = Math.max(this.most, Number(/VmHWM:\s+(\d+)/.exec(text)?.[1] ?? 0) / 1000);
    }, 200);
    try {
      return await within(120_000, `the command ends; it said:\n${cli.err()}`, cli.ended);
    } finally {
      clearInterval(timer);
      cli.child.kill("SIGKILL");
    }
  }

  async run(args: readonly string[], url: string): Promise<Record<string, unknown>> {
    const result = await this.watch(startCli(["--json", ...args], { url }));
    assert.is(result.code, 0, result.err);
    return JSON.parse(result.out) as Record<string, unknown>;
  }
}

async function seconds<T>(run: () => Promise<T>): Promise<[T, string]> {
  const startedAt = performance.now();
  const result = await run();
  return [result, ((performance.now() - startedAt) / 1000).toFixed(1)];
}

test("a million events are exported, imported and compared, interrupted and resumed", async () => {
  const env = { CONN_RATE: "off", TOPIC_RATE: "off" };
  const source = await startNode({ data: path("source"), env });
  const client = await BatchClient.open(source.wsUrl);
  const filler = "x".repeat(80);
  assert.is(await fill(client, "million", { count, payload: (n) => `{"n":${n},"f":"${filler}"}` }), count);
  client.close();
  const file = path("million.ndjson");

  const exporter = new Memory();
  const [exported, exportSeconds] = await seconds(async () => {
    const cli = startCli(["export", "million", "-o", file], { url: source.http });
    await eventually(60_000, "a part of it is written", () => sizeOf(`${file}.part`) > 80_000_000);
    cli.child.kill("SIGKILL");
    await exporter.watch(cli);
    return exporter.run(["export", "million", "-o", file], source.http);
  });
  assert.is(exported.events, count);
  assert.ok((exported.resumed as number) > 300_000 && (exported.resumed as number) < count, `${exported.resumed}`);
  await source.kill("SIGKILL");

  const target = await startNode({ data: path("target"), env });
  try {
    const importer = new Memory();
    const [imported, importSeconds] = await seconds(async () => {
      const cli = startCli(["import", file], { url: target.http });
      const state = `${file}.import.json`;
      await eventually(90_000, "half of it is imported", () => {
        const text = existsSync(state) ? readFileSync(state, "utf8") : "{}";
        return ((JSON.parse(text) as { mark?: { events: number } }).mark?.events ?? 0) > count / 2;
      });
      cli.child.kill("SIGKILL");
      await importer.watch(cli);
      return importer.run(["import", file], target.http);
    });
    assert.equal([imported.events, imported.verified, imported.sha256], [count, "identical", exported.sha256]);
    const back = await exporter.run(["export", "million", "-o", path("back.ndjson")], target.http);
    assert.is(back.sha256, exported.sha256);
    console.log(
      `measured: 1,000,000 events (${Math.round((exported.bytes as number) / 1e6)} MB), killed and resumed each: export ${exportSeconds} s with at most ${exporter.most.toFixed(0)} MB, import with check ${importSeconds} s with at most ${importer.most.toFixed(0)} MB`,
    );
    assert.ok(exporter.most < 250, `the exporter had ${exporter.most} MB`);
    assert.ok(importer.most < 350, `the importer had ${importer.most} MB`);
  } finally {
    await target.kill("SIGKILL");
  }
});

test.run();
