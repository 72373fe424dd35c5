// POST /publish/:topic: one event, whose payload is the body. Of the request's headers only `traceparent` and `x-*` become headers
// of the event, and none that may carry a credential: an event is stored for long and read by many.

import type { IncomingHttpHeaders } from "node:http";
import type { Socket } from "node:net";
import { decodeBody } from "../protocol/decode.ts";
import { type Failure, isFailure } from "../protocol/failure.ts";
import { headersFault, keyFault } from "../protocol/meta.ts";
import { eventIdFault, publishTopicFault } from "../protocol/names.ts";
import type { Clock } from "../runtime/clock.ts";
import type { Budget, Budgets } from "./budget.ts";
import { type Exchange, type HttpOptions, type HttpRoute, orRefuse, refusal, refusalOf } from "./http-exchange.ts";
import type { Outcome } from "./publishing.ts";

export function publishRoutes(options: HttpOptions): readonly HttpRoute[] {
  const sockets = new SocketBudgets(options);
  return [{ method: "POST", path: "/publish/:topic", handle: (exchange) => publish(exchange, options, sockets) }];
}

async function publish(exchange: Exchange, options: HttpOptions, sockets: SocketBudgets): Promise<void> {
  const { config, router, budgets, publishing } = options;
  exchange.needJson();
  const topic = exchange.param("topic");
  const fault = publishTopicFault(topic);
  if (fault !== undefined) throw refusal("bad_topic", fault, "topic");
  if (!exchange.granted.rights.publish(topic)) throw refusal("forbidden", `this token may not publish to ${topic}`);
  const opts = optionsOf(exchange);
  const text = await exchange.textBody(config.limits.httpBodyBytesMax);
  const entry = orRefuse(decodeBody(text, opts, { maxPayload: config.maxPayload }));

  const connection = sockets.of(exchange.req.socket);
  orRefuse(await admit(connection));
  const route = await router.resolve(topic, { create: true });
  if (isFailure(route)) {
    connection.giveBack(1);
    throw refusalOf(route, "topic");
  }
  const refused = await admit(budgets.topic(route));
  if (refused !== undefined) {
    connection.giveBack(1);
    throw refusalOf(refused);
  }
  const outcome = await new Promise<Outcome | Failure>((resolve) => publishing.single(route, entry, resolve));
  exchange.json(200, orRefuse(outcome));
}

function admit(budget: Budget): Promise<Failure | undefined> {
  return new Promise((resolve) => {
    const verdict = budget.take(1, resolve);
    if (verdict !== "later") resolve(verdict);
  });
}

/** CONN_RATE counts per TCP connection, as it does on the socket. */
class SocketBudgets {
  private readonly budgets: Budgets;
  private readonly clock: Clock;
  private readonly bySocket = new WeakMap<Socket, Budget>();

  constructor({ budgets, clock }: HttpOptions) {
    this.budgets = budgets;
    this.clock = clock;
  }

  of(socket: Socket): Budget {
    const known = this.bySocket.get(socket);
    if (known !== undefined) return known;
    const budget = this.budgets.connection(`http/${this.clock.nonce(8)}`);
    this.bySocket.set(socket, budget);
    if (socket.destroyed) budget.end();
    else socket.once("close", () => budget.end());
    return budget;
  }
}

// ----------------------------------------------------------------------------------------------------------------- options

function optionsOf(exchange: Exchange): { key?: string; id?: string; headers?: Record<string, string> } {
  const { headers } = exchange.req;
  const inQuery = exchange.query("key").text("key");
  const inHeader = headerText(headers, "x-narthex-key");
  if (inQuery !== undefined && inHeader !== undefined && inQuery !== inHeader) {
    throw refusal("bad_option", "key and x-narthex-key differ", "key");
  }
  const key = inQuery ?? inHeader;
  const ofKey = key === undefined ? undefined : keyFault(key);
  if (ofKey !== undefined) throw refusal("bad_option", ofKey, "key");
  const id = headerText(headers, "x-narthex-id");
  const ofId = id === undefined ? undefined : eventIdFault(id);
  if (ofId !== undefined) throw refusal("bad_option", ofId, "x-narthex-id");
  const kept = eventHeaders(headers);
  const ofHeaders = headersFault(kept);
  if (ofHeaders !== undefined) throw refusal("bad_option", ofHeaders, "headers");
  return {
    ...(key === undefined ? {} : { key }),
    ...(id === undefined ? {} : { id }),
    ...(Object.keys(kept).length === 0 ? {} : { headers: kept }),
  };
}

export function eventHeaders(headers: IncomingHttpHeaders): Record<string, string> {
  const kept: Record<string, string> = {};
  for (const name of Object.keys(headers)) {
    if (!isEventHeader(name)) continue;
    const value = headerText(headers, name);
    if (value !== undefined) kept[name] = value;
  }
  return kept;
}

/** Names are in lower case here. */
function isEventHeader(name: string): boolean {
  if (name === "traceparent") return true;
  const [first, second, ...rest] = name.split("-");
  if (first !== "x" || second === undefined) return false;
  if (second === "narthex" || second === "auth") return false;
  return !/^(?:key|authorization|jwt|cookie|.*(?:token|secret|password|passwd|apikey|credentials?))$/.test(
    rest.at(-1) ?? second,
  );
}

const utf8 = new TextDecoder("utf-8", { ignoreBOM: true, fatal: true });

/** Node reads each byte of a header as one character. Most clients mean UTF-8, and a key must be the same key on every way in. */
function headerText(headers: IncomingHttpHeaders, name: string): string | undefined {
  const value = headers[name];
  if (value === undefined) return undefined;
  const text = Array.isArray(value) ? value.join(", ") : value;
  // biome-ignore lint/suspicious/noControlCharactersInRegex: all of ASCII is meant
  if (/^[\x00-\x7f]*$/.test(text)) return text;
  try {
    return utf8.decode(Buffer.from(text, "latin1"));
  } catch (error) {
    if (error instanceof TypeError) throw refusal("bad_option", `${name} is not UTF-8`, name);
    throw error;
  }
}
