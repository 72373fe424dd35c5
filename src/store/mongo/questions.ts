// What is asked about the events of a shard, and how the answers are read: no older than what the shard itself has written.

import type { ClientSession, Collection, FindCursor, MongoClient } from "mongodb";
import type { LatestEntry, ReadResult } from "../store.ts";
import type { EventDocument } from "./documents.ts";
import { storeError } from "./failures.ts";
import type { Loaded } from "./old-blocks.ts";
import {
  blocksQuery,
  eventsQuery,
  idQuery,
  keyQuery,
  keysQuery,
  type Offsets,
  type Place,
  type Query,
  timeQuery,
} from "./queries.ts";
import { type ReadAround, type ReadRange, readBlocks } from "./reader.ts";

const keysAtOnce = 16;
const keyDocuments = 1000;

export interface ReadOptions {
  readonly session: ClientSession;
  readonly readConcern: { readonly level: "majority" };
}

export interface QuestionsOptions {
  readonly shard: number;
  readonly client: MongoClient;
  readonly events: Collection<EventDocument>;
  /** The session that the shard writes with. */
  readonly writer: ClientSession;
}

export class Questions {
  private readonly options: QuestionsOptions;

  constructor(options: QuestionsOptions) {
    this.options = options;
  }

  /**
   * What is read is at a majority, and never older than our last commit: after a failover a new primary may not know for a moment how
   * far a majority is, and what it then does not show would be taken for missing.
   */
  async ask<T>(run: (options: ReadOptions) => Promise<T>): Promise<T> {
    const { client, writer, shard } = this.options;
    const session = client.startSession({ causalConsistency: true });
    try {
      const { operationTime } = writer;
      if (operationTime !== undefined) session.advanceOperationTime(operationTime);
      return await run({ session, readConcern: { level: "majority" } });
    } catch (error) {
      throw storeError(error, "broken", `shard ${shard} could not be read`);
    } finally {
      await session.endSession();
    }
  }

  blocksIn(
    place: Place,
    { from: start, to: end }: Offsets,
    range: ReadRange,
    around: Omit<ReadAround, "find">,
  ): Promise<ReadResult> {
    return this.ask((options) => {
      const find = (of: Place, offsets: Offsets) => this.find(eventsQuery(of, offsets), options);
      return readBlocks(place, { start, end }, range, { ...around, find });
    });
  }

  /** The first offset at or after a time; the end where there is none. */
  time(place: Place, { from: start, to: end }: Offsets, ts: number): Promise<number> {
    return this.ask(async (options) => {
      // The first block by whose end the stream had reached that time has the first such event, unless retention has removed it.
      const reached = await this.first(blocksQuery(place, { from: 0, to: end }, ts), options);
      if (reached === null) return end;
      const from = Math.max(start, reached.offset);
      const found = await this.first(timeQuery(place, { from, to: end }, ts), options);
      return found?.offset ?? end;
    });
  }

  /** The newest event under an id that its publisher gave. */
  id(place: Place, offsets: Offsets, id: string): Promise<number | undefined> {
    return this.ask(async (options) => (await this.first(idQuery(place, offsets, id), options))?.offset);
  }

  latestOf(place: Place, offsets: Offsets, keys: readonly string[]): Promise<readonly LatestEntry[]> {
    return this.ask(async (options) => {
      const found: LatestEntry[] = [];
      for (let at = 0; at < keys.length; at += keysAtOnce) {
        const some = await Promise.all(
          keys.slice(at, at + keysAtOnce).map(async (key) => {
            const event = await this.first(keyQuery(place, offsets, key), options);
            return event === null ? [] : [{ key, offset: event.offset }];
          }),
        );
        found.push(...some.flat());
      }
      return found;
    });
  }

  /** Reads the index in pieces, and steps over a key with many events as soon as one of them is known. */
  latestAfter(
    place: Place,
    offsets: Offsets,
    { after, limit }: { readonly after: string; readonly limit: number },
  ): Promise<readonly LatestEntry[]> {
    return this.ask(async (options) => {
      const entries: LatestEntry[] = [];
      for (let last = after; ; ) {
        const piece = await this.find(keysQuery(place, offsets, last), options)
          .project<{ key: string; offset: number }>({ _id: 0, key: 1, offset: 1 })
          .limit(keyDocuments)
          .toArray();
        for (const { key, offset } of piece) {
          if (key === last) continue;
          if (entries.length === limit) return entries;
          entries.push({ key, offset });
          last = key;
        }
        if (piece.length < keyDocuments) return entries;
      }
    });
  }

  /** The blocks that end behind `from`, in order; `to` is where a block may begin at most. */
  blocks(place: Place, { from, to }: Offsets, limit: number): Promise<Loaded> {
    return this.ask(async (options) => {
      const found = await this.find(blocksQuery(place, { from: 0, to }), options)
        .project<Pick<EventDocument, "offset" | "block">>({ _id: 0, offset: 1, block: 1 })
        .limit(limit)
        .toArray();
      const blocks = found.flatMap(({ offset, block }) => {
        if (block === undefined || offset + block.count <= from) return [];
        const { storedAt, bytes, count } = block;
        return [{ first: offset, end: offset + count, storedAt, bytes }];
      });
      return { blocks, whole: limit === 0 || found.length < limit };
    });
  }

  private first(query: Query, options: ReadOptions): Promise<EventDocument | null> {
    return this.find(query, options).limit(1).next();
  }

  private find({ filter, sort }: Query, options: ReadOptions): FindCursor<EventDocument> {
    return this.options.events.find(filter, { ...options, sort });
  }
}
