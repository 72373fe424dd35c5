// Properties over generated values. The numbers of runs are fixed, so that the suite takes the same time each day; FC_RUNS multiplies
// them for a longer search. A failure prints its seed, its path and the smallest counterexample: give `seed` and `path` to repeat it.

import fc from "fast-check";

const factor = Number(process.env.FC_RUNS ?? 1);

export function runs(count: number): { numRuns: number; seed?: number } {
  const { FC_SEED } = process.env;
  return { numRuns: Math.ceil(count * factor), ...(FC_SEED === undefined ? {} : { seed: Number(FC_SEED) }) };
}

/** Whole numbers with many small ones, powers of two and their neighbours, and the highest. */
export function counts(max: number): fc.Arbitrary<number> {
  const edges = Array.from({ length: 53 }, (_, bit) => 2 ** bit)
    .flatMap((power) => [power - 1, power, power + 1])
    .filter((value) => value <= max);
  return fc.oneof(
    fc.integer({ min: 0, max: Math.min(max, 1000) }),
    fc.constantFrom(...edges, max),
    fc.maxSafeNat().map((value) => value % (max + 1)),
  );
}

/** Texts as people and attackers write them; half surrogate pairs too. */
export function texts(minLength: number, maxLength: number): fc.Arbitrary<string> {
  return fc.oneof(
    fc.string({ minLength, maxLength, unit: "grapheme" }),
    fc.string({ minLength, maxLength, unit: "binary" }),
  );
}

/** Texts that UTF-8 can say. */
export function wellFormed(minLength: number, maxLength: number): fc.Arbitrary<string> {
  return texts(minLength, maxLength).filter((text) => !loneSurrogate.test(text));
}

const loneSurrogate = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/;
