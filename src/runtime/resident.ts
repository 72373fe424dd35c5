// The resident task of a worker thread: ties a host to its two ports. What throws in here and is no cell's fault ends the thread,
// and the supervisor learns of it because the task is rejected.

import { type MessagePort, receiveMessageOnPort } from "node:worker_threads";
import type { Kinds } from "../actors/effects.ts";
import type { StoreConfig } from "../store/open.ts";
import type { Store, StoreClock, StoreEvents } from "../store/store.ts";
import { type Clock, realClock } from "./clock.ts";
import { type Crash, exposeControl } from "./control.ts";
import type { HostSettings, ToHost } from "./envelope.ts";
import { Host } from "./host-core.ts";
import { ThreadMeter } from "./thread-meter.ts";

export interface HostTask {
  readonly settings: HostSettings;
  readonly data: MessagePort;
  readonly control: MessagePort;
}

/** Runs until the front closes the control port. */
export async function runResident(
  { settings, data, control }: HostTask,
  {
    kinds,
    openStore,
  }: {
    readonly kinds: Kinds;
    readonly openStore: (config: StoreConfig, events: StoreEvents, clock: StoreClock) => Store;
  },
): Promise<void> {
  const clock = realClock();
  const meter = new ThreadMeter();
  const host: Host = new Host({
    settings,
    kinds,
    clock,
    store: openStore(
      settings.store,
      {
        report: (message) => host.log.warn("the store reports", { reason: message }),
        damaged: (damage) => host.damaged(damage),
      },
      clock,
    ),
    port: {
      take: () => receiveMessageOnPort(data)?.message,
      post: (message, transfer) => data.postMessage(message, transfer),
    },
    threadSamples: () => meter.samples(`worker-${settings.worker}`),
  });
  data.on("message", (post: ToHost) => host.receive(post));
  exposeControl(control, {
    // Opening may be long work: the answer goes first.
    place: (shards) => clock.soon(() => host.place(shards)),
    drain: () => host.drain(),
    samples: () => orDie(() => host.samples()),
    crash: (how) => (settings.testing ? crash(how, clock) : undefined),
  });
  await new Promise((resolve) => control.once("close", resolve));
  data.close();
  meter.stop();
}

/** comlink would hand a throw to the caller and leave a host behind that stopped in the middle of a turn. */
function orDie<T>(run: () => T): T {
  try {
    return run();
  } catch (error) {
    queueMicrotask(() => {
      throw error;
    });
    throw error;
  }
}

function crash(how: Crash, clock: Clock): void {
  switch (how) {
    case "throw":
      clock.soon(() => {
        throw new Error("crashed by a test");
      });
      break;
    case "exit":
      process.exit(1);
      break;
    case "oom": {
      const hoard: string[][] = [];
      for (;;) hoard.push(new Array<string>(100_000).fill("full"));
    }
    default:
      how satisfies never;
  }
}
