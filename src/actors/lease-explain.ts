// What a lease table says of itself when an operator asks: why its group gets what it gets, and what became of one event. It only
// looks, and looks at every unsettled event if it must: nobody asks often. What follows from the facts is decided in the front,
// which knows the windows and the sockets.

import { makeId } from "../protocol/ids.ts";
import type { Burial } from "./burial.ts";
import type { Env } from "./effects.ts";
import type { LeaseDispatch } from "./lease-dispatch.ts";
import type { LeaseLedger } from "./lease-ledger.ts";
import { leaseState } from "./lease-ring.ts";
import type { Member, Members } from "./members.ts";
import type {
  EventFacts,
  EventState,
  GroupFacts,
  GroupOptions,
  Holding,
  KeyWait,
  LeaseFacts,
  MemberFacts,
  WaitCounts,
} from "./messages.ts";

export interface TableParts {
  readonly partition: number;
  readonly options: GroupOptions | undefined;
  readonly ledger: LeaseLedger;
  readonly members: Members;
  readonly dispatch: LeaseDispatch;
  readonly burial: Burial;
  readonly head: { readonly start: number; readonly end: number };
}

// ------------------------------------------------------------------------------------------------------------------ group

export function groupFacts(parts: TableParts, env: Env): GroupFacts {
  const { ledger, members, dispatch, burial, options = null, head } = parts;
  const exists = options !== null;
  const end = Math.max(head.end, dispatch.end);
  const lag = exists ? end - ledger.floor - ledger.settled.size : 0;
  const backoff = ledger.again.backoffs.earliest();
  const [alone] = ledger.again.solo;
  return {
    exists,
    options,
    floor: ledger.floor,
    start: head.start,
    end,
    lag,
    counts: waitCounts(ledger, lag),
    totals: { ...ledger.totals },
    filteredInRow: ledger.filteredInRow,
    unsettledMax: ledger.unsettledMax,
    room: ledger.room,
    ...(ledger.handedOutAt === undefined ? {} : { deliveredMsAgo: env.mono - ledger.handedOutAt }),
    ...(backoff === Number.POSITIVE_INFINITY ? {} : { backoffEndsInMs: left(backoff, env) }),
    ...defined("oldestLease", oldestLease(parts, env)),
    ...defined("keyWait", keyWait(parts, env)),
    ...(alone === undefined ? {} : { nextAlone: { offset: alone, id: idOf(parts, alone) } }),
    ...(dispatch.retryAt === undefined ? {} : { readRetryInMs: left(dispatch.retryAt, env) }),
    ...(burial.retryAt === undefined ? {} : { burialRetryInMs: left(burial.retryAt, env) }),
    members: members.all().map((member) => memberFacts(parts, member, env)),
  };
}

function waitCounts({ ring, again }: LeaseLedger, lag: number): WaitCounts {
  const { counts } = ring;
  // What waits for a commit to be delivered again is as good as ready.
  const ready = again.ready.size + again.limbo.waiting.size;
  const alone = again.solo.length;
  // After a restart some are known to be dying that were not looked at yet.
  const dyingAhead = again.dying.size - counts[leaseState.dying];
  return {
    leased: counts[leaseState.leased],
    ready,
    alone,
    backoff: counts[leaseState.waiting] - ready - alone,
    blocked: counts[leaseState.blocked],
    dying: again.dying.size,
    fresh: lag - ring.unsettled - dyingAhead,
  };
}

function memberFacts(parts: TableParts, member: Member, env: Env): MemberFacts {
  const { number, who, open, stalled, slots, tokens, bytes, leases } = member;
  const reserved = parts.members.reserved === member;
  const facts = { member: number, who, open, stalled, slots, tokens, bytes, leases, reserved };
  return member.alone < 0 ? facts : { ...facts, alone: leaseFacts(parts, member.alone, env) };
}

function oldestLease(parts: TableParts, env: Env): LeaseFacts | undefined {
  const { ring, floor } = parts.ledger;
  if (ring.counts[leaseState.leased] === 0) return undefined;
  let oldest = -1;
  let since = Number.POSITIVE_INFINITY;
  for (const offset of ring.unsettledBelow(ring.next, floor)) {
    const slot = ring.slotOf(offset);
    if (ring.state[slot] !== leaseState.leased || ring.leasedAt[slot] >= since) continue;
    oldest = offset;
    since = ring.leasedAt[slot];
  }
  return leaseFacts(parts, oldest, env);
}

/** Of an event that is leased. */
function leaseFacts(parts: TableParts, offset: number, env: Env): LeaseFacts {
  const { ledger } = parts;
  const { ring } = ledger;
  const slot = ring.slotOf(offset);
  const { number: member, who } = ledger.holderOf(slot);
  return {
    offset,
    id: idOf(parts, offset),
    member,
    who,
    attempt: ledger.history.attemptOf(offset, slot),
    heldMs: env.mono - ring.leasedAt[slot],
    endsInMs: left(ring.until[slot], env),
  };
}

function keyWait(parts: TableParts, env: Env): KeyWait | undefined {
  const { ledger } = parts;
  const longest = ledger.keys.longest();
  if (longest === undefined) return undefined;
  const { key, line } = longest;
  const [offset] = line;
  const facts = { key, waiting: line.length - 1, offset, id: idOf(parts, offset) };
  const state = stateOf(ledger, offset);
  if (state === "leased") return { ...facts, state, lease: leaseFacts(parts, offset, env) };
  if (state === "backoff") {
    return { ...facts, state, backoffEndsInMs: left(ledger.ring.until[ledger.ring.slotOf(offset)], env) };
  }
  return { ...facts, state: state === "dying" ? state : "ready" };
}

// ------------------------------------------------------------------------------------------------------------------ event

export function eventFacts(parts: TableParts, offset: number, env: Env): EventFacts {
  const { ledger, options } = parts;
  const wall = (mono: number) => Math.round(env.wall - (env.mono - mono));
  const ended = ledger.history.of(offset);
  const holdings: Holding[] = ended
    .filter(({ who }) => who !== "")
    .map(({ who, attempt, counted, from, until, outcome, reason }) => ({
      who,
      attempt,
      counted,
      from: wall(from),
      until: wall(until),
      outcome,
      ...defined("reason", reason),
    }));
  if (options === undefined) return { exists: false, state: "not_reached", holdings };
  const state = stateOf(ledger, offset);
  if (state === "settled") {
    const last = ended.findLast(({ outcome }) => finals.has(outcome));
    if (last === undefined) return { exists: true, state, holdings };
    const facts = { exists: true, state: last.outcome as EventState, attempts: last.attempt, at: wall(last.until) };
    return { ...facts, ...(last.who === "" ? defined("reason", last.reason) : {}), holdings };
  }
  const attempts = ledger.again.attemptsOf(offset);
  const facts = { exists: true, state, attempts, holdings };
  const slot = ledger.ring.slotOf(offset);
  if (state === "leased") {
    const until = wall(ledger.ring.until[slot]);
    const { who } = ledger.holderOf(slot);
    const attempt = attempts + 1;
    const from = wall(ledger.ring.leasedAt[slot]);
    holdings.push({ who, attempt, counted: true, from, until, outcome: "leased" });
    return { ...facts, attempts: attempt, until };
  }
  if (state === "backoff") return { ...facts, until: wall(ledger.ring.until[slot]) };
  if (state === "blocked") {
    const line = ledger.keys.lineOf(offset);
    const behind = line && { key: line.key, offset: line.first, id: idOf(parts, line.first) };
    return { ...facts, ...defined("behind", behind) };
  }
  return facts;
}

const finals: ReadonlySet<string> = new Set<EventState>(["acked", "filtered", "dead_lettered"]);

function stateOf(ledger: LeaseLedger, offset: number): EventState {
  const { ring, again } = ledger;
  if (offset < ledger.floor || ledger.settled.has(offset)) return "settled";
  if (again.dying.has(offset)) return "dying";
  if (offset >= ring.next) return "not_reached";
  switch (ring.stateAt(offset)) {
    case leaseState.settled:
      return "settled";
    case leaseState.leased:
      return "leased";
    case leaseState.waiting:
      return again.ready.has(offset) || again.limbo.waiting.has(offset) || again.solo.includes(offset)
        ? "ready"
        : "backoff";
    case leaseState.blocked:
      return "blocked";
    default:
      return "dying";
  }
}

// ----------------------------------------------------------------------------------------------------------------- inside

/** Of an event that has a place in the ring. */
function idOf({ ledger: { ring }, partition }: TableParts, offset: number): string {
  const slot = ring.slotOf(offset);
  return ring.ownId(offset) ?? makeId(ring.storedAt[slot], offset, partition, ring.salt[slot]);
}

function left(at: number, env: Env): number {
  return Math.max(0, at - env.mono);
}

function defined<Name extends string, Value>(name: Name, value: Value | undefined): { readonly [N in Name]?: Value } {
  return value === undefined ? {} : ({ [name]: value } as { readonly [N in Name]: Value });
}
