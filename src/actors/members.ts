// The live subscriptions of a group on one partition, and what each may still be given. Slots, tokens and bytes are lent by the
// front, which owns the windows; a lease that ends frees its slot here, in place. Members take turns of `batchSize` events.

import type { Effect } from "./effects.ts";
import type { MessageOf } from "./messages.ts";

export interface Member {
  readonly number: number;
  readonly ackTimeoutMs: number;
  readonly batchSize: number;
  readonly format: "json" | "batch";
  readonly handle: number;
  readonly who: string;
  /** Free leases. Below 0 only while a lease that had lapsed was extended after its slot had been given back. */
  slots: number;
  tokens: number;
  bytes: number;
  open: boolean;
  stalled: boolean;
  /** How many deliveries were made, and how many of them are known to have reached the socket. */
  sequence: number;
  written: number;
  /** How many of them the front has handed to the socket, whether or not it took them, as far as known. */
  handed: number;
  /** Leases that would be over if that were known of them: by offset, until when it is awaited. */
  readonly overdue: Map<number, number>;
  /** Live leases. */
  leases: number;
  /** Slots that the front wants back. */
  recalled: number;
  /** The event that this member holds alone, -1: none. */
  alone: number;
  /** The missing credits that the front was told of since the last grant. */
  wanted: number;
}

const wantSlots = 1;
const wantTokens = 2;
const wantBytes = 4;

export class Members {
  private readonly byNumber = new Map<number, Member>();
  private order: Member[] = [];
  private turn = 0;
  private quota = 0;
  private readonly recalling = new Set<Member>();
  /** With leases of which the front must be asked. */
  private readonly doubtful = new Set<Member>();
  /** Gets nothing new until it is idle, and then an event that must be delivered alone. */
  reserved: Member | undefined;

  get size(): number {
    return this.order.length;
  }

  get(number: number): Member | undefined {
    return this.byNumber.get(number);
  }

  all(): readonly Member[] {
    return this.order;
  }

  add(join: MessageOf<"join">): void {
    const { member: number, ackTimeoutMs, batchSize, format, handle, who } = join;
    const member: Member = {
      number,
      ackTimeoutMs,
      batchSize: Math.max(1, batchSize),
      format,
      handle,
      who,
      slots: 0,
      tokens: 0,
      bytes: 0,
      open: true,
      stalled: false,
      sequence: 0,
      written: 0,
      handed: 0,
      overdue: new Map(),
      leases: 0,
      recalled: 0,
      alone: -1,
      wanted: 0,
    };
    this.byNumber.set(number, member);
    this.order.push(member);
    if (this.order.length === 1) this.pass(0);
  }

  /** Its leases have ended. */
  remove(member: Member): void {
    if (member.leases !== 0) throw new Error(`member ${member.number} leaves with ${member.leases} leases`);
    const at = this.order.indexOf(member);
    this.order.splice(at, 1);
    if (at < this.turn) this.turn--;
    else if (at === this.turn) this.quota = 0;
    this.byNumber.delete(member.number);
    this.recalling.delete(member);
    this.doubtful.delete(member);
    if (this.reserved === member) this.reserved = undefined;
  }

  clear(): void {
    this.order = [];
    this.byNumber.clear();
    this.recalling.clear();
    this.doubtful.clear();
    this.reserved = undefined;
  }

  canTake(member: Member): boolean {
    return isFree(member) && member !== this.reserved;
  }

  /** Someone could take an event now, or once it is idle. */
  get anyFree(): boolean {
    return this.order.some(isFree);
  }

  /** How many events those who can take something could be given. */
  get capacity(): number {
    let capacity = 0;
    for (const member of this.order) {
      if (this.canTake(member)) capacity += Math.min(member.slots, Math.floor(member.tokens));
    }
    return capacity;
  }

  get anyCanTake(): boolean {
    for (const member of this.order) if (this.canTake(member)) return true;
    return false;
  }

  /** Whose turn it is, among those that can take something. */
  current(): Member | undefined {
    const { order } = this;
    if (this.turn >= order.length) this.pass(order.length);
    for (let tried = 0; tried <= order.length && order.length > 0; tried++) {
      const member = order[this.turn];
      if (this.quota > 0 && this.canTake(member)) return member;
      this.pass(this.turn + 1);
    }
    return undefined;
  }

  /** How many events the member may be given in this turn. */
  allowance(member: Member): number {
    return Math.min(this.quota, member.slots, Math.floor(member.tokens));
  }

  /** The current member was given so many. */
  spend(count: number): void {
    this.quota -= count;
  }

  /** Whoever was given something last is not the first next time. */
  endTurn(): void {
    const member = this.order[this.turn];
    if (member !== undefined && this.quota < member.batchSize) this.pass(this.turn + 1);
  }

  // A member that is not there has left meanwhile.

  grant(message: MessageOf<"grant">): void {
    const member = this.get(message.member);
    if (member === undefined) return;
    member.slots += message.slots;
    member.tokens += message.tokens;
    member.bytes += message.bytes;
    member.wanted = 0;
  }

  recall(message: MessageOf<"recall">): void {
    const member = this.get(message.member);
    if (member === undefined) return;
    member.recalled += message.slots;
    this.recalling.add(member);
  }

  flow(message: MessageOf<"flow">): Member | undefined {
    const member = this.get(message.member);
    if (member === undefined) return undefined;
    member.open = message.open;
    member.stalled = message.stalled;
    member.written = Math.max(member.written, message.written);
    member.handed = Math.max(member.handed, message.written);
    return member;
  }

  handed(message: MessageOf<"handed">): Member | undefined {
    const member = this.get(message.member);
    if (member !== undefined) member.handed = Math.max(member.handed, message.handed);
    return member;
  }

  doubt(member: Member): void {
    this.doubtful.add(member);
  }

  /** Asks the front of those whose leases are overdue. */
  askHanded(stream: number, effects: Effect[]): void {
    for (const member of this.doubtful) {
      effects.push({ type: "signal", signal: { type: "overdue", member: member.number, stream } });
    }
    this.doubtful.clear();
  }

  /** What is free of the slots that were called back. */
  release(stream: number, effects: Effect[]): void {
    for (const member of this.recalling) {
      const slots = Math.min(member.recalled, member.slots);
      if (slots <= 0) continue;
      member.slots -= slots;
      member.recalled -= slots;
      if (member.recalled === 0) this.recalling.delete(member);
      effects.push({ type: "signal", signal: { type: "release", member: member.number, stream, slots } });
    }
  }

  /** Something waits for the member: says which credit is missing, each once until the next grant. */
  want(member: Member, stream: number, effects: Effect[]): void {
    if (!member.open || member.alone >= 0) return;
    const missing =
      (member.slots < 1 ? wantSlots : 0) | (member.tokens < 1 ? wantTokens : 0) | (member.bytes > 0 ? 0 : wantBytes);
    if ((missing & ~member.wanted) === 0) return;
    member.wanted |= missing;
    effects.push({
      type: "signal",
      signal: {
        type: "want",
        member: member.number,
        stream,
        slots: (missing & wantSlots) !== 0,
        tokens: (missing & wantTokens) !== 0,
        bytes: (missing & wantBytes) !== 0,
      },
    });
  }

  private pass(turn: number): void {
    this.turn = turn >= this.order.length ? 0 : turn;
    this.quota = this.order[this.turn]?.batchSize ?? 0;
  }
}

function isFree(member: Member): boolean {
  return member.slots >= 1 && member.tokens >= 1 && member.bytes > 0 && member.open && member.alone < 0;
}
