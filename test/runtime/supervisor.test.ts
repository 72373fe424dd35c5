// The supervisor over threads that a test plays itself: when it starts them again, and what it remembers of the dead.

import { test } from "uvu";
import * as assert from "uvu/assert";
import type { Sample } from "../../src/actors/effects.ts";
import type { Answer } from "../../src/actors/messages.ts";
import { isFailure } from "../../src/protocol/failure.ts";
import type { ToFront, ToHost } from "../../src/runtime/envelope.ts";
import { createLogger } from "../../src/runtime/log.ts";
import type { Thread, Threads } from "../../src/runtime/pool.ts";
import { Supervisor } from "../../src/runtime/supervisor.ts";
import type { SystemEvents } from "../../src/runtime/system.ts";
import { hostLimits } from "../support/host-stage.ts";
import { ManualClock } from "../support/manual-clock.ts";

class PlayedThread implements Thread {
  readonly posts: ToHost[] = [];
  readonly ended: Promise<void>;
  readonly placed: number[] = [];
  /** What `take` still finds after the death. */
  readonly left: ToFront[] = [];
  samples: readonly Sample[] = [];
  die!: (reason: string) => void;
  exit!: () => void;
  closed = false;
  aborted = false;
  /** Its loop does not turn. */
  silent = false;
  /** The process was stopped while it was asked: the deadline of the question is over before its answer is seen. */
  late = false;
  readonly worker: number;
  readonly received: (post: ToFront) => void;
  private readonly exited: Promise<void>;

  constructor(worker: number, received: (post: ToFront) => void) {
    this.worker = worker;
    this.received = received;
    this.ended = new Promise((_, reject) => {
      this.die = (reason) => reject(new Error(reason));
    });
    this.exited = new Promise((resolve) => {
      this.exit = resolve;
    });
  }

  readonly control = {
    place: async (shards: readonly number[]) => {
      this.placed.push(...shards);
      if (this.silent) await new Promise(() => undefined);
      if (!this.late) return;
      this.late = false;
      throw new Error("no answer to place");
    },
    drain: async () => undefined,
    samples: async () => this.samples,
    crash: () => undefined,
  };

  post(message: ToHost): void {
    this.posts.push(message);
  }
  take(): ToFront | undefined {
    return this.left.shift();
  }
  gone(): Promise<void> {
    return this.exited;
  }
  abort(): void {
    this.aborted = true;
    this.die("aborted");
  }
  close(): void {
    this.closed = true;
  }

  up(epoch = 1): void {
    for (const shard of this.placed)
      this.received({ items: [{ type: "shardUp", shard, epoch, damage: [] }], tells: 0 });
  }
}

class Stage implements SystemEvents {
  readonly clock = new ManualClock();
  readonly threads: PlayedThread[] = [];
  readonly log: string[] = [];
  readonly system: Supervisor;

  constructor(workers = 1, shards = 1) {
    const threads: Threads = {
      launch: (settings, received) => {
        const thread = new PlayedThread(settings.worker, received);
        this.threads.push(thread);
        return thread;
      },
      destroy: async () => undefined,
    };
    const limits = {
      workerInflightMax: 10,
      workerInflightBytesMax: 1000,
      askMs: 1000,
      drainMs: 1000,
      workerHeapMb: undefined,
    };
    this.system = new Supervisor(
      {
        workers,
        shards,
        store: { kind: "memory" },
        limits,
        actorLimits: hostLimits,
        clock: this.clock,
        log: createLogger("silent", () => undefined, this.clock),
      },
      { threads: () => threads, meter: () => ({ samples: () => [], stop: () => undefined }) },
    );
  }

  async start(): Promise<void> {
    const started = this.system.start(this);
    await settle();
    for (const thread of this.threads) thread.up();
    await started;
  }

  /** In steps, so that those who are asked in between can answer. */
  async pass(ms: number): Promise<void> {
    for (let passed = 0; passed < ms; passed += 1000) {
      this.clock.advance(1000);
      await settle();
    }
  }

  signal(): void {}
  shardUp(shard: number, epoch: number): void {
    this.log.push(`up ${shard} ${epoch}`);
  }
  shardDown(shard: number, reason: string): void {
    this.log.push(`down ${shard}: ${reason}`);
  }
  cellRestarted(): void {}
}

const settle = () => new Promise((resolve) => setImmediate(resolve));
const to = { shard: 0, cell: "a" };

test("a thread that gives no sign of life is ended, and there is another when it is gone", async () => {
  const stage = new Stage(2, 2);
  await stage.start();
  await stage.pass(100_000);
  assert.equal(
    stage.threads.map(({ aborted }) => aborted),
    [false, false],
    "threads that answer",
  );
  stage.threads[1].silent = true;
  // One look asks, six wait for the answer.
  await stage.pass(34_000);
  assert.not(stage.threads[1].aborted);
  stage.threads[1].exit();
  await stage.pass(6_000);
  assert.equal([stage.threads[0].aborted, stage.threads[1].aborted], [false, true]);
  assert.equal(stage.log.slice(2), ["down 1: worker 1 died: it gave no sign of life for 30000 ms"]);
  assert.equal([stage.threads.length, stage.threads[2].worker], [3, 1]);
});

test("a thread that was asked just before the whole process was stopped is asked once more, not ended", async () => {
  const stage = new Stage();
  await stage.start();
  stage.threads[0].late = true;
  await stage.pass(120_000);
  assert.not(stage.threads[0].late, "it was asked");
  assert.not(stage.threads[0].aborted);
  stage.threads[0].silent = true;
  await stage.pass(40_000);
  assert.ok(stage.threads[0].aborted);
});

test("when a thread dies its requests fail at once, but a new one starts only when the old one is gone", async () => {
  const stage = new Stage(2, 4);
  await stage.start();
  assert.equal(
    stage.threads.map(({ placed }) => placed),
    [
      [0, 2],
      [1, 3],
    ],
  );
  const answers: Answer[] = [];
  stage.system.ask(to, { type: "describe" }, (answer) => void answers.push(answer));
  stage.threads[0].die("out of memory");
  await settle();
  assert.ok(isFailure(answers[0]) && answers[0].code === "unavailable");
  assert.equal(stage.log.slice(4), ["down 0: worker 0 died: out of memory", "down 2: worker 0 died: out of memory"]);
  await stage.pass(60_000);
  assert.is(stage.threads.length, 2, "the old one may still be writing");
  const refused = stage.system.request(to, { type: "describe" });
  stage.clock.turn();
  const answer = await refused;
  assert.ok(isFailure(answer) && /out of memory/.test(answer.msg));
  stage.threads[0].exit();
  await settle();
  assert.is(stage.threads.length, 3);
  assert.equal([stage.threads[2].worker, stage.threads[2].placed], [0, [0, 2]]);
  stage.threads[2].up(2);
  assert.equal(stage.log.slice(6), ["up 0 2", "up 2 2"]);
  assert.equal(
    stage.system.state().map(({ status, epoch }) => `${status} ${epoch}`),
    ["up 2", "up 1", "up 2", "up 1"],
  );
});

test("what a thread had posted before it died still counts", async () => {
  const stage = new Stage();
  await stage.start();
  const answers: Answer[] = [];
  for (let n = 0; n < 2; n++) stage.system.ask(to, { type: "describe" }, (answer) => void answers.push(answer));
  stage.clock.turn();
  const [first] = stage.threads[0].posts[0].mail;
  stage.threads[0].left.push({ items: [{ type: "answer", id: first.id, answer: { offset: 7 } }], tells: 0 });
  stage.threads[0].die("boom");
  await settle();
  assert.equal(answers[0], { offset: 7 });
  assert.ok(isFailure(answers[1]));
  assert.ok(stage.threads[0].closed);
});

test("a thread that dies again and again is started later each time, and at once after it lived long", async () => {
  const stage = new Stage();
  await stage.start();
  const waits: number[] = [];
  for (let n = 1; n <= 8; n++) {
    const thread = stage.threads.at(-1)!;
    thread.die("boom");
    thread.exit();
    await settle();
    let waited = 0;
    while (stage.threads.length === n) {
      stage.clock.advance(50);
      waited += 50;
    }
    waits.push(waited);
    await settle();
    stage.threads.at(-1)!.up(n + 1);
  }
  assert.equal(waits, [0, 100, 200, 400, 800, 1600, 2000, 2000]);
  stage.clock.advance(10_001);
  stage.threads.at(-1)!.die("boom");
  stage.threads.at(-1)!.exit();
  await settle();
  assert.is(stage.threads.length, 10);
});

test("what a dying thread says of itself during a scrape is not counted twice, and its counters stay", async () => {
  const stage = new Stage();
  await stage.start();
  const read = async () => {
    const samples = await stage.system.samples();
    return Object.fromEntries(samples.map(({ name, value }) => [name, value]));
  };
  const said = (value: number): Sample[] => [
    { name: "seen_total", labels: {}, value },
    { name: "depth", labels: {}, value },
  ];
  stage.threads[0].samples = said(5);
  assert.is((await read()).seen_total, 5);
  stage.threads[0].samples = said(9);
  stage.threads[0].die("boom");
  stage.threads[0].exit();
  const during = await read();
  assert.is(during.seen_total, 5);
  assert.is(during.depth, undefined);
  await settle();
  stage.threads[1].samples = said(2);
  const after = await read();
  assert.equal([after.seen_total, after.depth, after.worker_restarts_total], [7, 2, 1]);
});

test("a shard that cannot be opened at the start stops it, by name", async () => {
  const stage = new Stage(2, 2);
  const started = stage.system.start(stage);
  await settle();
  stage.threads[0].up();
  stage.threads[1].received({ items: [{ type: "shardDown", shard: 1, reason: "the folder is locked" }], tells: 0 });
  try {
    await started;
    assert.unreachable();
  } catch (error) {
    assert.match((error as Error).message, /shard 1.*the folder is locked/);
  }
  assert.ok(stage.threads.every(({ closed }) => closed));
});

test("a shard whose cause may pass does not stop the start: the node comes up with the others and says why", async () => {
  const stage = new Stage(2, 2);
  const started = stage.system.start(stage);
  await settle();
  const reason = "the disk is full (ENOSPC)";
  stage.threads[1].received({ items: [{ type: "shardDown", shard: 1, reason, mayPass: true }], tells: 0 });
  await settle();
  assert.equal(stage.log, [`down 1: ${reason}`]);
  stage.threads[0].up();
  await started;
  const states = () => stage.system.state().map(({ status, reason: why }) => [status, why]);
  assert.equal(states(), [
    ["up", undefined],
    ["down", reason],
  ]);
  stage.threads[1].up(3);
  stage.threads[0].received({ items: [{ type: "shardDown", shard: 0, reason, reads: true }], tells: 0 });
  assert.equal(states(), [
    ["read-only", reason],
    ["up", undefined],
  ]);
  assert.equal(stage.log.slice(1), ["up 0 1", "up 1 3", `down 0: ${reason}`]);
});

test("damage that is found again at each try to open a shard is listed once", async () => {
  const stage = new Stage();
  await stage.start();
  const damage = (place: string, from: number) => ({ shard: 0, place, reason: "unreadable", stream: 1, from, to: 9 });
  const said = (place: string, from: number) =>
    stage.threads[0].received({ items: [{ type: "damaged", damage: damage(place, from) }], tells: 0 });
  for (let tries = 0; tries < 3; tries++) {
    said("a.log 0..8", 0);
    said("a.log 0..8", 4);
    said("b.log 0..8", 0);
  }
  const expected = [damage("a.log 0..8", 0), damage("a.log 0..8", 4), damage("b.log 0..8", 0)];
  assert.equal(stage.system.state()[0].damage, expected);
});

test.run();
