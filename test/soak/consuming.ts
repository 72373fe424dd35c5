// Who consumes everything from the beginning: groups of library clients and of plain ones, with nacks, dead letters, extensions, pauses,
// seeks, and members that go without a word. Each delivery is held against the audit of its group.

import { type Context, connect, type EventClient, type EventRecord } from "../../src/client/client.ts";
import { type EventFrame, PlainClient } from "../support/plain-client.ts";
import type { GroupAudit, Place } from "./audit.ts";
import type { Payload, World } from "./world.ts";

export const maxAttempts = 3;
const seekBack = 200;
const crossingMs = 1000;

function arrived(world: World, group: GroupAudit, event: Place & { payload: unknown }, attempt: number): Payload {
  const payload = event.payload as Payload;
  const first = group.deliver(event, { line: payload.l, n: payload.n }, attempt);
  // Only of what went straight through: retries wait by intention.
  if (first && payload.poison === true && !group.seeks) group.doom(event);
  if (first && attempt === 1 && group.measured) world.eventMs.add(performance.now() - payload.t);
  return payload;
}

/** Some events fail once, some always. */
function fails({ seeks }: GroupAudit, { n, poison }: Payload, attempt: number): boolean {
  return !seeks && (poison === true || (n % 50 === 7 && attempt === 1));
}

export interface LibraryMember {
  close(): Promise<void>;
}

export async function consumeByLibrary(
  world: World,
  group: GroupAudit,
  ordering: "none" | "key",
): Promise<LibraryMember> {
  const client = await connect(world.node.wsUrl);
  const handle = async (event: EventRecord<unknown>, ctx: Context): Promise<void> => {
    const { generation } = group;
    const payload = arrived(world, group, event, ctx.attempt);
    if (fails(group, payload, ctx.attempt)) {
      world.count("nacked");
      await ctx.nack("the load says so", 20);
      return;
    }
    const { ok, err } = await ctx.ack();
    if (ok) group.settle(event, generation);
    else if (err === "connection_lost" || err === "lease_lost" || err === "unavailable") group.inDoubt(event);
    else world.faults.add(`${group.name}: an ack was answered ${err}`);
  };
  const options = { from: "earliest", maxAttempts, ordering, manualAck: true, concurrency: 200 } as const;
  const subscription = await client.subscribe(group.topic.topic, group.name, handle, options);
  return {
    async close() {
      await subscription.close();
      await client.close();
    },
  };
}

/** Members of plain clients; one of them is cut off now and then, and another comes. */
export class PlainMember {
  private readonly world: World;
  private readonly group: GroupAudit;
  private client: PlainClient | undefined;
  private cutting = false;
  private seeking = false;

  constructor(world: World, group: GroupAudit) {
    this.world = world;
    this.group = group;
  }

  async open(): Promise<void> {
    const client = await PlainClient.open(this.world.node.wsUrl);
    client.onEvent = (event) => {
      this.handle(client, event).catch((error: Error) => this.world.faults.add(`${this.group.name}: ${error.message}`));
    };
    this.client = client;
    this.cutting = false;
    await client.subscribe(this.group.topic.topic, this.group.name, {
      from: "earliest",
      maxAttempts,
      maxInflight: 50,
      ackTimeoutMs: 20_000,
    });
  }

  /** No close frame, as when a process dies. */
  async cut(): Promise<void> {
    this.cutting = true;
    this.client?.socket.terminate();
    await this.client?.closed;
    this.world.count("members cut off");
    await this.open();
  }

  async seekBack(): Promise<void> {
    const { group, world } = this;
    const to = group.topic.ends().map((end) => Math.max(0, end - seekBack));
    this.seeking = true;
    group.seek(to, "asked");
    const offsets = to.map((offset, partition) => `${partition}:${offset}`).join(",");
    await this.client?.ok({ op: "CURSOR", topic: group.topic.topic, group: group.name, set: { offsets } });
    group.seek(to, "answered");
    world.count("seeks");
    // Answers to acks that crossed it are still to come.
    await world.pause(crossingMs);
    this.seeking = false;
  }

  async rest(ms: number): Promise<void> {
    const where = { topic: this.group.topic.topic, group: this.group.name };
    await this.client?.ok({ op: "PAUSE", ...where });
    await this.world.pause(ms);
    await this.client?.ok({ op: "RESUME", ...where });
    this.world.count("pauses");
  }

  async close(): Promise<void> {
    this.cutting = true;
    await this.client?.close();
  }

  private async handle(client: PlainClient, frame: EventFrame): Promise<void> {
    const { group, world } = this;
    const { generation } = group;
    const { event, ctx } = frame;
    const payload = arrived(world, group, event, ctx.attempt);
    const lease = { lease: ctx.lease };
    if (fails(group, payload, ctx.attempt)) {
      world.count("nacked");
      return void (await client.nack(frame, { ...lease, reason: "the load says so", delay_ms: 20 }));
    }
    if (payload.n % 40 === 3) {
      const answer = await client.request({
        op: "MODACK",
        topic: frame.topic,
        group: frame.group,
        id: event.id,
        extend_ms: 9000,
        ...lease,
      });
      // Cut off meanwhile: nothing that is asked now would be answered.
      if (answer.code === "closed") return group.inDoubt(event);
    }
    // Half of them do not name the lease, as the simplest client would.
    const answer = await client.ack(frame, world.dice.chance(50) ? lease : {});
    if (answer.op === "OK" && answer.stale !== true) return group.settle(event, generation);
    group.inDoubt(event);
    const expected = this.cutting || this.seeking || group.generation !== generation;
    // It may have been taken or not: the event comes again, or the group is found at its end without it.
    if (answer.code === "unavailable") return world.count("acks that nobody answered for");
    if (!expected && answer.code !== "closed")
      world.faults.add(`${group.name}: the ack of ${event.offset} was answered ${JSON.stringify(answer)}`);
  }
}

/** Whoever takes the dead letters of a group to their end. */
export async function buryDead(world: World, group: GroupAudit): Promise<EventClient> {
  const client = await connect(world.node.wsUrl);
  const topic = `${group.topic.topic}.dlq.${group.name}`;
  await client.subscribe(
    topic,
    "undertaker",
    (event: EventRecord<unknown>) => {
      const headers = event.headers ?? {};
      const place = { partition: Number(headers["x-dlq-partition"]), offset: Number(headers["x-dlq-offset"]) };
      const payload = event.payload as Payload;
      group.topic.holds(place, { line: payload.l, n: payload.n }, topic);
      group.bury(place, Number(headers["x-dlq-attempts"]), maxAttempts);
    },
    { from: "earliest" },
  );
  return client;
}
