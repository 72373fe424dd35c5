// The bytes of one turn's post: frames and packs are written straight into chunks, and the post transfers them all. (Measured
// here: below 16 KiB copying a chunk and transferring it cost the same within 1 µs, so there is only the one way.)

const chunkBytesMin = 4 * 1024;
const chunkBytesMax = 1024 * 1024;

export class Room {
  private chunk: Uint8Array<ArrayBuffer> | undefined;
  private used = 0;
  private turnBytes = 0;
  /** Grows at once with what a turn needs, shrinks slowly. */
  private expectedBytes = 0;
  private filled: ArrayBuffer[] = [];

  take(bytes: number): Uint8Array {
    this.turnBytes += bytes;
    if (this.chunk === undefined || this.used + bytes > this.chunk.length) {
      this.chunk = new Uint8Array(Math.max(bytes, this.chunkBytes()));
      this.filled.push(this.chunk.buffer);
      this.used = 0;
    }
    const at = this.used;
    // Views of numbers wider than a byte may be laid over what is handed out.
    this.used = (at + bytes + 7) & ~7;
    return this.chunk.subarray(at, at + bytes);
  }

  /** The buffers to transfer; what comes next is of the next turn. */
  seal(): ArrayBuffer[] {
    const filled = this.filled;
    this.expectedBytes = Math.max(this.turnBytes, Math.floor(this.expectedBytes * 0.875));
    this.turnBytes = 0;
    this.chunk = undefined;
    this.filled = [];
    return filled;
  }

  private chunkBytes(): number {
    const wanted = Math.max(this.expectedBytes, this.turnBytes);
    if (wanted <= chunkBytesMin) return chunkBytesMin;
    return Math.min(2 ** Math.ceil(Math.log2(wanted)), chunkBytesMax);
  }
}
