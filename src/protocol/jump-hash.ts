// Which partition a key belongs to: 64-bit FNV-1a of the key in UTF-8, then jump consistent hash (Lamping and Veach, 2014). Every
// event that was ever stored under a key depends on it, so it never changes; the test pins vectors. 64-bit numbers are pairs of
// 32-bit halves, because BigInt allocates at every step and this runs for each keyed event. A lone surrogate counts as U+FFFD,
// as it does when the key is encoded.

const encoder = new TextEncoder();
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
    low = Math.imul(low, 0x87b0b0fd) >>> 0;
    low = (low + 1) >>> 0;
    if (low === 0) high = (high + 1) >>> 0;
    next = Math.floor((bucket + 1) * (2 ** 31 / ((high >>> 1) + 1)));
  }
  return bucket;
}

/** The high 32 bits of the 64-bit product of two unsigned 32-bit numbers. */
function multiplyHigh(a: number, b: number): number {
  const aHigh = a >>> 16;
  const aLow = a & 0xffff;
  const bHigh = b >>> 16;
  const bLow = b & 0xffff;
  const middle = aHigh * bLow + ((aLow * bLow) >>> 16);
  const carry = aLow * bHigh + (middle % 0x10000);
  return aHigh * bHigh + Math.floor(middle / 0x10000) + Math.floor(carry / 0x10000);
}

/** [high, low] halves. */
export function fnv1a(text: string): [number, number] {
  const length = text.length;
  let high = basisHigh;
  let low = basisLow;
  for (let i = 0; i < length; i++) {
    const char = text.charCodeAt(i);
    if (char >= 0x80) return fnv1aOfBytes(encoder.encode(text));
    low = (low ^ char) >>> 0;
    const product = low * primeLow;
    high = (high * primeLow + Math.floor(product / 2 ** 32) + (low << 8)) >>> 0;
    low = product >>> 0;
  }
  return [high, low];
}

function fnv1aOfBytes(bytes: Uint8Array): [number, number] {
  let high = basisHigh;
  let low = basisLow;
  for (const byte of bytes) {
    low = (low ^ byte) >>> 0;
    const product = low * primeLow;
    high = (high * primeLow + Math.floor(product / 2 ** 32) + (low << 8)) >>> 0;
    low = product >>> 0;
  }
  return [high, low];
}
