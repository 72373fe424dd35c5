// What may be stored as a payload, against JSON.parse: exactly the texts that are one JSON value on one line, not too deep, in UTF-8. And
// what is stored can be spliced: between other payloads and into a frame it stays what it was.

import fc from "fast-check";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { frameBounds } from "../../src/protocol/bounds.ts";
import { faultOfMany, nestsTooDeep, payloadFault } from "../../src/protocol/payload.ts";
import { utf8Bytes } from "../../src/protocol/utf8.ts";
import { runs, texts, wellFormed } from "../support/properties.ts";
import { bytesOf } from "./bytes.ts";

function parsed(text: string): { readonly value: unknown } | undefined {
  try {
    return { value: JSON.parse(text) };
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
}

/** How deep a value is, by walking it. */
function depthOf(value: unknown): number {
  if (typeof value !== "object" || value === null) return 0;
  return 1 + Math.max(0, ...Object.values(value).map(depthOf));
}

const nestingMax = frameBounds.nestingMax;
const nested = fc
  .tuple(
    fc.integer({ min: nestingMax - 3, max: nestingMax + 3 }),
    fc.constantFrom("[", '{"a":'),
    fc.constantFrom("", "1", '"]}"'),
  )
  .map(([depth, open, inner]) => {
    const close = open === "[" ? "]" : "}";
    return open.repeat(depth) + (open === "[" || inner !== "" ? inner : "0") + close.repeat(depth);
  });
const pieces = fc
  .array(
    fc.constantFrom(...'[]{},:"\\ \t\n\r', "1", "-", "0.5", "1e9", "null", "true", '"a"', "é", "\u2028", "\\u00e9"),
    {
      maxLength: 10,
    },
  )
  .map((parts) => parts.join(""));
const json = fc.oneof(
  fc.json(),
  fc.jsonValue().map((value) => JSON.stringify(value, null, 1)),
);
/** With one character too many, too few or another. */
const spoilt = fc
  .tuple(json, fc.nat(), fc.constantFrom("", ...'[]{},:"\\1 \n\r\u0000x'))
  .map(
    ([text, at, other]) =>
      text.slice(0, at % (text.length + 1)) + other + text.slice((at % (text.length + 1)) + (at % 2)),
  );

test("a payload is one JSON value on one line, not too deep", () => {
  fc.assert(
    fc.property(fc.oneof(json, pieces, spoilt, nested, wellFormed(0, 12)), (text) => {
      const outcome = parsed(text);
      const good = outcome !== undefined && !/[\n\r]/.test(text) && depthOf(outcome.value) <= nestingMax;
      assert.is(payloadFault(bytesOf(text)) === undefined, good, JSON.stringify(text));
    }),
    runs(4000),
  );
});

test("bytes are a payload only if they are the UTF-8 of one", () => {
  const bytes = fc.oneof(
    fc.uint8Array({ maxLength: 12 }),
    fc.uint8Array({ maxLength: 6 }).map((inner) => Uint8Array.from([0x22, ...inner, 0x22])),
  );
  fc.assert(
    fc.property(bytes, (given) => {
      if (payloadFault(given) !== undefined) return;
      assert.equal(bytesOf(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(given)), given);
    }),
    runs(3000),
  );
});

test("of many payloads the first with a fault is told, as if each had come alone", () => {
  const bad = fc.uint8Array({ maxLength: 4 });
  const one = fc.oneof(json.map(bytesOf), json.map(bytesOf), fc.oneof(pieces, spoilt, nested).map(bytesOf), bad);
  const plain = fc.oneof(fc.integer(), fc.string(), fc.boolean()).map((value) => bytesOf(JSON.stringify(value)));
  fc.assert(
    fc.property(fc.oneof(fc.array(plain, { maxLength: 6 }), fc.array(one, { maxLength: 6 })), (payloads) => {
      const joined = Buffer.concat(payloads);
      const starts = Uint32Array.from([0, ...payloads.map((_, i) => Buffer.concat(payloads.slice(0, i + 1)).length)]);
      const found = faultOfMany(joined, starts);
      const index = payloads.findIndex((bytes) => payloadFault(bytes) !== undefined);
      assert.is(found?.index ?? -1, index);
      if (found !== undefined) assert.is(found.fault, payloadFault(payloads[index]));
    }),
    runs(4000),
  );
});

test("payloads that were accepted stay what they are between others", () => {
  fc.assert(
    fc.property(fc.array(fc.oneof(json, pieces, spoilt), { minLength: 1, maxLength: 5 }), (given) => {
      const accepted = given.filter((text) => payloadFault(bytesOf(text)) === undefined);
      assert.equal(
        JSON.parse(`[${accepted.join(",")}]`),
        accepted.map((text) => JSON.parse(text)),
      );
    }),
    runs(1000),
  );
});

test("the depth of a JSON text is that of its value", () => {
  fc.assert(
    fc.property(fc.oneof(fc.json({ maxDepth: 6 }), nested), fc.nat(8), (text, most) => {
      assert.is(nestsTooDeep(text, most), depthOf(JSON.parse(text)) > most);
    }),
    runs(1500),
  );
});

test("the bytes of a text are counted as an encoder writes them, and half a pair is told", () => {
  const encoder = new TextEncoder();
  fc.assert(
    fc.property(texts(0, 20), (text) => {
      const whole = new TextDecoder().decode(encoder.encode(text)) === text;
      assert.is(utf8Bytes(text), whole ? encoder.encode(text).length : -1);
    }),
    runs(2000),
  );
});

test.run();
