// Each attack once at small size, with the control client beside it; afterwards memory and file descriptors are what they were.

import { test } from "uvu";
import * as assert from "uvu/assert";
import { attacks } from "./attacks.ts";
import { Control } from "./control.ts";
import { type Spare, shown, Target } from "./target.ts";

/** Those that hold much while they last; the others have no more than one connection at a time. */
const heavy = attacks.filter(({ name }) =>
  /say nothing|vanish|reads n|sent ahead|by the hundred|fragments than/.test(name),
);
/** After a warm-up with every attack: what the compiler and the allocator still take. The floods hold ten times that meanwhile. */
const spare: Spare = { heldBytes: 10 * 2 ** 20, rssBytes: 40 * 2 ** 20 };

let target: Target;
let control: Control;

test.before(async () => {
  target = await Target.start();
  control = await Control.open(target);
});

test.after(async () => {
  await target.stop();
});

for (const { name, run } of attacks) {
  test(name, async () => {
    await Promise.all([run(target, 1), control.round(10_000)]);
    assert.is(target.fault(), undefined);
  });
}

test("the heavy ones once more leave memory and file descriptors as they were, and the control client's events", async () => {
  const before = await target.baseline();
  for (const { run } of heavy) await run(target, 1);
  assert.is(heavy.length, 7);
  await control.round(10_000);
  const after = await target.backTo(before, spare, "the heavy attacks");
  await control.verify();
  await control.close();
  assert.is(target.fault(), undefined);
  console.log(
    `measured: ${attacks.length} attacks, ${heavy.length} of them twice: before ${shown(before)}; after ${shown(after)}`,
  );
});

test.run();
