// What is published to and consumed, in every life of every folder: topics of several shapes, groups of several rules, and who is a
// member of which.

import type { GroupPlan } from "./group-facts.ts";

export interface TopicPlan {
  readonly name: string;
  readonly partitions: number;
  readonly retentionMs?: number;
  readonly groups: readonly GroupPlan[];
}

export const topicPlans: readonly TopicPlan[] = [
  {
    name: "one",
    partitions: 1,
    groups: [
      { name: "work", maxAttempts: 3, backoffMs: [10, 40], ackTimeoutMs: 300 },
      { name: "moved", maxAttempts: 4, backoffMs: 0, ackTimeoutMs: 8000 },
    ],
  },
  {
    name: "keyed",
    partitions: 3,
    groups: [
      { name: "lined", maxAttempts: 3, backoffMs: 5, ackTimeoutMs: 6000, ordering: "key" },
      { name: "some", maxAttempts: 5, backoffMs: 20, ackTimeoutMs: 500, filter: { keyPrefix: "k1" } },
    ],
  },
  {
    name: "short",
    partitions: 2,
    retentionMs: 2500,
    groups: [{ name: "slow", maxAttempts: 5, backoffMs: 100, ackTimeoutMs: 10_000 }],
  },
  {
    name: "mixed",
    partitions: 2,
    groups: [{ name: "both", maxAttempts: 2, backoffMs: 0, ackTimeoutMs: 400 }],
  },
];

/** Groups that are moved now and then. */
export const movedGroups: readonly string[] = ["one/moved"];

export const consumerPlans: readonly { readonly batches: boolean; readonly groups: readonly string[] }[] = [
  { batches: false, groups: ["one/work", "keyed/lined"] },
  { batches: false, groups: ["one/work", "short/slow"] },
  { batches: true, groups: ["keyed/some", "mixed/both"] },
  { batches: false, groups: ["mixed/both", "one/moved"] },
  { batches: true, groups: ["keyed/lined"] },
];
