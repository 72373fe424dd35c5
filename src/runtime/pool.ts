// The threads. Piscina owns them: exactly as many as there are workers, each with one task that never ends by itself. Its
// rejection is the death notice of the thread, and Piscina has a fresh thread ready for the next task. The supervisor sees only
// the two interfaces, so that a simulator can give it hosts without threads.

import { MessageChannel, receiveMessageOnPort, type Worker } from "node:worker_threads";
import { Piscina } from "piscina";
import type { Clock } from "./clock.ts";
import { Control, type HostCalls } from "./control.ts";
import type { HostSettings, ToFront, ToHost } from "./envelope.ts";
import { faultFields, type Logger } from "./log.ts";
import type { HostTask } from "./resident.ts";

/** One life of a thread with a host in it. */
export interface Thread {
  post(message: ToHost, transfer: readonly ArrayBuffer[]): void;
  /** What the host has posted and was not received yet. */
  take(): ToFront | undefined;
  readonly control: HostCalls;
  /** Resolves when the host ended by itself, rejects when the thread died. */
  readonly ended: Promise<void>;
  /**
   * Resolves when nothing of a dead thread can reach a file any more. That is later than its death notice: the error arrives at
   * once, but a write that the thread had begun still runs (tried: 530 MB were written after it), and only then does it exit.
   */
  gone(): Promise<void>;
  /** Terminates it. */
  abort(): void;
  /** Lets the ports go; the host ends by itself when it sees that. */
  close(): void;
}

export interface Threads {
  launch(settings: HostSettings, received: (post: ToFront) => void): Thread;
  /** Ends them all. */
  destroy(): Promise<void>;
}

export interface PoolOptions {
  readonly workers: number;
  readonly hostUrl: URL;
  readonly heapMb: number | undefined;
  readonly clock: Clock;
  readonly log: Logger;
}

export class Pool implements Threads {
  private readonly piscina: Piscina;
  private readonly clock: Clock;
  /** Threads that have not exited, and those that died are among them until they have. */
  private readonly exits = new Map<Worker, Promise<void>>();

  constructor({ workers, hostUrl, heapMb, clock, log }: PoolOptions) {
    this.clock = clock;
    this.piscina = new Piscina({
      filename: hostUrl.href,
      minThreads: workers,
      maxThreads: workers,
      concurrentTasksPerWorker: 1,
      idleTimeout: Number.POSITIVE_INFINITY,
      // A thread that waits on Atomics between messages would never see its other ports.
      atomics: "disabled",
      recordTiming: false,
      ...(heapMb === undefined ? {} : { resourceLimits: { maxOldGenerationSizeMb: heapMb } }),
    });
    // A thread that dies without a task: the next task gets another one, or misses its deadline to start.
    this.piscina.on("error", (error) => log.error("an idle worker thread died", faultFields(error)));
    this.piscina.on("workerCreate", () => this.watch());
    this.watch();
  }

  launch(settings: HostSettings, received: (post: ToFront) => void): Thread {
    const data = new MessageChannel();
    const control = new MessageChannel();
    const aborting = new AbortController();
    const task: HostTask = { settings, data: data.port2, control: control.port2 };
    const ended: Promise<void> = this.piscina.run(task, {
      transferList: [task.data, task.control],
      signal: aborting.signal,
    });
    data.port1.on("message", received);
    return {
      post: (message, transfer) => data.port1.postMessage(message, transfer),
      take: () => receiveMessageOnPort(data.port1)?.message,
      control: new Control(control.port1, this.clock),
      ended,
      gone: () => this.deadExit(),
      abort: () => aborting.abort(),
      close: () => {
        data.port1.close();
        control.port1.close();
      },
    };
  }

  async destroy(): Promise<void> {
    this.watch();
    await this.piscina.destroy();
    await Promise.all(this.exits.values());
  }

  private watch(): void {
    for (const worker of this.piscina.threads) {
      if (this.exits.has(worker)) continue;
      const exit = new Promise<void>((resolve) => {
        worker.once("exit", () => {
          this.exits.delete(worker);
          resolve();
        });
      });
      this.exits.set(worker, exit);
    }
  }

  /** Piscina drops a dead thread from its list at once. */
  private async deadExit(): Promise<void> {
    const alive = new Set(this.piscina.threads);
    await Promise.all([...this.exits].filter(([worker]) => !alive.has(worker)).map(([, exit]) => exit));
  }
}
