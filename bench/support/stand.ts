// What a node holds while nothing happens: resident memory after each of its threads has collected its garbage, and what of it is on heaps. It is
// compared with what was there before, since much of a process is the same whatever it serves.

import { Threads } from "../../test/hostile/threads.ts";
import { dataFolder } from "../../test/support/node-process.ts";
import { type NarthexSystem, startNarthex } from "../systems/narthex.ts";
import { residentBytes } from "./cpu.ts";
import type { Settings } from "./settings.ts";

export interface Stand {
  readonly resident: number;
  /** On the heaps of all threads, and outside of them for what is on them. */
  readonly held: number;
  readonly timers: number;
}

export interface Standing {
  readonly system: NarthexSystem;
  look(): Promise<Stand>;
  stop(): Promise<void>;
}

export async function startStanding(set: Settings): Promise<Standing> {
  const beside = dataFolder();
  const threads = new Threads(beside.path, { timers: true });
  const system = await startNarthex(set, "library", { NODE_OPTIONS: threads.nodeOptions });
  return {
    system,
    async look() {
      const held = await threads.look(system.pid);
      const sum = [...held.values()].reduce((a, b) => a + b, 0);
      return { resident: residentBytes(system.pid), held: sum, timers: threads.timers };
    },
    async stop() {
      await system.stop();
      beside.remove();
    },
  };
}

/** Of each of `count` that came between the two looks. */
export function perOne(before: Stand, after: Stand, count: number) {
  return {
    resident_bytes_each: Math.round((after.resident - before.resident) / count),
    held_bytes_each: Math.round((after.held - before.held) / count),
    timers_more: after.timers - before.timers,
  };
}
