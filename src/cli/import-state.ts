// How far an import is, in `<file>.import.json`: enough to go on after the importer or the node was killed at any moment, without
// storing an event twice and without leaving one out.
//
// A mark names a place in the file up to which every event is confirmed, and a position of the target that no event behind that place
// can stand before: it was taken before the first of them was sent. So what of them is stored already is found by reading the target
// from there, however long ago that was. At most `aheadMax` events are sent past the last mark that is on disk.

import { readFile } from "node:fs/promises";
import { absent, replaceFile } from "./export-part.ts";
import { isPosition } from "./import-target.ts";

export const aheadMax = 65_536;

export interface Mark {
  /** Of the file, with everything before it confirmed; always the beginning of a line. */
  readonly bytes: number;
  readonly lines: number;
  readonly events: number;
  readonly skipped: number;
  /** Of these bytes. */
  readonly sha256: string;
  /** Events behind the mark are not stored before this position. */
  readonly position: string;
}

export interface ImportState {
  readonly version: 1;
  readonly url: string;
  readonly topic: string;
  /** Tells the target from a later topic of the same name; null while it is not made yet. */
  readonly createdAt: number | null;
  readonly newIds: boolean;
  /** What stands before `end` in the target is left out. */
  readonly skipStored: boolean;
  /** For the ids of events that bring none. */
  readonly nonce: string;
  /** For events that have no ts: when the import began. */
  readonly beganAt: number;
  /** Where the target ended when the import began. */
  readonly end: string;
  /** No event of the file stands before this: `end`, or lower where one turned out to be stored before. */
  readonly begin: string;
  readonly mark: Mark;
}

/** The id of an event that brings none, or may not keep it: the same one each time the import is tried. */
export function importId(nonce: string, index: number): string {
  return `import:${nonce}:${index}`;
}

export function statePath(file: string): string {
  return `${file}.import.json`;
}

export async function readState(file: string): Promise<ImportState | "unreadable" | undefined> {
  const text = await readFile(statePath(file), "utf8").catch(absent);
  return text === undefined ? undefined : (parseState(text) ?? "unreadable");
}

export async function writeState(file: string, state: ImportState): Promise<void> {
  await replaceFile(statePath(file), `${JSON.stringify(state)}\n`);
}

export function parseState(text: string): ImportState | undefined {
  let state: Partial<ImportState> | null;
  try {
    state = JSON.parse(text) as Partial<ImportState> | null;
  } catch {
    return undefined;
  }
  const { version, url, topic, createdAt, newIds, nonce, beganAt, end, begin, mark } = state ?? {};
  const sound =
    version === 1 &&
    typeof url === "string" &&
    typeof topic === "string" &&
    typeof newIds === "boolean" &&
    typeof nonce === "string" &&
    (createdAt === null || Number.isInteger(createdAt)) &&
    [beganAt, mark?.bytes, mark?.lines, mark?.events, mark?.skipped].every(Number.isInteger) &&
    typeof mark?.sha256 === "string" &&
    isPosition(end) &&
    isPosition(begin) &&
    isPosition(mark.position);
  return sound ? { ...(state as ImportState), skipStored: state?.skipStored === true } : undefined;
}

export interface Wanted {
  readonly url: string;
  readonly topic: string;
  readonly createdAt: number | null;
  readonly newIds: boolean;
}

/** Why an import cannot be gone on with, and what to do; undefined if it can. */
export function stateFault(file: string, state: ImportState | "unreadable", wanted: Wanted): string | undefined {
  const anew = `remove ${statePath(file)} to start anew`;
  if (state === "unreadable")
    return `${statePath(file)} cannot be read: remove it and import with --skip-stored, which leaves out what is there`;
  if (state.topic !== wanted.topic) return `${file} was being imported into ${state.topic}: finish that, or ${anew}`;
  if (state.newIds !== wanted.newIds) {
    return `${file} was being imported ${state.newIds ? "with" : "without"} --new-ids: do the same, or ${anew}`;
  }
  if (state.createdAt !== null && state.createdAt !== wanted.createdAt) {
    const where = state.url === wanted.url ? "was deleted since" : `of ${state.url} is another one`;
    return `${file} was being imported, but the topic ${state.topic} ${where}: ${anew}`;
  }
  return undefined;
}
