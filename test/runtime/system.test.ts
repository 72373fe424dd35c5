// The runtime as the front sees it, with real threads: routing, death and rebirth of threads under load, numbers, shutdown.

import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "uvu";
import * as assert from "uvu/assert";
import type { Sample } from "../../src/actors/effects.ts";
import type { Answer, Signal } from "../../src/actors/messages.ts";
import { isFailure } from "../../src/protocol/failure.ts";
import { encodePack } from "../../src/protocol/pack.ts";
import { realClock } from "../../src/runtime/clock.ts";
import { createLogger } from "../../src/runtime/log.ts";
import { createSystem, type Supervisor, type SystemOptions } from "../../src/runtime/supervisor.ts";
import type { SystemEvents } from "../../src/runtime/system.ts";
import { eventually, within } from "../support/deadline.ts";
import { hostLimits } from "../support/host-stage.ts";

const clock = realClock();
const encoder = new TextEncoder();
const decoder = new TextDecoder();
const hostUrl = new URL("./support-runtime-host.entry.js", import.meta.url);

class Events implements SystemEvents {
  readonly log: string[] = [];
  readonly signals: Signal[] = [];
  signal(signal: Signal): void {
    this.signals.push(signal);
  }
  shardUp(shard: number, epoch: number): void {
    this.log.push(`up ${shard} ${epoch}`);
  }
  shardDown(shard: number): void {
    this.log.push(`down ${shard}`);
  }
  cellRestarted({ shard, cell }: { shard: number; cell: string }): void {
    this.log.push(`restarted ${shard} ${cell}`);
  }
}

type Options = Partial<Omit<SystemOptions, "limits">> & { limits?: Partial<SystemOptions["limits"]> };

function makeSystem({ limits, ...rest }: Options = {}): Supervisor {
  return createSystem({
    workers: 2,
    shards: 2,
    store: { kind: "memory" },
    limits: {
      workerInflightMax: 10_000,
      workerInflightBytesMax: 64 * 1024 * 1024,
      askMs: 5000,
      drainMs: 5000,
      workerHeapMb: undefined,
      ...limits,
    },
    actorLimits: hostLimits,
    clock,
    log: createLogger("silent", () => undefined, clock),
    hostUrl,
    testing: true,
    ...rest,
  });
}

const log = (shard: number) => ({ shard, cell: "log/1" });

function publish(system: Supervisor, shard: number, payload: unknown): Promise<Answer<"publish">> {
  const pack = encodePack([{ payload: encoder.encode(JSON.stringify(payload)) }]);
  const room = system.room(shard, pack.length);
  room.set(pack);
  return system.request(log(shard), { type: "publish", pack: room, unparsed: false });
}

async function readAll(system: Supervisor, shard: number): Promise<unknown[]> {
  const payloads: unknown[] = [];
  for (let from = 0; ; ) {
    const page = await system.request(log(shard), { type: "scan", from, to: 1e9, bytesMax: 1e6, eventsMax: 1e6 });
    if (isFailure(page)) throw new Error(page.msg);
    for (const line of decoder.decode(page.lines).split("\n")) if (line !== "") payloads.push(JSON.parse(line));
    if (page.done) return payloads;
    from = page.next;
  }
}

function folder(): { path: string; remove(): void } {
  const path = mkdtempSync(join(tmpdir(), "narthex-runtime-"));
  return { path, remove: () => rmSync(path, { recursive: true, force: true }) };
}

const total = (samples: readonly Sample[], name: string, labels: Record<string, string> = {}) =>
  samples
    .filter((sample) => sample.name === name)
    .filter((sample) => Object.entries(labels).every(([key, value]) => sample.labels[key] === value))
    .reduce((sum, { value }) => sum + (typeof value === "number" ? value : value.counts.reduce((a, b) => a + b)), 0);

test("requests reach the shard's worker and come back, signals too, and close ends the threads", async () => {
  const system = makeSystem({ shards: 3 });
  const events = new Events();
  await within(10_000, "start", system.start(events));
  assert.equal([...events.log].sort(), ["up 0 1", "up 1 1", "up 2 1"]);
  assert.equal(
    system.state().map(({ shard, worker, status, epoch }) => [shard, worker, status, epoch]),
    [
      [0, 0, "up", 1],
      [1, 1, "up", 1],
      [2, 0, "up", 1],
    ],
  );
  const answers = await Promise.all([0, 1, 2, 0].map((shard, n) => publish(system, shard, `${shard}:${n}`)));
  assert.equal(
    answers.map((answer) => (isFailure(answer) ? answer.code : answer.runs[0].offset)),
    [0, 0, 0, 1],
  );
  assert.equal(await readAll(system, 0), ["0:0", "0:3"]);
  assert.equal(await readAll(system, 2), ["2:2"]);
  system.tell(log(1), { type: "flow", member: 12, open: true, stalled: false, written: 0 });
  await eventually(2000, "the signal", () => events.signals.length > 0);
  assert.equal(events.signals, [{ type: "release", member: 12, stream: 1, slots: 1 }]);
  assert.is(
    ((await system.request({ shard: 0, cell: "nobody" }, { type: "describe" })) as { code: string }).code,
    "unavailable",
  );
  assert.is(
    ((await system.request({ shard: 9, cell: "log/1" }, { type: "describe" })) as { code: string }).code,
    "unavailable",
  );
  await within(10_000, "close", system.close());
  const late = await system.request(log(0), { type: "describe" });
  assert.is(isFailure(late) && late.code, "shutting_down");
});

test("a cell asks a cell of another worker, also when that one fails or is gone", async () => {
  const system = makeSystem();
  await within(10_000, "start", system.start(new Events()));
  system.tell(log(1), { type: "flow", member: 1, open: true, stalled: false, written: 0 });
  const asked = await system.request(log(0), { type: "locateTs", ts: 1 });
  assert.equal(asked, { offset: 0, ts: 1 });
  const nowhere = await system.request(log(0), { type: "locateTs", ts: 77 });
  assert.is(isFailure(nowhere) && nowhere.code, "unavailable");
  await within(10_000, "destroy", system.destroy());
});

test("an answer never comes before ask returns, even when it is known at once", async () => {
  const system = makeSystem({ workers: 1, shards: 1, limits: { workerInflightMax: 2 } });
  await within(10_000, "start", system.start(new Events()));
  const codes: string[] = [];
  let returned = false;
  for (let n = 0; n < 3; n++) {
    system.ask(log(0), { type: "latest", after: "", limit: 1 }, (answer) => {
      assert.ok(returned);
      codes.push(isFailure(answer) ? answer.code : "ok");
    });
  }
  returned = true;
  await eventually(2000, "the third", () => codes.length > 0);
  assert.equal(codes, ["overloaded"]);
  assert.is(total(await system.samples(), "overloaded_total"), 1);
  assert.is(total(await system.samples(), "under_way_messages"), 2);
  await within(10_000, "destroy", system.destroy());
  assert.equal(codes, ["overloaded", "unavailable", "unavailable"], "destroy answers who still waits");
});

test("a request that its cell never answers is unavailable at the deadline", async () => {
  const system = makeSystem({ workers: 1, shards: 1, limits: { askMs: 50 } });
  await within(10_000, "start", system.start(new Events()));
  const answer = await within(2000, "the deadline", system.request(log(0), { type: "latest", after: "", limit: 1 }));
  assert.is(isFailure(answer) && answer.code, "unavailable");
  await within(10_000, "destroy", system.destroy());
});

test("a cell given up is in the state with its reason", async () => {
  const system = makeSystem({ workers: 1, shards: 1 });
  const events = new Events();
  await within(10_000, "start", system.start(events));
  for (let n = 0; n < 6; n++) {
    const answer = await system.request(log(0), { type: "drop" });
    assert.is(isFailure(answer) && answer.code, "internal");
  }
  const answer = await system.request(log(0), { type: "describe" });
  assert.is(isFailure(answer) && answer.code, "unavailable");
  assert.is(events.log.filter((line) => line === "restarted 0 log/1").length, 5);
  const [{ failedCells }] = system.state();
  assert.is(failedCells[0].cell, "log/1");
  assert.match(failedCells[0].reason, /asked to throw/);
  await within(10_000, "destroy", system.destroy());
});

for (const how of ["throw", "exit", "oom"] as const) {
  test(`a worker that dies by ${how} under load: all are answered within a second, nothing stored is lost`, async () => {
    const data = folder();
    const system = makeSystem({ store: { kind: "log", path: data.path }, limits: { workerHeapMb: 64 } });
    const events = new Events();
    await within(20_000, "start", system.start(events));
    const acked: number[][] = [[], []];
    const slowest = [0, 0];
    const codes = [new Map<string, number>(), new Map<string, number>()];
    let stop = false;
    let next = 0;
    const load = [0, 1].flatMap((shard) =>
      Array.from({ length: 20 }, async () => {
        while (!stop) {
          const n = next++;
          const sent = clock.mono();
          const answer = await publish(system, shard, n);
          slowest[shard] = Math.max(slowest[shard], clock.mono() - sent);
          if (!isFailure(answer)) acked[shard].push(n);
          else {
            codes[shard].set(answer.code, (codes[shard].get(answer.code) ?? 0) + 1);
            await new Promise((resolve) => clock.after(5, () => resolve(undefined)));
          }
        }
      }),
    );
    await eventually(20_000, "load", () => acked.every((list) => list.length > 200));
    const before = acked.map((list) => list.length);
    const metrics = total(await system.samples(), "published_total", { cell: "log/1" });
    system.crash(0, how);
    await eventually(
      20_000,
      "life after death",
      () => acked[0].length > before[0] + 300 && events.log.includes("down 0"),
    );
    stop = true;
    await within(5000, "the last answers", Promise.all(load));
    assert.ok(slowest[0] < 1000, `the slowest answer took ${slowest[0].toFixed(0)} ms`);
    assert.ok(slowest[1] < 1000, `the other worker stalled for ${slowest[1].toFixed(0)} ms`);
    assert.equal([...codes[1]], [], "requests to the other worker do not notice");
    for (const code of codes[0].keys()) assert.ok(["unavailable", "publish_failed"].includes(code), code);
    assert.ok(codes[0].has("unavailable"));
    assert.equal(
      events.log.filter((line) => line.endsWith(" 0") || line.startsWith("up 0")),
      ["up 0 1", "down 0", "up 0 2"],
    );
    for (const shard of [0, 1]) {
      const stored = (await readAll(system, shard)) as number[];
      assert.is(new Set(stored).size, stored.length, "nothing is stored twice");
      const set = new Set(stored);
      assert.equal(
        acked[shard].filter((n) => !set.has(n)),
        [],
        "what was acknowledged is there",
      );
    }
    const after = await system.samples();
    assert.ok(total(after, "published_total", { cell: "log/1" }) > metrics, "counters do not fall");
    assert.is(total(after, "worker_restarts_total", { worker: "0" }), 1);
    assert.is(total(after, "shard_up"), 2);
    await within(10_000, "close", system.close());
    data.remove();
  });
}

test("counters of a dead thread go on, its gauges do not, and every thread is in the numbers", async () => {
  const system = makeSystem();
  const events = new Events();
  await within(10_000, "start", system.start(events));
  for (let n = 0; n < 10; n++) await publish(system, n % 2, n);
  const before = await system.samples();
  assert.is(total(before, "published_total"), 10);
  assert.is(total(before, "end"), 10);
  assert.is(total(before, "commits_total", { worker: "0" }), 5);
  assert.is(total(before, "commit_ms", { worker: "1" }), 5);
  assert.equal(
    [...new Set(before.filter(({ name }) => name === "loop_lag_ms").map(({ labels }) => labels.thread))].sort(),
    ["front", "worker-0", "worker-1"],
  );
  system.crash(1, "exit");
  await eventually(
    5000,
    "the new thread",
    () => events.log.includes("up 1 1") && events.log.filter((line) => line.startsWith("up 1")).length === 2,
  );
  const after = await system.samples();
  assert.is(total(after, "published_total"), 10);
  assert.is(total(after, "end"), 5, "memory is gone with its thread");
  assert.is(total(after, "commits_total", { worker: "1" }), 5);
  await publish(system, 1, 10);
  assert.is(total(await system.samples(), "published_total"), 11);
  await within(10_000, "destroy", system.destroy());
});

test("close commits what is gathered: a lazy persist is there after the next start", async () => {
  const data = folder();
  const store = { kind: "log", path: data.path } as const;
  const first = makeSystem({ store });
  await within(20_000, "start", first.start(new Events()));
  const answers = Promise.all([0, 1].map((shard) => first.request(log(shard), { type: "cursor" })));
  const closing = first.close();
  // The front is busy for a while: what was asked before must have left with the call.
  for (const start = clock.mono(); clock.mono() < start + 100; );
  await within(10_000, "close", closing);
  assert.equal(await answers, [{ offset: 1 }, { offset: 1 }]);
  // One worker takes over both shards.
  const second = makeSystem({ store, workers: 1 });
  const events = new Events();
  await within(20_000, "start", second.start(events));
  assert.equal([...events.log].sort(), ["up 0 2", "up 1 2"]);
  for (const shard of [0, 1]) {
    assert.equal(await second.request(log(shard), { type: "describe" }), { offset: 1, ts: 0 });
  }
  await within(10_000, "close", second.close());
  data.remove();
});

test("a store that cannot be opened, and a program that is not there, stop the start with the reason", async () => {
  const broken = makeSystem({ store: { kind: "log", path: "/dev/null/nowhere" } });
  await within(
    10_000,
    "start",
    broken.start(new Events()).then(
      () => assert.unreachable(),
      (error: Error) => {
        assert.match(error.message, /nowhere|ENOTDIR/);
      },
    ),
  );
  const missing = makeSystem({ hostUrl: new URL("./no-such-program.js", import.meta.url) });
  await within(
    10_000,
    "start",
    missing.start(new Events()).then(
      () => assert.unreachable(),
      (error: Error) => {
        assert.match(error.message, /no-such-program/);
      },
    ),
  );
});

test.run();
