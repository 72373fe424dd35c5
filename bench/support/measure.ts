// One measurement: what the work took in time and on the processor, of the system and of this process, which is the client.

import { setTimeout as sleep } from "node:timers/promises";
import { type CpuReading, cpuBetween, type System } from "./system.ts";

export interface Measured {
  readonly ms: number;
  /** Of the processor, in microseconds. */
  readonly used: Used;
}

export interface Used extends Partial<CpuReading> {
  readonly client?: number;
}

export async function measure(system: Pick<System, "cpu">, work: () => Promise<void>): Promise<Measured> {
  const before = await system.cpu();
  const client = process.cpuUsage();
  const started = performance.now();
  await work();
  const ms = performance.now() - started;
  const used = process.cpuUsage(client);
  return { ms, used: { ...cpuBetween(before, await system.cpu()), client: used.user + used.system } };
}

const lookMs = 200;
const looksMax = 50;
/** Of a core. */
const quietShare = 0.05;

/** Resolves when the system has nothing left to do. */
export async function quiet(system: Pick<System, "cpu">): Promise<void> {
  for (let looks = 0; looks < looksMax; looks++) {
    const { server: before } = await system.cpu();
    await sleep(lookMs);
    const { server: after } = await system.cpu();
    if (after - before < quietShare * lookMs * 1000) return;
  }
}

/**
 * What a node prepares once after its start must not be taken for a cost of the events after it. A file that is ready is begun with the next
 * commit, and then the one after it is prepared: so it has to be quiet twice.
 */
export async function warmUpToQuiet(
  system: Pick<System, "cpu">,
  warmUp: number,
  advance: (to: number) => Promise<unknown>,
): Promise<void> {
  for (const to of [Math.floor(warmUp / 2), warmUp]) {
    await advance(to);
    await quiet(system);
  }
}
