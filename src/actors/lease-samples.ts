// The numbers of a lease table, for the operator.

import type { Histogram, Sample } from "./effects.ts";
import type { LeaseLedger } from "./lease-ledger.ts";
import { leaseState } from "./lease-ring.ts";

/** Samples with the same labels are added up over partitions; what must not be summed names its partition. */
export function leaseSamples(
  ledger: LeaseLedger,
  members: number,
  end: number,
  labels: { readonly topic: string; readonly group: string; readonly partition: string },
  now: number,
): readonly Sample[] {
  const { totals, ring } = ledger;
  const { counts } = ring;
  const samples: Record<string, number | Histogram> = {
    events_delivered_total: totals.delivered,
    events_acked_total: totals.acked,
    events_nacked_total: totals.nacked,
    events_redelivered_total: totals.redelivered,
    events_expired_total: totals.expired,
    events_dead_lettered_total: totals.deadLettered,
    events_filtered_total: totals.filtered,
    events_skipped_total: totals.skipped,
    ws_inflight: counts[leaseState.leased],
    group_lag: end - ledger.floor - ledger.settled.size,
    group_waiting: counts[leaseState.waiting] + counts[leaseState.blocked] + counts[leaseState.dying],
    // 1: so many events are unsettled that nothing new is delivered before some of them are.
    group_full: ledger.room <= 0 ? 1 : 0,
    delivery_latency_ms: ledger.latency.histogram(),
  };
  const { topic, group } = labels;
  return [
    ...Object.entries(samples).map(([name, value]) => ({ name, labels: { topic, group }, value })),
    { name: "group_members", labels, value: members },
    { name: "oldest_lease_ms", labels, value: oldestLeaseMs(ledger, now) },
  ];
}

function oldestLeaseMs(ledger: LeaseLedger, now: number): number {
  const { ring } = ledger;
  if (ring.counts[leaseState.leased] === 0) return 0;
  let oldest = now;
  for (const offset of ring.unsettledBelow(ring.next, ledger.floor)) {
    const slot = ring.slotOf(offset);
    if (ring.state[slot] === leaseState.leased) oldest = Math.min(oldest, ring.leasedAt[slot]);
  }
  return now - oldest;
}
