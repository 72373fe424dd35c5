// How a life of the node ends, and how often in which way. Moments are aimed with what was measured of earlier lives, so that they fall
// where they are meant to on a fast machine and on a busy one.

import type { Dice } from "../support/dice.ts";

/** Every one of these ends in SIGKILL but the last; "while recovering" is two of them, one after the other. */
export type Ending =
  | "under load"
  | "in a surge of the library"
  | "while starting"
  | "while recovering"
  | "right after start"
  | "while draining"
  | "after a worker died"
  | "drained";

const endings: readonly (readonly [ending: Ending, percent: number])[] = [
  ["under load", 32],
  ["in a surge of the library", 18],
  ["while starting", 9],
  ["while recovering", 8],
  ["right after start", 13],
  ["while draining", 9],
  ["after a worker died", 9],
  ["drained", 2],
];

export function pickEnding(dice: Dice): Ending {
  let at = dice.below(100);
  for (const [ending, percent] of endings) {
    if (at < percent) return ending;
    at -= percent;
  }
  return "under load";
}

/** How long something took lately. */
export class Usual {
  private ms: number;

  constructor(ms: number) {
    this.ms = ms;
  }

  took(ms: number): void {
    this.ms += (ms - this.ms) / 4;
  }

  /** A moment within so many times as long. */
  moment(dice: Dice, times: number): number {
    return dice.below(Math.max(1, Math.round(this.ms * times)));
  }
}
