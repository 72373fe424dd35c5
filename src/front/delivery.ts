// What may be delivered to one connection: events by rate, shared by all its subscriptions, and bytes. The lease tables say what they
// lack, and get it here in slices. One seat is one subscription at one partition, from a join to the loss of its table.

import { type Address, groupCell, type Signal } from "../actors/messages.ts";
import type { Clock } from "../runtime/clock.ts";
import type { System } from "../runtime/system.ts";
import type { Budget } from "./budget.ts";
import type { Outlet } from "./outlet.ts";
import type { RoutePartition } from "./router.ts";
import { noSlots, type SlotHolder } from "./slots.ts";

/** In time of refill: how many events by rate a table gets at once. */
const sliceMs = 50;
/** Bytes under way for one subscription, shared by its partitions, and the least that one of them gets. */
const windowBytes = 256 * 1024;
const windowBytesMin = 16 * 1024;

export interface SeatOptions {
  readonly system: System;
  readonly outlet: Outlet;
  readonly place: RoutePartition;
  readonly group: string;
  /** Never used before: signals of an earlier seat name another number. */
  readonly member: number;
  /** Over how many seats the bytes are shared. */
  readonly seats: number;
}

export class Seat implements SlotHolder {
  readonly member: number;
  readonly place: RoutePartition;
  /** The lease table. */
  readonly address: Address;
  held: number;
  recalling: number;
  wanting: boolean;
  grantedAt: number;
  used: boolean;
  activeAt: number;
  status: "new" | "joining" | "joined" | "gone" = "new";
  /** Events of this seat that were handed to the socket, and those of them that it took. */
  sent = 0;
  written = 0;
  private readonly system: System;
  private readonly outlet: Outlet;
  private readonly window: number;
  private bytesDue = 0;
  private lacksBytes = false;

  constructor({ system, outlet, place, group, member, seats }: SeatOptions) {
    ({
      held: this.held,
      recalling: this.recalling,
      wanting: this.wanting,
      grantedAt: this.grantedAt,
      used: this.used,
      activeAt: this.activeAt,
    } = noSlots());
    this.system = system;
    this.outlet = outlet;
    this.place = place;
    this.member = member;
    this.address = { shard: place.shard, cell: groupCell(place.stream, group) };
    this.window = Math.max(windowBytesMin, Math.floor(windowBytes / seats));
  }

  /** The first grant: nothing is delivered before it. */
  begin(slots: number, tokens: number): void {
    this.grant({ slots, tokens, bytes: this.window });
  }

  grant({ slots = 0, tokens = 0, bytes = 0 }: { slots?: number; tokens?: number; bytes?: number }): void {
    this.system.tell(this.address, { type: "grant", member: this.member, slots, tokens, bytes });
  }

  deliver({ count, frames, ends, binary }: Extract<Signal, { type: "events" }>): void {
    this.sent += count;
    this.outlet.frames(frames, ends, binary, () => {
      this.written += count;
      this.bytesDue += frames.byteLength;
      this.topUp();
    });
  }

  wantBytes(): void {
    this.lacksBytes = true;
    this.topUp();
  }

  /** Gives back the bytes that the socket took, in few messages; nothing while it takes too little. */
  topUp(): void {
    if (this.status === "gone" || this.outlet.full || this.bytesDue === 0) return;
    if (!this.lacksBytes && this.bytesDue < this.window / 4) return;
    const bytes = this.bytesDue;
    this.bytesDue = 0;
    this.lacksBytes = false;
    this.grant({ bytes });
  }
}

/** Events by rate for all subscriptions of one connection, one ask at a time, first come first served. */
export class DeliveryRate {
  /** While the budget is empty: when there will be something again. */
  emptyUntil: number | undefined;
  private readonly budget: Budget;
  private readonly clock: Clock;
  private queue: Seat[] = [];
  private busy = false;

  constructor(budget: Budget, clock: Clock) {
    this.budget = budget;
    this.clock = clock;
  }

  get rate(): Budget["rate"] {
    return this.budget.rate;
  }

  want(seat: Seat): void {
    if (this.queue.includes(seat)) return;
    this.queue.push(seat);
    this.run();
  }

  forget(seat: Seat): void {
    this.queue = this.queue.filter((one) => one !== seat);
  }

  private run(): void {
    if (this.busy || this.queue.length === 0) return;
    this.busy = true;
    const { budget } = this;
    const perSec = budget.rate === "off" ? 1 : budget.rate.perSec;
    const slice = Math.max(1, Math.ceil((perSec * sliceMs) / 1000));
    const need = slice * this.queue.length;
    budget.lend(need, (tokens, retryAfterMs) => {
      this.share(tokens, slice);
      if (tokens >= need) {
        this.busy = false;
        this.run();
        return;
      }
      // The bucket is empty now. A slice later there is something again; less would be many messages for few events.
      const wait = tokens > 0 ? sliceMs : Math.min(retryAfterMs, Math.max(sliceMs, 1000 / perSec));
      this.emptyUntil = this.clock.mono() + wait;
      const again = () => {
        this.emptyUntil = undefined;
        this.busy = false;
        this.run();
      };
      this.clock.after(wait, again, { background: true });
    });
  }

  private share(tokens: number, slice: number): void {
    let left = tokens;
    while (this.queue.length > 0 && left >= 1) {
      const seat = this.queue[0];
      const part = this.queue.length === 1 ? left : Math.min(left, slice);
      this.queue.shift();
      left -= part;
      seat.grant({ tokens: part });
    }
  }
}
