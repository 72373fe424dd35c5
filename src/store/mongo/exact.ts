// Which JSON texts a BSON value can stand for. What is stored as a value can be queried; what could not be read back as the same text,
// byte for byte, is stored as text. A text is exact if parsing and writing it gives it back, which leaves out
//
// - space between tokens, and escapes that JSON.stringify does not write ("\u0041", "\/");
// - numbers in another spelling or beyond a double (1.0, 1e2, -0, 12345678901234567890);
// - objects with a key twice, and keys such as "1" that JavaScript puts into another order;
//
// and if no name or text in it means something to BSON or the driver: names that begin with "$" (operators, references), _bsontype,
// toBSON, __proto__, the character U+0000 (no name may have it), and half a surrogate pair (not UTF-8).

import type { Json } from "../../protocol/event.ts";

/** Past this the value is no document that anybody queries, and BSON may take several times the room of the text. */
export const exactBytesMax = 1024 * 1024;

/** A name that begins with "$", as JSON.stringify writes it. A text that has this inside a string is merely stored as text. */
const dollarName = /"\$(?:[^"\\]|\\.)*":/;

/** The value, or undefined where it would not be the same text again. */
export function exactValue(text: string): Json | undefined {
  if (text.length > exactBytesMax) return undefined;
  let value: Json;
  try {
    value = JSON.parse(text) as Json;
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
  return JSON.stringify(value) === text && !hasMeaning(text) ? value : undefined;
}

/** The text of a value that was exact. */
export function exactText(value: unknown): string {
  return JSON.stringify(value);
}

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
