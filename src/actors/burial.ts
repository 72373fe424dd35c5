// The way of dying events to the dead-letter topic: which topic that is, from the catalog; its partition is told so, durably; the
// stored event, from the log; then the copy is appended and the event settled in one step, so that both are in the same commit. The
// dead-letter partition lies in the shard of its source for that. It is opened before and not in that same commit, since what
// another cell adds to a commit may be left out of it, and then there would be events in a stream of which nobody knows whose it is.

import type { BlockView } from "../protocol/block.ts";
import { isFailure } from "../protocol/failure.ts";
import { encodePack, type PackEntry } from "../protocol/pack.ts";
import { partitionOf, streamOf } from "../protocol/stream.ts";
import { deadLetterEntry } from "./dead-letter.ts";
import type { Effect, Env, Shelf } from "./effects.ts";
import { entryKeys } from "./entries.ts";
import { endReasons, type LeaseLedger } from "./lease-ledger.ts";
import { type Answer, catalogAddress, partitionCell, type TopicRecord } from "./messages.ts";

const readBytesMax = 256 * 1024;
/** A guess: what it lacks is read next. */
const eventBytes = 512;
const movedBytesMax = 1024 * 1024;
const retryMs = 1000;

/** The partition of the dead-letter topic that lies in this shard. */
interface Grave {
  readonly record: TopicRecord;
  readonly stream: number;
}

/** That of the same number, where it lies here; the topic may be older than its source and have others. */
function graveOf(record: TopicRecord, partition: number, shard: number): Grave | undefined {
  const own = record.shards[partition] === shard ? partition : record.shards.indexOf(shard);
  return own < 0 ? undefined : { record, stream: streamOf(record.id, own) };
}

export class Burial {
  /** When a step that failed is tried again. */
  retryAt: number | undefined;
  private readonly stream: number;
  private readonly source: TopicRecord;
  private readonly group: string;
  private readonly shelf: Shelf;
  private readonly ledger: LeaseLedger;
  private readonly nextTag: () => number;
  private grave: Grave | undefined;
  /** The dead-letter partition was there since the catalog named it. */
  private opened = false;
  private asking: number | undefined;
  private opening: number | undefined;
  private reading: { readonly tag: number; readonly from: number } | undefined;

  constructor(options: {
    stream: number;
    source: TopicRecord;
    group: string;
    shelf: Shelf;
    ledger: LeaseLedger;
    nextTag: () => number;
  }) {
    this.stream = options.stream;
    this.source = options.source;
    this.group = options.group;
    this.shelf = options.shelf;
    this.ledger = options.ledger;
    this.nextTag = options.nextTag;
  }

  request(env: Env, effects: Effect[]): void {
    const { dying } = this.ledger.again;
    if (this.retryAt !== undefined && env.mono >= this.retryAt) this.retryAt = undefined;
    if (dying.size === 0 || this.retryAt !== undefined) return;
    // Not there although it was opened: its topic was deleted. The catalog knows.
    if (this.opened && !this.isOpen()) this.grave = undefined;
    if (this.grave === undefined) {
      if (this.asking !== undefined) return;
      this.asking = this.nextTag();
      const message = { type: "deadLetter", topicId: this.source.id, group: this.group } as const;
      effects.push({ type: "ask", to: catalogAddress, message, tag: this.asking });
    } else if (!this.isOpen()) {
      if (this.opening !== undefined) return;
      this.opening = this.nextTag();
      const { stream, record } = this.grave;
      const to = { shard: this.shelf.shard, cell: partitionCell(stream) };
      effects.push({ type: "ask", to, message: { type: "open", record }, tag: this.opening });
    } else if (this.reading === undefined) {
      // Up to the end, so that the first block after it tells when the event is gone.
      const to = this.shelf.head(this.stream)?.end ?? dying.firstEnd;
      this.reading = { tag: this.nextTag(), from: dying.first };
      effects.push({ type: "read", stream: this.stream, to, bytesMax: this.bytesWanted(), ...this.reading });
    }
  }

  answer(tag: number, answer: Answer, env: Env): void {
    if (tag === this.opening) {
      this.opening = undefined;
      this.opened = !isFailure(answer);
      if (this.opened) return;
      this.grave = undefined;
      this.retryAt = env.mono + retryMs;
    }
    if (tag !== this.asking) return;
    this.asking = undefined;
    const record = answer as Answer<"deadLetter">;
    this.grave = isFailure(record) ? undefined : graveOf(record, partitionOf(this.stream), this.shelf.shard);
    if (this.grave === undefined) this.retryAt = env.mono + retryMs;
    this.opened = this.isOpen();
  }

  private isOpen(): boolean {
    return this.grave !== undefined && this.shelf.entry(entryKeys.partition(this.grave.stream)) !== undefined;
  }

  /** The books were rewound or moved: what is being read is of no use. */
  reset(): void {
    this.reading = undefined;
  }

  failed(tag: number, env: Env): boolean {
    if (tag !== this.reading?.tag) return false;
    this.reading = undefined;
    this.retryAt = env.mono + retryMs;
    return true;
  }

  /** False when the read was not from here. The cursor has changed when something was settled: the caller persists. */
  blocks(tag: number, blocks: readonly BlockView[], next: number, env: Env, effects: Effect[]): boolean {
    const { reading, grave } = this;
    if (reading === undefined || tag !== reading.tag) return false;
    this.reading = undefined;
    if (grave === undefined || !this.isOpen()) return true;
    const { stream } = grave;
    const moved = this.copies(reading.from, blocks, next, env);
    if (moved.length === 0) {
      if (blocks.length === 0 && next <= reading.from) this.retryAt = env.mono + retryMs;
      return true;
    }
    effects.push({ type: "append", stream, pack: encodePack(moved), tag: this.nextTag(), tsMax: 0, tsGiven: 0 });
    return true;
  }

  /** Settles the dying events that were read and gives their copies; those whose bytes are gone are settled without. */
  private copies(from: number, blocks: readonly BlockView[], next: number, env: Env): PackEntry[] {
    const { again } = this.ledger;
    const moved: PackEntry[] = [];
    let bytes = 0;
    let at = from;
    for (const block of blocks) {
      this.skip(at, block.firstOffset, env);
      at = Math.max(at, block.firstOffset);
      for (let offset = again.dying.nextIn(at); offset < block.endOffset; offset = again.dying.nextIn(at)) {
        if (bytes >= movedBytesMax) return moved;
        const reason = again.reasons.get(offset) ?? endReasons.deadline;
        const entry = deadLetterEntry(block, offset - block.firstOffset, {
          topic: this.source.name,
          group: this.group,
          attempts: again.attemptsOf(offset),
          reason,
        });
        moved.push(entry);
        bytes += entry.payload.length;
        this.ledger.deadLetter(offset, reason, env.mono);
        at = offset + 1;
      }
      at = block.endOffset;
    }
    if (blocks.length === 0) this.skip(from, next, env);
    return moved;
  }

  /** One run of dying events; blocks are as large as they are. */
  private bytesWanted(): number {
    const { dying } = this.ledger.again;
    return Math.min(readBytesMax, (dying.firstEnd - dying.first) * eventBytes);
  }

  private skip(from: number, to: number, env: Env): void {
    const { dying } = this.ledger.again;
    for (let offset = dying.nextIn(from); offset < to; offset = dying.nextIn(offset)) {
      this.ledger.bury(offset, env.mono);
      this.ledger.totals.skipped++;
    }
  }
}
