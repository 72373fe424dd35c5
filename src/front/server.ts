// The listening sockets and all connections on them. Every port serves the same: HTTP, and WebSocket by upgrade. One sweeper looks
// after all connections, so that an idle one costs no timer: those that do not authenticate, do not answer pings or do not take
// what they are sent are closed. Nothing that happens to a socket ends the process.

import { createServer, type Server as HttpServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo, Socket } from "node:net";
import type { Duplex } from "node:stream";
import { type ServerOptions, type WebSocket, WebSocketServer } from "ws";
import type { Config } from "../config.ts";
import type { Timer } from "../runtime/clock.ts";
import { faultFields } from "../runtime/log.ts";
import { hostAllowed, originAllowed } from "./auth.ts";
import type { Hall } from "./hall.ts";
import { HttpLines } from "./http-lines.ts";
import { type InsideEvents, InsidePeer, type InsideWire, insideHall } from "./inside.ts";
import type { Listening } from "./listening.ts";
import type { Peer, Pipe } from "./outlet.ts";
import { closeCodes, Session } from "./session.ts";

/** What is heard of a connection. */
export interface Heard {
  readonly session: number;
  /** A frame, and how many bytes it came in. */
  message(frame: string | Uint8Array, bytes: number): void;
  pong(): void;
  close(): void;
  /** Whether it was let in, or has asked to be. */
  known(): "yes" | "asked" | "no";
}

export type HttpHandler = (req: IncomingMessage, res: ServerResponse) => void;

const sweepMsMin = 10;
const sweepMsMax = 1000;
/** A request must have its head within the time of an AUTH, and its body within this many times the time of a stall. */
const headMsMin = 1000;
const bodyStalls = 2;
/** How long a peer may take to answer our close frame. */
const closeMs = 5000;
/** A socket that takes nothing for so long is told to the lease tables, so that its leases do not run out as attempts. */
const stalledTellMsMax = 1000;

export class Server {
  /** Of the connections from outside. */
  readonly sessions = new Set<Session>();
  /** Of those from our own process: neither counted among the connections nor swept. */
  readonly insiders = new Map<Session, InsidePeer>();
  private readonly hall: Hall;
  private readonly lines: HttpLines;
  private readonly guarded: boolean;
  private readonly servers: HttpServer[] = [];
  private readonly sockets = new Set<WebSocket>();
  /** TCP connections, whatever is spoken on them. */
  private connected = 0;
  private readonly wss: WebSocketServer;
  private lastId = 0;
  private sweeper: Timer | undefined;
  private status: "running" | "draining" | "closed" = "running";

  constructor(hall: Hall, { http, guarded }: { readonly http: HttpHandler; readonly guarded: boolean }) {
    this.hall = hall;
    this.lines = new HttpLines(http, hall.config.limits.pipelinedMax);
    this.guarded = guarded;
    const options: ServerOptions & { closeTimeout: number } = {
      noServer: true,
      clientTracking: false,
      perMessageDeflate: false,
      maxPayload: hall.config.maxFrame,
      closeTimeout: closeMs,
    };
    this.wss = new WebSocketServer(options);
  }

  /** Opens every port, or none: one that is taken is named. */
  async listen(): Promise<Listening[]> {
    const { config } = this.hall;
    const listening: Listening[] = [];
    for (const [setting, port] of portsOf(config)) {
      const server = this.httpServer();
      this.servers.push(server);
      try {
        listening.push({ setting, host: config.host, port: await bind(server, port, config.host) });
      } catch (error) {
        await this.close();
        throw new Error(bindFault(error as NodeJS.ErrnoException, setting, port, config.host));
      }
      server.on("error", (error) =>
        this.hall.log.error("a listening socket failed", { setting, ...faultFields(error) }),
      );
    }
    return listening;
  }

  /** Nothing is waited for without end: neither the head of a request nor its body, nor that its answer is taken. */
  private httpServer(): HttpServer {
    const { authMs, stalledMs } = this.hall.config.limits;
    const headersTimeout = Math.max(headMsMin, authMs);
    const server = createServer(
      {
        headersTimeout,
        requestTimeout: Math.max(headersTimeout, bodyStalls * stalledMs),
        connectionsCheckingInterval: Math.ceil(headersTimeout / 4),
      },
      (req, res) => this.lines.take(req, res),
    );
    // An upgraded socket is taken out of this by ws.
    server.timeout = stalledMs;
    server.on("connection", (socket) => this.count(socket));
    server.on("upgrade", (req, socket, head) => this.upgrade(req, socket, head));
    return server;
  }

  /** No new connections; those from outside that are there deliver nothing more. */
  drain(): void {
    if (this.status !== "running") return;
    this.status = "draining";
    for (const session of this.sessions) session.drain();
  }

  drainInside(): void {
    for (const session of this.insiders.keys()) session.drain();
  }

  *everyone(): Generator<Session> {
    yield* this.sessions;
    yield* this.insiders.keys();
  }

  /** Says goodbye to every connection, once its leases are back. */
  async dismiss(): Promise<void> {
    const { goingAway } = closeCodes;
    await Promise.all(
      [...this.everyone()].map((session) => session.close(goingAway, "the node is shutting down", "shutdown")),
    );
    const { clock } = this.hall;
    await Promise.race([
      Promise.all([
        ...[...this.sockets].map((ws) => new Promise((resolve) => ws.once("close", resolve))),
        ...[...this.insiders.values()].map((peer) => peer.closed),
      ]),
      new Promise((resolve) => clock.after(closeMs / 5, () => resolve(undefined), { background: true })),
    ]);
  }

  async close(): Promise<void> {
    this.status = "closed";
    this.sweeper?.cancel();
    const closed = this.servers.splice(0).map(
      (server) =>
        new Promise<void>((resolve) => {
          server.close(() => resolve());
          server.closeAllConnections();
        }),
    );
    for (const session of [...this.everyone()]) session.terminate();
    for (const ws of [...this.sockets]) ws.terminate();
    await Promise.all([...closed, ...[...this.insiders.values()].map((peer) => peer.closed)]);
  }

  // ---------------------------------------------------------------------------------------------------------- connections

  private count(socket: Socket): void {
    if (this.connected >= this.hall.config.limits.socketsMax) {
      socket.destroy();
      return;
    }
    this.connected++;
    socket.once("close", () => {
      this.connected--;
    });
  }

  private upgrade(req: IncomingMessage, socket: Duplex, head: Buffer): void {
    const { log } = this.hall;
    // Until ws takes over, an error of the socket would have nobody to hear it.
    const onError = (error: Error) => log.debug("a socket failed before its upgrade", faultFields(error));
    socket.on("error", onError);
    const refused = this.refusal(req);
    if (refused !== undefined) {
      refuseUpgrade(socket, ...refused);
      return;
    }
    this.wss.handleUpgrade(req, socket, head, (ws) => {
      socket.off("error", onError);
      this.connect(ws, socket);
    });
  }

  private refusal({ headers: { host, origin } }: IncomingMessage): readonly [403 | 503, string] | undefined {
    const { origins, limits } = this.hall.config;
    if (!hostAllowed(host, this.guarded)) return [403, "this Host is not allowed without a token"];
    if (!originAllowed(origin, host, origins)) return [403, "this Origin is not in ORIGINS"];
    if (this.status !== "running") return [503, "the node is shutting down"];
    if (this.sessions.size >= limits.connectionsMax) return [503, "too many connections"];
    return undefined;
  }

  private connect(ws: WebSocket, socket: Duplex): void {
    const { log } = this.hall;
    const heard = this.accept(ws, socket);
    this.sockets.add(ws);
    this.boundStranger(ws, socket, heard);
    ws.on("message", (data: Buffer, binary) => heard.message(binary ? data : data.toString(), data.length));
    ws.on("pong", () => heard.pong());
    // A frame that breaks the protocol or is too large: ws closes with the code that says so.
    ws.on("error", (error) => log.debug("a connection failed", { session: heard.session, ...faultFields(error) }));
    ws.on("close", () => {
      this.sockets.delete(ws);
      heard.close();
    });
  }

  /**
   * A frame may be large, and what is there of it is kept until it is whole. That is for those who were let in: of anybody else so
   * many bytes are taken as an AUTH can have, and some to spare.
   */
  private boundStranger(ws: WebSocket, socket: Duplex, { session, known, close }: Heard): void {
    const { log, config } = this.hall;
    let bytes = 0;
    const onData = (chunk: Buffer) => {
      switch (known()) {
        case "yes":
          socket.off("data", onData);
          return;
        case "asked":
          return;
        case "no":
          break;
      }
      bytes += chunk.length;
      if (bytes <= config.limits.unauthedBytesMax) return;
      socket.off("data", onData);
      log.debug("a connection sent too much before its AUTH", { session });
      ws.close(closeCodes.noAuth, `more than ${config.limits.unauthedBytesMax} bytes before AUTH`);
      // Not read any more, also not when the session has had its turn: the rest of it must not be kept until the peer answers the close.
      close();
      socket.pause();
      socket.end(() => ws.terminate());
    };
    socket.on("data", onData);
  }

  /** A connection from outside, whatever it is made of: what happens on it is told to what this gives back. */
  accept(peer: Peer, pipe: Pipe): Heard {
    const session = new Session(this.hall, { id: ++this.lastId, peer, pipe });
    this.sessions.add(session);
    if (this.sweeper === undefined) this.sweep();
    return {
      session: session.id,
      message: (frame, bytes) => session.receive(frame, bytes),
      pong: () => {
        session.alive = true;
      },
      close: () => this.forget(session),
      known: () => (session.authed ? "yes" : session.asks ? "asked" : "no"),
    };
  }

  /** A connection from our own process. While the node shuts down it is closed instead of opened. */
  connectInside(events: InsideEvents): InsideWire {
    const { clock, log } = this.hall;
    const peer: InsidePeer = new InsidePeer({
      clock,
      log,
      events,
      onFrame: (frame, bytes) => session.receive(frame, bytes),
      onClosed: () => this.forget(session),
    });
    const session = new Session(insideHall(this.hall), { id: ++this.lastId, peer, pipe: peer });
    if (this.status === "running") this.insiders.set(session, peer);
    else void session.close(closeCodes.goingAway, "the node is shutting down", "shutdown");
    return peer.wire;
  }

  private forget(session: Session): void {
    this.sessions.delete(session);
    this.insiders.delete(session);
    void session.end();
  }

  // -------------------------------------------------------------------------------------------------------------- sweeping

  private sweep(): void {
    const { config, clock } = this.hall;
    const { authMs, stalledMs, pingMs } = config.limits;
    const everyMs = Math.min(sweepMsMax, Math.max(sweepMsMin, Math.min(authMs, stalledMs, pingMs) / 4));
    const run = () => {
      const now = clock.mono();
      for (const session of this.sessions) this.look(session, now);
      this.sweep();
    };
    if (this.status !== "closed") this.sweeper = clock.after(everyMs, run, { background: true });
  }

  private look(session: Session, now: number): void {
    const { config, log, counters } = this.hall;
    const { authMs, stalledMs, pingMs } = config.limits;
    if (!session.authed && now - session.since >= authMs) {
      this.part(session, closeCodes.noAuth, `no AUTH within ${authMs} ms`);
      return;
    }
    const stalledFor = now - (session.outlet.stalledSince(now) ?? now);
    if (stalledFor >= stalledMs) {
      counters.slowClosed++;
      log.warn("a client that takes nothing is closed", { session: session.id, unsent: session.outlet.unsent });
      this.part(session, closeCodes.stalled, `nothing was taken for ${stalledMs} ms`);
      return;
    }
    session.stall(session.outlet.full || stalledFor >= Math.min(stalledTellMsMax, stalledMs / 4));
    if (now - session.pingedAt < pingMs) return;
    // Who is not read, or has not taken what came before the ping, cannot be expected to answer it.
    if (!session.alive && session.listening && session.outlet.unsent === 0) {
      log.debug("a peer does not answer", { session: session.id });
      session.terminate();
      this.sessions.delete(session);
      return;
    }
    session.ping(now);
  }

  private part(session: Session, code: number, reason: string): void {
    this.sessions.delete(session);
    void session.close(code, reason);
  }
}

function portsOf(config: Config): readonly (readonly [Listening["setting"], number])[] {
  const all = [
    ["WS_PORT", config.wsPort],
    ["HTTP_PORT", config.httpPort],
    ["OPS_PORT", config.opsPort],
    ["REPLAY_PORT", config.replayPort],
  ] as const;
  return all.flatMap(([setting, port]) => (port === "off" ? [] : [[setting, port] as const]));
}

function bind(server: HttpServer, port: number, host: string): Promise<number> {
  return new Promise((resolve, reject) => {
    server.once("error", reject);
    server.listen({ port, host }, () => {
      server.off("error", reject);
      resolve((server.address() as AddressInfo).port);
    });
  });
}

function bindFault({ code, message }: NodeJS.ErrnoException, setting: string, port: number, host: string): string {
  if (code === "EADDRINUSE") return `${setting} ${port} is taken: another process listens on ${host}:${port}`;
  if (code === "EACCES") return `${setting} ${port} may not be opened by this user`;
  return `${setting} ${port} on ${host} cannot be opened: ${message}`;
}

function refuseUpgrade(socket: Duplex, status: 403 | 503, text: string): void {
  const phrase = status === 403 ? "Forbidden" : "Service Unavailable";
  const body = JSON.stringify({ error: text });
  socket.end(
    `HTTP/1.1 ${status} ${phrase}\r\nConnection: close\r\nContent-Type: application/json; charset=utf-8\r\n` +
      `Content-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
    () => socket.destroy(),
  );
}
