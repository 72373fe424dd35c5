// The driver that all systems get the same work from. Publishing keeps a window full or follows a clock; consuming checks that the events
// come in order, each once.

import type { Latencies } from "./latency.ts";
import type { Payload, payloadMaker } from "./payload.ts";
import type { Publisher } from "./system.ts";

type Make = ReturnType<typeof payloadMaker>;

/** Publishes the events from..to with `window` of them under way; resolves when all are confirmed. */
export function publishWindow(
  publisher: Publisher,
  { from, to, window, make, confirmed }: WindowOptions,
): Promise<void> {
  if (from >= to) return Promise.resolve();
  return new Promise((resolve, reject) => {
    let next = from;
    let underWay = 0;
    const done = (t0: number) => {
      underWay--;
      confirmed?.(performance.now() - t0);
      if (next < to) pump();
      else if (underWay === 0) resolve();
    };
    const pump = () => {
      while (underWay < window && next < to) {
        underWay++;
        const t0 = performance.now();
        publisher.publish(make(next++, t0)).then(() => done(t0), reject);
      }
    };
    pump();
  });
}

export interface WindowOptions {
  readonly from: number;
  readonly to: number;
  readonly window: number;
  readonly make: Make;
  /** Told of each event how long its confirmation took. */
  readonly confirmed?: (ms: number) => void;
}

/** Publishes at a steady pace, whatever the answers do: each event counts from the time when it was due. */
export function publishPaced(
  publisher: Publisher,
  { from, to, perSecond, make }: { from: number; to: number; perSecond: number; make: Make },
): Promise<void> {
  if (from >= to) return Promise.resolve();
  return new Promise((resolve, reject) => {
    const started = performance.now();
    const dueAt = (i: number) => started + ((i - from) * 1000) / perSecond;
    let next = from;
    let open = to - from;
    const done = () => {
      if (--open === 0) resolve();
    };
    const tick = () => {
      const now = performance.now();
      while (next < to && dueAt(next) <= now) {
        publisher.publish(make(next, dueAt(next))).then(done, reject);
        next++;
      }
      if (next < to) setImmediate(tick);
    };
    tick();
  });
}

/** Takes the events 0..total: each once, and in order unless several members share the work. */
export class Arrivals {
  /** Told of each event that comes, as long as it is set. */
  latencies: Latencies | undefined;
  private readonly options: ArrivalsOptions;
  private readonly seen: Uint8Array;
  private count = 0;
  private fault: Error | undefined;
  private waiters: { readonly count: number; readonly resolve: () => void; readonly reject: (e: Error) => void }[] = [];

  constructor(options: ArrivalsOptions) {
    this.options = options;
    this.seen = new Uint8Array(options.total);
  }

  readonly take = ({ i, t0 }: Payload): void => {
    if (this.seen[i] !== 0) this.fail(`event ${i} came twice`);
    else if (this.options.ordered && i !== this.count) this.fail(`event ${i} came where ${this.count} was due`);
    this.seen[i] = 1;
    this.count++;
    this.latencies?.add(performance.now() - t0);
    if (this.waiters.length > 0 && this.count >= this.waiters[0].count) this.waiters.shift()?.resolve();
  };

  /** Resolves when so many have come; to be called with rising numbers. */
  until(count: number): Promise<void> {
    if (this.fault !== undefined) return Promise.reject(this.fault);
    if (this.count >= count) return Promise.resolve();
    return new Promise((resolve, reject) => this.waiters.push({ count, resolve, reject }));
  }

  private fail(text: string): void {
    this.fault ??= new Error(text);
    for (const { reject } of this.waiters.splice(0)) reject(this.fault);
  }
}

export interface ArrivalsOptions {
  readonly total: number;
  readonly ordered: boolean;
}
