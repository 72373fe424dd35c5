// What the front counts for the operator.

import type { Code } from "../protocol/failure.ts";
import type { Sample } from "../runtime/system.ts";

export class Counters {
  framesIn = 0;
  framesOut = 0;
  /** Sockets that took too little, by what was done: nothing new for a while, or closed. */
  slowPaused = 0;
  slowClosed = 0;
  private readonly refusals = new Map<Code, number>();

  refused(code: Code): void {
    this.refusals.set(code, (this.refusals.get(code) ?? 0) + 1);
  }

  samples(): Sample[] {
    const plain = (name: string, value: number): Sample => ({ name, labels: {}, value });
    return [
      plain("frames_in_total", this.framesIn),
      plain("frames_out_total", this.framesOut),
      plain("slow_clients_paused_total", this.slowPaused),
      plain("slow_clients_closed_total", this.slowClosed),
      ...[...this.refusals].map(([code, value]): Sample => ({ name: "refusals_total", labels: { code }, value })),
    ];
  }
}
