// What is judged, and why its bound is what it is. The bounds are growth per day as a run of 60 minutes sees it; judge.ts says what becomes of
// them in a shorter one. A leak of 1 KiB/s is 84 MiB a day, and 3.5 MiB in the hour.

import type { Measure } from "./judge.ts";

const kibibytePerSecondAsMebibytes = (1024 * 86_400) / 1024 ** 2;

/** For series of this name, or of this name and a thread. */
export const measures: readonly Measure[] = [
  {
    name: "live heap",
    unit: "MiB",
    window: "lowest",
    perDay: 32,
    excludesPerDay: kibibytePerSecondAsMebibytes,
    why: "what is left after a full collection moves by some 100 KiB with what is just under way; 32 MiB a day are 1.3 MiB in the hour, well above that and 0.4 KiB/s",
  },
  {
    name: "external",
    unit: "MiB",
    window: "lowest",
    perDay: 48,
    excludesPerDay: kibibytePerSecondAsMebibytes,
    why: "buffers outside of the heap come in pieces of 64 KiB and more, and caches of blocks fill up to their bound once; 48 MiB a day are 2 MiB in the hour",
  },
  {
    name: "RSS",
    unit: "MiB",
    window: "lowest",
    perDay: 240,
    why: "malloc keeps pages by its own rules, and lmdb's pages count as they are touched: 10 MiB in the hour. What leaks slower and from the heap or buffers shows in the two above; a native leak below 3 KiB/s does not show in one hour",
  },
  {
    name: "files",
    unit: "",
    window: "lowest",
    perDay: 24,
    excludesPerDay: 72,
    why: "segments are opened and closed, so the number moves by two or three; one file an hour is the least that could matter in weeks",
  },
  {
    name: "sockets",
    unit: "",
    window: "lowest",
    perDay: 24,
    excludesPerDay: 72,
    why: "as files; the lowest of a window is without the short connections",
  },
  { name: "threads", unit: "", window: "middle", perDay: 12, excludesPerDay: 36, why: "their number is fixed" },
  {
    name: "timers",
    unit: "",
    window: "lowest",
    perDay: 48,
    excludesPerDay: 144,
    why: "a timer for each connection and each lease table, which come and go: two an hour",
  },
  {
    name: "cells",
    unit: "",
    window: "lowest",
    perDay: 240,
    why: "actors of topics and groups that come and go; ten an hour are a tenth of what the load makes and deletes in a minute or so",
  },
  {
    name: "metrics text",
    unit: "KiB",
    window: "lowest",
    perDay: 240,
    why: "deleted topics and groups must leave /metrics: 10 KiB in the hour",
  },
  {
    name: "disk",
    unit: "MiB",
    window: "middle",
    perDay: 24 * 64,
    why: "it goes up and down by whole segments of 64 MiB; one segment an hour, where the load writes several",
  },
  {
    name: "disk files",
    unit: "",
    window: "middle",
    perDay: 24 * 3,
    why: "one segment is three files at most: the log, its footer, a spare",
  },
  {
    name: "CPU per event",
    unit: "µs",
    window: "lowest",
    timesPerDay: 6,
    why: "a quarter more in the hour; what others do on the machine moves it by a few per cent",
  },
  {
    name: "OK p50",
    unit: "ms",
    window: "lowest",
    timesPerDay: 12,
    why: "half as much again in the hour: neighbours on the disk and the cores move it by 20 to 30 %",
  },
  { name: "EVENT p50", unit: "ms", window: "lowest", timesPerDay: 12, why: "as OK p50" },
  {
    name: "OK p99",
    unit: "ms",
    window: "middle",
    timesPerDay: 24,
    why: "twice as much in the hour: a few slow writes of the disk decide it",
  },
  { name: "EVENT p99", unit: "ms", window: "middle", timesPerDay: 24, why: "as OK p99" },
  {
    name: "loop lag",
    unit: "ms",
    window: "middle",
    perDay: 240,
    why: "10 ms more in the hour; the p99 of a quiet thread is a few ms and mostly the collections of the probe",
  },
  {
    name: "published",
    unit: "1/s",
    window: "middle",
    direction: -1,
    timesPerDay: 2.4,
    why: "the load waits for a node that is too slow, so the rate must not fall by a tenth in the hour",
  },
];

/** Shown beside them and not judged. */
export const shown: readonly { readonly name: string; readonly unit: string }[] = [
  { name: "CPU", unit: "%" },
  { name: "delivered", unit: "1/s" },
  { name: "load's lag", unit: "ms" },
];

/** The measure with the name of the series, thread included. */
export function measureOf(series: string): Measure | undefined {
  const found = measures.find(
    ({ name }) => series === name || series.startsWith(`${name} main`) || series.startsWith(`${name} worker`),
  );
  return found === undefined ? undefined : { ...found, name: series };
}
