// Times and durations as people type them: 10m, 2h, 7d; 2026-05-01, 2026-05-01T12:00:00Z; milliseconds since 1970.

import { eventBounds } from "../protocol/bounds.ts";
import { CliError, exitCodes } from "./context.ts";

const unitMs = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000 } as const;
const durationPattern = /^(\d+(?:\.\d+)?)(ms|s|m|h|d|w)/;
/** Fewer digits are a date before 1973, or more likely something else: an offset, a count. */
const epochDigitsMin = 12;

/** Undefined unless it is a duration with units: `90s`, `1h30m`, `1.5d`. A bare number is none. */
export function parseDuration(text: string): number | undefined {
  let rest = text;
  let sum = 0;
  while (rest !== "") {
    const part = durationPattern.exec(rest);
    if (part === null) return undefined;
    sum += Number(part[1]) * unitMs[part[2] as keyof typeof unitMs];
    rest = rest.slice(part[0].length);
  }
  return text === "" || sum > eventBounds.tsMax ? undefined : Math.round(sum);
}

/** Undefined unless it is a time: a duration before now, an ISO date with or without time and zone, or milliseconds. */
export function parseTime(text: string, now: number): number | undefined {
  if (text === "now") return now;
  const ago = parseDuration(text);
  if (ago !== undefined) return Math.max(0, now - ago);
  if (/^\d+$/.test(text)) {
    const ms = Number(text);
    return text.length >= epochDigitsMin && ms <= eventBounds.tsMax ? ms : undefined;
  }
  if (!/^\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?)?$/i.test(text)) return undefined;
  const ms = Date.parse(text.replace(" ", "T"));
  return Number.isNaN(ms) || ms < 0 || ms > eventBounds.tsMax ? undefined : ms;
}

export const timeForms = "10m (ago), 2026-05-01, 2026-05-01T12:00:00Z or milliseconds since 1970";

export function timeOption(name: string, text: string, now: number): number {
  const time = parseTime(text, now);
  if (time !== undefined) return time;
  throw new CliError(`${name} is ${JSON.stringify(text)}: allowed are ${timeForms}`, exitCodes.usage);
}

export interface DurationBounds {
  readonly msMin?: number;
  readonly msMax?: number;
}

export function durationOption(name: string, text: string, { msMin = 1, msMax }: DurationBounds = {}): number {
  const ms = parseDuration(text);
  if (ms !== undefined && ms >= msMin && ms <= (msMax ?? ms)) return ms;
  if (ms !== undefined && msMax !== undefined) {
    const allowed = `${durationText(msMin)} to ${durationText(msMax)}`;
    throw new CliError(`${name} must be ${allowed} and is ${JSON.stringify(text)}`, exitCodes.usage);
  }
  throw new CliError(
    `${name} is ${JSON.stringify(text)}: allowed are durations such as 90s, 10m, 2h, 7d`,
    exitCodes.usage,
  );
}

/** As it is shown everywhere: in UTC, so that two people mean the same. */
export function timeText(ms: number): string {
  return new Date(ms).toISOString();
}

/** Short, with the two largest units: `1h 5m`, `12.3s`, `450ms`. */
export function durationText(ms: number): string {
  if (ms < 1000) return `${Math.round(ms)}ms`;
  if (ms < 60_000) return `${Math.floor(ms / 100) / 10}s`;
  const names = ["d", "h", "m", "s"] as const;
  const at = names.findIndex((name) => ms >= unitMs[name]);
  const [large, small] = [names[at], names[at + 1]];
  const rest = Math.floor((ms % unitMs[large]) / unitMs[small]);
  return `${Math.floor(ms / unitMs[large])}${large}${rest === 0 ? "" : ` ${rest}${small}`}`;
}
