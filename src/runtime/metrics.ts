// Numbers for the operator on their way from cells and threads to /metrics. Names that end in `_total` and histograms only grow;
// everything else is a gauge. Samples with the same name and labels are added up, whichever worker they come from.

import type { Histogram, Sample } from "../actors/effects.ts";

const labelSetsMax = 1000;
const folded = "_other";

/** Collects values into buckets. */
export class Distribution {
  private readonly bounds: readonly number[];
  private readonly counts: number[];
  private sum = 0;

  constructor(bounds: readonly number[]) {
    this.bounds = bounds;
    this.counts = new Array<number>(bounds.length + 1).fill(0);
  }

  observe(value: number): void {
    let bucket = 0;
    while (bucket < this.bounds.length && value > this.bounds[bucket]) bucket++;
    this.counts[bucket]++;
    this.sum += value;
  }

  read(): Histogram {
    return { bounds: this.bounds, counts: [...this.counts], sum: this.sum };
  }
}

export const commitMsBounds: readonly number[] = [0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096];
export const commitBytesBounds: readonly number[] = [256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216];
export const commitEventsBounds: readonly number[] = [1, 4, 16, 64, 256, 1024, 4096, 16384, 65536];

/**
 * Keeps the number of label sets of each metric bounded: the first so many stay themselves, all others become one whose labels
 * are `_other`. It remembers which ones stayed, since a series that changes sides would seem to fall. One that is not there any more, as of a
 * deleted topic, makes room for another.
 */
export class LabelBound {
  private readonly setsMax: number;
  private readonly kept = new Map<string, Set<string>>();

  constructor(setsMax: number = labelSetsMax) {
    this.setsMax = setsMax;
  }

  apply(samples: Iterable<Sample>): Sample[] {
    const keyed = Array.from(samples, (sample) => ({ sample, key: labelKey(sample.labels) }));
    this.release(keyed);
    const bounded: Sample[] = [];
    for (const { sample, key } of keyed) {
      let sets = this.kept.get(sample.name);
      if (sets === undefined) {
        sets = new Set();
        this.kept.set(sample.name, sets);
      }
      if (sets.has(key) || isFolded(sample.labels)) {
        bounded.push(sample);
      } else if (sets.size < this.setsMax) {
        sets.add(key);
        bounded.push(sample);
      } else {
        const labels = Object.fromEntries(Object.keys(sample.labels).map((name) => [name, folded]));
        bounded.push({ ...sample, labels });
      }
    }
    return mergeSamples(bounded);
  }

  private release(keyed: readonly { readonly sample: Sample; readonly key: string }[]): void {
    const present = new Map<string, Set<string>>();
    for (const { sample, key } of keyed) {
      const keys = present.get(sample.name) ?? new Set();
      present.set(sample.name, keys.add(key));
    }
    for (const [name, sets] of this.kept) {
      const there = present.get(name);
      for (const key of sets) if (there?.has(key) !== true) sets.delete(key);
      if (sets.size === 0) this.kept.delete(name);
    }
  }
}

/** One sample per name and labels. */
export function mergeSamples(samples: Iterable<Sample>): Sample[] {
  const merged = new Map<string, Sample>();
  for (const sample of samples) {
    const key = `${sample.name} ${labelKey(sample.labels)}`;
    const before = merged.get(key);
    merged.set(key, before === undefined ? sample : { ...before, value: addValues(before.value, sample.value) });
  }
  return [...merged.values()];
}

/** What must not fall: the counters and histograms among them. */
export function totalsOf(samples: Iterable<Sample>): Sample[] {
  return [...samples].filter(({ name, value }) => typeof value !== "number" || name.endsWith("_total"));
}

function addValues(a: number | Histogram, b: number | Histogram): number | Histogram {
  if (typeof a === "number" || typeof b === "number") return typeof a === "number" && typeof b === "number" ? a + b : a;
  // Both sides of a sum come from the same program; other bounds would be another metric.
  if (a.counts.length !== b.counts.length) return a;
  return { bounds: a.bounds, counts: a.counts.map((count, at) => count + b.counts[at]), sum: a.sum + b.sum };
}

function isFolded(labels: Sample["labels"]): boolean {
  const values = Object.values(labels);
  return values.length > 0 && values.every((value) => value === folded);
}

function labelKey(labels: Sample["labels"]): string {
  return JSON.stringify(Object.entries(labels).sort(([a], [b]) => (a < b ? -1 : 1)));
}
