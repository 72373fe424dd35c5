// From the name of a topic to the cells of its partitions. The catalog (on shard 0) knows every topic; the router asks it once,
// opens each partition (which makes name and settings durable there) and remembers the way. It keeps no other state of a topic.

import {
  type Address,
  type Answer,
  catalogAddress,
  groupCell,
  partitionCell,
  type TopicRecord,
  type TopicSettings,
} from "../actors/messages.ts";
import { type Failure, failure, isFailure } from "../protocol/failure.ts";
import { jumpHash } from "../protocol/jump-hash.ts";
import { deadLetterSource, isOurs } from "../protocol/names.ts";
import { streamOf } from "../protocol/stream.ts";
import type { Clock, Timer } from "../runtime/clock.ts";
import type { System } from "../runtime/system.ts";

export interface RoutePartition {
  readonly partition: number;
  readonly stream: number;
  readonly shard: number;
  /** The partition's own cell. */
  readonly address: Address;
}

export interface Route {
  readonly topic: string;
  readonly record: TopicRecord;
  readonly partitions: readonly RoutePartition[];
  /** What the OK to a PUBLISH means. */
  readonly durability: string;
}

export interface RouterOptions {
  readonly system: System;
  readonly clock: Clock;
  /** The count for topics that are made on first use. */
  readonly partitions: number;
  readonly autoCreate: boolean;
  readonly topicsMax: number;
  /** The topic is deleted: what others keep of it can go. */
  readonly removed?: (topic: TopicRecord) => void;
}

/** How many records of the catalog are asked for at a time. */
const topicsPageMax = 500;
/** A deletion that was held up is taken up again after so long. */
const finishMs = 1000;

export class Router {
  private readonly options: RouterOptions;
  // In order of use, so that the first is the one to drop.
  private readonly routes = new Map<string, CachedRoute>();
  private readonly flights = new Map<string, Promise<Route | Failure>>();
  /** Deletions that a failing shard has held up. */
  private readonly unfinished = new Map<number, TopicRecord>();
  /** The catalog could not be asked which there are. */
  private unasked = false;
  private finishing: Timer | undefined;

  constructor(options: RouterOptions) {
    this.options = options;
  }

  /** The way that is already known, without asking. */
  peek(topic: string): Route | undefined {
    return this.routes.get(topic);
  }

  /**
   * The way to a topic. `create`: the caller may have it made, if AUTO_CREATE allows. Of the names that are ours these are the dead
   * letters of a topic, so that one can wait for them before there are any. Whoever asks for the same topic meanwhile shares the
   * answer.
   */
  resolve(topic: string, { create }: { readonly create: boolean }): Promise<Route | Failure> {
    const known = this.routes.get(topic);
    if (known !== undefined) return Promise.resolve(known);
    const make = create && this.options.autoCreate && (!isOurs(topic) || deadLetterSource(topic) !== undefined);
    // One that may not make the topic must not be the one that answers for those who may.
    const name = `${make ? "+" : "-"}${topic}`;
    const under = this.flights.get(name);
    if (under !== undefined) return under;
    const flight = this.find(topic, make).finally(() => this.flights.delete(name));
    this.flights.set(name, flight);
    return flight;
  }

  /** The way anew, if the topic has more partitions by now. Undefined: it has not, or that cannot be told just now. */
  async grown({ topic, record: { id, shards } }: Route): Promise<Route | undefined> {
    const record = await this.lookUp(topic, false);
    if (isFailure(record) || record.id !== id || record.status === "deleting") return undefined;
    if (record.shards.length === shards.length) return undefined;
    const route = await this.open(record);
    return isFailure(route) ? undefined : route;
  }

  /** The route did not lead where it says: the next one who asks finds it anew. A newer route stays. */
  invalidate(route: Route): void {
    if (this.routes.get(route.topic) === route) this.routes.delete(route.topic);
  }

  /**
   * The partition of one event: by its key; without one by its own id, so that publishing it again meets the first; without
   * either the partitions take turns, and one turn of the event loop is one turn here, so that what it gathers stays together.
   */
  partitionFor(route: Route, key: string | undefined, id?: string): RoutePartition {
    const count = route.partitions.length;
    if (count === 1) return route.partitions[0];
    const named = key ?? id;
    if (named !== undefined) return route.partitions[jumpHash(named, count)];
    if (!(route instanceof CachedRoute)) return route.partitions[0];
    if (!route.turning) {
      route.turning = true;
      route.next = (route.next + 1) % count;
      this.options.clock.soon(() => {
        route.turning = false;
      });
    }
    return route.partitions[route.next];
  }

  /** Makes the topic or changes its settings. Durable in the catalog and at every partition when it resolves. */
  async configure(
    topic: string,
    { partitions, settings }: { readonly partitions?: number; readonly settings: TopicSettings },
  ): Promise<{ readonly record: TopicRecord; readonly created: boolean } | Failure> {
    if (isOurs(topic)) {
      const existing = await this.resolve(topic, { create: false });
      if (isFailure(existing)) {
        return existing.code === "unknown_topic"
          ? failure("bad_topic", `${topic}: this name is the node's own`)
          : existing;
      }
    }
    const answer = await this.ask(catalogAddress, {
      type: "configure",
      topic,
      settings,
      ...(partitions === undefined ? {} : { partitions }),
    });
    if (isFailure(answer)) return answer;
    const route = await this.open(answer.record);
    return isFailure(route) ? route : answer;
  }

  /** Deletes the topic: marked in the catalog first, so that a crash in between is finished by `finishDeletes`. */
  async remove(topic: string): Promise<null | Failure> {
    this.routes.delete(topic);
    const record = await this.ask(catalogAddress, { type: "deleteTopic", topic });
    if (isFailure(record)) {
      // It may be marked all the same.
      if (record.code !== "unknown_topic") {
        this.unasked = true;
        this.finishLater(record);
      }
      return record;
    }
    // Whoever resolved it while the catalog was being asked has cached a way to the old incarnation.
    this.routes.delete(topic);
    return this.drop(record);
  }

  /** Ends the group on every partition: its members are told, its cursors are gone when this resolves. */
  async removeGroup(topic: string, group: string): Promise<null | Failure> {
    const route = await this.resolve(topic, { create: false });
    if (isFailure(route)) return route;
    const answers = await Promise.all(
      route.partitions.map(({ shard, stream }) =>
        this.ask({ shard, cell: groupCell(stream, group) }, { type: "dropGroup" }),
      ),
    );
    return answers.find(isFailure) ?? null;
  }

  list(after: string, limit: number): Promise<Answer<"topics">> {
    return this.ask(catalogAddress, { type: "topics", after, limit });
  }

  /** Takes up deletions that were cut short, by a crash (at start) or by a shard that was down (when it is up again). */
  async finishDeletes(): Promise<null | Failure> {
    let first: null | Failure = null;
    let after: string | undefined = "";
    while (after !== undefined) {
      const page: Answer<"topics"> = await this.list(after, topicsPageMax);
      if (isFailure(page)) {
        this.unasked = true;
        this.finishLater(page);
        return page;
      }
      for (const record of page.records) if (record.status === "deleting") this.unfinished.set(record.id, record);
      after = page.next;
    }
    for (const record of [...this.unfinished.values()]) first = (await this.drop(record)) ?? first;
    return first;
  }

  /** A shard is up (again). */
  async shardUp(): Promise<void> {
    if (this.unasked) {
      this.unasked = false;
      await this.finishDeletes();
      return;
    }
    for (const record of [...this.unfinished.values()]) await this.drop(record);
  }

  private async find(topic: string, create: boolean): Promise<Route | Failure> {
    const record = isOurs(topic) && create ? await this.deadLetters(topic) : await this.lookUp(topic, create);
    if (isFailure(record)) return record;
    if (record.status === "deleting") {
      return create
        ? failure("unavailable", `${topic} is being deleted`, 1000)
        : failure("unknown_topic", `${topic} is being deleted`);
    }
    return this.open(record);
  }

  private lookUp(topic: string, create: boolean): Promise<Answer<"resolve">> {
    return this.ask(catalogAddress, { type: "resolve", topic, create, partitions: this.options.partitions });
  }

  private async deadLetters(topic: string): Promise<Answer<"resolve">> {
    const existing = await this.lookUp(topic, false);
    const source = deadLetterSource(topic);
    if (!isFailure(existing) || existing.code !== "unknown_topic" || source === undefined) return existing;
    const record = await this.lookUp(source.topic, true);
    if (isFailure(record)) return record;
    return this.ask(catalogAddress, { type: "deadLetter", topicId: record.id, group: source.group });
  }

  private async open(record: TopicRecord): Promise<Route | Failure> {
    const route = new CachedRoute(record);
    const answers = await Promise.all(
      route.partitions.map(({ address }) => this.ask(address, { type: "open", record })),
    );
    for (const answer of answers) {
      if (isFailure(answer)) return answer;
      route.durability = answer.durability;
    }
    // A dead-letter topic may get another partition, so its way is asked for each time; nobody publishes there in a hurry.
    if (isOurs(record.name)) return route;
    this.routes.delete(record.name);
    this.routes.set(record.name, route);
    if (this.routes.size > this.options.topicsMax) {
      for (const oldest of this.routes.keys()) {
        this.routes.delete(oldest);
        break;
      }
    }
    return route;
  }

  /** Nobody need ask for a deletion twice: until it is finished the name can be used by nobody. */
  private finishLater(failed: Failure): void {
    if (this.finishing !== undefined || failed.code === "shutting_down") return;
    const finish = () => {
      this.finishing = undefined;
      void this.shardUp();
    };
    this.finishing = this.options.clock.after(finishMs, finish, { background: true });
  }

  private async drop(record: TopicRecord): Promise<null | Failure> {
    const failed = await this.dropEverywhere(record);
    if (failed === null) this.unfinished.delete(record.id);
    else {
      this.unfinished.set(record.id, record);
      this.finishLater(failed);
    }
    return failed;
  }

  private async dropEverywhere(record: TopicRecord): Promise<null | Failure> {
    const answers = await Promise.all(
      new CachedRoute(record).partitions.map(({ address }) => this.ask(address, { type: "drop" })),
    );
    const failed = answers.find(isFailure);
    if (failed !== undefined) return failed;
    const forgotten = await this.ask(catalogAddress, { type: "forget", topicId: record.id });
    if (isFailure(forgotten)) return forgotten;
    this.options.removed?.(record);
    return null;
  }

  private readonly ask: System["request"] = (to, message) => this.options.system.request(to, message);
}

class CachedRoute implements Route {
  readonly topic: string;
  readonly record: TopicRecord;
  readonly partitions: readonly RoutePartition[];
  durability = "";
  /** Whose turn it is among the partitions, for events without a key. */
  next = 0;
  turning = false;

  constructor(record: TopicRecord) {
    this.topic = record.name;
    this.record = record;
    this.partitions = record.shards.map((shard, partition) => {
      const stream = streamOf(record.id, partition);
      return { partition, stream, shard, address: { shard, cell: partitionCell(stream) } };
    });
  }
}
