// The dead letters of one group. The topic outlives its source: a source of the same name made later adds to it, so what is there is
// compared by place over all incarnations, and by the number in the payload with the one event that it is a copy of.

import type { Exported } from "./exporting.ts";
import type { GroupModel } from "./group-model.ts";
import type { Journal } from "./journal.ts";
import type { Stored } from "./topic-log.ts";

/** What was read of each topic of dead letters, by partition and offset. */
export type Graves = Map<string, string[][]>;

const overlap = 50;

const endings = ["the ack deadline passed", "the member disconnected", "the member unsubscribed"];

export class DeadLetters {
  readonly reasons = new Set<string>(endings);
  private readonly group: GroupModel;
  private readonly journal: Journal;

  constructor(group: GroupModel, journal: Journal) {
    this.group = group;
    this.journal = journal;
  }

  get topic(): string {
    return `${this.group.log.name}.dlq.${this.group.plan.name}`;
  }

  /** Where reading begins: at the start, or shortly before the end of what was read before. */
  from(graves: Graves, whole: boolean): readonly number[] {
    if (whole) return [];
    // A partition that had none so far may lie before one that had.
    return Array.from(graves.get(this.topic) ?? [], (read) => Math.max(0, (read?.length ?? 0) - overlap));
  }

  verify(found: Exported, graves: Graves, from: readonly number[]): void {
    const { journal, topic } = this;
    const read = graves.get(topic) ?? [];
    graves.set(topic, read);
    const next = [...from];
    for (const event of found.events) {
      const { partition, offset } = event;
      const place = `${topic} ${partition}:${offset}`;
      const expected = next[partition] ?? 0;
      if (offset !== expected) journal.fail(`${place} stands where ${expected} belongs`);
      next[partition] = offset + 1;
      const line = JSON.stringify(event);
      read[partition] ??= [];
      const before = read[partition][offset];
      if (before === undefined) {
        read[partition][offset] = line;
        this.add(event, place);
      } else if (before !== line) journal.fail(`${place} is ${line}, it was ${before}`);
    }
    read.forEach((lines, partition) => {
      if ((next[partition] ?? 0) < lines.length) {
        journal.fail(`${topic} has ${next[partition] ?? 0} dead letters on ${partition}, there were ${lines.length}`);
      }
    });
  }

  /** The topic is not there: it never had one. */
  none(graves: Graves): void {
    if ((graves.get(this.topic)?.length ?? 0) > 0) this.journal.fail(`${this.topic} is gone`);
  }

  private add(event: Stored, place: string): void {
    const { group, journal } = this;
    const { log, plan } = group;
    const { n } = event.payload as { n: number };
    const headers = event.headers ?? {};
    const of = (name: string) => headers[`x-dlq-${name}`];
    const partition = Number(of("partition"));
    const offset = Number(of("offset"));
    const what = `dead letter ${place} of ${group.name} ${partition}:${offset}`;
    journal.note(n, `${what}: ${JSON.stringify(headers)}`);
    const wrong = (why: string) => journal.fail(`${what}: ${why}: ${JSON.stringify(event)}`, n);
    const origin = log.partitions[partition]?.events.get(offset)?.event;
    const publication = log.publications.get(n);
    if (publication === undefined) wrong("nobody published its payload");
    if (origin !== undefined) {
      const same = [origin.id, origin.key, origin.tags, origin.payload];
      if (JSON.stringify(same) !== JSON.stringify([of("id"), event.key, event.tags, event.payload]))
        wrong("is of another event");
      if (of("ts") !== String(origin.ts)) wrong(`the ts of the event is ${origin.ts}`);
    } else if (log.retentionMs === undefined) {
      log.observe(
        { ...publicationEvent(event), id: of("id"), ts: Number(of("ts")), topic: log.name, partition, offset },
        what,
      );
    }
    if (event.caused_by?.[0] !== of("id")) wrong("caused_by is not its origin");
    if (of("topic") !== log.name || of("group") !== plan.name) wrong("is of another group");
    if (of("attempts") !== String(plan.maxAttempts)) wrong(`the group allows ${plan.maxAttempts} attempts`);
    if (!this.reasons.has(of("reason"))) wrong("nobody gave this reason");
    const state = group.stateOf(partition, offset, n);
    state.letters++;
    if (state.letters > 1 + group.seeks) wrong("it is not the first one");
    if (group.seeks === 0) {
      if (state.ackedBy !== undefined) wrong(`was acked as ${state.ackedBy.lease}`);
      group.doubt(n, () => {
        const last = state.held.at(-1);
        const seen = (last?.attempt ?? 0) + group.unseen(last);
        return seen < plan.maxAttempts ? `${what}: only ${last?.attempt ?? 0} attempts were delivered` : undefined;
      });
    }
    journal.count("dead letters");
  }
}

/** What a copy keeps of its origin. */
function publicationEvent({ key, tags, payload }: Stored): Pick<Stored, "payload"> & { key?: string; tags?: string[] } {
  return { ...(key === undefined ? {} : { key }), ...(tags === undefined ? {} : { tags }), payload };
}
