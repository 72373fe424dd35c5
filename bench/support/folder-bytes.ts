import { closeSync, openSync, readdirSync, readSync, statSync } from "node:fs";
import { join } from "node:path";

/** What was written, without what is only prepared: a file that is made ready is full of zeroes, and so is what is left of the last one. */
export function folderBytes(folder: string): number {
  let bytes = 0;
  for (const name of readdirSync(folder, { recursive: true }) as string[]) {
    const path = join(folder, name);
    const stat = statSync(path);
    if (stat.isFile()) bytes += writtenBytes(path, stat.size);
  }
  return bytes;
}

/** Up to the last byte that is not zero. */
function writtenBytes(path: string, size: number): number {
  const fd = openSync(path, "r");
  const chunk = Buffer.alloc(1024 * 1024);
  try {
    for (let end = size; end > 0; end -= Math.min(end, chunk.length)) {
      const length = Math.min(end, chunk.length);
      readSync(fd, chunk, 0, length, end - length);
      let last = length - 1;
      while (last >= 0 && chunk[last] === 0) last--;
      if (last >= 0) return end - length + last + 1;
    }
    return 0;
  } finally {
    closeSync(fd);
  }
}
