// A diagnosis in one sentence with the facts in it.

import type { GroupFacts, KeyWait, LeaseFacts } from "../actors/messages.ts";
import { isFailure } from "../protocol/failure.ts";
import { deadLetterTopic } from "../protocol/names.ts";
import type { Rate } from "../protocol/rate.ts";
import type { Diagnosis, Finding, MemberFinding, Obstacle, Situation } from "./explain.ts";

/** So many members, tables or shards are named. */
const namesMax = 3;
const groupNamesMax = 10;
/** A group that got something so lately is not stuck: it is as fast as its limit lets it be. */
const lateMs = 1000;

export function sentenceOf(situation: Situation, diagnosis: Diagnosis): string {
  const { topic, group } = situation;
  const { cause, concerned, findings, members } = diagnosis;
  const some = concerned.length < findings.length;
  const place = some ? `${partitions(concerned)} of ${topic}` : topic;
  const nothing = `${group} gets nothing new of ${place}`;
  const facts = factsOf(concerned);
  const waits = waitsText(sum(concerned, ({ waiting }) => waiting));
  const those = (obstacle: Obstacle | undefined) => named(members, obstacle);
  switch (cause) {
    case "unknown_group":
      return `${topic} has no group ${group}: nobody has subscribed under this name, or it was deleted; ${groupsText(situation.otherGroups)}`;
    case "draining":
      return `${nothing}: the node is shutting down and only takes acks; ${waits}`;
    case "shard_down":
      return `${nothing}: ${shardsText(concerned)}; how many events wait there is not known meanwhile`;
    case "read_only":
      return `${nothing}: ${shardsText(concerned)}, and nothing is delivered before it takes writes again; ${waits}`;
    case "unreachable":
      return `${nothing}: ${unreachableText(concerned)}`;
    case "rejoining":
      return `${nothing}: ${membersText(members, members)} ${are(members)} just being joined; ${waits}`;
    case "no_members":
      return `${nothing}: it has no members, nobody is subscribed; ${waits}`;
    case "paused":
      return `${nothing}: ${pausedText(members)}; ${waits}${waits.startsWith("nothing") ? "" : " for RESUME"}`;
    case "slow_client":
      return `${nothing}: ${slowText(those("slow_client"), members)}; ${waits}`;
    case "reads_failing": {
      const retry = duration(Math.min(...facts.map(({ readRetryInMs = 0 }) => readRetryInMs)));
      return `${nothing}: the log cannot be read just now and is tried again in ${retry}; ${waits}`;
    }
    case "unsettled_max":
      return `${nothing}: ${unsettledText(facts)}`;
    case "alone":
      return `${nothing}: ${aloneText(facts, members)}; ${waits}`;
    case "window_full":
      return `${nothing}: ${windowText(those("window_full"), members, oldestOf(factsOf(findings)))}; ${waits}${latelyText(facts)}`;
    case "rate_limited":
      return `${nothing}: ${rateText(those("rate_limited"), members, situation.at)}; ${waits}${latelyText(facts)}`;
    case "key_order":
      return `${nothing}: ${keyText(facts)}`;
    case "backoff":
      return `${nothing}: ${backoffText(facts, situation.at)}${leasedText(facts)}`;
    case "dead_letters":
      return `${nothing}: ${buryText(facts, deadLetterTopic(topic, group))}${leasedText(facts)}`;
    case "all_leased":
      return `${nothing}: ${allLeasedText(facts)}${oldestText(oldestOf(facts))}${latelyText(facts)}`;
    case "filtered": {
      const filtered = sum(facts, ({ filteredInRow }) => filteredInRow);
      const filter = JSON.stringify(facts[0].options?.filter ?? null);
      return `${nothing}: its filter ${filter} let none of the last ${events(filtered)} through; ${waits}`;
    }
    case "nothing_to_deliver": {
      const stored = facts.some(({ start, end }) => end > start);
      // Whether it ever had them is not known: it may have begun at the end.
      const why = stored ? "it is at the end of the log" : "there are no events";
      return `${nothing}: ${why}${deadText(facts, topic, group)}; ${waits}`;
    }
    case "delivering":
      return `${group} gets events of ${place}: ${waits} and ${waits.startsWith("1 ") ? "is" : "are"} on the way to ${namesText(those(undefined))}${latelyText(facts)}`;
    default:
      return cause satisfies never;
  }
}

function waitsText(count: number): string {
  return count === 0 ? "nothing waits" : `${events(count)} ${count === 1 ? "waits" : "wait"}`;
}

function groupsText(names: readonly string[]): string {
  if (names.length === 0) return "the topic has no groups";
  return `its groups are ${list(names, groupNamesMax)}`;
}

function shardsText(concerned: readonly Finding[]): string {
  const shards = new Map(concerned.map((finding) => [finding.shard, finding]));
  const texts = [...shards.values()].map(({ shard, status, reason }) => {
    const state = status === "read-only" ? "takes no writes" : status === "opening" ? "is being opened" : "is down";
    return `shard ${shard} ${state}${reason === undefined ? "" : ` (${reason})`}`;
  });
  return list(texts, namesMax);
}

function unreachableText(concerned: readonly Finding[]): string {
  const [{ facts }] = concerned;
  const tables = concerned.length === 1 ? "lease table" : "lease tables";
  const answer = concerned.length === 1 ? "does not answer" : "do not answer";
  return `the ${tables} of ${partitions(concerned)} ${answer}${isFailure(facts) ? ` (${facts.msg})` : ""}`;
}

function pausedText(members: readonly MemberFinding[]): string {
  const leased = sum(members, (member) => member.leased);
  const holding = leased === 0 ? "" : ` and ${members.length === 1 ? "holds" : "hold"} ${events(leased)}`;
  const since = longest(members.map(({ subscription }) => subscription?.pausedMs));
  return `${membersText(members, members)} ${are(members)} paused${since === undefined ? "" : ` since ${duration(since)}`}${holding}`;
}

function slowText(slow: readonly MemberFinding[], all: readonly MemberFinding[]): string {
  const unsent = sum(slow, ({ subscription }) => subscription?.unsentBytes ?? 0);
  const since = longest(slow.map(({ subscription }) => subscription?.stalledMs));
  const takes = slow.length === 1 ? "does not take what was sent to it" : "do not take what was sent to them";
  return `${membersText(slow, all)} ${takes}, ${unsent} bytes are unsent${since === undefined ? "" : ` since ${duration(since)}`}`;
}

function unsettledText(facts: readonly GroupFacts[]): string {
  const { unsettledMax, counts } = facts[0];
  const parts = [
    [counts.leased, "leased"],
    [counts.backoff, "in backoff"],
    [counts.blocked, "behind others of their key"],
    [counts.dying, "on the way to the dead letters"],
  ] as const;
  const what = parts.flatMap(([count, text]) => (count === 0 ? [] : [`${count} ${text}`])).join(", ");
  const fresh = waitsText(sum(facts, (fact) => fact.counts.fresh));
  return `${events(unsettledMax)} are unsettled (${what}), as many as there may be on a partition; ${fresh} until some of them are settled`;
}

function aloneText(facts: readonly GroupFacts[], members: readonly MemberFinding[]): string {
  const holder = facts.flatMap(({ members }) => members).find(({ alone }) => alone !== undefined);
  const why = "on its last attempt after a disconnect";
  if (holder?.alone !== undefined) {
    const { offset, id, endsInMs } = holder.alone;
    return `${holder.who} holds event ${id} (offset ${offset}), ${why}, and nothing beside it until it is settled or the lease ends in ${duration(endsInMs)}`;
  }
  const next = facts.find(({ nextAlone }) => nextAlone !== undefined)?.nextAlone;
  const event = next === undefined ? "an event" : `event ${next.id} (offset ${next.offset})`;
  const holding = members.map(({ who, leased }) => `${who} holds ${events(leased)}`);
  return `${event} is ${why} and is delivered alone, once a member holds nothing; ${list(holding, namesMax)}`;
}

function windowText(
  full: readonly MemberFinding[],
  all: readonly MemberFinding[],
  oldest: LeaseFacts | undefined,
): string {
  const leased = sum(full, (member) => member.leased);
  const window = sum(full, ({ subscription, leased }) => subscription?.window ?? leased);
  const holds = full.length === 1 ? "holds" : "hold";
  const since = oldest === undefined ? "" : ` since ${duration(oldest.heldMs)}`;
  return `${membersText(full, all)} ${holds} ${leased} of ${window} events${since}${oldestText(oldest, false)}`;
}

function oldestText(oldest: LeaseFacts | undefined, since = true): string {
  if (oldest === undefined) return "";
  const held = since ? `, since ${duration(oldest.heldMs)},` : "";
  return `; the oldest lease (event ${oldest.id}, offset ${oldest.offset})${held} ends in ${duration(oldest.endsInMs)}`;
}

function rateText(limited: readonly MemberFinding[], all: readonly MemberFinding[], at: number): string {
  const subscriptions = limited.flatMap(({ subscription }) => subscription ?? []);
  const next = shortest(subscriptions.map(({ rateEmptyMs }) => rateEmptyMs)) ?? 0;
  const rate = subscriptions.length === 0 ? "" : ` of ${rateName(subscriptions[0].rate)}`;
  const has = limited.length === 1 ? "has" : "have";
  return `${membersText(limited, all)} ${has} used up the delivery rate${rate} (CONN_RATE) until ${instant(at + next)}, ${duration(next)} from now`;
}

function keyText(facts: readonly GroupFacts[]): string {
  const blocked = sum(facts, ({ counts }) => counts.blocked);
  const text = `${waitsText(blocked)} behind ${blocked === 1 ? "an earlier one of its" : "earlier ones of their"} key`;
  const [worst] = facts.flatMap(({ keyWait }) => keyWait ?? []).sort((a, b) => b.waiting - a.waiting);
  if (worst === undefined) return text;
  const { key, waiting, id, offset } = worst;
  return `${text}: of key ${JSON.stringify(key)} ${waitsText(waiting)} for event ${id} (offset ${offset}), which ${keyHolderText(worst)}`;
}

function keyHolderText({ state, lease, backoffEndsInMs = 0 }: KeyWait): string {
  if (lease !== undefined) {
    return `${lease.who} holds since ${duration(lease.heldMs)}; the lease ends in ${duration(lease.endsInMs)}`;
  }
  if (state === "backoff") return `comes again after its backoff in ${duration(backoffEndsInMs)}`;
  return state === "dying" ? "is on its way to the dead letters" : "is about to be delivered again";
}

function backoffText(facts: readonly GroupFacts[], at: number): string {
  const waiting = waitsText(sum(facts, ({ counts }) => counts.backoff));
  const next = shortest(facts.map(({ backoffEndsInMs }) => backoffEndsInMs)) ?? 0;
  return `${waiting} after a failed attempt, the first until ${instant(at + next)}, ${duration(next)} from now`;
}

function buryText(facts: readonly GroupFacts[], deadLetters: string): string {
  const dying = sum(facts, ({ counts }) => counts.dying);
  const have = dying === 1 ? "has used up its attempts and goes" : "have used up their attempts and go";
  const retry = shortest(facts.map(({ burialRetryInMs }) => burialRetryInMs));
  const tried = retry === undefined ? "" : `; that failed and is tried again in ${duration(retry)}`;
  return `${events(dying)} ${have} to ${deadLetters}${tried}`;
}

/** Of those that were buried since the worker began. */
function deadText(facts: readonly GroupFacts[], topic: string, group: string): string {
  const dead = sum(facts, ({ totals }) => totals.deadLettered);
  if (dead === 0) return "";
  return `, and ${events(dead)} ${dead === 1 ? "is a dead letter" : "are dead letters"} (narthex dlq show ${topic} ${group})`;
}

function allLeasedText(facts: readonly GroupFacts[]): string {
  const leased = sum(facts, ({ counts }) => counts.leased);
  const what = leased === 1 ? "the only event left is" : `all ${events(leased)} left are`;
  return `${what} leased ${leasedByText(facts)}`;
}

/** What else there is, besides the events that wait. */
function leasedText(facts: readonly GroupFacts[]): string {
  const leased = sum(facts, ({ counts }) => counts.leased);
  return leased === 0 ? "" : `; ${events(leased)} ${leased === 1 ? "is" : "are"} leased ${leasedByText(facts)}`;
}

function leasedByText(facts: readonly GroupFacts[]): string {
  const leases = new Map<string, number>();
  for (const { who, leases: count } of facts.flatMap(({ members }) => members)) {
    if (count > 0) leases.set(who, (leases.get(who) ?? 0) + count);
  }
  const holders = [...leases].sort(([, a], [, b]) => b - a);
  if (holders.length === 1) return `by ${holders[0][0]}`;
  const names = holders.map(([who, count]) => `${count} by ${who}`);
  return `by ${holders.length} members (${list(names, namesMax)})`;
}

function latelyText(facts: readonly GroupFacts[]): string {
  const ago = shortest(facts.map(({ deliveredMsAgo }) => deliveredMsAgo));
  return ago === undefined || ago > lateMs ? "" : `; the last one was delivered ${duration(ago)} ago`;
}

// ------------------------------------------------------------------------------------------------------------------- words

/** Those whom this keeps from taking more; where none is known for it, all. */
function named(members: readonly MemberFinding[], obstacle: Obstacle | undefined): readonly MemberFinding[] {
  const those = members.filter((member) => member.obstacle === obstacle);
  return those.length === 0 ? members : those;
}

/** `its only member (…)`, `its 2 members (…), besides 1 that is paused,`. */
function membersText(those: readonly MemberFinding[], all: readonly MemberFinding[]): string {
  const names = namesText(those);
  const others = new Map<string, number>();
  for (const member of all) {
    if (those.includes(member)) continue;
    const state = member.obstacle ?? "open";
    others.set(state, (others.get(state) ?? 0) + 1);
  }
  const besides = [...others].map(([state, count]) => `${count} that ${count === 1 ? "is" : "are"} ${state}`);
  const only = besides.length === 0 ? "only member" : "member";
  const whose = those.length === 1 ? `its ${only} (${names})` : `its ${those.length} members (${names})`;
  return besides.length === 0 ? whose : `${whose}, besides ${besides.join(" and ")},`;
}

function namesText(members: readonly MemberFinding[]): string {
  return list(
    members.map(({ who }) => who),
    namesMax,
  );
}

function are(members: readonly MemberFinding[]): string {
  return members.length === 1 ? "is" : "are";
}

function partitions(concerned: readonly Finding[]): string {
  const numbers = concerned.map(({ partition }) => String(partition));
  return `${numbers.length === 1 ? "partition" : "partitions"} ${list(numbers, groupNamesMax)}`;
}

function list(texts: readonly string[], max: number): string {
  const more = texts.length - max;
  return more > 0 ? `${texts.slice(0, max).join(", ")} and ${more} more` : texts.join(", ");
}

function events(count: number): string {
  return count === 1 ? "1 event" : `${count} events`;
}

export function rateName(rate: Rate | "off"): string {
  return rate === "off" ? rate : `${rate.burst}/${rate.perSec}`;
}

/** To be read, not to be computed with: `350 ms`, `14 s`, `2 min 5 s`, `1 h 3 min`. */
export function duration(ms: number): string {
  const rounded = Math.round(ms);
  if (rounded < 1000) return `${rounded} ms`;
  if (rounded < 9950) return `${Number((rounded / 1000).toFixed(1))} s`;
  const seconds = Math.round(rounded / 1000);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return two(Math.floor(seconds / 60), "min", seconds % 60, "s");
  const minutes = Math.round(seconds / 60);
  return two(Math.floor(minutes / 60), "h", minutes % 60, "min");
}

function two(large: number, largeUnit: string, small: number, smallUnit: string): string {
  return `${large} ${largeUnit}${small === 0 ? "" : ` ${small} ${smallUnit}`}`;
}

export function instant(ms: number): string {
  return new Date(Math.round(ms)).toISOString();
}

export function factsOf(findings: readonly Finding[]): GroupFacts[] {
  return findings.flatMap(({ facts }) => (isFailure(facts) || !facts.exists ? [] : [facts]));
}

export function oldestOf(facts: readonly GroupFacts[]): LeaseFacts | undefined {
  const leases = facts.flatMap(({ oldestLease }) => oldestLease ?? []);
  return leases.sort((a, b) => b.heldMs - a.heldMs).at(0);
}

export function sum<T>(items: readonly T[], value: (item: T) => number): number {
  return items.reduce((total, item) => total + value(item), 0);
}

export function shortest(times: readonly (number | undefined)[]): number | undefined {
  const known = times.filter((time) => time !== undefined);
  return known.length === 0 ? undefined : Math.min(...known);
}

function longest(times: readonly (number | undefined)[]): number | undefined {
  const known = times.filter((time) => time !== undefined);
  return known.length === 0 ? undefined : Math.max(...known);
}
