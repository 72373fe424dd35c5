// A real HTTP server on a free port in front of the fake system, and a client that sees everything of an answer, trailers too.

import {
  type Agent,
  createServer,
  type IncomingHttpHeaders,
  type IncomingMessage,
  request,
  type Server,
} from "node:http";
import type { AddressInfo } from "node:net";
import { defaultConfig, type Overrides } from "../../src/config.ts";
import { type AuthFn, staticToken } from "../../src/front/auth.ts";
import { Budgets } from "../../src/front/budget.ts";
import { createHttp, type HttpOptions } from "../../src/front/http.ts";
import { Publishing } from "../../src/front/publishing.ts";
import { Router } from "../../src/front/router.ts";
import { Members } from "../../src/front/subscription.ts";
import { type Clock, realClock } from "../../src/runtime/clock.ts";
import type { LogFields } from "../../src/runtime/log.ts";
import { FakeHttpSystem } from "./fake-http-system.ts";

export interface HttpAnswer {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly trailers: NodeJS.Dict<string>;
  readonly text: string;
}

export interface Call {
  readonly headers?: Record<string, string | string[]>;
  readonly body?: string | Uint8Array;
  readonly agent?: Agent;
}

interface Logged {
  readonly level: string;
  readonly msg: string;
  readonly fields: LogFields;
}

export interface TestHttp {
  readonly system: FakeHttpSystem;
  readonly router: Router;
  readonly port: number;
  readonly server: Server;
  readonly logged: readonly Logged[];
  /** Timers that were asked for and wait to be fired by the test. */
  readonly timers: { readonly ms: number; readonly run: () => void }[];
  call(method: string, path: string, call?: Call): Promise<HttpAnswer>;
  json(method: string, path: string, call?: Call): Promise<{ status: number; body: JsonBody }>;
  close(): Promise<void>;
}

// biome-ignore lint/suspicious/noExplicitAny: tests look into answers of every shape, and a wrong look is a failing test
export type JsonBody = any;

interface TestHttpOptions {
  readonly config?: Overrides;
  readonly auth?: AuthFn;
  readonly http?: Partial<HttpOptions>;
}

async function startHttp(options: TestHttpOptions = {}): Promise<TestHttp> {
  const config = defaultConfig({ store: "memory", ...options.config });
  const system = new FakeHttpSystem();
  const timers: { ms: number; run: () => void }[] = [];
  const clock: Clock = {
    ...realClock(),
    after(ms, run) {
      const timer = { ms, run };
      timers.push(timer);
      return {
        cancel() {
          const at = timers.indexOf(timer);
          if (at >= 0) timers.splice(at, 1);
        },
      };
    },
  };
  const logged: Logged[] = [];
  const at =
    (level: string) =>
    (msg: string, fields: LogFields = {}) =>
      void logged.push({ level, msg, fields });
  const router = new Router({
    system,
    clock,
    partitions: config.partitions,
    autoCreate: config.autoCreate,
    topicsMax: config.limits.topicsMax,
  });
  const handle = createHttp({
    config,
    system,
    router,
    auth: options.auth ?? staticToken(config.token),
    guarded: config.token !== undefined || options.auth !== undefined,
    budgets: new Budgets({ system, clock, config }),
    publishing: new Publishing({ system, router, clock }),
    members: new Members(),
    clock,
    log: { debug: at("debug"), info: at("info"), warn: at("warn"), error: at("error") },
    closing: () => false,
    status: () => ({ ready: true, reasons: [] }),
    samples: () => system.samples(),
    metricsText: async () => "narthex_up 1\n",
    ...options.http,
  });
  const server = createServer({ maxHeaderSize: 32 * 1024 }, handle);
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  const call = (method: string, path: string, { headers = {}, body, agent }: Call = {}) =>
    new Promise<HttpAnswer>((resolve, reject) => {
      const asked = request({ port, host: "127.0.0.1", method, path, headers, agent }, (res) => {
        collect(res).then(resolve, reject);
      });
      asked.on("error", reject);
      asked.end(body);
    });
  return {
    system,
    router,
    port,
    server,
    logged,
    timers,
    call,
    async json(method, path, options) {
      const { status, text } = await call(method, path, options);
      return { status, body: JSON.parse(text) };
    },
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

/** A server for one test. */
export async function withHttp(options: TestHttpOptions, run: (http: TestHttp) => Promise<void>): Promise<void> {
  const http = await startHttp(options);
  try {
    await run(http);
  } finally {
    await http.close();
  }
}

/** The whole answer; rejects where it is cut before its end. */
async function collect(res: IncomingMessage): Promise<HttpAnswer> {
  const chunks: Buffer[] = [];
  for await (const chunk of res) chunks.push(chunk as Buffer);
  if (!res.complete) throw new Error("cut short");
  return {
    status: res.statusCode ?? 0,
    headers: res.headers,
    trailers: res.trailers,
    text: Buffer.concat(chunks).toString("utf8"),
  };
}

/** Resolves when the condition holds, looking after each turn of the event loop. */
export async function turnsUntil(what: string, holds: () => boolean, turnsMax = 20_000): Promise<void> {
  for (let turn = 0; !holds(); turn++) {
    if (turn > turnsMax) throw new Error(`not within ${turnsMax} turns: ${what}`);
    await new Promise((resolve) => setImmediate(resolve));
  }
}

export const asJson = { "content-type": "application/json" };
