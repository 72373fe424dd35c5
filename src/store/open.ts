// The worker's way to a store: the choice is made in the configuration, and nothing behind this line knows which one it is.

import { openLogStore } from "./log/log-store.ts";
import { openMemoryStore } from "./memory.ts";
import { openMongoStore } from "./mongo/mongo-store.ts";
import type { Store, StoreClock, StoreEvents } from "./store.ts";

export type StoreConfig =
  | { kind: "memory" }
  | { kind: "log"; path: string; segmentBytes?: number; lock?: string }
  | { kind: "mongo"; url: string; node: string; commitMs: number };

export function openStore(config: StoreConfig, events: StoreEvents, clock: StoreClock): Store {
  switch (config.kind) {
    case "memory":
      return openMemoryStore();
    case "log":
      return openLogStore({ ...config, ...events });
    case "mongo":
      return openMongoStore({ ...config, ...events, clock });
    default:
      return config satisfies never;
  }
}
