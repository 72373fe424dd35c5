// What was done and what was answered, in the order in which the harness knew it, and the first promise that was seen broken.

export class Violation extends Error {}

export class Journal {
  round = 0;
  violation: Violation | undefined;
  /** Of the event that the violation is about. */
  about: number | undefined;
  private readonly lines: string[] = [];
  private readonly byEvent = new Map<number, string[]>();
  private readonly counts = new Map<string, number>();
  private readonly startedAt = performance.now();
  /** How late this process was lately, and how long an answer takes: what it reads just now may be as old as both. */
  private lateMs = 0;
  private answerMs = 0;
  private probedAt: number | undefined;
  private alarm: () => void = () => undefined;
  /** Resolves when a promise was seen broken. */
  readonly broken: Promise<void>;

  constructor() {
    this.broken = new Promise((resolve) => {
      this.alarm = resolve;
    });
    let due = performance.now() + lookMs;
    const watch = setInterval(() => {
      const now = performance.now();
      // It fades over some seconds.
      this.lateMs = Math.max(this.lateMs - lookMs, now - due, 0);
      this.answerMs = Math.max(this.answerMs - lookMs, 0);
      due = now + lookMs;
    }, lookMs);
    watch.unref();
  }

  get lagMs(): number {
    const asking = this.probedAt === undefined ? 0 : performance.now() - this.probedAt;
    return this.lateMs + Math.max(this.answerMs, asking);
  }

  probing(): void {
    this.probedAt = performance.now();
  }

  probed(): void {
    if (this.probedAt === undefined) return;
    const ms = performance.now() - this.probedAt;
    this.probedAt = undefined;
    this.answerMs = Math.max(this.answerMs, ms);
    this.count("probes");
    this.count("ms of probes", Math.round(ms));
  }

  /** About one event, by its number, or about all. */
  note(n: number | undefined, what: string): void {
    const line = `${((performance.now() - this.startedAt) / 1000).toFixed(3)} s, round ${this.round}: ${what}`;
    if (n === undefined) {
      this.lines.push(line);
      if (this.lines.length > linesMax) this.lines.splice(0, linesMax / 2);
      return;
    }
    const own = this.byEvent.get(n);
    if (own === undefined) this.byEvent.set(n, [line]);
    else own.push(line);
  }

  /** An event that is gone for good. */
  forget(n: number): void {
    this.byEvent.delete(n);
  }

  count(name: string, by = 1): void {
    this.counts.set(name, (this.counts.get(name) ?? 0) + by);
  }

  counted(name: string): number {
    return this.counts.get(name) ?? 0;
  }

  table(): [string, number][] {
    return [...this.counts].sort(([a], [b]) => (a < b ? -1 : 1));
  }

  /** Throws where it can be seen; where somebody catches everything, `broken` still tells. */
  fail(what: string, n?: number): never {
    throw this.violated(what, n);
  }

  /** The same where nothing can be thrown. */
  violated(what: string, n?: number): Violation {
    if (this.violation === undefined) {
      this.violation = new Violation(what);
      this.about = n;
      this.note(n, `VIOLATION ${what}`);
      this.alarm();
    }
    return this.violation;
  }

  story(): string {
    const own = this.about === undefined ? [] : (this.byEvent.get(this.about) ?? []);
    const name = this.about === undefined ? "" : `\nabout event ${this.about}:\n${own.join("\n")}\n`;
    return `the latest of all that is about no single event:\n${this.lines.slice(-60).join("\n")}\n${name}`;
  }
}

const linesMax = 4000;
const lookMs = 50;
