// The answer to `GET /explain`: the cause, the sentence, and the numbers behind it. What is an instant is given in milliseconds from
// now and as a date.

import type { GroupFacts, KeyWait, LeaseFacts } from "../actors/messages.ts";
import { isFailure } from "../protocol/failure.ts";
import { type Diagnosis, diagnose, type Finding, type MemberFinding, type Situation } from "./explain.ts";
import { factsOf, instant, oldestOf, rateName, sentenceOf, shortest, sum } from "./explain-words.ts";

/** So many members are listed. */
const membersMax = 100;

export function explain(situation: Situation): object {
  const { topic, group, at } = situation;
  const diagnosis = diagnose(situation);
  const { cause, findings, members } = diagnosis;
  const known = factsOf(findings);
  return {
    topic,
    group,
    cause,
    sentence: sentenceOf(situation, diagnosis),
    at: instant(at),
    ...ending("ends", endOf(diagnosis), at),
    lag: sum(known, ({ lag }) => lag),
    waiting: sum(findings, ({ waiting }) => waiting),
    options: known[0]?.options ?? null,
    totals: totalsOf(known),
    memberCount: members.length,
    members: members.slice(0, membersMax).map(memberJson),
    partitions: findings.map((finding) => partitionJson(finding, at)),
  };
}

/** When the cause ends by itself, if it does. */
function endOf({ cause, concerned, findings, members }: Diagnosis): number | undefined {
  const facts = factsOf(concerned);
  switch (cause) {
    case "window_full":
      return oldestOf(factsOf(findings))?.endsInMs;
    case "all_leased":
      return oldestOf(facts)?.endsInMs;
    case "rate_limited":
      return shortest(members.map(({ subscription }) => subscription?.rateEmptyMs));
    case "backoff":
      return shortest(facts.map(({ backoffEndsInMs }) => backoffEndsInMs));
    case "reads_failing":
      return shortest(facts.map(({ readRetryInMs }) => readRetryInMs));
    case "dead_letters":
      return shortest(facts.map(({ burialRetryInMs }) => burialRetryInMs));
    case "key_order":
      return shortest(facts.map(({ keyWait }) => keyWait?.lease?.endsInMs ?? keyWait?.backoffEndsInMs));
    case "alone":
      return shortest(facts.flatMap(({ members }) => members.map(({ alone }) => alone?.endsInMs)));
    default:
      return undefined;
  }
}

function memberJson({ who, subscription, leased, obstacle }: MemberFinding): object {
  if (subscription === undefined) return { who, state: "leaving", leased };
  const { window, pausedMs, stalledMs, unsentBytes, rate, rateEmptyMs, members } = subscription;
  const joined = members.some((member) => member !== undefined);
  return {
    who,
    state: joined ? (obstacle ?? "open") : "joining",
    leased,
    window,
    ...(pausedMs === undefined ? {} : { pausedMs: Math.round(pausedMs) }),
    ...(stalledMs === undefined ? {} : { stalledMs: Math.round(stalledMs) }),
    unsentBytes,
    rate: rateName(rate),
    ...(rateEmptyMs === undefined ? {} : { rateEmptyMs: Math.round(rateEmptyMs) }),
  };
}

function partitionJson({ partition, shard, status, reason, facts, cause, waiting }: Finding, at: number): object {
  const place = { partition, cause, shard, status, ...(reason === undefined ? {} : { reason }) };
  if (isFailure(facts)) return { ...place, error: facts.msg, code: facts.code };
  const { floor, start, end, lag, counts, unsettledMax, room, deliveredMsAgo, totals } = facts;
  const { oldestLease, backoffEndsInMs, keyWait, nextAlone, readRetryInMs, burialRetryInMs } = facts;
  return {
    ...place,
    floor,
    start,
    end,
    lag,
    waiting,
    ...counts,
    unsettledMax,
    room,
    filtered: totals.filtered,
    deadLettered: totals.deadLettered,
    ...(deliveredMsAgo === undefined ? {} : { deliveredMsAgo: Math.round(deliveredMsAgo) }),
    ...(oldestLease === undefined ? {} : { oldestLease: leaseJson(oldestLease, at) }),
    ...(keyWait === undefined ? {} : { keyWait: keyWaitJson(keyWait, at) }),
    ...(nextAlone === undefined ? {} : { nextAlone }),
    ...ending("backoffEnds", backoffEndsInMs, at),
    ...ending("readRetry", readRetryInMs, at),
    ...ending("burialRetry", burialRetryInMs, at),
  };
}

function leaseJson({ offset, id, who, attempt, heldMs, endsInMs }: LeaseFacts, at: number): object {
  return { offset, id, who, attempt, heldMs: Math.round(heldMs), ...ending("ends", endsInMs, at) };
}

function keyWaitJson({ key, waiting, offset, id, state, lease, backoffEndsInMs }: KeyWait, at: number): object {
  const held = lease === undefined ? {} : { lease: leaseJson(lease, at) };
  return { key, waiting, offset, id, state, ...held, ...ending("backoffEnds", backoffEndsInMs, at) };
}

/** As milliseconds from now and as an instant. */
function ending(name: string, inMs: number | undefined, at: number): object {
  return inMs === undefined ? {} : { [`${name}InMs`]: Math.round(inMs), [`${name}At`]: instant(at + inMs) };
}

function totalsOf(facts: readonly GroupFacts[]): object {
  const total = (name: keyof GroupFacts["totals"]) => sum(facts, ({ totals }) => totals[name]);
  return {
    delivered: total("delivered"),
    redelivered: total("redelivered"),
    acked: total("acked"),
    nacked: total("nacked"),
    expired: total("expired"),
    deadLettered: total("deadLettered"),
    filtered: total("filtered"),
    skipped: total("skipped"),
  };
}
