// The shortest prefix of a run that still fails in the same way. Shorter prefixes of a failing run may pass and longer ones fail again,
// so after the halving every shorter one is tried in steps.

import { simulate } from "./run.ts";

export function shortest(seed: number): number {
  const whole = simulate({ seed });
  const kind = kindOf(whole.violation);
  const fails = (steps: number) => kindOf(simulate({ seed, steps }).violation) === kind;
  let best = whole.steps;
  for (let low = 0; low < best; ) {
    const middle = (low + best) >> 1;
    if (fails(middle)) best = middle;
    else low = middle + 1;
  }
  for (let steps = 1; steps < best; steps++) if (fails(steps)) return steps;
  return best;
}

/** What went wrong, apart from where: the same words with other numbers. */
function kindOf(violation: string | undefined): string | undefined {
  return violation?.split("\n")[0].replace(/.*: /, "").replace(/\d+/g, "#");
}
