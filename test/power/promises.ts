// Compares what a start finds with what the clients heard before the power went off. Identity, not counts: every event that was
// confirmed or delivered, at its offset, with its id, payload and key; nothing that nobody published; what was settled is settled, and
// nothing else is; what was deleted is gone; names are remembered; epochs rise.

import { leaseEpoch } from "../../src/protocol/lease.ts";
import { before, type Facts, type Publish, type TopicLife } from "./facts.ts";
import { dedupeMs } from "./power-node.ts";
import type { FoundPartition, View } from "./view.ts";
import { letters, poison, seeker, short } from "./work.ts";

export interface Verdict {
  readonly faults: string[];
  /** How many things that were confirmed were looked up. */
  compared: number;
}

export function compare(view: View, facts: Facts, cut: bigint): Verdict {
  const verdict: Verdict = { faults: [], compared: 0 };
  const comparison = new Comparison(view, facts, cut, verdict);
  comparison.run();
  return verdict;
}

/** More of the same says nothing new. */
const faultsMax = 20;

class Comparison {
  private readonly view: View;
  private readonly facts: Facts;
  private readonly cut: bigint;
  private readonly verdict: Verdict;
  private readonly lives: ReadonlyMap<string, TopicLife>;

  constructor(view: View, facts: Facts, cut: bigint, verdict: Verdict) {
    this.view = view;
    this.facts = facts;
    this.cut = cut;
    this.verdict = verdict;
    this.lives = new Map(facts.topics.map((life) => [life.topic, life]));
  }

  run(): void {
    for (const damage of this.view.damage) this.fault(`damage is reported: ${JSON.stringify(damage)}`);
    for (const life of this.facts.topics) this.topic(life);
    for (const [name, { partitions }] of this.view.topics) {
      for (const [i, partition] of partitions.entries()) this.dense(`${name}/${i}`, partition);
    }
    for (const publish of this.facts.publishes) this.publish(publish);
    this.nothingElse();
    this.deliveries();
    this.settles();
    this.seeks();
    this.deadLetters();
    this.retention();
  }

  private fault(text: string): void {
    if (this.verdict.faults.length < faultsMax) this.verdict.faults.push(text);
  }

  private topic({ topic, heard, deletion }: TopicLife): void {
    const found = this.view.topics.has(topic);
    if (before(deletion?.heard, this.cut)) {
      this.verdict.compared++;
      if (found) this.fault(`topic ${topic} was deleted and is there`);
    } else if (before(heard, this.cut) && !before(deletion?.asked, this.cut)) {
      this.verdict.compared++;
      if (!found) this.fault(`topic ${topic} is missing`);
    }
  }

  /** Whether anything is promised of a topic: not once its deletion was asked for. */
  private promised(topic: string): boolean {
    return !before(this.lives.get(topic)?.deletion?.asked, this.cut);
  }

  private partition(topic: string, partition: number | undefined): FoundPartition | undefined {
    return this.view.topics.get(topic)?.partitions[partition ?? 0];
  }

  private dense(name: string, { start, end, events }: FoundPartition): void {
    for (let offset = start; offset < end; offset++) {
      if (!events.has(offset)) this.fault(`${name}: nothing at ${offset} of ${start}..${end}`);
    }
    if (events.size > end - start) this.fault(`${name}: ${events.size} events in ${start}..${end}`);
  }

  private publish(publish: Publish): void {
    const { topic, heard, payload, key, id, offset, name } = publish;
    if (!before(heard, this.cut) || offset === undefined || !this.promised(topic)) return;
    this.verdict.compared++;
    const found = this.partition(topic, publish.partition);
    const place = `${topic}/${publish.partition} ${offset}`;
    if (found === undefined || found.end <= offset) {
      this.fault(
        `${place}: confirmed, and ${found === undefined ? "its partition is missing" : `the log ends at ${found.end}`}`,
      );
      return;
    }
    if (offset >= found.start || topic !== short.topic) {
      const { id: otherId, payload: other, key: otherKey } = found.events.get(offset) ?? {};
      if (otherId !== id || other !== payload || otherKey !== key) {
        this.fault(`${place}: published ${id} ${key} ${brief(payload)}, found ${otherId} ${otherKey} ${brief(other)}`);
      }
    }
    // It is stored after it was asked for, and remembered from then on. A little off for clocks that do not run quite alike.
    const overAt = publish.asked + BigInt((dedupeMs - 50) * 1_000_000);
    if (name !== undefined && this.cut < overAt && found.names.get(name) === undefined) {
      this.fault(`${place}: ${name} is not remembered`);
    }
  }

  /** Everything that is there was published by somebody, once. */
  private nothingElse(): void {
    const asked = new Map<string, Publish>();
    for (const publish of this.facts.publishes) {
      if (before(publish.asked, this.cut)) asked.set(`${publish.topic} ${publish.payload}`, publish);
    }
    const seen = new Set<string>();
    for (const [topic, { partitions }] of this.view.topics) {
      if (topic === letters.topic) continue;
      for (const { events } of partitions) {
        for (const { offset, payload, key } of events.values()) {
          const name = `${topic} ${payload}`;
          const publish = asked.get(name);
          if (publish === undefined || publish.key !== key)
            this.fault(`${topic} ${offset}: nobody published ${brief(payload)}`);
          if (seen.has(name)) this.fault(`${topic} ${offset}: ${brief(payload)} is stored twice`);
          seen.add(name);
        }
      }
    }
  }

  private deliveries(): void {
    for (const { heard, topic, partition, offset, id, payload, epoch } of this.facts.deliveries) {
      if (!before(heard, this.cut) || !this.promised(topic)) continue;
      this.verdict.compared++;
      const place = `${topic}/${partition} ${offset}`;
      const found = this.partition(topic, partition);
      const event = found?.events.get(offset);
      if (event?.id !== id || event.payload !== payload) {
        this.fault(`${place}: delivered ${id} ${brief(payload)}, found ${event?.id} ${brief(event?.payload)}`);
      }
      const shard = this.view.topics.get(topic)?.record.shards[partition] ?? 0;
      if (leaseEpoch(this.view.epochs[shard], shard) <= epoch)
        this.fault(`${place}: a lease had epoch ${epoch}, and it is given again`);
    }
  }

  private settles(): void {
    const asked = new Set<string>();
    for (const { asked: at, verb, topic, group, partition, offset, heard, attempt } of this.facts.settles) {
      const name = `${topic}/${partition}/${group} ${offset}`;
      if (verb === "ack" && before(at, this.cut)) asked.add(name);
      if (!before(heard, this.cut)) continue;
      this.verdict.compared++;
      const cursor = this.partition(topic, partition)?.cursors.get(group);
      if (cursor === undefined) this.fault(`${name}: ${verb} was confirmed, and there is no cursor`);
      else if (cursor.isSettled(offset)) continue;
      else if (verb === "ack")
        this.fault(`${name}: its ack was confirmed, and it is not settled (floor ${cursor.floor})`);
      else if (cursor.attempts(offset) < attempt) {
        this.fault(
          `${name}: attempt ${attempt} was refused with a confirmed NACK, ${cursor.attempts(offset)} are counted`,
        );
      }
    }
    for (const [topic, { partitions }] of this.view.topics) {
      partitions.forEach(({ cursors, end }, partition) => {
        for (const [group, cursor] of cursors) {
          if (group === seeker.group || topic === poison.topic) continue;
          for (let offset = 0; offset < end; offset++) {
            const name = `${topic}/${partition}/${group} ${offset}`;
            if (cursor.isSettled(offset) && !asked.has(name)) this.fault(`${name}: settled, and nobody acked it`);
          }
          if (cursor.floor > end)
            this.fault(`${topic}/${partition}/${group}: floor ${cursor.floor} behind the end ${end}`);
        }
      });
    }
  }

  private seeks(): void {
    const { seeks } = this.facts;
    const last = seeks.findLastIndex(({ heard }) => before(heard, this.cut));
    if (last < 0) return;
    this.verdict.compared++;
    const allowed = seeks.filter(({ asked }, i) => i >= last && before(asked, this.cut)).map(({ floor }) => floor);
    const floor = this.partition(seeker.topic, 0)?.cursors.get(seeker.group)?.floor;
    if (floor === undefined || !allowed.includes(floor)) {
      this.fault(`${seeker.topic}/${seeker.group} was moved to ${allowed.join(" or ")}, its floor is ${floor}`);
    }
  }

  /** The move is one step: an event of this group is settled if and only if its copy is there, and there is one copy. */
  private deadLetters(): void {
    const source = this.partition(poison.topic, 0);
    const cursor = source?.cursors.get(poison.group);
    if (source === undefined) return;
    const copies = new Map<string, string>();
    for (const { causedBy = "", payload } of this.partition(letters.topic, 0)?.events.values() ?? []) {
      if (copies.has(causedBy)) this.fault(`${causedBy} was dead-lettered twice`);
      copies.set(causedBy, payload);
    }
    for (const { offset, id, payload } of source.events.values()) {
      const copy = copies.get(id);
      const settled = cursor?.isSettled(offset) ?? false;
      if (settled !== (copy !== undefined)) {
        this.fault(`${poison.topic} ${offset}: ${settled ? "settled without" : "unsettled with"} a dead letter`);
      }
      if (copy !== undefined && copy !== payload) this.fault(`the dead letter of ${offset} has another payload`);
    }
  }

  /** Retention takes no more than it may. */
  private retention(): void {
    const found = this.view.topics.get(short.topic);
    for (const [i, { start, events }] of (found?.partitions ?? []).entries()) {
      if (start === 0) continue;
      const bytes = [...events.values()].reduce((sum, { payload }) => sum + payload.length, 0);
      // What a commit added is kept or removed as a whole: at most a few payloads of 3 KB.
      if (bytes < short.bytes - 40_000)
        this.fault(`${short.topic}/${i}: retention left ${bytes} of ${short.bytes} bytes`);
    }
  }
}

function brief(payload: string | undefined): string {
  return payload === undefined ? "nothing" : payload.slice(0, 24);
}
