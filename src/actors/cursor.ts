// A group's cursor as it is stored: the floor, the ranges settled above it, and the attempts of unsettled events. It is written with
// every commit that settles something, so it holds only what is sparse, in runs, and never looks at the window.

import { entryBytes, entryValue } from "./entries.ts";
import type { RangeSet } from "./range-set.ts";

export interface Attempted {
  readonly offset: number;
  /** Attempts that ended. */
  readonly attempts: number;
  readonly byDisconnect: boolean;
  /** What is left of its backoff. */
  readonly delayMs: number;
}

export interface Cursor {
  readonly floor: number;
  readonly ranges: readonly (readonly [number, number])[];
  readonly attempted: readonly Attempted[];
  /** Why dying events die. */
  readonly reasons: readonly (readonly [number, string])[];
}

/** Numbers that are positions are kept as differences, since they are small then. */
interface Stored {
  readonly floor: number;
  /** Wall-clock time of writing, where there are attempts: what has passed since is taken off the delays. */
  readonly at?: number;
  /** Pairs: gap before, length. */
  readonly ranges?: readonly number[];
  /** Fives: offset above the floor, how many, attempts, 1 if by disconnect, delay. */
  readonly attempted?: readonly number[];
  readonly reasons?: readonly (readonly [number, string])[];
}

export function encodeCursor(
  cursor: {
    readonly floor: number;
    readonly settled: RangeSet;
    /** Runs form where offsets follow each other. */
    readonly attempted: Iterable<Attempted>;
    readonly reasons: ReadonlyMap<number, string>;
  },
  wall: number,
): Uint8Array {
  const { floor, settled, reasons } = cursor;
  const ranges: number[] = [];
  let position = floor;
  for (const [from, to] of settled) {
    ranges.push(from - position, to - from);
    position = to;
  }
  const attempted: number[] = [];
  let last: Attempted | undefined;
  for (const entry of cursor.attempted) {
    const delayMs = Math.max(0, Math.ceil(entry.delayMs));
    const runs =
      last !== undefined &&
      last.offset + 1 === entry.offset &&
      last.attempts === entry.attempts &&
      last.byDisconnect === entry.byDisconnect &&
      last.delayMs === delayMs;
    if (runs) attempted[attempted.length - 4]++;
    else attempted.push(entry.offset - floor, 1, entry.attempts, entry.byDisconnect ? 1 : 0, delayMs);
    last = { ...entry, delayMs };
  }
  const stored: Stored = {
    floor,
    ...(attempted.length > 0 ? { at: wall, attempted } : {}),
    ...(ranges.length > 0 ? { ranges } : {}),
    ...(reasons.size > 0 ? { reasons: [...reasons] } : {}),
  };
  return entryBytes(stored);
}

/** A delay waits at most what was left of it, also when the wall clock was set back. */
export function decodeCursor(bytes: Uint8Array, wall: number): Cursor {
  const stored = entryValue<Stored>(bytes);
  const ranges: [number, number][] = [];
  let position = stored.floor;
  for (let i = 0; i < (stored.ranges?.length ?? 0); i += 2) {
    const from = position + stored.ranges![i];
    position = from + stored.ranges![i + 1];
    ranges.push([from, position]);
  }
  const passed = Math.max(0, wall - (stored.at ?? wall));
  const attempted: Attempted[] = [];
  const fives = stored.attempted ?? [];
  for (let i = 0; i < fives.length; i += 5) {
    for (let n = 0; n < fives[i + 1]; n++) {
      attempted.push({
        offset: stored.floor + fives[i] + n,
        attempts: fives[i + 2],
        byDisconnect: fives[i + 3] === 1,
        delayMs: Math.max(0, fives[i + 4] - passed),
      });
    }
  }
  return { floor: stored.floor, ranges, attempted, reasons: stored.reasons ?? [] };
}
