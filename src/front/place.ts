// From a place in a topic as a client names it to one start per partition.

import type { Start } from "../actors/messages.ts";
import { type Failure, failure, isFailure } from "../protocol/failure.ts";
import type { Place } from "../protocol/frames.ts";
import { parseId } from "../protocol/ids.ts";
import type { System } from "../runtime/system.ts";
import type { Route } from "./router.ts";

/** By partition. Undefined where the place says nothing of a partition, which only `offsets` can do. */
export type Starts = readonly (Start | undefined)[];

export async function startsOf(system: System, route: Route, place: Place): Promise<Starts | Failure> {
  const all = (start: Start) => route.partitions.map(() => start);
  switch (place.kind) {
    case "latest":
    case "earliest":
      return all({ kind: place.kind });
    case "ts":
      return all({ kind: "ts", ts: place.ts });
    case "offsets": {
      for (const partition of place.offsets.keys()) {
        if (partition >= route.partitions.length) {
          const text = `offsets names partition ${partition}, ${route.topic} has ${route.partitions.length}`;
          return failure("bad_option", text);
        }
      }
      return route.partitions.map(({ partition }) => {
        const offset = place.offsets.get(partition);
        return offset === undefined ? undefined : { kind: "offset", offset };
      });
    }
    case "afterId": {
      const found = await locateId(system, route, place.id);
      if (isFailure(found)) return found;
      // In the other partitions nothing stands before or after the event but time.
      return route.partitions.map(({ partition }) =>
        partition === found.partition ? { kind: "offset", offset: found.offset + 1 } : { kind: "ts", ts: found.ts },
      );
    }
    default: {
      const never: never = place;
      return never;
    }
  }
}

export interface Located {
  readonly partition: number;
  readonly offset: number;
  readonly ts: number;
}

/**
 * Where the event of this id is. An id of our own making names its partition; but publishers may bring ids that look the same, so
 * what is not found there is looked for everywhere.
 */
export async function locateId(system: System, route: Route, id: string): Promise<Located | Failure> {
  const named = parseId(id)?.partition;
  const first = named === undefined ? undefined : route.partitions[named];
  if (first !== undefined) {
    const answer = await system.request(first.address, { type: "locateId", id });
    if (!isFailure(answer)) return { partition: first.partition, offset: answer.offset, ts: answer.ts };
    if (answer.code !== "unknown_id") return answer;
  }
  const others = route.partitions.filter((place) => place !== first);
  const answers = await Promise.all(others.map(({ address }) => system.request(address, { type: "locateId", id })));
  let refused: Failure | undefined;
  for (let i = 0; i < others.length; i++) {
    const answer = answers[i];
    if (!isFailure(answer)) return { partition: others[i].partition, offset: answer.offset, ts: answer.ts };
    // One that could not look is worse than all that found nothing: the event may be there.
    if (answer.code !== "unknown_id") refused = answer;
  }
  return refused ?? failure("unknown_id", `there is no event ${id} in ${route.topic}`);
}
