// Memory that a virtual machine has given back to its host costs ten times as much when it is used again, and whoever is measured first
// would pay for it. So it is used once before each measurement, by a process that ends.

import { spawnSync } from "node:child_process";
import { numberFrom } from "./settings.ts";

const bytes = numberFrom("WARM_MEMORY_MB", 768) * 2 ** 20;

export function warmMemory(): void {
  spawnSync(process.execPath, ["-e", `Buffer.alloc(${bytes}, 1)`]);
}
