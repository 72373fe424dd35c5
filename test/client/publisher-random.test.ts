// A client that publishes and a node that refuses, loses, forgets and delays by chance: the real publisher over the real partitions,
// with everything between the two in the hands of a seed. Frames of a connection that the client has given up may still arrive, after
// those of the next one. Whatever happens, each event that resolved is stored once, those of a key stand in the order of their calls,
// and only what may be stored is told to be in doubt.

import { test } from "uvu";
import * as assert from "uvu/assert";
import type { Published as Stored, TopicRecord } from "../../src/actors/messages.ts";
import { PartitionActor } from "../../src/actors/partition.ts";
import type { Answer as WireAnswer } from "../../src/client/connection.ts";
import type { NarthexError } from "../../src/client/errors.ts";
import type { Link } from "../../src/client/lane.ts";
import { Publisher } from "../../src/client/publisher.ts";
import {
  decodeClientBatch,
  decodeServerBatch,
  encodePublished,
  type PublishBatch,
  type PublishedBatch,
} from "../../src/protocol/batch.ts";
import { type Code, type Failure, failure, isFailure } from "../../src/protocol/failure.ts";
import { jumpHash } from "../../src/protocol/jump-hash.ts";
import { streamOf } from "../../src/protocol/stream.ts";
import { Stage } from "../support/actor-stage.ts";
import { Dice } from "../support/dice.ts";
import { clientClockOf, ManualClock, settle } from "../support/fake-dial.ts";

const seeds = 120;
const steps = 400;
const topicId = 3;

/** What a frame waits for at the node: to be handled, then for the answer of its partition. */
interface Frame {
  readonly batch: PublishBatch;
  readonly answer: (answer: WireAnswer) => void;
}

class Model {
  readonly partitions: Stage[];
  private readonly dice: Dice;
  /** By partition: requests that wait for a commit. */
  private readonly open = new Map<Stage, Map<number, Frame>>();

  constructor(dice: Dice, count: number) {
    this.dice = dice;
    const record: TopicRecord = {
      id: topicId,
      name: "t",
      shards: Array.from({ length: count }, () => 0),
      settings: {},
      status: "live",
      createdAt: 0,
    };
    this.partitions = record.shards.map((_, partition) => {
      const stage = new Stage();
      stage.run((shelf, env) => PartitionActor.start(streamOf(topicId, partition), shelf, env));
      stage.answer({ type: "open", record });
      this.open.set(stage, new Map());
      return stage;
    });
  }

  /** A frame arrives. */
  handle(frame: Frame): void {
    const { dice } = this;
    const { batch, pack } = frame.batch;
    if (batch?.partition === undefined) throw new Error("the client names the partition");
    for (let i = 0; i < pack.count; i++) {
      const named = pack.key(i) ?? pack.id(i);
      if (named !== undefined) assert.is(jumpHash(named, this.partitions.length), batch.partition);
    }
    if (dice.chance(12)) {
      const code = dice.pick<Code>(["rate_limited", "overloaded", "publish_failed", "shutting_down", "bad_json"]);
      frame.answer(failure(code, "by chance", dice.chance(50) ? dice.below(100) : undefined));
      return;
    }
    const { producer, seq, chained } = batch;
    const stage = this.partitions[batch.partition];
    const ref = stage.ask({
      type: "publish",
      pack: pack.bytes.slice(pack.at),
      unparsed: true,
      batch: { producer, seq, order: chained ? "chained" : "rising" },
    });
    this.open.get(stage)?.set(ref, frame);
    // The front gives up waiting; the partition does not know.
    if (dice.chance(5)) this.giveUp(stage, ref);
    this.answer(stage);
  }

  commit(): void {
    const stage = this.dice.pick(this.partitions);
    stage.commit();
    this.answer(stage);
  }

  /** A commit that failed, or a thread that died: what was gathered is gone, and nobody is told more than that. */
  restart(): void {
    const partition = this.dice.below(this.partitions.length);
    const stage = this.partitions[partition];
    for (const ref of [...(this.open.get(stage)?.keys() ?? [])]) this.giveUp(stage, ref);
    stage.run((shelf, env) => PartitionActor.start(streamOf(topicId, partition), shelf, env));
  }

  pass(ms: number): void {
    for (const stage of this.partitions) {
      stage.wall += ms;
      stage.mono += ms;
      if (stage.wakeAt !== undefined && stage.wakeAt <= stage.mono) stage.wake();
    }
  }

  private giveUp(stage: Stage, ref: number): void {
    const frame = this.open.get(stage)?.get(ref);
    this.open.get(stage)?.delete(ref);
    frame?.answer(failure("unavailable", "nobody knows"));
  }

  private answer(stage: Stage): void {
    for (const [ref, { batch, answer }] of [...(this.open.get(stage) ?? [])]) {
      const given = stage.answers.get(ref) as Stored | Failure | undefined;
      if (given === undefined) continue;
      this.open.get(stage)?.delete(ref);
      if (isFailure(given)) answer(given);
      else {
        const partition = batch.batch?.partition as number;
        const bytes = encodePublished(
          batch.corr,
          given.runs.map((run) => ({ ...run, partition })),
        );
        answer(decodeServerBatch(bytes) as PublishedBatch);
      }
    }
  }
}

/** One connection. What was sent on it arrives in order, when the dice say so, also after the client has given it up. */
class Wire implements Link {
  live = true;
  readonly unsent = 0;
  readonly maxFrame = 1_000_000;
  readonly maxPayload = 100_000;
  readonly onWay: Frame[] = [];
  private readonly asked = new Set<(answer: WireAnswer) => void>();
  private readonly partitions: number;

  constructor(partitions: number) {
    this.partitions = partitions;
  }

  ask(_frame: { op: string }, done: (answer: WireAnswer) => void): void {
    done(this.live ? { op: "OK", handle: 1, partitions: this.partitions, durability: "fsync" } : "lost");
  }

  askBinary(encode: (corr: number) => Uint8Array, done: (answer: WireAnswer) => void): void {
    if (!this.live) {
      done("lost");
      return;
    }
    const batch = decodeClientBatch(encode(1).slice(), { maxPayload: this.maxPayload, batchEventsMax: 1000 });
    if (isFailure(batch) || batch.op !== "PUBLISH") throw new Error(JSON.stringify(batch));
    const once = (answer: WireAnswer) => {
      if (this.asked.delete(once)) done(answer);
    };
    this.asked.add(once);
    this.onWay.push({ batch, answer: once });
  }

  drop(): void {
    this.live = false;
    for (const answer of [...this.asked]) answer("lost");
  }
}

interface Call {
  readonly n: number;
  readonly line: string;
  fate: string;
}

async function run(seed: number): Promise<{ calls: Call[]; stored: Map<number, { n: number; line: string }[]> }> {
  const dice = new Dice(seed);
  const clock = new ManualClock();
  const partitions = dice.pick([1, 1, 3]);
  const model = new Model(dice, partitions);
  const publisher = new Publisher({
    clock: { ...clientClockOf(clock), random: () => dice.below(1000) / 1000 },
    publishTimeoutMs: dice.pick([500, 60_000, 60_000]),
    pendingEventsMax: 100_000,
    pendingBytesMax: 1e9,
  });
  const calls: Call[] = [];
  const wires: Wire[] = [];
  let now: Wire | undefined;
  const call = () => {
    const n = calls.length;
    const key = dice.chance(60) ? `k${dice.below(4)}` : undefined;
    const id = dice.chance(30) ? `id-${n}` : undefined;
    // With one partition everything that a client publishes is in order.
    const line = partitions === 1 ? "all" : (key ?? `alone-${n}`);
    const entry: Call = { n, line, fate: "pending" };
    calls.push(entry);
    const given = { ...(key === undefined ? {} : { key }), ...(id === undefined ? {} : { id }) };
    publisher.publish("t", { n, line }, given).then(
      ({ partition, offset }) => {
        entry.fate = `${partition}:${offset}`;
      },
      (error: NarthexError) => {
        entry.fate = error.code;
      },
    );
  };
  const arrive = (wire: Wire) => {
    const frame = wire.onWay.shift();
    if (frame !== undefined) model.handle(frame);
  };
  const lose = () => {
    now?.drop();
    if (now !== undefined) publisher.lost();
    now = undefined;
  };
  const connect = () => {
    lose();
    now = new Wire(partitions);
    wires.push(now);
    publisher.connected(now);
  };
  for (let step = 0; step < steps; step++) {
    const what = dice.below(100);
    if (what < 35) for (let n = dice.below(4); n >= 0; n--) call();
    else if (what < 60 && now !== undefined) arrive(now);
    else if (what < 65 && wires.length > 0) arrive(dice.pick(wires));
    else if (what < 80) model.commit();
    else if (what < 82) model.restart();
    else if (what < 84) lose();
    else if (what < 88) connect();
    else {
      const ms = dice.below(80);
      model.pass(ms);
      clock.advance(ms);
    }
    if (dice.chance(70)) clock.turn();
    await settle();
  }
  // Then the node is well, and everything comes to an end. What is left of old connections comes last.
  connect();
  for (let round = 0; round < 400 && calls.some(({ fate }) => fate === "pending"); round++) {
    clock.turn();
    while (now !== undefined && now.onWay.length > 0) arrive(now);
    for (let n = 0; n < 10; n++) model.commit();
    model.pass(20);
    clock.advance(20);
    await settle();
  }
  for (const wire of wires) while (wire.onWay.length > 0) arrive(wire);
  for (let n = 0; n < 20; n++) model.commit();
  const stored = new Map(
    model.partitions.map((stage, partition) => [
      partition,
      stage.blocks.flatMap((block) =>
        Array.from(
          { length: block.count },
          (_, i): Call => JSON.parse(new TextDecoder().decode(block.pack.payload(i))) as Call,
        ),
      ),
    ]),
  );
  return { calls, stored };
}

test("whatever is refused, lost, forgotten or late: stored once, in order, and nothing that resolved is missing", async () => {
  const fates = new Map<string, number>();
  for (let seed = 1; seed <= seeds; seed++) {
    const { calls, stored } = await run(seed);
    const places = new Map<number, string>();
    for (const [partition, events] of stored) {
      const lines = new Map<string, number>();
      for (const [offset, { n, line }] of events.entries()) {
        assert.not(places.has(n), `seed ${seed}: event ${n} is stored twice`);
        places.set(n, `${partition}:${offset}`);
        assert.ok((lines.get(line) ?? -1) < n, `seed ${seed}: event ${n} of ${line} stands behind ${lines.get(line)}`);
        lines.set(line, n);
      }
    }
    for (const { n, fate } of calls) {
      fates.set(/^\d/.test(fate) ? "stored" : fate, (fates.get(/^\d/.test(fate) ? "stored" : fate) ?? 0) + 1);
      if (/^\d/.test(fate)) assert.is(places.get(n), fate, `seed ${seed}: event ${n} is not where it was said to be`);
      else if (fate === "unknown_outcome") continue;
      else if (fate === "timeout" || fate === "bad_json") {
        assert.not(places.has(n), `seed ${seed}: event ${n} was said not to be stored (${fate})`);
      } else assert.unreachable(`seed ${seed}: event ${n} is ${fate}`);
    }
  }
  console.log(`measured: ${[...fates].map(([fate, count]) => `${count} ${fate}`).join(", ")}`);
  for (const fate of ["stored", "unknown_outcome", "timeout", "bad_json"])
    assert.ok((fates.get(fate) ?? 0) > 100, fate);
});

test.run();
