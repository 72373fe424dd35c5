// Which actor stands behind the name of a cell. The runtime makes actors through this and knows none of them.

import { type Failure, failure } from "../protocol/failure.ts";
import { CatalogActor } from "./catalog.ts";
import type { Actor, Effect, Env, Kinds, Shelf } from "./effects.ts";
import { entryKeys } from "./entries.ts";
import { LeaseTableActor } from "./lease-table.ts";
import { catalogAddress, groupCell, type Message, partitionCell } from "./messages.ts";
import { PartitionActor } from "./partition.ts";
import { TokenBucketActor } from "./token-bucket.ts";

export const kinds: Kinds = {
  create(cell: string, shelf: Shelf, env: Env): { actor: Actor; effects: readonly Effect[] } | undefined {
    const [kind, stream, ...rest] = cell.split("/");
    switch (kind) {
      case "catalog":
        return shelf.shard === catalogAddress.shard ? { actor: new CatalogActor(shelf), effects: [] } : undefined;
      case "partition":
        return PartitionActor.start(Number(stream), shelf, env);
      case "group":
        return LeaseTableActor.start({ stream: Number(stream), group: rest.join("/"), shelf, env });
      case "bucket":
        return { actor: new TokenBucketActor(), effects: [] };
      default:
        return undefined;
    }
  },

  *resident(shelf: Shelf): Iterable<string> {
    if (shelf.shard === catalogAddress.shard) yield catalogAddress.cell;
    for (const [key] of shelf.entries(entryKeys.partitions))
      yield partitionCell(Number(key.slice(entryKeys.partitions.length)));
    for (const [key] of shelf.entries(entryKeys.allGroups)) {
      const name = key.slice(entryKeys.allGroups.length);
      const slash = name.indexOf("/");
      yield groupCell(Number(name.slice(0, slash)), name.slice(slash + 1));
    }
  },

  refusal(message: Message, reason: string): Failure {
    switch (message.type) {
      case "publish":
        return failure("publish_failed", `not stored: ${reason}`);
      case "settle":
      case "settleRuns":
        return failure("ack_failed", `not stored: ${reason}`);
      default:
        return failure("unavailable", reason);
    }
  },

  readsOnly(message: Message): boolean {
    switch (message.type) {
      case "resolve":
        return !message.create;
      // Every way to a topic begins with `open`. With a record that is known it writes nothing.
      case "open":
      case "topics":
      case "scan":
      case "locateTs":
      case "locateId":
      case "latest":
      case "describe":
      case "cursor":
      case "explain":
      case "history":
      // Buckets are never stored.
      case "take":
      case "endBucket":
        return true;
      default:
        return false;
    }
  },
};
