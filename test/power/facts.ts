// What clients asked for and what they heard, each with its time on the monotonic clock. What was heard before the power went off
// must hold; what was asked for before it may.

export interface Asked {
  readonly asked: bigint;
  /** When the OK was heard. */
  heard?: bigint;
}

export interface Publish extends Asked {
  readonly topic: string;
  readonly payload: string;
  readonly key?: string;
  /** The id that the publisher brought. */
  readonly ownId?: string;
  /** What the dedupe window must remember. */
  readonly name?: string;
  id?: string;
  partition?: number;
  offset?: number;
}

export interface Settle extends Asked {
  readonly verb: "ack" | "nack";
  readonly topic: string;
  readonly group: string;
  readonly partition: number;
  readonly offset: number;
  readonly attempt: number;
}

/** An event that was delivered was stored before. */
export interface Delivery {
  readonly heard: bigint;
  readonly topic: string;
  readonly partition: number;
  readonly offset: number;
  readonly id: string;
  readonly payload: string;
  readonly epoch: number;
  readonly causedBy?: string;
}

export interface Seek extends Asked {
  readonly topic: string;
  readonly group: string;
  readonly floor: number;
}

export interface TopicLife extends Asked {
  readonly topic: string;
  readonly retentionBytes?: number;
  deletion?: Asked;
}

export interface Facts {
  readonly publishes: Publish[];
  readonly settles: Settle[];
  readonly deliveries: Delivery[];
  readonly seeks: Seek[];
  readonly topics: TopicLife[];
}

export function noFacts(): Facts {
  return { publishes: [], settles: [], deliveries: [], seeks: [], topics: [] };
}

export function before(time: bigint | undefined, cut: bigint): boolean {
  return time !== undefined && time < cut;
}
