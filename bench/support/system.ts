// A system under test, driven in the same way whatever it is: `publish` is called event by event and resolves when the event is as durable
// as `durability` says; a consumer hands over each payload and acknowledges it by itself. How a system batches, pipelines and
// acknowledges below that is its own business, as it would be in an application.

import type { Payload } from "./payload.ts";

export interface Publisher {
  publish(payload: Payload): Promise<unknown>;
  close(): Promise<void>;
}

export interface Consumer {
  /** Resolves when everything that was handed over is acknowledged, and the acknowledgement confirmed where the system does that. */
  settled(): Promise<void>;
  close(): Promise<void>;
}

export interface ConsumerOptions {
  readonly topic: string;
  readonly group: string;
  /** Events that may be out at once. */
  readonly window: number;
  readonly onEvent: (payload: Payload) => void;
}

/** What a run used of the processor, in microseconds. */
export interface CpuReading {
  readonly server: number;
  /** Of it, where the server's threads are told apart: the front, and the workers together. */
  readonly front?: number;
  readonly workers?: number;
}

/** The ways to it, each a connection of its own. */
export interface Clients {
  publisher(topic: string): Promise<Publisher>;
  consumer(options: ConsumerOptions): Promise<Consumer>;
}

export interface System extends Clients {
  readonly name: string;
  /** What a confirmed publish means, in words. */
  readonly durability: string;
  /** Of a program that is not built here. */
  readonly version?: string;
  /** Since its start. */
  cpu(): Promise<CpuReading>;
  /** On disk now. */
  storedBytes(): Promise<number | undefined>;
  stop(): Promise<void>;
}

export function cpuBetween(before: CpuReading, after: CpuReading): CpuReading {
  return {
    server: after.server - before.server,
    ...(before.front === undefined || after.front === undefined ? {} : { front: after.front - before.front }),
    ...(before.workers === undefined || after.workers === undefined ? {} : { workers: after.workers - before.workers }),
  };
}
