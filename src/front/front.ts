// The front as one thing: it is given the worker threads and the settings, and makes everything that clients meet. Its life is
// listening, draining, closed.

import type { Signal, TopicRecord } from "../actors/messages.ts";
import type { Config } from "../config.ts";
import { isFailure } from "../protocol/failure.ts";
import { type Clock, sleep } from "../runtime/clock.ts";
import { Exposition } from "../runtime/exposition.ts";
import { faultFields, type Logger } from "../runtime/log.ts";
import type { Sample, System, SystemEvents } from "../runtime/system.ts";
import type { AuthFn } from "./auth.ts";
import { Budgets } from "./budget.ts";
import { Counters } from "./counters.ts";
import { watchGrowth } from "./growth.ts";
import type { Hall } from "./hall.ts";
import { createHttp } from "./http.ts";
import type { InsideEvents, InsideWire } from "./inside.ts";
import type { Listening } from "./listening.ts";
import { Corks, type Peer, type Pipe } from "./outlet.ts";
import { Publishing } from "./publishing.ts";
import { Router } from "./router.ts";
import { type Heard, type HttpHandler, Server } from "./server.ts";
import { Settling } from "./settling.ts";
import { Members } from "./subscription.ts";
import { Turns } from "./turns.ts";

export interface FrontOptions {
  readonly config: Config;
  readonly system: System;
  readonly clock: Clock;
  readonly log: Logger;
  readonly auth: AuthFn;
  /** Whether `auth` asks for a token at all. */
  readonly guarded: boolean;
  /** In place of the routes of http.ts. */
  readonly http?: HttpHandler;
}

export interface Front {
  readonly events: SystemEvents;
  readonly router: Router;
  readonly publishing: Publishing;
  /** It takes nothing new any more. */
  readonly closing: boolean;
  /**
   * Finishes interrupted deletions, then opens every port, or none with `ports: false`. Rejects with the setting and the port that
   * cannot be had.
   */
  listen(options?: { readonly ports?: boolean }): Promise<readonly Listening[]>;
  /** A connection from outside that came another way than over a port of ours. */
  accept(peer: Peer, pipe: Pipe): Heard;
  /** A connection that stays in the process, with all rights. */
  connectInside(events: InsideEvents): InsideWire;
  /**
   * Refuses new work, takes acks until nothing is leased or `drainMs` is over, gives leases back uncounted, closes with 1001. Connections
   * from inside may go on until `flushed`, but not for longer than half of that time.
   */
  drain(flushed?: Promise<void>): Promise<void>;
  /** Ends every connection at once. */
  close(): Promise<void>;
  stats(): Sample[];
}

const drainLookMs = 25;

export function createFront(options: FrontOptions): Front {
  const { config, system, clock, log, auth, guarded } = options;
  const { topicsMax } = config.limits;
  const { partitions, autoCreate } = config;
  const budgets = new Budgets({ system, clock, config });
  const removed = ({ id, name }: TopicRecord) => {
    budgets.forget(id);
    hall.publishing.forget(name);
  };
  const router = new Router({ system, clock, partitions, autoCreate, topicsMax, removed });
  const hall: Hall = {
    config,
    system,
    clock,
    log,
    auth,
    router,
    budgets,
    publishing: new Publishing({ system, router, clock }),
    settling: new Settling(system, clock),
    members: new Members(),
    corks: new Corks(clock),
    turns: new Turns(clock),
    counters: new Counters(),
  };
  let status: "running" | "draining" | "closed" = "running";
  const exposition = new Exposition(help);
  const stats = () => statsOf(hall, server);
  // Every cell of every worker is asked, so whoever comes meanwhile gets the same numbers.
  const samples = shared(() => system.samples());
  const metricsText = shared(async () => exposition.text([...(await samples()), ...stats()]));
  const http =
    options.http ??
    createHttp({
      ...hall,
      budgets,
      guarded,
      closing: () => status !== "running",
      status: () => readiness(system, status !== "running"),
      samples,
      metricsText,
    });
  const server = new Server(hall, { http, guarded });

  return {
    events: eventsFor(hall),
    router,
    publishing: hall.publishing,
    get closing() {
      return status !== "running";
    },
    async listen({ ports = true } = {}) {
      const unfinished = await router.finishDeletes();
      if (unfinished !== null)
        log.warn("deleted topics are not all gone yet", { code: unfinished.code, reason: unfinished.msg });
      watchGrowth(hall, () => status !== "running").catch((error: Error) =>
        log.error("dead letters are not watched any more", faultFields(error)),
      );
      return ports ? server.listen() : [];
    },
    accept: (peer, pipe) => server.accept(peer, pipe),
    connectInside: (events) => server.connectInside(events),
    async drain(flushed) {
      if (status !== "running") return;
      status = "draining";
      server.drain();
      const until = clock.mono() + config.limits.drainMs;
      if (flushed !== undefined) await atMost(clock, config.limits.drainMs / 2, flushed);
      server.drainInside();
      while (clock.mono() < until && !(await isQuiet(hall, server))) await sleep(clock, drainLookMs);
      await server.dismiss();
    },
    async close() {
      status = "closed";
      await server.close();
    },
    stats,
  };
}

/** While one is under way, those who ask share it. */
function shared<T>(make: () => Promise<T>): () => Promise<T> {
  let flight: Promise<T> | undefined;
  return () => {
    flight ??= make().finally(() => {
      flight = undefined;
    });
    return flight;
  };
}

/** Resolves with the promise, or after so many milliseconds. */
function atMost(clock: Clock, ms: number, promise: Promise<void>): Promise<void> {
  return new Promise((resolve) => {
    const timer = clock.after(ms, resolve);
    void promise.then(() => {
      timer.cancel();
      resolve();
    });
  });
}

function eventsFor({ members, router, log }: Hall): SystemEvents {
  // One that fails must not take along those that came in the same post.
  const guard = (run: () => void) => {
    try {
      run();
    } catch (error) {
      log.error("a signal was not handled", faultFields(error));
    }
  };
  return {
    signal: (signal: Signal) => guard(() => members.signal(signal)),
    shardUp: (shard) =>
      guard(() => {
        members.shardUp(shard);
        router.shardUp().catch((error: Error) => log.error("a deletion was not finished", faultFields(error)));
      }),
    shardDown: (shard) => guard(() => members.shardDown(shard)),
    cellRestarted: (address) => guard(() => members.cellRestarted(address)),
  };
}

/** No request waits for its answer, and no group that somebody here is in has an event out. */
async function isQuiet({ members, system }: Hall, server: Server): Promise<boolean> {
  for (const session of server.everyone()) if (!session.idle) return false;
  const tables = new Map(
    [...members.subscriptions].flatMap(({ seats }) => seats.map((seat) => [seat.address.cell, seat.address])),
  );
  const states = await Promise.all([...tables.values()].map((address) => system.request(address, { type: "cursor" })));
  // One that cannot be asked has nothing that could still be acked.
  return states.every((state) => isFailure(state) || state.leased === 0);
}

function readiness(system: System, closing: boolean): { readonly ready: boolean; readonly reasons: readonly string[] } {
  const reasons: string[] = closing ? ["shutting down"] : [];
  let ready = !closing;
  for (const { shard, status, reason, failedCells } of system.state()) {
    if (status !== "up") {
      ready = false;
      reasons.push(`shard ${shard} is ${status}${reason === undefined ? "" : `: ${reason}`}`);
    }
    // One partition that was given up does not take the others from their clients.
    for (const failed of failedCells) reasons.push(`${failed.cell} was given up: ${failed.reason}`);
  }
  return { ready, reasons };
}

function statsOf({ counters, publishing }: Hall, server: Server): Sample[] {
  const plain = (name: string, value: number): Sample => ({ name, labels: {}, value });
  let subscriptions = 0;
  let unsent = 0;
  for (const session of server.everyone()) {
    subscriptions += session.subscriptions;
    unsent += session.outlet.unsent;
  }
  return [
    plain("connections", server.sessions.size),
    plain("subscriptions", subscriptions),
    plain("unsent_bytes", unsent),
    ...counters.samples(),
    ...[...publishing.published()].map(
      ([topic, value]): Sample => ({ name: "events_published_total", labels: { topic }, value }),
    ),
  ];
}

const help: Readonly<Record<string, string>> = {
  connections: "Open WebSocket connections",
  subscriptions: "Live subscriptions of all connections and of the node's own process",
  unsent_bytes: "Bytes that sockets have not taken yet",
  frames_in_total: "Frames received",
  frames_out_total: "Frames sent",
  slow_clients_paused_total: "Times a connection had too much unsent and got nothing new",
  slow_clients_closed_total: "Connections closed because they took nothing",
  refusals_total: "Requests refused, by code",
  events_published_total: "Events stored, by topic",
};
