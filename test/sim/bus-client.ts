// The real client library in a simulated world: it reconnects, sends again what was not confirmed, extends leases and acks in
// batches, over connections that delay and break. Its handlers take their time and sometimes fail. What it promises is told to the checker, which sees
// what became of it in the log.

import type { EventRecord, Subscription } from "../../src/bus/event-bus.ts";
import { EventClient, NarthexError } from "../../src/client/client.ts";
import type { Wire, WireEvents } from "../../src/client/wire.ts";
import type { Front } from "../../src/front/front.ts";
import type { Peer } from "../../src/front/outlet.ts";
import type { Heard } from "../../src/front/server.ts";
import type { Checker } from "./checker.ts";
import { type Publication, pipeOf } from "./client.ts";
import type { Coverage } from "./coverage.ts";
import { Scope, type World } from "./world.ts";

const wireMsMax = 3;

export interface Node {
  readonly front: Front;
  readonly scope: Scope;
}

export class BusClient {
  readonly id: number;
  readonly scope: Scope;
  readonly subscriptions: Subscription[] = [];
  closed = false;
  /** How many subscriptions the node has ended. */
  private ended = 0;
  private readonly world: World;
  private readonly checker: Checker;
  private readonly coverage: Coverage;
  private readonly node: () => Node | undefined;
  private readonly client: EventClient;
  private readonly running = new Set<string>();
  private connection: BusConnection | undefined;

  constructor(options: {
    readonly id: number;
    readonly world: World;
    readonly checker: Checker;
    readonly coverage: Coverage;
    /** Undefined while nothing listens. */
    readonly node: () => Node | undefined;
  }) {
    this.id = options.id;
    this.world = options.world;
    this.checker = options.checker;
    this.coverage = options.coverage;
    this.node = options.node;
    this.scope = new Scope(`bus-${options.id}`);
    const { world, scope } = this;
    const { mono, after, soon, nonce } = world.clock(scope);
    this.client = new EventClient("ws://simulated", {
      dial: (_url, events) => this.dial(events),
      clock: { mono, after: (ms, run) => after(ms, run), soon, nonce, random: () => world.dice.below(1000) / 1000 },
      onError: (error) => this.coverage.hit(`library: ${error instanceof NarthexError ? error.code : error.name}`),
    });
  }

  get name(): string {
    return this.scope.name;
  }

  publish(publication: Publication): void {
    const { checker, client, coverage } = this;
    const { n, topic, key } = publication;
    checker.publications.set(n, publication);
    client.publish(topic, { n }, key === undefined ? {} : { key }).then(
      // What was stored by a try of which it did not hear is no duplicate of another event.
      ({ id, ts, partition, offset }) => {
        coverage.hit("library: published");
        checker.publishConfirmed(publication, { id, ts, partition, offset });
      },
      (error: unknown) => {
        const code = error instanceof NarthexError ? error.code : String(error);
        coverage.hit(`library: publish rejected with ${code}`);
        checker.publishRefused(publication, code);
      },
    );
  }

  subscribe(topic: string, group: string, options: object): void {
    const { ended } = this;
    const handler = ({ id, partition, offset, payload }: EventRecord<unknown>) => {
      // After a deletion what is subscribed to is another group or topic.
      const event = `${topic}/${partition}:${offset} ${id} for ${group}, after ${ended} ends`;
      if (this.running.has(event)) this.checker.fail(`${this.name}: a second handler of ${event} beside the first`);
      this.running.add(event);
      this.coverage.hit("library: handled");
      const { dice } = this.world;
      const ms = dice.chance(10) ? dice.below(3000) : dice.below(60);
      return new Promise<void>((resolve, reject) => {
        this.world.after(this.scope, ms, () => {
          this.running.delete(event);
          const ok = !dice.chance(15);
          this.checker.handled({ by: this.name, topic, group, n: (payload as { n: number }).n, ok });
          if (ok) resolve();
          else reject(new Error("no"));
        });
      });
    };
    this.client.subscribe(topic, group, handler, options).then(
      (subscription) => {
        this.subscriptions.push(subscription);
        subscription.closed.catch((error: NarthexError) => {
          this.ended++;
          this.coverage.hit(`library: a subscription is ended with ${error.code}`);
        });
        this.coverage.hit("library: subscribed");
      },
      (error: unknown) => this.coverage.hit(`library: subscribe rejected with ${(error as NarthexError).code}`),
    );
  }

  stop(): void {
    void this.subscriptions.pop()?.close();
  }

  /** Its connection is lost; the node hears of it, or never. */
  cut(vanish: boolean): void {
    this.connection?.cut(vanish);
  }

  close(): void {
    this.client.close().then(
      () => {
        this.closed = true;
      },
      (error: unknown) => this.checker.fail(`${this.name}: close rejects: ${error}`),
    );
  }

  private dial(events: WireEvents): Wire {
    const { world, scope, checker } = this;
    this.connection = new BusConnection({ world, scope, checker, events, node: this.node() });
    return this.connection;
  }
}

class BusConnection implements Wire {
  private readonly world: World;
  private readonly scope: Scope;
  private readonly checker: Checker;
  private readonly events: WireEvents;
  private readonly node: Node | undefined;
  private heard: Heard | undefined;
  private toNodeAt = 0;
  private toClientAt = 0;
  /** Of the client's end. */
  private open = true;
  private readonly peer: Peer & { readyState: number; bufferedAmount: number };
  private paused = false;
  private readonly unread: (string | Uint8Array)[] = [];
  unsent = 0;

  constructor(options: { world: World; scope: Scope; checker: Checker; events: WireEvents; node: Node | undefined }) {
    this.world = options.world;
    this.scope = options.scope;
    this.checker = options.checker;
    this.events = options.events;
    this.node = options.node;
    this.peer = this.makePeer();
    const { node } = this;
    if (node === undefined) {
      this.world.after(this.scope, this.wireMs(), () => this.ended(1006));
      return;
    }
    this.toNodeAt = this.world.mono + this.wireMs();
    this.world.at(node.scope, this.toNodeAt, () => {
      this.heard = node.front.accept(this.peer, pipeOf(this.scope.name));
      this.later("client", () => {
        if (this.open) this.events.opened();
      });
    });
  }

  send(frame: string | Uint8Array): void {
    if (!this.open) return;
    const sent = typeof frame === "string" ? frame : frame.slice();
    this.unsent += sent.length;
    this.later("node", () => {
      this.unsent -= sent.length;
      this.arrive(sent);
    });
  }

  close(): void {
    if (!this.open) return;
    this.hangUp();
    this.world.after(this.scope, 0.1, () => this.ended(1000));
  }

  /** Lost on the way, or with the node. */
  cut(vanish: boolean): void {
    if (!this.open) return;
    if (!vanish) this.hangUp();
    this.world.after(this.scope, this.wireMs(), () => this.ended(1006));
  }

  private hangUp(): void {
    this.later("node", () => {
      if (this.peer.readyState === 3) return;
      this.peer.readyState = 3;
      this.heard?.close();
    });
  }

  private ended(code: number): void {
    if (!this.open) return;
    this.open = false;
    this.events.closed(code, "");
  }

  private arrive(frame: string | Uint8Array): void {
    if (this.peer.readyState !== 1) return;
    if (this.paused) this.unread.push(frame);
    else this.heard?.message(frame, frame.length);
  }

  private makePeer(): Peer & { readyState: number; bufferedAmount: number } {
    const peer = {
      OPEN: 1,
      readyState: 1,
      bufferedAmount: 0,
      send: (given: string | Uint8Array, { binary }: { binary: boolean }, taken: (error?: Error | null) => void) => {
        const bytes = typeof given === "string" ? new TextEncoder().encode(given) : given.slice();
        peer.bufferedAmount += bytes.length;
        const leases = binary ? this.checker.batchSent(this.scope.name, bytes) : [];
        this.later("client", () => {
          if (!this.open) return;
          if (binary) this.events.binary(bytes);
          else this.events.text(new TextDecoder().decode(bytes));
          this.later("node", () => {
            peer.bufferedAmount -= bytes.length;
            if (peer.readyState !== 1) return;
            for (const lease of leases) lease.taken = true;
            taken();
          });
        });
      },
      close: (code: number) => this.closedByNode(code),
      terminate: () => this.closedByNode(1006),
      pause: () => {
        this.paused = true;
      },
      resume: () => {
        this.paused = false;
        for (const frame of this.unread.splice(0)) this.arrive(frame);
      },
      ping: () => {
        if (this.open) this.later("node", () => this.heard?.pong());
      },
    };
    return peer;
  }

  private closedByNode(code: number): void {
    if (this.peer.readyState !== 1) return;
    this.peer.readyState = 2;
    this.later("client", () => this.ended(code));
    this.later("node", () => {
      this.peer.readyState = 3;
      this.heard?.close();
    });
  }

  /** What one side sends arrives in its order. */
  private later(side: "node" | "client", run: () => void): void {
    const { world, node } = this;
    if (side === "client") {
      this.toClientAt = Math.max(this.toClientAt, world.mono + this.wireMs());
      world.at(this.scope, this.toClientAt, run);
    } else if (node !== undefined) {
      this.toNodeAt = Math.max(this.toNodeAt, world.mono + this.wireMs());
      world.at(node.scope, this.toNodeAt, run);
    }
  }

  private wireMs(): number {
    return (this.world.dice.below(100) / 100) * wireMsMax;
  }
}
