// What the next commit of a shard will hold, cell by cell, and how it becomes one. A cell's part is all or nothing: it is placed
// and persisted as a whole or, if `persist` throws, left out as a whole, and the others do not notice.

import type { Env, Placed, Put } from "../actors/effects.ts";
import type { Answer } from "../actors/messages.ts";
import { BlockView, blockHeaderBytes, writeBlockHeader } from "../protocol/block.ts";
import { mergedBytes, mergePacks, PackView } from "../protocol/pack.ts";
import type { Commit, StreamHead, Trim } from "../store/store.ts";
import type { Cell, Request } from "./cell.ts";

/** Past one of these the cell that appends takes no more messages until the commit is under way: soft bounds. */
const blockBytesMax = 4 * 1024 * 1024;
const blockEventsMax = 65_536;
const commitBytesMax = 16 * 1024 * 1024;

const persistDelayMs = 10;
const saltBound = 2 ** 14;

interface Append {
  readonly stream: number;
  readonly pack: PackView;
  readonly tag: number;
  readonly tsMax: number;
  readonly tsGiven: number;
}

interface Part {
  readonly cell: Cell;
  readonly incarnation: number;
  readonly appends: Append[];
  persists: boolean;
  /** The cell wants to know when what it persists is durable. */
  tells: boolean;
  readonly trims: Trim[];
}

/** A reply that leaves when the commit is durable. */
export interface Held {
  readonly cell: Cell;
  readonly request: Request;
  readonly value: Answer;
}

export class Gather {
  readonly sequence: number;
  readonly parts = new Map<Cell, Part>();
  held: Held[] = [];
  /** When it must be committed, in monotonic time: Infinity while there is nothing, 0 for at the end of this turn. */
  dueAt = Number.POSITIVE_INFINITY;
  private readonly streams = new Map<number, { bytes: number; events: number }>();
  private bytes = 0;

  constructor(sequence: number) {
    this.sequence = sequence;
  }

  /** False: the cell has filled this commit. */
  append(cell: Cell, effect: Omit<Append, "pack"> & { readonly pack: Uint8Array }): boolean {
    const pack = new PackView(effect.pack);
    const { stream, tag, tsMax, tsGiven } = effect;
    this.part(cell).appends.push({ stream, pack, tag, tsMax, tsGiven });
    this.dueAt = 0;
    let use = this.streams.get(stream);
    if (use === undefined) {
      use = { bytes: 0, events: 0 };
      this.streams.set(stream, use);
    }
    use.bytes += pack.byteLength;
    use.events += pack.count;
    this.bytes += pack.byteLength;
    return use.bytes < blockBytesMax && use.events < blockEventsMax && this.bytes < commitBytesMax;
  }

  persist(cell: Cell, { soon, tell, now }: { soon: boolean; tell: boolean; now: number }): void {
    const part = this.part(cell);
    part.persists = true;
    part.tells ||= tell;
    this.dueAt = Math.min(this.dueAt, soon ? 0 : now + persistDelayMs);
  }

  trim(cell: Cell, trim: Trim): void {
    this.part(cell).trims.push(trim);
    this.dueAt = 0;
  }

  /** Forgets the part of a cell that failed and gives its held replies, which must be answered otherwise. */
  drop(cell: Cell): Held[] {
    this.parts.delete(cell);
    if (this.parts.size === 0) this.dueAt = Number.POSITIVE_INFINITY;
    const dropped = this.held.filter((held) => held.cell === cell);
    if (dropped.length > 0) this.held = this.held.filter((held) => held.cell !== cell);
    return dropped;
  }

  private part(cell: Cell): Part {
    let part = this.parts.get(cell);
    if (part === undefined) {
      part = { cell, incarnation: cell.incarnation, appends: [], persists: false, tells: false, trims: [] };
      this.parts.set(cell, part);
      cell.lastCommit = this.sequence;
    }
    return part;
  }
}

export interface Built {
  readonly commit: Commit;
  readonly blocks: readonly BlockView[];
  readonly placed: readonly {
    readonly cell: Cell;
    readonly incarnation: number;
    readonly placed: readonly Placed[];
  }[];
  /** The cells that asked to be told. */
  readonly persisted: readonly { readonly cell: Cell; readonly incarnation: number }[];
  readonly faults: readonly { readonly cell: Cell; readonly error: unknown }[];
  readonly events: number;
  readonly bytes: number;
}

interface Growth {
  readonly firstOffset: number;
  readonly storedAt: number;
  readonly salt: number;
  readonly appends: Append[];
  end: number;
}

/** Gives the appends their offsets, asks each cell what to write, and merges the packs of a stream into one block. */
export function buildCommit(
  gather: Gather,
  world: { head(stream: number): StreamHead | undefined; env: Env; random(bound: number): number },
): Built {
  const growths = new Map<number, Growth>();
  const puts: Put[] = [];
  const trims: Trim[] = [];
  const placed: { cell: Cell; incarnation: number; placed: readonly Placed[] }[] = [];
  const persisted: { cell: Cell; incarnation: number }[] = [];
  const faults: { cell: Cell; error: unknown }[] = [];
  for (const part of gather.parts.values()) {
    const { cell, incarnation } = part;
    // Offsets are taken back by simply not advancing `end` when the cell's `persist` throws.
    const ends = new Map<number, number>();
    const own = part.appends.map(({ stream, pack, tag }): Placed => {
      const growth = growthOf(stream);
      const offset = ends.get(stream) ?? growth.end;
      ends.set(stream, offset + pack.count);
      return { tag, stream, offset, count: pack.count, storedAt: growth.storedAt, salt: growth.salt };
    });
    if (part.persists || own.length > 0) {
      try {
        for (const put of cell.actor?.persist?.(own, world.env) ?? []) puts.push(put);
      } catch (error) {
        faults.push({ cell, error });
        continue;
      }
    }
    for (const append of part.appends) growthOf(append.stream).appends.push(append);
    for (const [stream, end] of ends) growthOf(stream).end = end;
    trims.push(...part.trims);
    if (own.length > 0) placed.push({ cell, incarnation, placed: own });
    if (part.tells) persisted.push({ cell, incarnation });
  }
  const blocks: BlockView[] = [];
  for (const [stream, growth] of growths) if (growth.appends.length > 0) blocks.push(blockOf(stream, growth));
  let events = 0;
  let bytes = 0;
  for (const block of blocks) {
    events += block.count;
    bytes += block.bytes.length;
  }
  const commit = { blocks: blocks.map((block) => block.bytes), puts, trims };
  return { commit, blocks, placed, persisted, faults, events, bytes };

  function growthOf(stream: number): Growth {
    let growth = growths.get(stream);
    if (growth === undefined) {
      const head = world.head(stream);
      const firstOffset = head?.end ?? 0;
      // The clock of the node may step back, that of a stream never does.
      const storedAt = Math.max(Math.floor(world.env.wall), head?.lastStoredAt ?? 0);
      growth = { firstOffset, storedAt, salt: world.random(saltBound), appends: [], end: firstOffset };
      growths.set(stream, growth);
    }
    return growth;
  }
}

function blockOf(stream: number, { firstOffset, storedAt, salt, appends }: Growth): BlockView {
  const packs = appends.map(({ pack }) => pack);
  let maxTs = 0;
  let given = true;
  for (const { tsMax, tsGiven, pack } of appends) {
    maxTs = Math.max(maxTs, tsMax);
    given &&= tsGiven === pack.count;
  }
  if (!given) maxTs = Math.max(maxTs, storedAt);
  const bytes = new Uint8Array(blockHeaderBytes + mergedBytes(packs));
  writeBlockHeader({ stream, firstOffset, storedAt, maxTs, salt }, bytes, 0);
  mergePacks(packs, bytes, blockHeaderBytes);
  return new BlockView(bytes);
}
