// The attacks that are not frames of a grammar: below the frames, beside them, and in numbers. Each leaves its connections closed and
// throws when the node did anything but refuse. `size` 1 is for the test suite.

import { floodAttacks } from "./flood-attacks.ts";
import { httpAttacks } from "./http-attacks.ts";
import type { Target } from "./target.ts";
import { wireAttacks } from "./wire-attacks.ts";

export interface Attack {
  readonly name: string;
  readonly run: (target: Target, size: number) => Promise<void>;
}

export const attacks: readonly Attack[] = [...wireAttacks, ...httpAttacks, ...floodAttacks];
