// One connection that sends what a grammar makes, in volleys, and holds the node to "every client frame is answered exactly once".

import { WebSocket } from "ws";
import { decodeServerBatch } from "../../src/protocol/batch.ts";
import { isFailure } from "../../src/protocol/failure.ts";
import { eventually, within } from "../support/deadline.ts";
import { Dice } from "../support/dice.ts";
import { BatchGrammar } from "./batch-grammar.ts";
import { Grammar, type Shot } from "./grammar.ts";
import { refusalFault, type Target, token } from "./target.ts";

interface Answer {
  readonly outcome: string;
  readonly fault: string | undefined;
  readonly text: string;
}

/** Counts by what was sent and what was answered. */
export type Tally = Map<string, number>;

const eventsKept = 200;
const volley = 128;
/** Durable groups stay when their connection ends: as many as this, then they are used again. */
export const durableGroupsMax = 16;

export class Attacker {
  private readonly socket: WebSocket;
  private readonly grammar: Grammar;
  private readonly batchGrammar: BatchGrammar | undefined;
  private readonly dice: Dice;
  /** By JSON of their corr; those without under "". */
  private readonly answers = new Map<string, Answer[]>();
  private count = 0;
  private closed: string | undefined;
  private garbage: string | undefined;

  private constructor(socket: WebSocket, dice: Dice, batches: boolean) {
    this.socket = socket;
    this.dice = dice;
    this.grammar = new Grammar(dice, { batches });
    // The first topic and the first group that are opened below.
    this.batchGrammar = batches ? new BatchGrammar(dice, { publish: 1, settle: 1 }) : undefined;
    socket.on("message", (data: Buffer, binary) => (binary ? this.takeBytes(data) : this.takeText(data.toString())));
    socket.on("close", (code) => {
      this.closed = String(code);
    });
    socket.on("error", (error) => {
      this.closed = error.message;
    });
  }

  static async open(target: Target, seed: number): Promise<Attacker> {
    const socket = new WebSocket(target.node.wsUrl, { perMessageDeflate: false });
    await within(5000, "a socket", new Promise((resolve, reject) => socket.on("open", resolve).on("error", reject)));
    const dice = new Dice(seed);
    const batches = dice.chance(50);
    const attacker = new Attacker(socket, dice, batches);
    const first = [{ op: "AUTH", token, ...(batches ? { batch: 1 } : {}) }];
    const rest = batches
      ? [
          { op: "OPEN", topic: "h.batch" },
          { op: "SUBSCRIBE", topic: "h.batch", group: `b${seed % durableGroupsMax}` },
        ]
      : [];
    for (const frame of [...first, ...rest]) socket.send(JSON.stringify(frame));
    await eventually(5000, "let in", () => attacker.count === 1 + rest.length);
    for (const { outcome, text } of attacker.answers.get("") ?? []) if (outcome !== "OK") throw new Error(text);
    attacker.forget();
    return attacker;
  }

  /** What was seen by somebody else, to be tried from here. */
  learn(seen: { readonly id: string; readonly lease: string }): void {
    const { seen: known } = this.grammar;
    if (known.length < eventsKept) known.push(seen);
    else known[this.dice.below(eventsKept)] = seen;
  }

  /** Sends up to `volley` frames and checks every answer. Gives how many were sent. */
  async shoot(tally: Tally, msMax: number): Promise<number> {
    const shots = Array.from({ length: volley }, () => this.shot());
    for (const { data } of shots) this.socket.send(data, { binary: typeof data !== "string" });
    const name = () => `${this.count} of ${shots.length} answers, closed: ${this.closed}`;
    await eventually(msMax, "every answer", () => this.count >= shots.length || this.closed !== undefined).catch(
      (error: Error) => {
        throw new Error(`${error.message}: ${name()}; unanswered: ${this.unanswered(shots)}`);
      },
    );
    // Whatever is behind a PING and answers a frame before it is one too many.
    this.socket.send('{"op":"PING","corr":"end of volley"}');
    await eventually(msMax, "a PING", () => this.answers.has('"end of volley"') || this.closed !== undefined);
    if (this.closed !== undefined) throw new Error(`closed with ${this.closed} after: ${shown(shots)}`);
    if (this.garbage !== undefined) throw new Error(`${this.garbage} after: ${shown(shots)}`);
    this.answers.delete('"end of volley"');
    for (const shot of this.ordered(shots)) this.check(shot, tally);
    const left = [...this.answers.values()].flat();
    if (left.length > 0) throw new Error(`answered twice: ${left[0].text} to one of: ${shown(shots)}`);
    this.forget();
    return shots.length;
  }

  close(): void {
    this.socket.terminate();
  }

  private shot(): Shot {
    return this.batchGrammar !== undefined && this.dice.chance(50) ? this.batchGrammar.next() : this.grammar.next();
  }

  /** Those that allow little first: several may share a corr, or have none. */
  private ordered(shots: readonly Shot[]): Shot[] {
    return shots.toSorted((a, b) => a.allowed.size - b.allowed.size);
  }

  private check({ data, kind, corr, allowed }: Shot, tally: Tally): void {
    const list = this.answers.get(corr ?? "") ?? [];
    const at = list.findIndex(({ outcome }) => allowed.has(outcome));
    if (at < 0) {
      const got = list.map(({ text }) => text.slice(0, 200)).join(" or ") || "nothing";
      throw new Error(`${kind} was answered ${got}, allowed ${[...allowed].join(" ")}: ${describe(data)}`);
    }
    const [{ outcome, fault, text }] = list.splice(at, 1);
    if (list.length === 0) this.answers.delete(corr ?? "");
    if (fault !== undefined) throw new Error(`${fault} in ${text.slice(0, 500)} to ${describe(data)}`);
    const name = `${kind} → ${outcome}`;
    tally.set(name, (tally.get(name) ?? 0) + 1);
  }

  private unanswered(shots: readonly Shot[]): string {
    return shown(shots.filter(({ corr }) => corr !== undefined && !this.answers.has(corr)));
  }

  private forget(): void {
    this.answers.clear();
    this.count = 0;
  }

  private takeText(text: string): void {
    const frame = JSON.parse(text) as {
      op: string;
      corr?: unknown;
      code?: string;
      msg?: string;
      topic?: string;
      event?: { id: string };
      ctx?: { lease: string };
    };
    if (frame.op === "EVENT" && frame.event !== undefined && frame.ctx !== undefined) {
      this.learn({ id: frame.event.id, lease: frame.ctx.lease });
      return;
    }
    // A subscription ended, which answers nothing.
    if (frame.op === "ERR" && frame.corr === undefined && frame.topic !== undefined) return;
    const corr = frame.corr === undefined ? "" : JSON.stringify(frame.corr);
    if (frame.op === "OK") this.note(corr, { outcome: "OK", fault: undefined, text });
    else if (frame.op === "ERR") this.note(corr, { outcome: String(frame.code), fault: refusalFault(frame), text });
    else this.garbage = `an unknown frame: ${text.slice(0, 200)}`;
  }

  private takeBytes(bytes: Buffer): void {
    const batch = decodeServerBatch(bytes);
    if (isFailure(batch)) this.garbage = batch.msg;
    else if (batch.op === "PUBLISHED") {
      const failed = batch.runs.find(({ status }) => status === "internal");
      const fault = failed === undefined ? undefined : "internal";
      this.note(String(batch.corr), { outcome: "PUBLISHED", fault, text: "PUBLISHED" });
    }
  }

  private note(corr: string, answer: Answer): void {
    const list = this.answers.get(corr);
    if (list === undefined) this.answers.set(corr, [answer]);
    else list.push(answer);
    if (corr !== '"end of volley"') this.count++;
  }
}

function describe(data: string | Uint8Array): string {
  return typeof data === "string"
    ? JSON.stringify(data).slice(0, 600)
    : Buffer.from(data).toString("hex").slice(0, 600);
}

function shown(shots: readonly Shot[]): string {
  return shots
    .slice(-5)
    .map(({ data }) => describe(data).slice(0, 200))
    .join("\n");
}
