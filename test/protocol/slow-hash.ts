// FNV-1a and the jump as their authors wrote them, on 64-bit numbers.

export const mask = (1n << 64n) - 1n;

export function slowFnv(text: string): bigint {
  let hash = 0xcbf29ce484222325n;
  for (const byte of new TextEncoder().encode(text)) hash = ((hash ^ BigInt(byte)) * 0x100000001b3n) & mask;
  return hash;
}

export function slowJump(seed: bigint, buckets: number): number {
  let state = seed;
  let bucket = -1;
  let next = 0;
  while (next < buckets) {
    bucket = next;
    state = (state * 2862933555777941757n + 1n) & mask;
    next = Math.floor((bucket + 1) * (2 ** 31 / (Number(state >> 33n) + 1)));
  }
  return bucket;
}
