// The lines of an export: blocks of whole lines out of a stream of bytes, and where in its topic the event of a line stands. A
// payload is never parsed here.

/** `MAX_FRAME` may be set up to 64 MiB, and nothing larger can have been an event. */
const lineBytesMax = 80 * 1024 * 1024;

export const newline = 0x0a;

export class LineTooLong extends Error {}

/** Takes bytes as they come and gives them back as whole lines. */
export class LineBlocks {
  private pending: Buffer[] = [];
  private pendingBytes = 0;

  /** All lines that are complete now, as one block that ends in a newline. */
  push(chunk: Buffer): Buffer | undefined {
    const end = chunk.lastIndexOf(newline) + 1;
    if (end === 0) {
      this.keep(chunk);
      return undefined;
    }
    const whole = chunk.subarray(0, end);
    const block = this.pending.length === 0 ? whole : Buffer.concat([...this.pending, whole]);
    this.pending = [];
    this.pendingBytes = 0;
    if (end < chunk.length) this.keep(chunk.subarray(end));
    return block;
  }

  /** What stands behind the last newline. */
  rest(): Buffer {
    return Buffer.concat(this.pending);
  }

  private keep(part: Buffer): void {
    this.pendingBytes += part.length;
    if (this.pendingBytes > lineBytesMax) throw new LineTooLong(`a line has more than ${lineBytesMax} bytes`);
    this.pending.push(part);
  }
}

/** Calls with the bounds of each line of a block, newlines left out. */
export function eachLine(block: Buffer, visit: (start: number, end: number) => void): void {
  for (let start = 0; start < block.length; ) {
    const end = block.indexOf(newline, start);
    visit(start, end);
    start = end + 1;
  }
}

const idPart = Buffer.from('{"id":"');
const tsPart = Buffer.from('","ts":');
const topicPart = Buffer.from(',"topic":"');
const partitionPart = Buffer.from('","partition":');
const offsetPart = Buffer.from(',"offset":');
const quote = 0x22;

/**
 * Reads the beginning of a line as a node writes it: id, ts, topic, partition, offset, in this order and without spaces. Neither an
 * id nor the name of a topic can have a quote or a backslash. The fields are those of the last line that was read.
 */
export class LineHead {
  partition = 0;
  offset = 0;
  private bytes: Buffer = Buffer.alloc(0);
  private at = 0;
  private end = 0;
  private idStart = 0;
  private idEnd = 0;
  private topicStart = 0;
  private topicEnd = 0;
  private number = 0;

  /** False: this is no line of an export. */
  read(bytes: Buffer, start: number, end: number): boolean {
    this.bytes = bytes;
    this.at = start;
    this.end = end;
    if (!this.literal(idPart)) return false;
    this.idStart = this.at;
    if (!this.text()) return false;
    this.idEnd = this.at;
    if (!this.literal(tsPart) || !this.digits() || !this.literal(topicPart)) return false;
    this.topicStart = this.at;
    if (!this.text()) return false;
    this.topicEnd = this.at;
    if (!this.literal(partitionPart) || !this.digits()) return false;
    this.partition = this.number;
    if (!this.literal(offsetPart) || !this.digits()) return false;
    this.offset = this.number;
    return this.at < end;
  }

  get id(): string {
    return this.bytes.toString("latin1", this.idStart, this.idEnd);
  }

  get topic(): string {
    return this.bytes.toString("latin1", this.topicStart, this.topicEnd);
  }

  /** As comparing `topic`, without making the text. */
  isOf(topic: Buffer): boolean {
    const { bytes, topicStart } = this;
    if (this.topicEnd - topicStart !== topic.length) return false;
    for (let i = 0; i < topic.length; i++) if (bytes[topicStart + i] !== topic[i]) return false;
    return true;
  }

  private literal(expected: Buffer): boolean {
    const { bytes, at } = this;
    if (at + expected.length > this.end) return false;
    for (let i = 0; i < expected.length; i++) if (bytes[at + i] !== expected[i]) return false;
    this.at = at + expected.length;
    return true;
  }

  /** Up to the next quote. */
  private text(): boolean {
    const { bytes, end } = this;
    const from = this.at;
    let at = from;
    while (at < end && bytes[at] !== quote) at++;
    this.at = at;
    return at > from && at < end;
  }

  private digits(): boolean {
    const { bytes, end } = this;
    const from = this.at;
    let value = 0;
    let at = from;
    for (; at < end; at++) {
      const digit = bytes[at] - 0x30;
      if (digit < 0 || digit > 9) break;
      value = value * 10 + digit;
    }
    this.at = at;
    this.number = value;
    return at > from && Number.isSafeInteger(value);
  }
}
