// The program of a worker thread (dist/host.js), started by the pool.

import { kinds } from "../actors/kinds.ts";
import { openStore } from "../store/open.ts";
import { type HostTask, runResident } from "./resident.ts";

export default function host(task: HostTask): Promise<void> {
  return runResident(task, { kinds, openStore });
}
