// What the tests of codecs share: texts to bytes and back, bytes as hex, and dice from a seed.

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

export function bytesOf(text: string): Uint8Array {
  return encoder.encode(text);
}

export function textOf(bytes: Uint8Array): string {
  return decoder.decode(bytes);
}

export function hexOf(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Spaces in the hex of a test are for its reader. */
export function bytesOfHex(hex: string): Uint8Array {
  return Uint8Array.from(hex.replaceAll(/\s/g, "").match(/../g) ?? [], (pair) => Number.parseInt(pair, 16));
}

/** Whole numbers below a bound, the same ones for the same seed (mulberry32). */
export function dice(seed: number): (bound: number) => number {
  let state = seed;
  return (bound) => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) % bound;
  };
}
