// How far a long command is: rate and time left as numbers, and a bar on stderr where somebody looks at it.

import { SingleBar } from "cli-progress";
import type { Clock } from "../runtime/clock.ts";
import { count } from "./table.ts";
import { durationText } from "./times.ts";

/** What counts for the rate: the last few seconds. Older progress says little about a node that others use too. */
const rateWindowMs = 5000;
const sampleMs = 250;
const drawMs = 100;
/** Before that a guess of the time left would jump from hours to seconds. */
const guessMs = 1000;

/** A rate over the last seconds, and what it means for what is left. */
export class Pace {
  private readonly clock: Clock;
  private readonly samples: { readonly at: number; readonly done: number }[];
  private done: number;

  /** `done` is what was there before: it counts as progress and not for the rate. */
  constructor(clock: Clock, done = 0) {
    this.clock = clock;
    this.done = done;
    this.samples = [{ at: clock.mono(), done }];
  }

  reach(done: number): void {
    this.done = done;
    const at = this.clock.mono();
    if (at - this.samples[this.samples.length - 1].at < sampleMs) return;
    this.samples.push({ at, done });
    while (this.samples.length > 2 && this.samples[1].at <= at - rateWindowMs) this.samples.shift();
  }

  /** Per second. */
  rate(): number {
    const { at, done } = this.samples[0];
    const seconds = (this.clock.mono() - at) / 1000;
    return seconds > 0 ? (this.done - done) / seconds : 0;
  }

  /** Milliseconds until `total`; undefined while nobody can tell. */
  leftMs(total: number): number | undefined {
    const rate = this.rate();
    if (this.done >= total) return 0;
    if (this.clock.mono() - this.samples[0].at < guessMs) return undefined;
    return rate > 0 ? ((total - this.done) / rate) * 1000 : undefined;
  }
}

export function eventsText(events: number): string {
  return events === 1 ? "1 event" : `${count(Math.round(events))} events`;
}

export function isAre(events: number): string {
  return events === 1 ? "is" : "are";
}

export function wasWere(events: number): string {
  return events === 1 ? "was" : "were";
}

// --------------------------------------------------------------------------------------------------------------------- bar

export interface BarOptions {
  readonly clock: Clock;
  /** Without a terminal there is no bar, only the numbers. */
  readonly tty: boolean;
  readonly label: string;
  /** What the bar and the time left go by: events or bytes. Undefined where the end is not known. */
  readonly total: number | undefined;
  /** Of `total`, done before. */
  readonly done?: number;
  /** Events done before. */
  readonly events?: number;
}

export class Progress {
  private readonly options: BarOptions;
  private readonly bar: SingleBar | undefined;
  private readonly events: Pace;
  private readonly pace: Pace;
  private drawnAt = Number.NEGATIVE_INFINITY;

  constructor(options: BarOptions) {
    this.options = options;
    const { clock, total, label, tty } = options;
    this.events = new Pace(clock, options.events);
    this.pace = new Pace(clock, options.done);
    if (!tty) return;
    const known = total !== undefined && total > 0;
    this.bar = new SingleBar({
      format: known ? `${label} [{bar}] {percentage}%  {events}  {rate}/s  {left} left` : `${label} {events}  {rate}/s`,
      barsize: 24,
      fps: 5,
      clearOnComplete: true,
      hideCursor: null,
      linewrap: true,
      // The command ends by its own signal handling and stops the bar itself.
      gracefulExit: false,
      stream: process.stderr,
    });
    this.bar.start(known ? total : 1, known ? (options.done ?? 0) : 0, this.texts());
  }

  /** `done` in the unit of `total`; left out where that counts events. Cheap enough to be called for each event. */
  reach(events: number, done = events): void {
    this.events.reach(events);
    this.pace.reach(done);
    if (this.bar === undefined || this.options.clock.mono() - this.drawnAt < drawMs) return;
    this.drawnAt = this.options.clock.mono();
    this.bar.update(this.options.total === undefined ? 0 : Math.min(done, this.options.total), {
      ...this.texts(),
      events: eventsText(events),
    });
  }

  /** Events per second just now. */
  get rate(): number {
    return this.events.rate();
  }

  stop(): void {
    this.bar?.stop();
  }

  private texts(): { events: string; rate: string; left: string } {
    const { total } = this.options;
    const leftMs = total === undefined ? undefined : this.pace.leftMs(total);
    return {
      events: eventsText(this.options.events ?? 0),
      rate: count(Math.round(this.events.rate())),
      left: leftMs === undefined ? "?" : durationText(leftMs),
    };
  }
}
