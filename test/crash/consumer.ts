// One consuming connection, a member of one or two groups, that does everything a consumer may do: most events it acks, some it nacks,
// keeps, gives back or never answers; it pauses, leaves, comes back, or goes without a word.

import { pause } from "../support/deadline.ts";
import type { Dice } from "../support/dice.ts";
import type { EventFrame, Frame } from "../support/plain-client.ts";
import type { Held } from "./group-facts.ts";
import type { GroupModel } from "./group-model.ts";
import type { Journal } from "./journal.ts";
import { type Answer, Wire } from "./wire.ts";

interface Seat {
  readonly group: GroupModel;
  status: "leaving" | "out" | "joining" | "in" | "paused" | "pausing";
  handle: number;
  /** By the id of the event, the latest lease. */
  readonly holding: Map<string, Held>;
}

/** Codes of an ACK or NACK after which it may have happened all the same. */
const unsure: ReadonlySet<string> = new Set(["unavailable"]);

export class Consumer {
  readonly closed: Promise<void>;
  private readonly journal: Journal;
  private readonly dice: Dice;
  private readonly seats = new Map<string, Seat>();
  private wire: Wire | undefined;
  private gone: () => void = () => undefined;

  private constructor(parts: { journal: Journal; dice: Dice }) {
    this.journal = parts.journal;
    this.dice = parts.dice;
    this.closed = new Promise((resolve) => {
      this.gone = resolve;
    });
  }

  /** Undefined if the node was gone before. */
  static async open(
    parts: { journal: Journal; dice: Dice },
    { url, batches, groups }: { url: string; batches: boolean; groups: readonly GroupModel[] },
  ): Promise<Consumer | undefined> {
    const consumer = new Consumer(parts);
    const wire = await Wire.connect(
      url,
      {
        event: (frame) => consumer.event(frame),
        ended: (frame) => consumer.ended(frame),
        closed: () => consumer.gone(),
      },
      batches,
    );
    if (wire === undefined) return undefined;
    consumer.wire = wire;
    for (const group of groups) {
      consumer.seats.set(group.name, { group, status: "out", handle: 0, holding: new Map() });
    }
    return consumer;
  }

  get name(): string {
    return this.wire?.name ?? "nobody";
  }

  get live(): boolean {
    return this.wire?.open ?? false;
  }

  get groups(): readonly GroupModel[] {
    return [...this.seats.values()].map(({ group }) => group);
  }

  // ------------------------------------------------------------------------------------------------------ coming, going

  /** Joins what it is not a member of, and may be. */
  async tend(): Promise<void> {
    for (const { group } of this.seats.values()) await this.join(group);
  }

  private async join(group: GroupModel): Promise<void> {
    const seat = this.seats.get(group.name)!;
    if (seat.status !== "out" || group.closed || this.wire === undefined) return;
    seat.status = "joining";
    const known = group.known();
    const { maxAttempts, backoffMs, ackTimeoutMs, ordering, filter } = group.plan;
    const opts = { from: "earliest", maxAttempts, backoffMs, ackTimeoutMs, maxInflight: 3 + this.dice.below(30) };
    const rules = { ...(ordering === undefined ? {} : { ordering }), ...(filter === undefined ? {} : { filter }) };
    const { wire } = this;
    await new Promise<void>((resolve) =>
      wire.send(
        { op: "SUBSCRIBE", topic: group.log.name, group: group.plan.name, opts: { ...opts, ...rules } },
        (answer) => {
          this.journal.note(undefined, `${this.name}: SUBSCRIBE ${group.name}: ${JSON.stringify(answer)}`);
          seat.status = answer?.op === "OK" ? "in" : "out";
          if (answer?.op === "OK") {
            if (wire.batches) {
              seat.handle = answer.handle as number;
              wire.nameHandle(seat.handle, group.log.name, group.plan.name);
            }
            group.subscribed(answer.resumed as boolean, answer.position as string, known);
          } else if (answer !== undefined) this.refused("SUBSCRIBE", answer, ["unavailable", "shutting_down"]);
          resolve();
        },
      ),
    );
  }

  /** Is surely no member of it after this. */
  async away(group: GroupModel): Promise<void> {
    const seat = this.seats.get(group.name);
    while (seat !== undefined && seat.status !== "out" && this.live) {
      if (seat.status === "joining" || seat.status === "leaving") await pause(2);
      else await this.leave(group);
    }
  }

  /** Resolves when the OK is here: nothing of the group comes after it. */
  private async leave(group: GroupModel): Promise<void> {
    const seat = this.seats.get(group.name);
    if (seat === undefined || this.wire === undefined || !(seat.status === "in" || isPaused(seat))) return;
    seat.status = "leaving";
    // Others may get its events before it hears the OK.
    group.left(this.name, "left");
    const { wire } = this;
    await new Promise<void>((resolve) =>
      wire.send({ op: "UNSUBSCRIBE", topic: group.log.name, group: group.plan.name }, (answer) => {
        if (answer?.op === "OK") {
          seat.status = "out";
          seat.holding.clear();
          this.journal.count("UNSUBSCRIBE confirmed");
        } else if (answer !== undefined) this.refused("UNSUBSCRIBE", answer, ["unavailable"]);
        resolve();
      }),
    );
  }

  vanish(): void {
    if (!this.live) return;
    for (const { group } of this.seats.values()) group.left(this.name, "vanished");
    this.journal.note(undefined, `${this.name} goes without a word`);
    this.journal.count("connections dropped by the client");
    this.wire?.drop();
  }

  /** One of the things that a consumer does now and then. */
  async stir(): Promise<void> {
    const seat = this.dice.pick([...this.seats.values()]);
    const { group } = seat;
    if (this.dice.chance(40)) {
      await this.leave(group);
      await pause(this.dice.below(40));
      await this.join(group);
      return;
    }
    if (seat.status !== "in") return;
    const steer = (op: string) => ({ op, topic: group.log.name, group: group.plan.name });
    seat.status = "pausing";
    await new Promise<void>((resolve) =>
      this.wire?.send(steer("PAUSE"), (answer) => {
        if (answer?.op === "OK" && seat.status === "pausing") {
          seat.status = "paused";
          this.journal.count("PAUSE confirmed");
        }
        resolve();
      }),
    );
    await pause(this.dice.below(60));
    if (!isPaused(seat)) return;
    seat.status = "in";
    await this.wire?.request(steer("RESUME"));
  }

  // ------------------------------------------------------------------------------------------------------------ events

  private event(frame: EventFrame): void {
    const seat = this.seats.get(`${frame.topic}/${frame.group}`);
    if (seat === undefined) this.journal.fail(`${this.name}: an EVENT of ${frame.topic} for ${frame.group}`);
    const { n } = frame.event.payload as { n: number };
    if (seat.status === "paused" || seat.status === "out" || seat.status === "joining") {
      this.journal.fail(`${this.name} is ${seat.status} and gets ${seat.group.name} ${frame.event.offset}`, n);
    }
    const held = seat.group.delivered(frame, this.name);
    seat.holding.set(frame.event.id, held);
    if (seat.status === "leaving") seat.group.left(this.name, "left");
    const wait = this.dice.chance(50) ? 0 : this.dice.below(40);
    if (wait === 0) this.react(seat, frame, held, n);
    else setTimeout(() => this.react(seat, frame, held, n), wait);
  }

  private react(seat: Seat, frame: EventFrame, held: Held, n: number): void {
    if (!this.live || seat.status === "out" || seat.status === "leaving") return;
    if (seat.group.diligent) {
      this.ack(seat, frame, held, true);
      return;
    }
    // Nobody gets these done.
    const poison = n % 31 === 0;
    const what = poison ? 75 + this.dice.below(10) : this.dice.below(100);
    if (what < 68) this.ack(seat, frame, held, true);
    else if (what < 75) this.ack(seat, frame, held, this.wire?.batches ?? false);
    else if (what < 86) this.nack(seat, frame, held, what % 2 === 0);
    else if (what < 91) this.extend(seat, frame, held);
    else if (what < 94 && this.wire?.batches) this.release(seat, frame, held);
    // Else nothing: the lease runs out, or ends with the connection.
  }

  private ack(seat: Seat, frame: EventFrame, held: Held, named: boolean): void {
    const { group } = seat;
    group.ackSent(held, named ? "named" : "by its id");
    this.settle("ACK", seat, frame, held, named, {}, (by, outcome) => group.ackAnswered(held, by, outcome));
  }

  private nack(seat: Seat, frame: EventFrame, held: Held, named: boolean): void {
    const { group } = seat;
    const reason = this.wire?.batches ? "nacked without a reason" : `no ${this.dice.below(1000)}`;
    group.nackSent(held, reason);
    const delay = this.dice.chance(50) ? { delay_ms: this.dice.below(120) } : {};
    this.settle("NACK", seat, frame, held, named, { reason, ...delay }, (by, outcome) =>
      group.nackAnswered(held, by, outcome),
    );
  }

  /** The lease that counts is the one that this member held when it was answered, if it named none. */
  private settle(
    op: "ACK" | "NACK",
    seat: Seat,
    frame: EventFrame,
    held: Held,
    named: boolean,
    more: { reason?: string; delay_ms?: number },
    answered: (by: Held, outcome: "ok" | "nothing" | "unknown") => void,
  ): void {
    const { topic, group, event, ctx } = frame;
    const hear = (answer: Answer) => {
      const by = named ? held : (seat.holding.get(event.id) ?? held);
      if (answer === undefined) answered(by, "unknown");
      else if (answer.op === "OK") {
        const lost = Array.isArray(answer.lost) && answer.lost.length > 0;
        // Stale under its own name: this very lease had settled it.
        answered(by, lost || (answer.stale === true && (!named || op === "NACK")) ? "nothing" : "ok");
      } else answered(by, unsure.has(answer.code ?? "") ? "unknown" : this.refused(op, answer, settleCodes));
    };
    if (this.wire?.batches) {
      this.wire.settle(op === "ACK" ? "ack" : "nack", frame, seat.handle, more.delay_ms, hear);
      return;
    }
    const lease = named ? { lease: ctx.lease } : {};
    this.wire?.send({ op, topic, group, id: event.id, ...lease, ...more }, hear);
  }

  private extend(seat: Seat, frame: EventFrame, held: Held): void {
    const ms = 100 + this.dice.below(400);
    const { topic, group, event, ctx } = frame;
    seat.group.extending(held, ms);
    const hear = (answer: Answer) => {
      if (answer === undefined) return;
      this.journal.count(`MODACK: ${answer.op === "OK" ? "confirmed" : answer.code}`);
      // Then it acks in time, or too late.
      setTimeout(
        () => {
          if (this.live && seat.status !== "out" && seat.status !== "leaving") this.ack(seat, frame, held, true);
        },
        this.dice.below(2 * ms),
      );
    };
    if (this.wire?.batches) this.wire.settle("extend", frame, seat.handle, ms, hear);
    else this.wire?.send({ op: "MODACK", topic, group, id: event.id, lease: ctx.lease, extend_ms: ms }, hear);
  }

  private release(seat: Seat, frame: EventFrame, held: Held): void {
    seat.group.released(held);
    this.wire?.settle("release", frame, seat.handle, undefined, (answer) => {
      if (answer?.op === "OK") this.journal.count("releases answered");
    });
  }

  private ended(frame: Frame): void {
    this.journal.fail(`${this.name}: its subscription ended by itself: ${JSON.stringify(frame)}`);
  }

  private refused(op: string, answer: Frame, allowed: readonly string[]): "nothing" {
    const code = String(answer.code);
    this.journal.count(`${op} refused: ${code}`);
    if (!allowed.includes(code)) this.journal.fail(`${op} is refused: ${JSON.stringify(answer)}`);
    return "nothing";
  }
}

function isPaused({ status }: Seat): boolean {
  return status === "paused" || status === "pausing";
}

const settleCodes = ["lease_lost", "ack_failed", "unavailable", "not_subscribed"];
