// The worker's way to a store: the choice is made in the configuration, and nothing behind this line knows which one it is.

import { openLogStore } from "./log/log-store.ts";
import { openMemoryStore } from "./memory.ts";
import type { Store, StoreEvents } from "./store.ts";

export type StoreConfig = { kind: "memory" } | { kind: "log"; path: string; segmentBytes?: number; lock?: string };

export function openStore(config: StoreConfig, events: StoreEvents): Store {
  switch (config.kind) {
    case "memory":
      return openMemoryStore();
    case "log":
      return openLogStore({ ...config, ...events });
    default:
      return config satisfies never;
  }
}
