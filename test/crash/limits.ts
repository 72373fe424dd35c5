/** Of the node under test, where it runs with small limits. The window in which an own id counts is never shorter than here. */
export const smallLimits = {
  segmentBytes: 192 * 1024,
  dedupeMs: 20_000,
  pruneEveryMs: 300,
  drainMs: 600,
} as const;
