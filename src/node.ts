// The one place that constructs everything: the data folder or database, the worker threads, the front, and the bus of a node that lives in
// somebody's own process. A node ends by one of two verbs: close drains, destroy aborts.

import type { AnyTopics, EventBus, Published, PublishOptions, Topic } from "./bus/event-bus.ts";
import { EventClient } from "./client/client.ts";
import { refused } from "./client/errors.ts";
import { type Config, defaultConfig, type Overrides } from "./config.ts";
import { type AuthFn, staticToken } from "./front/auth.ts";
import { createFront, type Front } from "./front/front.ts";
import type { Listening } from "./front/listening.ts";
import { failure } from "./protocol/failure.ts";
import { type Clock, realClock } from "./runtime/clock.ts";
import { createLogger, faultFields, type Logger } from "./runtime/log.ts";
import { createSystem, type Supervisor } from "./runtime/supervisor.ts";
import { openFolder } from "./store/log/folder.ts";
import type { LockOptions } from "./store/log/lock.ts";
import { openDatabase } from "./store/mongo/database.ts";
import type { StoreConfig } from "./store/open.ts";

interface Running {
  readonly config: Config;
  /** Where it listens, as it came out: a port 0 in the settings is a real one here. The first is that of the sockets. */
  readonly listening: readonly Listening[];
  readonly log: Logger;
  /** Refuses new work, takes acks for a while, gives leases back, commits, closes every socket with 1001. */
  close(): Promise<void>;
  /** Ends at once. What was acknowledged is safe, as it is over a crash. */
  destroy(): Promise<void>;
}

/** A node in your own process. */
export interface RunningNode<Topics extends object = AnyTopics> extends Running {
  /** The bus without a socket in between. It has all rights and no CONN_RATE, and ends with the node. */
  readonly bus: EventBus<Topics>;
  /** As `close`. */
  [Symbol.asyncDispose](): Promise<void>;
}

export interface NodeOptions extends Overrides {
  /** In place of the one token: turns what a client shows into its rights. */
  readonly auth?: AuthFn;
  /** False: no port is opened, and only `bus` leads to the node. */
  readonly listen?: boolean;
}

/** For the process and the tests of the node itself. @internal */
export interface OpenNode extends Running {
  readonly system: Supervisor;
  readonly front: Front;
  /** What is done inside the process may go on for a while, until `flushed`. */
  close(flushed?: Promise<void>): Promise<void>;
}

/** @internal */
export interface NodeParts {
  /** In place of the one static token. */
  readonly auth?: AuthFn;
  /** False: no port is opened. */
  readonly listen?: boolean;
  readonly clock?: Clock;
  readonly hostUrl?: URL;
  readonly testing?: boolean;
  /** Hears that another process has taken the data folder over. Without it the node is destroyed. */
  readonly lost?: (error: Error) => void;
}

/** The node in your own process, by the same settings as the environment's, in camel case. */
export async function createNode<Topics extends object = AnyTopics>(
  options: NodeOptions = {},
): Promise<RunningNode<Topics>> {
  const { auth, listen = true, ...overrides } = options;
  if (typeof listen !== "boolean") throw new Error(`listen is ${JSON.stringify(listen)}: allowed are true and false`);
  if (auth !== undefined && typeof auth !== "function") throw new Error("auth is no function: see AuthFn");
  const known = ["auth", "listen", ...Object.keys(defaultConfig())];
  const unknown = Object.keys(overrides).find((name) => !known.includes(name));
  if (unknown !== undefined) throw new Error(`unknown option ${unknown}: known are ${known.join(" ")}`);
  return embed(await startNode(defaultConfig(overrides), { listen, ...(auth === undefined ? {} : { auth }) }));
}

/** Gives a node its bus. @internal */
export async function embed<Topics extends object = AnyTopics>(node: OpenNode): Promise<RunningNode<Topics>> {
  const { config, listening, log } = node;
  const bus = openBus<Topics>(node);
  // Its connection is dismissed with all others, at the end of the drain. Until then handlers may go on and ack what they have; what
  // is pending after that has nobody to wait for.
  let closing: Promise<void> | undefined;
  const close = () => {
    closing ??= node.close(bus.flush()).finally(() => bus.destroy());
    return closing;
  };
  const destroy = () => {
    bus.destroy();
    return node.destroy();
  };
  try {
    await bus.ready();
  } catch (error) {
    await destroy();
    throw error;
  }
  return { bus, config, listening, log, close, destroy, [Symbol.asyncDispose]: close };
}

/** @internal */
export function openBus<Topics extends object = AnyTopics>(node: OpenNode): EventClient<Topics> {
  return new InsideClient<Topics>(node);
}

/** A client over a wire that stays in the process. Its node does not come back when it has ended, for whatever reason. */
class InsideClient<Topics extends object> extends EventClient<Topics> {
  private readonly front: Front;

  constructor({ front, log }: OpenNode) {
    super("the node in this process", {
      dial: (_url, events) => front.connectInside(events),
      onStatus: (status) => {
        if (status === "reconnecting" && front.closing) this.destroy();
      },
      onError: (error) => log.warn("a subscription of the node's own process reports a fault", faultFields(error)),
    });
    this.front = front;
  }

  /** Waiting until the node takes events again, as clients do, would be in vain. */
  override publish<Name extends Topic<Topics>>(
    topic: Name,
    payload: Topics[Name],
    options?: PublishOptions,
  ): Promise<Published<Topics[Name]>> {
    if (!this.front.closing || this.status === "closed") return super.publish(topic, payload, options);
    return Promise.reject(refused(failure("shutting_down", "the node is shutting down")));
  }
}

/** @internal */
export async function startNode(config: Config, parts: NodeParts = {}): Promise<OpenNode> {
  const clock = parts.clock ?? realClock();
  const log = createLogger(config.logLevel, (line) => void process.stderr.write(line), clock);
  const lost = (error: Error): void => {
    log.error("the data folder is lost, ending", { reason: error.message });
    if (parts.lost !== undefined) parts.lost(error);
    else void destroy();
  };
  const place = await openPlace(config, { clock, report: log.warn, lost });
  const system = createSystem({
    workers: config.workers,
    shards: place.shards,
    store: place.store,
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
  const destroy = () => abort(front, system, place);
  try {
    await system.start(front.events);
    const listening = await front.listen({ ports: parts.listen ?? true });
    return {
      config,
      listening,
      log,
      system,
      front,
      close: (flushed) => drain(front, system, place, flushed),
      destroy,
    };
  } catch (error) {
    await destroy();
    throw error;
  }
}

/** Where events are kept, as the main thread has it: workers open the shards. */
interface Place {
  readonly shards: number;
  readonly store: StoreConfig;
  close(): Promise<void>;
}

async function openPlace(config: Config, around: LockOptions & { readonly clock: Clock }): Promise<Place> {
  const { store, workers, dataPath: path, mongoUrl = "", limits } = config;
  const { clock } = around;
  const nothing = async () => undefined;
  switch (store) {
    case "memory":
      return { shards: workers, store: { kind: "memory" }, close: nothing };
    case "log": {
      const { shards, lock, close } = await openFolder({ path, workers, ...around });
      return { shards, store: { kind: "log", path, segmentBytes: limits.segmentBytes, lock }, close };
    }
    case "mongo": {
      const { shards, node } = await openDatabase({ url: mongoUrl, workers, clock });
      const commitMs = limits.mongoCommitMs;
      return { shards, store: { kind: "mongo", url: mongoUrl, node, commitMs }, close: nothing };
    }
    default:
      return store satisfies never;
  }
}

async function drain(
  front: Front,
  system: Supervisor,
  place: Place,
  flushed: Promise<void> | undefined,
): Promise<void> {
  await front.drain(flushed);
  await system.close();
  await front.close();
  await place.close();
}

async function abort(front: Front, system: Supervisor, place: Place): Promise<void> {
  await front.close();
  await system.destroy();
  await place.close();
}
