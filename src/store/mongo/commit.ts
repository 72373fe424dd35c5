// One commit as one transaction, tried until it is known how it ended or the time is up.
//
// The first write matches epoch and number of the last commit in the owner document and counts that number up (owner.ts), so each try
// of a commit can succeed only if none before it has. That makes it safe to try the whole transaction again after anything: a
// step-down, a connection that broke, a commit of which nobody heard how it ended. If the first write finds the number counted up under
// our own epoch, an earlier try was stored. If it finds another epoch, somebody else has the shard and nothing of ours is stored since.

import type { AnyBulkWriteOperation, ClientSession, Db, Document } from "mongodb";
import { type StoreClock, StoreError } from "../store.ts";
import type { EventDocument } from "./documents.ts";
import type { EntryCollection } from "./entries.ts";
import { codeOf, hasLabel, isDuplicate, isPassing, messageOf, storeError } from "./failures.ts";
import { type Claim, fence, type OwnerDocument, ownersOf } from "./owner.ts";

const waitMsMin = 10;
const waitMsMax = 500;

export interface Writes {
  readonly events: readonly EventDocument[];
  readonly entries: ReadonlyMap<EntryCollection, readonly AnyBulkWriteOperation<Document>[]>;
}

/** How a commit is stored before it is answered. */
export type Concern = "majority" | "w:1";

const concerns = { majority: { w: "majority", journal: true }, "w:1": { w: 1 } } as const;

export interface CommitAround {
  readonly db: Db;
  readonly session: ClientSession;
  readonly clock: StoreClock;
  readonly commitMs: number;
  readonly concern: Concern;
  /** Removes what a deleted topic of the same name has left at these offsets; false where it was something else. */
  readonly makeRoom: (events: readonly EventDocument[]) => Promise<boolean>;
}

type Ending =
  | { readonly kind: "stored" }
  /** Nothing of this try is stored. */
  | { readonly kind: "failed"; readonly error: unknown }
  /** The first write matched nothing. */
  | { readonly kind: "fenced" }
  /** It may be stored, now or later. */
  | { readonly kind: "unknown"; readonly error: unknown };

/** Resolves when it is stored as `concern` says. A rejection is a StoreError: "broken" if nobody knows. */
export async function commitWrites(writes: Writes, claim: Claim, around: CommitAround): Promise<void> {
  const { clock, commitMs } = around;
  const endsAt = clock.mono() + commitMs;
  let waitMs = waitMsMin;
  let doubt: unknown;
  let madeRoom = false;
  for (;;) {
    const ending = await tryOnce(writes, claim, around);
    let error: unknown;
    switch (ending.kind) {
      case "stored":
        return;
      case "fenced": {
        const verdict = await settle(claim, around, doubt !== undefined);
        if (verdict === "stored") return;
        error = verdict;
        break;
      }
      case "unknown":
        doubt = ending.error;
        error = ending.error;
        break;
      case "failed":
        error = ending.error;
        if (isDuplicate(error) && !madeRoom) {
          madeRoom = true;
          if (await around.makeRoom(writes.events)) continue;
        }
        break;
      default:
        ending satisfies never;
    }
    const goesOn = isPassing(error) && clock.mono() < endsAt;
    if (!goesOn) throw verdictOf(error, doubt, claim.shard);
    await new Promise<void>((resolve) => void clock.after(waitMs, resolve));
    waitMs = Math.min(2 * waitMs, waitMsMax);
  }
}

function verdictOf(error: unknown, doubt: unknown, shard: number): StoreError {
  if (error instanceof StoreError) return error;
  if (doubt !== undefined) {
    const what = `shard ${shard}: nobody knows whether a commit is stored: ${messageOf(doubt)}`;
    return new StoreError("broken", codeOf(doubt), what);
  }
  return storeError(error, "refused", `shard ${shard}: a commit was not stored`);
}

async function tryOnce(
  writes: Writes,
  claim: Claim,
  { db, session, commitMs, concern }: CommitAround,
): Promise<Ending> {
  session.startTransaction({
    readConcern: { level: "local" },
    writeConcern: concerns[concern],
    readPreference: "primary",
    maxCommitTimeMS: commitMs,
  });
  try {
    const { filter, update } = fence(claim);
    const { matchedCount } = await ownersOf(db).updateOne(filter, update, { session });
    if (matchedCount !== 1) {
      await end(session);
      return { kind: "fenced" };
    }
    if (writes.events.length > 0) {
      await db.collection<EventDocument>("events").insertMany([...writes.events], { session, ordered: true });
    }
    for (const [name, operations] of writes.entries) {
      await db.collection(name).bulkWrite([...operations], { session, ordered: true });
    }
  } catch (error) {
    await end(session);
    return { kind: "failed", error };
  }
  try {
    await session.commitTransaction();
    return { kind: "stored" };
  } catch (error) {
    // With this label the server says that there is no such transaction any more; any other error leaves it open.
    return { kind: hasLabel(error, "TransientTransactionError") ? "failed" : "unknown", error };
  }
}

async function end(session: ClientSession): Promise<void> {
  try {
    await session.abortTransaction();
  } catch (error) {
    // The next transaction of the session ends it, and so does the server.
    if (!isPassing(error)) throw error;
  }
}

/** Why the first write matched nothing: an earlier try is stored, or somebody else has the shard. */
async function settle(
  { shard, epoch, sequence }: Claim,
  { db, session }: CommitAround,
  mayBeStored: boolean,
): Promise<"stored" | unknown> {
  let owner: OwnerDocument | null;
  try {
    owner = await ownersOf(db).findOne({ _id: shard }, { session, readConcern: { level: "majority" } });
  } catch (error) {
    return error;
  }
  if (mayBeStored && owner?.epoch === epoch && owner.sequence === sequence + 1) return "stored";
  if (owner === null) return new StoreError("broken", "ELOST", `the owner document of shard ${shard} is gone`);
  if (owner.epoch !== epoch) {
    const what = `shard ${shard} was taken over by ${owner.node} under epoch ${owner.epoch}, this is epoch ${epoch}`;
    return new StoreError("broken", "EFENCED", what);
  }
  // An earlier try is stored, but not at a majority yet.
  if (owner.sequence === sequence) return new StoreError("broken", "ENOPRIMARY", `shard ${shard} waits for a majority`);
  // After a failover the new primary may lack what was stored at w:1.
  const what = `shard ${shard} is at commit ${owner.sequence} and not at ${sequence}: its last commits are gone`;
  return new StoreError("broken", "ELOST", what);
}
