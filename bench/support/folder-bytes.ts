import { readdirSync, statSync } from "node:fs";
import { join } from "node:path";

/** What was written, without what is only prepared: the blocks of a file of zeroes count as well. */
export function folderBytes(folder: string): number {
  let bytes = 0;
  for (const name of readdirSync(folder, { recursive: true }) as string[]) {
    const stat = statSync(join(folder, name));
    if (stat.isFile()) bytes += stat.size;
  }
  return bytes;
}
