// Why a group gets what it gets: from the facts of its lease tables and what the front knows of its members to one cause. This file
// decides, explain-words.ts says it in a sentence, http-explain.ts gathers the facts. Nothing here looks at a clock or asks anybody.
//
// The causes of one partition are tried in the order of `causes`, and the first that holds is it: what keeps everything from the group
// (the node, the shard, nobody there to deliver to), then what stands between its members and an event that could be delivered now,
// and where there is no such event, what the rest waits for. What would hold back the next event counts also while nothing waits.

import type { GroupFacts, MemberFacts, WaitCounts } from "../actors/messages.ts";
import { type Failure, isFailure } from "../protocol/failure.ts";
import type { SubscriptionFacts } from "./subscription.ts";

/** In the order of precedence; PROTOCOL.md says what each means. */
export const causes = [
  "draining",
  "shard_down",
  "read_only",
  "unreachable",
  "unknown_group",
  "rejoining",
  "no_members",
  "paused",
  "slow_client",
  "reads_failing",
  "unsettled_max",
  "alone",
  "window_full",
  "rate_limited",
  "key_order",
  "backoff",
  "dead_letters",
  "delivering",
  "all_leased",
  "filtered",
  "nothing_to_deliver",
] as const;

export type Cause = (typeof causes)[number];

/** What keeps one member from taking another event. */
export type Obstacle = "paused" | "slow_client" | "alone" | "window_full" | "rate_limited";

export interface Situation {
  readonly topic: string;
  readonly group: string;
  /** Wall-clock milliseconds: the moment of all facts. */
  readonly at: number;
  /** The node is being shut down. */
  readonly draining: boolean;
  readonly subscriptions: readonly SubscriptionFacts[];
  readonly partitions: readonly PartitionSituation[];
  /** Other groups of the topic, where this one does not exist. */
  readonly otherGroups: readonly string[];
}

export interface PartitionSituation {
  readonly partition: number;
  readonly shard: number;
  readonly status: "opening" | "up" | "read-only" | "down";
  /** Why the shard is not up. */
  readonly reason: string | undefined;
  readonly facts: GroupFacts | Failure;
}

export interface Finding extends PartitionSituation {
  readonly cause: Cause;
  /** Events that nobody holds. */
  readonly waiting: number;
}

/** A member of the group on all partitions. */
export interface MemberFinding {
  readonly who: string;
  /** Undefined for one that the front has just let go. */
  readonly subscription: SubscriptionFacts | undefined;
  readonly leased: number;
  /** What keeps it from taking more, on the first partition where something does. */
  readonly obstacle: Obstacle | undefined;
}

export interface Diagnosis {
  readonly cause: Cause;
  /** Those partitions to which it applies. */
  readonly concerned: readonly Finding[];
  readonly findings: readonly Finding[];
  readonly members: readonly MemberFinding[];
}

export function diagnose(situation: Situation): Diagnosis {
  const seats = seatsOf(situation);
  const findings = situation.partitions.map((partition): Finding => {
    const { facts } = partition;
    const waiting = isFailure(facts) ? 0 : facts.lag - facts.counts.leased;
    return { ...partition, cause: causeOf(partition, situation, seats), waiting };
  });
  const cause = foremost(findings);
  const concerned = findings.filter((finding) => finding.cause === cause);
  return { cause, concerned, findings, members: membersOf(situation, seats) };
}

/**
 * Of the causes on several partitions the one to name: a fault before all others, then what holds back the most events, and of two that
 * hold back as many the one that comes first. That events flow on one partition does not explain why they do not on another.
 */
function foremost(findings: readonly Finding[]): Cause {
  const waiting = new Map<Cause, number>();
  // A group that a partition does not know yet is known all the same where another does.
  const known = findings.filter(({ cause }) => cause !== "unknown_group");
  for (const finding of known.length === 0 ? findings : known) {
    waiting.set(finding.cause, (waiting.get(finding.cause) ?? 0) + finding.waiting);
  }
  const found = causes.filter((cause) => waiting.has(cause));
  const [first] = found;
  if (!holdsBack(first)) return first;
  const rivals = found.filter(holdsBack);
  return rivals.reduce((best, cause) => ((waiting.get(cause) ?? 0) > (waiting.get(best) ?? 0) ? cause : best));
}

function holdsBack(cause: Cause): boolean {
  const at = causes.indexOf(cause);
  return at > causes.indexOf("unknown_group") && at < causes.indexOf("delivering");
}

// ------------------------------------------------------------------------------------------------------------ one partition

function causeOf({ status, facts }: PartitionSituation, { draining, subscriptions }: Situation, seats: Seats): Cause {
  if (draining) return "draining";
  if (status === "down" || status === "opening") return "shard_down";
  if (status === "read-only") return "read_only";
  if (isFailure(facts)) return "unreachable";
  if (!facts.exists) return "unknown_group";
  if (facts.members.length === 0) return subscriptions.length > 0 ? "rejoining" : "no_members";
  const active = facts.members.filter((member) => !isPaused(member, seats));
  if (active.length === 0) return "paused";
  if (active.every((member) => isStalled(member, seats))) return "slow_client";
  if (facts.lag === 0) return facts.filteredInRow > 0 ? "filtered" : "nothing_to_deliver";
  const { ready, alone, fresh } = facts.counts;
  if (ready + alone + fresh === 0) return waitOf(facts.counts);
  if (facts.readRetryInMs !== undefined) return "reads_failing";
  if (ready + alone === 0 && facts.room <= 0) return "unsettled_max";
  return obstacleOf(facts, active, seats) ?? "delivering";
}

/** Nothing can be delivered now: what most of the rest waits for. */
function waitOf({ blocked, backoff, dying }: WaitCounts): Cause {
  const most = Math.max(blocked, backoff, dying);
  if (most === 0) return "all_leased";
  if (blocked === most) return "key_order";
  return backoff === most ? "backoff" : "dead_letters";
}

/** Something could be delivered, if only a member could take it: what most of them lack. */
function obstacleOf({ counts }: GroupFacts, active: readonly MemberFacts[], seats: Seats): Obstacle | undefined {
  let able = active;
  if (counts.ready + counts.fresh === 0) {
    // All that is left must be delivered alone, so only an idle member can have it.
    able = active.filter(({ leases }) => leases === 0);
    if (able.length === 0) return "alone";
  }
  const lacks = able.map((member) => lackOf(member, seats));
  const most = { obstacle: undefined as Obstacle | undefined, count: 0 };
  for (const obstacle of ["slow_client", "alone", "window_full", "rate_limited"] as const) {
    const count = lacks.filter((lack) => lack === obstacle).length;
    if (count > most.count) Object.assign(most, { obstacle, count });
  }
  return lacks.includes(undefined) ? undefined : most.obstacle;
}

/** A credit that is on its way is no obstacle: it is there in a moment. */
function lackOf(member: MemberFacts, seats: Seats): Obstacle | undefined {
  const seat = seats.get(member.member);
  if (isPaused(member, seats)) return "paused";
  if (isStalled(member, seats)) return "slow_client";
  if (member.alone !== undefined || (member.reserved && member.leases > 0)) return "alone";
  if (member.slots < 1 && (seat === undefined || seat.leased >= seat.subscription.window)) return "window_full";
  if (member.tokens < 1 && seat?.subscription.rateEmptyMs !== undefined) return "rate_limited";
  if (member.bytes <= 0 && (seat?.subscription.unsentBytes ?? 0) > 0) return "slow_client";
  return undefined;
}

function isPaused(member: MemberFacts, seats: Seats): boolean {
  const seat = seats.get(member.member);
  return seat === undefined ? !member.open && !member.stalled : seat.subscription.pausedMs !== undefined;
}

function isStalled(member: MemberFacts, seats: Seats): boolean {
  const seat = seats.get(member.member);
  return seat === undefined ? member.stalled : seat.subscription.stalledMs !== undefined;
}

// ----------------------------------------------------------------------------------------------------------------- members

/** By its number at a lease table: the subscription, and what that holds on all partitions. */
type Seats = ReadonlyMap<number, Holder>;

interface Holder {
  readonly subscription: SubscriptionFacts;
  leased: number;
}

function seatsOf({ subscriptions, partitions }: Situation): Seats {
  const seats = new Map<number, Holder>();
  for (const subscription of subscriptions) {
    const holder = { subscription, leased: 0 };
    for (const member of subscription.members) if (member !== undefined) seats.set(member, holder);
  }
  for (const { member, leases } of tableMembers(partitions)) {
    const holder = seats.get(member);
    if (holder !== undefined) holder.leased += leases;
  }
  return seats;
}

function membersOf({ subscriptions, partitions }: Situation, seats: Seats): MemberFinding[] {
  const obstacles = new Map<SubscriptionFacts, Obstacle>();
  const left: MemberFinding[] = [];
  for (const member of tableMembers(partitions)) {
    const holder = seats.get(member.member);
    const obstacle = lackOf(member, seats);
    if (holder === undefined) {
      left.push({ who: member.who, subscription: undefined, leased: member.leases, obstacle });
    } else if (obstacle !== undefined && !obstacles.has(holder.subscription)) {
      obstacles.set(holder.subscription, obstacle);
    }
  }
  const live = subscriptions.map((subscription): MemberFinding => {
    const member = subscription.members.find((number) => number !== undefined && seats.has(number));
    const leased = member === undefined ? 0 : (seats.get(member)?.leased ?? 0);
    return { who: subscription.who, subscription, leased, obstacle: obstacles.get(subscription) };
  });
  return [...live, ...left];
}

function tableMembers(partitions: readonly PartitionSituation[]): MemberFacts[] {
  return partitions.flatMap(({ facts }) => (isFailure(facts) ? [] : facts.members));
}
