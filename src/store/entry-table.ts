// The named entries of a shard. Hosts ask for prefixes at start, once per actor, so the keys are sorted on the first ask after
// one came or went; a put to a key that is there costs a map write.

export class EntryTable {
  private readonly values = new Map<string, Uint8Array>();
  private sorted: string[] | undefined;

  get size(): number {
    return this.values.size;
  }

  get(key: string): Uint8Array | undefined {
    return this.values.get(key);
  }

  /** Keeps a copy: the caller may use its buffer again. */
  put(key: string, value: Uint8Array | null): void {
    if (value === null) {
      if (this.values.delete(key)) this.sorted = undefined;
      return;
    }
    if (!this.values.has(key)) this.sorted = undefined;
    this.values.set(key, Uint8Array.from(value));
  }

  all(): IterableIterator<[string, Uint8Array]> {
    return this.values.entries();
  }

  /** In key order. What is put while this is under way may or may not be seen. */
  *withPrefix(prefix: string): IterableIterator<readonly [string, Uint8Array]> {
    this.sorted ??= [...this.values.keys()].sort();
    const keys = this.sorted;
    for (let at = lowerBound(keys, prefix); at < keys.length && keys[at].startsWith(prefix); at++) {
      const value = this.values.get(keys[at]);
      if (value !== undefined) yield [keys[at], value];
    }
  }
}

function lowerBound(keys: readonly string[], wanted: string): number {
  let low = 0;
  let high = keys.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (keys[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low;
}
