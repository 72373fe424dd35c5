// The list of topics, on shard 0: which name is which incarnation, how many partitions it has and in which shard each lies. All
// that is decided once, when the topic is made, and stays, so that nothing moves when the number of workers changes.

import { failure } from "../protocol/failure.ts";
import { deadLetterTopic } from "../protocol/names.ts";
import { partitionsMax } from "../protocol/stream.ts";
import type { Actor, Effect, Env, Notice, Put, Ref, Shelf } from "./effects.ts";
import { entryBytes, entryKeys, entryValue } from "./entries.ts";
import type { Answer, Message, TopicRecord, TopicSettings } from "./messages.ts";

interface Counter {
  readonly nextId: number;
}

export class CatalogActor implements Actor {
  private readonly shelf: Shelf;
  private readonly byName = new Map<string, TopicRecord>();
  private readonly byId = new Map<number, TopicRecord>();
  private nextId: number;
  // Written with the next commit; null removes.
  private changed = new Map<number, TopicRecord | null>();

  constructor(shelf: Shelf) {
    this.shelf = shelf;
    const counter = shelf.entry(entryKeys.catalog);
    this.nextId = counter === undefined ? 1 : entryValue<Counter>(counter).nextId;
    for (const [, bytes] of shelf.entries(entryKeys.topics)) this.set(entryValue<TopicRecord>(bytes));
  }

  receive(message: Message | Notice, ref: Ref, env: Env): readonly Effect[] {
    switch (message.type) {
      case "resolve":
        return this.resolve(message.topic, message.create ? message.partitions : undefined, ref, env);
      case "configure":
        return this.configure(message.topic, message.partitions, message.settings, ref, env);
      case "deadLetter":
        return this.deadLetter(message.topicId, message.group, ref, env);
      case "deleteTopic": {
        const record = this.byName.get(message.topic);
        if (record === undefined) return reply(ref, failure("unknown_topic", `there is no topic ${message.topic}`));
        const deleting: TopicRecord = { ...record, status: "deleting" };
        return this.write(deleting, ref, deleting);
      }
      case "forget":
        return this.forget(message.topicId, ref);
      case "topics":
        return reply(ref, this.page(message.after, message.limit));
      default:
        throw new Error(`the catalog does not take ${message.type}`);
    }
  }

  persist(): readonly Put[] {
    const puts: Put[] = [[entryKeys.catalog, entryBytes({ nextId: this.nextId } satisfies Counter)]];
    for (const [id, record] of this.changed)
      puts.push([entryKeys.topic(id), record === null ? null : entryBytes(record)]);
    this.changed = new Map();
    return puts;
  }

  stats(): readonly { name: string; labels: Record<string, string>; value: number }[] {
    return [{ name: "topics", labels: {}, value: this.byName.size }];
  }

  private resolve(topic: string, partitions: number | undefined, ref: Ref, env: Env): readonly Effect[] {
    const record = this.byName.get(topic);
    if (record !== undefined) return reply(ref, record);
    if (partitions === undefined) return reply(ref, failure("unknown_topic", `there is no topic ${topic}`));
    const made = this.make(topic, partitions, {}, env);
    return "code" in made ? reply(ref, made) : this.write(made, ref, made);
  }

  private configure(
    topic: string,
    partitions: number | undefined,
    settings: TopicSettings,
    ref: Ref,
    env: Env,
  ): readonly Effect[] {
    const record = this.byName.get(topic);
    if (record === undefined) {
      const made = this.make(topic, partitions ?? 1, settings, env);
      return "code" in made ? reply(ref, made) : this.write(made, ref, { record: made, created: true });
    }
    if (record.status === "deleting")
      return reply(ref, failure("unavailable", `topic ${topic} is being deleted`, 1000));
    if (partitions !== undefined && partitions !== record.shards.length) {
      const text = `topic ${topic} has ${record.shards.length} partitions, and their number is fixed when it is made`;
      return reply(ref, failure("limit", text));
    }
    const next: TopicRecord = { ...record, settings };
    return this.write(next, ref, { record: next, created: false });
  }

  private deadLetter(topicId: number, group: string, ref: Ref, env: Env): readonly Effect[] {
    const source = this.byId.get(topicId);
    if (source === undefined) return reply(ref, failure("unknown_topic", "the topic of the dead letter is gone"));
    const name = deadLetterTopic(source.name, group);
    const existing = this.byName.get(name);
    if (existing?.status === "deleting") return reply(ref, failure("unavailable", `${name} is being deleted`, 1000));
    if (existing !== undefined) return this.extend(existing, source, ref);
    const made = this.make(name, source.shards.length, {}, env);
    if ("code" in made) return reply(ref, made);
    // In the shards of the source, so that a move is one commit.
    const record: TopicRecord = { ...made, shards: source.shards, deadLetterOf: { topic: source.name, group } };
    return this.write(record, ref, record);
  }

  /**
   * A dead letter is appended in the commit that settles its event, so the topic needs a partition in each shard of the source.
   * One left by an earlier topic of that name may lack some. It may grow, since nobody publishes there by key.
   */
  private extend(existing: TopicRecord, source: TopicRecord, ref: Ref): readonly Effect[] {
    const missing = [...new Set(source.shards)].filter((shard) => !existing.shards.includes(shard));
    if (missing.length === 0) return reply(ref, existing);
    if (existing.shards.length + missing.length > partitionsMax) {
      return reply(ref, failure("limit", `${existing.name} cannot have more than ${partitionsMax} partitions`));
    }
    const grown: TopicRecord = { ...existing, shards: [...existing.shards, ...missing] };
    return this.write(grown, ref, grown);
  }

  private forget(topicId: number, ref: Ref): readonly Effect[] {
    const record = this.byId.get(topicId);
    if (record === undefined) return reply(ref, null);
    this.byId.delete(topicId);
    this.byName.delete(record.name);
    this.changed.set(topicId, null);
    return [{ type: "persist", soon: true }, ...reply(ref, null)];
  }

  private make(name: string, partitions: number, settings: TopicSettings, env: Env) {
    if (this.byName.size >= this.shelf.limits.topicsMax) {
      return failure("limit", `there are ${this.byName.size} topics, and no more are allowed`);
    }
    const id = this.nextId++;
    const shards = Array.from({ length: partitions }, (_, partition) => (id + partition) % this.shelf.shards);
    return { id, name, shards, settings, status: "live", createdAt: env.wall } satisfies TopicRecord;
  }

  private write(record: TopicRecord, ref: Ref, answer: Answer): readonly Effect[] {
    this.set(record);
    this.changed.set(record.id, record);
    return [{ type: "persist", soon: true }, ...reply(ref, answer)];
  }

  private set(record: TopicRecord): void {
    this.byName.set(record.name, record);
    this.byId.set(record.id, record);
  }

  private page(after: string, limit: number) {
    const names = [...this.byName.keys()].filter((name) => name > after).sort();
    const records = names.slice(0, limit).map((name) => this.byName.get(name) as TopicRecord);
    return names.length > limit ? { records, next: names[limit - 1] } : { records };
  }
}

/** Held: what it says may have been made or removed a moment ago, by a commit that is being gathered or is on its way to the disk. */
function reply(to: Ref, value: Answer): readonly Effect[] {
  return [{ type: "reply", to, value, hold: true }];
}
