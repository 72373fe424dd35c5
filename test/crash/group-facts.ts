// What is known of a group: its rules, who was given which event under which lease, and what the node says of its cursor.

export interface GroupPlan {
  readonly name: string;
  readonly maxAttempts: number;
  readonly backoffMs: number | readonly number[];
  readonly ackTimeoutMs: number;
  readonly ordering?: "key";
  readonly filter?: { readonly keyPrefix: string };
}

/** One delivery. */
export interface Held {
  readonly state: State;
  readonly lease: string;
  readonly epoch: number;
  readonly token: number;
  readonly attempt: number;
  readonly member: string;
  readonly at: number;
  /** How much earlier the node may have leased it, by what was measured when it was read. */
  readonly lagMs: number;
  /** It runs at least until then, unless something ends it. */
  deadline: number;
  /** What its holder did that may end it. */
  ended: "" | "asked" | "left" | "vanished" | "released";
  endedAt: number;
  nacked: boolean;
}

export interface State {
  readonly partition: number;
  readonly offset: number;
  readonly n: number;
  readonly held: Held[];
  /** ACKs of which it is not known that they did nothing. */
  acks: number;
  ackedBy: Held | undefined;
  ackedAt: number;
  letters: number;
}

export interface CursorAnswer {
  readonly exists: boolean;
  readonly lag: number;
  readonly partitions: readonly { floor: number; ranges: readonly (readonly [number, number])[]; end: number }[];
}

/** What is so before a question about a cursor is sent. */
export interface Asked {
  readonly at: number;
  readonly ends: readonly number[];
}

/** Leases of a partition have an order by themselves. */
export function isLater(a: Held, b: Held): boolean {
  return a.epoch > b.epoch || (a.epoch === b.epoch && a.token > b.token);
}
