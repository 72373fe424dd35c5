// Where in a topic to begin, as people type it: earliest, latest, a time, a position, or the id of an event.

import { eventIdFault } from "../protocol/names.ts";
import { parsePosition } from "../protocol/position.ts";
import { CliError, exitCodes } from "./context.ts";
import { parseTime, timeForms, timeText } from "./times.ts";

export type Place =
  | { readonly kind: "earliest" }
  | { readonly kind: "latest" }
  | { readonly kind: "ts"; readonly ts: number }
  | { readonly kind: "offsets"; readonly offsets: string }
  /** Behind the event of this id. */
  | { readonly kind: "id"; readonly id: string };

/** `name` is the option or argument that it was given as. */
export function readPlace(name: string, text: string, now: number): Place {
  if (text === "earliest" || text === "latest") return { kind: text };
  if (/^\d+:\d/.test(text) && parsePosition(text) !== undefined) return { kind: "offsets", offsets: text };
  const ts = parseTime(text, now);
  if (ts !== undefined) return { kind: "ts", ts };
  if (/^\d+$/.test(text)) {
    throw new CliError(
      `${name} is ${text}: write 0:${text} for an offset of partition 0, ${text}s or ${text}m for a time ago, --id ${text} for an id`,
      exitCodes.usage,
    );
  }
  return idPlace(name, text);
}

export function idPlace(name: string, text: string): Place {
  if (eventIdFault(text) === undefined) return { kind: "id", id: text };
  throw new CliError(
    `${name} is ${JSON.stringify(text)}: allowed are earliest, latest, ${timeForms}, a position such as 0:12, or the id of an event`,
    exitCodes.usage,
  );
}

export function placeText(place: Place): string {
  switch (place.kind) {
    case "earliest":
      return "the oldest stored event";
    case "latest":
      return "behind the newest event";
    case "ts":
      return `the first event of ${timeText(place.ts)} or later`;
    case "offsets":
      return place.offsets;
    case "id":
      return `behind the event ${place.id}`;
    default:
      return place satisfies never;
  }
}

/** As options of a subscription. */
export function subscribeFrom(place: Place) {
  switch (place.kind) {
    case "earliest":
    case "latest":
      return { from: place.kind };
    case "ts":
      return { from: "ts", ts: place.ts } as const;
    case "offsets":
      return { from: "offsets", offsets: place.offsets } as const;
    case "id":
      return { from: "afterId", afterId: place.id } as const;
    default:
      return place satisfies never;
  }
}
