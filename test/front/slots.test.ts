import { test } from "uvu";
import * as assert from "uvu/assert";
import { noSlots, type SlotHolder, Slots } from "../../src/front/slots.ts";

interface Table extends SlotHolder {
  readonly name: string;
  /** As the lease table sees it. */
  free: number;
  leased: number;
  toRelease: number;
  backlog: number;
  delivered: number;
  told: boolean;
}

/** Lease tables in a few lines: each has a backlog, leases what its slots allow, and gives back what is called back as it becomes free. */
class Topic {
  now = 1000;
  readonly slots: Slots<Table>;
  readonly tables: Table[];
  inflightMax = 0;
  messages = 0;
  private queue: (() => void)[] = [];

  constructor(max: number, backlogs: number[]) {
    this.tables = backlogs.map((backlog, n) => ({
      ...noSlots(),
      name: `p${n}`,
      free: 0,
      leased: 0,
      toRelease: 0,
      backlog,
      delivered: 0,
      told: false,
    }));
    this.slots = new Slots({
      max,
      grant: (table, slots) =>
        this.post(() => {
          table.free += slots;
          table.told = false;
          this.pump(table);
        }),
      recall: (table, slots) =>
        this.post(() => {
          table.toRelease += slots;
          this.pump(table);
        }),
    });
    for (const table of this.tables) this.slots.add(table);
  }

  post(run: () => void): void {
    this.messages++;
    this.queue.push(run);
  }

  /** Runs everything under way, checking the window at each step. */
  settle(): void {
    for (let run = this.queue.shift(); run !== undefined; run = this.queue.shift()) {
      run();
      const held = this.tables.reduce((sum, { held }) => sum + held, 0);
      assert.ok(held <= this.slots.max, `${held} slots are out`);
      this.inflightMax = Math.max(
        this.inflightMax,
        this.tables.reduce((sum, { leased }) => sum + leased, 0),
      );
    }
  }

  start(): void {
    for (const table of this.tables) this.pump(table);
    this.settle();
  }

  ackOne(table: Table): void {
    assert.ok(table.leased > 0);
    table.leased--;
    table.free++;
    this.pump(table);
    this.settle();
  }

  pass(ms: number): void {
    this.now += ms;
    this.slots.serve(this.now);
    this.settle();
  }

  private pump(table: Table): void {
    const back = Math.min(table.toRelease, table.free);
    if (back > 0) {
      table.toRelease -= back;
      table.free -= back;
      this.post(() => this.slots.released(table, back, this.now));
    }
    const lease = Math.min(table.free, table.backlog);
    if (lease > 0) {
      table.free -= lease;
      table.leased += lease;
      table.backlog -= lease;
      table.delivered += lease;
      this.post(() => this.slots.delivered(table, this.now));
    }
    if (table.backlog > 0 && table.free === 0 && !table.told) {
      table.told = true;
      this.post(() => this.slots.want(table, this.now));
    }
  }
}

test("one slot goes round four partitions, one event at a time, and none waits longer than a round", () => {
  const topic = new Topic(1, [50, 50, 50, 50]);
  topic.start();
  const order: string[] = [];
  for (let i = 0; i < 40; i++) {
    const holder = topic.tables.find(({ leased }) => leased > 0);
    assert.ok(holder, `nobody has the slot after ${i} events`);
    order.push(holder.name);
    topic.now += 5;
    topic.ackOne(holder);
  }
  assert.is(topic.inflightMax, 1);
  for (let i = 4; i + 4 <= order.length; i += 4) {
    assert.equal(new Set(order.slice(i, i + 4)).size, 4, order.slice(i, i + 4).join(" "));
  }
});

test("a partition alone gets the whole window, and a second one its half as leases end", () => {
  const topic = new Topic(10, [1000, 0]);
  const [first, second] = topic.tables;
  topic.start();
  assert.equal([first.leased, second.leased], [10, 0]);
  second.backlog = 1000;
  topic.start();
  assert.is(second.leased, 0);
  for (let i = 0; i < 5; i++) topic.ackOne(first);
  assert.equal([first.leased, second.leased], [5, 5]);
  assert.is(topic.inflightMax, 10);
});

test("what a quiet partition holds goes to one that needs more than its share", () => {
  const topic = new Topic(10, [5, 1000]);
  const [quiet, busy] = topic.tables;
  topic.start();
  for (let i = 0; i < 5; i++) topic.ackOne(quiet);
  for (let i = 0; i < 20; i++) topic.ackOne(busy);
  for (let i = 0; i < 10; i++) {
    topic.pass(100);
    topic.ackOne(busy);
  }
  assert.equal([busy.leased, quiet.held], [10, 0]);
});

test("a slot that waits for something else than an event does not travel unused at full speed", () => {
  const topic = new Topic(1, [0, 0]);
  const [a, b] = topic.tables;
  // Both want, neither can use what it gets: no tokens.
  const starve = () => {
    for (const table of [a, b]) topic.slots.want(table, topic.now);
    topic.settle();
  };
  starve();
  const before = topic.messages;
  for (let i = 0; i < 50; i++) starve();
  assert.is(topic.messages, before);
  assert.ok((topic.slots.waitMs(topic.now) ?? 0) > 0);
});

test("slots of a partition that is gone are free for the others", () => {
  const topic = new Topic(4, [100, 100]);
  const [a, b] = topic.tables;
  topic.start();
  for (let i = 0; i < 4; i++) topic.ackOne(a.leased > 2 ? a : b);
  topic.slots.remove(a);
  topic.slots.serve(topic.now);
  topic.settle();
  assert.is(b.held, 4);
  topic.slots.released(a, 2, topic.now);
  assert.is(topic.slots.free, 0);
});

test.run();
