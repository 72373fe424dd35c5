// The books of a group on one partition: who holds which event, what is settled, what comes again and when. It knows offsets,
// tokens and members, and neither messages nor effects; lease-table.ts drives it.
//
//   below floor          settled, all of it
//   floor .. ring.next   looked at: settled (in `settled`) or in one of the states of lease-ring.ts
//   ring.next ..         not looked at since the start; what `settled` and the attempts say of it comes from the cursor
//
// Invariant: floor <= ring.next, every event between them is either in `settled` or unsettled in the ring, never both; a member's
// free slots and its leases are what it was granted and has not given back.

import type { BlockView } from "../protocol/block.ts";
import type { Cursor } from "./cursor.ts";
import { Deadlines } from "./deadlines.ts";
import type { Env } from "./effects.ts";
import { KeyLines } from "./key-lines.ts";
import { Latency } from "./latency.ts";
import { LeaseHistory, noReason } from "./lease-history.ts";
import { LeaseRing, leaseState, noHolder } from "./lease-ring.ts";
import type { Member, Members } from "./members.ts";
import type { HoldingOutcome, Totals } from "./messages.ts";
import { RangeSet } from "./range-set.ts";
import { type Policy, Redelivery } from "./redelivery.ts";

/** Why a lease ended without an ack, in the words of the dead letter. */
export const endReasons = {
  deadline: "the ack deadline passed",
  disconnect: "the member disconnected",
  unsubscribe: "the member unsubscribed",
  nack: noReason,
} as const;

/** The front is asked again after so long. */
const askAgainMs = 1000;

const leaveOutcomes = { unsubscribe: "unsubscribed", disconnect: "disconnected", shutdown: "shutdown" } as const;

export class LeaseLedger {
  readonly ring: LeaseRing;
  readonly settled = new RangeSet();
  readonly keys = new KeyLines();
  readonly again: Redelivery;
  readonly deadlines: Deadlines;
  readonly latency = new Latency();
  readonly history: LeaseHistory;
  readonly totals: { -readonly [Name in keyof Totals]: number } = {
    delivered: 0,
    redelivered: 0,
    acked: 0,
    nacked: 0,
    expired: 0,
    deadLettered: 0,
    filtered: 0,
    skipped: 0,
  };
  floor = 0;
  /** How many events in a row were filtered out since the last delivery, and when that was. */
  filteredInRow = 0;
  handedOutAt: number | undefined;
  readonly unsettledMax: number;
  private readonly members: Members;

  constructor(options: { members: Members; unsettledMax: number; policy: Policy }) {
    this.members = options.members;
    this.unsettledMax = options.unsettledMax;
    this.ring = new LeaseRing(options.unsettledMax);
    this.again = new Redelivery(this.ring, options.policy);
    this.deadlines = new Deadlines(this.ring, leaseState.leased);
    this.history = new LeaseHistory({ ring: this.ring, again: this.again, members: options.members });
  }

  /** The first offset never looked at and not settled. */
  get next(): number {
    return this.settled.nextOut(this.ring.next);
  }

  /** How many more events may be unsettled. */
  get room(): number {
    return this.unsettledMax - this.ring.unsettled;
  }

  // ------------------------------------------------------------------------------------------------------------ position

  restore(cursor: Cursor, now: number): void {
    this.moveTo(cursor.floor, now);
    for (const [from, to] of cursor.ranges) this.settled.add(from, to);
    this.again.restore(cursor, now);
  }

  /** A new position: nothing of what was before counts any more. */
  moveTo(floor: number, now: number): void {
    this.voidAll(now);
    this.again.clear();
    this.settled.clear();
    this.floor = floor;
    this.ring.reset(floor);
  }

  /** Looks at everything above the floor again, as after a restart. Nobody holds anything. The policy is set anew after it. */
  rewind(): void {
    if (this.ring.counts[leaseState.leased] > 0) throw new Error("a rewind under live leases");
    this.again.rewind();
    this.keys.clear();
    this.deadlines.clear();
    this.ring.reset(this.floor);
  }

  /** What is below `start` is gone for good. */
  trim(start: number, now: number): void {
    if (start <= this.floor) return;
    for (const offset of this.ring.unsettledBelow(start, this.floor)) {
      const slot = this.ring.slotOf(offset);
      this.ring.token[slot] = 0;
      this.release(offset, slot, now);
    }
    this.totals.skipped += start - this.floor - this.settled.countIn(this.floor, start);
    this.settled.remove(this.floor, start);
    this.again.forgetRange(0, start);
    this.floor = start;
    this.absorb();
  }

  // ---------------------------------------------------------------------------------------------------------------- walk

  /** Passes over fresh offsets that nobody will get; gives how many of them were not settled before. */
  pass(from: number, to: number): number {
    const count = to - from - this.settled.countIn(from, to);
    if (this.again.reachesTo(from)) this.again.forgetRange(from, to);
    this.settleRange(from, to);
    if (to > this.ring.next) this.ring.advance(to, this.floor);
    return count;
  }

  /** Passes over fresh events that the group does not want. */
  filterOut(from: number, to: number, now: number): void {
    const count = this.pass(from, to);
    this.totals.filtered += count;
    this.filteredInRow += count;
    this.history.filtered(from, to - from, now);
  }

  /** Takes a fresh event in; it has a place now and is in no state yet. */
  admit(offset: number, block: BlockView): number {
    this.ring.advance(offset + 1, this.floor);
    const slot = this.ring.claim(offset);
    this.describe(offset, slot, block);
    this.ring.token[slot] = 0;
    this.ring.holder[slot] = noHolder;
    return slot;
  }

  /** A fresh event that cannot be delivered as it comes: it was attempted before, or an earlier event of its key is out. */
  setAside(offset: number, slot: number, blocked: boolean, now: number): void {
    this.again.dying.remove(offset, offset + 1);
    if (blocked) this.ring.enter(slot, leaseState.blocked);
    else this.again.place(offset, slot, this.again.takeDelay(offset, now), now);
  }

  // -------------------------------------------------------------------------------------------------------------- leases

  /** Leases consecutive fresh events, which need no place yet. */
  leaseFresh(member: Member, block: BlockView, offset: number, count: number, token: number, now: number): void {
    const { ring } = this;
    ring.advance(offset + count, this.floor);
    for (let i = 0; i < count; i++) {
      const slot = ring.claim(offset + i);
      this.describe(offset + i, slot, block);
      ring.state[slot] = leaseState.leased;
      this.hold(slot, member, token + i, now);
    }
    ring.counts[leaseState.leased] += count;
    this.handOut(member, offset, count, now);
  }

  /** Leases consecutive events that wait for redelivery or were admitted. */
  lease(member: Member, offset: number, count: number, token: number, now: number): void {
    const { ring } = this;
    for (let i = 0; i < count; i++) {
      const slot = ring.slotOf(offset + i);
      if (ring.state[slot] === leaseState.waiting) this.again.withdraw(offset + i, slot);
      ring.enter(slot, leaseState.leased);
      this.hold(slot, member, token + i, now);
    }
    this.handOut(member, offset, count, now);
  }

  /** The end of a lease that settles nothing: the event comes again, to anyone, after its wait. */
  giveBack(
    offset: number,
    slot: number,
    end: { outcome: HoldingOutcome; counted: boolean; delayMs: number | undefined; reason: string },
    now: number,
  ): void {
    const { outcome, counted, reason } = end;
    this.history.ended(offset, slot, { outcome, counted, reason: outcome === "nacked" ? reason : undefined }, now);
    this.unlease(offset, slot);
    if (!counted) {
      this.again.place(offset, slot, 0, now);
      return;
    }
    this.again.count(offset, outcome === "disconnected");
    this.again.place(offset, slot, end.delayMs ?? this.again.backoffMs(offset), now);
    if (this.ring.state[slot] === leaseState.dying) this.again.reasons.set(offset, reason);
  }

  /** The deadline has passed. The lease is lost when the event is leased again, so its token stays. */
  private expire(offset: number, slot: number, now: number): void {
    const { ring } = this;
    if (ring.until[slot] > now) {
      ring.alarm[slot] = ring.until[slot];
      this.deadlines.addAlone(offset, 1, ring.until[slot]);
      return;
    }
    const member = this.holderOf(slot);
    if (!member.stalled && ring.sequence[slot] > member.handed) {
      this.defer(member, offset, slot, now + askAgainMs);
      return;
    }
    this.lapse(member, offset, slot, now);
  }

  /**
   * A front that is slower than the lease may not have handed the event on yet, and if the member leaves it never will: then no attempt
   * was made. So the lease goes on until the front has answered. Nobody waits for that in vain, since what another member would be given
   * instead goes the same way.
   */
  private defer(member: Member, offset: number, slot: number, until: number): void {
    const { ring } = this;
    ring.until[slot] = until;
    ring.alarm[slot] = until;
    this.deadlines.addAlone(offset, 1, until);
    member.overdue.set(offset, until);
    this.members.doubt(member);
  }

  /** Ends what waited to be known of; gives whether a lease ended. */
  endOverdue(member: Member, now: number): boolean {
    const { ring } = this;
    let ended = false;
    for (const [offset, until] of member.overdue) {
      const slot = ring.slotOf(offset);
      const held = slot >= 0 && ring.state[slot] === leaseState.leased && ring.holder[slot] === member.number;
      // Extended, settled, or leased anew meanwhile.
      if (!held || ring.until[slot] !== until) {
        member.overdue.delete(offset);
        continue;
      }
      if (!member.stalled && ring.sequence[slot] > member.handed) continue;
      member.overdue.delete(offset);
      this.lapse(member, offset, slot, now);
      ended = true;
    }
    return ended;
  }

  private lapse(member: Member, offset: number, slot: number, now: number): void {
    const { ring } = this;
    // What a stalled socket has not taken was never seen by the client: neither its attempt nor its lease counts.
    const counted = !(member.stalled && ring.sequence[slot] > member.written);
    const reason = endReasons.deadline;
    this.giveBack(offset, slot, { outcome: "expired", counted, delayMs: undefined, reason }, now);
    if (!counted) ring.token[slot] = 0;
    this.totals.expired++;
  }

  /** Ends what is past its time; gives whether a lease ended. */
  tick(now: number): boolean {
    const before = this.totals.expired;
    this.deadlines.fire(now, (offset, slot) => this.expire(offset, slot, now));
    this.again.endBackoffs(now);
    return this.totals.expired > before;
  }

  /** True when an attempt was counted. */
  leave(member: Member, written: number, cause: "unsubscribe" | "disconnect" | "shutdown", now: number): boolean {
    const { ring } = this;
    let anyCounted = false;
    for (const offset of member.leases === 0 ? [] : ring.unsettledBelow(ring.next, this.floor)) {
      const slot = ring.slotOf(offset);
      if (ring.state[slot] !== leaseState.leased || ring.holder[slot] !== member.number) continue;
      const counted = cause !== "shutdown" && ring.sequence[slot] <= written;
      const byDisconnect = cause === "disconnect";
      const delayMs = byDisconnect ? undefined : 0;
      const reason = byDisconnect ? endReasons.disconnect : endReasons.unsubscribe;
      ring.token[slot] = 0;
      this.giveBack(offset, slot, { outcome: leaveOutcomes[cause], counted, delayMs, reason }, now);
      anyCounted ||= counted;
    }
    this.members.remove(member);
    return anyCounted;
  }

  extend(offset: number, slot: number, until: number): void {
    const { ring } = this;
    ring.until[slot] = until;
    if (until >= ring.alarm[slot]) return;
    ring.alarm[slot] = until;
    this.deadlines.addAlone(offset, 1, until);
  }

  /** A lapsed lease that its member extends: the attempt goes on. False when the member is gone. */
  revive(offset: number, slot: number, until: number): boolean {
    const { ring } = this;
    const member = this.members.get(ring.holder[slot]);
    if (member === undefined) return false;
    this.again.withdraw(offset, slot);
    this.again.uncount(offset);
    this.again.reasons.delete(offset);
    ring.enter(slot, leaseState.leased);
    member.leases++;
    member.slots--;
    ring.until[slot] = until;
    ring.alarm[slot] = until;
    this.deadlines.addAlone(offset, 1, until);
    return true;
  }

  // ------------------------------------------------------------------------------------------------------------ settling

  /** Whether a lease is on the event, or was the last one and has only passed its deadline. */
  isHeld(slot: number): boolean {
    const state = this.ring.state[slot];
    return (
      state === leaseState.leased ||
      ((state === leaseState.waiting || state === leaseState.dying) && this.ring.token[slot] !== 0)
    );
  }

  /** Settles without moving the floor, so that a run of acks moves it once: the caller adds the range. */
  ack(offset: number, slot: number, env: Env): void {
    this.totals.acked++;
    this.latency.observe(Math.max(0, env.wall - this.ring.born[slot]));
    this.history.acked(offset, slot, env.mono);
    this.release(offset, slot, env.mono);
  }

  nack(offset: number, slot: number, delayMs: number | undefined, reason: string, now: number): void {
    this.totals.nacked++;
    this.ring.token[slot] = 0;
    if (this.ring.state[slot] === leaseState.leased) {
      this.giveBack(offset, slot, { outcome: "nacked", counted: true, delayMs, reason }, now);
      return;
    }
    this.history.ended(offset, slot, { outcome: "nacked", counted: true, reason }, now);
    // Past its deadline: that end was counted, what the nack says of the wait and the reason still holds.
    this.again.withdraw(offset, slot);
    this.again.place(offset, slot, delayMs ?? this.again.backoffMs(offset), now);
    if (this.ring.state[slot] === leaseState.dying) this.again.reasons.set(offset, reason);
  }

  /**
   * As if the lease had not been given: the next one has the number of this attempt. True when its end was counted before, since its
   * deadline had passed. Then that is taken back, and nothing has to be durable for it: all attempts before this one are, since it left.
   */
  putBack(offset: number, slot: number, now: number): boolean {
    this.ring.token[slot] = 0;
    if (this.ring.state[slot] === leaseState.leased) {
      this.giveBack(offset, slot, { outcome: "released", counted: false, delayMs: 0, reason: noReason }, now);
      return false;
    }
    this.history.ended(offset, slot, { outcome: "released", counted: false, reason: undefined }, now);
    this.again.withdraw(offset, slot);
    this.again.uncount(offset);
    this.again.reasons.delete(offset);
    this.again.place(offset, slot, 0, now);
    return true;
  }

  /** The event was copied to the dead letters. */
  deadLetter(offset: number, reason: string, now: number): void {
    this.history.deadLettered(offset, reason, now);
    this.bury(offset, now);
    this.totals.deadLettered++;
  }

  /** The event has been moved to the dead letters, or is gone. */
  bury(offset: number, now: number): void {
    const slot = this.ring.slotOf(offset);
    if (slot < 0) {
      // Dead before the walk came to it.
      this.again.forget(offset);
    } else {
      this.ring.token[slot] = 0;
      this.release(offset, slot, now);
    }
    this.settleRange(offset, offset + 1);
  }

  settleRange(from: number, to: number): void {
    if (from === this.floor && this.settled.first >= to) this.floor = to;
    else this.settled.add(from, to);
    this.absorb();
  }

  holderOf(slot: number): Member {
    const member = this.members.get(this.ring.holder[slot]);
    if (member === undefined) throw new Error(`a lease without a member: ${this.ring.holder[slot]}`);
    return member;
  }

  // ------------------------------------------------------------------------------------------------------------- inside

  /** Takes the event out of whatever it is in. */
  private release(offset: number, slot: number, now: number): void {
    const { ring } = this;
    if (ring.state[slot] === leaseState.leased) this.unlease(offset, slot);
    else this.again.withdraw(offset, slot);
    ring.enter(slot, leaseState.settled);
    this.again.forget(offset);
    if (this.keys.size === 0) return;
    const first = this.keys.leave(offset);
    if (first !== undefined) this.again.place(first, ring.slotOf(first), this.again.takeDelay(first, now), now);
  }

  private unlease(offset: number, slot: number): void {
    const member = this.holderOf(slot);
    member.leases--;
    member.slots++;
    if (member.alone === offset) member.alone = -1;
  }

  private hold(slot: number, member: Member, token: number, now: number): void {
    const { ring } = this;
    const deadline = now + member.ackTimeoutMs;
    ring.token[slot] = token;
    ring.holder[slot] = member.number;
    ring.sequence[slot] = ++member.sequence;
    ring.until[slot] = deadline;
    ring.alarm[slot] = deadline;
    ring.leasedAt[slot] = now;
  }

  private handOut(member: Member, offset: number, count: number, now: number): void {
    member.leases += count;
    member.slots -= count;
    member.tokens -= count;
    this.totals.delivered += count;
    this.filteredInRow = 0;
    this.handedOutAt = now;
    this.deadlines.add(member.ackTimeoutMs, offset, count, now + member.ackTimeoutMs);
  }

  private describe(offset: number, slot: number, block: BlockView): void {
    const { ring } = this;
    ring.storedAt[slot] = block.storedAt;
    ring.salt[slot] = block.salt;
    ring.born[slot] = block.storedAt;
    if (!block.pack.extended) return;
    const index = offset - block.firstOffset;
    const id = block.pack.id(index);
    if (id !== undefined) ring.name(offset, id);
    const meta = block.pack.meta(index);
    if (meta?.includes('"t0"')) ring.born[slot] = bornAt(meta) ?? block.storedAt;
  }

  private absorb(): void {
    if (this.settled.first <= this.floor) {
      const end = this.settled.firstEnd;
      this.settled.remove(this.floor, end);
      this.floor = end;
    }
    // Ranges that the cursor brought along reach beyond what was looked at.
    if (this.floor > this.ring.next) this.ring.advance(this.floor, this.floor);
  }

  private voidAll(now: number): void {
    const { ring } = this;
    for (const offset of ring.counts[leaseState.leased] === 0 ? [] : ring.unsettledBelow(ring.next, this.floor)) {
      const slot = ring.slotOf(offset);
      if (ring.state[slot] !== leaseState.leased) continue;
      this.history.ended(offset, slot, { outcome: "seek", counted: false, reason: undefined }, now);
    }
    for (const member of this.members.all()) {
      member.slots += member.leases;
      member.leases = 0;
      member.overdue.clear();
      member.alone = -1;
    }
    this.keys.clear();
    this.deadlines.clear();
  }
}

/** A publisher may say in the header `t0` when its work began. */
function bornAt(meta: string): number | undefined {
  const { headers } = JSON.parse(meta) as { headers?: Record<string, string> };
  const t0 = Number(headers?.t0);
  return t0 > 0 ? t0 : undefined;
}
