// ACK, NACK and MODACK on their way to the lease tables. What comes within a turn of the event loop for one table goes there in
// one message, and its results come back aligned.
//
// An id names its partition only if the node made it; publishers may bring ids of their own, also some that look like ours. So on
// a topic with several partitions what the named one does not hold (or no one is named) is asked of all others: the one that holds the
// lease decides.

import type { LeaseRun, SettleEntry, SettleResult } from "../actors/messages.ts";
import type { SettleBatch } from "../protocol/batch.ts";
import { type Failure, failure, isFailure } from "../protocol/failure.ts";
import { parseId } from "../protocol/ids.ts";
import type { Clock } from "../runtime/clock.ts";
import type { System } from "../runtime/system.ts";
import type { Subscription } from "./subscription.ts";

type Done = (result: SettleResult) => void;

/** Told when one request becomes several questions: so many more are under way until it is answered. */
type More = (asks: number) => void;

interface Gathered {
  readonly subscription: Subscription;
  readonly partition: number;
  readonly entries: SettleEntry[];
  readonly done: Done[];
}

export interface LostRun extends LeaseRun {
  readonly partition: number;
}

const gatheredMax = 1000;

export class Settling {
  private readonly system: System;
  private readonly clock: Clock;
  private gathered = new Map<Subscription, Gathered[]>();
  private armed = false;

  constructor(system: System, clock: Clock) {
    this.system = system;
    this.clock = clock;
  }

  settle(subscription: Subscription, entry: SettleEntry, more: More, done: Done): void {
    const at = (partition: number, answer: Done) => this.add(subscription, partition, entry, answer);
    this.ask(subscription, entry.id, at, more, done);
  }

  extend(
    subscription: Subscription,
    request: { readonly id: string; readonly extendMs: number; readonly lease?: string },
    more: More,
    done: (refused: Failure | null) => void,
  ): void {
    // An ACK that came before it must be there before it.
    this.flush();
    const at = (partition: number, answer: Done) => {
      const { address, member } = subscription.seats[partition];
      this.system.ask(address, { type: "extend", member, ...request }, answer);
    };
    this.ask(subscription, request.id, at, more, (result) => done(result === "stale" ? null : result));
  }

  /** A batch of leases by offset. The answer names those that were lost already. */
  runs(
    subscription: Subscription,
    { verb, ms, runs }: SettleBatch,
    done: (result: readonly LostRun[] | Failure) => void,
  ): void {
    this.flush();
    const byPartition = new Map<number, LeaseRun[]>();
    for (const { partition, ...run } of runs) {
      if (partition >= subscription.seats.length) {
        done(failure("bad_frame", `${subscription.topic} has no partition ${partition}`));
        return;
      }
      const list = byPartition.get(partition);
      if (list === undefined) byPartition.set(partition, [run]);
      else list.push(run);
    }
    const lost: LostRun[] = [];
    let refused: Failure | undefined;
    let open = byPartition.size;
    for (const [partition, list] of byPartition) {
      const { address, member } = subscription.seats[partition];
      const answered = (answer: { readonly lost: readonly LeaseRun[] } | Failure) => {
        if (isFailure(answer)) refused = answer;
        else for (const run of answer.lost) lost.push({ partition, ...run });
        if (--open === 0) done(refused ?? lost);
      };
      if (verb === "extend") {
        this.system.ask(address, { type: "extendRuns", member, extendMs: ms ?? 0, runs: list }, answered);
      } else {
        const delay = ms === undefined ? {} : { delayMs: ms };
        this.system.ask(address, { type: "settleRuns", member, verb, ...delay, runs: list }, answered);
      }
    }
  }

  /** Sends what was gathered: whatever is sent next must not overtake it. */
  flush(): void {
    const gathered = this.gathered;
    if (gathered.size === 0) return;
    this.gathered = new Map();
    for (const parts of gathered.values()) for (const part of parts) if (part !== undefined) this.send(part);
  }

  private ask(
    subscription: Subscription,
    id: string,
    at: (partition: number, answer: Done) => void,
    more: More,
    done: Done,
  ): void {
    const count = subscription.seats.length;
    if (count === 1) {
      at(0, done);
      return;
    }
    const named = parseId(id)?.partition;
    if (named === undefined || named >= count) {
      more(count - 1);
      askOthers(count, undefined, at, [], done);
      return;
    }
    at(named, (result) => {
      if (result === null || !isElsewhere(result)) {
        done(result);
        return;
      }
      more(count - 1);
      askOthers(count, named, at, [result], done);
    });
  }

  private add(subscription: Subscription, partition: number, entry: SettleEntry, done: Done): void {
    let parts = this.gathered.get(subscription);
    if (parts === undefined) {
      parts = [];
      this.gathered.set(subscription, parts);
    }
    parts[partition] ??= { subscription, partition, entries: [], done: [] };
    const part = parts[partition];
    part.entries.push(entry);
    part.done.push(done);
    if (part.entries.length >= gatheredMax) {
      delete parts[partition];
      this.send(part);
      return;
    }
    if (this.armed) return;
    this.armed = true;
    this.clock.soon(() => {
      this.armed = false;
      this.flush();
    });
  }

  private send({ subscription, partition, entries, done }: Gathered): void {
    const { address, member } = subscription.seats[partition];
    this.system.ask(address, { type: "settle", member, entries }, (answer) => {
      for (let i = 0; i < done.length; i++) {
        if (isFailure(answer)) done[i](answer);
        else done[i](answer.results === null ? null : answer.results[i]);
      }
    });
  }
}

/** The table has no such lease, so another may. Anything else a table says is no answer to that, also `internal`. */
function isElsewhere(result: SettleResult): boolean {
  return result === "stale" || (result !== null && (result.code === "lease_lost" || result.code === "unknown_id"));
}

function weight(result: SettleResult): number {
  if (!isElsewhere(result)) return 3;
  if (result === "stale") return 2;
  return result !== null && result.code === "lease_lost" ? 1 : 0;
}

/** Settled anywhere is settled; one that could not be asked may be the one; then whoever knows the event best. */
function askOthers(
  count: number,
  except: number | undefined,
  at: (partition: number, answer: Done) => void,
  before: readonly SettleResult[],
  done: Done,
): void {
  const results = [...before];
  for (let partition = 0; partition < count; partition++) {
    if (partition === except) continue;
    at(partition, (result) => {
      results.push(result);
      if (results.length < count) return;
      done(results.includes(null) ? null : (results.toSorted((a, b) => weight(b) - weight(a))[0] ?? null));
    });
  }
}
