// What was published, stored, delivered and settled, by identity and in bounded memory. An event carries its line (a key, or the one
// who published it) and its number on that line. So the log is whole if each line goes up by one in it, a position always holds the same
// event, and what a group has seen are ranges of offsets that grow together.

import { RangeSet } from "../../src/actors/range-set.ts";

/** The positions that are remembered with their event, of each partition. */
const remembered = 2 ** 16;
const faultsKept = 30;

/** What was seen that must not be. */
export class Faults {
  readonly list: string[] = [];
  count = 0;

  add(text: string): void {
    this.count++;
    if (this.list.length < faultsKept) this.list.push(text);
  }
}

export interface Mark {
  readonly line: number;
  readonly n: number;
}

export interface Place {
  readonly partition: number;
  readonly offset: number;
}

class Positions {
  readonly offsets = new Float64Array(remembered).fill(-1);
  readonly marks = new Float64Array(remembered);
  /** The next offset that the reader of the log expects. */
  next = 0;
}

/** One topic: what was issued, where it is, and the log as a reader of it finds it. */
export class TopicAudit {
  readonly topic: string;
  private readonly faults: Faults;
  private readonly issued = new Map<number, number>();
  private readonly read = new Map<number, number>();
  private readonly positions: Positions[];
  confirmed = 0;
  logged = 0;

  constructor(topic: string, partitions: number, faults: Faults) {
    this.topic = topic;
    this.faults = faults;
    this.positions = Array.from({ length: partitions }, () => new Positions());
  }

  get issuedCount(): number {
    let sum = 0;
    for (const next of this.issued.values()) sum += next;
    return sum;
  }

  issue(line: number): Mark {
    const n = this.issued.get(line) ?? 0;
    this.issued.set(line, n + 1);
    return { line, n };
  }

  /** Somebody was told that the event is there. */
  holds({ partition, offset }: Place, mark: Mark, who: string): void {
    const { offsets, marks } = this.positions[partition];
    const at = offset % remembered;
    const code = mark.line * 2 ** 32 + mark.n;
    if (mark.n >= (this.issued.get(mark.line) ?? 0))
      this.faults.add(`${who}: ${mark.line}/${mark.n} was never published`);
    if (offsets[at] === offset && marks[at] !== code) {
      const other = `${Math.floor(marks[at] / 2 ** 32)}/${marks[at] % 2 ** 32}`;
      this.faults.add(
        `${who}: ${this.topic} ${partition}:${offset} is ${mark.line}/${mark.n}, and was said to be ${other}`,
      );
    }
    if (offsets[at] > offset) return;
    offsets[at] = offset;
    marks[at] = code;
  }

  /** The reader of the log has come to this event. */
  inLog({ partition, offset }: Place, mark: Mark): void {
    const position = this.positions[partition];
    if (offset !== position.next)
      this.faults.add(`log: ${this.topic} ${partition}: ${offset} comes where ${position.next} should`);
    position.next = offset + 1;
    const next = this.read.get(mark.line) ?? 0;
    if (mark.n !== next)
      this.faults.add(`log: ${this.topic} ${partition}:${offset} is ${mark.line}/${mark.n}, not /${next}`);
    this.read.set(mark.line, mark.n + 1);
    this.logged++;
    this.holds({ partition, offset }, mark, "log");
  }

  /** At the end everything that was issued was confirmed, and the reader has come to all of it. */
  finish(): void {
    for (const [line, next] of this.issued) {
      const read = this.read.get(line) ?? 0;
      if (read !== next) this.faults.add(`log: ${this.topic}: line ${line} has ${read} events, published were ${next}`);
    }
  }

  ends(): number[] {
    return this.positions.map(({ next }) => next);
  }
}

class GroupPartition {
  readonly seen = new RangeSet();
  readonly settled = new RangeSet();
  /** Delivered and not settled, with the highest attempt. */
  readonly live = new Map<number, number>();
}

export interface GroupAuditOptions {
  /** Events of a key come in order. */
  readonly ordered?: boolean;
  /** Its latencies count. */
  readonly measured?: boolean;
  /** It is moved, and has no dead letters, since a seek revives them. */
  readonly seeks?: boolean;
}

/** A group that wants everything from the beginning. */
export class GroupAudit {
  readonly name: string;
  readonly topic: TopicAudit;
  private readonly faults: Faults;
  private readonly partitions: GroupPartition[];
  /** Of a group with `ordering: "key"`: the next number of each line. */
  private readonly lines: Map<number, number> | undefined;
  readonly measured: boolean;
  readonly seeks: boolean;
  /** Counts the seeks, since what was asked before one means nothing after it. */
  generation = 0;
  private moving = false;
  delivered = 0;
  again = 0;
  dead = 0;
  /** What nobody can handle, and is not among the dead letters yet. */
  private readonly doomed = new Set<string>();

  constructor(name: string, topic: TopicAudit, faults: Faults, options: GroupAuditOptions = {}) {
    this.name = name;
    this.measured = options.measured ?? false;
    this.seeks = options.seeks ?? false;
    this.lines = options.ordered ? new Map() : undefined;
    this.topic = topic;
    this.faults = faults;
    this.partitions = topic.ends().map(() => new GroupPartition());
  }

  /** Gives whether it is the first time. */
  deliver(place: Place, mark: Mark, attempt: number): boolean {
    const { seen, settled, live } = this.partitions[place.partition];
    const { offset } = place;
    this.topic.holds(place, mark, this.name);
    this.delivered++;
    const before = live.get(offset);
    if (this.moving) live.delete(offset);
    else if (settled.has(offset)) this.fault(place, `came as attempt ${attempt} although it was settled`);
    if (!this.moving && before !== undefined && attempt <= before)
      this.fault(place, `came as attempt ${attempt} after attempt ${before}`);
    live.set(offset, attempt);
    if (seen.has(offset)) {
      this.again++;
      return false;
    }
    seen.add(offset, offset + 1);
    const expected = this.lines?.get(mark.line) ?? 0;
    if (this.lines !== undefined && mark.n !== expected)
      this.fault(place, `is ${mark.line}/${mark.n} and came before ${mark.line}/${expected}`);
    this.lines?.set(mark.line, mark.n + 1);
    return true;
  }

  /** The node said that it is settled; `generation` is that of when it was asked to. */
  settle({ partition, offset }: Place, generation: number): void {
    if (generation !== this.generation) return;
    const { settled, live } = this.partitions[partition];
    settled.add(offset, offset + 1);
    live.delete(offset);
  }

  /** It may be settled and may come again. */
  inDoubt({ partition, offset }: Place): void {
    this.partitions[partition].live.delete(offset);
  }

  doom({ partition, offset }: Place): void {
    this.doomed.add(`${partition}:${offset}`);
  }

  get isBuried(): boolean {
    return this.doomed.size === 0;
  }

  bury(place: Place, attempts: number, maxAttempts: number): void {
    const { seen, settled, live } = this.partitions[place.partition];
    if (!seen.has(place.offset)) this.fault(place, "is a dead letter and was never delivered");
    if (settled.has(place.offset)) this.fault(place, "is a dead letter and was settled before");
    if (attempts !== maxAttempts) this.fault(place, `is a dead letter after ${attempts} attempts of ${maxAttempts}`);
    if (!this.doomed.delete(`${place.partition}:${place.offset}`)) this.fault(place, "is a dead letter and no poison");
    settled.add(place.offset, place.offset + 1);
    live.delete(place.offset);
    this.dead++;
  }

  /**
   * Called when a seek is asked for and when it was answered. What is delivered in between may be from before it or from after it, and so
   * may be what is answered: nothing is concluded from either.
   */
  seek(to: readonly number[], state: "asked" | "answered"): void {
    this.generation++;
    this.moving = state === "asked";
    for (const [partition, offset] of to.entries()) {
      this.partitions[partition].settled.remove(offset, Number.MAX_SAFE_INTEGER);
      this.partitions[partition].live.clear();
    }
  }

  get rangeCount(): number {
    return this.partitions.reduce((sum, { seen, settled }) => sum + seen.rangeCount + settled.rangeCount, 0);
  }

  /** What it has not seen of the log. */
  missing(): number {
    const ends = this.topic.ends();
    return this.partitions.reduce((sum, { seen }, i) => sum + ends[i] - seen.countIn(0, ends[i]), 0);
  }

  finish(): void {
    for (const [partition, end] of this.topic.ends().entries()) {
      const { seen } = this.partitions[partition];
      for (let at = seen.nextOut(0); at < end; at = seen.nextOut(seen.nextIn(at)))
        this.fault(
          { partition, offset: at },
          `was never delivered (and those up to ${Math.min(end, seen.nextIn(at))})`,
        );
    }
  }

  private fault({ partition, offset }: Place, text: string): void {
    this.faults.add(`${this.name}: ${this.topic.topic} ${partition}:${offset} ${text}`);
  }
}
