// One group on one partition as it must be: what is settled and by what right, who holds what, how often it was tried.

import type { StoredEvent } from "./checker.ts";
import type { Subscription } from "./client.ts";

export interface EventFrame {
  readonly topic: string;
  readonly group: string;
  readonly event: {
    readonly id: string;
    readonly partition: number;
    readonly offset: number;
    readonly key?: string;
    readonly payload: unknown;
  };
  readonly ctx: { readonly attempt: number; readonly ack_deadline_ms: number; readonly lease: string };
}

/** As the node writes it: positions as differences. */
export interface StoredCursor {
  readonly floor: number;
  readonly ranges?: readonly number[];
  readonly attempted?: readonly number[];
}

export interface SeekTarget {
  readonly kind: string;
  readonly offset?: number;
  /** Of the stream, when it was asked for. */
  readonly start: number;
  readonly end: number;
}

/** What its holder, or whoever knew its name, made of a lease. */
type Settling = "acked" | "nacked" | "released";

export class Lease {
  readonly group: GroupState;
  readonly offset: number;
  readonly token: string;
  readonly attempt: number;
  readonly member: number;
  readonly issuedAt: number;
  /** The client that the member is of. */
  readonly holder: string;
  /** It runs at least until then, unless something ends it. */
  deadlineMin: number;
  /** It was extended past its deadline: its place in the window may have been given to another by then. */
  revived = false;
  /** When it ends by what its holder has heard. */
  private dueAt: number;
  /** When and why its member left the table. */
  left: { readonly at: number; readonly cause: string } | undefined;
  /** When its table was started anew, or the group was moved. */
  lostAt: number | undefined;
  /** Given while the group was being moved, by the cursor of before or of after that. */
  readonly doubtful: boolean;
  /** Its event was given to a socket. */
  sent = false;
  /** The socket took it. */
  taken = false;
  /** The holder has it. */
  written = false;
  subscription: Subscription | undefined;
  /** By the first request that reached its table while it could still be settled. */
  settling: Settling | undefined;
  /** An extension or a release reached its table: an attempt that was counted may be taken back. */
  mayBeTakenBack = false;

  constructor(group: GroupState, offset: number, facts: Omit<LeaseFacts, "deadlineAt">, deadlineAt: number) {
    this.group = group;
    this.offset = offset;
    this.token = facts.token;
    this.attempt = facts.attempt;
    this.member = facts.member;
    this.holder = facts.holder;
    this.issuedAt = facts.issuedAt;
    this.deadlineMin = deadlineAt;
    this.dueAt = deadlineAt;
    this.doubtful = facts.seeking;
  }

  get lost(): boolean {
    return this.lostAt !== undefined;
  }

  /** The node knows that of all that it sent at once, so not of a part of it that the connection took before it took nothing. */
  get surelyWritten(): boolean {
    return this.written && this.subscription?.client.everStalled !== true;
  }

  /** Whether a request that reaches its table now may settle it. A deadline that has passed is no obstacle, also where its member left after that. */
  get open(): boolean {
    const { settling, left, lost, group, offset, deadlineMin } = this;
    const gone = left !== undefined && left.at < deadlineMin;
    return settling === undefined && !gone && !lost && group.current(offset) === this;
  }

  /** Whether one may extend it: it goes on with its member, or not at all. */
  get extensible(): boolean {
    return this.open && this.left === undefined;
  }

  extended(deadlineAt: number, now: number): void {
    if (now >= this.dueAt) this.revived = true;
    this.dueAt = deadlineAt;
    this.deadlineMin = deadlineAt;
  }

  /** Its table is told to end it `ms` from now. Past its deadline that may come too late. */
  extends(ms: number, now: number): void {
    this.mayBeTakenBack = true;
    if (this.over(now)) this.deadlineMin = Math.min(this.deadlineMin, now + ms);
    else this.extended(now + ms, now);
  }

  /** Whether something may have ended it. */
  over(now: number): boolean {
    if (this.left !== undefined || this.lost || this.doubtful || now >= this.deadlineMin) return true;
    // Removed by retention.
    if (this.offset < this.group.owner.start) return true;
    return this.settling !== undefined;
  }

  /**
   * Whether its end may count as an attempt: the event was written to the socket, and the lease ran out, was nacked, or went back with its
   * member, which then has taken it, unless it only unsubscribed.
   */
  mayCount(now: number): boolean {
    if (this.settling === "nacked") return true;
    if (!this.sent) return false;
    const { left, lostAt, deadlineMin } = this;
    if (deadlineMin <= Math.min(now, left?.at ?? now, lostAt ?? now)) return true;
    if (left === undefined || left.cause === "shutdown") return false;
    return this.taken || left.cause === "unsubscribe";
  }
}

export interface LeaseFacts {
  readonly token: string;
  readonly attempt: number;
  readonly member: number;
  readonly holder: string;
  readonly issuedAt: number;
  readonly deadlineAt: number;
  /** The table was told to move and has not answered. */
  readonly seeking: boolean;
  /** A thread stood still: what a table knew of a socket when a lease ran out may have been old. */
  readonly blurred: boolean;
}

interface Owner {
  readonly topic: string;
  /** It holds the dead letters of that. */
  readonly deadLetterOf: object | undefined;
  readonly events: readonly StoredEvent[];
  readonly byId: ReadonlyMap<string, readonly number[]>;
  readonly start: number;
}

export class GroupState {
  readonly shard: number;
  readonly stream: number;
  readonly group: string;
  readonly name: string;
  readonly owner: Owner;
  options: { maxAttempts: number; ordering: string; filter: { keyPrefix?: string } | null } | undefined;
  /** When it was moved last, or told to. */
  since = 0;
  private cursor: { floor: number; settled: Set<number>; attempts: Map<number, number> } | undefined;
  private dead = new Set<number>();
  private readonly deadAnew = new Set<number>();
  /** Members that left. They are numbered by the front, from 1 in each life of a node. */
  readonly gone = new Map<number, NonNullable<Lease["left"]>>();
  /** Of each event, oldest first. */
  private leases = new Map<number, Lease[]>();

  constructor(facts: { shard: number; stream: number; group: string; name: string; owner: Owner }) {
    this.shard = facts.shard;
    this.stream = facts.stream;
    this.group = facts.group;
    this.name = facts.name;
    this.owner = facts.owner;
  }

  get floor(): number {
    return this.cursor?.floor ?? 0;
  }

  isSettled(offset: number): boolean {
    return this.cursor !== undefined && (offset < this.cursor.floor || this.cursor.settled.has(offset));
  }

  attemptsStored(offset: number): number {
    return this.cursor?.attempts.get(offset) ?? 0;
  }

  current(offset: number): Lease | undefined {
    return this.leases.get(offset)?.at(-1);
  }

  *newest(): Generator<Lease> {
    for (const leases of this.leases.values()) yield leases[leases.length - 1];
  }

  /** A cursor is stored: says what is wrong with it, or that it moved the group. */
  put(
    stored: StoredCursor,
    { seeks, now }: { seeks: readonly SeekTarget[]; now: number },
  ): string | "seek" | undefined {
    const next = read(stored);
    const { cursor } = this;
    const end = this.owner.events.length;
    if (next.floor > end) return `the floor ${next.floor} is behind the end ${end}`;
    if (cursor === undefined) {
      this.cursor = next;
      return undefined;
    }
    if (seeks.some((to) => this.leadsTo(to, next))) {
      this.cursor = next;
      this.since = now;
      // What died before the move, in the same commit, comes again.
      this.dead = new Set([...this.deadAnew].filter((offset) => this.isSettled(offset)));
      this.deadAnew.clear();
      for (const [offset, leases] of [...this.leases]) {
        for (const lease of leases) if (!lease.doubtful) lease.lostAt ??= now;
        const kept = leases.filter(({ doubtful }) => doubtful);
        if (kept.length > 0) this.leases.set(offset, kept);
        else this.leases.delete(offset);
      }
      return "seek";
    }
    for (const offset of this.deadAnew) this.dead.add(offset);
    this.deadAnew.clear();
    if (next.floor < cursor.floor) return `the floor fell from ${cursor.floor} to ${next.floor}`;
    const isNext = (offset: number) => offset < next.floor || next.settled.has(offset);
    for (const offset of cursor.settled) if (!isNext(offset)) return `${offset} was settled and is not any more`;
    for (let offset = cursor.floor; offset < next.floor; offset++) {
      if (!cursor.settled.has(offset) && !this.mayBeSettled(offset))
        return `the floor ${next.floor} passes ${offset}, which nobody settled`;
    }
    for (const offset of next.settled) {
      if (offset >= end) return `${offset} is settled and not stored`;
      if (!cursor.settled.has(offset) && !this.mayBeSettled(offset))
        return `${offset} is settled, and nobody may have done so`;
    }
    for (const [offset, attempts] of next.attempts) {
      if (attempts < (cursor.attempts.get(offset) ?? 0) - this.mayTakeBack(offset))
        return `attempts of ${offset} fell to ${attempts}`;
      const delivered = this.deliveredAttempts(offset);
      if (attempts > Math.max(...delivered, cursor.attempts.get(offset) ?? 0))
        return `${attempts} attempts of ${offset}, delivered were ${delivered}`;
      if (attempts > (cursor.attempts.get(offset) ?? 0) && !this.mayCount(offset, attempts, now))
        return `${attempts} attempts of ${offset}, the last of which does not count`;
    }
    for (const [offset, attempts] of cursor.attempts) {
      if (!isNext(offset) && (next.attempts.get(offset) ?? 0) < attempts - this.mayTakeBack(offset))
        return `attempts of ${offset} are forgotten`;
    }
    this.cursor = next;
    return undefined;
  }

  /** A member is given an event. Undefined if that is right. */
  lease(offset: number, facts: LeaseFacts): string | undefined {
    if (this.isSettled(offset) && !facts.seeking) return "it is settled";
    if (this.dead.has(offset) && !facts.seeking) return "it is a dead letter";
    const stored = this.attemptsStored(offset);
    const takenBack = facts.attempt === stored && this.mayTakeBack(offset) > 0;
    if (facts.attempt !== stored + 1 && !takenBack && !facts.seeking) return `${stored} attempts are stored`;
    // Dead letters go on for ever.
    const mortal = this.options !== undefined && this.owner.deadLetterOf === undefined;
    if (this.options !== undefined && mortal && facts.attempt > this.options.maxAttempts)
      return `only ${this.options.maxAttempts} attempts are allowed`;
    if (!this.matches(offset)) return "the group's filter does not match it";
    const last = this.current(offset);
    if (last !== undefined && !facts.seeking) {
      if (!last.over(facts.issuedAt)) return `it is still leased as ${last.token} until ${last.deadlineMin}`;
      const released = last.settling === "released";
      const uncounted = last.lost || last.left !== undefined || released || !last.surelyWritten || facts.blurred;
      // Of one that was given while the group moved, nobody knows by which count.
      const counted = last.doubtful ? 0 : uncounted ? last.attempt - 1 : last.attempt;
      if (stored < counted) return `attempt ${last.attempt} ended and was not counted`;
    }
    const blocking = this.blocking(offset, facts.issuedAt);
    if (blocking !== undefined && !facts.seeking) return `${blocking} of the same key is not settled`;
    if (this.gone.has(facts.member)) return `member ${facts.member} has left`;
    const lease = new Lease(this, offset, facts, facts.deadlineAt);
    const leases = this.leases.get(offset);
    if (leases === undefined) this.leases.set(offset, [lease]);
    else leases.push(lease);
    return undefined;
  }

  /** A dead letter is stored; with `seeking` in the commit that may also move the group, after which it died anew. */
  bury(offset: number, attempts: number, { seeking, now }: { seeking: boolean; now: number }): string | undefined {
    if (seeking) {
      this.deadAnew.add(offset);
      return undefined;
    }
    if (this.dead.has(offset)) return "it is one already";
    if (this.isSettled(offset)) return "it is settled";
    const delivered = this.deliveredAttempts(offset);
    if (attempts !== this.attemptsStored(offset) && !delivered.includes(attempts))
      return `after ${attempts} attempts, delivered were ${delivered}`;
    if (attempts !== this.attemptsStored(offset) && !this.mayCount(offset, attempts, now))
      return `after ${attempts} attempts, the last of which does not count`;
    if (this.options !== undefined && attempts < this.options.maxAttempts)
      return `after ${attempts} attempts of ${this.options.maxAttempts}`;
    this.dead.add(offset);
    return undefined;
  }

  /** Also what was leased by the old position while the group was being moved. */
  private deliveredAttempts(offset: number): readonly number[] {
    const leases = this.leases.get(offset) ?? [];
    const from = leases.findLastIndex(({ doubtful }) => !doubtful);
    return leases.slice(Math.max(0, from)).map(({ attempt }) => attempt);
  }

  /** Whether an attempt of this number may have ended so that it counts. */
  private mayCount(offset: number, attempt: number, now: number): boolean {
    const leases = this.leases.get(offset) ?? [];
    return leases.some((lease) => lease.attempt === attempt && (lease.doubtful || lease.mayCount(now)));
  }

  left(member: number, cause: string, at: number): void {
    this.gone.set(member, { at, cause });
    for (const leases of this.leases.values())
      for (const lease of leases) if (lease.member === member) lease.left ??= { at, cause };
  }

  /** It is told to move: that ends every lease at once, whatever becomes of it. */
  moves(now: number): void {
    this.restarted(now);
    this.since = now;
  }

  /** Its table is gone. What it had heard and not stored may be in a commit whose outcome is not known yet. */
  restarted(now: number): void {
    for (const leases of this.leases.values()) for (const lease of leases) lease.lostAt ??= now;
  }

  /** A table begins with what is stored: no ack that is not stored will ever be. */
  begins(now: number): void {
    this.restarted(now);
    for (const leases of this.leases.values())
      for (const lease of leases) if (lease.settling === "acked") lease.settling = undefined;
  }

  matches(offset: number): boolean {
    const prefix = this.options?.filter?.keyPrefix;
    return prefix === undefined || (this.owner.events[offset]?.key?.startsWith(prefix) ?? false);
  }

  /** How many attempts of those stored may be taken back: a lease past its deadline goes on when its holder extends it, or is given back. */
  private mayTakeBack(offset: number): number {
    const stored = this.attemptsStored(offset);
    const leases = this.leases.get(offset) ?? [];
    return leases.some(({ attempt, mayBeTakenBack }) => attempt === stored && mayBeTakenBack) ? 1 : 0;
  }

  /** Whether somebody settled it, stored or not yet: by an ACK of a lease that was still on it, or it died, or is no business of the group. */
  private mayBeSettled(offset: number): boolean {
    if (this.dead.has(offset) || offset < this.owner.start || !this.matches(offset)) return true;
    return (this.leases.get(offset) ?? []).some(({ settling }) => settling === "acked");
  }

  /** The first event before it of the same key that is neither settled nor dying. */
  private blocking(offset: number, now: number): number | undefined {
    if (this.options?.ordering !== "key") return undefined;
    const { key } = this.owner.events[offset];
    if (key === undefined) return undefined;
    for (let before = Math.max(this.floor, this.owner.start); before < offset; before++) {
      if (this.owner.events[before].key !== key || this.isSettled(before) || this.mayBeSettled(before)) continue;
      const last = this.current(before);
      const dying = last !== undefined && last.attempt >= (this.options?.maxAttempts ?? 0) && last.over(now);
      if (!dying) return before;
    }
    return undefined;
  }

  /** Whether a move to there, and what members did with what they got meanwhile, gives this cursor. */
  private leadsTo(to: SeekTarget, next: { floor: number; settled: Set<number> }): boolean {
    const { start, events } = this.owner;
    const wanted = to.kind === "earliest" ? 0 : (to.offset ?? 0);
    const meanwhile = (offset: number) =>
      !this.matches(offset) ||
      this.deadAnew.has(offset) ||
      (this.leases.get(offset) ?? []).some(({ doubtful, settling }) => doubtful && settling === "acked");
    for (const offset of next.settled) if (!meanwhile(offset)) return false;
    if (to.kind !== "earliest" && to.kind !== "offset") return true;
    // A position outside of what is stored is taken for its start or its end, which move meanwhile.
    let from = next.floor;
    while (from > 0 && meanwhile(from - 1)) from--;
    return (
      from <= Math.min(Math.max(wanted, start), events.length) &&
      next.floor >= Math.min(Math.max(wanted, to.start), to.end)
    );
  }
}

function read({ floor, ranges = [], attempted = [] }: StoredCursor) {
  const settled = new Set<number>();
  let at = floor;
  for (let i = 0; i < ranges.length; i += 2) {
    at += ranges[i];
    for (const to = at + ranges[i + 1]; at < to; at++) settled.add(at);
  }
  const attempts = new Map<number, number>();
  for (let i = 0; i < attempted.length; i += 5) {
    for (let n = 0; n < attempted[i + 1]; n++) attempts.set(floor + attempted[i] + n, attempted[i + 2]);
  }
  return { floor, settled, attempts };
}
