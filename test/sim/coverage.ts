// How often each fault, code and transition was met. What was never met was not tested, so a long run that misses one fails.

export class Coverage {
  private readonly counts = new Map<string, number>();

  hit(name: string, times = 1): void {
    this.counts.set(name, (this.counts.get(name) ?? 0) + times);
  }

  add(others: Readonly<Record<string, number>>): void {
    for (const [name, count] of Object.entries(others)) this.hit(name, count);
  }

  count(name: string): number {
    return this.counts.get(name) ?? 0;
  }

  toJSON(): Record<string, number> {
    return Object.fromEntries([...this.counts].sort(([a], [b]) => (a < b ? -1 : 1)));
  }
}
