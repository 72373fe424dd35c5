// Who may write a shard: one document in `owners`, { _id: shard, node, epoch, until, … }.
//
// Opening a shard raises its epoch, durable at a majority, before anything else of it is read. Each commit is a transaction whose first
// write is to this document and matches the epoch and the number of the last commit. So of two who think they own a shard one cannot
// commit: both write the same document, so MongoDB puts them in an order, and the later one finds another epoch.
//
// `until` keeps a second node away as long as the first is alive. It is a time of the server's clock, moved on by commits and, where
// there are none, by a beat. It only says who may try: what protects the log is the epoch. An owner that this machine's kernel can be
// asked about and that is gone (kill -9) is not waited for.
//
// A node that was killed in the middle of a transaction leaves it open on the server, which would hold this document for up to a
// minute. So the document names the session of its owner, and who comes next ends that session first.

import type { Binary, ClientSession, Collection, Db, Document, MongoClient } from "mongodb";
import { judgeProcess, type ProcessFacts, processHere } from "../log/lock.ts";
import { StoreError } from "../store.ts";
import { codeOf, isDuplicate } from "./failures.ts";

/** How long an owner that says nothing is waited for. */
export const ownedMs = 5000;
const majority = { w: "majority", journal: true } as const;

export interface OwnerDocument {
  readonly _id: number;
  readonly node: string;
  readonly epoch: number;
  readonly until: Date;
  /** Commits since the shard was made. */
  readonly sequence: number;
  readonly session: Binary;
  readonly process: ProcessFacts;
}

export interface Claim {
  readonly shard: number;
  readonly epoch: number;
  readonly sequence: number;
}

/** The changes of an owner's document that give it more time. */
export function untilStage(): Document {
  return { $set: { until: { $add: ["$$NOW", ownedMs] } } };
}

/** The first write of a commit. */
export function fence(claim: Claim): { readonly filter: Document; readonly update: Document[] } {
  const { shard, epoch, sequence } = claim;
  return { filter: { _id: shard, epoch, sequence }, update: [{ $set: { sequence: sequence + 1 } }, untilStage()] };
}

export function ownersOf(db: Db): Collection<OwnerDocument> {
  return db.collection<OwnerDocument>("owners");
}

/**
 * Raises the epoch, or throws a StoreError that says who has the shard. `node` is the process: all its workers have one name. The session
 * remembers when that was, so that what is read with it is not older.
 */
export async function claimShard(
  { client, db }: { readonly client: MongoClient; readonly db: Db },
  shard: number,
  { node, session }: { readonly node: string; readonly session: ClientSession },
): Promise<Claim> {
  const id = session.id?.id;
  if (id === undefined) throw new StoreError("broken", "EMONGO", `shard ${shard} got no session`);
  const owners = ownersOf(db);
  const self = processHere();
  const expired = { $lt: ["$until", "$$NOW"] };
  const found = await owners
    .aggregate<OwnerDocument & { readonly expired: boolean }>([{ $match: { _id: shard } }, { $set: { expired } }], {
      readConcern: { level: "majority" },
    })
    .toArray();
  const before = found[0];
  const gone =
    before !== undefined && (before.node === node || judgeProcess(before.process, self) === "gone" || before.expired);
  if (before !== undefined && !gone) throw owned(shard, before);
  if (before !== undefined) await endSession(client, before.session);
  const epoch = (before?.epoch ?? 0) + 1;
  const changes = { node, session: id, process: self, epoch, sequence: before?.sequence ?? 0 };
  try {
    // Where there is none yet, this makes one of the filter; one that came up meanwhile has the same key.
    const claim = await owners.findOneAndUpdate(
      { _id: shard, epoch: epoch - 1 },
      [{ $set: literals(changes) }, untilStage()],
      { session, upsert: before === undefined, returnDocument: "after", writeConcern: majority },
    );
    if (claim !== null) return { shard, epoch: claim.epoch, sequence: claim.sequence };
  } catch (error) {
    if (!isDuplicate(error)) throw error;
  }
  throw new StoreError("broken", "EOWNED", `shard ${shard} was taken by another node at this moment`);
}

/** Lets the next one have the shard at once. */
export async function releaseShard(db: Db, { shard, epoch }: Claim): Promise<void> {
  await ownersOf(db).updateOne({ _id: shard, epoch }, { $set: { until: new Date(0) } });
}

/** A text in a pipeline may be taken for the name of a field. */
function literals(values: Record<string, unknown>): Document {
  return Object.fromEntries(Object.entries(values).map(([name, value]) => [name, { $literal: value }]));
}

async function endSession(client: MongoClient, session: Binary): Promise<void> {
  try {
    await client.db("admin").command({ killSessions: [{ id: session }] });
  } catch (error) {
    // Who may not do that waits until the server ends the transaction.
    if (codeOf(error) !== "EACCES") throw error;
  }
}

function owned(shard: number, { node, until }: OwnerDocument): StoreError {
  const what = `shard ${shard} belongs to ${node}, which was heard of within ${ownedMs} ms (until ${until.toISOString()})`;
  return new StoreError("broken", "EOWNED", `${what}: it can be had when that one has ended`);
}
