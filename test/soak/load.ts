// The load as a whole: three topics with their publishers, the groups on them, and everything around them; and its end, at which every event
// must have been everywhere.

import { connect, type EventClient } from "../../src/client/client.ts";
import { jumpHash } from "../../src/protocol/jump-hash.ts";
import { eventually } from "../support/deadline.ts";
import type { PlainClient } from "../support/plain-client.ts";
import { GroupAudit, type GroupAuditOptions, TopicAudit } from "./audit.ts";
import { comeAndGo, LogReader, makeIdleGroups } from "./coming-and-going.ts";
import { buryDead, consumeByLibrary, type LibraryMember, PlainMember } from "./consuming.ts";
import { publishByLibrary, publishOverHttp, publishPlainly } from "./publishing.ts";
import type { World } from "./world.ts";

const drainMs = 60_000;
/** Of the topics, so that the disk does not fill; on a machine that is very busy readers may be a minute behind. */
const retentionMs = 300_000;
/** As many as a shard keeps of the newest blocks (runtime/tail.ts). */
const keptBlocks = 8192;
const primingPartitions = 64;

export class Load {
  private readonly world: World;
  private readonly readers: LogReader[] = [];
  private readonly members: { close(): Promise<unknown> }[] = [];
  private readonly publishers: (EventClient | PlainClient)[] = [];

  private readonly seconds: number;

  /** `seconds` is how long it will run: a short one does not fill caches first. */
  constructor(world: World, seconds: number) {
    this.world = world;
    this.seconds = seconds;
  }

  /**
   * Fills what is known to fill up: a shard keeps its newest blocks in memory, and with a moderate load they would grow in number for a
   * quarter of an hour. So there is one commit after the other with an event for each partition of a topic, which then goes.
   */
  private async prime(): Promise<void> {
    const { world } = this;
    const topic = "soak.priming";
    await world.json("PUT", `/topics/${topic}`, { partitions: primingPartitions });
    const keys = new Map<number, string>();
    for (let i = 0; keys.size < primingPartitions; i++) keys.set(jumpHash(`${i}`, primingPartitions), `${i}`);
    const client = await connect(world.node.wsUrl);
    const wanted = Math.min(keptBlocks, this.seconds * primingPartitions);
    for (let blocks = 0; blocks < wanted; blocks += primingPartitions) {
      const pad = "x".repeat(200 + world.dice.below(200));
      await Promise.all([...keys.values()].map((key) => client.publish(topic, { pad }, { key })));
    }
    await client.close();
    await world.json("DELETE", `/topics/${topic}`);
  }

  async start(): Promise<void> {
    const { world } = this;
    await this.prime();
    const orders = await this.topic("soak.orders", 4);
    const plain = await this.topic("soak.plain", 1);
    const web = await this.topic("soak.web", 2);

    const shared = await this.group("shared", orders, { measured: true });
    await this.member(shared, "none");
    let second = await this.member(shared, "none");
    world.every(12_000, "a library member that comes and goes", async () => {
      await second.close();
      this.members.splice(this.members.indexOf(second), 1);
      second = await this.member(shared, "none");
      world.count("library members replaced");
    });
    await this.member(await this.group("keyed", orders, { ordered: true }), "key");

    const worn = await this.group("worn", plain, { measured: true });
    await this.plainMember(worn);
    const frail = await this.plainMember(worn);
    world.every(7000, "a member that is cut off", () => frail.cut());
    const seeker = await this.plainMember(await this.group("seeker", plain, { seeks: true }));
    world.every(11_000, "a seek", () => seeker.seekBack());

    const pausing = await this.plainMember(await this.group("pausing", web));
    world.every(5000, "a pause", () => pausing.rest(500));

    for (const group of world.groups) if (!group.seeks) this.members.push(await buryDead(world, group));
    await makeIdleGroups(world, world.topics);
    comeAndGo(world, world.topics);
    this.publishers.push(...(await publishByLibrary(world, orders, 2)), await publishPlainly(world, plain));
    publishOverHttp(world, web);
  }

  /** Stops publishing and waits until everything has been everywhere; what has not is a fault. */
  async finish(): Promise<void> {
    const { world } = this;
    await world.end();
    for (const publisher of this.publishers) await publisher.close();
    try {
      await eventually(drainMs, "everything is settled", async () => {
        for (const reader of this.readers) await reader.readOn();
        if (world.groups.some((group) => group.missing() > 0)) return false;
        for (const group of world.groups) if ((await this.lag(group)) > 0) return false;
        return world.groups.every(({ isBuried }) => isBuried);
      });
    } catch (error) {
      world.faults.add((error as Error).message);
    }
    for (const topic of world.topics) topic.finish();
    for (const group of world.groups) group.finish();
    for (const member of this.members) await member.close();
    world.agent.destroy();
    world.samplingAgent.destroy();
  }

  private async lag({ topic, name }: GroupAudit): Promise<number> {
    const { lag } = await this.world.json<{ lag: number }>("GET", `/lag?topic=${topic.topic}&group=${name}`);
    return lag;
  }

  private async topic(name: string, partitions: number): Promise<TopicAudit> {
    const { world } = this;
    await world.json("PUT", `/topics/${name}`, { partitions, retention: { ageMs: retentionMs } });
    const topic = new TopicAudit(name, partitions, world.faults);
    world.topics.push(topic);
    const reader = new LogReader(world, topic);
    this.readers.push(reader);
    world.every(1000, "the reader of the log", () => reader.readOn());
    return topic;
  }

  private async group(name: string, topic: TopicAudit, options: GroupAuditOptions = {}): Promise<GroupAudit> {
    const group = new GroupAudit(name, topic, this.world.faults, options);
    this.world.groups.push(group);
    return group;
  }

  private async member(group: GroupAudit, ordering: "none" | "key"): Promise<LibraryMember> {
    const member = await consumeByLibrary(this.world, group, ordering);
    this.members.push(member);
    return member;
  }

  private async plainMember(group: GroupAudit): Promise<PlainMember> {
    const member = new PlainMember(this.world, group);
    await member.open();
    this.members.push(member);
    return member;
  }
}
