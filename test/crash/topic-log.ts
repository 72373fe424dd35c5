// One topic in one incarnation as the journal knows it: who published what with which outcome, and what was read at which place. What
// was read once is there for ever, byte for byte, until retention or deletion takes it.

import type { EventFrame } from "../support/plain-client.ts";
import type { Exported } from "./exporting.ts";
import type { Journal } from "./journal.ts";
import { smallLimits } from "./limits.ts";

export type Stored = EventFrame["event"];

/** Where an OK said that it is. */
export interface Promised {
  readonly id: string;
  readonly ts: number;
  readonly partition: number;
  readonly offset: number;
  readonly duplicate?: true;
}

export class Publication {
  readonly n: number;
  readonly log: TopicLog;
  readonly key: string | undefined;
  readonly ownId: string | undefined;
  readonly tags: readonly string[] | undefined;
  /** Who sends it in order, if anybody: what the same sender publishes for one key is stored in the order of the calls. */
  lane: string | undefined;
  /** Sends that were not answered yet, and those of which nobody will know. */
  open = 0;
  unknown = 0;
  sends = 0;
  lastSentAt = 0;
  promised: Promised | undefined;
  refused: string | undefined;
  /** Its sender knows nothing of it any more, and may still send it: nothing can be said of it that is not seen. */
  astray = false;
  at: { readonly partition: number; readonly offset: number } | undefined;
  /** Looked for when nothing of it could be under way any more, and not found. */
  absent = false;

  constructor(facts: Pick<Publication, "n" | "log" | "key" | "ownId" | "tags" | "lane">) {
    this.n = facts.n;
    this.log = facts.log;
    this.key = facts.key;
    this.ownId = facts.ownId;
    this.tags = facts.tags;
    this.lane = facts.lane;
  }

  get payload(): { readonly n: number; readonly pad: string } {
    // Of several sizes, so that segments and blocks end in different places.
    return { n: this.n, pad: "x".repeat((this.n * 7919) % 23 === 0 ? 3000 : (this.n * 31) % 200) };
  }

  get options(): { id?: string; key?: string; tags?: string[] } {
    return {
      ...(this.ownId === undefined ? {} : { id: this.ownId }),
      ...(this.key === undefined ? {} : { key: this.key }),
      ...(this.tags === undefined ? {} : { tags: [...this.tags] }),
    };
  }
}

export class PartitionLog {
  /** The lowest offset that is still there, as far as known. */
  start = 0;
  /** One above the highest that was promised or seen. */
  end = 0;
  readonly events = new Map<number, { readonly event: Stored; readonly n: number }>();
  readonly ofKey = new Map<string, number[]>();
}

/** So many events that were read before are read again where not everything is. */
const overlap = 100;

/** Codes of a PUBLISH after which the event may still be stored. */
const unsure: ReadonlySet<string> = new Set(["unavailable", "closed", "unknown_outcome", "connection_lost", "timeout"]);

export class TopicLog {
  readonly name: string;
  readonly partitions: readonly PartitionLog[];
  readonly retentionMs: number | undefined;
  readonly publications = new Map<number, Publication>();
  readonly ownIds = new Map<string, Publication[]>();
  /** The shard of each partition, once the node was asked. */
  shards: readonly number[] = [];
  private readonly leases: Set<string>;
  private readonly journal: Journal;
  private readonly firstOf = new Map<string, { readonly offset: number; readonly ts: number }>();
  private unverified: Publication[] = [];
  private readonly lanes = new Map<string, number>();
  /** Of each partition up to where the order of the lanes is checked: gaps wait for the next export. */
  private readonly orderedTo: number[];

  constructor(facts: {
    name: string;
    partitions: number;
    retentionMs: number | undefined;
    journal: Journal;
    leases: Set<string>;
  }) {
    this.name = facts.name;
    this.retentionMs = facts.retentionMs;
    this.journal = facts.journal;
    this.leases = facts.leases;
    this.partitions = Array.from({ length: facts.partitions }, () => new PartitionLog());
    this.orderedTo = this.partitions.map(() => 0);
  }

  // ------------------------------------------------------------------------------------------------------------ publishing

  add(publication: Publication): void {
    this.publications.set(publication.n, publication);
    if (publication.ownId === undefined) return;
    const same = this.ownIds.get(publication.ownId);
    if (same === undefined) this.ownIds.set(publication.ownId, [publication]);
    else same.push(publication);
  }

  sent(publication: Publication): void {
    publication.open++;
    publication.sends++;
    publication.absent = false;
    publication.lastSentAt = performance.now();
    this.journal.count("publishes sent");
  }

  confirmed(publication: Publication, promised: Promised, by: string): void {
    publication.open--;
    const { n, ownId } = publication;
    const { partition, offset, id, ts, duplicate } = promised;
    const place = `${this.name} ${partition}:${offset}`;
    this.journal.note(n, `OK ${place} ${id} ts ${ts}${duplicate ? " duplicate" : ""} (${by})`);
    this.journal.count(duplicate ? "publishes confirmed as duplicates" : "publishes confirmed");
    if (ownId !== undefined && id !== ownId)
      this.journal.fail(`${place}: published as ${ownId}, confirmed as ${id}`, n);
    const before = publication.promised;
    if (before !== undefined && (before.offset !== offset || before.id !== id || before.partition !== partition)) {
      this.journal.fail(`${place}: confirmed before at ${before.partition}:${before.offset}`, n);
    }
    if (duplicate && ownId === undefined && publication.sends < 2 && !by.startsWith("library")) {
      this.journal.fail(`${place}: a duplicate, of which nothing was said before`, n);
    }
    publication.promised ??= promised;
    this.duplicates(publication, promised);
    const part = this.partitions[partition];
    if (part === undefined) this.journal.fail(`${place}: there is no such partition`, n);
    part.end = Math.max(part.end, offset + 1);
    this.unverified.push(publication);
  }

  /** Within the window the first one counts: whoever was told a place under this id was told the same. */
  private duplicates(publication: Publication, { partition, offset, ts }: Promised): void {
    for (const other of this.ownIds.get(publication.ownId ?? "") ?? []) {
      const { promised } = other;
      if (promised === undefined || promised.partition !== partition || promised.offset === offset) continue;
      const apart = Math.abs(ts - promised.ts);
      if (apart < smallLimits.dedupeMs - 500) {
        this.journal.fail(
          `${publication.ownId} is confirmed at ${promised.offset} and, ${apart} ms later, at ${offset}`,
          publication.n,
        );
      }
    }
  }

  refused(publication: Publication, code: string, by: string): void {
    publication.open--;
    this.journal.note(publication.n, `refused with ${code} (${by})`);
    if (unsure.has(code)) {
      publication.unknown++;
      this.journal.count("publishes of unknown outcome");
    } else {
      publication.refused = code;
      this.journal.count(`publishes refused: ${code}`);
    }
  }

  // --------------------------------------------------------------------------------------------------------------- reading

  /** False if the shard gave this lease before, to whichever group of whichever topic. */
  isNewLease(partition: number, lease: string): boolean {
    const name = `${this.shards[partition] ?? `${this.name}/${partition}`} ${lease}`;
    if (this.leases.has(name)) return false;
    this.leases.add(name);
    return true;
  }

  /** Somebody was given this event: from now on it is in the log, here and so. */
  observe(event: Stored, by: string): number {
    const part = this.partitions[event.partition];
    const place = `${this.name} ${event.partition}:${event.offset}`;
    const { n } = event.payload as { n: number };
    if (part === undefined) this.journal.fail(`${place} (${by}): there is no such partition`, n);
    const known = part.events.get(event.offset);
    if (known !== undefined) {
      if (known.n !== n || canonical(known.event) !== canonical(event)) {
        this.journal.note(known.n, `${place} was ${JSON.stringify(known.event)}`);
        this.journal.fail(
          `${place} (${by}) is ${JSON.stringify(event)}, it was ${JSON.stringify(known.event)}`,
          known.n,
        );
      }
      return n;
    }
    this.identify(event, n, place, by);
    part.events.set(event.offset, { event, n });
    part.end = Math.max(part.end, event.offset + 1);
    if (event.key !== undefined) {
      const line = part.ofKey.get(event.key);
      if (line === undefined) part.ofKey.set(event.key, [event.offset]);
      else line.push(event.offset);
    }
    return n;
  }

  private identify(event: Stored, n: number, place: string, by: string): void {
    const { journal } = this;
    const publication = this.publications.get(n);
    if (publication === undefined)
      throw journal.fail(`${place} (${by}) is ${JSON.stringify(event)}, which nobody published`, n);
    const { key, ownId, tags, payload } = publication;
    const wanted = JSON.stringify([this.name, key, ownId ?? event.id, tags, undefined, undefined, payload]);
    const { topic, headers, caused_by } = event;
    if (JSON.stringify([topic, event.key, event.id, event.tags, headers, caused_by, event.payload]) !== wanted) {
      journal.fail(`${place} (${by}) is ${JSON.stringify(event)}, published was ${wanted}`, n);
    }
    if (publication.at !== undefined) {
      journal.fail(`${place} (${by}): stored twice, first at ${publication.at.partition}:${publication.at.offset}`, n);
    }
    if (publication.promised?.duplicate && publication.promised.offset !== event.offset) {
      journal.fail(`${place} (${by}): stored, although confirmed as a duplicate of ${publication.promised.offset}`, n);
    }
    if (publication.absent) journal.fail(`${place} (${by}): was not there before, and nobody sent it again`, n);
    if (publication.refused !== undefined && publication.open + publication.unknown === 0 && !publication.promised) {
      journal.fail(`${place} (${by}): stored, and refused with ${publication.refused}`, n);
    }
    publication.at = { partition: event.partition, offset: event.offset };
    journal.note(n, `first seen at ${place} (${by})`);
    if (ownId !== undefined) this.onceInWindow(event, ownId, place, n);
  }

  private onceInWindow(event: Stored, ownId: string, place: string, n: number): void {
    const name = `${ownId} ${event.key ?? ""}`;
    const first = this.firstOf.get(name);
    if (first !== undefined && Math.abs(event.ts - first.ts) < smallLimits.dedupeMs - 1) {
      this.journal.fail(
        `${place}: the id ${ownId} is stored twice within ${event.ts - first.ts} ms, first at ${first.offset}`,
        n,
      );
    }
    if (first !== undefined) this.journal.count("own ids stored again after their window");
    this.firstOf.set(name, event);
  }

  /** What must be in an export that begins now, and which publications can no longer be under way. */
  expectation(whole: boolean): Expectation {
    return {
      ends: this.partitions.map(({ end }) => end),
      from: this.partitions.map(({ start }, i) => (whole ? start : Math.max(start, this.orderedTo[i] - overlap))),
      confirmed: this.unverified.splice(0),
      at: performance.now(),
    };
  }

  /** An export that was not finished says nothing. */
  takeBack(expected: Expectation): void {
    this.unverified.push(...expected.confirmed);
  }

  /** The log, or its end with some of what was read before: compared with all that was promised and seen before it was asked for. */
  verify(exported: Exported, expected: Expectation, lifeStartedAt: number): void {
    const { journal } = this;
    const next = [...expected.from];
    const begun = this.partitions.map(() => false);
    for (const event of exported.events) {
      const { partition, offset } = event;
      const place = `${this.name} ${partition}:${offset}`;
      // Retention may take the start away while it is read.
      if (offset > next[partition] && (!begun[partition] || this.retentionMs !== undefined)) {
        this.trimmed(partition, offset);
        next[partition] = offset;
      }
      begun[partition] = true;
      if (offset !== next[partition]++) journal.fail(`export: ${place} stands where ${next[partition] - 1} belongs`);
      this.observe(event, "export");
    }
    exported.next.forEach((end, partition) => {
      const part = this.partitions[partition];
      if (end > next[partition] && (!begun[partition] || this.retentionMs !== undefined)) this.trimmed(partition, end);
      else if (begun[partition] && next[partition] !== end)
        journal.fail(`export of ${this.name}: ends at ${next[partition]}, said is ${end}`);
      if (end < expected.ends[partition]) {
        journal.fail(
          `export of ${this.name}: partition ${partition} ends at ${end}, known are ${expected.ends[partition]}`,
          part.events.get(expected.ends[partition] - 1)?.n ??
            expected.confirmed.find(
              (one) => one.promised?.partition === partition && one.promised.offset === expected.ends[partition] - 1,
            )?.n,
        );
      }
      part.end = Math.max(part.end, end);
    });
    for (const publication of expected.confirmed) this.kept(publication);
    this.checkOrder();
    this.settleUnknown(expected, lifeStartedAt);
    journal.count("events compared in exports", exported.events.length);
  }

  private trimmed(partition: number, start: number): void {
    const part = this.partitions[partition];
    const { retentionMs, journal } = this;
    if (start < part.start) journal.fail(`${this.name}/${partition} starts at ${start}, it was ${part.start}`);
    for (let offset = part.start; offset < start; offset++) {
      const known = part.events.get(offset);
      if (retentionMs === undefined)
        throw journal.fail(`${this.name} ${partition}:${offset} is gone, and nothing removes events here`, known?.n);
      if (known !== undefined && known.event.ts + retentionMs > Date.now()) {
        journal.fail(
          `${this.name} ${partition}:${offset} is gone before its time, at the age of ${Date.now() - known.event.ts} ms`,
          known.n,
        );
      }
      journal.count("events removed by retention");
    }
    part.start = start;
  }

  private kept({ n, promised, ownId }: Publication): void {
    const { partition, offset, id, ts, duplicate } = promised!;
    const part = this.partitions[partition];
    if (offset < part.start) return;
    const found = part.events.get(offset);
    const place = `${this.name} ${partition}:${offset}`;
    if (found === undefined) this.journal.fail(`${place} was confirmed and is not there`, n);
    if (found.event.id !== id || found.event.ts !== ts) {
      this.journal.fail(`${place} was confirmed as ${id} ts ${ts}, there is ${JSON.stringify(found.event)}`, n);
    }
    const twin = duplicate && (this.ownIds.get(ownId ?? "") ?? []).some((other) => other.n === found.n);
    if (found.n !== n && !twin) this.journal.fail(`${place} was confirmed for ${n}, there is ${found.n}`, n);
    this.journal.count("confirmed publishes found at their place");
  }

  /** Of each sender and key the order of the calls. */
  private checkOrder(): void {
    this.partitions.forEach((part, partition) => {
      let offset = Math.max(this.orderedTo[partition], part.start);
      for (let found = part.events.get(offset); found !== undefined; found = part.events.get(++offset)) {
        const publication = this.publications.get(found.n);
        if (publication?.lane === undefined) continue;
        const lane = `${publication.lane} ${partition} ${publication.lane.startsWith("library") ? publication.key : ""}`;
        const before = this.lanes.get(lane) ?? -1;
        if (before > found.n)
          this.journal.fail(
            `${this.name} ${partition}:${offset}: ${found.n} of ${lane} is stored behind ${before}`,
            found.n,
          );
        this.lanes.set(lane, found.n);
        this.journal.count("events in the order of their sender");
      }
      this.orderedTo[partition] = offset;
    });
  }

  /** What was sent to a process that is gone, and whose outcome nobody told, is in this log or nowhere. */
  private settleUnknown({ at }: Expectation, lifeStartedAt: number): void {
    for (const publication of this.publications.values()) {
      const { unknown, open, promised, lastSentAt, absent, n } = publication;
      if (
        unknown === 0 ||
        open > 0 ||
        promised !== undefined ||
        absent ||
        publication.astray ||
        lastSentAt >= lifeStartedAt ||
        lastSentAt > at
      )
        continue;
      publication.unknown = 0;
      publication.absent = publication.at === undefined && this.retentionMs === undefined;
      this.journal.count(
        publication.at === undefined ? "unknown publishes found not stored" : "unknown publishes found stored",
      );
      if (publication.absent) this.journal.note(n, "not in the log after the restart");
    }
  }
}

/** The same text for the same event, whichever way it came. */
function canonical({ id, ts, topic, partition, offset, key, tags, headers, caused_by, payload }: Stored): string {
  return JSON.stringify([id, ts, topic, partition, offset, key, tags, headers, caused_by, payload]);
}

export interface Expectation {
  readonly ends: readonly number[];
  /** Where reading begins. */
  readonly from: readonly number[];
  readonly confirmed: readonly Publication[];
  readonly at: number;
}
