// The front's end of one worker, for one life of its thread. Messages are gathered and posted once per turn of the event loop;
// every request is answered: by the cell, by its deadline, or because the thread died. postMessage never refuses, so what is
// under way is counted here: a request holds its place until its answer comes (also after its deadline, since the work is still
// there), a tell until the host says that it took it in.

import type { Address, Answer, Message } from "../actors/messages.ts";
import { type Failure, failure } from "../protocol/failure.ts";
import type { Clock, Timer } from "./clock.ts";
import type { AskAnswer, Item, Mail, ToFront, ToHost } from "./envelope.ts";
import { faultFields, type Logger } from "./log.ts";
import { Room } from "./room.ts";

const overloadedWaitMs = 100;

export interface LinkLimits {
  readonly workerInflightMax: number;
  readonly workerInflightBytesMax: number;
  readonly askMs: number;
}

export interface LinkOptions {
  readonly worker: number;
  readonly clock: Clock;
  readonly log: Logger;
  readonly limits: LinkLimits;
  readonly post: (message: ToHost, transfer: readonly ArrayBuffer[]) => void;
  /** Everything but answers. */
  readonly item: (item: Exclude<Item, { type: "answer" }>) => void;
}

interface Pending {
  readonly bytes: number;
  readonly deadlineAt: number;
  readonly done: (answer: Answer) => void;
}

export class Link {
  private readonly options: LinkOptions;
  private readonly room = new Room();
  private mail: Mail[] = [];
  private answers: AskAnswer[] = [];
  private scheduled = false;
  private nextId = 1;
  /** In the order of their deadlines, because all have the same time. */
  private readonly pending = new Map<number, Pending>();
  /** Past their deadline and not answered: the bytes they still hold. */
  private readonly late = new Map<number, number>();
  private timer: Timer | undefined;
  /** Bytes handed out since the last message: they belong to the next one. */
  private looseBytes = 0;
  private bytes = 0;
  /** The bytes of each tell not yet taken in, and how many were before them. */
  private tellBytes: number[] = [];
  private tellsTaken = 0;
  private dead: Failure | undefined;

  constructor(options: LinkOptions) {
    this.options = options;
  }

  get underWay(): number {
    return this.pending.size + this.late.size + this.tellBytes.length;
  }

  get underWayBytes(): number {
    return this.bytes;
  }

  take(bytes: number): Uint8Array {
    this.looseBytes += bytes;
    return this.room.take(bytes);
  }

  /** A failure when it was not taken; `done` is not called then. */
  ask(to: Address, message: Message, done: (answer: Answer) => void): Failure | undefined {
    const { limits, worker, clock } = this.options;
    if (this.dead !== undefined) return this.dead;
    const bytes = this.claim();
    if (this.underWay >= limits.workerInflightMax || this.bytes + bytes > limits.workerInflightBytesMax) {
      return failure("overloaded", `worker ${worker} has more under way than it may`, overloadedWaitMs);
    }
    this.bytes += bytes;
    const id = this.nextId++;
    this.pending.set(id, { bytes, deadlineAt: clock.mono() + limits.askMs, done });
    if (this.timer === undefined) this.watch(limits.askMs);
    this.put({ shard: to.shard, cell: to.cell, id, message });
    return undefined;
  }

  /** Never refused: grants and the like are few, and a lost one would stop a subscription. They do count. */
  tell(to: Address, message: Message): void {
    if (this.dead !== undefined) return;
    const bytes = this.claim();
    this.bytes += bytes;
    this.tellBytes.push(bytes);
    this.put({ shard: to.shard, cell: to.cell, id: 0, message });
  }

  /** To a cell of this worker that asked another shard. */
  answer(answer: AskAnswer): void {
    if (this.dead !== undefined) return;
    this.answers.push(answer);
    this.schedule();
  }

  flush(): void {
    if (this.mail.length === 0 && this.answers.length === 0) return;
    const { mail, answers } = this;
    this.mail = [];
    this.answers = [];
    try {
      this.options.post({ answers, mail }, this.room.seal());
    } catch (error) {
      // Something in it cannot be cloned: a fault of this program, and no reason to let anyone wait for the deadline.
      this.options.log.error("a post to a worker failed", { worker: this.options.worker, ...faultFields(error) });
      for (const { id } of mail) if (id !== 0) this.settle(id, failure("internal", "the request cannot be posted"));
    }
  }

  receive({ items, tells }: ToFront): void {
    if (this.dead !== undefined) return;
    const taken = tells - this.tellsTaken;
    this.tellsTaken = tells;
    for (const bytes of this.tellBytes.splice(0, taken)) this.bytes -= bytes;
    for (const item of items) {
      if (item.type === "answer") this.settle(item.id, item.answer);
      else this.options.item(item);
    }
  }

  /** The thread is gone: everyone who waits is told, and everyone who comes. */
  fail(reason: Failure): void {
    this.dead = reason;
    this.timer?.cancel();
    this.mail = [];
    this.answers = [];
    const waiting = [...this.pending.values()];
    this.pending.clear();
    this.late.clear();
    this.tellBytes = [];
    this.bytes = 0;
    for (const { done } of waiting) done(reason);
  }

  private claim(): number {
    const bytes = this.looseBytes;
    this.looseBytes = 0;
    return bytes;
  }

  private put(mail: Mail): void {
    this.mail.push(mail);
    this.schedule();
  }

  private schedule(): void {
    if (this.scheduled) return;
    this.scheduled = true;
    this.options.clock.soon(() => {
      this.scheduled = false;
      this.flush();
    });
  }

  private settle(id: number, answer: Answer): void {
    const pending = this.pending.get(id);
    if (pending !== undefined) {
      this.pending.delete(id);
      this.bytes -= pending.bytes;
      pending.done(answer);
    } else {
      this.bytes -= this.late.get(id) ?? 0;
      this.late.delete(id);
    }
  }

  private watch(ms: number): void {
    this.timer = this.options.clock.after(ms, () => this.expire(), { background: true });
  }

  private expire(): void {
    this.timer = undefined;
    const now = this.options.clock.mono();
    const { askMs } = this.options.limits;
    const overdue: Pending[] = [];
    for (const [id, pending] of this.pending) {
      if (pending.deadlineAt > now) {
        this.watch(pending.deadlineAt - now);
        break;
      }
      this.pending.delete(id);
      this.late.set(id, pending.bytes);
      overdue.push(pending);
    }
    for (const { done } of overdue) done(failure("unavailable", `no answer within ${askMs} ms`));
  }
}
