// What the runtime counts about itself in one host.

import type { Sample } from "../actors/effects.ts";
import {
  commitBytesBounds,
  commitEventsBounds,
  commitMsBounds,
  Distribution,
  LabelBound,
  mergeSamples,
  totalsOf,
} from "./metrics.ts";

export class Meter {
  commits = 0;
  commitFailures = 0;
  readonly commitMs = new Distribution(commitMsBounds);
  readonly commitBytes = new Distribution(commitBytesBounds);
  readonly commitEvents = new Distribution(commitEventsBounds);
  tailHits = 0;
  tailMisses = 0;
  cellRestarts = 0;
  private readonly bound = new LabelBound();
  private readonly lostBound = new LabelBound();
  private lost: Sample[] = [];

  /** The counters of a cell that is started again go on from where they were. */
  keepTotals(samples: readonly Sample[]): void {
    const totals = totalsOf(samples);
    if (totals.length > 0) this.lost = this.lostBound.apply([...this.lost, ...totals]);
  }

  /** With those of the cells, bounded before they travel. */
  samples(worker: string, ofCells: Iterable<Sample>, gauges: { cells: number; mailbox: number }): Sample[] {
    const labels = { worker };
    const own: Sample[] = [
      { name: "commits_total", labels, value: this.commits },
      { name: "commit_failures_total", labels, value: this.commitFailures },
      { name: "commit_ms", labels, value: this.commitMs.read() },
      { name: "commit_bytes", labels, value: this.commitBytes.read() },
      { name: "commit_events", labels, value: this.commitEvents.read() },
      { name: "tail_hits_total", labels, value: this.tailHits },
      { name: "tail_misses_total", labels, value: this.tailMisses },
      { name: "cell_restarts_total", labels, value: this.cellRestarts },
      { name: "cells", labels, value: gauges.cells },
      { name: "mailbox_messages", labels, value: gauges.mailbox },
    ];
    return [...own, ...this.bound.apply(mergeSamples([...this.lost, ...ofCells]))];
  }
}
