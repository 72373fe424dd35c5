// Latencies of every event, not of a sample, so that the percentiles are exact. Where events are due at given times the latency counts from
// the time when one was due, not from when it was sent: a system that stands still for a second makes all that was due in it late.

export interface Percentiles {
  readonly p50: number;
  readonly p90: number;
  readonly p99: number;
  readonly p999: number;
  readonly max: number;
}

export class Latencies {
  private readonly ms: Float64Array;
  private count = 0;

  constructor(events: number) {
    this.ms = new Float64Array(events);
  }

  add(ms: number): void {
    this.ms[this.count++] = ms;
  }

  /** What was added so far. */
  get values(): Float64Array {
    return this.ms.slice(0, this.count);
  }

  addAll(ms: Iterable<number>): void {
    for (const one of ms) this.add(one);
  }

  percentiles(): Percentiles {
    const sorted = this.values.sort();
    const at = (p: number) => {
      const value = sorted[Math.min(sorted.length - 1, Math.floor((p / 100) * sorted.length))] ?? 0;
      return Number(value.toFixed(3));
    };
    return { p50: at(50), p90: at(90), p99: at(99), p999: at(99.9), max: at(100) };
  }
}
