// What one member says of its leases. Acks of one turn of the event loop travel together: consecutive ones as a run, all of them as one
// SETTLE. What is refused for now is said again, as long as the lease can still be ours.

import { encodeSettle, leaseRunBytes, type SettleRun, type SettleVerb, settleHeaderBytes } from "../protocol/batch.ts";
import { reasonCharsMax } from "../protocol/bounds.ts";
import { isFailure, isRetryable } from "../protocol/failure.ts";
import { backoffMs } from "./backoff.ts";
import { Bell } from "./bell.ts";
import type { ClientClock, Timer } from "./clock.ts";
import type { Answer, Connection, Ok } from "./connection.ts";
import { ConnectionError, LeaseLostError, type NarthexError, refused } from "./errors.ts";
import type { Details, Done, HeldEvent, Outcome } from "./held-event.ts";

/** A subscription on one connection. */
export interface Link {
  readonly connection: Connection;
  readonly handle: number;
}

/** Something that the node has to answer. `lost` are leases, by name, of those in a SETTLE that were over. */
interface Parcel {
  readonly send: (link: Link, answered: (answer: Answer) => void) => void;
  readonly done: (outcome: Outcome, lost: ReadonlySet<string> | undefined) => void;
  readonly since: number;
  tries: number;
  timer: Timer | undefined;
}

interface Gathered {
  readonly held: HeldEvent[];
  readonly done: Done[];
}

/** Leases in one frame. Each may need a run of its own. */
const leasesMax = 10_000;

export class Settler {
  /** How long a lease lasts. */
  leaseMs: number;
  readonly #clock: ClientClock;
  readonly #topic: string;
  readonly #group: string;
  #link: Link | undefined;
  readonly #gathered = new Map<string, Gathered>();
  readonly #parcels = new Set<Parcel>();
  #armed = false;
  readonly #changed = new Bell();

  constructor(options: { clock: ClientClock; topic: string; group: string; leaseMs: number }) {
    this.#clock = options.clock;
    this.#topic = options.topic;
    this.#group = options.group;
    this.leaseMs = options.leaseMs;
  }

  connected(link: Link): void {
    this.#link = link;
  }

  /** Ends all that is open with this; what comes later too, until the next `connected`. */
  cut(why: NarthexError): void {
    this.#link = undefined;
    const gathered = [...this.#gathered.values()];
    this.#gathered.clear();
    for (const { held, done } of gathered) held.forEach((one, i) => void done[i](one, why));
    for (const parcel of [...this.#parcels]) this.#end(parcel, why);
    this.#changed.ring();
  }

  /** Resolves when everything that was said is answered. */
  idle(): Promise<void> {
    return this.#changed.until(() => this.#parcels.size + this.#gathered.size === 0);
  }

  add(held: HeldEvent, verb: SettleVerb, { ms, reason }: Details, done: Done): void {
    if (reason === undefined) {
      this.#gather(held, verb, ms, done);
    } else {
      // SETTLE has no room for it.
      this.ask(
        () => ({
          op: "NACK",
          id: held.id,
          lease: held.lease,
          reason: reason.slice(0, reasonCharsMax),
          delay_ms: ms,
        }),
        (outcome) => done(held, outcome),
      );
    }
  }

  /** One frame of its own; its OK may say `stale`. */
  ask(frame: () => { readonly op: string; readonly [field: string]: unknown }, done: (outcome: Outcome) => void): void {
    const topic = this.#topic;
    const group = this.#group;
    this.#post(({ connection }, answered) => connection.ask({ ...frame(), topic, group }, answered), done);
  }

  // ---------------------------------------------------------------------------------------------------------------- inside

  #gather(held: HeldEvent, verb: SettleVerb, ms: number | undefined, done: Done): void {
    if (this.#link === undefined) {
      done(held, connectionLost());
      return;
    }
    const name = ms === undefined ? verb : `${verb} ${ms}`;
    let gathered = this.#gathered.get(name);
    if (gathered === undefined) {
      gathered = { held: [], done: [] };
      this.#gathered.set(name, gathered);
    }
    gathered.done.push(done);
    const room = Math.floor((this.#link.connection.maxFrame - settleHeaderBytes) / leaseRunBytes);
    if (gathered.held.push(held) >= Math.min(leasesMax, room)) this.#flush();
    if (this.#armed) return;
    this.#armed = true;
    this.#clock.soon(() => {
      this.#armed = false;
      this.#flush();
    });
  }

  #flush(): void {
    const all = [...this.#gathered];
    this.#gathered.clear();
    for (const [name, { held, done }] of all) {
      const [verb, ms] = name.split(" ") as [SettleVerb, string | undefined];
      const send: Parcel["send"] = ({ connection, handle }, answered) => {
        const runs = runsOf(held);
        connection.askBinary(
          (corr) => encodeSettle({ handle, corr, verb, runs, ...(ms === undefined ? {} : { ms: Number(ms) }) }),
          answered,
        );
      };
      this.#post(send, (outcome, lost) => {
        const over = leaseLost();
        held.forEach((one, i) => void done[i](one, lost?.has(leaseName(one)) ? over : outcome));
        // The parcel may be held for a while by tables that its question was in; the events need not.
        held.length = 0;
        done.length = 0;
      });
    }
  }

  #post(send: Parcel["send"], done: Parcel["done"]): void {
    const parcel: Parcel = { send, done, since: this.#clock.mono(), tries: 0, timer: undefined };
    this.#parcels.add(parcel);
    this.#try(parcel);
  }

  #try(parcel: Parcel): void {
    parcel.timer = undefined;
    if (this.#link === undefined) this.#end(parcel, connectionLost());
    else parcel.send(this.#link, (answer) => this.#answered(parcel, answer));
  }

  #answered(parcel: Parcel, answer: Answer): void {
    // It was cut off before.
    if (!this.#parcels.has(parcel)) return;
    if (answer === "lost") {
      this.#end(parcel, connectionLost());
    } else if (!isFailure(answer)) {
      const { stale, lost } = answer as Ok;
      this.#end(parcel, stale === true ? "stale" : "ok", lost === undefined ? undefined : namesOf(lost as SettleRun[]));
    } else if (isRetryable(answer) && this.#clock.mono() - parcel.since < 2 * this.leaseMs) {
      const pause = backoffMs(this.#clock, parcel.tries++, answer.retry_after_ms);
      parcel.timer = this.#clock.after(pause, () => this.#try(parcel));
    } else {
      this.#end(parcel, refused(answer));
    }
  }

  #end(parcel: Parcel, outcome: Outcome, lost?: ReadonlySet<string>): void {
    this.#parcels.delete(parcel);
    parcel.timer?.cancel();
    parcel.done(outcome, lost);
    this.#changed.ring();
  }
}

export function connectionLost(): ConnectionError {
  return new ConnectionError("connection_lost", "the connection was lost");
}

export function leaseLost(): LeaseLostError {
  return new LeaseLostError("lease_lost", "the lease was over");
}

/** Made when they are sent: a lease may have been replaced by then. */
function runsOf(list: readonly HeldEvent[]): SettleRun[] {
  const runs: { -readonly [Name in keyof SettleRun]: SettleRun[Name] }[] = [];
  for (const { partition, offset, epoch, token } of [...list].sort(byPosition)) {
    const last = runs[runs.length - 1];
    if (
      last !== undefined &&
      last.partition === partition &&
      last.epoch === epoch &&
      last.offset + last.count === offset &&
      last.token + last.count === token
    ) {
      last.count++;
    } else {
      runs.push({ partition, offset, count: 1, epoch, token });
    }
  }
  return runs;
}

function byPosition(a: HeldEvent, b: HeldEvent): number {
  return a.partition - b.partition || a.offset - b.offset;
}

function leaseName({ partition, lease }: HeldEvent): string {
  return `${partition}/${lease}`;
}

function namesOf(runs: readonly SettleRun[]): Set<string> {
  const names = new Set<string>();
  for (const { partition, epoch, token, count } of runs) {
    for (let i = 0; i < count; i++) names.add(`${partition}/${epoch}-${token + i}`);
  }
  return names;
}
