// How long events take from publish to ack, as a histogram.

import type { Histogram } from "./effects.ts";

const boundsMs = [1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000];

export class Latency {
  private readonly counts = new Float64Array(boundsMs.length + 1);
  private sum = 0;
  // The events of a run were mostly stored together, so the bucket is looked up once for all of them.
  private lastMs = 0;
  private lastBucket = 0;

  observe(ms: number): void {
    if (ms !== this.lastMs) {
      this.lastMs = ms;
      let bucket = 0;
      while (bucket < boundsMs.length && ms > boundsMs[bucket]) bucket++;
      this.lastBucket = bucket;
    }
    this.counts[this.lastBucket]++;
    this.sum += ms;
  }

  histogram(): Histogram {
    return { bounds: boundsMs, counts: [...this.counts], sum: this.sum };
  }
}
