// Which partition a key belongs to: 64-bit FNV-1a of the key in UTF-8, then jump consistent hash (Lamping and Veach, 2014). Every
// event that was ever stored under a key depends on it, so it never changes; the test pins vectors. 64-bit numbers are pairs of
// 32-bit halves, because BigInt allocates at every step and this runs for each keyed event. A lone surrogate counts as U+FFFD,
// as it does when the key is encoded.

import { encoder } from "./utf8.ts";

const basisHigh = 0xcbf29ce4;
const basisLow = 0x84222325;
/** The prime is 2^40 + this: times 2^40 is a shift by 8 of the low half into the high one. */
const primeLow = 0x1b3;

export function jumpHash(key: string, buckets: number): number {
  if (buckets <= 1) return 0;
  const [high, low] = fnv1a(key);
  return jump(high, low, buckets);
}

/** The bucket of a 64-bit number given in halves. */
export function jump(seedHigh: number, seedLow: number, buckets: number): number {
  let high = seedHigh;
  let low = seedLow;
  let bucket = 0;
  for (let next = 0; next < buckets; ) {
    bucket = next;
    // state = state * 2862933555777941757 + 1
    const product = multiplyHigh(low, 0x87b0b0fd);
    high = (product + Math.imul(high, 0x87b0b0fd) + Math.imul(low, 0x27bb2ee6)) >>> 0;
    low = (Math.imul(low, 0x87b0b0fd) + 1) >>> 0;
    if (low === 0) high = (high + 1) >>> 0;
    next = Math.floor((bucket + 1) * (2 ** 31 / ((high >>> 1) + 1)));
  }
  return bucket;
}

/** The high 32 bits of the 64-bit product of two unsigned 32-bit numbers. */
function multiplyHigh(a: number, b: number): number {
  // In two steps of 16 and 32 bits: what is exact in a double has 53.
  return Math.floor(((a >>> 16) * b + Math.floor(((a & 0xffff) * b) / 0x10000)) / 0x10000);
}

/** [high, low] halves. The characters of a text are its bytes as long as it is ASCII; of another one the bytes are put in their place. */
export function fnv1a(text: string, isBytes = false): [number, number] {
  const length = text.length;
  let high = basisHigh;
  let low = basisLow;
  for (let i = 0; i < length; i++) {
    const char = text.charCodeAt(i);
    if (char >= 0x80 && !isBytes) return fnv1a(String.fromCharCode(...encoder.encode(text)), true);
    low = (low ^ char) >>> 0;
    const product = low * primeLow;
    high = (high * primeLow + Math.floor(product / 2 ** 32) + (low << 8)) >>> 0;
    low = product >>> 0;
  }
  return [high, low];
}
