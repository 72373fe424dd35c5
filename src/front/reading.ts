// CURSOR and LATEST: questions to all partitions of a topic, and their answers put together.

import { type CursorState, groupCell } from "../actors/messages.ts";
import { type Failure, failure, isFailure } from "../protocol/failure.ts";
import type { Corr, OkFields } from "../protocol/frames.ts";
import { jumpHash } from "../protocol/jump-hash.ts";
import type { System } from "../runtime/system.ts";
import type { Starts } from "./place.ts";
import type { Route } from "./router.ts";

/** Keys on a page of LATEST; the partition ends a page earlier where the events are large. */
const latestPageMax = 500;
/** A page ends with the answer that passes this: it becomes one frame. */
const latestBytesMax = 4 * 1024 * 1024;

const decoder = new TextDecoder();

/** Where a group stands; without `exists` it has no cursor, and the rest says where it would begin. */
export type CursorReport = OkFields["CURSOR"] & { readonly exists: boolean };

export async function readCursor(system: System, route: Route, group: string): Promise<CursorReport | Failure> {
  const answers = await Promise.all(
    route.partitions.map(({ shard, stream }) =>
      system.request({ shard, cell: groupCell(stream, group) }, { type: "cursor" }),
    ),
  );
  return combined(answers);
}

/** Moves the group, durably on every partition. One that fails is named; those before and after it may have moved. */
export async function seekCursor(
  system: System,
  route: Route,
  group: string,
  starts: Starts,
): Promise<CursorReport | Failure> {
  const answers = await Promise.all(
    route.partitions.map(({ shard, stream, partition }) => {
      const to = starts[partition];
      const address = { shard, cell: groupCell(stream, group) };
      return to === undefined
        ? system.request(address, { type: "cursor" })
        : system.request(address, { type: "seek", to });
    }),
  );
  return combined(answers);
}

function combined(answers: readonly (CursorState | Failure)[]): CursorReport | Failure {
  const states: CursorState[] = [];
  for (const answer of answers) {
    if (isFailure(answer)) return answer;
    states.push(answer);
  }
  let lag = 0;
  let newest: CursorState | undefined;
  for (const state of states) {
    lag += state.lag;
    if (state.lastId !== undefined && (newest?.lastTs ?? -1) < (state.lastTs ?? 0)) newest = state;
  }
  return {
    exists: states.some((state) => state.exists),
    ...(newest?.lastId === undefined ? {} : { lastId: newest.lastId }),
    ...(newest?.lastTs === undefined ? {} : { lastTs: newest.lastTs }),
    lag,
    partitions: states.map(({ floor, ranges, end }) => ({ floor, ranges, end })),
  };
}

/**
 * The text of the OK to a LATEST: events are lines of JSON already and are not parsed again. Pages go through the partitions one after the
 * other; `next` is the partition and the last key seen there.
 */
export async function latestText(
  system: System,
  route: Route,
  { keys, after }: { readonly keys: readonly string[] | undefined; readonly after: string | undefined },
  corr: Corr | undefined,
): Promise<string | Failure> {
  const from = after === undefined ? { partition: 0, key: "" } : parseAfter(after);
  if (from === undefined || from.partition >= route.partitions.length) {
    return failure("bad_frame", "after must be the `next` of the page before");
  }
  const wanted = keys === undefined ? undefined : [...new Set(keys)].sort();
  const lines: string[] = [];
  let bytes = 0;
  let next: string | undefined;
  let limit = latestPageMax;
  for (let at = from.partition; at < route.partitions.length && next === undefined; at++) {
    const seen = at === from.partition ? from.key : "";
    // In one order for all pages, and not in that of the asking: a page that ends early says after which key to go on.
    const own = wanted?.filter((key) => key > seen && jumpHash(key, route.partitions.length) === at);
    if (own !== undefined && own.length === 0) continue;
    if (limit === 0 || bytes >= latestBytesMax) {
      next = `${at}:`;
      break;
    }
    const asked = own === undefined ? { after: seen, limit } : { keys: own, after: seen, limit: own.length };
    const page = await system.request(route.partitions[at].address, { type: "latest", ...asked });
    if (isFailure(page)) return page;
    if (page.count > 0) lines.push(decoder.decode(page.lines).trimEnd().replaceAll("\n", ","));
    if (keys === undefined) limit = Math.max(0, limit - page.count);
    bytes += page.lines.length;
    if (page.next !== undefined) next = `${at}:${page.next}`;
  }
  const head = corr === undefined ? "" : `"corr":${JSON.stringify(corr)},`;
  const tail = next === undefined ? "" : `,"next":${JSON.stringify(next)}`;
  return `{"op":"OK",${head}"events":[${lines.join(",")}]${tail}}`;
}

function parseAfter(text: string): { readonly partition: number; readonly key: string } | undefined {
  const match = /^(\d{1,2}):(.*)$/s.exec(text);
  return match === null ? undefined : { partition: Number(match[1]), key: match[2] };
}
