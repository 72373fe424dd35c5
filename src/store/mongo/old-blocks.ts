// The oldest blocks of a stream, as far as retention needs to know them: `pruneTo` answers at once and cannot ask the database. Of a
// stream that began in this life of the shard they are known from its first block on. Of any other they are loaded when retention
// first asks, and again when it has used most of them up; until then nothing is removed.

export interface OldBlock {
  readonly first: number;
  readonly end: number;
  readonly storedAt: number;
  readonly bytes: number;
}

export const oldBlocksMax = 2048;

export class OldBlocks {
  private blocks: OldBlock[];
  /** There is no block behind the last of these. */
  private whole: boolean;
  private loading = false;

  constructor({ fresh }: { readonly fresh: boolean }) {
    this.blocks = [];
    this.whole = fresh;
  }

  /** A block was stored. */
  add(block: OldBlock): void {
    if (!this.whole) return;
    if (this.blocks.length < oldBlocksMax) this.blocks.push(block);
    else this.whole = false;
  }

  /** What ends at or before `start` is gone. */
  drop(start: number): void {
    const kept = this.blocks.findIndex(({ end }) => end > start);
    this.blocks.splice(0, kept < 0 ? this.blocks.length : kept);
  }

  /** The blocks that end at or before `start`, if all of those are known. */
  upTo(start: number): readonly OldBlock[] | undefined {
    if (!this.whole && (this.blocks.at(-1)?.end ?? 0) <= start) return undefined;
    return this.blocks.filter(({ end }) => end <= start);
  }

  /** The block that holds this offset, if it is known. */
  holding(offset: number): OldBlock | undefined {
    return this.blocks.find(({ first, end }) => first <= offset && offset < end);
  }

  all(): readonly OldBlock[] {
    return this.blocks;
  }

  /** Asks for more where few are left. `load` gives the blocks in order, from the first that lives. */
  refill(load: (limit: number) => Promise<readonly OldBlock[]>, failed: (error: unknown) => void): void {
    if (this.whole || this.loading || this.blocks.length > oldBlocksMax / 2) return;
    this.loading = true;
    load(oldBlocksMax)
      .then((blocks) => {
        // What was stored or trimmed meanwhile is found by the next look: a list that ends early is never wrong.
        this.blocks = [...blocks];
      }, failed)
      .finally(() => {
        this.loading = false;
      });
  }
}
