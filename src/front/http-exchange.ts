// One HTTP request and its answer: what the routes share. A refusal is thrown, because it must leave a route at once from any
// depth; http.ts catches it and turns it into the answer. Answers are JSON unless a route writes its own.

import type { IncomingMessage, OutgoingHttpHeaders, ServerResponse } from "node:http";
import type { Config } from "../config.ts";
import type { Json } from "../protocol/event.ts";
import { type Code, type Failure, isFailure } from "../protocol/failure.ts";
import { topicFault } from "../protocol/names.ts";
import { placeOf } from "../protocol/payload.ts";
import type { Clock } from "../runtime/clock.ts";
import type { Logger } from "../runtime/log.ts";
import type { Sample, System } from "../runtime/system.ts";
import type { AuthFn, Granted } from "./auth.ts";
import type { Budgets } from "./budget.ts";
import type { Publishing } from "./publishing.ts";
import type { Route, Router } from "./router.ts";
import type { Members } from "./subscription.ts";

export interface HttpOptions {
  readonly config: Config;
  readonly system: System;
  readonly router: Router;
  readonly auth: AuthFn;
  /** Whether `auth` asks for a token at all. */
  readonly guarded: boolean;
  readonly budgets: Budgets;
  readonly publishing: Publishing;
  readonly members: Members;
  readonly clock: Clock;
  readonly log: Logger;
  /** The node is on its way down: nothing new is taken. */
  readonly closing: () => boolean;
  readonly status: () => { readonly ready: boolean; readonly reasons: readonly string[] };
  /** Of all workers. */
  readonly samples: () => Promise<readonly Sample[]>;
  readonly metricsText: () => Promise<string>;
}

/** `code` is absent where HTTP itself says it all: an unknown route, a wrong method, a wrong content type. */
export interface Fault {
  readonly status: number;
  readonly error: string;
  readonly code?: Code;
  /** The query parameter, header or member of the body that is wrong. */
  readonly field?: string;
  readonly retryAfterMs?: number;
  readonly headers?: OutgoingHttpHeaders;
}

/** The status of a response that carries the code. */
export const statusOf: Readonly<Record<Code, number>> = {
  bad_json: 400,
  bad_frame: 400,
  bad_topic: 400,
  bad_group: 400,
  bad_option: 400,
  too_large: 413,
  unauthorized: 401,
  bad_token: 401,
  forbidden: 403,
  rate_limited: 429,
  overloaded: 503,
  unavailable: 503,
  limit: 409,
  internal: 500,
  publish_failed: 503,
  already_subscribed: 409,
  not_subscribed: 409,
  unknown_topic: 404,
  unknown_id: 404,
  lease_lost: 409,
  ack_failed: 503,
  group_conflict: 409,
  shutting_down: 503,
};

export class HttpRefusal extends Error {
  readonly fault: Fault;
  constructor(fault: Fault) {
    super(fault.error);
    this.fault = fault;
  }
}

/** The client went away before its request was complete: there is nobody to answer. */
export class ClientGone extends Error {}

export function refusal(code: Code, error: string, field?: string): HttpRefusal {
  return new HttpRefusal({ status: statusOf[code], code, error, ...(field === undefined ? {} : { field }) });
}

export function refusalOf({ code, msg, retry_after_ms: retryAfterMs }: Failure, field?: string): HttpRefusal {
  const status = statusOf[code];
  return new HttpRefusal({
    status,
    code,
    error: msg,
    ...(field === undefined ? {} : { field }),
    ...(retryAfterMs === undefined ? {} : { retryAfterMs }),
    ...(status === 401 ? { headers: { "www-authenticate": 'Bearer realm="narthex"' } } : {}),
  });
}

/** The answer, unless it is a failure: that is thrown. */
export function orRefuse<T>(answer: T | Failure, field?: string): T {
  if (isFailure(answer)) throw refusalOf(answer, field);
  return answer;
}

// ------------------------------------------------------------------------------------------------------------------ query

/** The query of a URL. Every parameter is known by name and given at most once, so that a misspelt bound is not ignored. */
export class Query {
  private readonly values = new Map<string, string>();

  constructor(search: string, known: readonly string[]) {
    for (const [name, value] of new URLSearchParams(search)) {
      if (!known.includes(name)) {
        const allowed = known.length === 0 ? "none is" : `${known.join(", ")} are`;
        throw refusal(
          "bad_option",
          `${name.slice(0, 64)}: unknown parameter, ${allowed} allowed here`,
          name.slice(0, 64),
        );
      }
      if (this.values.has(name)) throw refusal("bad_option", `${name} is given twice`, name);
      this.values.set(name, value);
    }
  }

  text(name: string): string | undefined {
    return this.values.get(name);
  }

  needed(name: string): string {
    const value = this.values.get(name);
    if (value === undefined || value === "") throw refusal("bad_option", `${name} is missing`, name);
    return value;
  }

  count(name: string, { min, max }: { readonly min: number; readonly max: number }): number | undefined {
    const value = this.values.get(name);
    if (value === undefined) return undefined;
    const number = /^\d{1,16}$/.test(value) ? Number(value) : Number.NaN;
    if (number >= min && number <= max) return number;
    throw refusal("bad_option", `${name} must be a whole number from ${min} to ${max}`, name);
  }

  choice<T extends string>(name: string, choices: readonly T[], otherwise: T): T {
    const value = this.values.get(name);
    if (value === undefined) return otherwise;
    const chosen = choices.find((choice) => choice === value);
    if (chosen === undefined) throw refusal("bad_option", `${name} must be ${choices.join(" or ")}`, name);
    return chosen;
  }
}

// --------------------------------------------------------------------------------------------------------------- exchange

/** What a refused or ignored body may still send before its connection is cut; reading it lets the client see our answer. */
const drainBytesMax = 8 * 1024 * 1024;

export interface Target {
  readonly path: string;
  readonly search: string;
}

/** Undefined: not a URL that we could serve. */
export function targetOf(url: string): Target | undefined {
  // A proxy may send the absolute form.
  const from = url.startsWith("/") ? 0 : url.indexOf("/", url.indexOf("://") + 3);
  if (from < 0 || (from > 0 && !/^https?:\/\//i.test(url))) return undefined;
  const mark = url.indexOf("?", from);
  return mark < 0
    ? { path: url.slice(from), search: "" }
    : { path: url.slice(from, mark), search: url.slice(mark + 1) };
}

export class Exchange {
  readonly req: IncomingMessage;
  readonly res: ServerResponse;
  readonly granted: Granted;
  readonly params: ReadonlyMap<string, string>;
  private readonly search: string;

  constructor(options: {
    readonly req: IncomingMessage;
    readonly res: ServerResponse;
    readonly granted: Granted;
    readonly params: ReadonlyMap<string, string>;
    readonly search: string;
  }) {
    this.req = options.req;
    this.res = options.res;
    this.granted = options.granted;
    this.params = options.params;
    this.search = options.search;
  }

  query(...known: string[]): Query {
    return new Query(this.search, known);
  }

  param(name: string): string {
    return this.params.get(name) ?? "";
  }

  /** Whether only the head of the answer is wanted. */
  get headOnly(): boolean {
    return this.req.method === "HEAD";
  }

  json(status: number, value: object): void {
    this.bytes(status, "application/json; charset=utf-8", JSON.stringify(value));
  }

  bytes(status: number, contentType: string, body: string | Uint8Array): void {
    if (this.res.headersSent || this.res.destroyed) return;
    this.res.writeHead(status, { "content-type": contentType, "content-length": Buffer.byteLength(body) });
    this.res.end(body);
  }

  empty(status: number): void {
    if (this.res.headersSent || this.res.destroyed) return;
    this.res.writeHead(status);
    this.res.end();
  }

  needJson(): void {
    const type = this.req.headers["content-type"] ?? "";
    if (/^application\/json\s*(?:;|$)/i.test(type)) return;
    throw new HttpRefusal({ status: 415, error: "the content type must be application/json", field: "content-type" });
  }

  async jsonBody(bytesMax: number): Promise<Json> {
    const text = await this.textBody(bytesMax);
    try {
      return JSON.parse(text) as Json;
    } catch (error) {
      throw refusal("bad_json", `the body is not JSON${placeOf(error)}`);
    }
  }

  async textBody(bytesMax: number): Promise<string> {
    const bytes = await this.body(bytesMax);
    try {
      return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    } catch (error) {
      if (error instanceof TypeError) throw refusal("bad_json", "the body is not UTF-8");
      throw error;
    }
  }

  /** The whole body. Throws `too_large` past the bound, and ClientGone if it ends before it is complete. */
  private body(bytesMax: number): Promise<Uint8Array> {
    const { req } = this;
    const tooLarge = () => refusal("too_large", `the body is larger than ${bytesMax} bytes`);
    if (Number(req.headers["content-length"] ?? 0) > bytesMax) return Promise.reject(tooLarge());
    return new Promise((resolve, reject) => {
      const chunks: Uint8Array[] = [];
      let size = 0;
      const settle = (finish: () => void) => {
        req.off("data", onData).off("end", onEnd).off("close", onClose);
        finish();
      };
      const onData = (chunk: Uint8Array) => {
        size += chunk.length;
        if (size > bytesMax) settle(() => reject(tooLarge()));
        else chunks.push(chunk);
      };
      // A body that is cut never ends: it closes.
      const onEnd = () => settle(() => resolve(Buffer.concat(chunks)));
      const onClose = () => settle(() => reject(new ClientGone()));
      req.on("data", onData).on("end", onEnd).on("close", onClose);
    });
  }
}

/**
 * Reads on past an answer that did not wait for the body: a socket closed with bytes unread is reset, and the client would
 * lose the answer with it. Past a bound it is cut all the same.
 */
export function drainBody(req: IncomingMessage): void {
  if (req.complete || req.destroyed) return;
  let left = drainBytesMax;
  req.on("data", (chunk: Uint8Array) => {
    left -= chunk.length;
    if (left < 0) req.destroy();
  });
  req.resume();
}

/** The body of every refusal, and the headers that go with it. */
export function writeFault(res: ServerResponse, fault: Fault): void {
  if (res.headersSent) {
    // Half an answer must not look like a whole one.
    res.destroy();
    return;
  }
  if (res.destroyed) return;
  const { status, error, code, field, retryAfterMs } = fault;
  const body = JSON.stringify({ error, code, field, retry_after_ms: retryAfterMs });
  res.writeHead(status, {
    ...fault.headers,
    ...(retryAfterMs === undefined ? {} : { "retry-after": String(Math.max(1, Math.ceil(retryAfterMs / 1000))) }),
    "content-type": "application/json; charset=utf-8",
    "content-length": Buffer.byteLength(body),
  });
  res.end(body);
}

// ----------------------------------------------------------------------------------------------------------------- routes

export type Handler = (exchange: Exchange) => Promise<void>;

export interface HttpRoute {
  readonly method: "GET" | "POST" | "PUT" | "DELETE";
  /** Segments that start with a colon are parameters. */
  readonly path: string;
  readonly handle: Handler;
}

/** The way to a topic whose events the caller may read. Rights come first: what exists is nobody's business without them. */
export async function readableTopic(exchange: Exchange, router: Router, topic: string, group = ""): Promise<Route> {
  const fault = topicFault(topic);
  if (fault !== undefined) throw refusal("bad_topic", fault, "topic");
  if (!exchange.granted.rights.subscribe(topic, group)) {
    throw refusal("forbidden", `this token may not subscribe to ${topic}`);
  }
  return orRefuse(await router.resolve(topic, { create: false }), "topic");
}
