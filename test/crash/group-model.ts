// One group on one topic as it must be, said as plainly as possible: of each event who was given it under which lease, and what was said
// about it. Leases of a partition have an order by themselves (epoch, then token), so nothing here depends on the order in which the
// harness happens to read its sockets; and a lease of an older epoch was cut short by a death of the node or of a worker.

import type { EventFrame } from "../support/plain-client.ts";
import { DeadLetters } from "./dead-letters.ts";
import { type Asked, type CursorAnswer, type GroupPlan, type Held, isLater, type State } from "./group-facts.ts";
import type { Journal } from "./journal.ts";
import type { TopicLog } from "./topic-log.ts";

/** How close to its disconnection a member may have got an event of which the node does not know that it left. */
const unseenMs = 250;
/** A lease that ends so much before its time has ended too early; what was measured of the lag is allowed for beside it. */
const earlyMs = 50;
/** How long a member that is gone may go on being one. */
const ghostMs = 5000;

export class GroupModel {
  readonly plan: GroupPlan;
  readonly log: TopicLog;
  readonly letters: DeadLetters;
  /** It was made, durably. */
  exists = false;
  /** Where it is being moved to, until that is answered. */
  moving: { readonly to: readonly number[] } | undefined;
  /** Nobody may be a member now: it is being moved, or its topic is about to go. */
  closed = false;
  /** Ack at once whatever comes: its topic is about to go. */
  diligent = false;
  /** How often it was moved. */
  seeks = 0;
  readonly states = new Map<string, State>();
  private readonly journal: Journal;
  /** SUBSCRIBEs that were sent. */
  private asks = 0;
  private readonly vanishedAt: number[] = [];
  private doubts: { readonly n: number | undefined; readonly fault: () => string | undefined }[] = [];
  private startAt: number[];
  private floors: number[];
  private checkedTo: number[];

  constructor(plan: GroupPlan, log: TopicLog, journal: Journal) {
    this.plan = plan;
    this.log = log;
    this.journal = journal;
    this.startAt = log.partitions.map(() => 0);
    this.floors = log.partitions.map(() => 0);
    this.checkedTo = log.partitions.map(() => 0);
    this.letters = new DeadLetters(this, journal);
  }

  get name(): string {
    return `${this.log.name}/${this.plan.name}`;
  }

  // ------------------------------------------------------------------------------------------------------------- joining

  /** What is durable before a SUBSCRIBE is sent, which follows. */
  known(): { readonly exists: boolean; readonly floors: readonly number[] } {
    this.asks++;
    return { exists: this.exists, floors: [...this.floors] };
  }

  /** The OK to a SUBSCRIBE. All groups begin at the earliest event. */
  subscribed(resumed: boolean, position: string, known: ReturnType<GroupModel["known"]>): void {
    if (known.exists && !resumed) this.journal.fail(`${this.name}: its cursor is gone, it begins anew at ${position}`);
    if (resumed && !this.exists && this.asks === 1 && this.moving === undefined) {
      this.journal.fail(`${this.name}: nobody made it since its topic is there, and it has a cursor at ${position}`);
    }
    this.exists = true;
    for (const [partition, floor] of position.split(",").map((part) => part.split(":").map(Number))) {
      if (floor < known.floors[partition]) {
        this.journal.fail(
          `${this.name}: joined at ${position}, its floor on ${partition} was ${known.floors[partition]}`,
        );
      }
    }
  }

  left(member: string, how: "left" | "vanished"): void {
    const now = performance.now();
    // What the node wrote to a socket that nobody reads from any more has been an attempt all the same.
    if (how === "vanished") this.vanishedAt.push(now);
    for (const { held } of this.states.values()) {
      const last = held.at(-1);
      if (last?.member !== member || ["left", "vanished", "released"].includes(last.ended)) continue;
      last.ended = how;
      last.endedAt = now;
    }
  }

  // ---------------------------------------------------------------------------------------------------------- delivering

  delivered({ event, ctx }: EventFrame, member: string): Held {
    const { journal, log, plan } = this;
    const n = log.observe(event, `EVENT of ${plan.name}`);
    const { partition, offset } = event;
    const [epoch, token] = ctx.lease.split("-").map(Number);
    const what = `${this.name} ${partition}:${offset} attempt ${ctx.attempt} lease ${ctx.lease} to ${member}`;
    journal.note(n, `EVENT ${what}`);
    journal.count(ctx.attempt > 1 ? "redeliveries" : "first deliveries");
    const wrong = (why: string) => journal.fail(`EVENT ${what}: ${why}`, n);
    if (!log.isNewLease(partition, ctx.lease)) wrong("this lease was given before");
    if (ctx.max_attempts !== plan.maxAttempts)
      wrong(`says ${ctx.max_attempts} attempts, the group has ${plan.maxAttempts}`);
    if (ctx.attempt > plan.maxAttempts) wrong(`only ${plan.maxAttempts} are allowed`);
    if (!this.matches(event.key)) wrong("the filter does not match it");
    if (offset < this.startAt[partition]) wrong(`the group begins at ${this.startAt[partition]}`);
    const state = this.stateOf(partition, offset, n);
    const held: Held = {
      state,
      lease: ctx.lease,
      epoch,
      token,
      attempt: ctx.attempt,
      member,
      at: performance.now(),
      lagMs: journal.lagMs,
      deadline: performance.now() + ctx.ack_deadline_ms,
      ended: "",
      endedAt: 0,
      nacked: false,
    };
    if (state.ackedBy !== undefined && isLater(held, state.ackedBy)) wrong(`was acked as ${state.ackedBy.lease}`);
    if (state.letters > 0 && this.seeks === 0) wrong("is a dead letter");
    const last = state.held.at(-1);
    const live = last !== undefined && isLater(held, last) ? this.liveFault(last, held) : undefined;
    if (live !== undefined) wrong(live);
    const isBlocked = plan.ordering === "key" && event.key !== undefined;
    const blocking = isBlocked ? this.blocking(partition, offset, event.key ?? "") : -1;
    state.held.push(held);
    state.held.sort((a, b) => (isLater(a, b) ? 1 : -1));
    this.doubt(n, () => {
      const fault = this.attemptFault(held);
      return fault === undefined ? undefined : `EVENT ${what}: ${fault}`;
    });
    this.doubt(n, () => {
      const before = blocking < 0 ? undefined : this.states.get(`${partition}:${blocking}`);
      if (blocking < 0 || before?.held.some((one) => one.attempt >= plan.maxAttempts && isLater(held, one)))
        return undefined;
      return `EVENT ${what}: ${blocking} of the same key is not settled`;
    });
    return held;
  }

  /** What was durable of the attempts before it, and how many there could be at most. */
  private attemptFault(held: Held): string | undefined {
    const earlier = held.state.held.slice(0, held.state.held.indexOf(held));
    const last = earlier.at(-1);
    if (last === undefined) {
      return held.attempt > 1 + this.unseen(undefined) ? "nobody had the attempts before" : undefined;
    }
    let min = 1;
    for (const one of earlier) min = Math.max(min, one.nacked ? one.attempt + 1 : one.attempt);
    const unseen = last.ended === "vanished" && last.endedAt - last.at < unseenMs;
    if (last.epoch === held.epoch && last.ended !== "released" && !unseen) min = Math.max(min, last.attempt + 1);
    if (held.attempt < min) return `attempt ${last.attempt} was delivered as ${last.lease}, so this is ${min} at least`;
    const max = last.attempt + 1 + this.unseen(last);
    if (held.attempt > max) return `attempt ${last.attempt} was delivered as ${last.lease}, so this is ${max} at most`;
    return undefined;
  }

  /** What the node sent over several sockets is not read in the order of sending: a fault that another frame may explain waits for it. */
  doubt(n: number | undefined, fault: () => string | undefined): void {
    if (fault() !== undefined) this.doubts.push({ n, fault });
  }

  /** All that was sent has been read. */
  settleDoubts(): void {
    for (const { n, fault } of this.doubts.splice(0)) {
      const found = fault();
      if (found !== undefined) this.journal.fail(found, n);
      this.journal.count("frames read out of order");
    }
  }

  private liveFault(last: Held, held: Held): string | undefined {
    if (last.epoch !== held.epoch || last.ended !== "") return undefined;
    const left = last.deadline - held.at;
    const lag = Math.max(last.lagMs, held.lagMs);
    if (left > lag + earlyMs) {
      return `${last.member} holds it as ${last.lease} for another ${left.toFixed(0)} ms (the lag was ${lag.toFixed(0)} ms)`;
    }
    this.journal.count(
      left > earlyMs ? "leases given anew before their time, by less than the lag" : "leases that ran out",
    );
    return undefined;
  }

  /**
   * How many deliveries after this one nobody may have seen. One that went without a word is a member until the node notices, and a busy
   * machine takes its time: what it is given meanwhile runs out, again and again.
   */
  unseen(last: Held | undefined): number {
    const since = (last?.at ?? 0) - ghostMs;
    return this.vanishedAt.some((at) => at > since) ? Number.POSITIVE_INFINITY : 0;
  }

  /** An event before it of the same key that nobody has done anything about. */
  private blocking(partition: number, offset: number, key: string): number {
    const part = this.log.partitions[partition];
    for (const before of part.ofKey.get(key) ?? []) {
      if (before < offset && !this.maySettled(partition, before)) return before;
    }
    return -1;
  }

  // ------------------------------------------------------------------------------------------------------------ settling

  ackSent(held: Held, how: string): void {
    held.state.acks++;
    this.ends(held);
    this.journal.note(held.state.n, `ACK of ${held.lease} sent by ${held.member} (${how})`);
  }

  /** `by` is the lease that the member held when the OK came. */
  ackAnswered(held: Held, by: Held, outcome: "ok" | "nothing" | "unknown"): void {
    const { state } = held;
    this.journal.note(state.n, `ACK of ${held.lease}: ${outcome}`);
    this.journal.count(
      `acks: ${outcome === "ok" ? "confirmed" : outcome === "nothing" ? "refused or stale" : "of unknown outcome"}`,
    );
    if (outcome === "nothing") state.acks--;
    if (outcome !== "ok") return;
    if (state.ackedBy === undefined || isLater(by, state.ackedBy)) state.ackedBy = by;
    state.ackedAt = state.ackedAt || performance.now();
    if (state.letters > 0 && this.seeks === 0)
      this.journal.fail(`${this.name} ${state.partition}:${state.offset}: acked, and a dead letter`, state.n);
    const newer = state.held.find((one) => isLater(one, by));
    if (newer !== undefined && this.isOver(by, newer)) {
      this.journal.fail(
        `${this.name} ${state.partition}:${state.offset}: acked as ${by.lease}, after it was leased as ${newer.lease}`,
        state.n,
      );
    }
  }

  nackSent(held: Held, reason: string): void {
    this.ends(held);
    this.letters.reasons.add(reason);
    this.journal.note(held.state.n, `NACK of ${held.lease} sent by ${held.member}: ${reason}`);
  }

  nackAnswered(held: Held, by: Held, outcome: "ok" | "nothing" | "unknown"): void {
    this.journal.note(held.state.n, `NACK of ${held.lease}: ${outcome}`);
    this.journal.count(
      `nacks: ${outcome === "ok" ? "confirmed" : outcome === "nothing" ? "refused or stale" : "of unknown outcome"}`,
    );
    // What named no lease may have meant this one or, where that was over already, the one after it. Within an epoch its attempt has
    // ended either way; over the death of a worker nothing is sure.
    if (outcome !== "ok" || by.epoch !== held.epoch) return;
    held.nacked = true;
    const newer = held.state.held.find((one) => isLater(one, held));
    if (newer !== undefined && newer.attempt <= held.attempt) {
      this.journal.fail(
        `${this.name} ${held.state.partition}:${held.state.offset}: nacked as attempt ${held.attempt}, then came ${newer.attempt}`,
        held.state.n,
      );
    }
  }

  /** The lease may have a new deadline from now on. */
  extending(held: Held, ms: number): void {
    held.deadline = Math.min(held.deadline, performance.now() + ms);
    this.journal.note(held.state.n, `MODACK of ${held.lease} by ${ms} ms`);
  }

  released(held: Held): void {
    held.ended = "released";
    held.endedAt = performance.now();
    this.journal.note(held.state.n, `release of ${held.lease}`);
  }

  private ends(held: Held): void {
    if (held.ended !== "") return;
    held.ended = "asked";
    held.endedAt = performance.now();
  }

  /** That an older lease was over when the newer one was given can be said only within one epoch, and if both were seen. */
  private isOver(older: Held, newer: Held): boolean {
    return newer.at < older.state.ackedAt && newer.epoch === older.epoch;
  }

  // ------------------------------------------------------------------------------------------------------------- cursor

  /** What is so since before a question about the cursor. */
  asking(): Asked {
    return { at: performance.now(), ends: this.log.partitions.map(({ end }) => end) };
  }

  checkCursor(answer: CursorAnswer, asked: Asked): void {
    const { journal, log } = this;
    if (!answer.exists) {
      if (this.exists) journal.fail(`${this.name}: its cursor is gone`);
      return;
    }
    journal.count("cursors compared");
    answer.partitions.forEach(({ floor, ranges, end }, partition) => {
      const where = `${this.name} on ${partition} (floor ${floor}, ranges ${JSON.stringify(ranges)}, end ${end})`;
      if (floor < this.floors[partition]) journal.fail(`${where}: the floor fell from ${this.floors[partition]}`);
      if (floor < this.startAt[partition]) journal.fail(`${where}: it was moved to ${this.startAt[partition]}`);
      if (end < asked.ends[partition]) journal.fail(`${where}: the log has ${asked.ends[partition]}`);
      const covers = (offset: number) => offset < floor || ranges.some(([from, to]) => offset >= from && offset < to);
      let below = floor;
      for (const [from, to] of ranges) {
        if (from <= below || to <= from || to > end) journal.fail(`${where}: ranges touch each other or the floor`);
        below = to;
      }
      for (const state of this.states.values()) {
        if (state.partition !== partition || covers(state.offset)) continue;
        if (state.ackedAt > 0 && state.ackedAt < asked.at) {
          journal.fail(`${where}: ${state.offset} was acked as ${state.ackedBy?.lease}`, state.n);
        }
        if (state.letters > 0 && this.seeks === 0) journal.fail(`${where}: ${state.offset} is a dead letter`, state.n);
      }
      // What is to be judged is not its own excuse.
      const before = this.checkedTo[partition];
      const settled = (from: number, to: number): boolean => {
        for (let offset = from; offset < to; offset++) {
          if (this.maySettled(partition, offset, before)) continue;
          const known = log.partitions[partition].events.get(offset);
          if (known !== undefined) {
            const doubtful = `${where}: ${offset} is covered, and nobody settled it`;
            this.doubt(known.n, () => (this.maySettled(partition, offset, before) ? undefined : doubtful));
            continue;
          }
          // Not read yet by anybody: looked at again next time.
          return false;
        }
        return true;
      };
      if (settled(this.checkedTo[partition], floor))
        this.checkedTo[partition] = Math.max(this.checkedTo[partition], floor);
      for (const [from, to] of ranges) settled(from, to);
      this.floors[partition] = floor;
    });
  }

  /** Whether there is a reason for which this event may count as settled. */
  private maySettled(partition: number, offset: number, below = this.floors[partition]): boolean {
    const part = this.log.partitions[partition];
    if (offset < part.start || offset < this.startAt[partition] || offset < below) return true;
    const known = part.events.get(offset);
    if (known !== undefined && !this.matches(known.event.key)) return true;
    const { retentionMs } = this.log;
    if (retentionMs !== undefined && (known === undefined || known.event.ts + retentionMs <= Date.now() + 20))
      return true;
    const state = this.states.get(`${partition}:${offset}`);
    if (state === undefined) return false;
    if (state.acks > 0 || state.letters > 0) return true;
    const last = state.held.at(-1);
    return last !== undefined && last.attempt + this.unseen(last) >= this.plan.maxAttempts;
  }

  /** The members are gone, the group was moved there, durably. */
  moved(answer: CursorAnswer): void {
    this.seeks++;
    this.doubts = [];
    this.exists = true;
    this.states.clear();
    this.startAt = answer.partitions.map(({ floor }) => floor);
    this.floors = [...this.startAt];
    this.checkedTo = [...this.startAt];
    this.journal.count("seeks confirmed");
  }

  /** Everything is settled, the node says. Each event has one reason for that. */
  finished(answer: CursorAnswer): void {
    const { journal } = this;
    answer.partitions.forEach(({ floor, end }, partition) => {
      for (let offset = this.startAt[partition]; offset < Math.min(floor, end); offset++) {
        const known = this.log.partitions[partition].events.get(offset);
        const state = this.states.get(`${partition}:${offset}`);
        const trimmed = this.log.retentionMs !== undefined;
        const why =
          known !== undefined && !this.matches(known.event.key)
            ? "filtered"
            : state?.ackedBy !== undefined
              ? "acked"
              : (state?.letters ?? 0) > 0
                ? "dead-lettered"
                : (state?.acks ?? 0) > 0
                  ? "acked without hearing so"
                  : trimmed
                    ? "removed by retention"
                    : undefined;
        if (why === undefined) {
          journal.fail(
            `${this.name} ${partition}:${offset} is settled in the end, and there is no reason why`,
            known?.n,
          );
        }
        journal.count(`in the end: ${why}`);
      }
    });
  }

  // ------------------------------------------------------------------------------------------------------------ looking

  matches(key: string | undefined): boolean {
    const prefix = this.plan.filter?.keyPrefix;
    return prefix === undefined || (key?.startsWith(prefix) ?? false);
  }

  stateOf(partition: number, offset: number, n: number): State {
    const name = `${partition}:${offset}`;
    let state = this.states.get(name);
    if (state === undefined) {
      state = { partition, offset, n, held: [], acks: 0, ackedBy: undefined, ackedAt: 0, letters: 0 };
      this.states.set(name, state);
    }
    return state;
  }
}
