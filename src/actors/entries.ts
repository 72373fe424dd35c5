// The names of the small state's entries, in one place, so that nothing else spells a key. Values are JSON in UTF-8.

export const entryKeys = {
  /** On shard 0: the catalog's counter, and each topic. */
  catalog: "catalog",
  topic: (id: number): string => `topic/${id}`,
  topics: "topic/",
  /** On the shard of the stream: the topic's record as this partition knows it. */
  partition: (stream: number): string => `partition/${stream}`,
  partitions: "partition/",
  /** Options of a group, and its cursor with attempts. */
  group: (stream: number, group: string): string => `group/${stream}/${group}`,
  groups: (stream: number): string => `group/${stream}/`,
  allGroups: "group/",
  cursor: (stream: number, group: string): string => `cursor/${stream}/${group}`,
  cursors: (stream: number): string => `cursor/${stream}/`,
  /** What one commit added to the dedupe window, named by its first offset. */
  dedupe: (stream: number, offset: number): string => `dedupe/${stream}/${offset}`,
  dedupes: (stream: number): string => `dedupe/${stream}/`,
  /** The last batches of a producer that keeps its order. */
  producer: (stream: number, producer: string): string => `producer/${stream}/${producer}`,
  producers: (stream: number): string => `producer/${stream}/`,
} as const;

const encoder = new TextEncoder();
const decoder = new TextDecoder();

export function entryBytes(value: unknown): Uint8Array {
  return encoder.encode(JSON.stringify(value));
}

/** The caller names the shape: entries are written by this program alone and guarded by the store's checksums. */
export function entryValue<T>(bytes: Uint8Array): T {
  return JSON.parse(decoder.decode(bytes)) as T;
}
