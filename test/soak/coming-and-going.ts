// What comes and goes while the load runs, and must leave nothing behind: connections, groups, topics, questions, and mistakes.

import { createHash } from "node:crypto";
import { connect as dialRaw } from "node:net";
import { PlainClient } from "../support/plain-client.ts";
import type { TopicAudit } from "./audit.ts";
import type { World } from "./world.ts";

const idleGroups = 20;
const replayLimit = 5000;
const fleeting = 5;

interface Page {
  readonly count: number;
  readonly next: string;
  readonly events: readonly {
    readonly partition: number;
    readonly offset: number;
    readonly payload: { readonly l: number; readonly n: number };
  }[];
}

/** Reads the whole log of a topic, page after page, as it grows. `caughtUp` gives where it is. */
export class LogReader {
  private readonly world: World;
  private readonly topic: TopicAudit;
  private after: string | undefined;

  constructor(world: World, topic: TopicAudit) {
    this.world = world;
    this.topic = topic;
  }

  async readOn(): Promise<void> {
    for (;;) {
      const after = this.after === undefined ? "" : `&after=${this.after}`;
      const path = `/replay?topic=${this.topic.topic}&from=earliest&limit=${replayLimit}${after}`;
      const { count, next, events } = await this.world.json<Page>("GET", path);
      for (const { partition, offset, payload } of events)
        this.topic.inLog({ partition, offset }, { line: payload.l, n: payload.n });
      this.after = next;
      this.world.count("events replayed", count);
      if (count === 0) return;
    }
  }
}

/** A group that nobody is in, most of the time. They are all there from the beginning, so that their number does not grow. */
async function visit(world: World, topics: readonly TopicAudit[], number: number): Promise<void> {
  const client = await PlainClient.open(world.node.wsUrl);
  const filter = { keyPrefix: "none" };
  await client.subscribe(topics[number % topics.length].topic, `idle-${number}`, { filter });
  await client.close();
  world.count("idle groups visited");
}

export async function makeIdleGroups(world: World, topics: readonly TopicAudit[]): Promise<void> {
  for (let number = 0; number < idleGroups; number++) await visit(world, topics, number);
}

export function comeAndGo(world: World, topics: readonly TopicAudit[]): void {
  const { dice } = world;
  let turn = 0;

  world.every(1500, "a short connection", async () => {
    const client = await PlainClient.open(world.node.wsUrl);
    client.onEvent = () => world.count("events to short connections");
    const topic = dice.pick(topics).topic;
    const group = `flash-${turn++}`;
    await client.subscribe(topic, group, { ephemeral: true, maxInflight: 20 });
    await world.pause(300 + dice.below(700));
    const way = dice.below(3);
    if (way === 0) client.socket.terminate();
    else if (way === 1) await client.ok({ op: "UNSUBSCRIBE", topic, group });
    if (way !== 0) await client.close();
    world.count("short connections");
  });

  world.every(8000, "an idle group", () => visit(world, topics, dice.below(idleGroups)));

  world.every(3000, "a topic that is made and deleted", async () => {
    const topic = `fleeting.t${turn++}`;
    await world.json("PUT", `/topics/${topic}`, { partitions: 1 + dice.below(3), rate: "1000/1000" });
    const client = await PlainClient.open(world.node.wsUrl);
    await client.subscribe(topic, "g", { from: "earliest" });
    const ids = new Set<unknown>();
    for (let n = 0; n < fleeting; n++)
      ids.add((await client.publish(topic, { n }, { key: `k${n}`, id: `f-${turn}-${n}` })).id);
    for (const event of await client.nextMany(fleeting)) {
      if (!ids.delete(event.event.id)) world.faults.add(`${topic}: got ${event.event.id}, which was not published`);
      await client.ack(event, { lease: event.ctx.lease });
    }
    await world.json("DELETE", `/topics/${topic}`);
    await client.close();
    world.count("topics made and deleted");
  });

  world.every(2500, "mistakes", async () => {
    const raw = dialRaw(world.node.ports.ws, "127.0.0.1");
    raw.on("error", (error) => world.faults.add(`a raw connection: ${error.message}`));
    raw.end(dice.chance(50) ? "GET /nothing HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" : "");
    raw.resume();
    const client = await PlainClient.open(world.node.wsUrl);
    const expected = { "": "bad_frame", "a b": "bad_topic", "dlq.x": "bad_topic" };
    for (const [topic, code] of Object.entries(expected)) {
      const answer = await client.request({ op: "PUBLISH", topic, ...(topic === "" ? {} : { payload: 1 }) });
      if (answer.op !== "ERR")
        world.faults.add(`publishing to "${topic}" was answered ${JSON.stringify(answer)}, not ${code}`);
    }
    await client.request({ op: "ACK", topic: "no-such", group: "g", id: "x" });
    await client.close();
    world.count("mistakes", 4);
  });

  world.every(10_000, "an export", async () => {
    const { topic } = dice.pick(topics);
    const { status, trailers, body } = await world.web("GET", `/export?topic=${topic}`);
    const sum = createHash("sha256").update(body).digest("hex");
    const lines = body.toString().split("\n").length - 1;
    if (status !== 200 || trailers["x-narthex-checksum"] !== sum || trailers["x-narthex-count"] !== `${lines}`)
      throw new Error(`${topic}: ${status}, ${lines} lines, ${sum}, trailers ${JSON.stringify(trailers)}`);
    world.count("exports");
    world.count("events exported", lines);
  });

  world.every(4000, "questions", async () => {
    const { topic } = dice.pick(topics);
    await world.json("GET", `/cursors?topic=${topic}`);
    await world.json("GET", `/topics/${topic}`);
    await world.json("GET", `/latest-by-key?topic=${topic}&key=k1`);
    await world.json("GET", `/explain?topic=${topic}&group=idle-0`).catch((error: Error) => {
      if (!error.message.includes("404")) throw error;
    });
    await world.json("GET", "/stats");
    world.count("questions", 5);
  });
}
