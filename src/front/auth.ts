// Who may do what. A hook turns a token into rights; everything else here is the rules that hold for every hook: it is called
// under a deadline, what it throws is `unavailable` and never a crash, and its refusals are told in our own codes.

import { createHash, timingSafeEqual } from "node:crypto";
import { type Failure, failure } from "../protocol/failure.ts";
import type { Clock } from "../runtime/clock.ts";

export interface Rights {
  publish(topic: string): boolean;
  subscribe(topic: string, group: string): boolean;
  /** Making, changing and deleting topics and deleting groups over HTTP. */
  readonly admin: boolean;
}

export type AuthResult =
  | {
      readonly ok: true;
      readonly identity?: string;
      /** Wins over `subScopes`; without either the caller may do everything. */
      readonly rights?: Rights;
      readonly subScopes?: readonly string[];
    }
  | { readonly ok: false; readonly code: string; readonly msg: string };

export type AuthFn = (token: string | undefined) => Promise<AuthResult>;

/** What a connection or a request holds once its token was accepted. */
export interface Granted {
  readonly identity: string | undefined;
  readonly rights: Rights;
}

export const allRights: Rights = { publish: () => true, subscribe: () => true, admin: true };

/** One token for everybody. Without one configured everybody is let in: the node then listens on loopback only. */
export function staticToken(token: string | undefined): AuthFn {
  if (token === undefined) return async () => ({ ok: true });
  const wanted = digest(token);
  return async (given) => {
    if (given === undefined) return { ok: false, code: "unauthorized", msg: "a token is needed" };
    // Digests are of equal length, so the comparison takes the same time whatever was given.
    if (timingSafeEqual(digest(given), wanted)) return { ok: true };
    return { ok: false, code: "bad_token", msg: "this token is not valid" };
  };
}

function digest(text: string): Uint8Array {
  return createHash("sha256").update(text).digest();
}

/** Asks the hook, whatever state it is in. Always resolves, at the latest after `deadlineMs`. */
export function authenticate(
  hook: { readonly auth: AuthFn; readonly clock: Clock; readonly deadlineMs: number },
  token: string | undefined,
): Promise<Granted | Failure> {
  return new Promise((resolve) => {
    const timer = hook.clock.after(
      hook.deadlineMs,
      () => resolve(failure("unavailable", `the auth hook did not answer within ${hook.deadlineMs} ms`)),
      { background: true },
    );
    const settle = (answer: Granted | Failure) => {
      timer.cancel();
      resolve(answer);
    };
    // The call itself stands inside a promise, so that a hook which throws instead of rejecting is caught as well.
    Promise.resolve()
      .then(() => hook.auth(token))
      .then(
        (result) => settle(grantOf(result)),
        (error: Error) =>
          settle(failure("unavailable", `the auth hook failed: ${error?.message ?? "no reason given"}`)),
      );
  });
}

function grantOf(result: AuthResult): Granted | Failure {
  if (!result.ok) return failure(refusalCode(result.code), result.msg);
  const rights = result.rights ?? (result.subScopes === undefined ? allRights : rightsFromScopes(result.subScopes));
  return { identity: result.identity, rights };
}

/** A hook may speak of `jwt_invalid` or anything else; clients see one of three codes. */
function refusalCode(code: string): "bad_token" | "unauthorized" | "forbidden" {
  if (code === "bad_token" || code === "jwt_invalid") return "bad_token";
  if (code === "forbidden") return "forbidden";
  return "unauthorized";
}

// ----------------------------------------------------------------------------------------------------------------- scopes

/**
 * Rights from scopes such as `publish:heartbeat.*` and `subscribe:process.**`: in a pattern `*` is one segment and `**` any
 * number. `*:pattern` gives both actions. What no scope gives is refused; whoever may publish and subscribe to `**` is an admin.
 */
export function rightsFromScopes(scopes: readonly string[]): Rights {
  const publish: Pattern[] = [];
  const subscribe: Pattern[] = [];
  for (const scope of scopes) {
    const colon = scope.indexOf(":");
    const action = scope.slice(0, Math.max(colon, 0));
    const pattern = scope.slice(colon + 1).split(".");
    if (action === "publish" || action === "*") publish.push(pattern);
    if (action === "subscribe" || action === "*") subscribe.push(pattern);
  }
  return {
    publish: (topic) => matchesAny(publish, topic),
    subscribe: (topic) => matchesAny(subscribe, topic),
    admin: [publish, subscribe].every((patterns) => patterns.some((p) => p.length === 1 && p[0] === "**")),
  };
}

type Pattern = readonly string[];

function matchesAny(patterns: readonly Pattern[], topic: string): boolean {
  const segments = topic.split(".");
  return patterns.some((pattern) => matches(pattern, segments));
}

/** Walks both lists once; on a mismatch it goes back to the last `**` and lets that swallow one segment more. */
function matches(pattern: Pattern, segments: readonly string[]): boolean {
  let p = 0;
  let s = 0;
  let star = -1;
  let starFrom = 0;
  while (s < segments.length) {
    if (pattern[p] === "**") {
      star = p++;
      starFrom = s;
    } else if (p < pattern.length && (pattern[p] === "*" || pattern[p] === segments[s])) {
      p++;
      s++;
    } else if (star >= 0) {
      p = star + 1;
      s = ++starFrom;
    } else return false;
  }
  while (pattern[p] === "**") p++;
  return p === pattern.length;
}

// --------------------------------------------------------------------------------------------------------- host and origin

/**
 * Without a token a page of any site could reach us by a name that it made to point at 127.0.0.1, so the name by which we are
 * called must be loopback itself. With a token (`guarded`) the name does not matter.
 */
export function hostAllowed(host: string | undefined, guarded: boolean): boolean {
  if (guarded) return true;
  if (host === undefined) return false;
  const name = host.replace(/:\d{1,5}$/, "").toLowerCase();
  return name === "localhost" || name === "[::1]" || /^127(?:\.\d{1,3}){3}$/.test(name);
}

/** No Origin: not a browser. Otherwise the page's own host must be the one it calls, or be listed in ORIGINS (`*`: all). */
export function originAllowed(
  origin: string | undefined,
  host: string | undefined,
  origins: readonly string[],
): boolean {
  if (origin === undefined) return true;
  const given = origin.toLowerCase();
  if (host !== undefined) {
    const own = host.toLowerCase();
    if (given === `http://${own}` || given === `https://${own}`) return true;
  }
  return origins.some((allowed) => allowed === "*" || allowed.toLowerCase() === given);
}
