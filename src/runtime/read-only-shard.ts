// A shard whose store takes no writes, as on a full disk: cells are started when somebody asks them something that only reads, from
// what is stored. Nothing is gathered here and no timer runs, so a cell can neither write nor loop. One that wants to write because
// of a request has changed its own state, which nobody may see: it is dropped, and the request refused.

import type { Effect, Env, Notice, Ref, Shelf } from "../actors/effects.ts";
import type { Answer, Message } from "../actors/messages.ts";
import { type Failure, failure } from "../protocol/failure.ts";
import type { ReadResult, ShardStore } from "../store/store.ts";
import { Cell } from "./cell.ts";
import { faultFields } from "./log.ts";
import { envOver, type Surroundings, shelfOver, type TokenCounter } from "./open-shard.ts";
import { performRead, type Reader } from "./perform.ts";

interface Job {
  readonly cell: Cell;
  readonly incarnation: number;
  readonly notice: Notice;
}

export class ReadOnlyShard implements Reader {
  readonly store: ShardStore;
  private readonly around: Surroundings;
  private readonly refusal: (message: Message) => Failure;
  private readonly shelf: Shelf;
  private readonly env: { -readonly [K in keyof Env]: Env[K] };
  private readonly cells = new Map<string, Cell>();
  private jobs: Job[] = [];
  private working = false;
  private status: "open" | "ended" = "open";
  private nextRef = 1;

  constructor(
    store: ShardStore,
    around: Surroundings,
    tokens: TokenCounter,
    /** What whoever wants to write is told. */
    refusal: (message: Message) => Failure,
  ) {
    this.store = store;
    this.around = around;
    this.refusal = refusal;
    this.shelf = shelfOver(store, around);
    this.env = envOver(store, around, tokens);
  }

  get cellCount(): number {
    return this.cells.size;
  }

  /** Whether somebody waits for an answer. */
  get busy(): boolean {
    for (const { open } of this.cells.values()) if (open.size > 0) return true;
    return false;
  }

  deliver(name: string, message: Message, id: number): void {
    const cell = this.cells.get(name) ?? this.start(name);
    if (!(cell instanceof Cell)) {
      this.respond(id, cell);
      return;
    }
    const ref = id === 0 ? 0 : this.nextRef++;
    if (ref !== 0) cell.open.set(ref, { message, origin: { kind: "front", id } });
    this.receive(cell, message, ref);
    this.work();
  }

  discard(reason: string): void {
    this.status = "ended";
    for (const cell of [...this.cells.values()]) this.drop(cell, () => failure("unavailable", reason));
    this.jobs = [];
  }

  // -------------------------------------------------------------------------------------------------- what reading asks for

  notify(cell: Cell, incarnation: number, notice: Notice): void {
    this.jobs.push({ cell, incarnation, notice });
  }

  readTail(): ReadResult | undefined {
    return undefined;
  }

  later(run: () => void): void {
    if (this.status === "ended") return;
    this.around.turn(() => {
      run();
      this.work();
    });
  }

  // --------------------------------------------------------------------------------------------------------------- cells

  private work(): void {
    if (this.working) return;
    this.working = true;
    for (let at = 0; at < this.jobs.length; at++) {
      const { cell, incarnation, notice } = this.jobs[at];
      if (cell.incarnation === incarnation) this.receive(cell, notice, 0);
    }
    this.jobs = [];
    this.working = false;
  }

  private start(name: string): Cell | Failure {
    this.refresh();
    const cell = new Cell(name, () => undefined);
    try {
      const made = this.around.kinds.create(name, this.shelf, this.env);
      if (made === undefined) return failure("unavailable", `no cell can be named ${name}`);
      cell.actor = made.actor;
      // What it wants to write at its start follows from what is stored, and will again when it is started for good.
      for (const effect of made.effects) if (!isWrite(effect)) this.perform(cell, effect);
    } catch (error) {
      this.logFault(cell, error, "start");
      return failure("unavailable", `${name} cannot be started`);
    }
    cell.status = "running";
    this.cells.set(name, cell);
    return cell;
  }

  private receive(cell: Cell, message: Message | Notice, ref: Ref): void {
    this.refresh();
    try {
      const effects = cell.actor!.receive(message, ref, this.env);
      if (effects.some(isWrite)) this.drop(cell, this.refusal);
      else for (const effect of effects) this.perform(cell, effect);
    } catch (error) {
      this.logFault(cell, error, message.type);
      this.answer(cell, ref, failure("internal", `${cell.name} failed on this request`));
      this.drop(cell, () => failure("unavailable", `${cell.name} was started again`));
    }
  }

  private perform(cell: Cell, effect: Effect): void {
    switch (effect.type) {
      // A reply that is held has nothing to wait for: no commit is under way.
      case "reply":
        this.answer(cell, effect.to, effect.value);
        break;
      case "ask":
        this.notify(cell, cell.incarnation, { type: "answer", tag: effect.tag, answer: this.refusal(effect.message) });
        break;
      case "read":
      case "findTs":
      case "findId":
      case "latestOf":
        performRead(this, cell, effect);
        break;
      case "stop":
        this.drop(cell, () => failure("unavailable", `${cell.name} has ended`));
        break;
      case "signal":
      case "tell":
      case "wake":
        break;
      case "append":
      case "persist":
      case "trim":
        throw new Error(`${effect.type} in a shard that takes no writes`);
      default:
        effect satisfies never;
    }
  }

  private answer(cell: Cell, ref: Ref, value: Answer): void {
    const origin = cell.open.get(ref)?.origin;
    cell.open.delete(ref);
    if (origin?.kind === "front") this.respond(origin.id, value);
  }

  private drop(cell: Cell, answer: (message: Message) => Failure): void {
    if (this.cells.get(cell.name) === cell) this.cells.delete(cell.name);
    cell.incarnation++;
    for (const [ref, { message }] of [...cell.open]) this.answer(cell, ref, answer(message));
  }

  private respond(id: number, answer: Answer): void {
    if (id !== 0) this.around.post({ type: "answer", id, answer });
  }

  private logFault(cell: Cell, error: unknown, doing: string): void {
    const { log, meter } = this.around;
    log.error("an actor failed", { shard: this.store.shard, cell: cell.name, doing, ...faultFields(error) });
    meter.cellRestarts++;
  }

  private refresh(): void {
    this.env.mono = this.around.clock.mono();
    this.env.wall = this.around.clock.wall();
  }
}

function isWrite({ type }: Effect): boolean {
  return type === "append" || type === "persist" || type === "trim";
}
