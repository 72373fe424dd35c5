// A host without a thread: simulated time, a gated store, and actors that a test writes as functions. What the host posts is
// cloned with its buffers transferred, as a port does it.

import type { Actor, ActorLimits, Effect, Env, Kinds, Notice, Ref, Shelf } from "../../src/actors/effects.ts";
import type { Answer, Message, Signal } from "../../src/actors/messages.ts";
import { failure } from "../../src/protocol/failure.ts";
import { encodePack } from "../../src/protocol/pack.ts";
import type { Item, Mail, ToFront, ToHost } from "../../src/runtime/envelope.ts";
import { Host } from "../../src/runtime/host-core.ts";
import { GatedStore } from "./gated-store.ts";
import { ManualClock } from "./manual-clock.ts";

export const hostLimits: ActorLimits = {
  maxAttempts: 5,
  topicsMax: 10,
  groupsPerTopicMax: 10,
  unsettledMax: 100,
  dedupeMs: 120_000,
  dedupeEntriesMax: 1000,
  pruneEveryMs: 10_000,
};

export type Receive = (message: Message | Notice, ref: Ref, env: Env) => readonly Effect[];
export type Script = (
  shelf: Shelf,
  env: Env,
) => Omit<Actor, "receive"> & { receive: Receive; first?: readonly Effect[] };

export class HostStage {
  readonly clock = new ManualClock();
  readonly store: GatedStore;
  readonly scripts = new Map<string, Script>();
  readonly residents: string[] = [];
  readonly posts: ToFront[] = [];
  readonly host: Host;
  private readonly inbox: ToHost[] = [];
  private nextId = 1;

  constructor({ reportTells = 1, store = new GatedStore() }: { reportTells?: number; store?: GatedStore } = {}) {
    this.store = store;
    const kinds: Kinds = {
      create: (cell, shelf, env) => {
        const script = this.scripts.get(cell);
        if (script === undefined) return undefined;
        const actor = script(shelf, env);
        return { actor, effects: actor.first ?? [] };
      },
      resident: () => this.residents,
      refusal: (message, reason) => failure(message.type === "publish" ? "publish_failed" : "ack_failed", reason),
      readsOnly: ({ type }) => type === "scan" || type === "describe" || type === "open",
    };
    this.host = new Host({
      settings: { worker: 0, shards: 2, store: { kind: "memory" }, limits: hostLimits, reportTells, testing: false },
      kinds,
      store: this.store,
      clock: this.clock,
      port: {
        take: () => this.inbox.shift(),
        post: (message, transfer) => void this.posts.push(structuredClone(message, { transfer: [...transfer] })),
      },
    });
  }

  /** An actor under this name; `receive` is all that most tests need. */
  script(name: string, receive: Receive, rest: Omit<Partial<Actor>, "receive"> = {}): void {
    this.scripts.set(name, () => ({ receive, ...rest }));
  }

  async open(...shards: number[]): Promise<void> {
    this.host.place(shards.length === 0 ? [0] : shards);
    await this.settle();
  }

  /** Lets everything happen that waits for nothing but promises. */
  async settle(): Promise<void> {
    for (let i = 0; i < 3; i++) await new Promise((resolve) => setImmediate(resolve));
  }

  ask(cell: string, message: Message, shard = 0): number {
    return this.askAll([[cell, message]], shard)[0];
  }

  /** Several messages in one post, hence in one turn. */
  askAll(messages: readonly (readonly [string, Message])[], shard = 0): number[] {
    const mail = messages.map(([cell, message]): Mail => ({ shard, cell, id: this.nextId++, message }));
    this.host.receive({ answers: [], mail });
    return mail.map(({ id }) => id);
  }

  tell(cell: string, message: Message, shard = 0): void {
    this.host.receive({ answers: [], mail: [{ shard, cell, id: 0, message }] });
  }

  /** Puts a post on the port without an event: the next turn takes it in. */
  leave(post: ToHost): void {
    this.inbox.push(post);
  }

  get items(): Item[] {
    return this.posts.flatMap(({ items }) => items);
  }

  ofType<T extends Item["type"]>(type: T): Extract<Item, { type: T }>[] {
    return this.items.filter((item): item is Extract<Item, { type: T }> => item.type === type);
  }

  answer(id: number): Answer | undefined {
    const answers = this.ofType("answer").filter((item) => item.id === id);
    if (answers.length > 1) throw new Error(`request ${id} was answered ${answers.length} times`);
    return answers[0]?.answer;
  }

  code(id: number): string | undefined {
    const answer = this.answer(id);
    return typeof answer === "object" && answer !== null && "code" in answer ? answer.code : undefined;
  }

  signals(): Signal[] {
    return this.ofType("signal").map(({ signal }) => signal);
  }
}

export function pack(...payloads: readonly unknown[]): Uint8Array {
  const encoder = new TextEncoder();
  return encodePack(payloads.map((payload) => ({ payload: encoder.encode(JSON.stringify(payload)) })));
}

export function publish(...payloads: readonly unknown[]): Message {
  return { type: "publish", pack: pack(...payloads), unparsed: false };
}

export function append(
  stream: number,
  bytes: Uint8Array,
  tag = 0,
  times: { tsMax?: number; tsGiven?: number } = {},
): Effect {
  return { type: "append", stream, pack: bytes, tag, tsMax: 0, tsGiven: 0, ...times };
}

export function reply(to: Ref, value: Answer, hold = false): Effect {
  return { type: "reply", to, value, hold };
}

/** A signal that a test can tell from others by its number. */
export function mark(member: number): Effect {
  return { type: "signal", signal: { type: "release", member, stream: 0, slots: 0 } };
}
