// What happens to an event between its attempts: the count, the wait, and who may have it next. Attempts that ended are kept here
// for every unsettled event, also for those above the walk after a restart; an event that never lost a lease costs nothing.

import type { Attempted, Cursor } from "./cursor.ts";
import { Deadlines } from "./deadlines.ts";
import { type LeaseRing, leaseState } from "./lease-ring.ts";
import { Limbo } from "./limbo.ts";
import { RangeSet } from "./range-set.ts";

export interface Policy {
  readonly maxAttempts: number;
  readonly backoffMs: number | readonly number[];
  /** In a dead-letter topic nothing dies: past the last attempt an event goes on being delivered. */
  readonly immortal: boolean;
}

const immortalBackoffMsMin = 1000;
const noAlarm = -1;

export class Redelivery {
  /** To be delivered again, to whoever can take them. */
  readonly ready = new RangeSet();
  /** To be delivered again, each to a member that holds nothing else. */
  readonly solo: number[] = [];
  /** To be delivered again when the end of the last attempt is durable. */
  readonly limbo = new Limbo();
  /** Out of attempts. After a restart that is known of some before the walk comes to them: these are in no state of the ring. */
  readonly dying = new RangeSet();
  readonly reasons = new Map<number, string>();
  readonly backoffs: Deadlines;
  private readonly ring: LeaseRing;
  private policy: Policy;
  // Twice the attempts that ended, plus one if one of them ended by disconnect.
  private readonly counts = new Map<number, number>();
  // Ends of backoffs from before a restart, until the walk comes to their events.
  private readonly delays = new Map<number, number>();
  // The highest offset with attempts when the walk began.
  private attemptedMax = -1;

  constructor(ring: LeaseRing, policy: Policy) {
    this.ring = ring;
    this.policy = policy;
    this.backoffs = new Deadlines(ring, leaseState.waiting);
  }

  /** Whether an event at or above this one may have lost a lease before the restart, so that the walk must look at each. */
  reachesTo(offset: number): boolean {
    return offset <= this.attemptedMax;
  }

  attemptsOf(offset: number): number {
    if (this.counts.size === 0) return 0;
    return (this.counts.get(offset) ?? 0) >> 1;
  }

  count(offset: number, byDisconnect: boolean): void {
    const code = this.counts.get(offset) ?? 0;
    this.counts.set(offset, (code + 2) | (byDisconnect ? 1 : 0));
    this.limbo.add(offset);
  }

  /** The lease whose end was counted goes on after all. */
  uncount(offset: number): void {
    const code = (this.counts.get(offset) ?? 0) - 2;
    if (code < 0) throw new Error(`no attempt of ${offset} to take back`);
    if (code === 0) this.counts.delete(offset);
    else this.counts.set(offset, code);
    this.limbo.delete(offset);
  }

  isSpent(offset: number): boolean {
    return !this.policy.immortal && this.attemptsOf(offset) >= this.policy.maxAttempts;
  }

  /** The last attempt of an event that may have taken its members down is delivered alone, so that it takes no neighbours along. */
  isSuspect(offset: number): boolean {
    const code = this.counts.get(offset) ?? 0;
    return (code & 1) === 1 && !this.policy.immortal && code >> 1 === this.policy.maxAttempts - 1;
  }

  /** The wait after the attempt that ended last. */
  backoffMs(offset: number): number {
    const { backoffMs, immortal, maxAttempts } = this.policy;
    const attempts = this.attemptsOf(offset);
    const last = typeof backoffMs === "number" ? backoffMs : (backoffMs[Math.min(attempts, backoffMs.length) - 1] ?? 0);
    return immortal && attempts >= maxAttempts ? Math.max(last, immortalBackoffMsMin) : last;
  }

  /** Puts an event that nobody holds where it belongs: among the dying, in backoff, or up for delivery. */
  place(offset: number, slot: number, delayMs: number, now: number): void {
    if (this.isSpent(offset)) {
      this.ring.enter(slot, leaseState.dying);
      this.dying.add(offset, offset + 1);
      return;
    }
    this.ring.enter(slot, leaseState.waiting);
    if (delayMs > 0) {
      const at = now + delayMs;
      this.ring.until[slot] = at;
      this.ring.alarm[slot] = at;
      this.backoffs.add(delayMs, offset, 1, at);
    } else {
      this.offer(offset, slot);
    }
  }

  /** What is left of a wait from before the restart; asked once, when the walk comes to the event. */
  takeDelay(offset: number, now: number): number {
    const until = this.delays.get(offset);
    if (until === undefined) return 0;
    this.delays.delete(offset);
    return Math.max(0, until - now);
  }

  endBackoffs(now: number): void {
    // Placed anew: the number of attempts may have been lowered meanwhile.
    this.backoffs.fire(now, (offset, slot) => this.place(offset, slot, 0, now));
  }

  /** All that ended before the last commit was built is durable. */
  persisted(now: number): void {
    for (const offset of this.limbo.durable()) this.place(offset, this.ring.slotOf(offset), 0, now);
  }

  /** Takes an event out of whatever it waits in. */
  withdraw(offset: number, slot: number): void {
    if (this.ring.state[slot] === leaseState.dying) this.dying.remove(offset, offset + 1);
    else if (this.ready.remove(offset, offset + 1) + this.limbo.waiting.remove(offset, offset + 1) === 0) {
      const at = this.solo.indexOf(offset);
      if (at >= 0) this.solo.splice(at, 1);
    }
  }

  /** The event is settled. */
  forget(offset: number): void {
    if (this.counts.size === 0) return;
    this.counts.delete(offset);
    if (this.delays.size > 0) this.delays.delete(offset);
    if (this.reasons.size > 0) this.reasons.delete(offset);
    if (this.dying.size > 0) this.dying.remove(offset, offset + 1);
    this.limbo.delete(offset);
  }

  forgetRange(from: number, to: number): void {
    for (const offset of this.counts.keys()) if (offset >= from && offset < to) this.forget(offset);
  }

  /** Other limits for what waits: an event may be on its last attempt now, or beyond it. */
  setPolicy(policy: Policy, now: number): void {
    this.policy = policy;
    const offered = [...this.solo];
    for (const [from, to] of this.ready) for (let offset = from; offset < to; offset++) offered.push(offset);
    this.ready.clear();
    this.solo.length = 0;
    for (const offset of offered) this.place(offset, this.ring.slotOf(offset), 0, now);
    this.dying.remove(this.ring.next, Number.POSITIVE_INFINITY);
    this.doom();
  }

  /** What is out of attempts dies also where the walk has not come to: nobody has to join for that. */
  doom(): void {
    for (const offset of this.counts.keys()) {
      if (offset >= this.ring.next && this.isSpent(offset)) this.dying.add(offset, offset + 1);
    }
  }

  /** As after a restart: what waits is forgotten, attempts and delays stay. The ring is still as it was. */
  rewind(): void {
    for (const offset of this.counts.keys()) {
      this.attemptedMax = Math.max(this.attemptedMax, offset);
      const slot = this.ring.slotOf(offset);
      if (slot < 0 || this.ring.state[slot] !== leaseState.waiting || this.ring.alarm[slot] === noAlarm) continue;
      this.delays.set(offset, this.ring.until[slot]);
    }
    this.ready.clear();
    this.limbo.waiting.clear();
    this.dying.clear();
    this.solo.length = 0;
    this.backoffs.clear();
  }

  clear(): void {
    this.rewind();
    this.limbo.clear();
    this.counts.clear();
    this.delays.clear();
    this.reasons.clear();
  }

  restore(cursor: Cursor, now: number): void {
    for (const { offset, attempts, byDisconnect, delayMs } of cursor.attempted) {
      this.counts.set(offset, attempts * 2 + (byDisconnect ? 1 : 0));
      this.attemptedMax = Math.max(this.attemptedMax, offset);
      if (delayMs > 0) this.delays.set(offset, now + delayMs);
    }
    for (const [offset, reason] of cursor.reasons) this.reasons.set(offset, reason);
    this.doom();
  }

  *attempted(now: number): Iterable<Attempted> {
    for (const [offset, code] of this.counts) {
      const slot = this.ring.slotOf(offset);
      const waits = slot >= 0 && this.ring.state[slot] === leaseState.waiting && this.ring.alarm[slot] !== noAlarm;
      const until = waits ? this.ring.until[slot] : (this.delays.get(offset) ?? now);
      yield { offset, attempts: code >> 1, byDisconnect: (code & 1) === 1, delayMs: Math.max(0, until - now) };
    }
  }

  private offer(offset: number, slot: number): void {
    this.ring.alarm[slot] = noAlarm;
    if (this.limbo.has(offset)) this.limbo.waiting.add(offset, offset + 1);
    else if (this.isSuspect(offset)) this.solo.push(offset);
    else this.ready.add(offset, offset + 1);
  }
}
