// Arguments and options as commander hands them over, checked. What is wrong is said in one line before any node is asked.

import { eventBounds } from "../protocol/bounds.ts";
import { groupFault, publishTopicFault, topicFault } from "../protocol/names.ts";
import { CliError, exitCodes } from "./context.ts";

export function usage(message: string): CliError {
  return new CliError(message, exitCodes.usage);
}

/** For `.option(…, wholeNumber("--max", 1))`. */
export function wholeNumber(name: string, min: number, max: number = Number.MAX_SAFE_INTEGER) {
  return (text: string): number => {
    const value = /^\d{1,16}$/.test(text) ? Number(text) : Number.NaN;
    if (value >= min && value <= max) return value;
    const allowed =
      max === Number.MAX_SAFE_INTEGER ? `whole numbers from ${min}` : `whole numbers from ${min} to ${max}`;
    throw usage(`${name} is ${JSON.stringify(text)}: allowed are ${allowed}`);
  };
}

/** For an option that may be repeated. */
export function collect(text: string, before: readonly string[] | undefined): readonly string[] {
  return [...(before ?? []), text];
}

/** `name=value`, repeated; the value may have further `=` in it. */
export function collectHeader(
  text: string,
  before: Readonly<Record<string, string>> | undefined,
): Readonly<Record<string, string>> {
  const equals = text.indexOf("=");
  if (equals <= 0) throw usage("--header must be name=value, such as --header source=import");
  const name = text.slice(0, equals);
  if (name === "__proto__" || name.length > eventBounds.headerNameCharsMax) {
    throw usage(`--header: a name has 1 to ${eventBounds.headerNameCharsMax} characters and is not __proto__`);
  }
  return { ...before, [name]: text.slice(equals + 1) };
}

export function checkTopic(topic: string): string {
  const fault = topicFault(topic);
  if (fault !== undefined) throw usage(fault);
  return topic;
}

export function checkPublishTopic(topic: string): string {
  const fault = publishTopicFault(topic);
  if (fault !== undefined) throw usage(fault);
  return topic;
}

export function checkGroup(group: string): string {
  const fault = groupFault(group);
  if (fault !== undefined) throw usage(fault);
  return group;
}

const byteUnits = {
  b: 1,
  kb: 1000,
  mb: 1e6,
  gb: 1e9,
  tb: 1e12,
  kib: 1024,
  mib: 1024 ** 2,
  gib: 1024 ** 3,
  tib: 1024 ** 4,
};

/** `500000`, `10MB`, `2GiB`. */
export function byteCount(name: string) {
  return (text: string): number => {
    const parts = /^(\d+(?:\.\d+)?)([a-z]*)$/i.exec(text);
    const unit = byteUnits[(parts?.[2]?.toLowerCase() || "b") as keyof typeof byteUnits];
    const bytes = Math.round(Number(parts?.[1]) * unit);
    if (bytes >= 1 && bytes <= Number.MAX_SAFE_INTEGER) return bytes;
    throw usage(`${name} is ${JSON.stringify(text)}: allowed are bytes such as 500000, 10MB, 2GiB`);
  };
}

/** A path segment or a query value. */
export function query(values: Readonly<Record<string, string | number | undefined>>): string {
  const pairs = Object.entries(values).filter(([, value]) => value !== undefined);
  return pairs.map(([name, value]) => `${name}=${encodeURIComponent(String(value))}`).join("&");
}
