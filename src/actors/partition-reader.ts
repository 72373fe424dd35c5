// The reading half of a partition: pages of events as lines, positions by time and by id, the latest event of each key. Each
// question goes through one or more store reads; between them only its own small record is kept, so that readers cost the
// writers nothing but their turns.

import type { BlockView } from "../protocol/block.ts";
import { eventId } from "../protocol/event.ts";
import { type Failure, failure } from "../protocol/failure.ts";
import { parseId } from "../protocol/ids.ts";
import { partitionOf } from "../protocol/stream.ts";
import type { Effect, Env, Notice, Ref } from "./effects.ts";
import { EventLines } from "./lines.ts";
import type { Answer, MessageOf } from "./messages.ts";

type Question = MessageOf<"scan"> | MessageOf<"locateTs"> | MessageOf<"locateId"> | MessageOf<"latest">;
type Reading = Extract<Notice, { type: "blocks" | "found" | "latestFound" | "readFailed" }>;

/** What to do with what the store says next. */
type Step = (notice: Reading, env: Env) => readonly Effect[];

/** A page of latest events ends here even if more keys were asked for. */
const latestBytesMax = 4 * 1024 * 1024;

export class PartitionReader {
  private readonly stream: number;
  private readonly tag: () => number;
  private readonly steps = new Map<number, Step>();

  constructor(stream: number, tag: () => number) {
    this.stream = stream;
    this.tag = tag;
  }

  ask(question: Question, ref: Ref, topic: string): readonly Effect[] {
    switch (question.type) {
      case "scan":
        return this.scan(question, ref, topic);
      case "locateTs":
        return this.findTs(question.ts, ref);
      case "locateId":
        return this.locateId(question.id, ref);
      case "latest":
        return this.latest(question, ref, topic);
      default:
        return question satisfies never;
    }
  }

  receive(notice: Reading, env: Env): readonly Effect[] {
    const step = this.steps.get(notice.tag);
    if (step === undefined) return [];
    this.steps.delete(notice.tag);
    return step(notice, env);
  }

  private scan(scan: MessageOf<"scan">, ref: Ref, topic: string): readonly Effect[] {
    return this.read(scan.from, scan.to, scan.bytesMax, ref, (blocks, next, env) => {
      const lines = new EventLines(topic);
      const ends: number[] = [];
      const times: number[] = [];
      const offsets: number[] = [];
      const fromTs = scan.fromTs ?? Number.NEGATIVE_INFINITY;
      const toTs = scan.toTs ?? Number.POSITIVE_INFINITY;
      let at = scan.from;
      let full = false;
      for (const block of blocks) {
        for (let index = Math.max(0, scan.from - block.firstOffset); index < block.count && !full; index++) {
          const offset = block.firstOffset + index;
          if (offset >= scan.to) break;
          full = offsets.length >= scan.eventsMax || lines.byteLength >= scan.bytesMax;
          if (full) break;
          at = offset + 1;
          const ts = block.ts(index);
          if (ts < fromTs || ts > toTs) continue;
          lines.add(block, index);
          ends.push(lines.byteLength);
          times.push(ts);
          offsets.push(offset);
        }
        if (full) break;
      }
      // A gap at the end of what was read (removed or damaged events) is passed over too, and nothing left means done.
      if (!full) at = next > scan.from ? Math.min(Math.max(at, next), scan.to) : scan.to;
      return {
        lines: lines.copy(env.room),
        count: offsets.length,
        ends: Uint32Array.from(ends),
        ts: Float64Array.from(times),
        offsets: Float64Array.from(offsets),
        next: at,
        done: at >= scan.to,
      };
    });
  }

  private findTs(ts: number, ref: Ref): readonly Effect[] {
    const tag = this.expect(ref, (notice) => {
      if (notice.type !== "found" || notice.offset === undefined) return this.lost(notice, ref);
      return [{ type: "reply", to: ref, value: { offset: notice.offset } }];
    });
    return [{ type: "findTs", stream: this.stream, ts, tag }];
  }

  /** An id that the node made says where it is, but counts only if the record there has it; others are looked up. */
  private locateId(id: string, ref: Ref): readonly Effect[] {
    const made = parseId(id);
    if (made !== undefined && made.partition === partitionOf(this.stream)) {
      return this.read(
        made.offset,
        made.offset + 1,
        1,
        ref,
        ([block]) => position(block, made.offset, id) ?? this.lookUp(id, ref),
      );
    }
    return this.lookUp(id, ref);
  }

  private lookUp(id: string, ref: Ref): readonly Effect[] {
    const tag = this.expect(ref, (notice) => {
      if (notice.type !== "found") return this.lost(notice, ref);
      const { offset } = notice;
      if (offset === undefined) return [{ type: "reply", to: ref, value: unknownId(id) }];
      return this.read(offset, offset + 1, 1, ref, ([block]) => position(block, offset, id) ?? unknownId(id));
    });
    return [{ type: "findId", stream: this.stream, id, tag }];
  }

  private latest(question: MessageOf<"latest">, ref: Ref, topic: string): readonly Effect[] {
    const { keys, after, limit } = question;
    const tag = this.expect(ref, (notice, env) => {
      if (notice.type !== "latestFound") return this.lost(notice, ref);
      // Named before any of them turns out to be gone: a page that shrinks to nothing still says where to go on.
      const next = keys === undefined && notice.entries.length >= limit ? notice.entries.at(-1)?.key : undefined;
      return this.collect(notice.entries, new EventLines(topic), 0, next, ref, env, undefined);
    });
    return [{ type: "latestOf", stream: this.stream, ...(keys === undefined ? {} : { keys }), after, limit, tag }];
  }

  /** Reads the events one after the other, in the order of the keys; neighbours in a block share the read. */
  private collect(
    entries: readonly { readonly key: string; readonly offset: number }[],
    lines: EventLines,
    from: number,
    next: string | undefined,
    ref: Ref,
    env: Env,
    held: BlockView | undefined,
  ): readonly Effect[] {
    const block = held;
    for (let i = from; i < entries.length; i++) {
      const { offset } = entries[i];
      if (block === undefined || offset < block.firstOffset || offset >= block.endOffset) {
        if (lines.byteLength > latestBytesMax) return [this.latestReply(lines, i, entries[i - 1].key, ref, env)];
        return this.read(offset, offset + 1, 1, ref, ([found], _next, later) => {
          // Removed by retention in between: the key has no event any more.
          const gone = found === undefined || found.firstOffset > offset;
          const rest = gone ? entries.filter((_, index) => index !== i) : entries;
          return this.collect(rest, lines, i, next, ref, later, gone ? undefined : found);
        });
      }
      lines.add(block, offset - block.firstOffset);
    }
    return [this.latestReply(lines, entries.length, next, ref, env)];
  }

  private latestReply(lines: EventLines, count: number, next: string | undefined, ref: Ref, env: Env): Effect {
    const page = { lines: lines.copy(env.room), count };
    return { type: "reply", to: ref, value: next === undefined ? page : { ...page, next } };
  }

  /** Reads and goes on with the blocks; `then` gives the answer, or effects where more must be read first. */
  private read(
    from: number,
    to: number,
    bytesMax: number,
    ref: Ref,
    then: (blocks: readonly BlockView[], next: number, env: Env) => Answer | readonly Effect[],
  ): readonly Effect[] {
    const tag = this.expect(ref, (notice, env) => {
      if (notice.type !== "blocks") return this.lost(notice, ref);
      const result = then(notice.blocks, notice.next, env);
      return Array.isArray(result) ? result : [{ type: "reply", to: ref, value: result as Answer }];
    });
    return [{ type: "read", stream: this.stream, from, to, bytesMax, tag }];
  }

  private expect(ref: Ref, step: Step): number {
    const tag = this.tag();
    this.steps.set(tag, (notice, env) => {
      if (notice.type === "readFailed") return [{ type: "reply", to: ref, value: notice.failure }];
      return step(notice, env);
    });
    return tag;
  }

  private lost(notice: Reading, ref: Ref): readonly Effect[] {
    return [{ type: "reply", to: ref, value: failure("internal", `the store answered with ${notice.type}`) }];
  }
}

function position(
  block: BlockView | undefined,
  offset: number,
  id: string,
): { offset: number; ts: number } | undefined {
  if (block === undefined || offset < block.firstOffset || offset >= block.endOffset) return undefined;
  const index = offset - block.firstOffset;
  return eventId(block, index) === id ? { offset, ts: block.ts(index) } : undefined;
}

function unknownId(id: string): Failure {
  return failure("unknown_id", `no event ${id} here`);
}
