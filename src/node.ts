// The one place that constructs everything: the data folder, the worker threads, the front. A node ends by one of two verbs: close
// drains, destroy aborts.

import { type Config, defaultConfig, type Overrides } from "./config.ts";
import { type AuthFn, staticToken } from "./front/auth.ts";
import { createFront, type Front, type Listening } from "./front/front.ts";
import { type Clock, realClock } from "./runtime/clock.ts";
import { createLogger, type Logger } from "./runtime/log.ts";
import { createSystem, type Supervisor } from "./runtime/supervisor.ts";
import { type Folder, openFolder } from "./store/log/folder.ts";

export interface RunningNode {
  readonly config: Config;
  /** Where it listens, as it came out: a port 0 in the settings is a real one here. The first is that of the sockets. */
  readonly listening: readonly Listening[];
  readonly log: Logger;
  /** Refuses new work, takes acks for a while, gives leases back, commits, closes every socket with 1001. */
  close(): Promise<void>;
  /** Ends at once. What was acknowledged is safe, as it is over a crash. */
  destroy(): Promise<void>;
}

/** For the tests of the node itself. */
export interface OpenNode extends RunningNode {
  readonly system: Supervisor;
  readonly front: Front;
}

export interface NodeParts {
  /** In place of the one static token. */
  readonly auth?: AuthFn;
  readonly clock?: Clock;
  readonly hostUrl?: URL;
  readonly testing?: boolean;
}

/** The node in your own process, by the same settings as the environment's, in camel case. */
export function createNode(options: Overrides & { readonly auth?: AuthFn } = {}): Promise<RunningNode> {
  const { auth, ...overrides } = options;
  return startNode(defaultConfig(overrides), auth === undefined ? {} : { auth });
}

export async function startNode(config: Config, parts: NodeParts = {}): Promise<OpenNode> {
  const clock = parts.clock ?? realClock();
  const log = createLogger(config.logLevel, (line) => void process.stderr.write(line), clock);
  const folder =
    config.store === "log" ? await openFolder({ path: config.dataPath, workers: config.workers }) : undefined;
  const system = createSystem({
    workers: config.workers,
    shards: folder?.shards ?? config.workers,
    store:
      config.store === "log"
        ? { kind: "log", path: config.dataPath, segmentBytes: config.limits.segmentBytes }
        : { kind: "memory" },
    limits: config.limits,
    actorLimits: { ...config.limits, maxAttempts: config.maxAttempts },
    clock,
    log,
    hostUrl: parts.hostUrl ?? new URL("./host.js", import.meta.url),
    ...(parts.testing === undefined ? {} : { testing: parts.testing }),
  });
  const front = createFront({
    config,
    system,
    clock,
    log,
    auth: parts.auth ?? staticToken(config.token),
    guarded: parts.auth !== undefined || config.token !== undefined,
  });
  const destroy = () => abort(front, system, folder);
  try {
    await system.start(front.events);
    const listening = await front.listen();
    return { config, listening, log, system, front, close: () => drain(front, system, folder), destroy };
  } catch (error) {
    await destroy();
    throw error;
  }
}

async function drain(front: Front, system: Supervisor, folder: Folder | undefined): Promise<void> {
  await front.drain();
  await system.close();
  await front.close();
  await folder?.close();
}

async function abort(front: Front, system: Supervisor, folder: Folder | undefined): Promise<void> {
  await front.close();
  await system.destroy();
  await folder?.close();
}
