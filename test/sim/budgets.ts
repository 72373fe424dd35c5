// Rates as they must be kept: over any stretch of time in which no bucket was lost, what got through is at most the burst, the refill
// of that time, and what was lent before and not used: 20 ms of refill in the front, or a tenth of a second's while the bucket
// cannot be reached; of deliveries also a slice at each lease table.

import type { Rate } from "../../src/protocol/rate.ts";

const aheadMs = 20 + 100;

interface Use {
  readonly rate: Rate;
  lent: number;
  readonly spans: [from: number, to: number][];
}

export class Budgets {
  private readonly uses = new Map<string, Use>();
  private readonly resets: number[] = [];

  /** Something got through between these two moments. */
  use(budget: string, rate: Rate | "off", [from, to]: readonly [number, number], lent = 0): void {
    if (rate === "off") return;
    const known = this.uses.get(budget);
    if (known === undefined) this.uses.set(budget, { rate, lent, spans: [[from, to]] });
    else {
      // More groups are made as time goes by.
      known.lent = Math.max(known.lent, lent);
      known.spans.push([from, to]);
    }
  }

  /** Buckets may have been lost: they begin full again. */
  reset(now: number): void {
    if (this.resets.at(-1) !== now) this.resets.push(now);
  }

  /** The first that was exceeded. */
  exceeded(): string | undefined {
    for (const [name, { rate, lent, spans }] of this.uses) {
      spans.sort(([a], [b]) => a - b);
      for (let first = 0; first < spans.length; first++) {
        const from = spans[first][0];
        const until = this.resets.find((at) => at >= from) ?? Number.POSITIVE_INFINITY;
        const ends = spans
          .slice(first)
          .map(([, to]) => to)
          .filter((to) => to < until)
          .sort((a, b) => a - b);
        for (const [i, to] of ends.entries()) {
          const most = rate.burst + (rate.perSec * (to - from + aheadMs)) / 1000 + 1 + lent;
          if (i + 1 > most) return `${name}: ${i + 1} in ${(to - from).toFixed(1)} ms, at ${rate.burst}/${rate.perSec}`;
        }
      }
    }
    return undefined;
  }
}
