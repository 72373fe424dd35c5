// Time that stands still until a test moves it.

import type { Clock, Timer } from "../../src/runtime/clock.ts";

interface Entry {
  readonly at: number;
  readonly order: number;
  readonly run: () => void;
}

export class ManualClock implements Clock {
  monoMs = 1000;
  wallMs = 1_700_000_000_000;
  private order = 0;
  private seed = 1;
  private timers: Entry[] = [];
  private waiting: (() => void)[] = [];

  mono(): number {
    return this.monoMs;
  }

  wall(): number {
    return this.wallMs;
  }

  after(ms: number, run: () => void): Timer {
    const entry = { at: this.monoMs + Math.max(0, ms), order: this.order++, run };
    this.timers.push(entry);
    return {
      cancel: () => {
        this.timers = this.timers.filter((other) => other !== entry);
      },
    };
  }

  soon(run: () => void): void {
    this.waiting.push(run);
  }

  random(bound: number): number {
    this.seed = (this.seed * 48_271) % 2_147_483_647;
    return this.seed % bound;
  }

  nonce(bytes: number): string {
    return this.random(2 ** 31)
      .toString(16)
      .padStart(2 * bytes, "0")
      .slice(0, 2 * bytes);
  }

  get timerCount(): number {
    return this.timers.length;
  }

  /** Runs what was put off to the end of the turn. */
  turn(): void {
    for (const run of this.waiting.splice(0)) run();
  }

  /** Moves both clocks and rings every timer on the way at its own time. */
  advance(ms: number): void {
    const end = this.monoMs + ms;
    for (;;) {
      const due = this.timers.filter(({ at }) => at <= end);
      if (due.length === 0) break;
      const next = due.reduce((a, b) => (b.at < a.at || (b.at === a.at && b.order < a.order) ? b : a));
      this.timers = this.timers.filter((other) => other !== next);
      this.move(next.at);
      next.run();
    }
    this.move(end);
  }

  private move(to: number): void {
    const step = Math.max(0, to - this.monoMs);
    this.monoMs += step;
    this.wallMs += step;
  }
}
