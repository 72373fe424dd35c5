// How a thread is doing: how late its event loop runs since the last look (monitorEventLoopDelay counts its own interval in), and how much of
// a core it has used since it began.

import { readFileSync } from "node:fs";
import { monitorEventLoopDelay } from "node:perf_hooks";
import type { Sample } from "../actors/effects.ts";

const resolutionMs = 20;
const quantiles: readonly number[] = [0.5, 0.99, 1];

export class ThreadMeter {
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
    return [...samples, ...cpuSamples(thread)];
  }

  stop(): void {
    this.monitor.disable();
  }
}

/** Of the thread that asks. Node counts by process only; Linux tells by thread, elsewhere there is no such number. */
function cpuSamples(thread: string): Sample[] {
  let text: string;
  try {
    text = readFileSync("/proc/thread-self/schedstat", "utf8");
  } catch {
    return [];
  }
  return [{ name: "cpu_seconds_total", labels: { thread }, value: Number(text.split(" ")[0]) / 1e9 }];
}
