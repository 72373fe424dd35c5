// Latencies in buckets that grow by an eighth from one to the next: any quantile within 7 %, in 2 KiB, however long the run.

const bucketsPerOctave = 6;
const bucketCount = 256;
/** The lower end of the first bucket, in milliseconds. */
const least = 0.001;

export class LatencyHistogram {
  private readonly counts = new Float64Array(bucketCount);
  private total = 0;

  get count(): number {
    return this.total;
  }

  add(ms: number): void {
    const bucket = Math.floor(Math.log2(Math.max(ms, least) / least) * bucketsPerOctave);
    this.counts[Math.min(bucket, bucketCount - 1)]++;
    this.total++;
  }

  /** The middle of the bucket in which the quantile lies; undefined where nothing was measured. */
  quantile(share: number): number | undefined {
    if (this.total === 0) return undefined;
    let left = Math.max(1, Math.ceil(this.total * share));
    let bucket = 0;
    while (left > this.counts[bucket]) left -= this.counts[bucket++];
    return least * 2 ** ((bucket + 0.5) / bucketsPerOctave);
  }

  clear(): void {
    this.counts.fill(0);
    this.total = 0;
  }
}
