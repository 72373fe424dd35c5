// One life of the node under load, from the moment it serves until it is ended: consumers that come and go, publishers, moves of groups,
// and the comparison of everything that was promised in earlier lives.

import { pause } from "../support/deadline.ts";
import type { Dice } from "../support/dice.ts";
import { Consumer } from "./consumer.ts";
import type { Graves } from "./dead-letters.ts";
import { exported } from "./exporting.ts";
import type { CursorAnswer } from "./group-facts.ts";
import type { GroupModel } from "./group-model.ts";
import { type Journal, Violation } from "./journal.ts";
import { consumerPlans, movedGroups } from "./plans.ts";
import type { Publishers } from "./publishers.ts";
import type { TopicLog } from "./topic-log.ts";
import { type Answer, Wire } from "./wire.ts";

/** So many logs are compared in a round that does not compare all. */
const topicsPerRound = 2;

export interface World {
  readonly journal: Journal;
  readonly dice: Dice;
  readonly logs: Map<string, TopicLog>;
  readonly groups: Map<string, GroupModel>;
  readonly graves: Graves;
  /** All that were given in this folder, by shard. */
  readonly leases: Set<string>;
  readonly publishers: Publishers;
}

export class Life {
  over = false;
  readonly startedAt: number;
  private readonly world: World;
  private readonly where: { readonly ws: string; readonly http: string };
  private readonly consumers = new Set<Consumer>();
  private readonly running: Promise<unknown>[] = [];
  /** Nobody goes without a word: then each delivery is seen, and attempts can be counted from outside. */
  private readonly calm: boolean;
  private control: Wire | undefined;

  constructor(world: World, where: { readonly ws: string; readonly http: string }, startedAt: number) {
    this.world = world;
    this.where = where;
    this.startedAt = startedAt;
    this.calm = world.dice.chance(75);
  }

  async begin(): Promise<void> {
    this.control = await Wire.connect(this.where.ws, { event() {}, ended() {}, closed() {} });
    // A move that was cut short is done with before anybody joins.
    for (const group of this.world.groups.values()) {
      if (group.moving !== undefined) await this.move(group);
      else group.closed = false;
    }
    for (const plan of consumerPlans) this.run(this.consume(plan));
    this.run(this.world.publishers.live());
    this.run(this.moves());
    this.run(this.probe());
  }

  /** How long what is asked and what is delivered is under way, for whoever judges by the clock. */
  private async probe(): Promise<void> {
    const { journal, groups, dice } = this.world;
    while (!this.over && this.control?.open) {
      const group = dice.pick([...groups.values()]);
      if (group !== undefined) {
        journal.probing();
        await this.control.request({ op: "CURSOR", topic: group.log.name, group: group.plan.name });
        journal.probed();
      }
      await pause(40);
    }
    journal.probed();
  }

  /** What is seen broken beside the rounds is in the journal, which tells. */
  private run(work: Promise<void>): void {
    const { journal } = this.world;
    this.running.push(
      work.catch((error: Error) => {
        if (error instanceof Violation) return;
        journal.violated(`the harness itself: ${error.stack}`);
      }),
    );
  }

  /** The node is gone: everybody has noticed when this resolves. */
  async end(): Promise<void> {
    this.over = true;
    await Promise.all(this.running);
    for (const group of this.world.groups.values()) group.settleDoubts();
  }

  // ------------------------------------------------------------------------------------------------------------ consuming

  private async consume({ batches, groups: names }: (typeof consumerPlans)[number]): Promise<void> {
    const { journal, dice, groups } = this.world;
    while (!this.over) {
      const members = names.map((name) => groups.get(name)).filter((group) => group !== undefined);
      if (members.length === 0) {
        await pause(20);
        continue;
      }
      const parts = { journal, dice };
      const consumer = await Consumer.open(parts, { url: this.where.ws, batches, groups: members });
      if (consumer === undefined) {
        await pause(10);
        continue;
      }
      this.consumers.add(consumer);
      await consumer.tend();
      while (consumer.live && !this.over) {
        await pause(20 + dice.below(120));
        if (members.some((group) => groups.get(group.name) !== group)) break;
        if (!this.calm && dice.chance(6)) break;
        if (dice.chance(20)) await consumer.stir();
        await consumer.tend();
      }
      if (!this.over) consumer.vanish();
      await consumer.closed;
      this.consumers.delete(consumer);
    }
  }

  /** Nobody is a member of the group after this, as long as it stays closed. */
  private async clear(group: GroupModel): Promise<void> {
    group.closed = true;
    await Promise.all([...this.consumers].map((consumer) => consumer.away(group)));
  }

  // -------------------------------------------------------------------------------------------------------------- moving

  private async moves(): Promise<void> {
    const { dice, groups } = this.world;
    while (!this.over) {
      await pause(100 + dice.below(1500));
      const group = groups.get(dice.pick(movedGroups));
      if (group === undefined || group.diligent || this.over) continue;
      await this.clear(group);
      // Tried again while nobody knows whether it happened; given up where it surely did not.
      for (;;) {
        await this.move(group);
        if (group.moving === undefined || this.over) break;
        await pause(20);
      }
      group.closed = group.moving !== undefined;
    }
  }

  /** Moves a group without members; what the node made of it is asked for if the answer never came. */
  private async move(group: GroupModel): Promise<void> {
    const { journal, dice } = this.world;
    const { log } = group;
    const asked = group.asking();
    const before = await this.cursor(group);
    if (before === undefined) return;
    const { moving } = group;
    if (moving !== undefined && isAt(before, moving.to)) journal.count("moves of unknown outcome found done");
    else {
      if (moving !== undefined) journal.count("moves of unknown outcome found not done");
      group.checkCursor(before, moving === undefined ? asked : { ...asked, at: 0 });
    }
    const to = before.partitions.map(
      ({ end }, i) => log.partitions[i].start + dice.below(end - log.partitions[i].start + 1),
    );
    group.moving = { to };
    const offsets = to.map((offset, partition) => `${partition}:${offset}`).join(",");
    journal.note(undefined, `${group.name} is moved from ${JSON.stringify(before.partitions)} to ${offsets}`);
    const set = { offsets };
    const answer = await this.control?.request({ op: "CURSOR", topic: log.name, group: group.plan.name, set });
    if (answer === undefined || answer.code === "unavailable") return;
    if (answer.op !== "OK") journal.fail(`${group.name}: moving it is refused: ${JSON.stringify(answer)}`);
    const after = answer as unknown as CursorAnswer;
    if (!isAt(after, to))
      journal.fail(`${group.name}: moved to ${offsets}, it is at ${JSON.stringify(after.partitions)}`);
    group.moved(after);
    group.moving = undefined;
    group.closed = false;
  }

  /** Undefined if the node is gone. */
  private async cursor(group: GroupModel): Promise<CursorAnswer | undefined> {
    const { log, plan } = group;
    let answer: Answer;
    // A shard may be on its way up again.
    for (let tries = 0; ; tries++) {
      answer = await this.control?.request({ op: "CURSOR", topic: log.name, group: plan.name });
      if (answer?.code !== "unavailable" || this.over || tries > 200) break;
      await pause(25);
    }
    if (answer === undefined || answer.code === "unavailable") return undefined;
    if (answer.op !== "OK") this.world.journal.fail(`CURSOR of ${group.name} is refused: ${JSON.stringify(answer)}`);
    return answer as unknown as CursorAnswer;
  }

  // ----------------------------------------------------------------------------------------------------------- comparing

  /**
   * All cursors, and logs with their dead letters: at the end of a topic all of it, every few rounds all of all, in the others two
   * topics, from shortly before the end of what was read before. False if the node was gone before the end, or a shard of it was.
   */
  async verify(only?: TopicLog): Promise<boolean> {
    const { journal, logs, groups, dice } = this.world;
    const whole = only !== undefined || journal.round % 6 === 0;
    const all = [...logs.values()];
    const first = dice.below(all.length);
    const some = whole ? all : all.filter((_, i) => (i + all.length - first) % all.length < topicsPerRound);
    const compared = only === undefined ? some : [only];
    const own = [...groups.values()].filter((group) => only === undefined || group.log === only);
    const done = await Promise.all([
      ...compared.map((log) => this.compareLog(log, whole)),
      ...own.filter(({ log }) => compared.includes(log)).map((group) => this.compareLetters(group, whole)),
      ...own.map((group) => this.compareCursor(group)),
    ]);
    if (done.includes(false)) return false;
    journal.count(whole ? "comparisons of everything" : "comparisons of what is new");
    return true;
  }

  private async compareLog(log: TopicLog, whole: boolean): Promise<boolean> {
    const expected = log.expectation(whole);
    const found = await this.export(log.name, expected.from);
    if (found === undefined) {
      log.takeBack(expected);
      return false;
    }
    if (found === "unknown") throw this.world.journal.fail(`the topic ${log.name} is gone`);
    log.verify(found, expected, this.startedAt);
    return true;
  }

  private async compareLetters(group: GroupModel, whole: boolean): Promise<boolean> {
    const { graves } = this.world;
    const from = group.letters.from(graves, whole);
    const dead = await this.export(group.letters.topic, from);
    if (dead === undefined) return false;
    if (dead === "unknown") group.letters.none(graves);
    else group.letters.verify(dead, graves, from);
    return true;
  }

  private async compareCursor(group: GroupModel): Promise<boolean> {
    const asked = group.asking();
    const { seeks } = group;
    const answer = await this.cursor(group);
    if (answer === undefined) return false;
    if (group.moving === undefined && group.seeks === seeks) group.checkCursor(answer, asked);
    return true;
  }

  private async export(topic: string, from: readonly number[]): ReturnType<typeof exported> {
    const { journal } = this.world;
    for (let tries = 0; ; tries++) {
      let found: Awaited<ReturnType<typeof exported>>;
      try {
        found = await exported(this.where.http, topic, from);
      } catch (error) {
        return journal.fail(String(error));
      }
      // A shard may be on its way up again.
      if (found !== undefined || this.over || tries > 200) return found;
      await pause(25);
    }
  }

  // -------------------------------------------------------------------------------------------------------------- ending

  /**
   * The end of a topic: nothing new, everything that is left is consumed, and then each event must have come to one of its ends in each
   * group. False if the node was gone before.
   */
  async finish(log: TopicLog): Promise<boolean> {
    const { journal, groups, publishers } = this.world;
    if (!(await publishers.quiet(log))) return false;
    const own = [...groups.values()].filter((group) => group.log === log);
    for (const group of own) {
      group.diligent = true;
      // What somebody holds and does nothing about goes back.
      const open = !group.closed;
      if (open) {
        await this.clear(group);
        group.closed = false;
      }
    }
    for (const group of own) {
      const ends = performance.now() + 90_000;
      for (;;) {
        if (this.over) return false;
        const answer = await this.cursor(group);
        if (answer?.exists && answer.lag === 0) break;
        if (performance.now() > ends) {
          const left = [...group.states.values()].find(
            ({ ackedBy, letters }) => ackedBy === undefined && letters === 0,
          );
          journal.fail(`${group.name} does not come to its end: ${JSON.stringify(answer)}`, left?.n);
        }
        await pause(20);
      }
    }
    if (!(await this.verify(log))) return false;
    for (const group of own) {
      const asked = group.asking();
      const answer = await this.cursor(group);
      if (answer === undefined) return false;
      group.checkCursor(answer, asked);
      group.finished(answer);
      await this.clear(group);
    }
    journal.count("topics brought to their end");
    return true;
  }
}

function isAt({ partitions }: CursorAnswer, to: readonly number[]): boolean {
  return partitions.every(({ floor, ranges }, partition) => floor === to[partition] && ranges.length === 0);
}
