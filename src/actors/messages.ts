// The whole conversation between the front and the actors, and between actors. A message is plain readonly data, because it is
// posted between threads; bytes are views of one buffer that the post transfers. Each `type` is unique over all kinds of actor,
// and `Answers` says what a request is answered with (or a Failure, always). Nothing else crosses the threads.

import type { Failure } from "../protocol/failure.ts";
import type { Filter } from "../protocol/filter.ts";
import type { Rate } from "../protocol/rate.ts";

/** Where a cell lives: the shard decides the thread, the name decides the actor. */
export interface Address {
  readonly shard: number;
  readonly cell: string;
}

export const catalogAddress: Address = { shard: 0, cell: "catalog" };

export function partitionCell(stream: number): string {
  return `partition/${stream}`;
}

export function groupCell(stream: number, group: string): string {
  return `group/${stream}/${group}`;
}

export function bucketCell(name: string): string {
  return `bucket/${name}`;
}

// ---------------------------------------------------------------------------------------------------------------- topics

export interface TopicSettings {
  readonly retention?: { readonly ageMs?: number; readonly bytes?: number };
  readonly rate?: Rate | "off";
  readonly maxAttempts?: number;
  readonly writeConcern?: string;
}

export interface TopicRecord {
  /** Counted up, never reused: the incarnation of the name. */
  readonly id: number;
  readonly name: string;
  /** The shard of each partition; its length is the number of partitions. */
  readonly shards: readonly number[];
  readonly settings: TopicSettings;
  readonly status: "live" | "deleting";
  readonly createdAt: number;
  /** Set on `<topic>.dlq.<group>`; such a topic has no dead letters of its own. */
  readonly deadLetterOf?: { readonly topic: string; readonly group: string };
}

/** For the catalog cell, on shard 0. */
export type CatalogMessage =
  | { readonly type: "resolve"; readonly topic: string; readonly create: boolean; readonly partitions: number }
  | {
      readonly type: "configure";
      readonly topic: string;
      readonly partitions?: number;
      readonly settings: TopicSettings;
    }
  | { readonly type: "deadLetter"; readonly topicId: number; readonly group: string }
  /** Marks the topic as deleting, durably; `forget` follows when every partition was dropped. */
  | { readonly type: "deleteTopic"; readonly topic: string }
  | { readonly type: "forget"; readonly topicId: number }
  | { readonly type: "topics"; readonly after: string; readonly limit: number };

// ------------------------------------------------------------------------------------------------------------- partitions

/** For a partition cell. `open` comes first after the topic was made and is idempotent: it makes name and settings durable here. */
export type PartitionMessage =
  | { readonly type: "open"; readonly record: TopicRecord }
  | {
      readonly type: "publish";
      /** Checked: lengths add up, options valid, every payload at most the limit. `unparsed`: payloads still to be checked as JSON. */
      readonly pack: Uint8Array;
      readonly unparsed: boolean;
      /**
       * A library's batch: published again under the same name within the dedupe window it is stored once. `rising`: in this
       * partition the numbers of the producer only rise. `chained`: and this one comes right behind the one before it, or not at all.
       */
      readonly batch?: { readonly producer: string; readonly seq: number; readonly order?: "rising" | "chained" };
    }
  /** Events as JSON lines, from..to, at most so many; `fromTs` and `toTs` bound what is returned, not what is walked. */
  | {
      readonly type: "scan";
      readonly from: number;
      readonly to: number;
      readonly fromTs?: number;
      readonly toTs?: number;
      readonly bytesMax: number;
      readonly eventsMax: number;
    }
  | { readonly type: "locateTs"; readonly ts: number }
  | { readonly type: "locateId"; readonly id: string }
  | { readonly type: "latest"; readonly keys?: readonly string[]; readonly after: string; readonly limit: number }
  | { readonly type: "describe" }
  /** Removes events, groups and settings of this partition, durably. */
  | { readonly type: "drop" };

export interface PublishedRun {
  /** The first event of the run within the pack, and how many. */
  readonly index: number;
  readonly count: number;
  readonly offset: number;
  readonly storedAt: number;
  readonly salt: number;
  /** Only on duplicates: stored before, under this ts; the position is that of the first. */
  readonly duplicate?: { readonly ts: number };
  readonly failure?: Failure;
}

export interface Published {
  readonly durability: string;
  /** Covers the whole pack in order; a single run where all was stored anew. */
  readonly runs: readonly PublishedRun[];
}

export interface Page {
  /** Events as JSON objects, each followed by a newline. */
  readonly lines: Uint8Array;
  readonly count: number;
  /** Per line: where it ends in `lines`, its ts and offset. */
  readonly ends: Uint32Array;
  readonly ts: Float64Array;
  readonly offsets: Float64Array;
  /** Where to go on; `done` once it reached `to`. */
  readonly next: number;
  readonly done: boolean;
}

export interface PartitionInfo {
  readonly start: number;
  readonly end: number;
  readonly bytes: number;
  readonly lastStoredAt: number;
  readonly groups: readonly string[];
  /** What an answer to a publish means here. */
  readonly durability: string;
}

// ----------------------------------------------------------------------------------------------------------------- groups

/** Options of the group, stored with it. Absent in a request: inherit what the group has, or the default. */
export interface GroupOptions {
  readonly maxAttempts: number;
  readonly backoffMs: number | readonly number[];
  readonly ordering: "none" | "key";
  readonly filter: Filter | null;
  readonly ephemeral: boolean;
}

export type Start =
  | { readonly kind: "latest" }
  | { readonly kind: "earliest" }
  | { readonly kind: "ts"; readonly ts: number }
  /** The next offset wanted; clamped to what is there. */
  | { readonly kind: "offset"; readonly offset: number };

/** For the lease table of one group on one partition. A member is a subscription, numbered by the front, never reused. */
export type GroupMessage =
  | {
      readonly type: "join";
      readonly member: number;
      readonly options: Partial<GroupOptions>;
      readonly start: Start;
      readonly ackTimeoutMs: number;
      readonly batchSize: number;
      /** `json`: one EVENT text frame per event; `batch`: binary EVENTS frames under the subscription's handle. */
      readonly format: "json" | "batch";
      readonly handle: number;
      /** The member in words for the operator, also after it has left. */
      readonly who: string;
      /** The front's way back after a shard was reopened: the group's options are taken as stored and never conflict. */
      readonly rejoin: boolean;
    }
  /** `written`: how many of the events delivered to this member from here reached the socket; the rest count no attempt. */
  | {
      readonly type: "leave";
      readonly member: number;
      readonly written: number;
      readonly cause: "unsubscribe" | "disconnect" | "shutdown";
    }
  /** More of each credit: leases at a time, events by rate, bytes. Nothing is delivered before the first grant. */
  | {
      readonly type: "grant";
      readonly member: number;
      readonly slots: number;
      readonly tokens: number;
      readonly bytes: number;
    }
  /** Give back this many slots, answered by `release` signals as they become free. */
  | { readonly type: "recall"; readonly member: number; readonly slots: number }
  /** `open: false` pauses delivery. `written` as in leave; `stalled`: the socket does not take what was sent. */
  | {
      readonly type: "flow";
      readonly member: number;
      readonly open: boolean;
      readonly stalled: boolean;
      readonly written: number;
    }
  /** The answer to `overdue`: how many of the events delivered to this member from here were handed to its socket. */
  | { readonly type: "handed"; readonly member: number; readonly handed: number }
  | { readonly type: "settle"; readonly member: number; readonly entries: readonly SettleEntry[] }
  | {
      readonly type: "settleRuns";
      readonly member: number;
      /** `release`: no handler has begun with them, so they go back uncounted. */
      readonly verb: "ack" | "nack" | "release";
      readonly delayMs?: number;
      readonly reason?: string;
      readonly runs: readonly LeaseRun[];
    }
  | {
      readonly type: "extend";
      readonly member: number;
      readonly id: string;
      readonly extendMs: number;
      readonly lease?: string;
    }
  | {
      readonly type: "extendRuns";
      readonly member: number;
      readonly extendMs: number;
      readonly runs: readonly LeaseRun[];
    }
  | { readonly type: "cursor" }
  | { readonly type: "seek"; readonly to: Start }
  | { readonly type: "dropGroup" }
  /** What delivery depends on at this moment. */
  | { readonly type: "explain" }
  /** What became of one event. */
  | { readonly type: "history"; readonly offset: number };

export interface SettleEntry {
  readonly id: string;
  readonly ack: boolean;
  readonly lease?: string;
  readonly reason?: string;
  readonly delayMs?: number;
}

/** Consecutive offsets under consecutive tokens. */
export interface LeaseRun {
  readonly offset: number;
  readonly count: number;
  readonly epoch: number;
  readonly token: number;
}

export interface Joined {
  readonly resumed: boolean;
  readonly floor: number;
  readonly end: number;
  readonly options: GroupOptions;
}

/** One per entry: null is a plain OK, "stale" an OK that changed nothing. */
export type SettleResult = null | "stale" | Failure;

export interface RunsSettled {
  /** Runs (cut where needed) whose leases were lost; empty when all was settled. */
  readonly lost: readonly LeaseRun[];
}

export interface CursorState {
  readonly exists: boolean;
  readonly floor: number;
  /** Settled above the floor, [from, to). */
  readonly ranges: readonly (readonly [number, number])[];
  readonly start: number;
  readonly end: number;
  /** Unsettled events: end - floor - what the ranges hold. */
  readonly lag: number;
  readonly leased: number;
  readonly waiting: number;
  readonly members: number;
  /** The event just below the floor, where it is still stored. */
  readonly lastId?: string;
  readonly lastTs?: number;
}

// ------------------------------------------------------------------------------------------------------- groups, explained

/** A group on one partition as it is now. Times are from now, in milliseconds. */
export interface GroupFacts {
  readonly exists: boolean;
  readonly options: GroupOptions | null;
  readonly floor: number;
  readonly start: number;
  readonly end: number;
  /** Unsettled events: the sum of `counts`. */
  readonly lag: number;
  readonly counts: WaitCounts;
  readonly totals: Totals;
  /** Events that the filter kept out since the last delivery. */
  readonly filteredInRow: number;
  readonly unsettledMax: number;
  /** How many more events may be unsettled among those that were looked at. */
  readonly room: number;
  readonly deliveredMsAgo?: number;
  /** When the first of those in backoff comes again. */
  readonly backoffEndsInMs?: number;
  readonly oldestLease?: LeaseFacts;
  /** Of the key with the most events behind its first. */
  readonly keyWait?: KeyWait;
  /** The next event that must be delivered alone. */
  readonly nextAlone?: { readonly offset: number; readonly id: string };
  /** Reads bring nothing. */
  readonly readRetryInMs?: number;
  /** The way to the dead letters is closed. */
  readonly burialRetryInMs?: number;
  readonly members: readonly MemberFacts[];
}

/** Each unsettled event is in one of these. */
export interface WaitCounts {
  readonly leased: number;
  /** Comes again, to whoever can take it. */
  readonly ready: number;
  /** Comes again, each to a member that holds nothing else. */
  readonly alone: number;
  readonly backoff: number;
  /** Behind an earlier event of its key. */
  readonly blocked: number;
  /** On the way to the dead letters. */
  readonly dying: number;
  /** Not looked at yet. */
  readonly fresh: number;
}

/** Since the lease table was started. */
export interface Totals {
  readonly delivered: number;
  readonly redelivered: number;
  readonly acked: number;
  readonly nacked: number;
  readonly expired: number;
  readonly deadLettered: number;
  readonly filtered: number;
  readonly skipped: number;
}

export interface LeaseFacts {
  readonly offset: number;
  readonly id: string;
  readonly member: number;
  readonly who: string;
  readonly attempt: number;
  readonly heldMs: number;
  readonly endsInMs: number;
}

export interface KeyWait {
  readonly key: string;
  /** How many events wait behind the first. */
  readonly waiting: number;
  readonly offset: number;
  readonly id: string;
  readonly state: "leased" | "backoff" | "ready" | "dying";
  readonly lease?: LeaseFacts;
  readonly backoffEndsInMs?: number;
}

export interface MemberFacts {
  readonly member: number;
  readonly who: string;
  readonly open: boolean;
  readonly stalled: boolean;
  readonly slots: number;
  readonly tokens: number;
  readonly bytes: number;
  readonly leases: number;
  /** Gets nothing before it is idle, and then an event alone. */
  readonly reserved: boolean;
  /** Holds this one alone. */
  readonly alone?: LeaseFacts;
}

/** `acked`, `filtered`, `dead_lettered` and `settled` (how is no longer known) are for good. */
export type EventState =
  | "acked"
  | "filtered"
  | "dead_lettered"
  | "settled"
  | "leased"
  | "ready"
  | "backoff"
  | "blocked"
  | "dying"
  | "not_reached";

export type HoldingOutcome =
  | "leased"
  | "acked"
  | "nacked"
  | "released"
  | "expired"
  | "disconnected"
  | "unsubscribed"
  | "shutdown"
  | "seek"
  | "filtered"
  | "dead_lettered";

/** Times are wall-clock milliseconds. */
export interface EventFacts {
  readonly exists: boolean;
  readonly state: EventState;
  /** Deliveries so far, the one under way included; unknown of what was settled long ago. */
  readonly attempts?: number;
  /** When the lease or the backoff ends. */
  readonly until?: number;
  /** When it was settled. */
  readonly at?: number;
  /** Why it became a dead letter. */
  readonly reason?: string;
  /** The unsettled event of its key before it. */
  readonly behind?: { readonly key: string; readonly offset: number; readonly id: string };
  readonly holdings: readonly Holding[];
}

export interface Holding {
  readonly who: string;
  readonly attempt: number;
  readonly counted: boolean;
  readonly from: number;
  readonly until: number;
  readonly outcome: HoldingOutcome;
  readonly reason?: string;
}

// ---------------------------------------------------------------------------------------------------------------- buckets

/** For a token bucket. Its rate is set by the first message; asking lends what waits now and at most 20 ms of refill more. */
export type BucketMessage =
  | { readonly type: "take"; readonly need: number; readonly rate: Rate }
  | { readonly type: "endBucket" };

export interface Lent {
  /** Tokens lent; 0 when the bucket is empty. */
  readonly tokens: number;
  /** When 0 were lent: how long until `need` could be had (a batch larger than the burst: until the bucket is positive). */
  readonly retryAfterMs: number;
}

// ---------------------------------------------------------------------------------------------------------------- answers

export type Message = CatalogMessage | PartitionMessage | GroupMessage | BucketMessage;

export interface Answers {
  resolve: TopicRecord;
  configure: { readonly record: TopicRecord; readonly created: boolean };
  deadLetter: TopicRecord;
  deleteTopic: TopicRecord;
  forget: null;
  topics: { readonly records: readonly TopicRecord[]; readonly next?: string };
  open: PartitionInfo;
  publish: Published;
  scan: Page;
  locateTs: { readonly offset: number };
  locateId: { readonly offset: number; readonly ts: number };
  latest: { readonly lines: Uint8Array; readonly count: number; readonly next?: string };
  describe: PartitionInfo;
  drop: null;
  join: Joined;
  leave: null;
  grant: null;
  recall: null;
  flow: null;
  handed: null;
  settle: { readonly results: readonly SettleResult[] | null };
  settleRuns: RunsSettled;
  extend: null;
  extendRuns: RunsSettled;
  cursor: CursorState;
  seek: CursorState;
  dropGroup: null;
  explain: GroupFacts;
  history: EventFacts;
  take: Lent;
  endBucket: null;
}

export type MessageType = keyof Answers;
export type MessageOf<T extends MessageType> = Extract<Message, { readonly type: T }>;
export type Answer<T extends MessageType = MessageType> = Answers[T] | Failure;

// ---------------------------------------------------------------------------------------------------------------- signals

/** What an actor tells the front without being asked. */
export type Signal =
  /** Frames ready to be sent, joined: each ends at an entry of `ends`. `count` events of `stream` for the member. */
  | {
      readonly type: "events";
      readonly member: number;
      readonly stream: number;
      readonly count: number;
      readonly binary: boolean;
      readonly frames: Uint8Array;
      readonly ends: Uint32Array;
    }
  /** Something waits for this member and a credit is missing here. Said once until the next grant. */
  | {
      readonly type: "want";
      readonly member: number;
      readonly stream: number;
      readonly slots: boolean;
      readonly tokens: boolean;
      readonly bytes: boolean;
    }
  | { readonly type: "release"; readonly member: number; readonly stream: number; readonly slots: number }
  /** A lease has come to its end, and whether its event was handed to the socket is not known here: asks for `handed`. */
  | { readonly type: "overdue"; readonly member: number; readonly stream: number }
  /** The subscription is over: its group or topic was removed. */
  | { readonly type: "ended"; readonly member: number; readonly stream: number; readonly failure: Failure };
