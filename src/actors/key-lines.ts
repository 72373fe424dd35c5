// For groups with `ordering: "key"`: the unsettled events of each key in order. The first of a line is out, in backoff or dying;
// the others are blocked until it is settled.

export class KeyLines {
  private readonly lines = new Map<string, number[]>();
  private readonly keys = new Map<number, string>();

  get size(): number {
    return this.keys.size;
  }

  /** Whether an unsettled event has this key. */
  has(key: string): boolean {
    return this.lines.has(key);
  }

  /** Offsets come in rising order. */
  enter(key: string, offset: number): void {
    this.keys.set(offset, key);
    const line = this.lines.get(key);
    if (line === undefined) this.lines.set(key, [offset]);
    else line.push(offset);
  }

  /** The event is settled; gives the one that is the first of its key now, when that changed. */
  leave(offset: number): number | undefined {
    const key = this.keys.get(offset);
    if (key === undefined) return undefined;
    this.keys.delete(offset);
    const line = this.lines.get(key) as number[];
    if (line.length === 1) {
      this.lines.delete(key);
      return undefined;
    }
    const wasFirst = line[0] === offset;
    if (wasFirst) line.shift();
    else line.splice(line.indexOf(offset), 1);
    return wasFirst ? line[0] : undefined;
  }

  /** The key of an unsettled event, and the first of its line. */
  lineOf(offset: number): { readonly key: string; readonly first: number } | undefined {
    const key = this.keys.get(offset);
    return key === undefined ? undefined : { key, first: (this.lines.get(key) as number[])[0] };
  }

  /** The key behind whose first event the most wait; undefined when none does. */
  longest(): { readonly key: string; readonly line: readonly number[] } | undefined {
    let longest: { readonly key: string; readonly line: readonly number[] } | undefined;
    for (const [key, line] of this.lines) if (line.length > (longest?.line.length ?? 1)) longest = { key, line };
    return longest;
  }

  clear(): void {
    this.lines.clear();
    this.keys.clear();
  }

  /** Each line, for checks. */
  all(): Iterable<readonly number[]> {
    return this.lines.values();
  }
}
