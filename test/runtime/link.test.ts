// The front's end of a worker: one post per turn, a bound on what is under way, and an answer to everyone.

import { test } from "uvu";
import * as assert from "uvu/assert";
import type { Answer } from "../../src/actors/messages.ts";
import { failure } from "../../src/protocol/failure.ts";
import type { Item, ToHost } from "../../src/runtime/envelope.ts";
import { Link } from "../../src/runtime/link.ts";
import { createLogger } from "../../src/runtime/log.ts";
import { ManualClock } from "../support/manual-clock.ts";

const to = { shard: 3, cell: "a" };

class Stage {
  readonly clock = new ManualClock();
  readonly posts: ToHost[] = [];
  readonly items: Item[] = [];
  readonly answers: (Answer | undefined)[] = [];
  readonly link: Link;

  constructor({ messages = 100, bytes = 1_000_000 }: { messages?: number; bytes?: number } = {}) {
    this.link = new Link({
      worker: 0,
      clock: this.clock,
      log: createLogger("silent", () => undefined, this.clock),
      limits: { workerInflightMax: messages, workerInflightBytesMax: bytes, askMs: 1000 },
      post: (message, transfer) => void this.posts.push(structuredClone(message, { transfer: [...transfer] })),
      item: (item) => void this.items.push(item),
    });
  }

  /** The index of the answer, or the code of the refusal. */
  ask(bytes = 0): number | string {
    const pack = this.link.take(bytes);
    pack.fill(9);
    const index = this.answers.push(undefined) - 1;
    const refused = this.link.ask(to, { type: "publish", pack, unparsed: false }, (answer) => {
      assert.is(this.answers[index], undefined, "answered twice");
      this.answers[index] = answer;
    });
    return refused?.code ?? index;
  }

  reply(id: number, answer: Answer = null, tells = 0): void {
    this.link.receive({ items: [{ type: "answer", id, answer }], tells });
  }
}

test("the messages of a turn leave in one post, with their bytes", () => {
  const stage = new Stage();
  stage.ask(10);
  stage.link.tell(to, { type: "describe" });
  stage.link.answer({ shard: 3, ask: 4, answer: null });
  stage.ask(200_000);
  assert.equal(stage.posts, []);
  stage.clock.turn();
  assert.is(stage.posts.length, 1);
  const { mail, answers } = stage.posts[0];
  assert.equal(answers, [{ shard: 3, ask: 4, answer: null }]);
  assert.equal(
    mail.map(({ id, shard, cell, message }) => [id, shard, cell, message.type]),
    [
      [1, 3, "a", "publish"],
      [0, 3, "a", "describe"],
      [2, 3, "a", "publish"],
    ],
  );
  const big = mail[2].message;
  assert.ok(big.type === "publish" && big.pack.length === 200_000 && big.pack.every((byte) => byte === 9));
  stage.clock.turn();
  assert.is(stage.posts.length, 1);
});

test("at the credit of messages a request is overloaded; its answer or its being taken in frees a place", () => {
  const stage = new Stage({ messages: 3 });
  assert.is(stage.ask(), 0);
  stage.link.tell(to, { type: "describe" });
  assert.is(stage.ask(), 1);
  assert.is(stage.ask(), "overloaded");
  stage.reply(1);
  assert.is(stage.ask(), 3);
  assert.is(stage.ask(), "overloaded");
  stage.link.receive({ items: [], tells: 1 });
  stage.link.tell(to, { type: "describe" });
  stage.link.receive({ items: [], tells: 1 });
  assert.is(stage.ask(), "overloaded", "the number is cumulative: the same one frees nothing");
  stage.link.receive({ items: [], tells: 2 });
  assert.is(stage.ask(), 6);
});

test("at the credit of bytes a request is overloaded", () => {
  const stage = new Stage({ bytes: 1000 });
  assert.is(stage.ask(600), 0);
  assert.is(stage.ask(600), "overloaded");
  assert.is(stage.ask(400), 2);
  stage.reply(1);
  assert.is(stage.link.underWayBytes, 400);
  assert.is(stage.ask(600), 3);
});

test("a request without an answer is unavailable at its deadline, each at its own", () => {
  const stage = new Stage();
  stage.ask();
  stage.clock.advance(400);
  stage.ask();
  stage.ask();
  stage.reply(3, { offset: 1 });
  stage.clock.advance(599);
  assert.is(stage.answers[0], undefined);
  stage.clock.advance(1);
  assert.is((stage.answers[0] as { code: string }).code, "unavailable");
  assert.is(stage.answers[1], undefined);
  stage.clock.advance(400);
  assert.is((stage.answers[1] as { code: string }).code, "unavailable");
  assert.equal(stage.answers[2], { offset: 1 });
});

test("a request past its deadline holds its place until the late answer, which goes nowhere", () => {
  const stage = new Stage({ messages: 1 });
  stage.ask(100);
  stage.clock.advance(1000);
  assert.is(stage.ask(), "overloaded");
  stage.reply(1, { offset: 1 });
  assert.is((stage.answers[0] as { code: string }).code, "unavailable");
  assert.is(stage.link.underWayBytes, 0);
  assert.is(stage.ask(), 2);
});

test("when the thread is gone everyone who waits is told at once, and everyone who comes", () => {
  const stage = new Stage();
  stage.ask();
  stage.ask();
  const gone = failure("unavailable", "worker 0 died");
  stage.link.fail(gone);
  assert.equal(stage.answers, [gone, gone]);
  assert.is(stage.ask(), "unavailable");
  stage.link.tell(to, { type: "describe" });
  stage.clock.turn();
  stage.link.receive({ items: [{ type: "shardDown", shard: 3, reason: "late" }], tells: 0 });
  assert.equal(stage.items, []);
  assert.equal(stage.posts, []);
  assert.is(stage.clock.timerCount, 0);
  assert.is(stage.link.underWay, 0);
});

test("a message that cannot be cloned is internal to its post, and the next one leaves", () => {
  const stage = new Stage();
  const odd = { type: "describe", run: () => undefined } as const;
  let answer: Answer | undefined;
  stage.link.ask(to, odd, (value) => {
    answer = value;
  });
  stage.clock.turn();
  assert.is((answer as { code?: string } | undefined)?.code, "internal");
  stage.ask();
  stage.clock.turn();
  assert.is(stage.posts.length, 1);
});

test.run();
