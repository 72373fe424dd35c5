// The rounds: start the node with some number of workers, load it, end it in some way at some moment, and compare what the next one
// recovers with the journal.

import { eventually, pause } from "../support/deadline.ts";
import { Dice } from "../support/dice.ts";
import { type Ending, pickEnding, Usual } from "./endings.ts";
import { type Environment, isGone, type RunningNode } from "./environment.ts";
import { ask } from "./exporting.ts";
import { GroupModel } from "./group-model.ts";
import { Journal, Violation } from "./journal.ts";
import { Life, type World } from "./life.ts";
import { topicPlans } from "./plans.ts";
import { lostOk, Publishers } from "./publishers.ts";
import { TopicLog } from "./topic-log.ts";

export interface CrashOptions {
  readonly rounds: number;
  readonly seed: number;
  readonly workersMax: number;
  readonly environment: Environment;
  /** Then it ends, but not before so many rounds. */
  readonly minutes?: number;
  readonly roundsMin?: number;
  /** Ends it after the round under way. */
  readonly stopped?: () => boolean;
  readonly say?: (line: string) => void;
}

export interface CrashOutcome {
  readonly rounds: number;
  readonly seconds: number;
  readonly table: readonly (readonly [name: string, count: number])[];
  readonly violation?: { readonly what: string; readonly round: number; readonly story: string; readonly kept: string };
}

/** One topic is brought to its end, deleted and made anew every so many rounds; the folder every so many. */
const roundsPerTopic = 8;
const roundsPerFolder = 100;
/** After so many of a life the publishers take it easy: what they do is there at the moment of the kill, and the round does not last longer. */
const publishesPerLife = 60;

export async function crashRun(options: CrashOptions): Promise<CrashOutcome> {
  const run = new CrashRun(options);
  return run.all();
}

class CrashRun {
  private readonly options: CrashOptions;
  private readonly journal = new Journal();
  private readonly dice: Dice;
  private readonly world: World;
  private node: RunningNode | undefined;
  private where = { ws: "ws://127.0.0.1:1", http: "http://127.0.0.1:1" };
  private life: Life | undefined;
  private kills = 0;
  /** Topics whose end was asked for, and whether anybody knows of it. */
  private readonly deleting = new Set<string>();
  private readonly making = new Set<string>();
  private readonly finishing = new Set<TopicLog>();

  constructor(options: CrashOptions) {
    this.options = options;
    this.dice = new Dice(options.seed);
    const logs = new Map<string, TopicLog>();
    const publishers = new Publishers({
      journal: this.journal,
      dice: this.dice,
      // While one is brought to its end nobody adds to the others: that would only make the round longer.
      topics: () => (this.finishing.size > 0 ? [] : [...logs.values()]),
      sated: () => this.journal.counted("publishes sent") - this.sentBefore > publishesPerLife,
      over: () => this.life?.over ?? true,
      startedAtWall: () => this.startedAtWall,
      url: () => this.where,
    });
    this.world = {
      journal: this.journal,
      dice: this.dice,
      logs,
      groups: new Map(),
      graves: new Map(),
      leases: new Set(),
      publishers,
    };
  }

  async all(): Promise<CrashOutcome> {
    const { environment, rounds, roundsMin = 0, minutes = Number.POSITIVE_INFINITY } = this.options;
    const { say, stopped = () => false } = this.options;
    const { journal } = this;
    const startedAt = performance.now();
    const seconds = () => (performance.now() - startedAt) / 1000;
    let outcome: Pick<CrashOutcome, "violation"> = {};
    try {
      let told = 0;
      const goesOn = () => !stopped() && (this.kills < roundsMin || (this.kills < rounds && seconds() < minutes * 60));
      for (let round = 1; goesOn(); round++) {
        journal.round = round;
        await this.orBroken(this.round());
        environment.observe();
        if (this.kills >= told + 10) {
          told = this.kills;
          const events = journal.counted("publishes confirmed");
          const lost = journal.counted(lostOk);
          say?.(
            `${told} kills, ${events} publishes confirmed, ${lost} of the library over a kill, ${seconds().toFixed(0)} s`,
          );
        }
      }
      await this.orBroken(this.lastWords());
    } catch (error) {
      if (!(error instanceof Violation)) journal.note(undefined, `${(error as Error).stack}`);
      const what = error instanceof Error ? error.message : String(error);
      await this.stopNode();
      outcome = {
        violation: {
          what,
          round: journal.round,
          story: `${this.node?.out() ?? ""}\n${journal.story()}`,
          kept: environment.keep(),
        },
      };
    } finally {
      if (this.life !== undefined) this.life.over = true;
      this.world.publishers.close();
      await this.stopNode();
    }
    if (outcome.violation === undefined) environment.remove();
    const { user, system } = process.cpuUsage();
    journal.count("ms of the processor for the harness", Math.round((user + system) / 1000));
    const table = [...journal.table(), ...environment.facts()];
    return { rounds: this.kills, seconds: seconds(), table, ...outcome };
  }

  private async orBroken(work: Promise<void>): Promise<void> {
    const broken = this.journal.broken.then(() => {
      throw this.journal.violation;
    });
    await Promise.race([work, broken]);
  }

  // -------------------------------------------------------------------------------------------------------------- rounds

  private async round(): Promise<void> {
    const { dice, journal } = this;
    const whole = journal.round % roundsPerFolder === 0;
    const finishes = whole || journal.round % roundsPerTopic === 0;
    // The first one leaves something to lose to the others.
    const ending = whole ? "drained" : finishes || journal.round === 1 ? "under load" : pickEnding(dice);
    await this.start();
    if (ending === "while starting") {
      await this.whileAlive(pause(this.toReady.moment(dice, 1)));
      await this.kill(ending);
      return;
    }
    if (ending === "while recovering") {
      await this.killRecovering(ending);
      await this.start();
      await this.killRecovering(ending);
      return;
    }
    await this.serve();
    const { life } = this;
    if (life === undefined) throw new Error("the node does not live");
    if (ending === "right after start") await pause(dice.below(100));
    else {
      const asked = performance.now();
      if (!(await life.verify())) journal.fail("a node that nobody ended could not be read");
      journal.count("ms of comparing", Math.round(performance.now() - asked));
      await pause(dice.below(250));
    }
    const finishing = performance.now();
    if (finishes) await this.finish(whole);
    journal.count("ms of bringing topics to their end", Math.round(performance.now() - finishing));
    await this.endBy(ending);
    if (whole) this.freshFolder();
  }

  private async killRecovering(ending: Ending): Promise<void> {
    await this.node?.recovering();
    await this.whileAlive(pause(this.toRecover.moment(this.dice, 1)));
    await this.kill(ending);
  }

  private async whileAlive(work: Promise<void>): Promise<void> {
    await Promise.race([work, this.node?.exited]);
  }

  private async endBy(ending: Ending): Promise<void> {
    const { dice, journal, node } = this;
    switch (ending) {
      case "drained": {
        node?.signal("SIGTERM");
        const code = await node?.exited;
        journal.count("ends by SIGTERM");
        if (code !== 0) journal.fail(`SIGTERM ended the node with ${code}:\n${node?.out()}`);
        await this.afterwards();
        return;
      }
      case "while draining":
        node?.signal("SIGTERM");
        await this.whileAlive(pause(dice.below(500)));
        break;
      case "in a surge of the library":
        this.world.publishers.surge();
        await this.whileAlive(pause(this.world.publishers.latency.moment(dice, 2)));
        break;
      case "after a worker died":
        if (node?.plain) break;
        node?.signal("SIGUSR2");
        journal.count("deaths of a worker");
        await pause(dice.below(500));
        break;
      default:
        break;
    }
    await this.kill(ending);
  }

  // ------------------------------------------------------------------------------------------------------------ the node

  private async start(): Promise<void> {
    const { dice, options } = this;
    const choice = { workers: 1 + dice.below(options.workersMax), plain: dice.chance(8) };
    this.startedAt = performance.now();
    this.startedAtWall = Date.now();
    this.sentBefore = this.journal.counted("publishes sent");
    this.node = options.environment.start(choice);
    this.journal.note(
      undefined,
      `start with WORKERS=${choice.workers}${choice.plain ? " and the limits of users" : ""}`,
    );
    this.journal.count(`starts with WORKERS=${choice.workers}`);
  }

  private startedAt = 0;
  private startedAtWall = 0;
  private sentBefore = 0;
  private readonly toReady = new Usual(500);
  private readonly toRecover = new Usual(100);

  private async serve(): Promise<void> {
    const { journal, node } = this;
    let recoversAt = this.startedAt;
    void node?.recovering().then(() => {
      recoversAt = performance.now();
    });
    const where = await node?.ready;
    if (where === undefined) throw journal.fail(`the node did not start:\n${node?.out()}`);
    const readyAt = performance.now();
    this.toReady.took(readyAt - this.startedAt);
    this.toRecover.took(readyAt - recoversAt);
    journal.count("ms from start to ready", Math.round(readyAt - this.startedAt));
    journal.count("starts that served");
    this.where = where;
    this.life = new Life(this.world, where, this.startedAt);
    for (const name of this.deleting) await this.remove(name);
    for (const plan of topicPlans)
      if (!this.world.logs.has(plan.name) && !this.deleting.has(plan.name)) await this.make(plan);
    for (const log of this.world.logs.values()) if (log.shards.length === 0) await this.locate(log);
    await this.life.begin();
  }

  private async kill(ending: Ending): Promise<void> {
    const { journal, node } = this;
    journal.count("ms of the processor for nodes", node?.cpuMs() ?? 0);
    node?.signal("SIGKILL");
    const how = await node?.exited;
    if (how === "SIGKILL") this.kills++;
    journal.count(how === "SIGKILL" ? `SIGKILL ${ending}` : `ended by itself before SIGKILL ${ending}`);
    journal.note(undefined, `SIGKILL ${ending}: ended with ${how}`);
    if (how !== "SIGKILL" && ending !== "while draining") journal.fail(`the node ended by itself:\n${node?.out()}`);
    await this.afterwards();
  }

  private async afterwards(): Promise<void> {
    const { node, life } = this;
    if (node !== undefined) await eventually(5000, "the node is gone", () => isGone(node.pid));
    await life?.end();
    this.life = undefined;
    const said = node?.out() ?? "";
    if (/"level":"(error|fatal)"|uncaught|damage/.test(said)) this.journal.note(undefined, `the node said:\n${said}`);
  }

  private async stopNode(): Promise<void> {
    this.node?.signal("SIGKILL");
    await this.node?.exited;
  }

  // -------------------------------------------------------------------------------------------------------------- topics

  private async make(plan: (typeof topicPlans)[number]): Promise<void> {
    const { journal, world } = this;
    const { name, partitions, retentionMs } = plan;
    const retention = retentionMs === undefined ? {} : { retention: { ageMs: retentionMs } };
    const status = await this.call("PUT", name, { partitions, ...retention });
    if (status === undefined) {
      this.making.add(name);
      return;
    }
    if (status !== 201 && !(status === 200 && this.making.has(name)))
      journal.fail(`making ${name} is answered ${status}`);
    this.making.delete(name);
    journal.count("topics made");
    const log = new TopicLog({ name, partitions, retentionMs, journal, leases: world.leases });
    world.logs.set(name, log);
    for (const group of plan.groups) world.groups.set(`${name}/${group.name}`, new GroupModel(group, log, journal));
  }

  /** Leases are numbered by shard: where the partitions lie, if it can be had now. */
  private async locate(log: TopicLog): Promise<void> {
    const answer = await ask(`${this.where.http}/explain?topic=${log.name}&group=anybody`);
    if (answer?.status !== 200) return;
    const { partitions } = JSON.parse(answer.text) as { partitions: { partition: number; shard: number }[] };
    log.shards = partitions.sort((a, b) => a.partition - b.partition).map(({ shard }) => shard);
    if (log.shards.length !== log.partitions.length) this.journal.fail(`${log.name} lies at ${answer.text}`);
  }

  /** Until it is answered, over as many lives as it takes; then it is gone. */
  private async remove(name: string): Promise<void> {
    const { journal } = this;
    this.deleting.add(name);
    const status = await this.call("DELETE", name);
    if (status === undefined) return;
    if (status !== 204 && status !== 404) journal.fail(`deleting ${name} is answered ${status}`);
    const there = await this.call("GET", name);
    if (there === undefined) return;
    if (there !== 404) journal.fail(`${name} was deleted and is answered ${there}`);
    this.deleting.delete(name);
    journal.count("topics deleted");
  }

  /** Undefined: no answer, or none that says what happened. */
  private async call(method: string, topic: string, body?: object): Promise<number | undefined> {
    const init =
      body === undefined ? {} : { headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
    try {
      const response = await fetch(`${this.where.http}/topics/${topic}`, {
        method,
        ...init,
        signal: AbortSignal.timeout(20_000),
      });
      await response.text();
      return response.status === 503 ? undefined : response.status;
    } catch (error) {
      if (!(error instanceof Error)) throw error;
      return undefined;
    }
  }

  private async finish(all: boolean): Promise<void> {
    const { dice, journal, world, life } = this;
    const logs = [...world.logs.values()];
    const chosen = all ? logs : logs.slice(0, 1);
    for (const log of chosen) {
      this.finishing.add(log);
      if (!(await life?.finish(log))) journal.fail(`the end of ${log.name} was cut short, and nobody ended the node`);
      world.logs.delete(log.name);
      for (const group of [...world.groups.values()]) if (group.log === log) world.groups.delete(group.name);
      for (const n of log.publications.keys()) journal.forget(n);
      this.finishing.delete(log);
      // The kill may come while it is being deleted.
      const gone = this.remove(log.name);
      if (all || dice.chance(40)) await gone;
      else await pause(dice.below(30));
    }
  }

  private freshFolder(): void {
    this.options.environment.reset();
    this.deleting.clear();
    this.making.clear();
    this.world.graves.clear();
    this.world.leases.clear();
    this.journal.count("folders");
  }

  /** Everything is consumed and compared once more, and a node that is stopped and started again has the same to say. */
  private async lastWords(): Promise<void> {
    const { journal } = this;
    await this.start();
    await this.serve();
    if (!(await this.life?.verify())) journal.fail("the last node could not be read");
    await this.finish(true);
    await this.endBy("drained");
  }
}
