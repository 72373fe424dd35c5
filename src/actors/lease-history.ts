// How the latest leases of a group on one partition ended: who held which events, from when to when, with what outcome. It is kept
// in memory only, for `GET /history`.
//
// A lease that is still held is described by the ring, so granting costs nothing here. Ends are kept in runs: neighbours that were
// leased and ended together are one entry. What went well at the first attempt is kept apart from the rest, so that a busy group does
// not push out the story of the one event that fails. Each of the two keeps its newest runs; nothing is allocated before the first.

import { type LeaseRing, leaseState, noHolder } from "./lease-ring.ts";
import type { Members } from "./members.ts";
import type { HoldingOutcome } from "./messages.ts";
import type { Redelivery } from "./redelivery.ts";

/** Of each of the two sorts. */
const runsMax = 512;

/** What a NACK without a reason leaves on a dead letter. */
export const noReason = "nacked without a reason";

export interface EndedRun {
  offset: number;
  count: number;
  outcome: HoldingOutcome;
  /** The member's number, and the member in words: empty where nobody held it (filtered out, moved to the dead letters). */
  holder: number;
  who: string;
  /** Which attempt it was, counted from 1. */
  attempt: number;
  /** Whether it counts as an attempt. */
  counted: boolean;
  /** Monotonic times. */
  from: number;
  until: number;
  reason: string | undefined;
}

export class LeaseHistory {
  private readonly plain = new RunRing();
  private readonly rest = new RunRing();
  private readonly ring: LeaseRing;
  private readonly again: Redelivery;
  private readonly members: Members;

  constructor(options: { ring: LeaseRing; again: Redelivery; members: Members }) {
    this.ring = options.ring;
    this.again = options.again;
    this.members = options.members;
  }

  /** Which attempt the lease is that is on the event, or was the last one. */
  attemptOf(offset: number, slot: number): number {
    return this.again.attemptsOf(offset) + (this.ring.state[slot] === leaseState.leased ? 1 : 0);
  }

  // All of these are called before the event leaves the state that it was held in.

  acked(offset: number, slot: number, now: number): void {
    const attempt = this.attemptOf(offset, slot);
    const from = this.ring.leasedAt[slot];
    const holder = this.ring.holder[slot];
    const runs = attempt === 1 ? this.plain : this.rest;
    const { newest } = runs;
    // `follows` without an object and without a look at the members: this is called for every event.
    if (
      newest !== undefined &&
      newest.offset + newest.count === offset &&
      newest.until === now &&
      newest.from === from &&
      newest.outcome === "acked" &&
      newest.attempt === attempt &&
      newest.holder === holder
    ) {
      newest.count++;
      return;
    }
    const who = this.whoHeld(offset, slot);
    // Written out, and so is what `add` does: made by spreading, such an object costs microseconds instead of nanoseconds.
    runs.add({
      offset,
      count: 1,
      outcome: "acked",
      holder,
      who,
      attempt,
      counted: true,
      from,
      until: now,
      reason: undefined,
    });
  }

  ended(
    offset: number,
    slot: number,
    end: { outcome: HoldingOutcome; counted: boolean; reason: string | undefined },
    now: number,
  ): void {
    this.rest.join({
      offset,
      count: 1,
      outcome: end.outcome,
      holder: this.ring.holder[slot],
      who: this.whoHeld(offset, slot),
      attempt: this.attemptOf(offset, slot),
      counted: end.counted,
      from: this.ring.leasedAt[slot],
      until: now,
      reason: end.reason === noReason ? undefined : end.reason,
    });
  }

  filtered(offset: number, count: number, now: number): void {
    this.plain.join(unheld(offset, count, "filtered", 0, undefined, now));
  }

  deadLettered(offset: number, reason: string, now: number): void {
    this.rest.join(unheld(offset, 1, "dead_lettered", this.again.attemptsOf(offset), reason, now));
  }

  /** What is remembered of this event, oldest first. */
  of(offset: number): readonly Readonly<EndedRun>[] {
    return [...this.plain.covering(offset), ...this.rest.covering(offset)].sort((a, b) => a.until - b.until);
  }

  /** A lapsed lease can outlive its member; then its end was noted before. */
  private whoHeld(offset: number, slot: number): string {
    return this.members.get(this.ring.holder[slot])?.who ?? this.of(offset).at(-1)?.who ?? "";
  }
}

function unheld(
  offset: number,
  count: number,
  outcome: HoldingOutcome,
  attempt: number,
  reason: string | undefined,
  now: number,
): EndedRun {
  return { offset, count, outcome, holder: noHolder, who: "", attempt, counted: true, from: now, until: now, reason };
}

/** The newest runs. */
class RunRing {
  newest: EndedRun | undefined;
  private readonly runs: EndedRun[] = [];
  private next = 0;

  /** The object is the ring's from then on. */
  add(run: EndedRun): void {
    const place = this.runs[this.next];
    if (place === undefined) {
      this.runs.push(run);
      this.newest = run;
    } else {
      // Written over: objects kept here one after the other would grow old and cost the collector more.
      place.offset = run.offset;
      place.count = run.count;
      place.outcome = run.outcome;
      place.holder = run.holder;
      place.who = run.who;
      place.attempt = run.attempt;
      place.counted = run.counted;
      place.from = run.from;
      place.until = run.until;
      place.reason = run.reason;
      this.newest = place;
    }
    this.next = (this.next + 1) % runsMax;
  }

  /** Adds it to the newest where it is more of the same. */
  join(run: EndedRun): void {
    if (this.newest !== undefined && follows(this.newest, run)) this.newest.count += run.count;
    else this.add(run);
  }

  /** In the order of adding. */
  *covering(offset: number): Iterable<EndedRun> {
    const { runs, next } = this;
    for (let i = 0; i < runs.length; i++) {
      const run = runs[(runs.length < runsMax ? i : next + i) % runs.length];
      if (run.offset <= offset && offset < run.offset + run.count) yield run;
    }
  }
}

function follows(last: Readonly<EndedRun>, run: Readonly<EndedRun>): boolean {
  return (
    last.offset + last.count === run.offset &&
    last.outcome === run.outcome &&
    last.holder === run.holder &&
    last.attempt === run.attempt &&
    last.counted === run.counted &&
    last.from === run.from &&
    last.until === run.until &&
    last.reason === run.reason
  );
}
