// A front on a free port with real sockets, over a FakeSystem.

import { type Config, defaultConfig, type Overrides } from "../../src/config.ts";
import { type AuthFn, staticToken } from "../../src/front/auth.ts";
import { createFront, type Front } from "../../src/front/front.ts";
import type { Logger } from "../../src/runtime/log.ts";
import { FakeSystem, SocketClock } from "./fake-system.ts";

export interface Stage {
  readonly front: Front;
  readonly system: FakeSystem;
  readonly clock: SocketClock;
  readonly config: Config;
  readonly url: string;
  readonly port: number;
  readonly logged: string[];
  close(): Promise<void>;
}

export async function startFront(
  overrides: Overrides & { readonly partitions?: number } = {},
  parts: { readonly auth?: AuthFn; readonly shards?: number; readonly guarded?: boolean } = {},
): Promise<Stage> {
  const config = defaultConfig({
    wsPort: 0,
    httpPort: "off",
    opsPort: "off",
    replayPort: "off",
    connRate: "off",
    topicRate: "off",
    ...overrides,
  });
  const clock = new SocketClock();
  const { partitions } = config;
  const system = new FakeSystem(clock, { partitions, ...(parts.shards === undefined ? {} : { shards: parts.shards }) });
  const logged: string[] = [];
  const note = (msg: string) => void logged.push(msg);
  const log: Logger = { debug: () => undefined, info: note, warn: note, error: note };
  const front = createFront({
    config,
    system,
    clock,
    log,
    auth: parts.auth ?? staticToken(config.token),
    guarded: parts.guarded ?? config.token !== undefined,
    http: (_req, res) => res.writeHead(404).end(),
  });
  await system.start(front.events);
  const [{ port }] = await front.listen();
  return { front, system, clock, config, url: `ws://127.0.0.1:${port}`, port, logged, close: () => front.close() };
}
