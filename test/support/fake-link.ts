// A connection as the publisher of the client sees it, in the hands of a test: what is asked waits for the test's answer.

import type { Answer, Ok } from "../../src/client/connection.ts";
import type { Link } from "../../src/client/lane.ts";
import { decodeClientBatch, type PublishBatch, type PublishedResult } from "../../src/protocol/batch.ts";
import { type Code, failure, isFailure } from "../../src/protocol/failure.ts";

export interface Asked {
  readonly bytes: Uint8Array;
  readonly batch: PublishBatch;
  /** `seq` and a `+` where it is chained. */
  readonly name: string;
  readonly payloads: readonly unknown[];
  readonly answer: (answer: Answer) => void;
  readonly refuse: (code: Code, retryAfterMs?: number) => void;
  /** As one run from this offset on. */
  readonly store: (offset: number, run?: Partial<PublishedResult>) => void;
}

export interface Opening {
  readonly topic: string;
  readonly answer: (answer: Answer) => void;
  readonly refuse: (code: Code, retryAfterMs?: number) => void;
  readonly ok: (partitions?: number, handle?: number) => void;
}

export class FakeLink implements Link {
  live = true;
  unsent = 0;
  maxFrame = 8_388_608;
  maxPayload = 1_048_576;
  /** Everything that was asked, in order; what no node could read is refused as a node would. */
  readonly batches: Asked[] = [];
  readonly opens: Opening[] = [];
  private readonly unanswered = new Set<(answer: Answer) => void>();
  private corr = 0;

  ask({ op, topic }: { op: string; topic?: unknown }, done: (answer: Answer) => void): void {
    if (op !== "OPEN") throw new Error(`a publisher asks no ${op}`);
    const { answer, refuse } = this.question(done);
    if (!this.live) return;
    const ok = (partitions = 1, handle = this.opens.length) =>
      answer({ op: "OK", handle, partitions, durability: "fsync" } satisfies Ok);
    this.opens.push({ topic: topic as string, answer, refuse, ok });
  }

  askBinary(encode: (corr: number) => Uint8Array, done: (answer: Answer) => void): void {
    const { answer, refuse } = this.question(done);
    if (!this.live) return;
    const corr = this.corr++;
    const bytes = encode(corr).slice();
    const batch = decodeClientBatch(bytes, { maxPayload: this.maxPayload, batchEventsMax: 10_000 });
    if (isFailure(batch)) {
      answer(batch);
      return;
    }
    if (batch.op !== "PUBLISH") throw new Error(JSON.stringify(batch));
    const { pack, batch: named } = batch;
    const payloads = Array.from({ length: pack.count }, (_, i): unknown =>
      JSON.parse(new TextDecoder().decode(pack.payload(i))),
    );
    const store = (offset: number, run: Partial<PublishedResult> = {}) => {
      const partition = named?.partition ?? 0;
      const all = { index: 0, count: pack.count, partition, offset, storedAt: 1000, salt: 1, retryAfterMs: 0 };
      answer({ op: "PUBLISHED", corr, runs: [{ ...all, status: "stored", ...run }] });
    };
    const name = `${named?.seq}${named?.chained ? "+" : ""}`;
    this.batches.push({ bytes, batch, name, payloads, answer, refuse, store });
  }

  /** The connection ends: whoever waits is told. */
  drop(): void {
    this.live = false;
    for (const answer of [...this.unanswered]) answer("lost");
  }

  private question(done: (answer: Answer) => void): Pick<Asked, "answer" | "refuse"> {
    const answer = (value: Answer) => {
      if (!this.unanswered.delete(answer)) throw new Error("answered twice");
      done(value);
    };
    this.unanswered.add(answer);
    if (!this.live) answer("lost");
    return { answer, refuse: (code, retryAfterMs) => answer(failure(code, `${code}, says the test`, retryAfterMs)) };
  }
}
