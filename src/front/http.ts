// The one HTTP handler, the same on every port: it checks who calls (Host, Origin, token), finds the route, and turns whatever the
// route throws into an answer. Nothing that a request does may end the process.

import type { IncomingMessage, ServerResponse } from "node:http";
import { frameBounds } from "../protocol/bounds.ts";
import { failure } from "../protocol/failure.ts";
import { faultFields } from "../runtime/log.ts";
import { allRights, authenticate, type Granted, hostAllowed, originAllowed } from "./auth.ts";
import {
  ClientGone,
  drainBody,
  Exchange,
  type Fault,
  type HttpOptions,
  HttpRefusal,
  type HttpRoute,
  orRefuse,
  refusal,
  refusalOf,
  statusOf,
  targetOf,
  writeFault,
} from "./http-exchange.ts";
import { explainRoutes } from "./http-explain.ts";
import { opsRoutes } from "./http-ops.ts";
import { publishRoutes } from "./http-publish.ts";
import { replayRoutes } from "./http-replay.ts";
import { topicRoutes } from "./http-topics.ts";

const urlCharsMax = 8192;
const preflightSecondsMax = 600;
const exposedHeaders = "retry-after, www-authenticate, x-narthex-count, x-narthex-checksum, x-narthex-next";
/** Health is asked by those who hold no token. */
const nobody: Granted = { identity: undefined, rights: { ...allRights, admin: false } };

export type { HttpOptions } from "./http-exchange.ts";

export function createHttp(options: HttpOptions): (req: IncomingMessage, res: ServerResponse) => void {
  const routes = new Routes([
    ...publishRoutes(options),
    ...replayRoutes(options),
    ...topicRoutes(options),
    ...opsRoutes(options),
    ...explainRoutes(options),
  ]);
  return (req, res) => {
    // An error on a socket that its client has left is the end of this request and nothing more.
    res.on("error", (error) => options.log.debug("http response failed", faultFields(error)));
    req.on("error", (error) => options.log.debug("http request failed", faultFields(error)));
    serve(req, res, routes, options)
      .catch((error: Error) => {
        if (error instanceof ClientGone) return;
        writeFault(res, faultOf(error, req, options));
      })
      .then(() => drainBody(req))
      .catch((error: Error) => {
        options.log.error("http answer failed", faultFields(error));
        res.destroy();
      });
  };
}

async function serve(req: IncomingMessage, res: ServerResponse, routes: Routes, options: HttpOptions): Promise<void> {
  const { config, auth, clock } = options;
  res.setHeader("x-content-type-options", "nosniff");
  res.setHeader("cache-control", "no-store");
  const url = req.url ?? "/";
  if (url.length > urlCharsMax) {
    throw new HttpRefusal({ status: 414, error: `the URL is longer than ${urlCharsMax} characters` });
  }
  const { host, origin } = req.headers;
  if (!hostAllowed(host, options.guarded)) {
    throw refusal("forbidden", "without a token this node answers to loopback names only", "host");
  }
  // Whether or not this request has one: a cache must not give the answer to another origin.
  res.setHeader("vary", "origin");
  if (!originAllowed(origin, host, config.origins))
    throw refusal("forbidden", "this origin is not in ORIGINS", "origin");
  if (origin !== undefined) {
    res.setHeader("access-control-allow-origin", origin);
    res.setHeader("access-control-expose-headers", exposedHeaders);
  }
  const target = targetOf(url);
  const found = target === undefined ? undefined : routes.find(target.path);
  if (req.method === "OPTIONS" && found !== undefined) return preflight(req, res, found);

  const open = target?.path.startsWith("/health/") ?? false;
  const granted = open
    ? nobody
    : orRefuse(await authenticate({ auth, clock, deadlineMs: config.limits.authMs }, tokenOf(req)));
  if (target === undefined || found === undefined) throw new HttpRefusal({ status: 404, error: "no such route" });
  const method = req.method === "HEAD" ? "GET" : req.method;
  const route = found.routes.find((one) => one.method === method);
  if (route === undefined) {
    const allow = allowed(found);
    throw new HttpRefusal({ status: 405, error: `this route takes ${allow}`, headers: { allow } });
  }
  if (route.method !== "GET" && options.closing()) throw refusal("shutting_down", "the node is shutting down");
  await route.handle(new Exchange({ req, res, granted, params: found.params, search: target.search }));
}

function tokenOf(req: IncomingMessage): string | undefined {
  const bearer = /^Bearer +(\S+) *$/i.exec(req.headers.authorization ?? "");
  if (bearer === null) return undefined;
  if (bearer[1].length <= frameBounds.tokenCharsMax) return bearer[1];
  throw refusalOf(failure("bad_token", `the token is longer than ${frameBounds.tokenCharsMax} characters`));
}

/** What a browser asks before it sends a request that a form could not. It carries no token. */
function preflight(req: IncomingMessage, res: ServerResponse, found: Found): void {
  const allow = allowed(found);
  res.setHeader("allow", allow);
  if (req.headers.origin !== undefined) {
    const asked = (req.headers["access-control-request-headers"] ?? "").split(",").map((name) => name.trim());
    const names = asked.filter((name) => /^(?:authorization|content-type|traceparent|x-[\w-]{1,64})$/i.test(name));
    res.setHeader("access-control-allow-methods", allow);
    if (names.length > 0) res.setHeader("access-control-allow-headers", names.join(", "));
    res.setHeader("access-control-max-age", String(preflightSecondsMax));
  }
  res.writeHead(204);
  res.end();
}

function faultOf(error: Error, req: IncomingMessage, { log }: HttpOptions): Fault {
  if (error instanceof HttpRefusal) return error.fault;
  const path = targetOf(req.url ?? "")?.path.slice(0, 200);
  log.error("http handler failed", { method: req.method, path, ...faultFields(error) });
  return { status: statusOf.internal, code: "internal", error: "the node failed to answer; see its log" };
}

// ------------------------------------------------------------------------------------------------------------------ routes

interface Found {
  readonly routes: readonly HttpRoute[];
  readonly params: ReadonlyMap<string, string>;
}

function allowed({ routes }: Found): string {
  const methods = routes.flatMap(({ method }) => (method === "GET" ? ["GET", "HEAD"] : [method]));
  return [...methods, "OPTIONS"].join(", ");
}

class Routes {
  private readonly byPath = new Map<string, HttpRoute[]>();

  constructor(routes: readonly HttpRoute[]) {
    for (const route of routes) {
      const same = this.byPath.get(route.path);
      if (same === undefined) this.byPath.set(route.path, [route]);
      else same.push(route);
    }
  }

  find(path: string): Found | undefined {
    const segments = path.split("/");
    for (const [pattern, routes] of this.byPath) {
      const params = match(pattern.split("/"), segments);
      if (params !== undefined) return { routes, params };
    }
    return undefined;
  }
}

function match(pattern: readonly string[], segments: readonly string[]): Map<string, string> | undefined {
  if (pattern.length !== segments.length) return undefined;
  const params = new Map<string, string>();
  for (let i = 0; i < pattern.length; i++) {
    if (pattern[i].startsWith(":")) params.set(pattern[i].slice(1), decodeSegment(segments[i], pattern[i].slice(1)));
    else if (pattern[i] !== segments[i]) return undefined;
  }
  return params;
}

function decodeSegment(segment: string, field: string): string {
  try {
    return decodeURIComponent(segment);
  } catch (error) {
    if (error instanceof URIError) throw refusal("bad_option", `${field} is not percent-encoded UTF-8`, field);
    throw error;
  }
}
