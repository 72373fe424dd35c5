// The options of a group, from what its members ask for and what is stored. Ephemeral counts when the group is made and is not
// changed after that: nobody's subscription makes a durable group die.

import { type Failure, failure } from "../protocol/failure.ts";
import type { Filter } from "../protocol/filter.ts";
import type { Shelf } from "./effects.ts";
import { entryKeys, entryValue } from "./entries.ts";
import type { GroupOptions, TopicRecord } from "./messages.ts";

/** Of a group that is about to be made, unless the topic has too many. */
export function makeOptions(asked: Partial<GroupOptions>, stream: number, shelf: Shelf): GroupOptions | Failure {
  let groups = 0;
  for (const _ of shelf.entries(entryKeys.groups(stream))) groups++;
  if (groups >= shelf.limits.groupsPerTopicMax) {
    return failure("limit", `the topic has ${groups} groups, and no more are allowed`);
  }
  // The settings of this moment: they may have changed since the cell began.
  const entry = shelf.entry(entryKeys.partition(stream));
  const settings = entry === undefined ? {} : entryValue<TopicRecord>(entry).settings;
  return {
    maxAttempts: asked.maxAttempts ?? settings.maxAttempts ?? shelf.limits.maxAttempts,
    backoffMs: asked.backoffMs ?? 0,
    ordering: asked.ordering ?? "none",
    filter: asked.filter ?? null,
    ephemeral: asked.ephemeral ?? false,
  };
}

/** `shared`: others are live, so that what decides who gets which event in which order may not change under them. */
export function mergeOptions(
  stored: GroupOptions,
  asked: Partial<GroupOptions>,
  shared: boolean,
): GroupOptions | Failure {
  const ordering = asked.ordering ?? stored.ordering;
  const filter = asked.filter === undefined ? stored.filter : asked.filter;
  if (shared && ordering !== stored.ordering) {
    return failure("group_conflict", `the group has live members with ordering ${stored.ordering}`);
  }
  if (shared && !sameFilter(filter, stored.filter)) {
    return failure("group_conflict", "the group has live members with another filter");
  }
  return {
    maxAttempts: asked.maxAttempts ?? stored.maxAttempts,
    backoffMs: asked.backoffMs ?? stored.backoffMs,
    ordering,
    filter,
    ephemeral: stored.ephemeral,
  };
}

export function sameOptions(a: GroupOptions, b: GroupOptions): boolean {
  return (
    a.maxAttempts === b.maxAttempts &&
    JSON.stringify(a.backoffMs) === JSON.stringify(b.backoffMs) &&
    a.ordering === b.ordering &&
    a.ephemeral === b.ephemeral &&
    sameFilter(a.filter, b.filter)
  );
}

/** Filters that mean the same are equal however they were written down. */
export function sameFilter(a: Filter | null, b: Filter | null): boolean {
  return filterText(a) === filterText(b);
}

function filterText(filter: Filter | null): string {
  if (filter === null) return "";
  const { key, keyPrefix, tags, headers, sid } = filter;
  const named = Object.entries(headers ?? {}).sort(([a], [b]) => (a < b ? -1 : 1));
  return JSON.stringify([key ?? null, keyPrefix ?? null, [...new Set(tags ?? [])].sort(), named, sid ?? null]);
}
