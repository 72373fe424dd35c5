// Removes the events that a commit has put below the start of their stream, and those of streams that ended: in small steps, while
// commits go on. That a start has moved is durable before anything is removed, and it never moves back, so it does not matter who removes
// and how often. What a shard has not finished it goes on with when it is opened again.

import type { Collection } from "mongodb";
import type { EventDocument } from "./documents.ts";
import { eventsQuery, type Place } from "./queries.ts";

const stepEvents = 5000;

export interface SweepJob {
  readonly place: Place;
  /** Everything below goes. */
  readonly to: () => Promise<number>;
  /** Nothing of it is left. */
  readonly done: () => Promise<void>;
  /** However it ended. */
  readonly ended?: () => void;
}

export class Sweeper {
  private readonly events: Collection<EventDocument>;
  private readonly failed: (error: unknown) => void;
  private readonly jobs: SweepJob[] = [];
  private working: Promise<void> | undefined;
  private stopped = false;

  constructor(events: Collection<EventDocument>, failed: (error: unknown) => void) {
    this.events = events;
    this.failed = failed;
  }

  add(job: SweepJob): void {
    this.jobs.push(job);
    this.start();
  }

  async stop(): Promise<void> {
    this.stopped = true;
    await this.working;
  }

  /** Resolves when nothing is left to remove: for tests. */
  async settled(): Promise<void> {
    while (this.working !== undefined) await this.working;
  }

  private start(): void {
    this.working ??= this.work().finally(() => {
      this.working = undefined;
      if (this.jobs.length > 0 && !this.stopped) this.start();
    });
  }

  private async work(): Promise<void> {
    // Each is tried once; what fails is left to the next trim of its stream, or to the next opening.
    for (let job = this.jobs.shift(); job !== undefined && !this.stopped; job = this.jobs.shift()) {
      try {
        await this.sweep(job);
      } catch (error) {
        this.failed(error);
      } finally {
        job.ended?.();
      }
    }
  }

  private async sweep({ place, done, ...job }: SweepJob): Promise<void> {
    const to = await job.to();
    for (;;) {
      if (this.stopped) return;
      const { filter, sort } = eventsQuery(place, { from: 0, to });
      const first = await this.events.findOne(filter, { sort, projection: { offset: 1 } });
      if (first === null) break;
      const upTo = Math.min(to, first.offset + stepEvents);
      await this.events.deleteMany(eventsQuery(place, { from: first.offset, to: upTo }).filter);
    }
    await done();
  }
}
