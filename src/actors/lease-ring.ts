// What is known of each event between the floor and the next fresh offset, in typed arrays: an event's place is its offset modulo
// a power of two, so leasing and settling a run costs a few stores per event and no allocation. `owner` says whose place it is.
//
// The ring grows until it covers the most unsettled events there may be. The window itself has no such bound: one event that waits
// an hour lets millions settle above it. So when the ring has turned once, an event at its tail that is still unsettled moves to
// the overflow, places behind the ring that a map finds.
//
// The place of a settled event keeps its token until the place is used again: that is how a repeated ACK is told from a late one.

export const leaseState = {
  settled: 0,
  /** A member holds it. */
  leased: 1,
  /** Between attempts: in backoff, or ready for whoever can take it. */
  waiting: 2,
  /** An earlier event of its key is unsettled. */
  blocked: 3,
  /** Out of attempts, on its way to the dead-letter topic. */
  dying: 4,
} as const;

export type LeaseState = (typeof leaseState)[keyof typeof leaseState];

export const noHolder = -1;
const firstSize = 256;

export class LeaseRing {
  state = new Uint8Array(firstSize);
  owner = new Float64Array(firstSize).fill(-1);
  /** The lease that is or was last on it, 0: none that still counts. */
  token = new Float64Array(firstSize);
  /** The number of the member that holds or last held it. */
  holder = new Float64Array(firstSize);
  /** Which delivery to its member it was, counted from 1. */
  sequence = new Float64Array(firstSize);
  /** Deadline of the lease, or end of the backoff. */
  until = new Float64Array(firstSize);
  /** For when its live entry in the timers is (see deadlines.ts). */
  alarm = new Float64Array(firstSize);
  leasedAt = new Float64Array(firstSize);
  /** Of the id, with `salt`. */
  storedAt = new Float64Array(firstSize);
  /** From when the latency counts. */
  born = new Float64Array(firstSize);
  salt = new Uint16Array(firstSize);

  /** Of each state but settled, how many events. */
  readonly counts = [0, 0, 0, 0, 0];
  /** The first offset never looked at. */
  next = 0;
  private base = 0;
  private size = firstSize;
  private readonly sizeMax: number;
  private readonly overflow = new Map<number, number>();
  private readonly free: number[] = [];
  // Ids of the publishers' own making, as long as the event has a place.
  private readonly idOf = new Map<number, string>();
  /** An id can be published again once its dedupe window is over, so several events may have it; rarely more than one does. */
  private readonly offsetOf = new Map<string, number | readonly number[]>();

  constructor(unsettledMax: number) {
    let sizeMax = firstSize;
    while (sizeMax < unsettledMax) sizeMax *= 2;
    this.sizeMax = sizeMax;
  }

  get unsettled(): number {
    const { counts } = this;
    return counts[1] + counts[2] + counts[3] + counts[4];
  }

  /** Where the event is described; -1 when nothing is remembered of it. */
  slotOf(offset: number): number {
    const slot = offset & (this.size - 1);
    if (this.owner[slot] === offset) return slot;
    return this.overflow.size === 0 ? -1 : (this.overflow.get(offset) ?? -1);
  }

  stateAt(offset: number): LeaseState {
    const slot = this.slotOf(offset);
    return slot < 0 ? leaseState.settled : (this.state[slot] as LeaseState);
  }

  /** Makes place up to `to`; `next` is `to` then. The caller fills the places that it wants to keep with `claim`. */
  advance(to: number, floor: number): void {
    if (to - this.base > this.size) {
      this.base = Math.min(Math.max(this.base, floor), to);
      while (to - this.base > this.size && this.size < this.sizeMax) this.grow();
      const base = Math.max(this.base, to - this.size);
      const last = Math.min(base, this.next);
      for (let offset = this.base; offset < last; offset++) this.evict(offset);
      this.base = base;
    }
    this.next = to;
  }

  /** Gives the event its place in the part that `advance` made. */
  claim(offset: number): number {
    const slot = offset & (this.size - 1);
    const before = this.owner[slot];
    if (this.state[slot] !== leaseState.settled) throw new Error(`the place of ${offset} is taken by ${before}`);
    if (this.idOf.size > 0) this.forgetId(before);
    this.owner[slot] = offset;
    return slot;
  }

  enter(slot: number, state: LeaseState): void {
    const { counts } = this;
    const before = this.state[slot];
    if (before !== leaseState.settled) counts[before]--;
    if (state !== leaseState.settled) counts[state]++;
    this.state[slot] = state;
    if (state === leaseState.settled && slot >= this.size) this.leaveOverflow(slot);
  }

  name(offset: number, id: string): void {
    this.idOf.set(offset, id);
    const others = this.find(id).filter((other) => other !== offset);
    this.offsetOf.set(id, others.length === 0 ? offset : [...others, offset]);
  }

  /** The id that the publisher gave it, if it has a place. */
  ownId(offset: number): string | undefined {
    return this.idOf.get(offset);
  }

  /** The events that have a place and were published under this id, in the order in which they came. */
  find(id: string): readonly number[] {
    const found = this.offsetOf.get(id);
    if (found === undefined) return [];
    return typeof found === "number" ? [found] : found;
  }

  /** The unsettled offsets below `to`, lowest first. */
  unsettledBelow(to: number, floor: number): number[] {
    const offsets: number[] = [];
    for (const offset of this.overflow.keys()) if (offset < to) offsets.push(offset);
    offsets.sort((a, b) => a - b);
    const last = Math.min(to, this.next);
    for (let offset = Math.max(this.base, floor); offset < last; offset++) {
      const slot = offset & (this.size - 1);
      if (this.owner[slot] === offset && this.state[slot] !== leaseState.settled) offsets.push(offset);
    }
    return offsets;
  }

  /** Forgets every event; the walk begins at `next`. */
  reset(next: number): void {
    this.state.fill(leaseState.settled);
    this.owner.fill(-1);
    this.counts.fill(0);
    this.overflow.clear();
    this.free.length = 0;
    for (let slot = this.size; slot < this.state.length; slot++) this.free.push(slot);
    this.idOf.clear();
    this.offsetOf.clear();
    this.next = next;
    this.base = next;
  }

  private forgetId(offset: number): void {
    const id = this.idOf.get(offset);
    if (id === undefined) return;
    this.idOf.delete(offset);
    const others = this.find(id).filter((other) => other !== offset);
    if (others.length === 0) this.offsetOf.delete(id);
    else this.offsetOf.set(id, others);
  }

  private evict(offset: number): void {
    const slot = offset & (this.size - 1);
    if (this.owner[slot] !== offset || this.state[slot] === leaseState.settled) return;
    if (this.free.length === 0) this.widen();
    const place = this.free.pop() as number;
    this.copy(this, slot, place);
    this.overflow.set(offset, place);
    this.owner[slot] = -1;
    this.state[slot] = leaseState.settled;
  }

  private leaveOverflow(slot: number): void {
    const offset = this.owner[slot];
    this.overflow.delete(offset);
    this.owner[slot] = -1;
    this.free.push(slot);
    if (this.idOf.size > 0) this.forgetId(offset);
  }

  /** More places behind the ring. */
  private widen(): void {
    const before = this.state.length;
    const old = this.resize(before + Math.max(64, before - this.size));
    for (let slot = 0; slot < before; slot++) this.copy(old, slot, slot);
    for (let slot = this.state.length - 1; slot >= before; slot--) this.free.push(slot);
  }

  /** Twice the ring. Nothing is in the overflow before it has its full size. */
  private grow(): void {
    const old = this.resize(this.size * 2);
    const before = this.size;
    this.size *= 2;
    for (let slot = 0; slot < before; slot++) {
      if (old.owner[slot] >= 0) this.copy(old, slot, old.owner[slot] & (this.size - 1));
    }
  }

  /** New arrays, empty; gives the old ones. */
  private resize(length: number): Columns {
    const { state, owner, token, holder, sequence, until, alarm, leasedAt, storedAt, born, salt } = this;
    this.state = new Uint8Array(length);
    this.owner = new Float64Array(length).fill(-1);
    this.token = new Float64Array(length);
    this.holder = new Float64Array(length);
    this.sequence = new Float64Array(length);
    this.until = new Float64Array(length);
    this.alarm = new Float64Array(length);
    this.leasedAt = new Float64Array(length);
    this.storedAt = new Float64Array(length);
    this.born = new Float64Array(length);
    this.salt = new Uint16Array(length);
    return { state, owner, token, holder, sequence, until, alarm, leasedAt, storedAt, born, salt };
  }

  private copy(from: Columns, slot: number, to: number): void {
    this.state[to] = from.state[slot];
    this.owner[to] = from.owner[slot];
    this.token[to] = from.token[slot];
    this.holder[to] = from.holder[slot];
    this.sequence[to] = from.sequence[slot];
    this.until[to] = from.until[slot];
    this.alarm[to] = from.alarm[slot];
    this.leasedAt[to] = from.leasedAt[slot];
    this.storedAt[to] = from.storedAt[slot];
    this.born[to] = from.born[slot];
    this.salt[to] = from.salt[slot];
  }
}

type Columns = Pick<
  LeaseRing,
  "state" | "owner" | "token" | "holder" | "sequence" | "until" | "alarm" | "leasedAt" | "storedAt" | "born" | "salt"
>;
