// One event, from the call of `publish` to its answer.

import type { Published } from "../bus/event-bus.ts";
import type { PublishedResult } from "../protocol/batch.ts";
import { makeId } from "../protocol/ids.ts";
import type { Extension } from "../protocol/pack.ts";
import { type NarthexError, TimeoutError, UnknownOutcomeError } from "./errors.ts";

export interface Call {
  /** Calls are counted: in this order they are stored. */
  readonly number: number;
  readonly topic: string;
  readonly payload: unknown;
  /** The payload as JSON. */
  readonly text: string;
  readonly extension: Extension;
  readonly until: number;
  readonly resolve: (published: Published) => void;
  readonly reject: (error: NarthexError) => void;
  /** It has its answer. */
  readonly onSettled: (event: Outgoing) => void;
}

export class Outgoing {
  readonly call: Call;
  settled = false;
  /** A batch was refused for what one of its events is: each of them goes alone. */
  alone = false;

  constructor(call: Call) {
    this.call = call;
  }

  get hasId(): boolean {
    return this.call.extension.id !== undefined;
  }

  get chars(): number {
    const { text, extension } = this.call;
    const { key, id, meta } = extension;
    return text.length + (key?.length ?? 0) + (id?.length ?? 0) + (meta?.length ?? 0);
  }

  /** As event `index` of the run. */
  resolve(run: PublishedResult, index: number, durability: string): void {
    if (!this.settle()) return;
    const { topic, payload, extension } = this.call;
    const { key, id, ts, meta } = extension;
    const { partition, storedAt } = run;
    const offset = run.offset + index;
    // Under an id of one's own a duplicate is somebody's earlier event; otherwise it is this one, sent again.
    const duplicate = id !== undefined && run.status === "duplicate";
    this.call.resolve({
      id: id ?? makeId(storedAt, offset, partition, run.salt),
      ts: duplicate ? storedAt : (ts ?? storedAt),
      topic,
      partition,
      offset,
      ...(key === undefined ? undefined : { key }),
      // As it is stored: without what was given empty.
      ...(meta === undefined ? undefined : (JSON.parse(meta) as object)),
      payload,
      durability,
      ...(duplicate ? { duplicate } : undefined),
    });
  }

  reject(error: NarthexError): void {
    if (this.settle()) this.call.reject(error);
  }

  /** It is surely not stored. */
  timeOut(): void {
    this.reject(new TimeoutError("timeout", `not published to ${this.call.topic} in time`));
  }

  /** It may be stored, once. */
  doubt(): void {
    const text = `nothing came back from ${this.call.topic} that says whether the event is stored`;
    this.reject(new UnknownOutcomeError("unknown_outcome", text));
  }

  private settle(): boolean {
    if (this.settled) return false;
    this.settled = true;
    this.call.onSettled(this);
    return true;
  }
}
