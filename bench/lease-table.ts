// A lease table alone: it hears of so many new events, leases them to one member, makes their frames, takes the acks and says what to write of its
// cursor. In order by the run, as the library acks, and one by one from behind, so that each ack makes a hole.

import type { Effect, Env, Notice, Shelf } from "../src/actors/effects.ts";
import { entryBytes, entryKeys } from "../src/actors/entries.ts";
import { LeaseTableActor } from "../src/actors/lease-table.ts";
import type { Message, TopicRecord } from "../src/actors/messages.ts";
import { BlockView, blockHeaderBytes, writeBlockHeader } from "../src/protocol/block.ts";
import { encodePack } from "../src/protocol/pack.ts";
import { streamOf } from "../src/protocol/stream.ts";
import { type Cost, costSettings, measureCosts } from "./support/cost.ts";
import { payloadBytes, payloadMaker } from "./support/payload.ts";
import { numbersFrom } from "./support/settings.ts";

const epoch = 1;
const stream = streamOf(1, 0);

/** The table and as much of a node around it as it needs. */
class Table {
  private readonly actor: LeaseTableActor;
  private readonly env: { -readonly [Name in keyof Env]: Env[Name] };
  private readonly block: Uint8Array;
  private readonly events: number;
  private end = 0;
  private nextToken = 1;
  private delivered = 0;
  private acked = 0;
  private refused = 0;

  constructor(topic: string, payloads: readonly Uint8Array[], format: "json" | "batch") {
    this.events = payloads.length;
    const pack = encodePack(payloads.map((payload) => ({ payload })));
    this.block = new Uint8Array(blockHeaderBytes + pack.length);
    this.block.set(pack, blockHeaderBytes);
    this.env = {
      mono: 1000,
      wall: 1_700_000_000_000,
      epoch,
      tokens: (count) => {
        const first = this.nextToken;
        this.nextToken += count;
        return first;
      },
      room: (bytes) => new Uint8Array(bytes),
    };
    const record: TopicRecord = { id: 1, name: topic, shards: [0], settings: {}, status: "live", createdAt: 0 };
    const recordBytes = entryBytes(record);
    const shelf: Shelf = {
      shard: 0,
      shards: 1,
      durabilityOf: () => "memory",
      limits: {
        maxAttempts: 5,
        topicsMax: 10,
        groupsPerTopicMax: 10,
        unsettledMax: 10_000,
        dedupeMs: 120_000,
        dedupeEntriesMax: 1000,
        pruneEveryMs: 10_000,
      },
      head: () => ({ start: 0, end: this.end, lastStoredAt: 0, bytes: 0 }),
      entry: (key) => (key === entryKeys.partition(stream) ? recordBytes : undefined),
      entries: () => [],
      pruneTo: () => 0,
    };
    const { actor, effects } = LeaseTableActor.start({ stream, group: "bench", shelf, env: this.env });
    if (!(actor instanceof LeaseTableActor)) throw new Error("the table does not know its topic");
    this.actor = actor;
    this.perform(effects);
    this.tell({
      type: "join",
      member: 1,
      options: {},
      start: { kind: "earliest" },
      ackTimeoutMs: 30_000,
      batchSize: 1000,
      format,
      handle: 1,
      who: "bench",
      rejoin: false,
    });
    const plenty = Number.MAX_SAFE_INTEGER;
    this.tell({ type: "grant", member: 1, slots: this.events, tokens: plenty, bytes: plenty });
  }

  /** One more block, from its commit to the commit that holds its acks. */
  turn(acks: "in order" | "from behind"): void {
    const first = this.end;
    const token = this.nextToken;
    this.env.mono += 1;
    this.end += this.events;
    this.tell({ type: "advanced", end: this.end });
    if (this.delivered !== this.end) throw new Error(`${this.delivered} of ${this.end} events were delivered`);
    if (acks === "in order") this.ack(first, this.events, token);
    else for (let i = this.events - 1; i >= 0; i--) this.ack(first + i, 1, token + i);
    if (this.acked !== this.end || this.refused > 0) throw new Error(`${this.refused} acks were refused`);
    this.actor.persist([], this.env);
  }

  private ack(offset: number, count: number, token: number): void {
    this.tell({ type: "settleRuns", member: 1, verb: "ack", runs: [{ offset, count, epoch, token }] });
    this.acked += count;
  }

  private tell(message: Message | Notice): void {
    this.perform(this.actor.receive(message, 1, this.env));
  }

  private perform(effects: readonly Effect[]): void {
    for (const effect of effects) {
      switch (effect.type) {
        case "read": {
          const firstOffset = this.end - this.events;
          writeBlockHeader({ stream, firstOffset, storedAt: 1, maxTs: 1, salt: 7 }, this.block, 0);
          const blocks = this.end === 0 ? [] : [new BlockView(this.block)];
          this.tell({ type: "blocks", tag: effect.tag, blocks, next: this.end });
          break;
        }
        case "signal":
          if (effect.signal.type === "events") this.delivered += effect.signal.count;
          break;
        case "reply":
          if (effect.value !== null && "lost" in effect.value) this.refused += effect.value.lost.length;
          break;
        case "persist":
        case "wake":
          break;
        default:
          throw new Error(`nobody here does ${effect.type}`);
      }
    }
  }
}

const set = costSettings("nothing is stored");
const make = payloadMaker(set.payloadBytes);

function cost(events: number, acks: "in order" | "from behind", format: "json" | "batch"): Cost {
  const payloads = Array.from({ length: events }, (_, i) => payloadBytes(make(i, i)));
  const table = new Table(set.topic, payloads, format);
  return {
    variant: `${events} events, ${format}, acked ${acks}`,
    part: "workers",
    events,
    call: () => table.turn(acks),
  };
}

const counts = numbersFrom("EVENTS", [1, 10, 200, 1000]);
const most = Math.max(...counts);
await measureCosts("lease-table", set, [
  ...counts.map((events) => cost(events, "in order", "batch")),
  cost(most, "from behind", "batch"),
  cost(most, "in order", "json"),
]);
