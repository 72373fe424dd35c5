// What is known of whoever reads our stdout.

import { once } from "node:events";

/** Waits for a slow reader, so that what it has not taken does not pile up here. */
export async function stdoutDrained(): Promise<void> {
  if (!process.stdout.writableNeedDrain || process.stdout.errored !== null) return;
  await once(process.stdout, "drain").catch((error: NodeJS.ErrnoException) => {
    // Whether the work ends with its reader is decided in watchProcess.
    if (error.code !== "EPIPE") throw error;
  });
}

const columnsDefault = 80;

/** Of the terminal; undefined where stdout is none. */
export function stdoutColumns(): number | undefined {
  return process.stdout.isTTY ? process.stdout.columns || columnsDefault : undefined;
}
