// How the window of one subscription (`maxInflight`) is shared by the partitions of its topic. A slot lies with the lease table of one
// partition until it is called back, and the slots held never sum above the window. A topic with one partition gets all of them at once.
// With several, a partition that has something to deliver wants slots: it gets free ones, or those that partitions above their
// fair share hold, or that partitions hold which have been quiet. A partition that holds none at all gets one from whoever had
// its own longest, so that even one slot goes round.

export interface SlotHolder {
  /** Slots that lie at the partition, free there or leased. */
  held: number;
  /** Of them, those called back and not yet released. */
  recalling: number;
  wanting: boolean;
  /** When it last got slots, and whether it has delivered since. */
  grantedAt: number;
  used: boolean;
  /** When it last delivered. */
  activeAt: number;
}

export function noSlots(): SlotHolder {
  return { held: 0, recalling: 0, wanting: false, grantedAt: 0, used: false, activeAt: Number.NEGATIVE_INFINITY };
}

/** A partition that delivered nothing for so long gives up what others want. */
const quietMs = 200;
/** So long a granted slot may wait for an event (or for tokens) before another may have it: else a slot could travel unused. */
const settleMs = 100;

export class Slots<Holder extends SlotHolder> {
  readonly max: number;
  private readonly grant: (holder: Holder, slots: number) => void;
  private readonly recall: (holder: Holder, slots: number) => void;
  private readonly holders = new Set<Holder>();
  private queue: Holder[] = [];

  constructor(options: {
    readonly max: number;
    readonly grant: (holder: Holder, slots: number) => void;
    readonly recall: (holder: Holder, slots: number) => void;
  }) {
    this.max = options.max;
    this.grant = options.grant;
    this.recall = options.recall;
  }

  get free(): number {
    let free = this.max;
    for (const holder of this.holders) free -= holder.held;
    return free;
  }

  add(holder: Holder): void {
    this.holders.add(holder);
  }

  /** It is gone, and with it what it held. */
  remove(holder: Holder): void {
    this.holders.delete(holder);
    this.queue = this.queue.filter((one) => one !== holder);
    holder.held = 0;
    holder.recalling = 0;
    holder.wanting = false;
  }

  want(holder: Holder, now: number): void {
    if (!this.holders.has(holder)) return;
    if (!holder.wanting) {
      holder.wanting = true;
      this.queue.push(holder);
    }
    this.serve(now);
  }

  delivered(holder: Holder, now: number): void {
    holder.activeAt = now;
    holder.used = true;
    if (this.queue.length > 0) this.serve(now);
  }

  released(holder: Holder, slots: number, now: number): void {
    if (!this.holders.has(holder)) return;
    holder.held -= slots;
    holder.recalling = Math.max(0, holder.recalling - slots);
    this.serve(now);
  }

  /** Milliseconds after which to `serve` again, because time alone may then free a slot for one that waits. */
  waitMs(now: number): number | undefined {
    if (this.queue.length === 0) return undefined;
    for (const holder of this.holders) {
      if (holder.held <= holder.recalling) continue;
      if (!this.settled(holder, now)) return settleMs;
      if (!this.quiet(holder, now)) return quietMs;
    }
    return undefined;
  }

  serve(now: number): void {
    let { free } = this;
    let missing = 0;
    const waiting: Holder[] = [];
    const share = this.share(now);
    // Those below their share come first, each in the order of asking.
    const below = this.queue.filter((holder) => holder.held < share);
    const order = [...below, ...this.queue.filter((holder) => !below.includes(holder))];
    for (const [at, holder] of order.entries()) {
      if (free > 0) {
        const alone = at === order.length - 1;
        const slots = alone ? free : Math.min(free, Math.max(1, share - holder.held));
        free -= slots;
        holder.held += slots;
        holder.wanting = false;
        holder.grantedAt = now;
        holder.used = false;
        this.grant(holder, slots);
        continue;
      }
      waiting.push(holder);
      const wanted = Math.max(1, share - holder.held);
      missing += wanted;
      let open = missing - this.recalled();
      if (open > 0) open -= this.callBack(holder, open, share, now);
      // What cannot be had for this one must not be called back a second time for the next.
      missing -= Math.max(0, open);
    }
    this.queue = this.queue.filter((holder) => waiting.includes(holder));
  }

  /** What each of those that want or use slots may claim. */
  private share(now: number): number {
    let active = 0;
    for (const holder of this.holders) if (holder.wanting || !this.quiet(holder, now)) active++;
    return Math.max(1, Math.floor(this.max / Math.max(1, active)));
  }

  private quiet(holder: Holder, now: number): boolean {
    return holder.held === 0 || (now - holder.activeAt > quietMs && now - holder.grantedAt > quietMs);
  }

  private settled(holder: Holder, now: number): boolean {
    return holder.used || now - holder.grantedAt >= settleMs;
  }

  private recalled(): number {
    let slots = 0;
    for (const holder of this.holders) slots += holder.recalling;
    return slots;
  }

  /** Calls back up to `slots` for one that wants them, and gives how many. */
  private callBack(wanting: Holder, slots: number, share: number, now: number): number {
    let called = 0;
    const take = (holder: Holder, count: number) => {
      if (count <= 0) return;
      holder.recalling += count;
      called += count;
      this.recall(holder, count);
    };
    const settled = [...this.holders].filter((holder) => holder !== wanting && this.settled(holder, now));
    const above = (holder: Holder) => {
      const keep =
        this.quiet(holder, now) && !holder.wanting ? 0 : wanting.held < share ? share : Number.POSITIVE_INFINITY;
      return holder.held - holder.recalling - keep;
    };
    for (const holder of settled.sort((a, b) => above(b) - above(a)))
      take(holder, Math.min(above(holder), slots - called));
    if (called > 0 || wanting.held > 0) return called;
    const longest = settled
      .filter((holder) => holder.held > holder.recalling)
      .sort((a, b) => a.grantedAt - b.grantedAt)
      .at(0);
    if (longest !== undefined) take(longest, 1);
    return called;
  }
}
