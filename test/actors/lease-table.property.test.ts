// Whatever members, clocks, stores and restarts do, the table agrees with the plain model after every step. A failure prints the steps
// that are left after all that could be left out.

import fc from "fast-check";
import { test } from "uvu";
import { Life } from "../support/lease-life.ts";
import type { LeaseModel } from "../support/lease-model.ts";
import { runs } from "../support/properties.ts";

class Step implements fc.Command<LeaseModel, Life> {
  private readonly roll: number;
  private readonly seed: number;
  private done = "";

  constructor(roll: number, seed: number) {
    this.roll = roll;
    this.seed = seed;
  }

  check(): boolean {
    return true;
  }

  run(_model: LeaseModel, life: Life): void {
    this.done = `${life.h.mono} ms: not done, or not to its end`;
    this.done = `${life.h.mono} ms: ${life.step(this.roll, this.seed)}`;
    life.compare();
  }

  toString(): string {
    return `\n    step(${this.roll}, ${this.seed}) at ${this.done}`;
  }
}

const step = fc.tuple(fc.nat(99), fc.nat(0xffff)).map(([roll, seed]) => new Step(roll, seed));

test("G3 to G7 hold in every life of a group", () => {
  fc.assert(
    fc.property(fc.nat(0xffff), fc.commands([step], { maxCommands: 500, size: "max" }), (seed, steps) => {
      const life = new Life(seed);
      fc.modelRun(() => ({ model: life.model, real: life }), steps);
      life.settleAll();
    }),
    runs(20),
  );
});

test.run();
