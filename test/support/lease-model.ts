// What a lease table must do, written down as plainly as possible: one object per event, everything looked up by searching. It is
// told what was asked of the table and what came out, and throws when the two do not agree.

import type { GroupOptions, SettleResult } from "../../src/actors/messages.ts";
import type { Got } from "./lease-harness.ts";

interface ModelEvent {
  readonly offset: number;
  readonly key: string | undefined;
  status: "open" | "leased" | "dying" | "settled" | "gone";
  attempts: number;
  byDisconnect: boolean;
  /** Not to be delivered before. */
  dueAt: number;
  /** The lease that is on it, or has passed its deadline and is not lost yet. */
  lease: { member: number; epoch: number; token: number; until: number; sequence: number; lapsed: boolean } | undefined;
  /** By which lease it was settled. */
  settledBy: string | undefined;
  /** Its last attempt was counted since the last commit began, or before the one that has not ended. */
  undurable: "ended" | "underway" | undefined;
  /** The highest attempt that it was ever delivered as, since the last seek. */
  highest: number;
  /** It had no attempt left at some time while nobody held it: then it may be dying, although it has more attempts by now. */
  mayDie: boolean;
}

/** What a restart finds. */
interface Snapshot {
  readonly events: readonly Readonly<ModelEvent>[];
  readonly options: LeaseModel["options"];
}

export interface ModelMember {
  readonly number: number;
  readonly ackTimeoutMs: number;
  slots: number;
  open: boolean;
  stalled: boolean;
  sequence: number;
  written: number;
}

const fresh: Omit<ModelEvent, "offset" | "key"> = {
  status: "open",
  attempts: 0,
  byDisconnect: false,
  dueAt: 0,
  lease: undefined,
  settledBy: undefined,
  undurable: undefined,
  highest: 0,
  mayDie: false,
};

export class LeaseModel {
  readonly events: ModelEvent[] = [];
  readonly members = new Map<number, ModelMember>();
  readonly dead = new Set<number>();
  options: Pick<GroupOptions, "maxAttempts" | "backoffMs" | "ordering"> & { keyPrefix: string | undefined };
  now = 0;
  /** While commits are held back: what the last one that ended holds, and the one under way. */
  private durable: Snapshot | undefined;
  private underway: Snapshot | undefined;

  constructor(options: LeaseModel["options"]) {
    this.options = options;
  }

  publish(key: string | undefined): void {
    this.events.push({ ...fresh, offset: this.events.length, key });
  }

  // ------------------------------------------------------------------------------------------------------------ commits

  /** From now on a crash loses what no commit has held. */
  holdCommits(): void {
    this.durable = this.snapshot();
  }

  /** Everything is durable, and will be after each step. */
  freeCommits(): void {
    this.durable = undefined;
    this.underway = undefined;
  }

  commitBegins(): void {
    for (const event of this.events) if (event.undurable === "ended") event.undurable = "underway";
    if (this.durable !== undefined) this.underway = this.snapshot();
  }

  commitEnds(): void {
    for (const event of this.events) if (event.undurable === "underway") event.undurable = undefined;
    if (this.durable !== undefined) this.durable = this.underway;
    this.underway = undefined;
  }

  private snapshot(): Snapshot {
    return { events: this.events.map((event) => ({ ...event })), options: this.options };
  }

  /** Back to what was durable; what clients have seen stays seen. */
  private recover({ events, options }: Snapshot): void {
    this.options = options;
    for (const event of this.events) {
      const { offset, key, highest } = event;
      const before = events[offset] ?? { ...fresh, offset, key };
      Object.assign(event, before, { highest: Math.max(highest, before.highest) });
    }
  }

  matches({ key }: ModelEvent): boolean {
    const { keyPrefix } = this.options;
    return keyPrefix === undefined || (key?.startsWith(keyPrefix) ?? false);
  }

  leasesOf(member: number): ModelEvent[] {
    return this.events.filter(({ status, lease }) => status === "leased" && lease?.member === member);
  }

  isSuspect(event: ModelEvent): boolean {
    return event.byDisconnect && event.attempts === this.options.maxAttempts - 1;
  }

  /** Why the event may not be delivered now, if so. */
  hindrance(event: ModelEvent): string | undefined {
    if (event.status !== "open") return `it is ${event.status}`;
    if (event.dueAt > this.now) return `it waits until ${event.dueAt}`;
    if (!this.matches(event)) return "the filter does not match";
    if (event.attempts >= this.options.maxAttempts) return "its attempts are used up";
    if (event.undurable !== undefined) return "the end of its last attempt is not durable";
    if (this.options.ordering === "key" && event.key !== undefined) {
      const before = this.events.find(
        (other) =>
          other.offset < event.offset &&
          other.key === event.key &&
          this.matches(other) &&
          (other.status === "open" || other.status === "leased" || other.status === "dying"),
      );
      if (before !== undefined) return `${before.offset} of its key comes first`;
    }
    return undefined;
  }

  /** Time passes: leases run out at their deadlines. */
  advance(now: number): void {
    this.now = now;
    for (const event of this.events) {
      const { lease } = event;
      if (event.status !== "leased" || lease === undefined || lease.until > now) continue;
      const member = this.members.get(lease.member)!;
      const counted = !(member.stalled && lease.sequence > member.written);
      this.giveBack(event, counted, false, counted ? undefined : 0, lease.until);
      if (counted) event.lease = { ...lease, lapsed: true };
    }
  }

  delivered(got: Got): void {
    this.advance(got.at);
    const event = this.events[got.offset];
    if (this.isSpared(event)) {
      event.status = "open";
      event.dueAt = 0;
    }
    const fault = this.hindrance(event);
    const member = this.members.get(got.member);
    const expect = (holds: boolean, text: string) => {
      if (!holds) throw new Error(`${got.offset} delivered to ${got.member} at ${got.at}: ${text}`);
    };
    expect(fault === undefined, fault ?? "");
    expect(member?.open === true, "to a member that is not open");
    if (member === undefined) return;
    expect(member.slots >= 1, "without a slot");
    expect(got.attempt === event.attempts + 1, `as attempt ${got.attempt} after ${event.attempts}`);
    expect(got.attempt >= event.highest, `as attempt ${got.attempt}, and it was seen as attempt ${event.highest}`);
    event.highest = got.attempt;
    const held = this.leasesOf(got.member);
    expect(!this.isSuspect(event) || held.length === 0, "not alone");
    expect(
      !held.some((other) => this.isSuspect(other) && !other.lease?.lapsed && other.dueAt === -1),
      "beside one alone",
    );
    member.slots--;
    event.status = "leased";
    event.mayDie = false;
    // -1 marks an event that is held alone; an extension of a lapsed lease does not bring that back.
    event.dueAt = this.isSuspect(event) ? -1 : 0;
    event.lease = {
      member: got.member,
      epoch: got.epoch,
      token: got.token,
      until: got.at + member.ackTimeoutMs,
      sequence: ++member.sequence,
      lapsed: false,
    };
  }

  ack(offset: number, by: { member: number; named: Got | undefined }): SettleResult | "lost" {
    const event = this.events[offset];
    const verdict = this.verdict(event, by);
    if (verdict !== null) return verdict;
    this.endLease(event);
    event.settledBy = nameOf(event.lease!);
    event.status = "settled";
    event.lease = undefined;
    return null;
  }

  nack(offset: number, by: { member: number; named: Got | undefined }, delayMs?: number): SettleResult | "lost" {
    const event = this.events[offset];
    const verdict = this.verdict(event, by);
    if (verdict !== null) return verdict;
    if (event.status === "leased") {
      this.giveBack(event, true, false, delayMs, this.now);
    } else if (event.status === "open" || this.isSpared(event)) {
      event.status = "open";
      event.dueAt = this.now + (delayMs ?? this.backoff(event));
    }
    event.lease = undefined;
    return null;
  }

  /** No attempt: also where its deadline had passed and was counted. */
  release(offset: number, by: { member: number; named: Got | undefined }): SettleResult | "lost" {
    const event = this.events[offset];
    const verdict = this.verdict(event, by);
    if (verdict !== null) return verdict;
    if (event.status === "leased") {
      this.giveBack(event, false, false, 0, this.now);
    } else {
      event.status = "open";
      event.attempts--;
      event.undurable = undefined;
      event.dueAt = this.now;
    }
    event.lease = undefined;
    return null;
  }

  extend(offset: number, got: Got, extendMs: number): "lost" | null {
    const event = this.events[offset];
    const { lease } = event;
    if (lease === undefined || nameOf(lease) !== nameOf(got)) return "lost";
    if (event.status !== "leased") {
      const member = this.members.get(lease.member);
      if (member === undefined) return "lost";
      event.status = "leased";
      event.attempts--;
      event.undurable = undefined;
      event.dueAt = 0;
      member.slots--;
    }
    event.lease = { ...lease, lapsed: false, until: this.now + extendMs };
    return null;
  }

  leave(number: number, cause: "disconnect" | "unsubscribe" | "shutdown", written: number): void {
    for (const event of this.leasesOf(number)) {
      const counted = cause !== "shutdown" && event.lease!.sequence <= written;
      const byDisconnect = cause === "disconnect";
      this.giveBack(event, counted, byDisconnect, byDisconnect ? undefined : 0, this.now);
      event.lease = undefined;
    }
    this.members.delete(number);
  }

  /** What was dying is in the dead letters; since when, is not known exactly. */
  buried(offset: number, now: number): void {
    const event = this.events[offset];
    if (event.status === "leased" && event.lease!.until <= now) this.advance(event.lease!.until);
    if (event.status === "open" && event.mayDie) event.status = "dying";
    if (event.status !== "dying") throw new Error(`${offset} was buried, and it is ${event.status}`);
    event.status = "settled";
    event.lease = undefined;
    this.dead.add(offset);
  }

  trim(start: number): void {
    for (const event of this.events.slice(0, start)) {
      if (event.status === "settled") continue;
      this.endLease(event);
      event.status = "gone";
      event.lease = undefined;
    }
  }

  seek(to: number): void {
    for (const event of this.events) {
      this.endLease(event);
      event.lease = undefined;
      event.settledBy = undefined;
      event.attempts = 0;
      event.undurable = undefined;
      event.highest = 0;
      event.byDisconnect = false;
      event.mayDie = false;
      event.dueAt = 0;
      event.status = event.offset < to ? "settled" : "open";
    }
  }

  /** Leases are forgotten with their members; of what ended before counts what is durable. */
  restart(): void {
    if (this.durable !== undefined) this.recover(this.durable);
    this.underway = undefined;
    for (const event of this.events) event.undurable = undefined;
    this.rewind();
    for (const event of this.events) {
      if (event.status !== "leased") continue;
      event.status = "open";
      event.lease = undefined;
      event.dueAt = 0;
    }
    this.members.clear();
  }

  rewind(): void {
    for (const event of this.events) {
      event.settledBy = undefined;
      if (event.status !== "leased") event.lease = undefined;
      if (event.status === "dying" && event.attempts < this.options.maxAttempts) {
        event.status = "open";
        event.dueAt = 0;
      }
    }
  }

  setMaxAttempts(maxAttempts: number): void {
    this.options = { ...this.options, maxAttempts };
    for (const event of this.events) if (event.attempts >= maxAttempts) event.mayDie = true;
  }

  /** More attempts since it began to die, or may have: what is looked at again before it is buried lives on, without a wait. */
  private isSpared(event: ModelEvent): boolean {
    const began = event.status === "dying" || (event.status === "open" && event.mayDie);
    return began && event.attempts < this.options.maxAttempts;
  }

  private verdict(
    event: ModelEvent,
    { member, named }: { member: number; named: Got | undefined },
  ): SettleResult | "lost" {
    const { lease } = event;
    if (named === undefined) return lease !== undefined && lease.member === member ? null : "stale";
    if (lease !== undefined && nameOf(lease) === nameOf(named)) return null;
    return event.settledBy === nameOf(named) ? "stale" : "lost";
  }

  private giveBack(
    event: ModelEvent,
    counted: boolean,
    byDisconnect: boolean,
    delayMs: number | undefined,
    at: number,
  ): void {
    this.endLease(event);
    event.lease = undefined;
    event.status = "open";
    event.dueAt = at;
    if (!counted) return;
    event.attempts++;
    event.undurable = "ended";
    event.byDisconnect ||= byDisconnect;
    event.dueAt = at + (delayMs ?? this.backoff(event));
    if (event.attempts >= this.options.maxAttempts) event.status = "dying";
  }

  private backoff({ attempts }: ModelEvent): number {
    const { backoffMs } = this.options;
    return typeof backoffMs === "number" ? backoffMs : (backoffMs[Math.min(attempts, backoffMs.length) - 1] ?? 0);
  }

  private endLease(event: ModelEvent): void {
    if (event.status === "leased") this.members.get(event.lease!.member)!.slots++;
  }
}

function nameOf({ epoch, token }: { epoch: number; token: number }): string {
  return `${epoch}-${token}`;
}
