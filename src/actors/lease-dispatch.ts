// Who gets what: reads what is due for delivery and leases it to the members in turn. Fresh events are walked in order, each looked
// at once; what comes again is read by its offsets. There is at most one read of each sort under way, and what cannot be handed
// out when its blocks arrive, because credits have changed, is dropped and read again: the runtime keeps the newest blocks near.

import type { BlockView } from "../protocol/block.ts";
import { filterMatches } from "../protocol/filter.ts";
import { EventFrames } from "./delivery.ts";
import type { Effect, Env } from "./effects.ts";
import type { LeaseLedger } from "./lease-ledger.ts";
import type { Member, Members } from "./members.ts";
import type { GroupOptions } from "./messages.ts";

const readBytesMax = 256 * 1024;
const readBytesMin = 4 * 1024;
const retryMs = 100;
const retryMsMax = 5000;

interface Read {
  readonly tag: number;
  readonly from: number;
}

export class LeaseDispatch {
  /** Events from here on are not durable yet. */
  end = 0;
  /** When a failed read is tried again. */
  retryAt: number | undefined;
  /** The cursor moved without an ack: something was filtered out or is gone. */
  moved = false;
  private options: GroupOptions | undefined;
  private readonly stream: number;
  private readonly ledger: LeaseLedger;
  private readonly members: Members;
  private readonly frames: EventFrames;
  private readonly nextTag: () => number;
  private fresh: Read | undefined;
  private ready: Read | undefined;
  private solo: Read | undefined;
  private failures = 0;
  // Bytes of a stored event, as the last blocks had it: how much to read for so many.
  private eventBytes = 1024;

  constructor(options: {
    stream: number;
    topic: string;
    group: string;
    ledger: LeaseLedger;
    members: Members;
    nextTag: () => number;
  }) {
    this.stream = options.stream;
    this.ledger = options.ledger;
    this.members = options.members;
    this.nextTag = options.nextTag;
    this.frames = new EventFrames(options.stream, options.topic, options.group);
  }

  setOptions(options: GroupOptions | undefined): void {
    this.options = options;
  }

  /** The books were rewound or moved: what is being read is of no use. */
  reset(): void {
    this.fresh = undefined;
    this.ready = undefined;
    this.solo = undefined;
  }

  /** Asks for what can be handed out, and for the credits that are missing. */
  request(env: Env, effects: Effect[]): void {
    const { ledger, members } = this;
    if (this.retryAt !== undefined && env.mono >= this.retryAt) this.retryAt = undefined;
    if (this.options === undefined || members.size === 0) return;
    const { ready, solo, limbo } = ledger.again;
    const next = ledger.next;
    const waits = ready.size > 0 || (next < this.end && this.freshRoom > 0);
    const wants = waits || limbo.waiting.size > 0;
    const idle = solo.length > 0 ? this.reserve() : undefined;
    if (solo.length === 0) members.reserved = undefined;
    for (const member of members.all()) {
      if (member === members.reserved ? idle !== undefined : wants) members.want(member, this.stream, effects);
    }
    if (this.retryAt !== undefined) return;
    if (idle !== undefined && this.solo === undefined && hasCredit(idle)) {
      this.solo = this.read(solo[0], 1, effects);
    }
    if (!waits || !members.anyCanTake) return;
    const bytes = this.bytesWanted();
    // What comes again is older than anything fresh and goes first, also where only the fresh is still in memory.
    if (ready.size > 0) {
      const run = (ready.firstEnd - ready.first) * this.eventBytes;
      this.ready ??= this.read(ready.first, Math.min(bytes, run), effects);
    } else {
      this.fresh ??= this.read(next, bytes, effects);
    }
  }

  /** False when the read was not one of these. */
  blocks(tag: number, blocks: readonly BlockView[], next: number, env: Env, effects: Effect[]): boolean {
    const read = this.take(tag);
    if (read === undefined) return false;
    if (blocks.length > 0) {
      const last = blocks[blocks.length - 1];
      this.eventBytes = Math.max(1, last.bytes.length / last.count);
      this.failures = 0;
    }
    if (read.sort === "fresh") this.deliverFresh(read.from, blocks, env);
    else if (read.sort === "ready") this.deliverReady(read.from, blocks, env);
    else this.deliverSolo(read.from, blocks, env);
    if (blocks.length === 0) this.nothingThere(read, next, env);
    this.members.endTurn();
    this.frames.flush(env, effects);
    return true;
  }

  failed(tag: number, env: Env): boolean {
    if (this.take(tag) === undefined) return false;
    this.tryLater(env);
    return true;
  }

  // --------------------------------------------------------------------------------------------------------------- fresh

  private deliverFresh(from: number, blocks: readonly BlockView[], env: Env): void {
    const { ledger, members } = this;
    // Otherwise what was not asked for would look like a gap.
    if (from > ledger.next) throw new Error(`read from ${from}, and the walk is at ${ledger.next}`);
    for (const block of blocks) {
      if (block.firstOffset > ledger.next) this.skipFresh(Math.min(block.firstOffset, this.end));
      const to = Math.min(block.endOffset, this.end);
      for (let at = ledger.next; at < to; at = ledger.next) {
        const member = this.freshRoom > 0 ? members.current() : undefined;
        if (member === undefined) return;
        this.step(member, block, at, to, env);
      }
    }
  }

  /** Deals with the event at `at` and as many after it as are dealt with in the same way. */
  private step(member: Member, block: BlockView, at: number, to: number, env: Env): void {
    const { ledger } = this;
    const { filter, ordering } = this.options as GroupOptions;
    const last = Math.min(to, at + Math.min(this.members.allowance(member), this.freshRoom), ledger.settled.nextIn(at));
    if (filter === null && ordering === "none" && !ledger.again.reachesTo(at)) {
      this.giveFresh(member, block, at, last - at, env);
      return;
    }
    const { firstOffset, pack } = block;
    if (filter !== null && !filterMatches(filter, block, at - firstOffset)) {
      let end = at + 1;
      while (end < to && !filterMatches(filter, block, end - firstOffset)) end++;
      ledger.filterOut(at, end, env.mono);
      this.moved = true;
      return;
    }
    const keys = ordering === "key" ? new Map<number, string>() : undefined;
    const out = new Set<string>();
    let count = 0;
    for (let offset = at; offset < last; offset++) {
      const index = offset - firstOffset;
      if (filter !== null && offset > at && !filterMatches(filter, block, index)) break;
      const key = keys === undefined ? undefined : pack.key(index);
      const blocked = key !== undefined && (out.has(key) || ledger.keys.has(key));
      if (blocked || ledger.again.attemptsOf(offset) > 0) {
        if (count > 0) break;
        const slot = ledger.admit(offset, block);
        if (key !== undefined) ledger.keys.enter(key, offset);
        ledger.setAside(offset, slot, blocked, env.mono);
        return;
      }
      if (key !== undefined) {
        out.add(key);
        keys?.set(offset, key);
      }
      count++;
    }
    const given = this.giveFresh(member, block, at, count, env);
    if (keys !== undefined) for (const [offset, key] of keys) if (offset < at + given) ledger.keys.enter(key, offset);
  }

  /** How many fresh events may be given out. What is about to come again keeps its slots, since it goes before them. */
  private get freshRoom(): number {
    const kept = this.ledger.again.limbo.waiting.size;
    return kept === 0 ? this.ledger.room : Math.min(this.ledger.room, this.members.capacity - kept);
  }

  private giveFresh(member: Member, block: BlockView, at: number, count: number, env: Env): number {
    const from = at - block.firstOffset;
    const fits = this.frames.fit(member, block, from, from + count);
    const token = env.tokens(fits);
    this.ledger.leaseFresh(member, block, at, fits, token, env.mono);
    this.give(member, block, from, from + fits, token, 1, env);
    return fits;
  }

  private skipFresh(to: number): void {
    this.ledger.totals.skipped += this.ledger.pass(this.ledger.next, to);
    this.moved = true;
  }

  // --------------------------------------------------------------------------------------------------------------- again

  private deliverReady(from: number, blocks: readonly BlockView[], env: Env): void {
    const { ledger, members } = this;
    const { ready } = ledger.again;
    let at = from;
    for (const block of blocks) {
      this.skipReady(at, block.firstOffset, env);
      at = Math.max(at, block.firstOffset);
      for (;;) {
        const offset = ready.nextIn(at);
        if (offset >= block.endOffset) break;
        const member = members.current();
        if (member === undefined) return;
        const last = Math.min(block.endOffset, ready.nextOut(offset), offset + members.allowance(member));
        const attempts = ledger.again.attemptsOf(offset);
        let to = offset + 1;
        while (to < last && ledger.again.attemptsOf(to) === attempts) to++;
        at = offset + this.giveAgain(member, block, offset, to - offset, attempts, env);
      }
      at = block.endOffset;
    }
  }

  private deliverSolo(offset: number, blocks: readonly BlockView[], env: Env): void {
    const { ledger, members } = this;
    const member = members.reserved;
    if (!ledger.again.solo.includes(offset) || blocks.length === 0) return;
    const [block] = blocks;
    if (offset < block.firstOffset) {
      this.skip(offset, env);
      return;
    }
    if (member === undefined || member.leases > 0 || !hasCredit(member)) return;
    members.reserved = undefined;
    this.giveAgain(member, block, offset, 1, ledger.again.attemptsOf(offset), env);
    member.alone = offset;
  }

  private giveAgain(
    member: Member,
    block: BlockView,
    offset: number,
    count: number,
    attempts: number,
    env: Env,
  ): number {
    const from = offset - block.firstOffset;
    const fits = this.frames.fit(member, block, from, from + count);
    const token = env.tokens(fits);
    this.ledger.lease(member, offset, fits, token, env.mono);
    if (attempts > 0) this.ledger.totals.redelivered += fits;
    this.give(member, block, from, from + fits, token, attempts + 1, env);
    return fits;
  }

  private skipReady(from: number, to: number, env: Env): void {
    const { ready } = this.ledger.again;
    for (let offset = ready.nextIn(from); offset < to; offset = ready.nextIn(offset)) this.skip(offset, env);
  }

  private skip(offset: number, env: Env): void {
    this.ledger.bury(offset, env.mono);
    this.ledger.totals.skipped++;
    this.moved = true;
  }

  /** The member that will get the next event alone, once it holds nothing; undefined while it still does. */
  private reserve(): Member | undefined {
    const { members } = this;
    let best: Member | undefined = members.reserved?.open ? members.reserved : undefined;
    for (const member of members.all()) {
      if (!member.open || member.alone >= 0) continue;
      if (best === undefined || (best.leases > 0 && member.leases < best.leases)) best = member;
      if (best.leases === 0 && !hasCredit(best) && member.leases === 0 && hasCredit(member)) best = member;
    }
    members.reserved = best;
    return best?.leases === 0 ? best : undefined;
  }

  // -------------------------------------------------------------------------------------------------------------- inside

  private give(
    member: Member,
    block: BlockView,
    from: number,
    to: number,
    token: number,
    attempt: number,
    env: Env,
  ): void {
    const { maxAttempts } = this.options as GroupOptions;
    this.frames.add(member, { block, from, to, token, attempt, maxAttempts }, env);
    this.members.spend(to - from);
  }

  /** Always up to the end, also for a single event: if it is gone, the first block after it says so. */
  private read(from: number, bytesMax: number, effects: Effect[]): Read {
    const tag = this.nextTag();
    effects.push({ type: "read", stream: this.stream, from, to: this.end, bytesMax: Math.ceil(bytesMax), tag });
    return { tag, from };
  }

  private bytesWanted(): number {
    let bytes = 0;
    let events = 0;
    for (const member of this.members.all()) {
      if (!this.members.canTake(member)) continue;
      bytes += member.bytes;
      events += Math.min(member.slots, member.tokens);
    }
    return Math.min(readBytesMax, Math.max(readBytesMin, Math.min(bytes, events * this.eventBytes)));
  }

  private take(tag: number): (Read & { sort: "fresh" | "ready" | "solo" }) | undefined {
    for (const sort of ["fresh", "ready", "solo"] as const) {
      const read = this[sort];
      if (read?.tag !== tag) continue;
      this[sort] = undefined;
      return { ...read, sort };
    }
    return undefined;
  }

  /** An empty read that names a place to go on says that what lies before is gone; otherwise the store may have it later. */
  private nothingThere(read: Read & { sort: "fresh" | "ready" | "solo" }, next: number, env: Env): void {
    if (next <= read.from) {
      this.tryLater(env);
      return;
    }
    if (read.sort === "fresh") {
      if (next > this.ledger.next) this.skipFresh(Math.min(next, this.end));
    } else if (read.sort === "ready") {
      this.skipReady(read.from, next, env);
    } else if (this.ledger.again.solo.includes(read.from)) {
      this.skip(read.from, env);
    }
  }

  private tryLater(env: Env): void {
    this.retryAt = env.mono + Math.min(retryMsMax, retryMs * 2 ** Math.min(this.failures++, 10));
  }
}

function hasCredit(member: Member): boolean {
  return member.slots >= 1 && member.tokens >= 1 && member.bytes > 0;
}
