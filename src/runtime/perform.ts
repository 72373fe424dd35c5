// Each effect of an actor and what is done about it, in the order in which the actor gave them.

import type { Effect, Notice } from "../actors/effects.ts";
import type { Address, Answer, Message } from "../actors/messages.ts";
import { failure } from "../protocol/failure.ts";
import { type ReadResult, type ShardStore, storeReason } from "../store/store.ts";
import type { Cell, Origin, Request } from "./cell.ts";
import type { Item } from "./envelope.ts";
import type { Gather } from "./gather.ts";

/** What it takes to perform effects that read. */
export interface Reader {
  readonly store: ShardStore;
  /** Put into the queue of this turn. */
  notify(cell: Cell, incarnation: number, notice: Notice): void;
  readTail(stream: number, range: { from: number; to: number; bytesMax: number }): ReadResult | undefined;
  /** Runs in a turn of its own, unless the shard has been closed since. */
  later(run: () => void): void;
}

/** What an open shard offers for performing effects. */
export interface Performer extends Reader {
  readonly shard: number;
  readonly gather: Gather;
  now(): number;
  post(item: Item): void;
  /** Put into the queue of this turn. */
  enqueue(name: string, request: Request): void;
  respond(origin: Origin | undefined, answer: Answer): void;
  /** A number for an ask that leaves the shard. */
  expect(cell: Cell, tag: number): number;
  setAlarm(cell: Cell, at: number | undefined): void;
  fill(cell: Cell): void;
  stop(cell: Cell): void;
}

export type ReadEffect = Extract<Effect, { type: "read" | "findTs" | "findId" | "latestOf" }>;

export function perform(shard: Performer, cell: Cell, effects: readonly Effect[]): void {
  for (const effect of effects) performOne(shard, cell, effect);
}

function performOne(shard: Performer, cell: Cell, effect: Effect): void {
  switch (effect.type) {
    case "reply":
      reply(shard, cell, effect);
      break;
    case "signal":
      shard.post({ type: "signal", signal: effect.signal });
      break;
    case "tell":
      send(shard, effect.to, effect.message, undefined);
      break;
    case "ask":
      send(shard, effect.to, effect.message, { cell, tag: effect.tag });
      break;
    case "append":
      if (!shard.gather.append(cell, effect)) shard.fill(cell);
      break;
    case "persist":
      shard.gather.persist(cell, { soon: effect.soon ?? false, tell: effect.tell ?? false, now: shard.now() });
      break;
    case "trim":
      shard.gather.trim(cell, [effect.stream, effect.start]);
      break;
    case "read":
    case "findTs":
    case "findId":
    case "latestOf":
      performRead(shard, cell, effect);
      break;
    case "wake":
      shard.setAlarm(cell, effect.at);
      break;
    case "stop":
      shard.stop(cell);
      break;
    default:
      effect satisfies never;
  }
}

export function performRead(shard: Reader, cell: Cell, effect: ReadEffect): void {
  switch (effect.type) {
    case "read":
      read(shard, cell, effect);
      break;
    case "findTs": {
      const found = shard.store.findTs(effect.stream, effect.ts);
      answerFrom(shard, cell, effect.tag, found, (offset) => ({ type: "found", tag: effect.tag, offset }));
      break;
    }
    case "findId": {
      const found = shard.store.findId(effect.stream, effect.id);
      answerFrom(shard, cell, effect.tag, found, (offset) => ({ type: "found", tag: effect.tag, offset }));
      break;
    }
    case "latestOf": {
      const { stream, tag, keys, after, limit } = effect;
      const found = shard.store.latest(stream, keys === undefined ? { after, limit } : { keys });
      answerFrom(shard, cell, tag, found, (entries) => ({ type: "latestFound", tag, entries }));
      break;
    }
    default:
      effect satisfies never;
  }
}

function reply(shard: Performer, cell: Cell, effect: Extract<Effect, { type: "reply" }>): void {
  // Not there: already answered, or asked of an incarnation before this one.
  const request = cell.open.get(effect.to);
  if (request === undefined) return;
  cell.open.delete(effect.to);
  if (effect.hold) shard.gather.held.push({ cell, request, value: effect.value });
  else shard.respond(request.origin, effect.value);
}

function send(
  shard: Performer,
  to: Address,
  message: Message,
  asker: { readonly cell: Cell; readonly tag: number } | undefined,
): void {
  if (to.shard === shard.shard) {
    const origin = asker && { kind: "cell" as const, incarnation: asker.cell.incarnation, ...asker };
    shard.enqueue(to.cell, { message, origin });
  } else {
    const ask = asker === undefined ? 0 : shard.expect(asker.cell, asker.tag);
    shard.post({ type: "forward", shard: shard.shard, ask, to, message });
  }
}

function read(shard: Reader, cell: Cell, effect: Extract<Effect, { type: "read" }>): void {
  const { stream, tag, from } = effect;
  const head = shard.store.head(stream);
  const near = head === undefined || from >= head.end ? { blocks: [], next: from } : shard.readTail(stream, effect);
  if (near !== undefined) {
    shard.notify(cell, cell.incarnation, { type: "blocks", tag, ...near });
    return;
  }
  const { to, bytesMax } = effect;
  answerFrom(shard, cell, tag, shard.store.read(stream, { from, to, bytesMax }), ({ blocks, next }) => ({
    type: "blocks",
    tag,
    blocks,
    next,
  }));
}

function answerFrom<T>(shard: Reader, cell: Cell, tag: number, result: Promise<T>, notice: (value: T) => Notice): void {
  const { incarnation } = cell;
  result.then(
    (value) => shard.later(() => shard.notify(cell, incarnation, notice(value))),
    (error) =>
      shard.later(() =>
        shard.notify(cell, incarnation, {
          type: "readFailed",
          tag,
          failure: failure("unavailable", storeReason(error)),
        }),
      ),
  );
}
