// Which turn of the event loop it is, for bounds on what one connection may do in it. Counted only while somebody asks.

import type { Clock } from "../runtime/clock.ts";

export class Turns {
  private readonly clock: Clock;
  private turn = 0;
  private asked = false;

  constructor(clock: Clock) {
    this.clock = clock;
  }

  now(): number {
    if (!this.asked) {
      this.asked = true;
      this.clock.soon(() => {
        this.asked = false;
        this.turn++;
      });
    }
    return this.turn;
  }
}
