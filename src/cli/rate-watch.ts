// Tells the user once when it is the node's rate limits that make a command slow. The client waits them out without a word, so this
// looks at what the node says of itself.

import type { Clock, Timer } from "../runtime/clock.ts";
import type { Context } from "./context.ts";
import { metricSum } from "./metrics-text.ts";
import { count } from "./table.ts";

const lookAfterMs = 2000;

/** How many publishes the node has refused for its rate limits, or undefined where it does not say. */
export async function rateRefusals(context: Context): Promise<number | undefined> {
  try {
    const text = await (await context.http("/metrics")).text();
    return metricSum(text, "narthex_refusals_total", { code: "rate_limited" }) ?? 0;
  } catch (error) {
    // Not worth ending a command for.
    if (!context.signal.aborted && error instanceof Error) return undefined;
    throw error;
  }
}

export class RateWatch {
  private readonly context: Context;
  private readonly timer: Timer;
  private readonly before: Promise<number | undefined>;
  private readonly startedAt: number;
  private readonly clock: Clock;
  private events = 0;
  private first: number | undefined;

  constructor(context: Context, clock: Clock) {
    this.context = context;
    this.clock = clock;
    this.startedAt = clock.mono();
    this.before = rateRefusals(context);
    this.timer = clock.after(lookAfterMs, () => void this.look(), { background: true });
  }

  reach(events: number): void {
    this.first ??= events;
    this.events = events;
  }

  stop(): void {
    this.timer.cancel();
  }

  private async look(): Promise<void> {
    const [before, now] = [await this.before, await rateRefusals(this.context)];
    if (before === undefined || now === undefined || now <= before) return;
    const perSecond = ((this.events - (this.first ?? 0)) / (this.clock.mono() - this.startedAt)) * 1000;
    this.context.note(
      `narthex: the node's rate limits hold this at about ${count(Math.round(perSecond))} events/s: CONN_RATE and TOPIC_RATE, or the topic's own rate, are what to raise`,
    );
  }
}
