// Which events of a topic a group wants. A filter is data, so that it can be stored with the group and looked at by an operator.

import type { BlockView } from "./block.ts";
import type { EventRecord } from "./event.ts";

/** All of what is given must hold: the key, its beginning, every one of the tags, each header equal, the sid. */
export interface Filter {
  readonly key?: string;
  readonly keyPrefix?: string;
  readonly tags?: readonly string[];
  readonly headers?: Readonly<Record<string, string>>;
  readonly sid?: string;
}

export function filterMatches(filter: Filter, block: BlockView, index: number): boolean {
  const { key, keyPrefix, tags, headers, sid } = filter;
  if (key !== undefined && !block.pack.keyMatches(index, key, false)) return false;
  if (keyPrefix !== undefined && !block.pack.keyMatches(index, keyPrefix, true)) return false;
  if (tags === undefined && headers === undefined && sid === undefined) return true;
  const text = block.pack.extension(index).meta;
  // Written by this program (meta.ts) and guarded by the store's checksums. An event without any still has all of no tags and no headers.
  const meta = (text === undefined ? {} : JSON.parse(text)) as Pick<EventRecord, "sid" | "headers" | "tags">;
  if (sid !== undefined && meta.sid !== sid) return false;
  if (tags !== undefined && !tags.every((tag) => meta.tags?.includes(tag))) return false;
  if (headers === undefined) return true;
  return Object.keys(headers).every(
    (name) => meta.headers !== undefined && Object.hasOwn(meta.headers, name) && meta.headers[name] === headers[name],
  );
}
