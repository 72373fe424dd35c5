// The name of a lease: the epoch of the shard and a token counted up within it, so no name is ever given twice, by no shard: an id
// that its publisher chose may be of an event in each partition. Clients treat it as opaque. Decimal, because V8 writes decimal
// numbers much faster than any other base and one is written per delivered event.

/** A data folder has as many as the most workers that it has seen. */
export const shardsMax = 64;

export interface Lease {
  readonly epoch: number;
  readonly token: number;
}

const leaseCharsMax = 10 + 1 + 16;

/** What stands for an epoch of a shard in the names of its leases. 32 bits are enough for 67 million epochs of each. */
export function leaseEpoch(epoch: number, shard: number): number {
  return (epoch * shardsMax + shard) % 2 ** 32;
}

export function leaseText(epoch: number, token: number): string {
  return `${epoch}-${token}`;
}

/** Undefined unless the text is exactly what `leaseText` gives. */
export function parseLease(text: string): Lease | undefined {
  if (text.length > leaseCharsMax) return undefined;
  const dash = text.indexOf("-");
  if (dash < 0) return undefined;
  const epoch = parseCount(text, 0, dash);
  const token = parseCount(text, dash + 1, text.length);
  return epoch === undefined || token === undefined || epoch > 0xffffffff ? undefined : { epoch, token };
}

/** A whole number in plain decimal between two places of a text: no sign, no leading zero, no more than is exact. */
export function parseCount(text: string, from: number, to: number): number | undefined {
  if (from >= to || to - from > 16) return undefined;
  if (text.charCodeAt(from) === 0x30 && to - from > 1) return undefined;
  let value = 0;
  for (let i = from; i < to; i++) {
    const digit = text.charCodeAt(i) - 0x30;
    if (!(digit >= 0 && digit <= 9)) return undefined;
    value = value * 10 + digit;
  }
  return value <= Number.MAX_SAFE_INTEGER ? value : undefined;
}
