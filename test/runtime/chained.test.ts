// Batches that are chained, through what can happen to a commit: one is never stored without the one before it.

import { test } from "uvu";
import * as assert from "uvu/assert";
import type { Message, Published, TopicRecord } from "../../src/actors/messages.ts";
import { PartitionActor } from "../../src/actors/partition.ts";
import { BlockView } from "../../src/protocol/block.ts";
import { streamOf } from "../../src/protocol/stream.ts";
import { HostStage, pack } from "../support/host-stage.ts";

const stream = streamOf(3, 0);
const cell = `partition/${stream}`;
const record: TopicRecord = { id: 3, name: "t", shards: [0], settings: {}, status: "live", createdAt: 0 };

/** The real partition on a host whose commits wait for the test. An id that is asked for by the name `fault` makes it throw. */
async function opened(): Promise<HostStage> {
  const stage = new HostStage();
  stage.residents.push(cell);
  stage.scripts.set(cell, (shelf, env) => {
    const { actor, effects } = PartitionActor.start(stream, shelf, env);
    return {
      receive: (message, ref, now) => {
        if (message.type === "locateId" && message.id === "fault") throw new Error("a fault by the test");
        return actor.receive(message, ref, now);
      },
      persist: (placed, now) => actor.persist(placed, now),
      first: effects,
    };
  });
  await stage.open();
  stage.ask(cell, { type: "open", record });
  await stage.settle();
  stage.store.commits.length = 0;
  stage.store.gateCommits = true;
  return stage;
}

function batch(seq: number, order: "rising" | "chained" = "chained"): Message {
  return { type: "publish", pack: pack(seq), unparsed: false, batch: { producer: "p", seq, order } };
}

/** What the commits that were let through hold, in order. */
function stored(stage: HostStage, refused: readonly object[] = []): unknown[] {
  return stage.store.commits
    .filter((commit) => !refused.includes(commit))
    .flatMap(({ blocks }) => blocks)
    .flatMap((bytes) => {
      const block = new BlockView(bytes);
      return Array.from({ length: block.count }, (_, i) =>
        JSON.parse(new TextDecoder().decode(block.pack.payload(i))),
      ) as unknown[];
    });
}

async function releaseAll(stage: HostStage): Promise<void> {
  stage.store.gateCommits = false;
  while (stage.store.waiting.length > 0) await stage.store.release();
  await stage.settle();
}

for (const failing of ["breakNext", "refuseNext"] as const) {
  test(`a commit that fails (${failing}) takes along what is chained behind it and has only been gathered`, async () => {
    const stage = await opened();
    const first = stage.ask(cell, batch(0, "rising"));
    await stage.settle();
    const second = stage.ask(cell, batch(1));
    const [failed] = stage.store.waiting.map(({ commit }) => commit);
    stage.store[failing]();
    await stage.settle();
    const code = failing === "breakNext" ? "unavailable" : "publish_failed";
    assert.equal([stage.code(first), stage.code(second)], [code, code]);
    stage.store.gateCommits = false;
    const down = stage.ask(cell, batch(1));
    await stage.settle();
    assert.is(stage.code(down), "publish_failed", "the shard is down");
    stage.clock.advance(1000);
    await stage.settle();
    const late = [1, 2].map((seq) => stage.ask(cell, batch(seq)));
    await stage.settle();
    assert.equal(
      late.map((id) => stage.code(id)),
      ["publish_failed", "publish_failed"],
      "what it is chained to was lost",
    );
    stage.askAll([
      [cell, batch(0, "rising")],
      [cell, batch(1)],
      [cell, batch(2)],
    ]);
    await stage.settle();
    assert.equal(stored(stage, [failed]), [0, 1, 2]);
  });
}

test("an actor that is started again keeps what is in flight and forgets what it had gathered, and all behind that", async () => {
  const stage = await opened();
  const inFlight = stage.ask(cell, batch(0, "rising"));
  await stage.settle();
  const gathered = stage.ask(cell, batch(1));
  stage.ask(cell, { type: "locateId", id: "fault" });
  const waiting = stage.ask(cell, batch(2));
  await releaseAll(stage);
  assert.equal(
    [inFlight, gathered, waiting].map((id) => stage.code(id)),
    ["unavailable", "unavailable", "publish_failed"],
  );
  assert.equal(stored(stage), [0]);
  const again = stage.askAll([
    [cell, batch(0, "rising")],
    [cell, batch(1)],
    [cell, batch(2)],
  ]);
  await stage.settle();
  assert.equal(
    again.map((id) => (stage.answer(id) as Published).runs.map(({ offset, duplicate }) => [offset, !!duplicate])),
    [[[0, true]], [[1, false]], [[2, false]]],
  );
  assert.equal(stored(stage), [0, 1, 2]);
});

test.run();
