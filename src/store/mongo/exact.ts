// Which JSON texts a BSON value can stand for. A value can be queried; what would not be read back as the same text, byte for byte, is
// kept as text. A text is exact if parsing and writing it gives it back, which leaves out
//
// - space between tokens, and escapes that JSON.stringify does not write ("\u0041", "\/");
// - numbers in another spelling or beyond a double (1.0, 1e2, -0, 12345678901234567890);
// - objects with a name twice, and names such as "1" that JavaScript puts into another order.
//
// All of these can still be kept as a value beside their text, for queries. Not so where a name or a string means something to BSON or
// the driver: names that begin with "$" (operators, references), _bsontype, toBSON, __proto__, the character U+0000 (no name may have
// it) and half a surrogate pair (not UTF-8). And not where the text is long: BSON may take several times its room.

import type { Json } from "../../protocol/event.ts";

export const valueCharsMax = 1024 * 1024;

/** A name that begins with "$", as JSON.stringify writes it. A text that has this inside a string is merely stored as text. */
const dollarName = /"\$(?:[^"\\]|\\.)*"\s*:/;

export interface Valued {
  readonly value: Json;
  /** The value alone gives the text back. */
  readonly exact: boolean;
}

/** Undefined where there is no value that BSON should hold. */
export function bsonValue(text: string): Valued | undefined {
  if (text.length > valueCharsMax) return undefined;
  let value: Json;
  try {
    value = JSON.parse(text) as Json;
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
  const written = JSON.stringify(value);
  return hasMeaning(written) ? undefined : { value, exact: written === text };
}

/** The text of a value that was exact. */
export function exactText(value: unknown): string {
  return JSON.stringify(value);
}

/** Of a text as JSON.stringify writes it. */
function hasMeaning(text: string): boolean {
  return (
    (text.includes('"$') && dollarName.test(text)) ||
    text.includes('"_bsontype"') ||
    text.includes('"toBSON"') ||
    text.includes('"__proto__"') ||
    text.includes("\\u0000") ||
    text.includes("\\ud")
  );
}
