// One connection from its opening to its end: AUTH, questions and their answers by `corr`, events by the handle of their
// subscription. It is never repaired: whoever holds it is told once that it is lost, and gets the next one.

import { decodeServerBatch, type EventsBatch, type PublishedBatch } from "../protocol/batch.ts";
import { codes, type Failure, failure, isFailure } from "../protocol/failure.ts";
import type { ClientClock, Timer } from "./clock.ts";
import { deferred } from "./deferred.ts";
import { ConnectionError, type NarthexError, refused } from "./errors.ts";
import type { Dial, Wire } from "./wire.ts";

export interface Ok {
  readonly op: "OK";
  readonly [field: string]: unknown;
}

/** `lost`: the connection ended first, and what was asked may have been done or not. */
export type Answer = Ok | PublishedBatch | Failure | "lost";

export interface ConnectionOptions {
  readonly dial: Dial;
  readonly url: string;
  readonly token: string | undefined;
  readonly clock: ClientClock;
  /** For the socket and AUTH together. */
  readonly openMs: number;
  /** Nothing was heard for so long: ask. No answer within `answerMs`: the connection is dead. */
  readonly silentMs: number;
  readonly answerMs: number;
  /** Once, after `open` resolved; every question has its answer by then. */
  readonly onLost: (connection: Connection, reason: string) => void;
  /** The node ended a subscription, by its own decision. */
  readonly onEnded: (topic: string, group: string, why: Failure) => void;
}

interface Question {
  readonly done: (answer: Answer) => void;
  readonly until: number;
}

const corrMax = 0xffffffff;
const lookMsMax = 1000;

export class Connection {
  /** What the node said in AUTH, in bytes. */
  maxFrame = 0;
  maxPayload = 0;
  readonly #options: ConnectionOptions;
  readonly #questions = new Map<number, Question>();
  readonly #receivers = new Map<number, (batch: EventsBatch) => void>();
  readonly #wire: Wire;
  #status: "opening" | "open" | "closed" = "opening";
  readonly #opening = deferred<Connection>();
  /** Resolves with this once the node has let us in; rejects with a ConnectionError, or with the refusal of AUTH. */
  readonly opened = this.#opening.promise;
  #lastCorr = 0;
  #heardAt: number;
  #timer: Timer | undefined;

  constructor(options: ConnectionOptions) {
    this.#options = options;
    const { clock, url, openMs } = options;
    this.#heardAt = clock.mono();
    this.#timer = clock.after(openMs, () => this.#end(`no answer from ${url} within ${openMs} ms`));
    this.#wire = options.dial(url, {
      opened: () => {
        this.authenticate(options.token).then(
          () => this.#admitted(),
          (error: NarthexError) => this.#end(error.message, error),
        );
      },
      text: (frame) => this.#takeText(frame),
      binary: (frame) => this.#takeBinary(frame),
      closed: (code, reason) => this.#end(`${reason || "the connection was closed"} (${code})`),
    });
  }

  get live(): boolean {
    return this.#status === "open";
  }

  /** Bytes that the socket has not taken yet. */
  get unsent(): number {
    return this.#wire.unsent;
  }

  /** One answer per question, always; a closed connection answers `lost` at once. It may come before this returns. */
  ask(frame: { readonly op: string; readonly [field: string]: unknown }, done: (answer: Answer) => void): void {
    let text: string;
    try {
      text = JSON.stringify(frame);
    } catch (error) {
      done(failure("bad_option", `${frame.op} cannot be written as JSON: ${(error as Error).message}`));
      return;
    }
    this.askBinary((corr) => `{"corr":${corr},${text.slice(1)}`, done);
  }

  /** A frame that is made for the corr that it is given. */
  askBinary(encode: (corr: number) => string | Uint8Array, done: (answer: Answer) => void): void {
    if (this.#status === "closed") {
      done("lost");
      return;
    }
    do this.#lastCorr = this.#lastCorr === corrMax ? 1 : this.#lastCorr + 1;
    while (this.#questions.has(this.#lastCorr));
    this.#questions.set(this.#lastCorr, { done, until: this.#options.clock.mono() + this.#options.answerMs });
    this.#wire.send(encode(this.#lastCorr));
  }

  /** As a promise: resolves with the fields of the OK. */
  request(frame: { readonly op: string; readonly [field: string]: unknown }): Promise<Ok> {
    return new Promise((resolve, reject) => {
      this.ask(frame, (answer) => {
        if (answer === "lost") reject(new ConnectionError("connection_lost", `lost before ${frame.op} was answered`));
        else if (isFailure(answer)) reject(refused(answer));
        else resolve(answer as Ok);
      });
    });
  }

  /** Events under this handle go there. To be called while the OK of the SUBSCRIBE is being taken, since they may follow at once. */
  receive(handle: number, receiver: (batch: EventsBatch) => void): void {
    this.#receivers.set(handle, receiver);
  }

  ignore(handle: number): void {
    this.#receivers.delete(handle);
  }

  /** AUTH, also again on a live connection. */
  async authenticate(token: string | undefined): Promise<void> {
    const { batch, max_frame: maxFrame, max_payload: maxPayload } = await this.request({ op: "AUTH", batch: 1, token });
    if (batch !== 1) throw new ConnectionError("connect_failed", "the node does not speak batches");
    this.maxFrame = maxFrame as number;
    this.maxPayload = maxPayload as number;
  }

  close(reason = "closed by the client"): void {
    this.#end(reason);
  }

  // ---------------------------------------------------------------------------------------------------------------- inside

  #admitted(): void {
    if (this.#status !== "opening") return;
    this.#status = "open";
    this.#timer?.cancel();
    this.#watch();
    this.#opening.resolve(this);
  }

  /** Looks for questions without an answer, and asks one where nothing was heard for long: half-open sockets tell nothing. */
  #watch(): void {
    const { clock, silentMs, answerMs } = this.#options;
    const look = () => {
      const now = clock.mono();
      const [oldest] = this.#questions.values();
      if (oldest !== undefined && oldest.until <= now) {
        this.#end(`no answer within ${answerMs} ms`);
        return;
      }
      if (oldest === undefined && now - this.#heardAt >= silentMs) this.ask({ op: "PING" }, () => undefined);
      this.#watch();
    };
    this.#timer = clock.after(Math.min(lookMsMax, silentMs, answerMs), look, true);
  }

  #takeText(text: string): void {
    this.#heardAt = this.#options.clock.mono();
    if (this.#status === "closed") return;
    const frame = parsed(text);
    if (frame === undefined) {
      this.#end("a frame that is not JSON");
      return;
    }
    const { corr, topic, group } = frame;
    if (frame.op !== "OK" && (frame.op as string) !== "ERR") {
      this.#end("what answers there is no narthex node");
      return;
    }
    const answer: Answer = frame.op === "OK" ? frame : toFailure(frame);
    if (corr !== undefined) {
      this.#answer(corr, answer);
    } else if (isFailure(answer) && topic !== undefined && group !== undefined) {
      this.#options.onEnded(topic, group, answer);
    }
  }

  #takeBinary(bytes: Uint8Array): void {
    this.#heardAt = this.#options.clock.mono();
    if (this.#status === "closed") return;
    const batch = decodeServerBatch(bytes);
    if (isFailure(batch)) {
      this.#end(`a frame that cannot be read: ${batch.msg}`);
    } else if (batch.op === "EVENTS") {
      this.#receivers.get(batch.handle)?.(batch);
    } else {
      this.#answer(batch.corr, batch);
    }
  }

  #answer(corr: number, answer: Answer): void {
    const question = this.#questions.get(corr);
    this.#questions.delete(corr);
    question?.done(answer);
  }

  #end(reason: string, error?: NarthexError): void {
    if (this.#status === "closed") return;
    const wasOpen = this.#status === "open";
    this.#status = "closed";
    this.#timer?.cancel();
    this.#receivers.clear();
    this.#wire?.close();
    const { url, onLost } = this.#options;
    this.#opening.reject(error ?? new ConnectionError("connect_failed", `${url} cannot be reached: ${reason}`));
    const open = [...this.#questions.values()];
    this.#questions.clear();
    for (const { done } of open) done("lost");
    if (wasOpen) onLost(this, reason);
  }
}

type TextFrame = Ok & Partial<Failure> & { corr?: number; topic?: string; group?: string };

function parsed(text: string): TextFrame | undefined {
  try {
    return (JSON.parse(text) as TextFrame | null) ?? undefined;
  } catch {
    return undefined;
  }
}

/** Whatever the node may say one day, a failure has a code that is known here. */
function toFailure({ code, msg, retry_after_ms: retryAfterMs }: Partial<Failure>): Failure {
  const known = code !== undefined && Object.hasOwn(codes, code) ? code : "internal";
  return failure(known, msg ?? "refused", retryAfterMs);
}
