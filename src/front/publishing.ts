// Events on their way to the partitions. Single events of all sessions that go to one partition within a turn of the event loop
// become one pack in one message, written straight into the buffer that the post transfers; its answer is cut back into one
// outcome per event. Batches go as they came, one message per partition. What was handed over first is stored first.

import type { Answer, MessageOf } from "../actors/messages.ts";
import type { BatchName, PublishedSpan } from "../protocol/batch.ts";
import { type Failure, failure, isFailure } from "../protocol/failure.ts";
import type { OkFields } from "../protocol/frames.ts";
import { makeId } from "../protocol/ids.ts";
import { jumpHash } from "../protocol/jump-hash.ts";
import { encodePack, type PackEntry, type PackView } from "../protocol/pack.ts";
import type { Clock } from "../runtime/clock.ts";
import type { System } from "../runtime/system.ts";
import type { Route, RoutePartition, Router } from "./router.ts";

/** What became of one event: the fields of an OK to PUBLISH. */
export type Outcome = OkFields["PUBLISH"];

type OutcomeDone = (outcome: Outcome | Failure) => void;
/** Covers the whole batch in order; a failure if nothing of it was stored, for one reason. */
type BatchDone = (outcome: readonly PublishedSpan[] | Failure) => void;

interface Gathered {
  readonly route: Route;
  readonly place: RoutePartition;
  readonly entries: PackEntry[];
  readonly done: OutcomeDone[];
  bytes: number;
}

interface Part {
  readonly place: RoutePartition;
  readonly indexes: readonly number[] | undefined;
}

/** More than this in one message gains nothing and makes the others wait. */
const gatheredEventsMax = 1000;
const gatheredBytesMax = 1024 * 1024;

/** Topics may come and go without end; what is counted by name does not. */
const countedTopicsMax = 10_000;
const otherTopics = "_other";

export class Publishing {
  private readonly system: System;
  private readonly router: Router;
  private readonly clock: Clock;
  private readonly gathered = new Map<number, Gathered>();
  private armed = false;
  private readonly counts = new Map<string, number>();

  constructor({ system, router, clock }: { readonly system: System; readonly router: Router; readonly clock: Clock }) {
    this.system = system;
    this.router = router;
    this.clock = clock;
  }

  /** Events confirmed as stored, by topic. */
  published(): ReadonlyMap<string, number> {
    return this.counts;
  }

  /** The topic is deleted. One that is made under its name counts from nothing. */
  forget(topic: string): void {
    this.counts.delete(topic);
  }

  /** One event whose payload is known to be JSON. */
  single(route: Route, entry: PackEntry, done: OutcomeDone): void {
    const place = this.router.partitionFor(route, entry.key, entry.id);
    let gathered = this.gathered.get(place.stream);
    if (gathered === undefined) {
      gathered = { route, place, entries: [], done: [], bytes: 0 };
      this.gathered.set(place.stream, gathered);
    }
    gathered.entries.push(entry);
    gathered.done.push(done);
    gathered.bytes += entry.payload.length + (entry.meta?.length ?? 0);
    if (gathered.entries.length >= gatheredEventsMax || gathered.bytes >= gatheredBytesMax) this.flush(place.stream);
    else this.arm();
  }

  /** A client's batch; its payloads are still to be checked as JSON, by the worker. */
  batch(route: Route, pack: PackView, name: BatchName | undefined, done: BatchDone): void {
    const parts = this.split(route, pack, name);
    if (isFailure(parts)) {
      done(parts);
      return;
    }
    const spans: PublishedSpan[] = [];
    let whole: Failure | undefined;
    let open = parts.length;
    for (const { place, indexes } of parts) {
      this.flush(place.stream);
      const room = (bytes: number) => this.system.room(place.shard, bytes);
      const bytes = indexes === undefined ? copied(pack, room) : encodePack(entriesOf(pack, indexes), room);
      const message = {
        type: "publish",
        pack: bytes,
        unparsed: true,
        ...(name === undefined ? {} : { batch: ordered(name) }),
      } as const;
      this.system.ask(place.address, message, (answer) => {
        this.note(route, answer);
        if (isFailure(answer) && parts.length === 1) whole = answer;
        else spans.push(...spansOf(answer, place.partition, indexes, pack.count));
        if (--open > 0) return;
        spans.sort((a, b) => a.index - b.index);
        done(whole ?? spans);
      });
    }
  }

  private arm(): void {
    if (this.armed) return;
    this.armed = true;
    this.clock.soon(() => {
      this.armed = false;
      for (const stream of [...this.gathered.keys()]) this.flush(stream);
    });
  }

  private flush(stream: number): void {
    const gathered = this.gathered.get(stream);
    if (gathered === undefined) return;
    this.gathered.delete(stream);
    const { route, place, entries, done } = gathered;
    const pack = encodePack(entries, (bytes) => this.system.room(place.shard, bytes));
    this.system.ask(place.address, { type: "publish", pack, unparsed: false }, (answer) => {
      this.note(route, answer);
      if (isFailure(answer)) {
        for (const one of done) one(answer);
        return;
      }
      for (const run of answer.runs) {
        for (let i = 0; i < run.count; i++) {
          const index = run.index + i;
          if (run.failure !== undefined) {
            done[index](run.failure);
            continue;
          }
          const { id, ts } = entries[index];
          const offset = run.offset + i;
          done[index]({
            id: id ?? makeId(run.storedAt, offset, place.partition, run.salt),
            ts: run.duplicate?.ts ?? ts ?? run.storedAt,
            partition: place.partition,
            offset,
            durability: answer.durability,
            ...(run.duplicate === undefined ? {} : { duplicate: true }),
          });
        }
      }
    });
  }

  /** Which events of a batch go where; undefined stands for all of them. */
  private split(route: Route, pack: PackView, name: BatchName | undefined): readonly Part[] | Failure {
    const { partitions } = route;
    if (name?.partition !== undefined) {
      const place = partitions[name.partition];
      return place !== undefined && belongs(pack, name.partition, partitions.length)
        ? [{ place, indexes: undefined }]
        : failure("unknown_topic", `${route.topic} was made anew, with ${partitions.length} partitions: open it again`);
    }
    if (partitions.length === 1) return [{ place: partitions[0], indexes: undefined }];
    // Events without a key stay together, and a named batch that is sent again must meet its first self in the same partition.
    const keyless =
      name === undefined
        ? this.router.partitionFor(route, undefined)
        : partitions[jumpHash(`${name.producer}:${name.seq}`, partitions.length)];
    if (!pack.extended) return [{ place: keyless, indexes: undefined }];
    const byPartition = new Map<RoutePartition, number[]>();
    for (let index = 0; index < pack.count; index++) {
      const named = pack.key(index) ?? pack.id(index);
      const place = named === undefined ? keyless : partitions[jumpHash(named, partitions.length)];
      const indexes = byPartition.get(place);
      if (indexes === undefined) byPartition.set(place, [index]);
      else indexes.push(index);
    }
    return [...byPartition].map(([place, indexes]) => ({
      place,
      indexes: indexes.length === pack.count ? undefined : indexes,
    }));
  }

  private note(route: Route, answer: Answer<"publish">): void {
    if (isFailure(answer)) {
      // The partition does not know the topic: it was deleted, perhaps by another node. The next one finds the way anew.
      if (answer.code === "unknown_topic") this.router.invalidate(route);
      return;
    }
    let stored = 0;
    for (const run of answer.runs) if (run.failure === undefined && run.duplicate === undefined) stored += run.count;
    if (stored === 0) return;
    const counted = this.counts.has(route.topic) || this.counts.size < countedTopicsMax ? route.topic : otherTopics;
    this.counts.set(counted, (this.counts.get(counted) ?? 0) + stored);
  }
}

function ordered({ producer, seq, partition, chained }: BatchName): NonNullable<MessageOf<"publish">["batch"]> {
  return partition === undefined ? { producer, seq } : { producer, seq, order: chained ? "chained" : "rising" };
}

/** Whether every event that may not go anywhere belongs to this partition. */
function belongs(pack: PackView, partition: number, partitions: number): boolean {
  if (!pack.extended || partitions === 1) return true;
  for (let index = 0; index < pack.count; index++) {
    const named = pack.key(index) ?? pack.id(index);
    if (named !== undefined && jumpHash(named, partitions) !== partition) return false;
  }
  return true;
}

function copied(pack: PackView, room: (bytes: number) => Uint8Array): Uint8Array {
  const target = room(pack.byteLength);
  target.set(pack.bytes.subarray(pack.at, pack.at + pack.byteLength));
  return target;
}

function entriesOf(pack: PackView, indexes: readonly number[]): PackEntry[] {
  return indexes.map((index) => ({ ...pack.extension(index), payload: pack.payload(index) }));
}

/** The runs of one partition's answer in the numbering of the whole batch, cut where that is not consecutive. */
function spansOf(
  answer: Answer<"publish">,
  partition: number,
  indexes: readonly number[] | undefined,
  count: number,
): PublishedSpan[] {
  const nowhere = { offset: 0, storedAt: 0, salt: 0 };
  const runs = isFailure(answer)
    ? [{ index: 0, count: indexes?.length ?? count, ...nowhere, failure: answer }]
    : answer.runs;
  if (indexes === undefined) return runs.map((run) => ({ ...run, partition }));
  const spans: PublishedSpan[] = [];
  for (const run of runs) {
    for (let from = 0; from < run.count; ) {
      let to = from + 1;
      while (to < run.count && indexes[run.index + to] === indexes[run.index + from] + (to - from)) to++;
      const offset = run.failure === undefined ? run.offset + from : 0;
      spans.push({ ...run, partition, index: indexes[run.index + from], count: to - from, offset });
      from = to;
    }
  }
  return spans;
}
