// What members say of the events they hold: ack, nack, extend, release, by id or in runs of offsets. `lease` fences (G7): what names a lease
// counts if that lease is still on the event, or has only passed its deadline and the event was not leased again; otherwise it
// is refused and changes nothing. What names none counts if the member holds the event.

import { type Failure, failure } from "../protocol/failure.ts";
import { parseId } from "../protocol/ids.ts";
import { parseLease } from "../protocol/lease.ts";
import { boundReason } from "./dead-letter.ts";
import type { Env } from "./effects.ts";
import { endReasons, type LeaseLedger } from "./lease-ledger.ts";
import { leaseState } from "./lease-ring.ts";
import type { LeaseRun, MessageOf, SettleEntry, SettleResult } from "./messages.ts";

const lost = failure("lease_lost", "the lease is no longer on this event");

/** Gives one result per entry, or null when all are plain. */
export function settleEntries(
  ledger: LeaseLedger,
  partition: number,
  message: MessageOf<"settle">,
  env: Env,
): { readonly results: readonly SettleResult[] | null; readonly changed: boolean } {
  const results: SettleResult[] = [];
  let plain = true;
  let changed = false;
  for (const entry of message.entries) {
    const result = settleEntry(ledger, partition, message.member, entry, env);
    results.push(result);
    if (result === null) changed = true;
    else plain = false;
  }
  return { results: plain ? null : results, changed };
}

function settleEntry(
  ledger: LeaseLedger,
  partition: number,
  member: number,
  entry: SettleEntry,
  env: Env,
): SettleResult {
  const slots = slotsOfId(ledger, partition, entry.id);
  if (entry.lease === undefined) {
    const held = heldBy(ledger, slots, member);
    for (const slot of held) settleSlot(ledger, slot, entry, env);
    return held.length === 0 ? "stale" : null;
  }
  const slot = leasedAs(ledger, slots, entry.lease, env);
  if (slot === undefined) return lost;
  // Settled by this very lease: the client did not hear the first OK.
  if (ledger.ring.state[slot] === leaseState.settled) return "stale";
  settleSlot(ledger, slot, entry, env);
  return null;
}

function settleSlot(ledger: LeaseLedger, slot: number, entry: SettleEntry, env: Env): void {
  const offset = ledger.ring.owner[slot];
  if (entry.ack) {
    ledger.ack(offset, slot, env);
    ledger.settleRange(offset, offset + 1);
  } else {
    ledger.nack(offset, slot, entry.delayMs, reasonOf(entry.reason), env.mono);
  }
}

/** Gives the runs, cut where needed, whose leases were lost. */
export function settleRuns(
  ledger: LeaseLedger,
  message: MessageOf<"settleRuns">,
  env: Env,
): { readonly lost: LeaseRun[]; readonly changed: boolean } {
  const { ring } = ledger;
  const { verb, delayMs } = message;
  const reason = reasonOf(message.reason);
  const lostRuns: LostRun[] = [];
  let changed = false;
  for (const run of message.runs) {
    // What was acked and not yet added to what is settled; in one stretch, so that the floor moves once.
    let from = run.offset;
    let to = run.offset;
    for (let i = 0; i < run.count; i++) {
      const offset = run.offset + i;
      const slot = run.epoch === env.epoch && run.token > 0 ? ring.slotOf(offset) : -1;
      if (slot < 0 || ring.token[slot] !== run.token + i) {
        addLost(lostRuns, run, i);
        continue;
      }
      if (ring.state[slot] === leaseState.settled) continue;
      if (verb === "release") {
        if (ledger.putBack(offset, slot, env.mono)) changed = true;
        continue;
      }
      changed = true;
      if (verb === "nack") {
        ledger.nack(offset, slot, delayMs, reason, env.mono);
        continue;
      }
      ledger.ack(offset, slot, env);
      if (offset !== to) {
        if (to > from) ledger.settleRange(from, to);
        from = offset;
      }
      to = offset + 1;
    }
    if (to > from) ledger.settleRange(from, to);
  }
  return { lost: lostRuns, changed };
}

/** The failure, or whether the attempts changed: a lease that had lapsed goes on. */
export function extendEntry(
  ledger: LeaseLedger,
  partition: number,
  message: MessageOf<"extend">,
  env: Env,
): Failure | { readonly changed: boolean } {
  const { id, lease, member, extendMs } = message;
  const slots = slotsOfId(ledger, partition, id);
  if (slots.length === 0) return failure("unknown_id", `no lease on ${id}`);
  if (lease !== undefined) {
    const slot = leasedAs(ledger, slots, lease, env);
    const outcome = slot === undefined ? "lost" : extendSlot(ledger, slot, extendMs, env);
    return outcome === "lost" ? lost : { changed: outcome === "revived" };
  }
  const held = heldBy(ledger, slots, member);
  if (held.length === 0) return failure("unknown_id", `this subscription has no lease on ${id}`);
  let changed = false;
  for (const slot of held) changed = extendSlot(ledger, slot, extendMs, env) === "revived" || changed;
  return { changed };
}

export function extendRuns(
  ledger: LeaseLedger,
  message: MessageOf<"extendRuns">,
  env: Env,
): { readonly lost: LeaseRun[]; readonly changed: boolean } {
  const { ring } = ledger;
  const lostRuns: LostRun[] = [];
  let changed = false;
  for (const run of message.runs) {
    for (let i = 0; i < run.count; i++) {
      const slot = run.epoch === env.epoch && run.token > 0 ? ring.slotOf(run.offset + i) : -1;
      const named = slot >= 0 && ring.token[slot] === run.token + i;
      const outcome = named ? extendSlot(ledger, slot, message.extendMs, env) : "lost";
      if (outcome === "lost") addLost(lostRuns, run, i);
      changed ||= outcome === "revived";
    }
  }
  return { lost: lostRuns, changed };
}

function extendSlot(ledger: LeaseLedger, slot: number, extendMs: number, env: Env): "extended" | "revived" | "lost" {
  const { ring } = ledger;
  const until = env.mono + extendMs;
  if (ring.state[slot] === leaseState.leased) {
    ledger.extend(ring.owner[slot], slot, until);
    return "extended";
  }
  return ledger.isHeld(slot) && ledger.revive(ring.owner[slot], slot, until) ? "revived" : "lost";
}

/**
 * The places of the events of this id, of which a publisher may have given one to several. A parsed id counts only if the record that it
 * points to has that id.
 */
function slotsOfId({ ring }: LeaseLedger, partition: number, id: string): readonly number[] {
  const parts = parseId(id);
  if (parts !== undefined && parts.partition === partition) {
    const slot = ring.slotOf(parts.offset);
    if (slot >= 0 && ring.storedAt[slot] === parts.storedAt && ring.salt[slot] === parts.salt) return [slot];
  }
  return ring
    .find(id)
    .map((offset) => ring.slotOf(offset))
    .filter((slot) => slot >= 0);
}

/** What a request without a lease means: all of them that the member holds. */
function heldBy(ledger: LeaseLedger, slots: readonly number[], member: number): readonly number[] {
  return slots.filter((slot) => ledger.ring.holder[slot] === member && ledger.isHeld(slot));
}

/** The one that the lease is on, or was the last one on. */
function leasedAs(ledger: LeaseLedger, slots: readonly number[], lease: string, env: Env): number | undefined {
  return slots.find((slot) => names(ledger, slot, lease, env));
}

function names(ledger: LeaseLedger, slot: number, text: string, env: Env): boolean {
  const lease = parseLease(text);
  return lease !== undefined && lease.epoch === env.epoch && lease.token > 0 && lease.token === ledger.ring.token[slot];
}

function reasonOf(reason: string | undefined): string {
  return reason === undefined || reason === "" ? endReasons.nack : boundReason(reason);
}

/** A run that grows in place: one frame may name 10,000 leases that are all lost. */
type LostRun = { -readonly [Name in keyof LeaseRun]: LeaseRun[Name] };

function addLost(runs: LostRun[], run: LeaseRun, index: number): void {
  const offset = run.offset + index;
  const token = run.token + index;
  const last = runs[runs.length - 1];
  if (
    last !== undefined &&
    last.epoch === run.epoch &&
    last.offset + last.count === offset &&
    last.token + last.count === token
  ) {
    last.count++;
  } else {
    runs.push({ offset, count: 1, epoch: run.epoch, token });
  }
}
