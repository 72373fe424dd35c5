// The timers of all cells of a host in one heap over one clock timer. A cell moves its timer with nearly every message, mostly to
// later, so an entry is not moved: it fires at its old time, finds the wanted time ahead and is put back.

import type { Clock, Timer } from "./clock.ts";
import { pop, push } from "./heap.ts";

/** Someone with one timer. */
export class Alarm {
  readonly ring: () => void;
  /** When it is to ring, in monotonic time. */
  at: number | undefined;
  /** The earliest entry in the heap; undefined when there is none. */
  armedAt: number | undefined;

  constructor(ring: () => void) {
    this.ring = ring;
  }
}

interface Entry {
  readonly at: number;
  /** Equal times ring in the order in which they were set. */
  readonly order: number;
  readonly alarm: Alarm;
}

export class Timers {
  private readonly clock: Clock;
  private readonly turn: (run: () => void) => void;
  private readonly heap: Entry[] = [];
  private order = 0;
  private timer: { readonly at: number; readonly handle: Timer } | undefined;

  /** What rings at one moment rings within one turn. */
  constructor(clock: Clock, turn: (run: () => void) => void) {
    this.clock = clock;
    this.turn = turn;
  }

  set(alarm: Alarm, at: number | undefined): void {
    alarm.at = at;
    if (at === undefined || (alarm.armedAt !== undefined && alarm.armedAt <= at)) return;
    this.arm(alarm, at);
    this.schedule();
  }

  stop(): void {
    this.timer?.handle.cancel();
    this.timer = undefined;
    this.heap.length = 0;
  }

  private arm(alarm: Alarm, at: number): void {
    alarm.armedAt = at;
    push(this.heap, { at, order: this.order++, alarm });
  }

  private schedule(): void {
    const first = this.heap[0];
    if (first === undefined || (this.timer !== undefined && this.timer.at <= first.at)) return;
    this.timer?.handle.cancel();
    const handle = this.clock.after(first.at - this.clock.mono(), () => {
      this.timer = undefined;
      this.turn(() => this.fire());
    });
    this.timer = { at: first.at, handle };
  }

  private fire(): void {
    const now = this.clock.mono();
    const due: Alarm[] = [];
    while (this.heap.length > 0 && this.heap[0].at <= now) {
      const { at, alarm } = pop(this.heap);
      // One that was armed anew for an earlier time has another entry, which counts.
      if (alarm.armedAt !== at) continue;
      alarm.armedAt = undefined;
      if (alarm.at === undefined) continue;
      if (alarm.at <= now) due.push(alarm);
      else this.arm(alarm, alarm.at);
    }
    for (const alarm of due) {
      // An earlier one of this moment may have moved or cleared it.
      if (alarm.at === undefined || alarm.at > now) continue;
      alarm.at = undefined;
      alarm.ring();
    }
    this.schedule();
  }
}
