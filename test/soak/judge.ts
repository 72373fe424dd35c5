// Whether a measure grows. A leak shows as a slope long before it shows as a number, so what is judged is where the slope leads in a day.
//
// The samples of the run, less its warm-up, are cut into windows, and each window says one value: the lowest where garbage, connections
// or neighbours on the machine only add (heap, descriptors, usual latencies), the middle one of what is noisy both ways. Through these goes the line of
// Theil and Sen: the median of the slopes between all pairs, which a third of wild windows does not move. Kendall's statistic gives
// the slopes between which the true one lies (two-sided 99.8 %, if windows are independent).
//
// A measure *grows* if the fitted slope leads beyond its bound in 24 hours, and the slope is surely above zero: noise alone passes the first test
// now and then, hardly ever both. A measure is *unclear* if its interval reaches beyond what it must exclude: then the run was too
// short or too noisy to say that there is no leak, and that is no success either.
//
// The bounds are for a run of 60 minutes. In a shorter one everything that is noise weighs more, by the time that is missing, so the
// bounds grow by that much: a run of 3 minutes finds leaks 20 times as large.

export interface Point {
  /** Since the load began. */
  readonly seconds: number;
  readonly value: number;
}

export interface Measure {
  readonly name: string;
  readonly unit: string;
  /** What a window says. */
  readonly window: "lowest" | "middle";
  /** `-1` for what must not fall. */
  readonly direction?: -1;
  /** How much a day may add, as a number or in multiples of the middle value of the run. */
  readonly perDay?: number;
  readonly timesPerDay?: number;
  /** Growth per day that a successful run has excluded; without it a noisy run is a success. */
  readonly excludesPerDay?: number;
  /** Why the bound is what it is. */
  readonly why: string;
}

export type Finding = "steady" | "grows" | "unclear" | "not measured";

export interface Verdict {
  readonly measure: Measure;
  readonly finding: Finding;
  readonly windows: readonly Point[];
  readonly perDay: number;
  readonly lowPerDay: number;
  readonly highPerDay: number;
  readonly boundPerDay: number;
  readonly excludesPerDay: number | undefined;
  /** The fitted line, per second. */
  readonly slope: number;
  readonly intercept: number;
}

const daySeconds = 86_400;
const windowsMax = 48;
const windowsMin = 8;
/** One-sided 99.9 %. */
const sure = 3.09;
const fullMinutes = 60;

export interface Span {
  readonly warmUpSeconds: number;
  readonly seconds: number;
}

/** How much longer the run should have been for the bounds as they are written. */
export function shortness({ seconds }: Span): number {
  return Math.max(1, (fullMinutes * 60) / seconds);
}

export function judge(measure: Measure, points: readonly Point[], span: Span): Verdict {
  const windows = windowsOf(points, measure.window, span);
  const fit = theilSen(windows);
  const middle = Math.abs(median(windows.map(({ value }) => value)));
  const factor = shortness(span);
  const boundPerDay = factor * (measure.perDay ?? (measure.timesPerDay ?? 0) * middle);
  const excludesPerDay = measure.excludesPerDay === undefined ? undefined : measure.excludesPerDay * factor;
  const sign = measure.direction ?? 1;
  const [least, most] = sign === 1 ? [fit.low, fit.high] : [-fit.high, -fit.low];
  const grows = sign * fit.slope * daySeconds > boundPerDay && least > 0;
  const unclear = excludesPerDay !== undefined && most * daySeconds > excludesPerDay;
  return {
    measure,
    finding: windows.length < windowsMin ? "not measured" : grows ? "grows" : unclear ? "unclear" : "steady",
    windows,
    perDay: fit.slope * daySeconds,
    lowPerDay: fit.low * daySeconds,
    highPerDay: fit.high * daySeconds,
    boundPerDay,
    excludesPerDay,
    slope: fit.slope,
    intercept: fit.intercept,
  };
}

export function windowsOf(points: readonly Point[], how: Measure["window"], { warmUpSeconds, seconds }: Span): Point[] {
  const kept = points.filter(({ seconds: at }) => at >= warmUpSeconds && at <= seconds);
  // Three samples a window, where there are as many.
  const count = Math.max(windowsMin, Math.min(windowsMax, Math.floor(kept.length / 3)));
  const width = (seconds - warmUpSeconds) / count;
  const windows: Point[] = [];
  for (let i = 0; i < count; i++) {
    const from = warmUpSeconds + i * width;
    const values = kept.filter(({ seconds: at }) => at >= from && at < from + width).map(({ value }) => value);
    if (values.length === 0) continue;
    windows.push({ seconds: from + width / 2, value: how === "lowest" ? Math.min(...values) : median(values) });
  }
  return windows;
}

export interface Fit {
  readonly slope: number;
  readonly intercept: number;
  readonly low: number;
  readonly high: number;
}

export function theilSen(points: readonly Point[]): Fit {
  const slopes: number[] = [];
  for (const [i, a] of points.entries()) {
    for (const b of points.slice(i + 1)) slopes.push((b.value - a.value) / (b.seconds - a.seconds));
  }
  slopes.sort((a, b) => a - b);
  const count = points.length;
  // How many of the pairs may be out of order by chance.
  const doubt = sure * Math.sqrt((count * (count - 1) * (2 * count + 5)) / 18);
  const slope = median(slopes);
  return {
    slope,
    intercept: median(points.map(({ seconds, value }) => value - slope * seconds)),
    low: slopes[Math.floor((slopes.length - doubt) / 2)] ?? Number.NEGATIVE_INFINITY,
    high: slopes[Math.ceil((slopes.length + doubt) / 2)] ?? Number.POSITIVE_INFINITY,
  };
}

export function median(values: readonly number[]): number {
  if (values.length === 0) return 0;
  const sorted = [...values].sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}
