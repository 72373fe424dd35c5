// Who publishes: library clients in batches, a plain client event by event under ids, some of them twice, and HTTP the same. Each line
// belongs to one of them, and the plain ones wait for an answer before the next event of a line, so lines are in order by promise.

import { connect, type EventClient } from "../../src/client/client.ts";
import { type Frame, PlainClient } from "../support/plain-client.ts";
import type { Mark, Place, TopicAudit } from "./audit.ts";
import type { World } from "./world.ts";

const tickMs = 20;
const linesEach = 16;
const httpLanes = 4;
/** Past this the node is slower than the rate, and the load waits for it. */
const pendingMax = 5000;
/** A node that is starved of CPU may say these; the event is published again under its id. */
const retried = new Set(["unavailable", "overloaded", "publish_failed"]);
const retryMs = 300;

/** How many are due by now, on average as many as the rate says. */
class Pace {
  private readonly perMs: number;
  private last = performance.now();
  private due = 0;

  constructor(perSecond: number) {
    this.perMs = perSecond / 1000;
  }

  take(): number {
    const now = performance.now();
    this.due += (now - this.last) * this.perMs;
    this.last = now;
    const whole = Math.floor(this.due);
    this.due -= whole;
    return whole;
  }
}

function confirmed(world: World, topic: TopicAudit, given: { mark: Mark; place: Place; sentAt: number }): void {
  world.okMs.add(performance.now() - given.sentAt);
  topic.holds(given.place, given.mark, "OK");
  topic.confirmed++;
}

export async function publishByLibrary(world: World, topic: TopicAudit, clients: number): Promise<EventClient[]> {
  const opened: EventClient[] = [];
  for (let i = 0; i < clients; i++) {
    const client = await connect(world.node.wsUrl);
    opened.push(client);
    const pace = new Pace((world.rate * 0.7) / clients);
    let pending = 0;
    world.every(tickMs, "library publisher", () => {
      for (let left = pace.take(); left > 0; left--) {
        if (pending > pendingMax) {
          world.count("held back: too much unanswered");
          return;
        }
        const mark = topic.issue(i * linesEach + world.dice.below(linesEach));
        const sentAt = performance.now();
        pending++;
        client
          .publish(topic.topic, world.payload(mark), { key: `k${mark.line}`, headers: { "x-soak": "library" } })
          .then(
            (place) => confirmed(world, topic, { mark, place, sentAt }),
            (error: Error) =>
              world.faults.add(`library publisher: ${mark.line}/${mark.n} was refused: ${error.message}`),
          )
          .finally(() => pending--);
      }
    });
  }
  return opened;
}

export async function publishPlainly(world: World, topic: TopicAudit): Promise<PlainClient> {
  const client = await PlainClient.open(world.node.wsUrl);
  const pace = new Pace(world.rate * 0.2);
  const busy = new Set<number>();
  const publishOne = async (mark: Mark): Promise<void> => {
    const frame = { payload: world.payload(mark), opts: { key: `k${mark.line}`, id: `p-${mark.line}-${mark.n}` } };
    const sentAt = performance.now();
    const request = () => client.request({ op: "PUBLISH", topic: topic.topic, ...frame });
    let answer = await request();
    while (answer.code !== undefined && retried.has(answer.code)) {
      world.count("publishes tried again");
      await world.pause(retryMs);
      answer = await request();
    }
    if (answer.op !== "OK") throw new Error(JSON.stringify(answer));
    const place = placeOf(answer);
    confirmed(world, topic, { mark, place, sentAt });
    if (!world.dice.chance(5)) return;
    const again = await client.publish(topic.topic, frame.payload, frame.opts);
    world.count("published twice under one id");
    if (again.duplicate !== true || placeOf(again).offset !== place.offset)
      world.faults.add(`dedupe: ${frame.opts.id} at ${place.offset} came back as ${JSON.stringify(again)}`);
  };
  world.every(tickMs, "plain publisher", () => {
    for (let left = pace.take(); left > 0; left--) {
      const line = world.dice.below(linesEach * 4);
      if (busy.has(line)) continue;
      busy.add(line);
      const mark = topic.issue(line);
      publishOne(mark)
        .catch((error: Error) => world.faults.add(`plain publisher: ${mark.line}/${mark.n}: ${error.message}`))
        .finally(() => busy.delete(line));
    }
  });
  return client;
}

function placeOf({ partition, offset }: Frame): Place {
  return { partition: Number(partition), offset: Number(offset) };
}

export function publishOverHttp(world: World, topic: TopicAudit): void {
  for (let line = 0; line < httpLanes; line++) {
    world.every(Math.min(5000, (1000 * httpLanes) / (world.rate * 0.1)), "HTTP publisher", async () => {
      const mark = topic.issue(line);
      const payload = world.payload(mark);
      const path = `/publish/${topic.topic}?key=k${line}`;
      const headers = { "x-narthex-id": `h-${line}-${mark.n}`, traceparent: "00-soak" };
      const sentAt = performance.now();
      let { status, body } = await world.web("POST", path, payload, headers);
      while (status === 503) {
        world.count("publishes tried again");
        await world.pause(retryMs);
        ({ status, body } = await world.web("POST", path, payload, headers));
      }
      if (status !== 200) throw new Error(`${line}/${mark.n} was refused: ${status} ${body}`);
      const place = JSON.parse(body.toString()) as Place;
      confirmed(world, topic, { mark, place, sentAt });
      if (!world.dice.chance(5)) return;
      const again = JSON.parse((await world.web("POST", path, payload, headers)).body.toString());
      world.count("published twice under one id");
      if (again.duplicate !== true || again.offset !== place.offset)
        throw new Error(`${headers["x-narthex-id"]} is ${JSON.stringify(again)}`);
    });
  }
}
