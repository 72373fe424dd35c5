// One group on one partition: hands out events as leases, takes acks, and keeps the cursor. This file is the conversation: joins
// and leaves, credits, questions about the cursor, timers, what is persisted. Who gets what is decided in lease-dispatch.ts, the
// books are in lease-ledger.ts, acks in lease-settling.ts, the way to the dead letters in burial.ts.
//
// The group exists once it has options; without them the cell answers and stops.

import { eventId } from "../protocol/event.ts";
import { type Failure, failure } from "../protocol/failure.ts";
import { partitionOf } from "../protocol/stream.ts";
import { Burial } from "./burial.ts";
import { decodeCursor, encodeCursor } from "./cursor.ts";
import type { Actor, Effect, Env, Notice, Placed, Put, Ref, Sample, Shelf } from "./effects.ts";
import { entryBytes, entryKeys, entryValue } from "./entries.ts";
import { makeOptions, mergeOptions, sameFilter, sameOptions } from "./group-options.ts";
import { LeaseDispatch } from "./lease-dispatch.ts";
import { eventFacts, groupFacts, type TableParts } from "./lease-explain.ts";
import { checkLedger } from "./lease-invariant.ts";
import { LeaseLedger } from "./lease-ledger.ts";
import { leaseState } from "./lease-ring.ts";
import { leaseSamples } from "./lease-samples.ts";
import { extendEntry, extendRuns, settleEntries, settleRuns } from "./lease-settling.ts";
import { type Member, Members } from "./members.ts";
import type { Answer, CursorState, GroupOptions, Message, MessageOf, Start, TopicRecord } from "./messages.ts";
import { OrphanTableActor } from "./orphan-table.ts";

/** An ephemeral group that a restart left without members is kept so long for them to come back. */
const rejoinMs = 30_000;
const deleted = failure("unknown_topic", "the group or its topic was deleted");

/** What waits for the store. */
type Pending =
  | { readonly kind: "join"; readonly ref: Ref; readonly message: MessageOf<"join"> }
  | { readonly kind: "seek"; readonly ref: Ref }
  | { readonly kind: "cursor"; readonly ref: Ref; readonly state: CursorState };

export class LeaseTableActor implements Actor {
  readonly follows: number;
  private readonly group: string;
  private readonly shelf: Shelf;
  private readonly record: TopicRecord;
  private readonly members = new Members();
  private readonly ledger: LeaseLedger;
  private readonly dispatch: LeaseDispatch;
  private readonly burial: Burial;
  private readonly pending = new Map<number, Pending>();
  private options: GroupOptions | undefined;
  private optionsChanged = false;
  private ephemeralUntil: number | undefined;
  /** The last member of an ephemeral group has left. */
  private abandoned = false;
  private lastTag = 0;
  private wakeAt: number | undefined;
  /** What the message in process asks for. */
  private effects: Effect[] = [];
  private persists: "no" | "later" | "soon" = "no";

  static start(options: { stream: number; group: string; shelf: Shelf; env: Env }): {
    actor: LeaseTableActor | OrphanTableActor;
    effects: readonly Effect[];
  } {
    const { stream, group, shelf, env } = options;
    const entry = shelf.entry(entryKeys.partition(stream));
    if (entry === undefined) return { actor: new OrphanTableActor(stream, group), effects: [] };
    const actor = new LeaseTableActor({ stream, group, shelf, env, record: entryValue<TopicRecord>(entry) });
    return { actor, effects: actor.conclude(env, true) };
  }

  private constructor(options: { stream: number; group: string; shelf: Shelf; env: Env; record: TopicRecord }) {
    const { stream, group, shelf, env, record } = options;
    this.follows = stream;
    this.group = group;
    this.shelf = shelf;
    this.record = record;
    const stored = shelf.entry(entryKeys.group(stream, group));
    this.options = stored === undefined ? undefined : entryValue<GroupOptions>(stored);
    const nextTag = () => ++this.lastTag;
    const { members } = this;
    this.ledger = new LeaseLedger({ members, unsettledMax: shelf.limits.unsettledMax, policy: this.policy() });
    const { ledger } = this;
    this.dispatch = new LeaseDispatch({ stream, topic: record.name, group, ledger, members, nextTag });
    this.dispatch.setOptions(this.options);
    this.burial = new Burial({ stream, source: record, group, shelf, ledger, nextTag });
    const head = this.head();
    this.dispatch.end = head.end;
    if (this.options === undefined) return;
    const cursor = shelf.entry(entryKeys.cursor(stream, group));
    if (cursor === undefined) throw new Error(`group ${group} on stream ${stream} has options and no cursor`);
    ledger.restore(decodeCursor(cursor, env.wall), env.mono);
    this.trimmed(head.start, env);
    if (this.options.ephemeral) this.ephemeralUntil = env.mono + rejoinMs;
  }

  receive(message: Message | Notice, ref: Ref, env: Env): readonly Effect[] {
    this.handle(message, ref, env);
    return this.conclude(env);
  }

  persist(_placed: readonly Placed[], env: Env): readonly Put[] {
    const groupKey = entryKeys.group(this.follows, this.group);
    const cursorKey = entryKeys.cursor(this.follows, this.group);
    if (this.options === undefined) {
      return [
        [groupKey, null],
        [cursorKey, null],
      ];
    }
    const { floor, settled, again } = this.ledger;
    again.limbo.written();
    const attempted = again.attempted(env.mono);
    const puts: Put[] = [[cursorKey, encodeCursor({ floor, settled, attempted, reasons: again.reasons }, env.wall)]];
    if (this.optionsChanged) puts.push([groupKey, entryBytes(this.options)]);
    this.optionsChanged = false;
    return puts;
  }

  stats(env: Env): readonly Sample[] {
    if (this.options === undefined) return [];
    const labels = { topic: this.record.name, group: this.group, partition: String(partitionOf(this.follows)) };
    return leaseSamples(this.ledger, this.members.size, this.dispatch.end, labels, env.mono);
  }

  /** Throws when the state contradicts itself. */
  check(): void {
    checkLedger(this.ledger, this.members, this.shelf.limits.unsettledMax);
    if (this.ledger.floor > this.dispatch.end) throw new Error("the floor is beyond the end");
  }

  // ------------------------------------------------------------------------------------------------------------ messages

  private handle(message: Message | Notice, ref: Ref, env: Env): void {
    switch (message.type) {
      case "join":
        this.join(message, ref, env);
        return;
      case "leave":
        this.leave(message, ref, env);
        return;
      case "grant":
        this.members.grant(message);
        this.reply(ref, null);
        return;
      case "recall":
        this.members.recall(message);
        this.reply(ref, null);
        return;
      case "flow":
        this.knownOf(this.members.flow(message), env);
        this.reply(ref, null);
        return;
      case "handed":
        this.knownOf(this.members.handed(message), env);
        this.reply(ref, null);
        return;
      case "settle": {
        const { results, changed } = settleEntries(this.ledger, partitionOf(this.follows), message, env);
        if (changed) this.save();
        // Held also when nothing changed: what was settled before may be in the commit under way.
        this.reply(ref, { results }, true);
        return;
      }
      case "settleRuns": {
        const { lost, changed } = settleRuns(this.ledger, message, env);
        if (changed) this.save();
        this.reply(ref, { lost }, true);
        return;
      }
      case "extend": {
        const outcome = extendEntry(this.ledger, partitionOf(this.follows), message, env);
        if ("changed" in outcome && outcome.changed) this.save();
        this.reply(ref, "code" in outcome ? outcome : null);
        return;
      }
      case "extendRuns": {
        const { lost, changed } = extendRuns(this.ledger, message, env);
        if (changed) this.save();
        this.reply(ref, { lost });
        return;
      }
      case "cursor":
        this.cursor(ref);
        return;
      case "seek":
        if (message.to.kind === "ts") this.find(message.to.ts, { kind: "seek", ref });
        else this.seek(this.positionOf(message.to), ref, env);
        return;
      case "explain":
        this.reply(ref, groupFacts(this.parts(), env));
        return;
      case "history":
        this.reply(ref, eventFacts(this.parts(), message.offset, env));
        return;
      case "dropGroup":
        this.remove(deleted, env);
        this.reply(ref, null, true);
        return;
      case "advanced":
        this.dispatch.end = Math.max(this.dispatch.end, message.end);
        return;
      case "trimmed":
        this.trimmed(message.start, env);
        return;
      case "blocks":
        this.blocks(message, env);
        return;
      case "found":
        this.found(message.tag, message.offset, env);
        return;
      case "readFailed":
        this.readFailed(message.tag, message.failure, env);
        return;
      case "answer":
        this.burial.answer(message.tag, message.answer, env);
        return;
      case "wake":
        this.wakeAt = undefined;
        if (this.ledger.tick(env.mono)) this.save();
        return;
      case "persisted":
        this.ledger.again.persisted(env.mono);
        return;
      case "committed":
        return;
      default:
        throw new Error(`a lease table does not take ${message.type}`);
    }
  }

  // ------------------------------------------------------------------------------------------------------- coming, going

  private join(message: MessageOf<"join">, ref: Ref, env: Env): void {
    const { start } = message;
    if (this.options !== undefined || start.kind !== "ts") {
      this.enter(message, this.positionOf(start), ref, env);
      return;
    }
    this.find(start.ts, { kind: "join", ref, message });
  }

  private enter(message: MessageOf<"join">, position: number, ref: Ref, env: Env): void {
    const before = this.members.get(message.member);
    const resumed = this.options !== undefined;
    const options = resumed || this.isOpen() ? this.optionsFor(message, before !== undefined) : deleted;
    if ("code" in options) {
      this.reply(ref, options);
      return;
    }
    if (before !== undefined && this.ledger.leave(before, before.written, "unsubscribe", env.mono)) this.save();
    if (!resumed) this.ledger.moveTo(position, env.mono);
    this.setOptions(options, env);
    this.members.add(message);
    this.ephemeralUntil = undefined;
    this.abandoned = false;
    this.reply(ref, { resumed, floor: this.ledger.floor, end: this.dispatch.end, options }, true);
  }

  private optionsFor(message: MessageOf<"join">, again: boolean): GroupOptions | Failure {
    if (this.options === undefined) return makeOptions(message.options, this.follows, this.shelf);
    if (message.rejoin) return this.options;
    return mergeOptions(this.options, message.options, this.members.size > (again ? 1 : 0));
  }

  private setOptions(options: GroupOptions, env: Env): void {
    const before = this.options;
    if (before !== undefined && sameOptions(before, options)) return;
    this.options = options;
    this.optionsChanged = true;
    this.save("soon");
    this.dispatch.setOptions(options);
    // What was set aside was so under the old rules: every event above the floor is looked at again.
    if (before !== undefined && (before.ordering !== options.ordering || !sameFilter(before.filter, options.filter))) {
      this.ledger.rewind();
      this.forgetReads();
    }
    this.ledger.again.setPolicy(this.policy(), env.mono);
  }

  private leave(message: MessageOf<"leave">, ref: Ref, env: Env): void {
    for (const [tag, pending] of this.pending) {
      if (pending.kind !== "join" || pending.message.member !== message.member) continue;
      this.pending.delete(tag);
      this.reply(pending.ref, failure("not_subscribed", "the member left before it had joined"));
    }
    const member = this.members.get(message.member);
    if (member !== undefined) {
      if (this.ledger.leave(member, message.written, message.cause, env.mono)) this.save();
      this.abandoned = this.options?.ephemeral === true && message.cause !== "shutdown";
    }
    this.reply(ref, null, true);
  }

  /** Something is known of what was delivered to a member. */
  private knownOf(member: Member | undefined, env: Env): void {
    if (member !== undefined && this.ledger.endOverdue(member, env.mono)) this.save();
  }

  /** The end of the group, durably. */
  private remove(reason: Failure, env: Env): void {
    if (this.options === undefined) return;
    for (const { number } of this.members.all()) {
      this.effects.push({
        type: "signal",
        signal: { type: "ended", member: number, stream: this.follows, failure: reason },
      });
    }
    this.ledger.moveTo(0, env.mono);
    this.members.clear();
    this.options = undefined;
    this.dispatch.setOptions(undefined);
    this.forgetReads();
    this.save("soon");
  }

  // ------------------------------------------------------------------------------------------------------------- cursor

  /** Held: what somebody has read of a cursor does not fall back when the node is killed before it was stored. */
  private cursor(ref: Ref): void {
    const state = this.state();
    if (!state.exists || state.floor <= state.start) {
      this.reply(ref, state, true);
      return;
    }
    const tag = ++this.lastTag;
    this.pending.set(tag, { kind: "cursor", ref, state });
    const { floor } = state;
    this.effects.push({ type: "read", stream: this.follows, from: floor - 1, to: floor, bytesMax: 1, tag });
  }

  /** A group that is not there yet is made by it, so that a position can be set before anyone subscribes. */
  private seek(position: number, ref: Ref, env: Env): void {
    const options = this.options ?? (this.isOpen() ? makeOptions({}, this.follows, this.shelf) : deleted);
    if ("code" in options) {
      this.reply(ref, options);
      return;
    }
    this.ledger.moveTo(position, env.mono);
    this.forgetReads();
    this.setOptions(options, env);
    this.save("soon");
    this.reply(ref, this.state(), true);
  }

  private state(): CursorState {
    const { ledger, members } = this;
    const { start, end: stored } = this.head();
    const end = Math.max(stored, this.dispatch.end);
    const exists = this.options !== undefined;
    const { counts } = ledger.ring;
    return {
      exists,
      floor: ledger.floor,
      ranges: [...ledger.settled],
      start,
      end,
      lag: exists ? end - ledger.floor - ledger.settled.size : 0,
      leased: counts[leaseState.leased],
      waiting: counts[leaseState.waiting] + counts[leaseState.blocked] + counts[leaseState.dying],
      members: members.size,
    };
  }

  private trimmed(start: number, env: Env): void {
    if (this.options === undefined || start <= this.ledger.floor) return;
    this.ledger.trim(start, env.mono);
    this.dispatch.end = Math.max(this.dispatch.end, start);
    this.save();
  }

  // ------------------------------------------------------------------------------------------------------ from the store

  private blocks(notice: Extract<Notice, { type: "blocks" }>, env: Env): void {
    const { tag, blocks, next } = notice;
    if (this.dispatch.blocks(tag, blocks, next, env, this.effects)) return;
    if (this.burial.blocks(tag, blocks, next, env, this.effects)) {
      this.save();
      return;
    }
    const pending = this.pending.get(tag);
    if (pending?.kind !== "cursor") return;
    this.pending.delete(tag);
    const { ref, state } = pending;
    const [block] = blocks;
    const index = state.floor - 1 - (block?.firstOffset ?? state.floor);
    if (index < 0 || index >= block.count) {
      this.reply(ref, state, true);
      return;
    }
    this.reply(ref, { ...state, lastId: eventId(block, index), lastTs: block.ts(index) }, true);
  }

  private find(ts: number, pending: Pending): void {
    const tag = ++this.lastTag;
    this.pending.set(tag, pending);
    this.effects.push({ type: "findTs", stream: this.follows, ts, tag });
  }

  private found(tag: number, offset: number | undefined, env: Env): void {
    const pending = this.pending.get(tag);
    if (pending === undefined) return;
    this.pending.delete(tag);
    const position = this.positionOf(offset === undefined ? { kind: "latest" } : { kind: "offset", offset });
    if (pending.kind === "join") this.enter(pending.message, position, pending.ref, env);
    else if (pending.kind === "seek") this.seek(position, pending.ref, env);
  }

  private readFailed(tag: number, reason: Failure, env: Env): void {
    if (this.dispatch.failed(tag, env) || this.burial.failed(tag, env)) return;
    const pending = this.pending.get(tag);
    if (pending === undefined) return;
    this.pending.delete(tag);
    if (pending.kind === "cursor") this.reply(pending.ref, pending.state, true);
    else this.reply(pending.ref, reason);
  }

  // -------------------------------------------------------------------------------------------------------------- inside

  /** What follows from the new state: deliveries, credits to ask for or give back, the timer, the end of the cell. */
  private conclude(env: Env, starting = false): readonly Effect[] {
    const { effects } = this;
    if (this.ephemeralUntil !== undefined && env.mono >= this.ephemeralUntil) {
      this.ephemeralUntil = undefined;
      this.abandoned = true;
    }
    if (this.abandoned && this.members.size === 0 && !this.joining) {
      this.remove(failure("not_subscribed", "the group was ephemeral"), env);
    }
    this.burial.request(env, effects);
    this.members.release(this.follows, effects);
    this.members.askHanded(this.follows, effects);
    this.dispatch.request(env, effects);
    if (this.dispatch.moved) this.save();
    this.dispatch.moved = false;
    this.armTimer();
    this.askToPersist();
    if (this.options === undefined && this.pending.size === 0 && !starting) effects.push({ type: "stop" });
    this.effects = [];
    return effects;
  }

  private askToPersist(): void {
    const { limbo } = this.ledger.again;
    const tell = limbo.unwritten;
    // Someone could have it again at once, if only the store knew of its last attempt.
    if (tell && limbo.waiting.size > 0 && this.members.anyFree) this.save("soon");
    if (this.persists === "no") return;
    const soon = this.persists === "soon";
    this.effects.push(tell ? { type: "persist", soon, tell } : { type: "persist", soon });
    this.persists = "no";
  }

  private armTimer(): void {
    const at = Math.min(
      this.ledger.deadlines.earliest(),
      this.ledger.again.backoffs.earliest(),
      this.dispatch.retryAt ?? Number.POSITIVE_INFINITY,
      this.burial.retryAt ?? Number.POSITIVE_INFINITY,
      this.ephemeralUntil ?? Number.POSITIVE_INFINITY,
    );
    // A timer that rings too early costs one look; setting it anew with every ack would cost more.
    if (at >= (this.wakeAt ?? Number.POSITIVE_INFINITY)) return;
    this.wakeAt = at;
    this.effects.push({ type: "wake", at });
  }

  private parts(): TableParts {
    const { ledger, members, dispatch, burial, options } = this;
    return { ledger, members, dispatch, burial, options, partition: partitionOf(this.follows), head: this.head() };
  }

  private get joining(): boolean {
    for (const { kind } of this.pending.values()) if (kind === "join") return true;
    return false;
  }

  private forgetReads(): void {
    this.dispatch.reset();
    this.burial.reset();
  }

  private policy() {
    return {
      maxAttempts: this.options?.maxAttempts ?? this.shelf.limits.maxAttempts,
      backoffMs: this.options?.backoffMs ?? 0,
      immortal: this.record.deadLetterOf !== undefined,
    };
  }

  private positionOf(start: Start): number {
    const head = this.head();
    const end = Math.max(head.end, this.dispatch.end);
    switch (start.kind) {
      case "latest":
        return end;
      case "earliest":
        return head.start;
      case "offset":
        return Math.min(Math.max(start.offset, head.start), end);
      case "ts":
        // Only asked of a group that has a cursor, where the start does not count.
        return this.ledger.floor;
      default:
        return start satisfies never;
    }
  }

  /** A group that is made behind the end of its partition would be there for ever. */
  private isOpen(): boolean {
    return this.shelf.entry(entryKeys.partition(this.follows)) !== undefined;
  }

  private head(): { readonly start: number; readonly end: number } {
    return this.shelf.head(this.follows) ?? { start: 0, end: 0 };
  }

  private save(when: "later" | "soon" = "later"): void {
    if (this.persists !== "soon") this.persists = when;
  }

  private reply(to: Ref, value: Answer, hold = false): void {
    if (to !== 0) this.effects.push(hold ? { type: "reply", to, value, hold } : { type: "reply", to, value });
  }
}
