// One measurement: what the work took in time and on the processor, of the system and of this process, which is the client.

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
