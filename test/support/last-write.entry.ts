// A worker program that dies with a long write under way.

import { openSync, write } from "node:fs";
import type { HostTask } from "../../src/runtime/resident.ts";

export default async function host({ settings }: HostTask): Promise<void> {
  if (settings.store.kind !== "log") throw new Error("needs a path");
  const bytes = Buffer.alloc(128 * 1024 * 1024, 1);
  write(openSync(settings.store.path, "w"), bytes, () => undefined);
  setImmediate(() => {
    throw new Error("died while writing");
  });
  await new Promise(() => undefined);
}
