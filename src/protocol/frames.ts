// Every JSON frame, both ways. Client frames are given as they are after decoding (decode.ts): checked, with options in the
// shape in which the rest of the node uses them. Server frames are given as they are on the wire. Binary frames: batch.ts.

import type { EventRecord } from "./event.ts";
import type { Code } from "./failure.ts";
import type { Filter } from "./filter.ts";
import type { PackEntry } from "./pack.ts";

/** Chosen by the client, echoed in the answer. */
export type Corr = string | number;

export const clientOps = [
  "AUTH",
  "PUBLISH",
  "OPEN",
  "SUBSCRIBE",
  "UNSUBSCRIBE",
  "ACK",
  "NACK",
  "MODACK",
  "PAUSE",
  "RESUME",
  "CURSOR",
  "LATEST",
  "PING",
] as const;

export const serverOps = ["OK", "ERR", "EVENT"] as const;

export type ClientOp = (typeof clientOps)[number];
export type ServerOp = (typeof serverOps)[number];

// ------------------------------------------------------------------------------------------------------- client to server

export type ClientFrame =
  | AuthFrame
  | PublishFrame
  | OpenFrame
  | SubscribeFrame
  | MemberFrame
  | AckFrame
  | NackFrame
  | ModackFrame
  | CursorFrame
  | LatestFrame
  | PingFrame;

interface Request {
  readonly corr: Corr | undefined;
}

export interface AuthFrame extends Request {
  readonly op: "AUTH";
  readonly token: string | undefined;
  /** Whether the client speaks binary batches. */
  readonly batch: boolean;
}

export interface PublishFrame extends Request {
  readonly op: "PUBLISH";
  readonly topic: string;
  readonly entry: PackEntry;
}

/** Asks for the handle under which a batch client publishes to a topic. */
export interface OpenFrame extends Request {
  readonly op: "OPEN";
  readonly topic: string;
}

export interface SubscribeFrame extends Request {
  readonly op: "SUBSCRIBE";
  readonly topic: string;
  readonly group: string;
  readonly options: SubscribeOptions;
}

export interface MemberFrame extends Request {
  readonly op: "UNSUBSCRIBE" | "PAUSE" | "RESUME";
  readonly topic: string;
  readonly group: string;
}

interface LeaseRequest extends Request {
  readonly topic: string;
  readonly group: string;
  readonly id: string;
  readonly lease: string | undefined;
}

export interface AckFrame extends LeaseRequest {
  readonly op: "ACK";
}

export interface NackFrame extends LeaseRequest {
  readonly op: "NACK";
  readonly reason: string | undefined;
  readonly delayMs: number | undefined;
}

export interface ModackFrame extends LeaseRequest {
  readonly op: "MODACK";
  readonly extendMs: number;
}

export interface CursorFrame extends Request {
  readonly op: "CURSOR";
  readonly topic: string;
  readonly group: string;
  /** Where to move the group; undefined only reads. */
  readonly set: Place | undefined;
}

export interface LatestFrame extends Request {
  readonly op: "LATEST";
  readonly topic: string;
  /** Undefined: of every key, in pages. */
  readonly keys: readonly string[] | undefined;
  /** The `next` of the page before. */
  readonly after: string | undefined;
}

/** Answered at once: whoever asks wants to know that somebody is there. */
export interface PingFrame extends Request {
  readonly op: "PING";
}

/** A place in a topic as a client names it. `afterId` is the offset after the event of that id. */
export type Place =
  | { readonly kind: "latest" }
  | { readonly kind: "earliest" }
  | { readonly kind: "ts"; readonly ts: number }
  | { readonly kind: "afterId"; readonly id: string }
  /** The next offset wanted, by partition. One that is not named begins at `earliest`; a seek leaves it where it is. */
  | { readonly kind: "offsets"; readonly offsets: ReadonlyMap<number, number> };

export interface SubscribeOptions {
  /** Where a group begins that has no cursor yet. */
  readonly from: Place;
  readonly ackTimeoutMs?: number;
  readonly maxInflight?: number;
  readonly batchSize?: number;
  /** Of the group; what is absent is inherited. A filter of null is none, said explicitly. */
  readonly group: {
    readonly maxAttempts?: number;
    readonly backoffMs?: number | readonly number[];
    readonly ordering?: "none" | "key";
    readonly filter?: Filter | null;
    readonly ephemeral?: boolean;
  };
}

// ------------------------------------------------------------------------------------------------------- server to client

export interface OkFrame {
  readonly op: "OK";
  readonly corr?: Corr;
}

export interface ErrFrame {
  readonly op: "ERR";
  readonly code: Code;
  readonly msg: string;
  readonly corr?: Corr;
  readonly retry_after_ms?: number;
}

export interface EventFrame {
  readonly op: "EVENT";
  readonly topic: string;
  readonly group: string;
  readonly event: EventRecord;
  readonly ctx: {
    readonly attempt: number;
    readonly max_attempts: number;
    readonly ack_deadline_ms: number;
    readonly lease: string;
  };
}

/** What the OK of each request says besides `op` and `corr`. */
export interface OkFields {
  AUTH: { readonly batch?: 1; readonly max_frame?: number; readonly max_payload?: number };
  PUBLISH: {
    readonly id: string;
    readonly ts: number;
    readonly partition: number;
    readonly offset: number;
    readonly durability: string;
    readonly duplicate?: true;
  };
  OPEN: { readonly handle: number; readonly partitions: number; readonly durability: string };
  SUBSCRIBE: {
    /** Whether the group had a cursor. */
    readonly resumed: boolean;
    /** Where the group stands. */
    readonly position: string;
    readonly handle?: number;
  };
  UNSUBSCRIBE: object;
  PAUSE: object;
  RESUME: object;
  ACK: { readonly stale?: true };
  NACK: { readonly stale?: true };
  MODACK: object;
  CURSOR: {
    /** Whether the group has a cursor; if not, the rest says where it would begin. */
    readonly exists: boolean;
    readonly lastId?: string;
    readonly lastTs?: number;
    readonly lag: number;
    readonly partitions: readonly {
      readonly floor: number;
      readonly ranges: readonly (readonly [number, number])[];
      readonly end: number;
    }[];
  };
  LATEST: { readonly events: readonly EventRecord[]; readonly next?: string };
  PING: object;
}
