// How late the event loop of a thread runs, since the last look. monitorEventLoopDelay counts its own interval in.

import { monitorEventLoopDelay } from "node:perf_hooks";
import type { Sample } from "../actors/effects.ts";

const resolutionMs = 20;
const quantiles: readonly number[] = [0.5, 0.99, 1];

export class LoopLag {
  private readonly monitor = monitorEventLoopDelay({ resolution: resolutionMs });

  constructor() {
    this.monitor.enable();
  }

  samples(thread: string): Sample[] {
    const samples = quantiles.map((quantile): Sample => {
      const lateMs = this.monitor.percentile(quantile * 100) / 1e6 - resolutionMs;
      return {
        name: "loop_lag_ms",
        labels: { thread, quantile: String(quantile) },
        value: Number.isFinite(lateMs) ? Math.max(0, lateMs) : 0,
      };
    });
    this.monitor.reset();
    return samples;
  }

  stop(): void {
    this.monitor.disable();
  }
}
