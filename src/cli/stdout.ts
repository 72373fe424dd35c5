// What is known of whoever reads our stdout.

import { once } from "node:events";

/** Waits for a slow reader, so that what it has not taken does not pile up here. */
export async function stdoutDrained(): Promise<void> {
  if (process.stdout.writableNeedDrain) await once(process.stdout, "drain");
}

const columnsDefault = 80;

/** Of the terminal; undefined where stdout is none. */
export function stdoutColumns(): number | undefined {
  return process.stdout.isTTY ? process.stdout.columns || columnsDefault : undefined;
}
