// What a commit writes: documents for its events, its entries, and the heads that it changes.

import type { AnyBulkWriteOperation, Document } from "mongodb";
import type { BlockView } from "../../protocol/block.ts";
import type { BlockFacts } from "../block-facts.ts";
import { ShardState } from "../shard-state.ts";
import type { Commit, StreamHead } from "../store.ts";
import type { Writes } from "./commit.ts";
import { documentsOf, type MakeBinary } from "./documents.ts";
import { collectionOf, type EntryCollection, entryWrite } from "./entries.ts";
import { droppedWrite, headWrite, type StreamFacts } from "./heads.ts";
import type { OldBlock } from "./old-blocks.ts";

/** For each stream that a commit trims, where it begins before and the blocks that may go. */
export type Trimmable = ReadonlyMap<number, { readonly start: number; readonly blocks: readonly OldBlock[] }>;

export interface Planned {
  readonly commit: Commit;
  /** Its blocks, once as facts and once as views. */
  readonly checked: readonly BlockFacts[];
  readonly blocks: readonly BlockView[];
  readonly trimmable: Trimmable;
}

/** The shard as it is before the commit. */
export interface View {
  readonly shard: number;
  readonly state: ShardState;
  readonly factsOf: (stream: number) => StreamFacts;
  readonly topicOf: (stream: number) => string | undefined;
  readonly binary: MakeBinary;
}

export function planWrites(planned: Planned, view: View): Writes {
  const { commit, checked, blocks } = planned;
  const { shard, state, factsOf, topicOf, binary } = view;
  const entries = new Map<EntryCollection, AnyBulkWriteOperation<Document>[]>();
  const write = (name: EntryCollection, operation: AnyBulkWriteOperation<Document>) => {
    const list = entries.get(name);
    if (list === undefined) entries.set(name, [operation]);
    else list.push(operation);
  };
  // Of two puts of a key the later one wins, so the first need not be written.
  for (const [key, value] of new Map(commit.puts)) {
    const operation = entryWrite(shard, key, value, { topicOf, binary });
    write(collectionOf(key), operation as AnyBulkWriteOperation<Document>);
  }
  for (const [stream, head] of headsAfter(planned, state)) {
    const facts = factsAfter(factsOf(stream), blocks);
    const operation = head === undefined ? droppedWrite(facts, endOf(state, stream, checked)) : headWrite(facts, head);
    write("partitions", operation as AnyBulkWriteOperation<Document>);
  }
  const events = blocks.flatMap((block) => {
    const facts = factsOf(block.stream);
    return documentsOf(block, facts, facts.tsMax, binary);
  });
  return { events, entries };
}

/** The heads that the commit changes, as they will be; undefined for a stream that ends. */
function headsAfter(
  { commit, checked, trimmable }: Planned,
  state: ShardState,
): ReadonlyMap<number, StreamHead | undefined> {
  const draft = new ShardState();
  const changed = new Set<number>();
  for (const { stream } of checked) changed.add(stream);
  for (const [stream] of commit.trims) if (state.heads.has(stream)) changed.add(stream);
  for (const stream of changed) {
    const head = state.heads.get(stream);
    if (head !== undefined) draft.heads.set(stream, { ...head });
  }
  draft.apply({ puts: [], trims: commit.trims }, checked, dropper(trimmable));
  return new Map([...changed].map((stream) => [stream, draft.heads.get(stream)]));
}

function factsAfter(facts: StreamFacts, blocks: readonly BlockView[]): StreamFacts {
  const block = blocks.find(({ stream }) => stream === facts.stream);
  return { ...facts, tsMax: Math.max(facts.tsMax, block?.maxTs ?? 0) };
}

/** Of a stream that ends with this commit. */
export function endOf(state: ShardState, stream: number, checked: readonly BlockFacts[]): StreamHead {
  const head = state.heads.get(stream);
  const block = checked.find((one) => one.stream === stream);
  const end = block === undefined ? (head?.end ?? 0) : block.firstOffset + block.count;
  return { start: end, end, lastStoredAt: block?.storedAt ?? head?.lastStoredAt ?? 0, bytes: 0 };
}

/** Gives the bytes of the blocks that each move of a start leaves behind, one after the other. */
export function dropper(trimmable: Trimmable): (stream: number, start: number | null) => number {
  const starts = new Map<number, number>();
  return (stream, start) => {
    const known = trimmable.get(stream);
    if (known === undefined || start === null) return 0;
    const before = starts.get(stream) ?? known.start;
    starts.set(stream, start);
    const gone = known.blocks.filter(({ end }) => end > before && end <= start);
    return gone.reduce((sum, { bytes }) => sum + bytes, 0);
  };
}
