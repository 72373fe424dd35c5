// A payload that came in a binary batch is bytes that claim to be JSON. Before it is stored it is checked once, by whoever has
// the time (a worker): afterwards it is spliced into frames and lines as it is.

import { frameBounds } from "./bounds.ts";
import { decoder, strictDecoder } from "./utf8.ts";

/**
 * What is wrong with a payload, or undefined: it must be one JSON value in UTF-8, nested at most 64 deep, without line breaks. (A
 * line break can only stand between tokens, where it means nothing, and would cut a line of an export in two.)
 */
export function payloadFault(bytes: Uint8Array): string | undefined {
  let text: string;
  try {
    text = strictDecoder.decode(bytes);
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    return "payload is not UTF-8";
  }
  if (hasLineBreak(text)) return "payload has a line break between its tokens";
  return valueFault(text);
}

function hasLineBreak(text: string): boolean {
  return text.includes("\n") || text.includes("\r");
}

/** Of a payload on one line. */
function valueFault(text: string): string | undefined {
  try {
    JSON.parse(text);
  } catch (error) {
    return `payload is not one JSON value${placeOf(error)}`;
  }
  return nestsTooDeep(text, frameBounds.nestingMax) ? `payload nests deeper than ${frameBounds.nestingMax}` : undefined;
}

interface FaultAt {
  readonly index: number;
  readonly fault: string;
}

/**
 * The first of many payloads with a fault; they lie one behind the other in `bytes`, and `starts` has the place of each and the end of the last.
 * ASCII, which most of them are, is decoded and searched as a whole: there a character is a byte. Each is parsed alone, or a payload such as
 * `7,8` would shift its neighbours.
 */
export function faultOfMany(bytes: Uint8Array, starts: Uint32Array): FaultAt | undefined {
  const text = asciiText(bytes);
  const whole = text !== undefined && !hasLineBreak(text);
  for (let index = 0; index + 1 < starts.length; index++) {
    const from = starts[index];
    const to = starts[index + 1];
    const fault = whole ? valueFault(text.slice(from, to)) : payloadFault(bytes.subarray(from, to));
    if (fault !== undefined) return { index, fault };
  }
  return undefined;
}

function asciiText(bytes: Uint8Array): string | undefined {
  const text = decoder.decode(bytes);
  return text.length === bytes.length && !text.includes("\ufffd") ? text : undefined;
}

/** Where JSON.parse gave up, if it says so. Its own message quotes the text, and what clients send must not get into logs. */
export function placeOf(error: unknown): string {
  const place = error instanceof SyntaxError ? / at position \d+/.exec(error.message) : null;
  return place === null ? "" : place[0];
}

/**
 * Whether a JSON text nests deeper than this. Texts with few brackets, which is nearly all of them, are told by searching for
 * brackets; only the others are walked.
 */
export function nestsTooDeep(text: string, nestingMax: number): boolean {
  let opened = 0;
  for (let at = text.indexOf("{"); at >= 0 && opened <= nestingMax; at = text.indexOf("{", at + 1)) opened++;
  for (let at = text.indexOf("["); at >= 0 && opened <= nestingMax; at = text.indexOf("[", at + 1)) opened++;
  if (opened <= nestingMax) return false;
  let depth = 0;
  let quoted = false;
  for (let i = 0; i < text.length; i++) {
    switch (text.charCodeAt(i)) {
      case 0x22:
        quoted = !quoted;
        break;
      case 0x5c:
        if (quoted) i++;
        break;
      case 0x7b:
      case 0x5b:
        if (!quoted && ++depth > nestingMax) return true;
        break;
      case 0x7d:
      case 0x5d:
        if (!quoted) depth--;
        break;
      default:
        break;
    }
  }
  return false;
}

/**
 * Whether a JSON text has more values than may be: `punctuationMax` of the characters that stand around them, those in strings counted as
 * well, or `membersMax` members of objects, which cost several times as much, counted outside of strings.
 */
export function hasMoreValues(
  text: string,
  { punctuationMax, membersMax }: { readonly punctuationMax: number; readonly membersMax: number },
): boolean {
  let punctuation = 0;
  let members = 0;
  let quoted = false;
  for (let i = 0; i < text.length; i++) {
    switch (text.charCodeAt(i)) {
      case 0x22:
        quoted = !quoted;
        break;
      case 0x5c:
        if (quoted) i++;
        break;
      case 0x3a:
        if (!quoted && ++members > membersMax) return true;
        if (++punctuation > punctuationMax) return true;
        break;
      case 0x2c:
      case 0x5b:
      case 0x7b:
        if (++punctuation > punctuationMax) return true;
        break;
      default:
        break;
    }
  }
  return false;
}
