// What a filter lets through, against the rule as PROTOCOL.md words it, applied to the event as it was published.

import fc from "fast-check";
import { test } from "uvu";
import * as assert from "uvu/assert";
import { BlockView } from "../../src/protocol/block.ts";
import { type Filter, filterMatches } from "../../src/protocol/filter.ts";
import { metaText } from "../../src/protocol/meta.ts";
import { withoutUndefined } from "../support/frames.ts";
import { runs } from "../support/properties.ts";
import { block } from "../support/store-blocks.ts";

interface Facts {
  readonly key?: string;
  readonly tags?: readonly string[];
  readonly headers?: Readonly<Record<string, string>>;
  readonly sid?: string;
}

// Few words, so that they meet, and some that are names elsewhere.
const word = fc.constantFrom("a", "ab", "b", "é", "éa", "😀", "constructor", "toString");
const given = {
  key: word,
  tags: fc.array(word, { maxLength: 3 }),
  headers: fc.dictionary(word, word, { maxKeys: 3, noNullPrototype: true }),
  sid: word,
};
const facts: fc.Arbitrary<Facts> = fc.record(given, { requiredKeys: [], noNullPrototype: true });
const filters: fc.Arbitrary<Filter> = fc.record(
  { ...given, keyPrefix: word },
  { requiredKeys: [], noNullPrototype: true },
);

function wanted(filter: Filter, event: Facts): boolean {
  const headers = new Map(Object.entries(event.headers ?? {}));
  return (
    (filter.key === undefined || event.key === filter.key) &&
    (filter.keyPrefix === undefined || (event.key?.startsWith(filter.keyPrefix) ?? false)) &&
    (filter.sid === undefined || event.sid === filter.sid) &&
    (filter.tags ?? []).every((tag) => event.tags?.includes(tag) ?? false) &&
    Object.entries(filter.headers ?? {}).every(([name, value]) => headers.get(name) === value)
  );
}

test("a filter lets through what matches all of it, whatever else is in the block", () => {
  fc.assert(
    fc.property(fc.array(facts, { minLength: 1, maxLength: 5 }), filters, (events, filter) => {
      const specs = events.map(({ key, ...meta }) => withoutUndefined({ payload: "p", key, meta: metaText(meta) }));
      const view = new BlockView(block({ stream: 1, first: 0, events: specs as { payload: string }[] }));
      assert.equal(
        events.map((_, i) => filterMatches(filter, view, i)),
        events.map((event) => wanted(filter, event)),
      );
    }),
    runs(2500),
  );
});

test.run();
