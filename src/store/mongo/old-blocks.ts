// The oldest blocks of a stream, as far as retention needs to know them: `pruneTo` answers at once and cannot ask the database. Of a
// stream that began in this life of the shard they are known from its first block on. Of any other they are loaded when retention
// first asks, and again when it has used most of them up; until then nothing is removed.

export interface OldBlock {
  readonly first: number;
  readonly end: number;
  readonly storedAt: number;
  readonly bytes: number;
}

export interface Loaded {
  readonly blocks: readonly OldBlock[];
  readonly whole: boolean;
}

export const oldBlocksMax = 2048;

export class OldBlocks {
  private blocks: OldBlock[] = [];
  /** There is no block behind the last of these. */
  private whole: boolean;
  private start = 0;
  private added = 0;
  private loading = false;

  constructor({ fresh }: { readonly fresh: boolean }) {
    this.whole = fresh;
  }

  /** A block was stored. */
  add(block: OldBlock): void {
    this.added++;
    if (!this.whole) return;
    if (this.blocks.length < oldBlocksMax) this.blocks.push(block);
    else this.whole = false;
  }

  /** What ends at or before `start` is gone. */
  drop(start: number): void {
    this.start = start;
    this.blocks = this.blocks.filter(({ end }) => end > start);
  }

  /** The blocks that end at or before `start`, if all of those are known. */
  upTo(start: number): readonly OldBlock[] | undefined {
    if (!this.whole && (this.blocks.at(-1)?.end ?? 0) <= start) return undefined;
    return this.blocks.filter(({ end }) => end <= start);
  }

  all(): readonly OldBlock[] {
    return this.blocks;
  }

  /** Asks for more where few are left. `load` gives the blocks in order, from the first that lives, and whether those are all. */
  refill(load: (limit: number) => Promise<Loaded>, failed: (error: unknown) => void): void {
    if (this.whole || this.loading || this.blocks.length > oldBlocksMax / 2) return;
    this.loading = true;
    const { added } = this;
    load(oldBlocksMax)
      .then(({ blocks, whole }) => {
        // A list that ends early is never wrong: what was stored meanwhile is found by the next look.
        this.whole = whole && this.added === added;
        this.blocks = blocks.filter(({ end }) => end > this.start);
      }, failed)
      .finally(() => {
        this.loading = false;
      });
  }
}
