// A stage for one actor: a shelf over plain maps, simulated time, and commits on demand. What the runtime does with effects is
// done here in its simplest form: appends are placed when `commit` is called, reads are answered at once.

import type { Actor, ActorLimits, Effect, Env, Placed, Shelf } from "../../src/actors/effects.ts";
import type { Answer, Message } from "../../src/actors/messages.ts";
import { BlockView, blockHeaderBytes, writeBlockHeader } from "../../src/protocol/block.ts";
import { encodePack, mergedBytes, mergePacks, PackView } from "../../src/protocol/pack.ts";

export const stageLimits: ActorLimits = {
  maxAttempts: 5,
  topicsMax: 10,
  groupsPerTopicMax: 10,
  unsettledMax: 100,
  dedupeMs: 120_000,
  dedupeEntriesMax: 1000,
  pruneEveryMs: 10_000,
};

export function packOf(
  ...events: { payload?: unknown; key?: string; id?: string; ts?: number; raw?: string }[]
): Uint8Array {
  return encodePack(
    events.map(({ payload, raw, ...extension }) => ({
      ...extension,
      payload: new TextEncoder().encode(raw ?? JSON.stringify(payload ?? null)),
    })),
  );
}

export class Stage {
  mono = 1000;
  wall = 1_700_000_000_000;
  readonly blocks: BlockView[] = [];
  readonly state = new Map<string, Uint8Array>();
  readonly answers = new Map<number, Answer>();
  readonly told: Message[] = [];
  readonly stopped: boolean[] = [];
  wakeAt: number | undefined;
  start = 0;
  pruneTo = 0;
  /** What retention asked for last. */
  storedBefore: number | undefined;
  /** What the index of keys says in place of what is stored. */
  indexOnly: { key: string; offset: number }[] | undefined;
  private actor!: Actor;
  private nextRef = 1;
  private gathered: Extract<Effect, { type: "append" }>[] = [];
  private held: { to: number; value: Answer }[] = [];
  private persists = false;
  private tells = false;
  commits = 0;

  readonly shelf: Shelf = {
    shard: 0,
    shards: 2,
    durabilityOf: () => "fsync",
    limits: stageLimits,
    head: () => ({ start: this.start, end: this.end, lastStoredAt: this.blocks.at(-1)?.storedAt ?? 0, bytes: 0 }),
    entry: (key) => this.state.get(key),
    entries: (prefix) => [...this.state].filter(([key]) => key.startsWith(prefix)),
    pruneTo: (_stream, { storedBefore }) => {
      this.storedBefore = storedBefore;
      return this.pruneTo;
    },
  };

  get end(): number {
    return this.blocks.at(-1)?.endOffset ?? 0;
  }

  get env(): Env {
    return { mono: this.mono, wall: this.wall, epoch: 1, tokens: () => 1, room: (bytes) => new Uint8Array(bytes) };
  }

  run(make: (shelf: Shelf, env: Env) => { actor: Actor; effects: readonly Effect[] }): void {
    const { actor, effects } = make(this.shelf, this.env);
    this.actor = actor;
    this.gathered = [];
    this.held = [];
    this.persists = false;
    this.tells = false;
    this.perform(effects);
  }

  pass(ms: number): void {
    this.mono += ms;
    this.wall += ms;
  }

  /** Sends a request and gives its reference; the answer is in `answers` once it left. */
  ask(message: Message): number {
    const ref = this.nextRef++;
    this.perform(this.actor.receive(message, ref, this.env));
    return ref;
  }

  /** A request and the commits it may need. */
  answer<T>(message: Message): T {
    const ref = this.ask(message);
    for (let commits = 0; commits < 3 && !this.answers.has(ref); commits++) this.commit();
    return this.answers.get(ref) as T;
  }

  wake(): void {
    this.wakeAt = undefined;
    this.perform(this.actor.receive({ type: "wake" }, 0, this.env));
  }

  commit(): void {
    // With nothing to write there is no commit, and replies that were held leave.
    if (this.gathered.length > 0 || this.persists) this.commits++;
    const placed: Placed[] = [];
    const packs = this.gathered.map(({ pack }) => new PackView(pack));
    let offset = this.end;
    for (const [index, append] of this.gathered.entries()) {
      placed.push({
        tag: append.tag,
        stream: append.stream,
        offset,
        count: packs[index].count,
        storedAt: this.wall,
        salt: 7,
      });
      offset += packs[index].count;
    }
    const puts = this.persists || placed.length > 0 ? (this.actor.persist?.(placed, this.env) ?? []) : [];
    for (const [key, value] of puts) value === null ? this.state.delete(key) : this.state.set(key, value);
    if (packs.length > 0) {
      const bytes = new Uint8Array(blockHeaderBytes + mergedBytes(packs));
      const stream = this.gathered[0].stream;
      writeBlockHeader({ stream, firstOffset: this.end, storedAt: this.wall, maxTs: this.wall, salt: 7 }, bytes, 0);
      mergePacks(packs, bytes, blockHeaderBytes);
      this.blocks.push(new BlockView(bytes));
    }
    this.gathered = [];
    this.persists = false;
    const { tells } = this;
    this.tells = false;
    const held = this.held;
    this.held = [];
    for (const { to, value } of held) this.answers.set(to, value);
    if (placed.length > 0) this.perform(this.actor.receive({ type: "committed", placed }, 0, this.env));
    if (tells) this.perform(this.actor.receive({ type: "persisted" }, 0, this.env));
  }

  private perform(effects: readonly Effect[]): void {
    for (const effect of effects) {
      switch (effect.type) {
        case "reply":
          if (effect.hold) this.held.push(effect);
          else this.answers.set(effect.to, effect.value);
          break;
        case "append":
          this.gathered.push(effect);
          break;
        case "persist":
          this.persists = true;
          this.tells ||= effect.tell ?? false;
          break;
        case "trim":
          this.start = effect.start ?? this.end;
          break;
        case "wake":
          this.wakeAt = effect.at;
          break;
        case "tell":
          this.told.push(effect.message);
          break;
        case "stop":
          this.stopped.push(true);
          break;
        case "read": {
          const blocks = this.blocks.filter((block) => block.endOffset > effect.from && block.firstOffset < effect.to);
          const next = blocks.at(-1)?.endOffset ?? effect.from;
          this.perform(this.actor.receive({ type: "blocks", tag: effect.tag, blocks, next }, 0, this.env));
          break;
        }
        case "findTs": {
          const block = this.blocks.find((candidate) => candidate.storedAt >= effect.ts);
          const offset = block?.firstOffset ?? this.end;
          this.perform(this.actor.receive({ type: "found", tag: effect.tag, offset }, 0, this.env));
          break;
        }
        case "findId":
        case "latestOf": {
          const events = this.blocks.flatMap((block) =>
            Array.from({ length: block.count }, (_, index) => ({
              offset: block.firstOffset + index,
              ...block.pack.extension(index),
            })),
          );
          if (effect.type === "findId") {
            const offset = events.find(({ id }) => id === effect.id)?.offset;
            this.perform(this.actor.receive({ type: "found", tag: effect.tag, offset }, 0, this.env));
            break;
          }
          const latest = new Map<string, number>();
          for (const { key, offset } of events) if (key !== undefined && key > effect.after) latest.set(key, offset);
          const entries =
            this.indexOnly ??
            [...latest]
              .map(([key, offset]) => ({ key, offset }))
              .filter(({ key }) => effect.keys?.includes(key) ?? true)
              .sort((a, b) => (a.key < b.key ? -1 : 1))
              .slice(0, effect.limit);
          this.perform(this.actor.receive({ type: "latestFound", tag: effect.tag, entries }, 0, this.env));
          break;
        }
        case "ask":
        case "signal":
          throw new Error(`this stage has no use for ${effect.type}`);
        default:
          effect satisfies never;
      }
    }
  }
}
