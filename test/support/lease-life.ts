// Lives of a group, made of single steps: each knows what to do from a number and a seed of its own, so a run is a list of steps that can be
// cut and shortened. After each, the table is held against the plain model of lease-model.ts; in the end every event was acked,
// dead-lettered, filtered out or is gone.

import * as assert from "uvu/assert";
import { entryKeys } from "../../src/actors/entries.ts";
import type {
  CursorState,
  EventFacts,
  GroupFacts,
  LeaseRun,
  RunsSettled,
  SettleResult,
} from "../../src/actors/messages.ts";
import { failure, isFailure } from "../../src/protocol/failure.ts";
import { PackView } from "../../src/protocol/pack.ts";
import { Dice } from "./dice.ts";
import { deadRecord, type Got, LeaseHarness, stream } from "./lease-harness.ts";
import { LeaseModel } from "./lease-model.ts";

const unsettledMax = 60;

export class Life {
  /** Of the step at hand. */
  private dice: Dice;
  readonly h = new LeaseHarness({ limits: { unsettledMax } });
  readonly model: LeaseModel;
  /** Every delivery, since acks come late and twice. */
  readonly history: Got[] = [];
  private nextMember = 1;
  private looked = 0;
  private sought = false;

  constructor(seed: number) {
    this.dice = new Dice(seed);
    const { dice } = this;
    this.model = new LeaseModel({
      maxAttempts: dice.pick([2, 3, 5]),
      backoffMs: dice.pick([0, 50, [10, 200]]),
      ordering: dice.pick(["none", "key"] as const),
      keyPrefix: dice.pick([undefined, undefined, "a"]),
    });
    this.model.now = this.h.mono;
  }

  /** `roll`, from 0 to 99, says what to do, the seed with whom and how. Gives what was done. */
  step(roll: number, seed: number): string {
    this.dice = new Dice(seed);
    const { h, dice } = this;
    if (h.holdCommits && dice.chance(25)) return this.stepOfCommit();
    if (roll < 14) return this.publish(1 + dice.below(5));
    if (roll < 18) return this.join();
    if (roll < 22) return this.withMember((member) => this.grant(member, dice.below(6)));
    if (roll < 45) return this.settle(true);
    if (roll < 53) return this.settle(false);
    if (roll < 58) return this.settleRun();
    if (roll < 62) return this.extend();
    if (roll < 66) return this.withMember((member) => this.flow(member));
    if (roll < 69) return this.withMember((member) => this.leave(member));
    if (roll < 71) return this.withMember((member) => this.recall(member));
    if (roll < 88) return this.pass(dice.pick([1, 10, 49, 100, 500, 2000]));
    if (roll < 90) {
      h.delayReads = !h.delayReads;
      h.answerReads();
      return "reads";
    }
    if (roll < 94) {
      h.answerReads();
      return "answer reads";
    }
    if (roll < 95) {
      h.failRead();
      return "a read will fail";
    }
    if (roll < 96) {
      h.deadLetterAnswer = dice.chance(50) ? deadRecord : failure("unavailable", "not now");
      return "dead letters";
    }
    if (roll < 98) return dice.chance(50) ? this.restart(dice.chance(50)) : this.holdCommits();
    if (roll < 99) return this.trim();
    if (dice.chance(50)) return this.seek();
    return this.changeOrdering();
  }

  /** Brings the model up to what has come out of the table, and compares. */
  compare(): void {
    const { h, model } = this;
    for (const outcome of h.timeline.splice(0)) {
      if (outcome instanceof PackView) {
        for (let i = 0; i < outcome.count; i++) {
          const { headers } = JSON.parse(outcome.extension(i).meta!);
          model.buried(Number(headers["x-dlq-offset"]), h.mono);
        }
      } else if ("commit" in outcome) {
        model.advance(outcome.at);
        if (outcome.commit === "begins") model.commitBegins();
        else model.commitEnds();
      } else {
        model.delivered(outcome);
        this.history.push(outcome);
      }
    }
    model.advance(h.mono);
    for (const { member, slots } of h.takeSignals("release")) model.members.get(member)!.slots -= slots;
    for (const member of model.members.values()) assert.ok(member.slots >= -unsettledMax);
    if (h.delayReads) return;
    const state = h.cursor();
    if (!state.exists) return;
    assert.is(state.end, model.events.length);
    const inRanges = (offset: number) => state.ranges.some(([from, to]) => from <= offset && offset < to);
    for (const event of model.events) {
      const settled = event.offset < state.floor || inRanges(event.offset);
      if (event.status === "settled" || event.status === "gone") assert.ok(settled, `${event.offset} is not settled`);
      else if (model.matches(event)) assert.not(settled, `${event.offset} is settled, not ${event.status}`);
    }
    assert.is(state.leased, model.events.filter(({ status }) => status === "leased").length);
    this.checkFacts(state);
    this.checkProgress();
  }

  /** What the table says of itself adds up, and of one event after the other it says what the model does. */
  private checkFacts(state: CursorState): void {
    const { h, model } = this;
    const { counts, lag, members } = h.ask<GroupFacts>({ type: "explain" });
    const sum = Object.values(counts).reduce((total, count) => total + count, 0);
    assert.equal([sum, lag, counts.leased], [state.lag, state.lag, state.leased]);
    assert.ok(
      Object.values(counts).every((count) => count >= 0),
      JSON.stringify(counts),
    );
    assert.is(
      members.reduce((total, { leases }) => total + leases, 0),
      counts.leased,
    );
    const event = model.events[this.looked++ % Math.max(1, model.events.length)];
    if (event === undefined) return;
    const { state: said, attempts, holdings } = h.ask<EventFacts>({ type: "history", offset: event.offset });
    const { status, lease } = event;
    const live = holdings.filter(({ outcome }) => outcome === "leased").map(({ who, attempt }) => [who, attempt]);
    if (status === "leased") {
      assert.equal([said, attempts], ["leased", event.attempts + 1]);
      assert.equal(live, [[`client ${lease?.member}`, event.attempts + 1]]);
      return;
    }
    assert.equal(live, []);
    const settled = ["acked", "dead_lettered", "filtered", "settled"].includes(said);
    if (status === "settled" || status === "gone") assert.ok(settled, `${event.offset} is ${status}, not ${said}`);
    else if (model.matches(event)) {
      assert.not(settled, `${event.offset} is ${status}, not ${said}`);
      assert.is(attempts, event.attempts);
    }
  }

  /** What can be delivered has been, unless something is in the way. */
  private checkProgress(): void {
    const { h, model } = this;
    const suspects = model.events.some((event) => event.status !== "settled" && model.isSuspect(event));
    if (suspects || h.total("group_full") === 1 || this.retrying) return;
    // What waits for a commit keeps a slot.
    const kept = model.events.filter(({ undurable }) => undurable !== undefined).length;
    const able = [...model.members.values()].find(
      ({ open, slots, number }) =>
        open && slots >= 1 + kept && !model.leasesOf(number).some(({ dueAt }) => dueAt === -1),
    );
    if (able === undefined) return;
    const left = model.events.find((event) => !event.mayDie && model.hindrance(event) === undefined);
    assert.is(left?.offset, undefined, `${left?.offset} waits although member ${able.number} could take it`);
  }

  private get retrying(): boolean {
    return (this.h.actor as unknown as { dispatch: { retryAt?: number } }).dispatch.retryAt !== undefined;
  }

  /** Whatever crashed in between, each is there once. */
  private checkDeadLetters(): void {
    const moved = this.h.buried.flatMap(({ pack }) =>
      Array.from({ length: pack.count }, (_, i) => JSON.parse(pack.extension(i).meta!).headers["x-dlq-offset"]),
    );
    assert.is(new Set(moved).size, moved.length, "a dead letter was made twice");
  }

  private withMember(run: (member: number) => string): string {
    const numbers = [...this.model.members.keys()];
    return numbers.length === 0 ? this.join() : run(this.dice.pick(numbers));
  }

  private publish(count: number): string {
    const { h, dice, model } = this;
    const events = Array.from({ length: count }, (_, i) => {
      const key = dice.pick([undefined, "a1", "a2", "a3", "b1"]);
      model.publish(key);
      return {
        ...(key === undefined ? {} : { key }),
        ...(dice.chance(20) ? { id: `own-${model.events.length}-${i}` } : {}),
      };
    });
    h.publish(...events);
    return `publish ${count}`;
  }

  private join(): string {
    const { h, dice, model } = this;
    if (model.members.size > 4) return "enough members";
    const member = this.nextMember++;
    if (dice.chance(20)) model.setMaxAttempts(dice.pick([2, 3, 4, 5]));
    const { maxAttempts, backoffMs, ordering, keyPrefix } = model.options;
    const ackTimeoutMs = dice.pick([100, 1000, 5000]);
    const joined = h.join(member, {
      ackTimeoutMs,
      batchSize: 1 + dice.below(4),
      format: dice.pick(["json", "batch"] as const),
      group: { maxAttempts, backoffMs, ordering, filter: keyPrefix === undefined ? null : { keyPrefix } },
    });
    assert.not(isFailure(joined));
    model.members.set(member, {
      number: member,
      ackTimeoutMs,
      slots: 0,
      open: true,
      stalled: false,
      sequence: 0,
      written: 0,
    });
    return `join ${member}; ${this.grant(member, 1 + dice.below(10))}`;
  }

  private grant(member: number, slots: number): string {
    this.model.members.get(member)!.slots += slots;
    this.h.grant(member, slots);
    return `grant ${member} ${slots}`;
  }

  private recall(member: number): string {
    const slots = 1 + this.dice.below(3);
    this.h.tell({ type: "recall", member, slots });
    return `recall ${member} ${slots}`;
  }

  private flow(number: number): string {
    const { h, dice, model } = this;
    const member = model.members.get(number)!;
    member.open = dice.chance(70);
    member.stalled = dice.chance(20);
    member.written += dice.below(member.sequence - member.written + 1);
    const { open, stalled, written } = member;
    h.tell({ type: "flow", member: number, open, stalled, written });
    return `flow ${number} open ${open} stalled ${stalled} written ${written}`;
  }

  private leave(number: number): string {
    const member = this.model.members.get(number)!;
    const cause = this.dice.pick(["disconnect", "disconnect", "unsubscribe", "shutdown"] as const);
    const written = member.written + this.dice.below(member.sequence - member.written + 1);
    this.model.leave(number, cause, written);
    this.h.leave(number, cause, written);
    return `leave ${number} by ${cause}, ${written} written`;
  }

  private pickGot(): Got | undefined {
    const { dice, history, model } = this;
    if (history.length === 0) return undefined;
    const held = history.slice(-80).filter(({ offset, token }) => model.events[offset].lease?.token === token);
    if (dice.chance(80) && held.length > 0) return dice.pick(held);
    // Recent ones: what was settled long ago may be answered as lost, since nothing is remembered of it.
    return dice.pick(history.slice(-30));
  }

  private settle(ack: boolean): string {
    const { h, dice, model } = this;
    const got = this.pickGot();
    if (got === undefined) return "nothing to settle";
    const numbers = [...model.members.keys()];
    const member = dice.chance(90) || numbers.length === 0 ? got.member : dice.pick(numbers);
    const named = dice.chance(50) ? got : undefined;
    const delayMs = dice.chance(50) ? dice.pick([0, 30, 700, 20_000]) : undefined;
    const entry = {
      id: got.id,
      ack,
      ...(named ? { lease: got.lease } : {}),
      ...(delayMs === undefined ? {} : { delayMs }),
    };
    const expected = ack
      ? model.ack(got.offset, { member, named })
      : model.nack(got.offset, { member, named }, delayMs);
    this.same(h.settle(member, entry)[0], expected, got);
    return `${ack ? "ack" : "nack"} ${got.offset} by ${member} ${named?.lease ?? ""} ${delayMs ?? ""}: ${expected}`;
  }

  private same(result: SettleResult, expected: SettleResult | "lost", got: Got): void {
    const told = isFailure(result) ? "lost" : result;
    assert.is(told, expected, `${got.offset} under ${got.lease}: ${JSON.stringify(result)}, expected ${expected}`);
  }

  private settleRun(): string {
    const { h, dice, model } = this;
    const got = this.pickGot();
    if (got === undefined) return "nothing to settle";
    const count = 1 + dice.below(6);
    const verb = dice.pick(["ack", "ack", "nack", "release"] as const);
    const run: LeaseRun = { offset: got.offset, count, epoch: got.epoch, token: got.token };
    const expected: number[] = [];
    for (let i = 0; i < count; i++) {
      const named = { ...got, token: got.token + i };
      const offset = got.offset + i;
      const by = { member: got.member, named };
      const verdict = offset >= model.events.length ? "lost" : model[verb](offset, by);
      if (verdict === "lost") expected.push(offset);
    }
    const { lost } = h.ask<RunsSettled>({ type: "settleRuns", member: got.member, verb, runs: [run] });
    for (const part of lost) assert.is(part.token - part.offset, run.token - run.offset);
    assert.equal(
      lost.flatMap((part) => Array.from({ length: part.count }, (_, i) => part.offset + i)),
      expected,
    );
    return `${verb} run ${got.offset} + ${count}`;
  }

  private extend(): string {
    const got = this.pickGot();
    if (got === undefined) return "nothing to extend";
    const extendMs = this.dice.pick([5, 300, 3000]);
    const result = this.h.extend(got, extendMs);
    assert.is(isFailure(result) ? "lost" : result, this.model.extend(got.offset, got, extendMs));
    return `extend ${got.offset} ${got.lease} by ${extendMs}`;
  }

  private pass(ms: number): string {
    this.h.pass(ms);
    return `pass ${ms}`;
  }

  private restart(reopened: boolean): string {
    const { h, model } = this;
    h.restart(reopened ? {} : { epoch: h.epoch });
    model.restart();
    model.trim(h.start);
    model.advance(h.mono);
    return reopened ? "restart" : "restart of the cell";
  }

  private holdCommits(): string {
    const { h, model } = this;
    // A group that a crash could undo is another story.
    if (h.holdCommits || !h.entries.has(entryKeys.group(stream, "g"))) return "commits as they were";
    model.holdCommits();
    h.holdCommits = true;
    h.peek = true;
    return "commits are held";
  }

  private freeCommits(): string {
    const { h } = this;
    h.holdCommits = false;
    h.peek = false;
    h.commit();
    this.compare();
    this.model.freeCommits();
    return "commits are free";
  }

  private stepOfCommit(): string {
    const { h, dice } = this;
    const roll = dice.below(20);
    if (roll < 9) {
      h.beginCommit();
      return "a commit begins";
    }
    if (roll < 17) {
      h.endCommit();
      return "a commit ends";
    }
    if (roll < 18) return this.freeCommits();
    return this.restart(dice.chance(70));
  }

  private trim(): string {
    const { h, dice, model } = this;
    const to = Math.min(model.events.length, h.start + dice.below(20));
    if (to === 0 || model.events.length === 0) return "nothing to trim";
    h.trim(to);
    model.trim(to);
    return `trim to ${to}`;
  }

  private seek(): string {
    const { h, dice, model } = this;
    if (model.events.length === 0) return "nowhere to seek";
    const { floor } = h.ask<CursorState>({
      type: "seek",
      to: { kind: "offset", offset: Math.max(0, model.events.length - dice.below(30)) },
    });
    model.seek(floor);
    this.sought = true;
    for (const event of model.events) if (event.offset < h.start) event.status = "gone";
    this.history.length = 0;
    return `seek to ${floor}`;
  }

  private changeOrdering(): string {
    const { h, model } = this;
    if (model.members.size > 0 || !h.entries.has(entryKeys.group(stream, "g"))) return "the ordering stays";
    const ordering = model.options.ordering === "key" ? "none" : "key";
    model.options = { ...model.options, ordering };
    const joined = this.join();
    model.rewind();
    return `ordering ${ordering}; ${joined}`;
  }

  /** Everything calms down: one member takes all there is and acks it. */
  settleAll(): void {
    const { h, model } = this;
    if (h.holdCommits) this.freeCommits();
    h.delayReads = false;
    h.answerReads();
    h.deadLetterAnswer = deadRecord;
    this.compare();
    for (const number of [...model.members.keys()]) {
      model.leave(number, "shutdown", 0);
      h.leave(number, "shutdown", 0);
      this.compare();
    }
    this.join();
    const [number] = model.members.keys();
    this.grant(number, 1000);
    for (let round = 0; round < 1000; round++) {
      this.compare();
      for (const { offset, lease } of model.events) {
        if (lease === undefined || lease.lapsed) continue;
        const got = this.history.findLast((one) => one.offset === offset && one.token === lease.token)!;
        this.same(
          h.settle(number, { id: got.id, ack: true }).at(0)!,
          model.ack(offset, { member: number, named: undefined }),
          got,
        );
        this.compare();
      }
      h.pass(50);
    }
    this.compare();
    for (const event of model.events) {
      if (model.matches(event))
        assert.ok(event.status === "settled" || event.status === "gone", `${event.offset} stays`);
    }
    assert.equal([h.cursor().floor, h.cursor().lag], [model.events.length, 0]);
    if (!this.sought) this.checkDeadLetters();
  }
}
