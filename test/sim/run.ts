// One life of a whole node from one seed: clients that come and go and behave well and badly, faults of every kind, then peace, and at
// the end everything must have been delivered. `steps` cuts the run short, so that the shortest prefix that fails can be found.

import type { Overrides } from "../../src/config.ts";
import { defaultConfig } from "../../src/config.ts";
import { staticToken } from "../../src/front/auth.ts";
import { createFront, type Front } from "../../src/front/front.ts";
import { rangesOf } from "../../src/front/log-range.ts";
import { MergedLog, runBytes } from "../../src/front/merged-log.ts";
import { isFailure } from "../../src/protocol/failure.ts";
import { loggerOver } from "../../src/runtime/log.ts";
import { Supervisor } from "../../src/runtime/supervisor.ts";
import { Dice } from "../support/dice.ts";
import { BusClient } from "./bus-client.ts";
import { Checker, Violation } from "./checker.ts";
import { goodManners, type Manners, SimClient } from "./client.ts";
import { Coverage } from "./coverage.ts";
import { Machine } from "./machine.ts";
import { Storage } from "./storage.ts";
import { Scope, World } from "./world.ts";

export interface RunOptions {
  readonly seed: number;
  /** At most so many things are done before peace comes. */
  readonly steps?: number;
  readonly trace?: (line: string) => void;
}

export interface Outcome {
  readonly coverage: Coverage;
  readonly violation?: string;
  /** How many things were done until then. */
  readonly steps: number;
  /** The same for the same seed. */
  readonly fingerprint: string;
}

const peaceMs = 180_000;
const clientsMax = 5;
const busesMax = 2;

export function simulate(options: RunOptions): Outcome {
  // Faults are made by the thousand, and their stacks are read by nobody unless they are traced.
  Error.stackTraceLimit = options.trace === undefined ? 0 : 10;
  const run = new Run(options);
  let violation: string | undefined;
  try {
    run.all();
  } catch (error) {
    if (error instanceof Violation) violation = error.message;
    else violation = `thrown: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}`;
  }
  const { coverage, done, world } = run;
  const fingerprint = `${world.steps}/${world.mono.toFixed(3)}`;
  return { coverage, steps: done, fingerprint, ...(violation === undefined ? {} : { violation }) };
}

interface Node {
  readonly scope: Scope;
  readonly machine: Machine;
  readonly system: Supervisor;
  readonly front: Front;
  readonly workers: number;
  status: "starting" | "serving" | "closing" | "gone";
}

class Run {
  readonly coverage = new Coverage();
  readonly world: World;
  done = 0;
  private readonly dice: Dice;
  private readonly trace: (line: string) => void;
  private readonly steps: number;
  private readonly checker: Checker;
  private readonly storage: Storage;
  private readonly outside = new Scope("outside");
  private readonly topics: readonly string[];
  private readonly groups: readonly { readonly name: string; readonly opts: object }[];
  /** All that is subscribed to: every group of every topic, and perhaps one group of their dead letters. */
  private readonly places: readonly { readonly topic: string; readonly name: string; readonly opts: object }[];
  private readonly overrides: Overrides;
  private readonly cloning: boolean;
  private readonly retention: boolean;
  /** Topics and groups are deleted. */
  private readonly deletion: boolean;
  /** Groups are joined while they end: in lives that no seed of `seeds.ts` has, which would be other lives. */
  private readonly renewal: boolean;
  private clients: SimClient[] = [];
  /** Whether clients of the library take part, which need the memory of a real node for what was published. */
  private readonly withLibrary: boolean;
  private buses: BusClient[] = [];
  private node: Node | undefined;
  private shards = 1;
  private lastClient = 0;
  private lastN = 0;
  private thrown: unknown;

  constructor({ seed, steps, trace }: RunOptions) {
    const dice = new Dice(seed);
    this.dice = dice;
    this.trace = trace ?? (() => undefined);
    this.world = new World(dice);
    this.world.onThrow = (error, scope) => {
      this.thrown ??=
        error instanceof Violation
          ? error
          : new Error(`in ${scope.name}: ${error instanceof Error ? error.stack : error}`);
    };
    this.checker = new Checker(this.world, this.coverage);
    this.checker.trace = trace;
    const kind = dice.chance(35) ? "log" : "memory";
    this.coverage.hit(`store: ${kind}`);
    this.storage = new Storage({
      kind,
      world: this.world,
      watch: this.checker,
      coverage: this.coverage,
      segmentBytes: dice.pick([16_384, 65_536]),
    });
    this.storage.weather.slowMs = dice.pick([0.5, 2, 10]);
    const length = dice.chance(80) ? 5 + dice.below(18) : 22 + dice.below(70);
    this.steps = Math.min(steps ?? Number.POSITIVE_INFINITY, length);
    this.topics = ["a", "b", "c"].slice(0, 1 + dice.below(2));
    const ordering = dice.chance(40) ? { ordering: "key" } : {};
    const filter = dice.chance(20) ? { filter: { keyPrefix: "k" } } : {};
    const backoff = dice.chance(30) ? { backoffMs: [50, 400] } : {};
    this.groups = [
      { name: "g", opts: { from: "earliest", maxAttempts: 1 + dice.below(4), ...ordering, ...backoff } },
      { name: "h", opts: { from: "earliest", maxAttempts: 3, ...filter } },
    ].slice(0, 1 + dice.below(2));
    const living = this.topics.flatMap((topic) => this.groups.map((group) => ({ topic, ...group })));
    const graves = dice.chance(25) ? living : [];
    const mourners = { name: "d", opts: { from: "earliest", maxAttempts: 1 + dice.below(2) } };
    this.places = [...living, ...graves.map(({ topic, name }) => ({ topic: `${topic}.dlq.${name}`, ...mourners }))];
    this.cloning = dice.chance(10);
    this.retention = dice.chance(15);
    this.deletion = dice.chance(25);
    this.renewal = this.deletion && seed % 5 === 0;
    this.withLibrary = dice.chance(40);
    const dedupeMs = this.withLibrary ? 200_000 : 1000;
    this.checker.dedupeMs = dedupeMs;
    this.checker.connRate = dice.chance(20) ? { burst: 10, perSec: 50 } : "off";
    this.checker.topicRate = dice.chance(20) ? { burst: 10, perSec: 50 } : "off";
    this.overrides = {
      partitions: dice.pick([1, 1, 2, 4]),
      connRate: this.checker.connRate,
      topicRate: this.checker.topicRate,
      ackTimeoutMs: dice.pick([200, 800]),
      limits: {
        unsettledMax: dice.pick([8, 100]),
        dedupeMs,
        pruneEveryMs: 300,
        askMs: 2000,
        drainMs: 1000,
        authMs: 2000,
        stalledMs: 1000,
        workerStuckMs: 1500,
        pingMs: 800,
        unsentBytesMax: dice.pick([600, 100_000]),
        workerInflightMax: dice.chance(20) ? 8 : 1000,
      },
    };
  }

  all(): void {
    this.start();
    this.until(() => this.node?.status === "serving", 20_000, "the node does not start");
    while (this.done < this.steps) {
      this.done++;
      this.act();
      this.pass(this.dice.chance(10) ? this.dice.below(1500) : this.dice.below(40));
    }
    this.peace();
  }

  // ------------------------------------------------------------------------------------------------------------ the node

  private start(): void {
    const { world, storage, checker, coverage, cloning } = this;
    const workers = 1 + this.dice.below(3);
    this.shards = Math.max(this.shards, workers);
    checker.ended();
    const config = defaultConfig({ ...this.overrides, workers, store: "memory" });
    const scope = new Scope("front");
    const machine = new Machine({ world, front: scope, storage, watch: checker, coverage, cloning });
    const clock = world.clock(scope);
    const log = loggerOver("debug", (level, msg, fields) =>
      this.trace(`    log ${level} ${msg} ${JSON.stringify(fields)}`),
    );
    const system = new Supervisor(
      {
        workers,
        shards: this.shards,
        store: { kind: "memory" },
        limits: config.limits,
        actorLimits: { ...config.limits, maxAttempts: config.maxAttempts },
        clock,
        log,
      },
      { threads: () => machine, meter: () => ({ samples: () => [], stop: () => undefined }) },
    );
    const http = () => undefined;
    const front = createFront({ config, system, clock, log, auth: staticToken(undefined), guarded: false, http });
    const node: Node = { scope, machine, system, front, workers, status: "starting" };
    machine.onNodeFuse = () => this.crash(node, false);
    this.node = node;
    this.say(`start with WORKERS=${workers}, ${this.shards} shards`);
    this.coverage.hit(`WORKERS=${workers}`);
    world.at(scope, world.mono, () => {
      system
        .start(front.events)
        .then(() => front.listen({ ports: false }))
        .then(
          () => {
            if (node.status === "starting") node.status = "serving";
          },
          (error: unknown) => {
            if (node.status === "starting") this.failedStart(node, error);
          },
        );
    });
  }

  private failedStart(node: Node, error: unknown): void {
    this.coverage.hit("a start fails");
    this.say(`the start fails: ${error}`);
    this.crash(node, false);
  }

  private crash(node: Node, power: boolean): void {
    if (node.status === "gone") return;
    this.say(power ? "power loss" : "kill -9");
    this.coverage.hit(power ? "fault: power loss" : "fault: kill -9");
    node.status = "gone";
    node.scope.alive = false;
    node.machine.killAll();
    this.storage.crashed(power);
    for (const bus of this.buses) bus.cut(true);
    for (const client of this.clients) client.over();
    this.clients = [];
    const wait = this.dice.below(200);
    this.world.after(this.outside, wait, () => this.start());
  }

  private closeNode(node: Node): void {
    this.coverage.hit("fault: SIGTERM");
    this.say("SIGTERM");
    node.status = "closing";
    this.world.at(node.scope, this.world.mono, () => {
      void node.front
        .drain()
        .then(() => node.system.close())
        .then(() => node.front.close())
        .then(() => {
          if (node.status !== "closing") return;
          node.status = "gone";
          node.scope.alive = false;
          for (const client of this.clients) client.over();
          this.clients = [];
          this.world.after(this.outside, this.dice.below(100), () => this.start());
        });
    });
  }

  // ---------------------------------------------------------------------------------------------------------- what happens

  private act(): void {
    const { dice } = this;
    const node = this.node!;
    if (node.status !== "serving") return;
    const live = this.clients.filter(({ status }) => status === "open");
    const client = live.length > 0 ? dice.pick(live) : undefined;
    const roll = dice.below(100);
    if (this.deletion && dice.chance(10)) this.delete(node);
    else if (this.renewal && dice.chance(10)) this.renew(node, live);
    else if (this.withLibrary && dice.chance(35)) this.useLibrary();
    else if (client === undefined || (roll < 12 && live.length < clientsMax)) this.connect(node);
    else if (roll < 45) this.publish(client);
    else if (roll < 62) this.subscribe(client);
    else if (roll < 66) this.meddle(client);
    else if (roll < 68) this.askLatest(client);
    else if (roll < 79) this.steer(client, live);
    else this.fault(node);
  }

  private connect(node: Node, manners?: Manners): SimClient {
    const { dice } = this;
    const ack = dice.pick([95, 70, 30]);
    const chosen = manners ?? {
      ack,
      nack: dice.below(101 - ack),
      extend: dice.below(10),
      unnamed: dice.pick([0, 0, 50]),
      late: dice.pick([0, 0, 10]),
      fickle: dice.pick([0, 0, 20]),
      handleMs: dice.pick([2, 30, 300]),
    };
    const { world, checker, coverage } = this;
    const id = ++this.lastClient;
    const unsentBytesMax = this.overrides.limits?.unsentBytesMax ?? 0;
    const client = new SimClient({ id, world, checker, coverage, front: node.scope, unsentBytesMax, manners: chosen });
    this.clients.push(client);
    this.say(`${client.name} connects`);
    client.connect(node.front);
    world.settle();
    return client;
  }

  private publish(client: SimClient, topic = this.dice.pick(this.topics)): void {
    const { dice } = this;
    for (let i = dice.below(6); i >= 0; i--) {
      const key = dice.pick(["k1", "k2", "x", undefined]);
      const ownId = dice.chance(20) ? `own-${dice.below(4)}` : undefined;
      const n = ++this.lastN;
      this.say(
        `${client.name} publishes ${n} to ${topic}${key === undefined ? "" : ` key ${key}`}${ownId === undefined ? "" : ` id ${ownId}`}`,
      );
      const opts = { ...(key === undefined ? {} : { key }), ...(ownId === undefined ? {} : { id: ownId }) };
      client.publish(
        topic,
        { n, client: client.id, library: false, topic, key, ownId, sentWall: this.world.wall },
        opts,
      );
    }
  }

  private useLibrary(): void {
    const { dice, world, checker, coverage } = this;
    const roll = dice.below(100);
    if (this.buses.length === 0 || (roll < 10 && this.buses.length < busesMax)) {
      const node = () => (this.node?.status === "serving" || this.node?.status === "closing" ? this.node : undefined);
      const made = new BusClient({ id: ++this.lastClient, world, checker, coverage, node });
      this.buses.push(made);
      this.say(`${made.name} is made`);
      return;
    }
    const bus = dice.pick(this.buses);
    const topic = dice.pick(this.topics);
    if (roll < 60) {
      for (let i = dice.below(12); i >= 0; i--) {
        const key = dice.pick(["k1", "k2", "x", undefined]);
        const n = ++this.lastN;
        this.say(`${bus.name} publishes ${n} to ${topic}${key === undefined ? "" : ` key ${key}`}`);
        const publication = { n, client: bus.id, library: true, topic, key, ownId: undefined, sentWall: world.wall };
        world.at(bus.scope, world.mono, () => bus.publish(publication));
      }
    } else if (roll < 75) {
      const { topic, name, opts } = dice.pick(this.places);
      const maxInflight = dice.pick([1, 3, 50]);
      this.say(`${bus.name} subscribes to ${topic} as ${name}, maxInflight ${maxInflight}`);
      world.at(bus.scope, world.mono, () => bus.subscribe(topic, name, { ...opts, maxInflight }));
    } else if (roll < 85) {
      this.say(`${bus.name} stops a subscription`);
      world.at(bus.scope, world.mono, () => bus.stop());
    } else {
      const vanish = dice.chance(40);
      this.coverage.hit(vanish ? "fault: the library's connection vanishes" : "fault: the library's connection is cut");
      this.say(`the connection of ${bus.name} ${vanish ? "vanishes" : "is cut"}`);
      bus.cut(vanish);
    }
  }

  private subscribe(client: SimClient): void {
    const { dice } = this;
    const { topic, name, opts } = dice.pick(this.places);
    const maxInflight = dice.pick([1, 2, 10]);
    this.say(`${client.name} subscribes to ${topic} as ${name}, maxInflight ${maxInflight}`);
    client.subscribe(topic, name, maxInflight, opts);
  }

  /** Says something of events that it need not hold, under no name or a name that is another's, of before or of nobody. */
  private meddle(client: SimClient): void {
    const { dice } = this;
    const subscription = [...client.subscriptions.values()].find(({ status }) => status === "live");
    if (subscription === undefined) return;
    const { topic, group } = subscription;
    for (const lease of this.checker.leasesIn(topic, group)) {
      if (!dice.chance(25)) continue;
      const [epoch, token] = lease.token.split("-").map(Number);
      const name = dice.pick(["no lease", "the lease", "an older epoch", "a newer epoch", "a newer lease"] as const);
      const tokens = {
        "no lease": undefined,
        "the lease": lease.token,
        "an older epoch": `${epoch - 1}-${token}`,
        "a newer epoch": `${epoch + 1}-${token}`,
        "a newer lease": `${epoch}-${token + 1}`,
      };
      const { id } = lease.group.owner.events[lease.offset];
      const whose = lease.subscription === subscription ? "its own event" : "an event of another";
      this.coverage.hit(`a client says something of ${whose} as ${name}`);
      const op = dice.pick(["ACK", "NACK", "MODACK"] as const);
      const more = op === "MODACK" ? { extend_ms: 1 + dice.below(1000) } : {};
      this.world.at(client.scope, this.world.mono, () =>
        client.settle(op, { topic, group, id, token: tokens[name] }, more),
      );
    }
  }

  private askLatest(client: SimClient): void {
    const { dice } = this;
    const topic = dice.pick(this.topics);
    const keys = dice.pick([undefined, ["x", "k1", "none"], ["k2"]]);
    this.say(`${client.name} LATEST ${topic} ${keys ?? "all keys"}`);
    client.latest(topic, keys);
  }

  private steer(client: SimClient, live: readonly SimClient[]): void {
    const { dice } = this;
    const subscription = [...client.subscriptions.values()].find(
      ({ status }) => status === "live" || status === "paused",
    );
    const roll = dice.below(100);
    if (subscription !== undefined && roll < 40) {
      const op = dice.pick(["UNSUBSCRIBE", "PAUSE", "RESUME"] as const);
      this.say(`${client.name} ${op} ${subscription.name}`);
      client.steer(op, subscription);
    } else if (roll < 52) {
      const { topic, name } = dice.pick(this.places);
      const set = dice.pick(["earliest", "latest", { offsets: `0:${dice.below(12)}` }, undefined]);
      this.say(`${client.name} CURSOR ${topic} ${name} set ${JSON.stringify(set)}`);
      client.seek(topic, name, set);
    } else if (roll < 66) {
      const vanish = dice.chance(40);
      this.coverage.hit(vanish ? "fault: a client vanishes" : "fault: a client disconnects");
      this.say(`${client.name} ${vanish ? "vanishes" : "disconnects"}`);
      client.close(vanish);
    } else if (roll < 80) {
      this.coverage.hit(client.frozen ? "a client takes again" : "fault: a client takes nothing");
      this.say(`${client.name} ${client.frozen ? "takes again" : "takes nothing"}`);
      const wanted = !client.frozen;
      this.world.at(client.scope, this.world.mono, () => client.freeze(wanted));
    } else if (live.length < clientsMax) {
      this.coverage.hit("fault: a doubled connection");
      const twin = this.connect(this.node!, client.manners);
      for (const { topic, group, maxInflight } of client.subscriptions.values()) {
        const { opts } = this.places.find((place) => place.topic === topic && place.name === group)!;
        this.world.after(twin.scope, 1, () => twin.subscribe(topic, group, maxInflight, opts));
      }
    }
  }

  private fault(node: Node): void {
    const { dice } = this;
    const { weather } = this.storage;
    switch (dice.below(10)) {
      case 0: {
        const worker = dice.below(node.workers);
        const steps = dice.below(6);
        this.say(`worker ${worker} dies after ${steps} steps`);
        if (node.machine.kill(worker, steps)) this.coverage.hit("fault: a worker dies");
        return;
      }
      case 1:
        if (dice.chance(50)) this.crash(node, dice.chance(50));
        else {
          node.machine.nodeFuse = dice.below(8);
          this.say(`the node dies after ${node.machine.nodeFuse} steps`);
        }
        return;
      case 2:
        weather.full = !weather.full;
        this.say(weather.full ? "the disk is full" : "the disk has room");
        return;
      case 3:
        weather.breaking = 1;
        this.say("the next commit breaks");
        return;
      case 4:
        weather.slowMs = dice.pick([0.5, 2, 50, 400]);
        this.coverage.hit(weather.slowMs >= 50 ? "fault: slow commits" : "fast commits");
        this.say(`commits take ${weather.slowMs} ms`);
        return;
      case 5: {
        const step = dice.pick([-3_600_000, 3_600_000, -1500, 700]);
        this.world.wallAhead += step;
        this.checker.clockMoved = true;
        this.checker.clockSetForth ||= step > 0;
        this.coverage.hit(step > 0 ? "fault: the clock steps forth" : "fault: the clock steps back");
        this.say(`the clock steps by ${step} ms`);
        return;
      }
      case 6:
        node.machine.poison = dice.pick(["partition/", "group/", "catalog", "bucket/"]);
        this.say(`a cell of ${node.machine.poison} throws`);
        return;
      case 7:
        if (dice.chance(30)) this.closeNode(node);
        return;
      case 8:
        if (this.retention) this.trim(node);
        else weather.closed = 1;
        return;
      case 9: {
        const ms = dice.pick([100, 1000, 6000]);
        this.checker.stoodStillMs = Math.max(this.checker.stoodStillMs, ms);
        if (dice.chance(30)) {
          this.say(`the front stands still for ${ms} ms`);
          this.coverage.hit("fault: the front stands still");
          this.world.standStill(node.scope, ms);
          return;
        }
        const worker = dice.below(node.workers);
        this.say(`worker ${worker} stands still for ${ms} ms`);
        if (node.machine.hang(worker, ms)) this.coverage.hit("fault: a worker stands still");
        return;
      }
      default:
    }
  }

  private trim(node: Node): void {
    const topic = this.dice.pick(this.topics);
    this.say(`retention of ${topic}: 500 ms`);
    this.world.at(node.scope, this.world.mono, () => {
      void node.front.router.configure(topic, { settings: { retention: { ageMs: 500 } } });
    });
  }

  private delete(node: Node): void {
    const { dice } = this;
    const { topic, name } = dice.pick(this.places);
    this.end(node, topic, dice.chance(60) ? undefined : name);
  }

  /** A group ends while a commit is under way, so that its end waits for the next one, and whoever joins it waits for that. */
  private renew(node: Node, live: readonly SimClient[]): void {
    const held = live
      .flatMap((client) => [...client.subscriptions.values()])
      .find(({ topic }) => this.topics.includes(topic));
    if (held === undefined) return;
    const { topic, group } = held;
    const next = this.connect(node);
    this.storage.weather.slowMs = 50;
    this.publish(next, topic);
    this.publish(next, topic);
    this.world.after(next.scope, 20, () => {
      this.end(node, topic, group);
      this.say(`${next.name} subscribes to ${topic} as ${group} at once`);
      this.coverage.hit("a group is joined while its end is being stored");
      next.subscribe(topic, group, 2, this.places.find((place) => place.topic === topic && place.name === group)!.opts);
    });
  }

  /** Deletes a topic or a group of it. */
  private end(node: Node, topic: string, group: string | undefined): void {
    const { world, coverage } = this;
    const what = group === undefined ? "a topic" : "a group";
    this.say(group === undefined ? `${topic} is deleted` : `group ${group} of ${topic} is deleted`);
    coverage.hit(`deletion of ${what}: asked for`);
    world.at(node.scope, world.mono, () => {
      const { router } = node.front;
      void (group === undefined ? router.remove(topic) : router.removeGroup(topic, group)).then((failed) => {
        this.say(`    ${what} is deleted: ${failed?.code ?? "OK"}`);
        coverage.hit(`deletion of ${what}: ${failed?.code ?? "OK"}`);
      });
    });
  }

  // --------------------------------------------------------------------------------------------------------------- the end

  /** Faults are over. Whoever is left goes, and one good consumer per group must get everything. */
  private peace(): void {
    const { weather } = this.storage;
    Object.assign(weather, { slowMs: 1, full: false, breaking: 0, closed: 0 });
    this.say("peace");
    if (this.node!.status !== "gone") {
      this.node!.machine.poison = undefined;
      this.node!.machine.nodeFuse = -1;
    }
    for (const client of this.clients) client.close(false);
    this.until(() => this.node!.scope.stuckUntil <= this.world.mono, 10_000, "the front stands still for ever");
    this.until(() => this.node!.status === "serving" && this.up(), 60_000, "the node does not come back");
    if (this.node!.system.state().some(({ failedCells }) => failedCells.length > 0)) {
      this.coverage.hit("a cell is given up");
      this.crash(this.node!, false);
      this.until(() => this.node!.status === "serving" && this.up(), 60_000, "the node does not come back");
    }
    this.clients = [];
    for (const bus of this.buses) this.world.at(bus.scope, this.world.mono, () => bus.close());
    this.until(() => this.buses.every(({ closed }) => closed), 120_000, "a client of the library does not close");
    const client = this.connect(this.node!, goodManners);
    const subscribe = () => {
      for (const { topic, name, opts } of this.places) client.subscribe(topic, name, 10, opts);
    };
    subscribe();
    const retry = () => {
      if (client.status !== "open") return;
      subscribe();
      this.world.after(client.scope, 1000, retry);
    };
    this.world.after(client.scope, 1000, retry);
    this.until(
      () => this.unsettled() === undefined,
      peaceMs,
      () => `never delivered or never settled: ${this.unsettled()}`,
    );
    // Whoever subscribes to a topic makes it, once what is left of the one before is gone.
    const wanted = this.places.map(({ topic, name }) => `${topic} ${name}`);
    const missing = () => wanted.find((name) => client.subscriptions.get(name)?.status !== "live");
    this.until(
      () => missing() === undefined && this.unsettled() === undefined && this.checker.deleting() === undefined,
      peaceMs,
      () => `not subscribed to: ${missing()}; being deleted: ${this.checker.deleting()}; ${this.unsettled()}`,
    );
    const left = this.checker.leftBehind();
    if (left !== undefined) this.checker.fail(`of a deleted topic is left: ${left}`);
    for (const publication of this.checker.publications.values()) {
      if (publication.confirmed && publication.stored === undefined)
        this.checker.fail(`${publication.n} was confirmed and is not stored`);
    }
    for (const topic of this.topics) client.latest(topic, undefined);
    const exports = { open: 0 };
    for (const topic of new Set(this.places.map(({ topic }) => topic))) this.compareExport(topic, exports);
    this.until(() => exports.open === 0, 20_000, "an export does not end");
    this.until(
      () => client.pending.size === 0,
      20_000,
      () => `never answered: ${[...client.pending.values()].map(({ op }) => op)}`,
    );
    const exceeded = this.checker.budgets.exceeded();
    if (exceeded !== undefined) this.checker.fail(`more than the rate allows: ${exceeded}`);
    this.coverage.hit("runs");
  }

  private up(): boolean {
    return this.node!.system.state().every(({ status }) => status === "up");
  }

  private unsettled(): string | undefined {
    for (const { topic, name } of this.places) {
      for (const { number, stream } of this.checker.streams()) {
        if (stream.topic !== topic) continue;
        const group = this.checker.groups.get(`${number}/${name}`);
        if (group === undefined) return `${topic}/${stream.partition} has no cursor of ${name}`;
        if (group.floor < stream.events.length)
          return `${group.name} stands at ${group.floor} of ${stream.events.length}`;
      }
    }
    return undefined;
  }

  private compareExport(topic: string, exports: { open: number }): void {
    const { front, system, scope } = this.node!;
    exports.open++;
    const read = async () => {
      const lines: string[] = [];
      // What is still under way from before may come in or not.
      const heads = new Map(
        [...this.checker.streams()].map(({ stream }) => [stream, { start: stream.start, end: stream.events.length }]),
      );
      const route = await front.router.resolve(topic, { create: false });
      if (isFailure(route)) {
        if (route.code === "unknown_topic") return;
        throw new Error(`${route.code}: ${route.msg}`);
      }
      const ranges = await rangesOf({ system, route }, { start: { kind: "earliest" }, after: new Map() });
      const merged = new MergedLog({ system, ranges, pageEventsMax: 7, ahead: true });
      while (!merged.ended) {
        const failed = await merged.fill();
        if (isFailure(failed)) throw new Error(`${failed.code}: ${failed.msg}`);
        for (let run = merged.take(1000, 100_000); run !== undefined; run = merged.take(1000, 100_000)) {
          lines.push(...new TextDecoder().decode(runBytes(run)).trimEnd().split("\n"));
        }
      }
      this.checkLines(topic, lines, heads);
    };
    // A reader whose worker has too much to do is told so, and tries again.
    const attempt = () => {
      read().then(
        () => void exports.open--,
        () => void this.world.after(scope, 100, attempt),
      );
    };
    this.world.at(scope, this.world.mono, attempt);
  }

  private checkLines(
    topic: string,
    lines: readonly string[],
    heads: ReadonlyMap<object, { start: number; end: number }>,
  ): void {
    const next = new Map<number, number>();
    for (const line of lines) {
      const { partition, offset, id, payload } = JSON.parse(line) as {
        partition: number;
        offset: number;
        id: string;
        payload: unknown;
      };
      const stream = this.checker.streamOf(topic, partition)?.stream;
      const event = stream?.events[offset];
      const expected = next.get(partition) ?? (stream === undefined ? undefined : heads.get(stream)?.start) ?? 0;
      // What retention removes meanwhile may be missing.
      if (offset !== expected && !(offset > expected && offset <= (stream?.start ?? 0)))
        this.checker.fail(`export of ${topic}/${partition}: ${offset} in the place of ${expected}`);
      if (event?.id !== id || event.payload !== JSON.stringify(payload))
        this.checker.fail(`export of ${topic}/${partition}:${offset}: ${line}`);
      next.set(partition, offset + 1);
    }
    for (const { stream } of this.checker.streams()) {
      const end = Math.max(next.get(stream.partition) ?? 0, stream.start);
      if (stream.topic === topic && end < (heads.get(stream)?.end ?? 0))
        this.checker.fail(`the export of ${topic}/${stream.partition} ends at ${end}`);
    }
    this.coverage.hit("exports compared");
  }

  // -------------------------------------------------------------------------------------------------------------- the time

  private pass(ms: number): void {
    this.world.runUntil(() => this.broken, this.world.mono + ms);
    this.rethrow();
  }

  private until(condition: () => boolean, ms: number, otherwise: string | (() => string)): void {
    const held = this.world.runUntil(() => this.broken || condition(), this.world.mono + ms);
    this.rethrow();
    if (!held) this.checker.fail(typeof otherwise === "string" ? otherwise : otherwise());
  }

  private get broken(): boolean {
    return this.thrown !== undefined || this.checker.violation !== undefined;
  }

  private rethrow(): void {
    if (this.checker.violation !== undefined) throw this.checker.violation;
    if (this.thrown !== undefined) throw this.thrown;
  }

  private say(what: string): void {
    this.trace(`${this.world.mono.toFixed(1).padStart(9)} ${what}`);
  }
}
