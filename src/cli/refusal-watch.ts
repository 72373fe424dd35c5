// Tells the user once when it is the node that makes a command slow, and by which of its bounds. The client waits refusals out without a
// word, so this looks at what the node counts.

import type { Clock, Timer } from "../runtime/clock.ts";
import type { Context } from "./context.ts";
import { metricSum } from "./metrics-text.ts";
import { count } from "./table.ts";

const lookEveryMs = 2000;

export interface Refusals {
  /** For its rate limits. */
  readonly limited: number;
  /** For having too much to do, or too many ids to remember. */
  readonly overloaded: number;
}

/** How many frames the node has refused since it was started, or undefined where it does not say. */
export async function readRefusals(context: Context): Promise<Refusals | undefined> {
  try {
    const text = await (await context.http("/metrics")).text();
    const of = (code: string) => metricSum(text, "narthex_refusals_total", { code }) ?? 0;
    return { limited: of("rate_limited"), overloaded: of("overloaded") };
  } catch {
    // Without the right to see metrics, or while the node is gone: it is not worth ending a command for.
    return undefined;
  }
}

export class RefusalWatch {
  private readonly context: Context;
  private readonly clock: Clock;
  private readonly startedAt: number;
  private timer: Timer | undefined;
  private before: Refusals | undefined;
  private first: number | undefined;
  private events = 0;
  private readonly said = new Set<keyof Refusals>();
  private stopped = false;

  constructor(context: Context, clock: Clock) {
    this.context = context;
    this.clock = clock;
    this.startedAt = clock.mono();
    void this.look();
  }

  reach(events: number): void {
    this.first ??= events;
    this.events = events;
  }

  stop(): void {
    this.stopped = true;
    this.timer?.cancel();
  }

  private async look(): Promise<void> {
    const now = await readRefusals(this.context);
    if (this.stopped || this.context.signal.aborted) return;
    if (now !== undefined && this.before !== undefined) this.compare(this.before, now);
    this.before ??= now;
    this.timer = this.clock.after(lookEveryMs, () => void this.look(), { background: true });
  }

  private compare(before: Refusals, now: Refusals): void {
    const perSecond = ((this.events - (this.first ?? 0)) / (this.clock.mono() - this.startedAt)) * 1000;
    if (now.limited > before.limited) {
      const which = "CONN_RATE and TOPIC_RATE, or the topic's own rate, are what to raise";
      this.say(
        "limited",
        `the node's rate limits hold this at about ${count(Math.round(perSecond))} events/s: ${which}`,
      );
    }
    if (now.overloaded > before.overloaded) {
      this.say(
        "overloaded",
        "the node takes no more for now and is waited for: it is busy, or it has as many ids of the last two minutes to remember as it can",
      );
    }
  }

  private say(what: keyof Refusals, line: string): void {
    if (this.said.has(what)) return;
    this.said.add(what);
    this.context.note(`narthex: ${line}`);
  }
}
