// A worker program for tests of the runtime: real threads, a real store, and one small kind of actor.

import type { Actor, Effect, Env, Kinds, Notice, Placed, Put, Ref, Shelf } from "../../src/actors/effects.ts";
import type { Message } from "../../src/actors/messages.ts";
import { failure } from "../../src/protocol/failure.ts";
import { type HostTask, runResident } from "../../src/runtime/resident.ts";
import { openStore } from "../../src/store/open.ts";

/**
 * `log/<stream>`: `publish` appends and is answered when stored; `scan` gives the payloads as lines; `describe` is answered at
 * once; `locateTs` asks the cell of the same name on shard `ts`; `latest` is never answered; `drop` makes it throw; `flow` is
 * counted; `cursor` waits for a lazy persist.
 */
class LogActor implements Actor {
  private readonly stream: number;
  private readonly name: string;
  private readonly shelf: Shelf;
  private readonly open = new Map<number, Ref>();
  private nextTag = 1;
  private published = 0;
  private flows = 0;
  private cursors: number;

  constructor(name: string, shelf: Shelf) {
    this.name = name;
    this.stream = Number(name.split("/")[1]);
    this.shelf = shelf;
    this.cursors = shelf.entry(`cursors/${name}`)?.[0] ?? 0;
  }

  receive(message: Message | Notice, ref: Ref, env: Env): readonly Effect[] {
    const tag = this.nextTag++;
    switch (message.type) {
      case "publish":
        this.open.set(tag, ref);
        return [{ type: "append", stream: this.stream, pack: message.pack, tag, tsMax: 0, tsGiven: 0 }];
      case "committed":
        return message.placed.flatMap((placed) => this.stored(placed));
      case "scan":
        this.open.set(tag, ref);
        return [{ type: "read", stream: this.stream, from: message.from, to: message.to, bytesMax: 1_000_000, tag }];
      case "blocks":
        return [{ type: "reply", to: this.close(message.tag), value: page(message, env) }];
      case "describe":
        return [{ type: "reply", to: ref, value: { offset: this.cursors, ts: this.flows } }];
      case "locateTs":
        this.open.set(tag, ref);
        return [{ type: "ask", to: { shard: message.ts, cell: this.name }, message: { type: "describe" }, tag }];
      case "answer":
        return [{ type: "reply", to: this.close(message.tag), value: message.answer }];
      case "flow":
        this.flows++;
        return [{ type: "signal", signal: { type: "release", member: message.member, stream: this.stream, slots: 1 } }];
      case "cursor":
        this.cursors++;
        return [{ type: "persist" }, { type: "reply", to: ref, value: { offset: this.cursors }, hold: true }];
      case "drop":
        throw new Error("asked to throw");
      default:
        return [];
    }
  }

  persist(): readonly Put[] {
    return [[`cursors/${this.name}`, new Uint8Array([this.cursors])]];
  }

  stats() {
    const head = this.shelf.head(this.stream);
    return [
      { name: "published_total", labels: { cell: this.name }, value: this.published },
      { name: "end", labels: { cell: this.name }, value: head?.end ?? 0 },
    ];
  }

  private stored({ tag, stream, offset, count, storedAt, salt }: Placed): readonly Effect[] {
    this.published += count;
    const runs = [{ index: 0, count, offset, storedAt, salt }];
    return [{ type: "reply", to: this.close(tag), value: { durability: this.shelf.durabilityOf(stream), runs } }];
  }

  private close(tag: number): Ref {
    const ref = this.open.get(tag) ?? 0;
    this.open.delete(tag);
    return ref;
  }
}

function page({ blocks, next }: Extract<Notice, { type: "blocks" }>, env: Env) {
  const payloads = blocks.flatMap((block) =>
    Array.from({ length: block.count }, (_, index) => [...block.pack.payload(index), 0x0a]),
  );
  const bytes = payloads.flat();
  const lines = env.room(bytes.length);
  lines.set(bytes);
  const none = { ends: new Uint32Array(), ts: new Float64Array(), offsets: new Float64Array() };
  return { lines, count: payloads.length, ...none, next, done: blocks.length === 0 };
}

const kinds: Kinds = {
  create: (cell, shelf) => (cell.startsWith("log/") ? { actor: new LogActor(cell, shelf), effects: [] } : undefined),
  resident: () => ["log/1"],
  refusal: (message, reason) => failure(message.type === "publish" ? "publish_failed" : "unavailable", reason),
  readsOnly: ({ type }) => type === "scan" || type === "describe",
};

export default function host(task: HostTask): Promise<void> {
  return runResident(task, { kinds, openStore });
}
